"""Incidents: findings that belong together, and what people did about them.

Who did what and when is in the audit log under ``incident:N``, written in the same transaction: that is the incident's
timeline, and it cannot be changed. The tables hold where it stands now, and the findings as they were when they joined,
which the database refuses to change; the log holds a hash of each.

    open -> acknowledged -> mitigated -> resolved
      ^________________________________________|  by a person, or by a finding of a later cycle

Any of the first three can be resolved. Which findings make, join or reopen an incident is decided by
`palomar.detectors.incidents`; here it is written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, func, or_, select, update
from sqlalchemy import insert as plain_insert

from palomar.data.findings import Cause, Evidence, Finding
from palomar.data.store import models
from palomar.data.store.audit_log import append_entry, entry_of, lock_log
from palomar.data.store.database import Database, as_json, dumps, insert, lock_run
from palomar.data.store.records import (
    AlarmVote,
    Details,
    Incident,
    IncidentState,
    PinnedFinding,
    Resolution,
    Scope,
    Silence,
    StoredFinding,
    Vote,
)
from palomar.data.store.silences import silences_of, withhold
from palomar.data.store.tables import columns

PROGRAM = "palomar"
"""Actor of what no person asked for."""
ACTIVE: tuple[IncidentState, ...] = ("open", "acknowledged", "mitigated")
_COLUMNS = columns(models.Incident, Incident)


@dataclass(frozen=True)
class Arrival:
    """What the findings of a cycle do to one incident."""

    incident: int | None
    """None = a new one."""
    what: str
    """``open``, ``join``, ``reopen``, ``late``: from before the resolution, which stands; or ``withhold``."""
    reason: str
    """In words, for the timeline."""
    title: str
    strands: tuple[str, ...]
    family: str
    blocks: bool
    keeps: bool
    """Whether one of the cycle's findings keeps it from passing; then the incident was seen in this cycle."""
    findings: tuple[tuple[StoredFinding, str], ...]
    """To be pinned, each with the reason why it is here; the leading one first."""
    silence: int | None = None
    """Of what a silence keeps from opening an incident: which. Then it is noted there, and no incident changes."""


Decide = Callable[[Sequence[Incident], Mapping[int, Sequence[PinnedFinding]], Sequence[Silence]], Sequence[Arrival]]
"""From a run's incidents, oldest first, what is pinned to each, and its silences, to what happens. May be asked several
times."""


