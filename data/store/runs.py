"""Runs, their cycles, and the stages that are done."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime
from typing import get_args

from sqlalchemy import ColumnElement, Connection, and_, select, update

from palomar.data.store import models
from palomar.data.store.database import Database, as_json, insert, lock_run
from palomar.data.store.records import Cycle, CycleStatus, Details, Run, RunStatus, Stage, StageName
from palomar.data.store.rewards import effective
from palomar.data.store.tables import columns

STAGES: tuple[StageName, ...] = get_args(StageName)
"""In the order in which a cycle takes them."""


class Runs:
    """Which loops there are."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, run_id: str, *, name: str, seed: int, config: Details) -> Run:
        """The run, written if it is new; StoreError if it is there with another seed or config."""

        def work(connection: Connection) -> Run:
            new = {"run_id": run_id, "name": name, "seed": seed, "config": config, "status": "running"}
            connection.execute(
                insert(connection, models.Run).values(**new, created_at=datetime.now(UTC)).on_conflict_do_nothing()
            )
            run = _run(connection, run_id)
            assert run is not None
            if (run.seed, run.config) != (seed, as_json(config)):
                raise self._database.refuse(f"run {run_id!r} is there already, with another seed or config")
            return run

        return self._database.write(work)

    def get(self, run_id: str) -> Run | None:
        """The run; None where there is none of that id."""
        return self._database.read(lambda connection: _run(connection, run_id))

    def read(self) -> list[Run]:
        """All runs, newest first."""
        query = select(*columns(models.Run, Run)).order_by(models.Run.created_at.desc(), models.Run.run_id)
        return self._database.read(lambda connection: [Run(*row) for row in connection.execute(query)])

    def set_status(self, run_id: str, status: RunStatus) -> None:
        """Says whether the run goes on; StoreError where there is no such run."""

        def work(connection: Connection) -> None:
            lock_run(connection, self._database, run_id)
            connection.execute(update(models.Run).where(models.Run.run_id == run_id).values(status=status))

        self._database.write(work)


