"""Silences: what opens no incident for a while, and what it would have opened.

A silence spares people a call about what they know of. It hides nothing: its findings are kept and shown like all
others, those that would have opened an incident are noted here, and the gate takes them for what they are (see
`palomar.trainer.gate_evidence`). It always has an end, and not a far one. Which findings it covers is decided by
`palomar.detectors.incidents`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, func, select, update
from sqlalchemy import insert as plain_insert

from palomar.data.store import models
from palomar.data.store.audit_log import append_entry, entry_of, lock_log
from palomar.data.store.database import Database, insert, lock_run
from palomar.data.store.records import Silence, SilencedFinding, StoredFinding
from palomar.data.store.tables import columns

MOST_CYCLES, MOST_DAYS = 100, 30
"""How far off the end of a silence may be: never for ever. Who still wants it then says so again, with a reason."""
_COLUMNS = columns(models.Silence, Silence)


class Silences:
    """Who wanted not to be called about what, until when, and what came in that time."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def read(self, run_id: str | None = None) -> list[Silence]:
        """All, of one run where given, those over too; oldest first."""
        query = select(*_COLUMNS)
        if run_id is not None:
            query = query.where(models.Silence.run_id == run_id)
        query = query.order_by(models.Silence.number)
        return self._database.read(lambda connection: [_read(row) for row in connection.execute(query)])

    def silenced(self, numbers: Sequence[int]) -> list[SilencedFinding]:
        """What those silences kept from opening an incident; by silence and cycle."""
        return self._database.read(lambda connection: silenced_by(connection, numbers))

    def add(
        self,
        run_id: str,
        detector: str,
        *,
        actor: str,
        reason: str,
        statistic: str | None = None,
        slice_: str | None = None,
        until_cycle: int | None = None,
        until: datetime | None = None,
        token: str | None = None,
    ) -> Silence:
        """Silences a detector, or its findings on a statistic, in a slice, up to a cycle or a time.

        StoreError without a reason, a detector or an end, for an end that is over or farther off than `MOST_CYCLES` or
        `MOST_DAYS`, and where the same is silenced already.
        """
        if not reason.strip() or not detector.strip():
            raise self._database.refuse("a silence needs a detector and a reason")
        if (until_cycle is None) == (until is None):
            raise self._database.refuse("a silence needs an end: a cycle or a time")

        def work(connection: Connection) -> Silence:
            lock_run(connection, self._database, run_id)
            before = None if token is None else entry_of(connection, token)
            if before is not None:
                said_of = before.subject.removeprefix("silence:")
                if (before.action, before.actor) != ("silence.add", actor) or not said_of.isdigit():
                    raise self._database.refuse(f"token {token!r} was used for {before.action} of {before.subject}")
                return self._require(connection, int(said_of))
            now = datetime.now(UTC)
            newest = newest_cycle(connection, run_id)
            self._end_is_near(newest, until_cycle, until, now)
            for each in silences_of(connection, run_id):
                same = (each.detector, each.statistic, each.slice) == (detector, statistic, slice_)
                if same and in_force(each, newest, now):
                    raise self._database.refuse(f"silence {each.number} says so already; end it first")
            lock_log(connection, self._database)  # numbers are drawn under that lock
            number = 1 + (connection.scalar(select(func.max(models.Silence.number))) or 0)
            said: dict[str, Any] = {
                "run_id": run_id,
                "detector": detector,
                "statistic": statistic,
                "slice": slice_,
                "until_cycle": until_cycle,
            }
            row = {**said, "number": number, "reason": reason, "actor": actor, "made_at": now, "until": until}
            connection.execute(plain_insert(models.Silence).values(**row))
            append_entry(
                connection,
                self._database,
                actor=actor,
                action="silence.add",
                subject=subject(number),
                reason=reason,
                detail={**said, "until": None if until is None else until.isoformat()},
                token=token,
            )
            return self._require(connection, number)

        return self._database.write(work)

    def end(self, number: int, *, actor: str, reason: str, token: str | None = None) -> Silence:
        """Ends it now; nothing where somebody ended it already. StoreError without a reason, or where it is over."""
        if not reason.strip():
            raise self._database.refuse("to end a silence needs a reason")

        def work(connection: Connection) -> Silence:
            found = self._require(connection, number)
            lock_run(connection, self._database, found.run_id)
            found = self._require(connection, number)
            if found.ended_at is not None:
                return found
            now = datetime.now(UTC)
            if not in_force(found, newest_cycle(connection, found.run_id), now):
                raise self._database.refuse(f"silence {number} is over already")
            ends = {"ended_at": now, "ended_by": actor, "ended_reason": reason}
            connection.execute(update(models.Silence).where(models.Silence.number == number).values(**ends))
            append_entry(
                connection,
                self._database,
                actor=actor,
                action="silence.end",
                subject=subject(number),
                reason=reason,
                token=token,
            )
            return self._require(connection, number)

        return self._database.write(work)

    def _end_is_near(self, newest: int | None, until_cycle: int | None, until: datetime | None, now: datetime) -> None:
        if until_cycle is not None:
            last = -1 if newest is None else newest
            if until_cycle < last:
                raise self._database.refuse(f"cycle {until_cycle} is over already: the newest is {newest}")
            if until_cycle > last + MOST_CYCLES:
                raise self._database.refuse(
                    f"cycle {until_cycle} is too far off: a silence lasts for {MOST_CYCLES} cycles at most"
                )
        if until is not None:
            if until <= now:
                raise self._database.refuse(f"{until:%Y-%m-%d %H:%M} UTC is over already")
            if until > now + timedelta(days=MOST_DAYS):
                raise self._database.refuse(
                    f"{until:%Y-%m-%d} is too far off: a silence lasts for {MOST_DAYS} days at most"
                )

    def _require(self, connection: Connection, number: int) -> Silence:
        row = connection.execute(select(*_COLUMNS).where(models.Silence.number == number)).one_or_none()
        if row is None:
            raise self._database.refuse(f"there is no silence {number}")
        return _read(row)


