"""Reward versions, and which one a run uses from which cycle on."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import Connection, func, select

from palomar.data.store import models
from palomar.data.store.database import Database, insert, lock_run
from palomar.data.store.records import RewardVersion, ScheduledReward
from palomar.data.store.tables import columns


class Rewards:
    """Every reward spec that was ever in use, and since when."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, version: str, *, text: str, parent: str | None, reason: str, actor: str) -> RewardVersion:
        """The version, written if it is new; the first one stands, with its words, reason and actor.

        ``version`` is a hash of what the spec means, so two texts that differ in comments only share it.
        """

        def work(connection: Connection) -> RewardVersion:
            row = {"version": version, "parent": parent, "text": text, "reason": reason, "actor": actor}
            connection.execute(
                insert(connection, models.RewardVersion)
                .values(**row, created_at=datetime.now(UTC))
                .on_conflict_do_nothing()
            )
            stored = _version(connection, version)
            assert stored is not None
            return stored

        return self._database.write(work)

    def get(self, version: str) -> RewardVersion | None:
        """The version; None where there is none of that hash."""
        return self._database.read(lambda connection: _version(connection, version))

    def read(self) -> list[RewardVersion]:
        """All versions, oldest first."""
        model = models.RewardVersion
        query = select(*columns(model, RewardVersion)).order_by(model.created_at, model.version)
        return self._database.read(lambda connection: [RewardVersion(*row) for row in connection.execute(query)])

    def schedule(self, run_id: str, version: str, *, from_cycle: int) -> None:
        """Lets the run use ``version`` from ``from_cycle`` on; doing it again changes nothing.

        StoreError if that cycle was begun already, with whatever reward: it would rewrite what samples were paid.
        """

        def work(connection: Connection) -> None:
            lock_run(connection, self._database, run_id)
            model = models.ScheduledReward
            where = (model.run_id == run_id, model.from_cycle == from_cycle)
            if connection.scalar(select(model.version).where(*where)) == version:
                return
            begun = connection.scalar(select(func.max(models.Cycle.cycle)).where(models.Cycle.run_id == run_id))
            if begun is not None and begun >= from_cycle:
                raise self._database.refuse(
                    f"reward {version} cannot begin in cycle {from_cycle}: run {run_id!r} has begun cycle {begun}"
                )
            change = {"version": version, "scheduled_at": datetime.now(UTC)}
            connection.execute(
                insert(connection, model)
                .values(run_id=run_id, from_cycle=from_cycle, **change)
                .on_conflict_do_update(index_elements=["run_id", "from_cycle"], set_=change)
            )

        self._database.write(work)

    def effective(self, run_id: str, cycle: int) -> RewardVersion | None:
        """The version that the run uses in ``cycle``; None where none was scheduled by then."""
        schedule, version = models.ScheduledReward, models.RewardVersion
        query = (
            select(*columns(version, RewardVersion))
            .join(schedule, schedule.version == version.version)
            .where(schedule.run_id == run_id, schedule.from_cycle <= cycle)
            .order_by(schedule.from_cycle.desc())
            .limit(1)
        )
        row = self._database.read(lambda connection: connection.execute(query).one_or_none())
        return None if row is None else RewardVersion(*row)

    def scheduled(self, run_id: str) -> list[ScheduledReward]:
        """The run's schedule, by cycle."""
        model = models.ScheduledReward
        query = select(*columns(model, ScheduledReward)).where(model.run_id == run_id).order_by(model.from_cycle)
        return self._database.read(lambda connection: [ScheduledReward(*row) for row in connection.execute(query)])


def _version(connection: Connection, version: str) -> RewardVersion | None:
    query = select(*columns(models.RewardVersion, RewardVersion)).where(models.RewardVersion.version == version)
    row = connection.execute(query).one_or_none()
    return None if row is None else RewardVersion(*row)