class Cycles:
    """What each cycle of a run has done so far."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def start(
        self, run_id: str, cycle: int, *, checkpoint_id: str | None = None, reward_version: str | None = None
    ) -> Cycle:
        """The cycle, begun or taken up again where it stopped, with the stages that are done.

        StoreError if it was begun with another checkpoint or reward: what is done then belongs to something else; and
        where it is new and another reward than ``reward_version`` has been scheduled for it meanwhile.
        """

        def work(connection: Connection) -> Cycle:
            lock_run(connection, self._database, run_id)
            new = {"checkpoint_id": checkpoint_id, "reward_version": reward_version}
            if reward_version is not None and not _cycles(connection, _is(run_id, cycle)):
                now = connection.scalar(effective(run_id, cycle).with_only_columns(models.ScheduledReward.version))
                if now is not None and now != reward_version:
                    raise self._database.refuse(
                        f"cycle {cycle} of run {run_id!r} is paid by reward {now}, not {reward_version}: it was changed"
                    )
            connection.execute(
                insert(connection, models.Cycle)
                .values(run_id=run_id, cycle=cycle, **new, status="running", started_at=datetime.now(UTC))
                .on_conflict_do_nothing()
            )
            connection.execute(
                update(models.Cycle)
                .where(_is(run_id, cycle), models.Cycle.status == "stopped")
                .values(status="running", problem=None, finished_at=None)
            )
            begun = _cycles(connection, _is(run_id, cycle))[0]
            for name, value in new.items():
                if getattr(begun, name) != value:
                    raise self._database.refuse(
                        f"cycle {cycle} of run {run_id!r} was begun with {name} {getattr(begun, name)!r}, not {value!r}"
                    )
            return begun

        return self._database.write(work)

    def finish_stage(self, run_id: str, cycle: int, stage: StageName, *, elapsed_s: float, detail: Details) -> Stage:
        """The stage's record, written if it is the first; a second call gives back the first's and changes nothing."""

        def work(connection: Connection) -> Stage:
            row = {"run_id": run_id, "cycle": cycle, "stage": stage, "elapsed_s": elapsed_s, "detail": detail}
            connection.execute(
                insert(connection, models.Stage).values(**row, finished_at=datetime.now(UTC)).on_conflict_do_nothing()
            )
            where = (models.Stage.run_id == run_id, models.Stage.cycle == cycle, models.Stage.stage == stage)
            return Stage(*connection.execute(select(*columns(models.Stage, Stage)).where(*where)).one())

        return self._database.write(work)

    def complete(self, run_id: str, cycle: int) -> None:
        """Ends the cycle; StoreError where it was never begun."""
        self._end(run_id, cycle, "complete", None)

    def stop(self, run_id: str, cycle: int, problem: str) -> None:
        """Says that the cycle cannot go on, and why; `start` takes it up again. StoreError where it was never begun."""
        self._end(run_id, cycle, "stopped", problem)

    def get(self, run_id: str, cycle: int) -> Cycle | None:
        """The cycle with its stages; None where it was never begun."""
        found = self._database.read(lambda connection: _cycles(connection, _is(run_id, cycle)))
        return found[0] if found else None

    def read(self, run_id: str, *, newest: int | None = None, with_stages: bool = True) -> list[Cycle]:
        """The run's cycles with their stages, oldest first; only the ``newest`` so many where given.

        Without stages, which are most of what is read, ``stages`` is empty whatever was done.
        """
        where = models.Cycle.run_id == run_id
        return self._database.read(
            lambda connection: _cycles(connection, where, newest=newest, with_stages=with_stages)
        )

    def details(self, run_id: str, stage: StageName) -> dict[int, Details]:
        """By cycle: the figures of one stage, where it is done."""
        model = models.Stage
        query = select(model.cycle, model.detail).where(model.run_id == run_id, model.stage == stage)
        return self._database.read(lambda connection: {row.cycle: row.detail for row in connection.execute(query)})

    def served(self, run_id: str) -> dict[int, str | None]:
        """By cycle, the oldest first: the checkpoint that it was begun with."""
        model = models.Cycle
        query = select(model.cycle, model.checkpoint_id).where(model.run_id == run_id).order_by(model.cycle)
        return self._database.read(
            lambda connection: {row.cycle: row.checkpoint_id for row in connection.execute(query)}
        )

    def _end(self, run_id: str, cycle: int, status: CycleStatus, problem: str | None) -> None:
        def work(connection: Connection) -> None:
            ended = connection.execute(
                update(models.Cycle)
                # Ending it twice the same way keeps the first time.
                .where(_is(run_id, cycle), models.Cycle.status.not_in([status, "complete"]))
                .values(status=status, problem=problem, finished_at=datetime.now(UTC))
            )
            if ended.rowcount == 0 and not _cycles(connection, _is(run_id, cycle)):
                raise self._database.refuse(f"cycle {cycle} of run {run_id!r} was never begun")

        self._database.write(work)


def _run(connection: Connection, run_id: str) -> Run | None:
    row = connection.execute(select(*columns(models.Run, Run)).where(models.Run.run_id == run_id)).one_or_none()
    return None if row is None else Run(*row)


def _is(run_id: str, cycle: int) -> ColumnElement[bool]:
    return and_(models.Cycle.run_id == run_id, models.Cycle.cycle == cycle)


def _cycles(
    connection: Connection, where: ColumnElement[bool], newest: int | None = None, *, with_stages: bool = True
) -> list[Cycle]:
    query = select(*columns(models.Cycle, Cycle)).where(where).order_by(models.Cycle.cycle.desc()).limit(newest)
    rows = connection.execute(query).all()
    if not with_stages:
        return [Cycle(*row) for row in reversed(rows)]
    if not rows:
        return []
    run_id = rows[0].run_id
    stages: defaultdict[int, list[Stage]] = defaultdict(list)
    done = select(*columns(models.Stage, Stage)).where(
        models.Stage.run_id == run_id, models.Stage.cycle.between(rows[-1].cycle, rows[0].cycle)
    )
    for row in connection.execute(done):
        stages[row.cycle].append(Stage(*row))
    return [
        replace(Cycle(*row), stages=tuple(sorted(stages[row.cycle], key=lambda stage: STAGES.index(stage.stage))))
        for row in reversed(rows)
    ]