class Incidents:
    """What went wrong in the runs, who has it in hand, and how it ended."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # -- reading

    def read(
        self, run_id: str | None = None, *, states: Collection[IncidentState] | None = None, newest: int | None = None
    ) -> list[Incident]:
        """Oldest first: of one run, in one of some states, only the ``newest`` so many, where given."""
        query = select(*_COLUMNS)
        if run_id is not None:
            query = query.where(models.Incident.run_id == run_id)
        if states is not None:
            query = query.where(models.Incident.state.in_(list(states)))
        query = query.order_by(models.Incident.number.desc()).limit(newest)
        return self._database.read(lambda connection: [_read(row) for row in connection.execute(query)][::-1])

    def get(self, number: int) -> Incident | None:
        """The incident; None where there is none of that number."""
        return self._database.read(lambda connection: _incident(connection, number))

    def pinned(self, number: int) -> list[PinnedFinding]:
        """Its findings as they were when they joined, in the order in which they did."""
        return self._database.read(lambda connection: _pinned(connection, [number]).get(number, []))

    def holding(self, run_id: str, finding_id: str, key: str | None = None) -> list[Incident]:
        """The run's incidents that hold the finding, or (with ``key``) one of the same thing; oldest first."""
        model, pin = models.Incident, models.PinnedFinding
        # By incident, so that the pins are sought and not scanned.
        own = select(model.number).where(model.run_id == run_id)
        what = pin.finding_id == finding_id if key is None else or_(pin.finding_id == finding_id, pin.key == key)
        numbers = select(pin.incident).where(pin.incident.in_(own), what)
        query = select(*_COLUMNS).where(model.number.in_(numbers)).order_by(model.number)
        return self._database.read(lambda connection: [_read(row) for row in connection.execute(query)])

    def of_findings(self, finding_ids: Collection[str]) -> dict[str, tuple[int, ...]]:
        """By finding: the incidents to which it is pinned; those of none are missing."""
        pin = models.PinnedFinding
        # By incident, so that the pins are sought and not scanned.
        own = select(models.Incident.number)
        query = select(pin.finding_id, pin.incident).where(pin.incident.in_(own), pin.finding_id.in_(set(finding_ids)))

        def work(connection: Connection) -> dict[str, tuple[int, ...]]:
            found: dict[str, tuple[int, ...]] = {}
            for finding_id, number in connection.execute(query.order_by(pin.incident)):
                found[finding_id] = (*found.get(finding_id, ()), number)
            return found

        return self._database.read(work) if finding_ids else {}

    def pins(self) -> tuple[int, datetime | None]:
        """How many findings are pinned to all incidents, and when the last was: pins are only added."""
        model = models.PinnedFinding
        query = select(func.count(), func.max(model.pinned_at))

        def work(connection: Connection) -> tuple[int, datetime | None]:
            count, last = connection.execute(query).one()
            return count, last

        return self._database.read(work)

    def votes(self, number: int | None = None) -> list[AlarmVote]:
        """What people think of its alarms; without a number, of those of all incidents."""
        model = models.AlarmVote
        query = select(*columns(model, AlarmVote)).order_by(model.incident, model.detector, model.actor)
        if number is not None:
            query = query.where(model.incident == number)
        return self._database.read(lambda connection: [AlarmVote(*row) for row in connection.execute(query)])

    def detectors(self) -> dict[int, tuple[str, ...]]:
        """By incident: which detectors have a finding pinned to it."""
        model = models.PinnedFinding

        def work(connection: Connection) -> dict[int, tuple[str, ...]]:
            found = _pinned(connection, list(connection.scalars(select(model.incident).distinct())))
            return {number: tuple(sorted({pin.finding.detector for pin in pins})) for number, pins in found.items()}

        return self._database.read(work)

    # -- what detectors do

    def arrive(self, run_id: str, cycle: int, decide: Decide) -> list[Incident]:
        """Writes what the findings of a cycle come to; those incidents that changed, as they are now.

        One transaction that holds the run: of two processes that check the same cycle, the second finds what the first
        wrote. Doing it again changes nothing, as long as ``decide`` tells nothing new.
        """

        def work(connection: Connection) -> list[Incident]:
            lock_run(connection, self._database, run_id)
            query = select(*_COLUMNS).where(models.Incident.run_id == run_id).order_by(models.Incident.number)
            known = [_read(row) for row in connection.execute(query)]
            pinned = _pinned(connection, [incident.number for incident in known])
            changed = []
            for arrival in decide(known, pinned, silences_of(connection, run_id)):
                if arrival.silence is not None:
                    held = [each for each, _ in arrival.findings]
                    withhold(
                        connection, self._database, arrival.silence, cycle, held, actor=PROGRAM, reason=arrival.reason
                    )
                    continue
                number = arrival.incident
                if number is None:
                    # The log's head is locked by whoever writes to it; numbers are drawn under that lock.
                    number = _next_number(connection, self._database)
                    _add(connection, number, run_id, cycle, arrival)
                else:
                    _arrive(connection, number, cycle, arrival)
                _pin(connection, number, arrival.findings)
                if arrival.findings or arrival.what in ("open", "reopen"):
                    append_entry(
                        connection,
                        self._database,
                        actor=PROGRAM,
                        action=f"incident.{arrival.what}",
                        subject=subject(number),
                        reason=arrival.reason,
                        detail={
                            "cycle": cycle,
                            "title": arrival.title,
                            "findings": {each.finding_id: evidence_hash(each.finding) for each, _ in arrival.findings},
                        },
                    )
                now = _incident(connection, number)
                assert now is not None
                changed.append(now)
            return changed

        return self._database.write(work)

    # -- what people do

    def acknowledge(self, number: int, *, actor: str, reason: str = "", token: str | None = None) -> Incident:
        """Says that someone looks into it; nothing where someone does already."""

        def change(_: Connection, incident: Incident) -> _Change | None:
            return ({"state": "acknowledged"}, {}) if incident.state == "open" else None

        return self._change(number, change, actor=actor, verb="ack", reason=reason, token=token)

    def assign(self, number: int, *, actor: str, to: str, reason: str = "", token: str | None = None) -> Incident:
        """Gives it to someone; nothing where they have it already. StoreError for nobody."""
        self._needed(to, "to assign an incident", "someone")

        def change(_: Connection, incident: Incident) -> _Change | None:
            return None if incident.assignee == to else ({"assignee": to}, {"to": to, "from": incident.assignee})

        return self._change(number, change, actor=actor, verb="assign", reason=reason, token=token)

    def comment(self, number: int, *, actor: str, words: str, token: str | None = None) -> Incident:
        """Adds words to the timeline, of a resolved one too. StoreError without words."""
        self._needed(words, "a comment", "words")
        return self._change(
            number, lambda *_: ({}, {}), actor=actor, verb="comment", reason=words, token=token, ended=True
        )

    def act(
        self,
        number: int,
        *,
        actor: str,
        what: str,
        mitigates: bool = False,
        detail: Details | None = None,
        token: str | None = None,
    ) -> Incident:
        """Notes an action or a decision: a patch, a block, a roll-back. ``mitigates``: the harm is stopped by it.

        While it is mitigated, findings are expected to go on for a while: a policy unlearns over cycles.
        """
        self._needed(what, "an action", "words")
        values = {"state": "mitigated"} if mitigates else {}
        said = {**(detail or {}), "mitigates": mitigates}
        return self._change(number, lambda *_: (values, said), actor=actor, verb="action", reason=what, token=token)

    def explain(
        self,
        number: int,
        *,
        actor: str,
        words: str,
        term: str | None = None,
        slice_: str | None = None,
        reward: str | None = None,
        token: str | None = None,
    ) -> Incident:
        """Notes the root cause; a later word takes its place. ``term``: a term or rule, ``reward``: a version of it."""
        self._needed(words, "a root cause", "words")
        cause = {"words": words, "term": term, "slice": slice_, "reward": reward}
        return self._change(
            number,
            lambda *_: ({"cause": cause}, cause),
            actor=actor,
            verb="cause",
            reason=words,
            token=token,
            ended=True,
        )

    def resolve(
        self,
        number: int,
        resolution: Resolution,
        *,
        actor: str,
        reason: str,
        cycle: int | None = None,
        until_cycle: int | None = None,
        until: datetime | None = None,
        scope: Collection[Scope] = (),
        token: str | None = None,
    ) -> Incident:
        """Ends it. ``cycle``: the last one that this speaks of, without it the run's newest; later ones may reopen it.

        An accepted one needs an end, a cycle or a time still to come, and covers ``scope``: without, just those
        statistics and slices that are pinned to it. StoreError without a reason, for a cycle that the run has not begun
        or that is before the incident's, for a scope of anything, and where any other resolution is given an end.
        """
        self._needed(reason, "a resolution", "a reason")
        accepted = resolution == "accepted"
        if accepted and (until_cycle is None) == (until is None):
            raise self._database.refuse("to accept something needs an end: a cycle or a time")
        if not accepted and (until_cycle is not None or until is not None or scope):
            raise self._database.refuse("only what is accepted has an end and a scope")
        if any(each.statistic is None and each.slice is None for each in scope):
            raise self._database.refuse("nobody can accept everything: name a statistic or a slice")

        def change(connection: Connection, incident: Incident) -> _Change:
            model = models.Cycle
            newest = connection.scalar(select(func.max(model.cycle)).where(model.run_id == incident.run_id))
            last = newest if cycle is None else cycle
            if last is None or newest is None or not incident.opened_cycle <= last <= newest:
                raise self._database.refuse(
                    f"incident {number} cannot be resolved as of cycle {last}: it opened in cycle "
                    f"{incident.opened_cycle}, and the newest one is {newest}"
                )
            if until_cycle is not None and until_cycle <= last:
                raise self._database.refuse(f"to accept it until cycle {until_cycle} covers nothing after cycle {last}")
            if until is not None and until <= datetime.now(UTC):
                raise self._database.refuse(f"{until:%Y-%m-%d %H:%M} UTC is over already")
            pins = _pinned(connection, [number]).get(number, [])
            covered = list(scope) or [Scope(pin.finding.statistic, pin.finding.slice) for pin in pins]
            plain = [asdict(each) for each in dict.fromkeys(covered)] if accepted else []
            values = {"resolution": resolution, "resolved_cycle": last, "until_cycle": until_cycle, "scope": plain}
            said = {**values, "cycle": last, "until": None if until is None else until.isoformat()}
            return {**values, "until": until, "state": "resolved"}, said

        return self._change(number, change, actor=actor, verb="resolve", reason=reason, token=token)

    def reopen(self, number: int, *, actor: str, reason: str, token: str | None = None) -> Incident:
        """Opens a resolved one again. StoreError without a reason, and where it is not resolved."""
        self._needed(reason, "to reopen an incident", "a reason")

        def change(_: Connection, incident: Incident) -> _Change:
            if incident.state != "resolved":
                raise self._database.refuse(f"incident {number} is {incident.state}: there is nothing to reopen")
            return {**_REOPENED, "reopened": incident.reopened + 1}, {"was": incident.resolution}

        return self._change(number, change, actor=actor, verb="reopen", reason=reason, token=token, ended=True)

    def vote(
        self,
        number: int,
        vote: Vote,
        *,
        actor: str,
        detectors: Collection[str] = (),
        reason: str = "",
        token: str | None = None,
    ) -> Incident:
        """Says of the incident's alarms, of all or of some detectors, whether they were useful; the last word stands.

        StoreError for a detector that has no finding in it.
        """

        def change(connection: Connection, incident: Incident) -> _Change:
            spoke = {pin.finding.detector for pin in _pinned(connection, [number]).get(number, [])}
            if silent := sorted(set(detectors) - spoke):
                raise self._database.refuse(
                    f"{', '.join(silent)} said nothing in incident {number}; there are: {', '.join(sorted(spoke))}"
                )
            about = sorted(detectors or spoke)
            for detector in about:
                row = {"vote": vote, "voted_at": datetime.now(UTC)}
                key = {"incident": incident.number, "detector": detector, "actor": actor}
                added = insert(connection, models.AlarmVote).values(**key, **row)
                connection.execute(added.on_conflict_do_update(index_elements=list(key), set_=row))
            return {}, {"vote": vote, "detectors": about}

        return self._change(number, change, actor=actor, verb="rate", reason=reason, token=token, ended=True)

    def _needed(self, words: str, what: str, needs: str) -> None:
        if not words.strip():
            raise self._database.refuse(f"{what} needs {needs}")

    def _change(
        self,
        number: int,
        change: Callable[[Connection, Incident], _Change | None],
        *,
        actor: str,
        verb: str,
        reason: str,
        token: str | None,
        ended: bool = False,
    ) -> Incident:
        """Writes what ``change`` tells and its entry in the log; None = nothing to do. ``ended``: resolved too."""
        action = f"incident.{verb}"

        def work(connection: Connection) -> Incident:
            found = _incident(connection, number)
            if found is None:
                raise self._database.refuse(f"there is no incident {number}")
            lock_run(connection, self._database, found.run_id)
            incident = _incident(connection, number)  # again, now that nobody else changes it
            assert incident is not None
            before = None if token is None else entry_of(connection, token)
            if before is not None:
                if (before.action, before.subject, before.actor) != (action, subject(number), actor):
                    raise self._database.refuse(f"token {token!r} was used for {before.action} of {before.subject}")
                return incident
            if incident.state == "resolved" and not ended:
                raise self._database.refuse(
                    f"incident {number} was resolved ({incident.resolution}) at {incident.changed_at:%Y-%m-%d %H:%M} "
                    "UTC; reopen it first"
                )
            told = change(connection, incident)
            if told is None:
                return incident
            values, said = told
            if values:
                values = {**values, "changed_at": datetime.now(UTC)}
                connection.execute(update(models.Incident).where(models.Incident.number == number).values(**values))
            append_entry(
                connection,
                self._database,
                actor=actor,
                action=action,
                subject=subject(number),
                reason=reason,
                detail=said,
                token=token,
            )
            now = _incident(connection, number)
            assert now is not None
            return now

        return self._database.write(work)


