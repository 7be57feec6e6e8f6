"""Reward versions, which one a run uses from which cycle on, what was proposed, and why it was changed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Select, func, select
from sqlalchemy import insert as plain_insert

from palomar.data.store import models
from palomar.data.store.audit_log import append_entry
from palomar.data.store.database import Database, insert, lock_run
from palomar.data.store.records import (
    RewardAction,
    RewardChange,
    RewardProposal,
    RewardVersion,
    ScheduledReward,
)
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
            _schedule(connection, run_id, version, from_cycle)

        self._database.write(work)

    def effective(self, run_id: str, cycle: int) -> RewardVersion | None:
        """The version that the run uses in ``cycle``; None where none was scheduled by then."""
        query = effective(run_id, cycle)
        row = self._database.read(lambda connection: connection.execute(query).one_or_none())
        return None if row is None else RewardVersion(*row)

    def scheduled(self, run_id: str) -> list[ScheduledReward]:
        """The run's schedule, by cycle."""
        model = models.ScheduledReward
        query = select(*columns(model, ScheduledReward)).where(model.run_id == run_id).order_by(model.from_cycle)
        return self._database.read(lambda connection: [ScheduledReward(*row) for row in connection.execute(query)])

    # -- proposals and changes -------------------------------------------------------------------------------------

    def propose(self, proposals: Sequence[RewardProposal]) -> None:
        """Keeps proposals; one that is there already stands as it was first written, whoever made it."""
        rows = [dict(vars(each)) for each in proposals]

        def work(connection: Connection) -> None:
            if rows:
                connection.execute(insert(connection, models.RewardProposal).on_conflict_do_nothing(), rows)

        self._database.write(work)

    def proposals(self, run_id: str, cycle: int | None = None, *, base: str | None = None) -> list[RewardProposal]:
        """What was proposed for the run (in one cycle; to change one version), oldest cycle first, in each the best."""
        model = models.RewardProposal
        query = select(*columns(model, RewardProposal)).where(model.run_id == run_id)
        if cycle is not None:
            query = query.where(model.cycle == cycle)
        if base is not None:
            query = query.where(model.base == base)
        query = query.order_by(model.cycle, model.place, model.proposal_id)
        return self._database.read(lambda connection: [RewardProposal(*row) for row in connection.execute(query)])

    def change(
        self,
        run_id: str,
        version: str,
        *,
        action: RewardAction,
        reason: str,
        actor: str,
        expected: str | None = None,
        proposal_id: str | None = None,
        after: int | None = None,
    ) -> RewardChange | None:
        """Lets the run use a stored version from the cycle after the newest that has begun; the log gets an entry.

        None, and nothing is written, where it would be in force then anyway. StoreError without reason and actor,
        where ``expected`` is no longer the version that would be in force (what was proposed for it is stale), and
        where ``after`` is given and is not the newest cycle that has begun.
        """
        if not reason.strip() or not actor.strip():
            raise self._database.refuse("a change of the reward needs a reason and an actor")

        def work(connection: Connection) -> RewardChange | None:
            lock_run(connection, self._database, run_id)
            begun = connection.scalar(select(func.max(models.Cycle.cycle)).where(models.Cycle.run_id == run_id))
            if after is not None and begun != after:
                raise self._database.refuse(f"run {run_id!r} has begun cycle {begun}, not {after}")
            start = 0 if begun is None else begun + 1
            now = connection.scalar(effective(run_id, start).with_only_columns(models.ScheduledReward.version))
            if now == version:
                return None
            if expected is not None and now != expected:
                raise self._database.refuse(
                    f"stale: it is a change of reward {expected}, and {now} is in force from cycle {start} on"
                )
            _schedule(connection, run_id, version, start)
            model = models.RewardChange
            highest = connection.scalar(select(func.max(model.number)).where(model.run_id == run_id))
            change = RewardChange(
                run_id=run_id,
                number=0 if highest is None else highest + 1,
                from_cycle=start,
                version=version,
                instead_of=now,
                action=action,
                proposal_id=proposal_id,
                reason=reason,
                actor=actor,
                changed_at=datetime.now(UTC),
            )
            connection.execute(plain_insert(model).values(**vars(change)))
            append_entry(
                connection,
                self._database,
                actor=actor,
                action=f"reward.{action}",
                subject=f"reward:{version}",
                reason=reason,
                detail={"run": run_id, "from_cycle": start, "instead_of": now, "proposal": proposal_id},
            )
            return change

        return self._database.write(work)

    def changes(self, run_id: str) -> list[RewardChange]:
        """Every change of the run's reward, in the order they were made."""
        model = models.RewardChange
        query = select(*columns(model, RewardChange)).where(model.run_id == run_id).order_by(model.number)
        return self._database.read(lambda connection: [RewardChange(*row) for row in connection.execute(query)])


def effective(run_id: str, cycle: int) -> Select[Any]:
    """Asks for the version that is in force in a cycle, joined with its schedule."""
    schedule, version = models.ScheduledReward, models.RewardVersion
    return (
        select(*columns(version, RewardVersion))
        .join(schedule, schedule.version == version.version)
        .where(schedule.run_id == run_id, schedule.from_cycle <= cycle)
        .order_by(schedule.from_cycle.desc())
        .limit(1)
    )


def _schedule(connection: Connection, run_id: str, version: str, from_cycle: int) -> None:
    change = {"version": version, "scheduled_at": datetime.now(UTC)}
    connection.execute(
        insert(connection, models.ScheduledReward)
        .values(run_id=run_id, from_cycle=from_cycle, **change)
        .on_conflict_do_update(index_elements=["run_id", "from_cycle"], set_=change)
    )


def _version(connection: Connection, version: str) -> RewardVersion | None:
    query = select(*columns(models.RewardVersion, RewardVersion)).where(models.RewardVersion.version == version)
    row = connection.execute(query).one_or_none()
    return None if row is None else RewardVersion(*row)