def in_force(silence: Silence, newest: int | None, now: datetime) -> bool:
    """Whether it may still cover something; ``newest``: the newest cycle that the run has begun."""
    if silence.ended_at is not None:
        return False
    if silence.until_cycle is not None:
        return newest is None or newest <= silence.until_cycle
    assert silence.until is not None
    return now <= silence.until


def subject(number: int) -> str:
    """What the audit log calls a silence."""
    return f"silence:{number}"


def withhold(
    connection: Connection,
    database: Database,
    number: int,
    cycle: int,
    found: Sequence[StoredFinding],
    *,
    actor: str,
    reason: str,
) -> None:
    """Notes what a silence kept from opening an incident, within a transaction; nothing where it is noted."""
    model = models.SilencedFinding
    known = set(connection.scalars(select(model.finding_id).where(model.silence == number, model.cycle == cycle)))
    new = [each for each in found if each.finding_id not in known]
    rows = [
        {
            "silence": number,
            "finding_id": each.finding_id,
            "key": each.finding.key,
            "cycle": each.cycle,
            "blocks": int(each.finding.severity == "blocks"),
            "sentence": each.finding.sentence,
            "silenced_at": datetime.now(UTC),
        }
        for each in new
    ]
    if not rows:
        return
    connection.execute(insert(connection, model).on_conflict_do_nothing(), rows)
    append_entry(
        connection,
        database,
        actor=actor,
        action="silence.withhold",
        subject=subject(number),
        reason=reason,
        detail={"cycle": cycle, "findings": [each.finding_id for each in new]},
    )


def silenced_by(connection: Connection, numbers: Sequence[int]) -> list[SilencedFinding]:
    """As `Silences.silenced`."""
    model = models.SilencedFinding
    query = select(*columns(model, SilencedFinding)).where(model.silence.in_(numbers))
    query = query.order_by(model.silence, model.cycle, model.finding_id)
    return [
        SilencedFinding(**{**row._mapping, "blocks": bool(row._mapping["blocks"])}) for row in connection.execute(query)
    ]


def newest_cycle(connection: Connection, run_id: str) -> int | None:
    """The newest cycle that the run has begun; None before its first."""
    return connection.scalar(select(func.max(models.Cycle.cycle)).where(models.Cycle.run_id == run_id))


def silences_of(connection: Connection, run_id: str) -> list[Silence]:
    """All of a run, those over too, oldest first."""
    query = select(*_COLUMNS).where(models.Silence.run_id == run_id).order_by(models.Silence.number)
    return [_read(row) for row in connection.execute(query)]


def _read(row: Row[Any]) -> Silence:
    return Silence(**row._mapping)