_Change = tuple[dict[str, Any], Details]
"""New values of an incident's columns, and what the log says of it."""
_REOPENED: Mapping[str, Any] = {
    "state": "open",
    "resolution": None,
    "resolved_cycle": None,
    "until_cycle": None,
    "until": None,
    "scope": [],
}


def subject(number: int) -> str:
    """What the audit log calls an incident."""
    return f"incident:{number}"


def evidence_hash(finding: Finding) -> str:
    """SHA-256 of a finding as it is pinned: the log holds it, so that changed evidence is found."""
    # What `_plain` would give as text, without going through JSON and back.
    parts = {"causes": [vars(cause) for cause in finding.causes], "evidence": vars(finding.evidence)}
    return hashlib.sha256(dumps({**vars(finding), **parts, "detail": dict(finding.detail)}).encode()).hexdigest()


def _add(connection: Connection, number: int, run_id: str, cycle: int, arrival: Arrival) -> None:
    now = datetime.now(UTC)
    connection.execute(
        plain_insert(models.Incident).values(
            number=number,
            run_id=run_id,
            title=arrival.title,
            strands=list(arrival.strands),
            family=arrival.family,
            blocks=int(arrival.blocks),
            state="open",
            opened_cycle=cycle,
            seen_cycle=cycle,
            opened_at=now,
            changed_at=now,
            scope=[],
            reopened=0,
        )
    )


