"""Checkpoints, which of them serves users, and how they did in evaluation.

A checkpoint's life: ``candidate`` -> ``promoted`` -> ``superseded`` by the next, or ``rolled_back``; or ``blocked``,
or ``superseded`` by a later candidate while it was held. A rollback makes a former champion ``promoted`` again. The
champion pointer and the statuses change in one transaction; no state in between is ever seen or left by a crash.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import ColumnElement, Connection, and_, select, update

from palomar.data.store import models
from palomar.data.store.audit_log import append_entry
from palomar.data.store.database import Database, insert, lock_run
from palomar.data.store.records import Champion, Checkpoint, CheckpointStatus, Evaluation
from palomar.data.store.tables import columns


class Checkpoints:
    """The registry of a run's checkpoints."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(
        self, run_id: str, checkpoint_id: str, *, cycle: int | None, parent_id: str | None, path: str, sha256: str
    ) -> Checkpoint:
        """The checkpoint, a ``candidate`` if it is new; StoreError if it is there with other content or descent."""

        def work(connection: Connection) -> Checkpoint:
            now = datetime.now(UTC)
            given = {"cycle": cycle, "parent_id": parent_id, "sha256": sha256}
            row = {"run_id": run_id, "checkpoint_id": checkpoint_id, "path": path, "status": "candidate", **given}
            connection.execute(
                insert(connection, models.Checkpoint)
                .values(**row, created_at=now, status_at=now)
                .on_conflict_do_nothing(index_elements=["run_id", "checkpoint_id"])
            )
            stored = self._require(connection, run_id, checkpoint_id)
            for name, value in given.items():
                if getattr(stored, name) != value:
                    raise self._database.refuse(
                        f"checkpoint {checkpoint_id!r} of run {run_id!r} is there already, with {name} "
                        f"{getattr(stored, name)!r}, not {value!r}"
                    )
            return stored

        return self._database.write(work)

    def promote(
        self, run_id: str, checkpoint_id: str, *, replacing: str | None, since_cycle: int, reason: str
    ) -> Champion:
        """Makes a candidate the champion in place of ``replacing`` (None: the run's first).

        ``replacing`` is the champion that the candidate was measured against. If another has been promoted meanwhile,
        that comparison says nothing about it: StoreError. Promoting the champion again changes nothing.
        """

        def work(connection: Connection) -> Champion:
            lock_run(connection, self._database, run_id)
            champion = _champion(connection, run_id)
            serving = None if champion is None else champion.checkpoint.checkpoint_id
            if champion is not None and serving == checkpoint_id:
                return champion
            if serving != replacing:
                raise self._database.refuse(
                    f"checkpoint {checkpoint_id!r} was to replace {replacing!r}, but the champion of run {run_id!r} "
                    f"is {serving!r} now"
                )
            self._require(connection, run_id, checkpoint_id, "candidate")
            if serving is not None:
                _set(connection, run_id, serving, "superseded", f"replaced by {checkpoint_id}")
            return self._crown(connection, run_id, checkpoint_id, since_cycle, reason)

        return self._database.write(work)

    def roll_back(
        self, run_id: str, checkpoint_id: str, *, to: str, since_cycle: int, reason: str, actor: str = "palomar run"
    ) -> Champion:
        """Takes the champion ``checkpoint_id`` out of service and puts back ``to``, which had served before it.

        Leaves an entry in the audit log. StoreError unless they are the champion and a superseded one. Doing it again
        changes nothing.
        """

        def work(connection: Connection) -> Champion:
            lock_run(connection, self._database, run_id)
            champion = _champion(connection, run_id)
            serving = None if champion is None else champion.checkpoint.checkpoint_id
            fallen = self._require(connection, run_id, checkpoint_id)
            if champion is not None and serving == to and fallen.status == "rolled_back":
                return champion
            if serving != checkpoint_id:
                raise self._database.refuse(
                    f"checkpoint {checkpoint_id!r} cannot be rolled back: the champion of run {run_id!r} is {serving!r}"
                )
            if self._require(connection, run_id, to, "superseded").served_from is None:
                raise self._database.refuse(f"checkpoint {to!r} of run {run_id!r} has never served")
            _set(connection, run_id, checkpoint_id, "rolled_back", reason)
            crowned = self._crown(connection, run_id, to, since_cycle, f"{checkpoint_id} was rolled back")
            append_entry(
                connection,
                self._database,
                actor=actor,
                action="checkpoint.roll_back",
                subject=f"candidate:{checkpoint_id}",
                reason=reason,
                detail={"run": run_id, "to": to, "since_cycle": since_cycle},
            )
            return crowned

        return self._database.write(work)

    def block(self, run_id: str, checkpoint_id: str, reason: str) -> Checkpoint:
        """Keeps a candidate from ever being promoted; StoreError unless it is a candidate (or blocked already)."""
        return self._retire(run_id, checkpoint_id, "blocked", reason)

    def supersede(self, run_id: str, checkpoint_id: str, reason: str) -> Checkpoint:
        """Drops a held candidate for a later one; StoreError unless it is a candidate (or superseded already)."""
        return self._retire(run_id, checkpoint_id, "superseded", reason)

    def get(self, run_id: str, checkpoint_id: str) -> Checkpoint | None:
        """The checkpoint; None where the run has none of that id."""
        return self._database.read(lambda connection: _checkpoint(connection, run_id, checkpoint_id))

    def read(self, run_id: str) -> list[Checkpoint]:
        """The run's checkpoints, the base first, then by cycle."""
        query = select(*columns(models.Checkpoint, Checkpoint)).where(models.Checkpoint.run_id == run_id)
        query = query.order_by(
            models.Checkpoint.cycle.is_not(None), models.Checkpoint.cycle, models.Checkpoint.checkpoint_id
        )
        return self._database.read(lambda connection: [Checkpoint(*row) for row in connection.execute(query)])

    def newest(self, run_id: str) -> Checkpoint | None:
        """The one that was trained last; None where none was trained in the run yet."""
        model = models.Checkpoint
        query = select(*columns(model, Checkpoint)).where(model.run_id == run_id, model.cycle.is_not(None))
        query = query.order_by(model.cycle.desc(), model.created_at.desc(), model.checkpoint_id).limit(1)

        def work(connection: Connection) -> Checkpoint | None:
            row = connection.execute(query).one_or_none()
            return None if row is None else Checkpoint(*row)

        return self._database.read(work)

    def champion(self, run_id: str) -> Champion | None:
        """Who serves users; None before the first promotion."""
        return self._database.read(lambda connection: _champion(connection, run_id))

    def _retire(self, run_id: str, checkpoint_id: str, status: CheckpointStatus, reason: str) -> Checkpoint:
        def work(connection: Connection) -> Checkpoint:
            lock_run(connection, self._database, run_id)
            stored = self._require(connection, run_id, checkpoint_id, "candidate", status)
            if stored.status == status:
                return stored
            _set(connection, run_id, checkpoint_id, status, reason)
            return self._require(connection, run_id, checkpoint_id)

        return self._database.write(work)

    def _crown(
        self, connection: Connection, run_id: str, checkpoint_id: str, since_cycle: int, reason: str
    ) -> Champion:
        # After the old one's status: the index ``one_promoted`` is checked at every statement.
        _set(connection, run_id, checkpoint_id, "promoted", reason)
        connection.execute(
            update(models.Checkpoint)
            .where(_is(run_id, checkpoint_id), models.Checkpoint.served_from.is_(None))
            .values(served_from=since_cycle)
        )
        pointer = {"checkpoint_id": checkpoint_id, "since_cycle": since_cycle}
        connection.execute(
            insert(connection, models.Champion)
            .values(run_id=run_id, **pointer)
            .on_conflict_do_update(index_elements=["run_id"], set_=pointer)
        )
        return Champion(self._require(connection, run_id, checkpoint_id), since_cycle)

    def _require(
        self, connection: Connection, run_id: str, checkpoint_id: str, *statuses: CheckpointStatus
    ) -> Checkpoint:
        found = _checkpoint(connection, run_id, checkpoint_id)
        if found is None:
            raise self._database.refuse(f"run {run_id!r} has no checkpoint {checkpoint_id!r}")
        if statuses and found.status not in statuses:
            raise self._database.refuse(
                f"checkpoint {checkpoint_id!r} of run {run_id!r} is {found.status}, not {' or '.join(statuses)}"
            )
        return found


