"""Long work that somebody asked for, done by a process beside: what it is, how far it is, and what came of it.

    queued -> running -> done
                      -> failed: it could not be done, or whoever did it died

A job is taken by one worker, which says every few seconds that it still lives. One that is silent for `SILENT_S` has
died, and its job is failed by whoever looks next. A failed job stays as it is; to run it again is to ask again.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, select, update

from palomar.data.store import models
from palomar.data.store.database import Database, as_json, insert
from palomar.data.store.records import Details, Job, JobState
from palomar.data.store.tables import columns

SILENT_S = 30.0
"""Seconds without a sign of life after which a worker is held to be dead; it gives one every few seconds."""
UNDER_WAY: tuple[JobState, ...] = ("queued", "running")
_COLUMNS = columns(models.Job, Job)


class Jobs:
    """What was asked for, in the order in which it was."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # -- whoever asks

    def ask(self, kind: str, arguments: Details, *, actor: str, token: str | None = None) -> Job:
        """A job to be done. The same ``token`` again is the same request, and gives the job that is there.

        StoreError without an actor, and where the token asked for something else.
        """
        if not actor.strip() or not kind.strip():
            raise self._database.refuse("a job needs a kind and an actor")
        token, job_id = token or uuid.uuid4().hex, uuid.uuid4().hex[:16]
        row: dict[str, Any] = {"job_id": job_id, "token": token, "kind": kind, "arguments": dict(arguments)}
        row |= {"actor": actor, "state": "queued", "progress": 0.0, "step": "waits for its turn"}
        row["asked_at"] = datetime.now(UTC)

        def work(connection: Connection) -> Job:
            connection.execute(insert(connection, models.Job).values(**row).on_conflict_do_nothing())
            found = _one(connection, models.Job.token == token)
            assert found is not None
            if (found.kind, as_json(dict(found.arguments))) != (kind, as_json(dict(arguments))):
                raise self._database.refuse(f"token {token!r} asked for another job already ({found.job_id})")
            return found

        return self._database.write(work)

    def get(self, job_id: str) -> Job | None:
        """The job with its result; None where there is none of that id."""
        return self._database.read(lambda connection: _one(connection, models.Job.job_id == job_id))

    def read(
        self, *, kind: str | None = None, states: Collection[JobState] | None = None, newest: int | None = None
    ) -> list[Job]:
        """Oldest first, without their results, which are large: of one kind, in some states, only the ``newest``."""
        asked = [each for each in _COLUMNS if each.key != "result"]
        query = select(*asked)
        if kind is not None:
            query = query.where(models.Job.kind == kind)
        if states is not None:
            query = query.where(models.Job.state.in_(list(states)))
        query = query.order_by(models.Job.asked_at.desc(), models.Job.job_id.desc()).limit(newest)
        return self._database.read(lambda connection: [_read(row) for row in connection.execute(query)][::-1])

    # -- whoever does it

    def take(self, worker: str) -> Job | None:
        """The oldest job that waits, now this worker's; None where none does. No two workers get the same."""
        now = datetime.now(UTC)

        def work(connection: Connection) -> Job | None:
            model = models.Job
            waiting = select(model.job_id).where(model.state == "queued").order_by(model.asked_at, model.job_id)
            job_id = connection.scalar(waiting.limit(1).with_for_update(skip_locked=True))
            if job_id is None:
                return None
            taken = {"state": "running", "worker": worker, "started_at": now, "heard_at": now, "step": "begins"}
            connection.execute(update(model).where(model.job_id == job_id).values(**taken))
            return _one(connection, model.job_id == job_id)

        return self._database.write(work)

    def tell(self, job_id: str, worker: str, *, progress: float | None = None, step: str | None = None) -> bool:
        """How far it is (0 to 1), which is a sign of life too; False where the job is no longer this worker's."""
        values: dict[str, Any] = {"heard_at": datetime.now(UTC)}
        if progress is not None:
            values["progress"] = min(max(progress, 0.0), 1.0)
        if step is not None:
            values["step"] = step
        return self._of_worker(job_id, worker, values)

    def finish(self, job_id: str, worker: str, result: Details) -> bool:
        """Keeps what came of it; False, and nothing is kept, where the job is no longer this worker's."""
        return self._ended(job_id, worker, {"state": "done", "progress": 1.0, "step": "done", "result": dict(result)})

    def fail(self, job_id: str, worker: str, error: str) -> bool:
        """Says why it could not be done; False where the job is no longer this worker's."""
        return self._ended(job_id, worker, {"state": "failed", "error": error})

    def lose(self, *, worker: str | None = None, why: str = "", now: datetime | None = None) -> list[str]:
        """Fails what dead workers had in hand, and says which jobs: those of ``worker``, of whom the caller knows that
        it died, else those of workers that have been silent for `SILENT_S`."""
        moment = now or datetime.now(UTC)

        def work(connection: Connection) -> list[str]:
            model = models.Job
            dead = [model.state == "running"]
            dead.append(
                model.worker == worker if worker is not None else model.heard_at < moment - timedelta(seconds=SILENT_S)
            )
            lost = connection.execute(select(model.job_id, model.heard_at).where(*dead).order_by(model.job_id)).all()
            for job_id, heard_at in lost:
                error = f"lost: its worker died; last heard of {heard_at:%Y-%m-%d %H:%M:%S} UTC" + (why and f" ({why})")
                values = {"state": "failed", "error": error, "finished_at": moment}
                connection.execute(update(model).where(model.job_id == job_id, *dead).values(**values))
            return [str(job_id) for job_id, _ in lost]

        return self._database.write(work)

    def give_up(self, why: str) -> list[str]:
        """Fails what waits, since nobody can do it, and says which jobs."""
        model = models.Job

        def work(connection: Connection) -> list[str]:
            waiting = list(connection.scalars(select(model.job_id).where(model.state == "queued")))
            values = {"state": "failed", "error": why, "finished_at": datetime.now(UTC)}
            connection.execute(update(model).where(model.job_id.in_(waiting), model.state == "queued").values(**values))
            return waiting

        return self._database.write(work)

    def _ended(self, job_id: str, worker: str, values: dict[str, Any]) -> bool:
        now = datetime.now(UTC)
        return self._of_worker(job_id, worker, {**values, "finished_at": now, "heard_at": now})

    def _of_worker(self, job_id: str, worker: str, values: dict[str, Any]) -> bool:
        model = models.Job
        change = update(model).where(model.job_id == job_id, model.worker == worker, model.state == "running")
        return bool(self._database.write(lambda connection: connection.execute(change.values(**values)).rowcount))


def _one(connection: Connection, which: Any) -> Job | None:
    row = connection.execute(select(*_COLUMNS).where(which)).one_or_none()
    return None if row is None else _read(row)


def _read(row: Row[Any]) -> Job:
    return Job(**{"result": None, **row._mapping})