def _arrive(connection: Connection, number: int, cycle: int, arrival: Arrival) -> None:
    incident = _incident(connection, number)
    assert incident is not None
    if arrival.what == "late":
        return
    values: dict[str, Any] = {"strands": list(arrival.strands), "family": arrival.family, "title": arrival.title}
    values["blocks"] = int(incident.blocks or arrival.blocks)
    if arrival.keeps:
        values |= {"seen_cycle": max(incident.seen_cycle, cycle), "opened_cycle": min(incident.opened_cycle, cycle)}
    if arrival.what == "reopen":
        values |= {**_REOPENED, "reopened": incident.reopened + 1, "changed_at": datetime.now(UTC)}
    connection.execute(update(models.Incident).where(models.Incident.number == number).values(**values))


def _pin(connection: Connection, number: int, findings: Sequence[tuple[StoredFinding, str]]) -> None:
    rows = [
        {
            "incident": number,
            "finding_id": each.finding_id,
            "key": each.finding.key,
            "cycle": each.cycle,
            "why": why,
            "finding": _plain(each.finding),
            "pinned_at": datetime.now(UTC),
        }
        for each, why in findings
    ]
    if rows:
        connection.execute(insert(connection, models.PinnedFinding).on_conflict_do_nothing(), rows)


def _next_number(connection: Connection, database: Database) -> int:
    lock_log(connection, database)
    highest = connection.scalar(select(func.max(models.Incident.number)))
    return 1 if highest is None else highest + 1