class Evaluations:
    """What evaluation suites measured."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def write(self, run_id: str, rows: Sequence[Evaluation]) -> None:
        """Keeps the rows, over earlier ones of the same checkpoint, suite and metric."""
        if not rows:
            return

        def work(connection: Connection) -> None:
            statement = insert(connection, models.Evaluation)
            connection.execute(
                statement.on_conflict_do_update(
                    index_elements=["run_id", "checkpoint_id", "suite", "metric"],
                    set_={name: statement.excluded[name] for name in ("value", "low", "high", "n")},
                ),
                [{"run_id": run_id, **vars(row)} for row in rows],
            )

        self._database.write(work)

    def read(self, run_id: str, checkpoint_id: str | None = None) -> list[Evaluation]:
        """By checkpoint, suite and metric; of one checkpoint where given."""
        model = models.Evaluation
        query = select(*columns(model, Evaluation)).where(model.run_id == run_id)
        if checkpoint_id is not None:
            query = query.where(model.checkpoint_id == checkpoint_id)
        query = query.order_by(model.checkpoint_id, model.suite, model.metric)
        return self._database.read(lambda connection: [Evaluation(*row) for row in connection.execute(query)])


def _is(run_id: str, checkpoint_id: str) -> ColumnElement[bool]:
    return and_(models.Checkpoint.run_id == run_id, models.Checkpoint.checkpoint_id == checkpoint_id)


def _checkpoint(connection: Connection, run_id: str, checkpoint_id: str) -> Checkpoint | None:
    query = select(*columns(models.Checkpoint, Checkpoint)).where(_is(run_id, checkpoint_id))
    row = connection.execute(query).one_or_none()
    return None if row is None else Checkpoint(*row)


def _champion(connection: Connection, run_id: str) -> Champion | None:
    pointer = connection.execute(
        select(models.Champion.checkpoint_id, models.Champion.since_cycle).where(models.Champion.run_id == run_id)
    ).one_or_none()
    if pointer is None:
        return None
    checkpoint = _checkpoint(connection, run_id, pointer.checkpoint_id)
    assert checkpoint is not None, "a foreign key holds the champion to a checkpoint"
    return Champion(checkpoint, pointer.since_cycle)


def _set(connection: Connection, run_id: str, checkpoint_id: str, status: CheckpointStatus, reason: str) -> None:
    change = {"status": status, "reason": reason, "status_at": datetime.now(UTC)}
    connection.execute(update(models.Checkpoint).where(_is(run_id, checkpoint_id)).values(**change))