def _incident(connection: Connection, number: int) -> Incident | None:
    row = connection.execute(select(*_COLUMNS).where(models.Incident.number == number)).one_or_none()
    return None if row is None else _read(row)


def _pinned(connection: Connection, numbers: Sequence[int]) -> dict[int, list[PinnedFinding]]:
    model = models.PinnedFinding
    names = columns(model, PinnedFinding)
    query = select(*names).where(model.incident.in_(numbers)).order_by(model.pinned_at, model.cycle, model.finding_id)
    found: dict[int, list[PinnedFinding]] = {}
    for row in connection.execute(query):
        values = dict(row._mapping)
        pin = PinnedFinding(**{**values, "finding": _finding(values["finding"])})
        found.setdefault(pin.incident, []).append(pin)
    return found


def _plain(finding: Finding) -> dict[str, Any]:
    plain: dict[str, Any] = as_json(asdict(finding))
    return plain


def _finding(values: Mapping[str, Any]) -> Finding:
    return Finding(
        **{
            **values,
            "causes": tuple(Cause(**cause) for cause in values["causes"]),
            "evidence": Evidence(**{place: tuple(ids) for place, ids in values["evidence"].items()}),
        }
    )


def _read(row: Row[Any]) -> Incident:
    values = dict(row._mapping)
    values |= {"strands": tuple(values["strands"]), "blocks": bool(values["blocks"])}
    return Incident(**{**values, "scope": tuple(Scope(**each) for each in values["scope"])})
