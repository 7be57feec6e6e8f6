"""Alarms as people and programs see them: one of them with all that is needed to decide, and how detectors fare.

An alarm is an incident, or a finding that is part of none. Findings of an incident lead to it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Literal

from palomar.app.gating import request_override
from palomar.app.incidents import changes_between
from palomar.app.kept import Kept, Pending
from palomar.app.service import Observatory
from palomar.data.errors import StoreError
from palomar.data.findings import Cause, Finding, Unassessed
from palomar.data.store import Store
from palomar.data.store.incidents import ACTIVE
from palomar.data.store.records import (
    AlarmVote,
    Cycle,
    Decision,
    Incident,
    Override,
    Silence,
    SilencedFinding,
    StoredFinding,
)
from palomar.data.store.silences import in_force
from palomar.detectors.check import READS
from palomar.detectors.detector import detectors
from palomar.detectors.grouping import opens
from palomar.detectors.incidents import open_incidents, silenced
from palomar.detectors.precision import Precision, precisions

LONGEST_ID = 9
"""Digits of an incident's number; a longer id is a finding's."""
LOOKED_BACK = 60
"""Cycles whose points are shown with an alarm."""
NEAREST = 3

Trust = Literal["trusted", "in_doubt"]


@dataclass(frozen=True)
class VersionLine:
    """A cycle from which another reward was in force."""

    cycle: int
    version: str
    why: str
    """Of the patch or revert, where one is kept; empty where not."""


@dataclass(frozen=True)
class Alarm:
    """All that a person needs to decide on one alarm."""

    run_id: str
    incident: Incident | None
    """None: a finding that is part of no incident."""
    finding_id: str
    cycle: int
    """In which the leading finding was made."""
    finding: Finding
    """The leading one, as it was when the incident opened."""
    newest: StoredFinding | None
    """The newest of the same thing, where it is kept."""
    findings: tuple[Finding, ...]
    """All that are part of it, in the order in which they came."""
    faults: tuple[int, ...]
    """Cycles of it in which a fault of measurement was found: there its numbers are in doubt."""
    checked: int | None
    """Newest cycle that was checked."""
    good: int | None
    """Last cycle before it that passed."""
    changes: tuple[str, ...]
    """What changed from that cycle to the one in which it opened, in words."""
    votes: tuple[AlarmVote, ...]
    versions: tuple[VersionLine, ...] = ()
    silence: Silence | None = None
    """By which the finding opens nothing, now."""
    held: bool = False
    """Whether a silence kept this very finding from opening an incident."""
    candidate: str | None = None
    """Trained last in the run."""
    decision: Decision | None = None
    """The gate's on it."""
    asked: tuple[Override, ...] = ()
    """Requests to decide otherwise about it that nobody has approved yet."""

    @property
    def detectors(self) -> tuple[str, ...]:
        """That spoke."""
        return tuple(sorted({each.detector for each in self.findings}))

    @property
    def shown(self) -> tuple[int, Finding]:
        """What is known last of it: cycle and finding."""
        return (self.cycle, self.finding) if self.newest is None else (self.newest.cycle, self.newest.finding)

    @property
    def trust(self) -> Trust:
        """Whether its numbers can be believed."""
        return "in_doubt" if self.faults else "trusted"

    @property
    def cause(self) -> Cause | None:
        """The reward term or rule that pushes it most."""
        return self.finding.causes[0] if self.finding.causes else None

    @property
    def id(self) -> str:
        """By which it is asked for."""
        return self.finding_id if self.incident is None else str(self.incident.number)


@dataclass(frozen=True)
class Unknown:
    """There is no such alarm."""

    asked: str
    incidents: tuple[Incident, ...]
    """The nearest, or the newest."""
    findings: tuple[str, ...]
    """Ids of findings that begin alike."""


def alarm(store: Store, run_id: str, asked: str) -> Alarm | Unknown:
    """The alarm of that id: an incident's number, or a finding's id; one that belongs to an incident leads there."""
    if asked.isascii() and asked.isdigit() and len(asked) <= LONGEST_ID:
        incident = store.incidents.get(int(asked))
        if incident is None or incident.run_id != run_id:
            return _unknown(store, run_id, asked)
        return _of_incident(store, incident)
    found = store.findings.get(asked)
    if found is not None and (found.run_id != run_id or found.candidate is not None):
        found = None
    held = store.incidents.holding(run_id, asked, None if found is None else found.finding.key)
    if found is not None:
        held = [each for each in held if each.opened_cycle <= found.cycle <= each.seen_cycle]
    if held:
        return _of_incident(store, held[-1])
    return _unknown(store, run_id, asked) if found is None else _of_finding(store, found)


def _of_incident(store: Store, incident: Incident) -> Alarm:
    pins = store.incidents.pinned(incident.number)
    lead = pins[0]
    newest = _latest(store, incident.run_id, lead.key)
    if newest is not None and newest.cycle > incident.seen_cycle and opens(newest.finding):
        # It came again and is another incident's by now; this one is about what was seen in its own time.
        own = store.findings.read(incident.run_id, incident.seen_cycle, key=lead.key)
        newest = own[0] if own else None
    checked, good = _checked(store, incident.run_id, incident.opened_cycle)
    span = (incident.opened_cycle, incident.seen_cycle)
    return _with_context(
        store,
        Alarm(
            run_id=incident.run_id,
            incident=incident,
            finding_id=lead.finding_id,
            cycle=lead.cycle,
            finding=lead.finding,
            newest=newest,
            findings=tuple(pin.finding for pin in pins),
            faults=tuple(store.findings.cycles_with(incident.run_id, "measurement_fault", *span)),
            checked=checked,
            good=good,
            changes=tuple(changes_between(store, incident.run_id, good, incident.opened_cycle)),
            votes=tuple(store.incidents.votes(incident.number)),
        ),
    )


def _of_finding(store: Store, found: StoredFinding) -> Alarm:
    checked, good = _checked(store, found.run_id, found.cycle)
    return _with_context(
        store,
        Alarm(
            run_id=found.run_id,
            incident=None,
            finding_id=found.finding_id,
            cycle=found.cycle,
            finding=found.finding,
            newest=_latest(store, found.run_id, found.finding.key),
            findings=(found.finding,),
            faults=tuple(store.findings.cycles_with(found.run_id, "measurement_fault", found.cycle, found.cycle)),
            checked=checked,
            good=good,
            changes=tuple(changes_between(store, found.run_id, good, found.cycle)),
            votes=(),
        ),
    )


def _latest(store: Store, run_id: str, key: str) -> StoredFinding | None:
    """The newest finding of the same thing."""
    found = store.findings.read(run_id, key=key, newest=1)
    return found[0] if found else None


def _checked(store: Store, run_id: str, before: int) -> tuple[int | None, int | None]:
    """The newest cycle that was checked, and the last one before ``before`` that passed."""
    words = store.verdicts.words(run_id)
    clear = [cycle for cycle, word in words.items() if cycle < before and word in ("pass", "warn")]
    return max(words, default=None), max(clear, default=None)


def _with_context(store: Store, of: Alarm) -> Alarm:
    """The same, with what the run says besides: the reward's versions, the gate, silences."""
    run_id = of.run_id
    records = store.cycles.read(run_id, newest=LOOKED_BACK, with_stages=False)
    candidate = store.checkpoints.newest(run_id)
    silences = store.silences.read(run_id)
    newest = records[-1] if records else None
    covering = None if newest is None else silenced(silences, of.finding, newest.cycle, newest.started_at)
    held = store.silences.silenced([each.number for each in silences]) if silences else []
    now = datetime.now(UTC)
    force = covering is not None and in_force(covering, None if newest is None else newest.cycle, now)
    asked = [] if candidate is None else store.overrides.read(run_id)
    return replace(
        of,
        versions=tuple(_versions(store, run_id, records)),
        silence=covering if force else None,
        held=any(each.finding_id == of.finding_id for each in held),
        candidate=None if candidate is None else candidate.checkpoint_id,
        decision=None if candidate is None else store.decisions.get(run_id, candidate.checkpoint_id),
        asked=tuple(
            each for each in asked if candidate and each.candidate == candidate.checkpoint_id and each.made is None
        ),
    )


def _versions(store: Store, run_id: str, records: Sequence[Cycle]) -> list[VersionLine]:
    why = {(each.from_cycle, each.version): each.reason for each in store.rewards.changes(run_id)}
    return [
        VersionLine(after.cycle, after.reward_version or "", why.get((after.cycle, after.reward_version or ""), ""))
        for before, after in pairwise(records)
        if before.reward_version != after.reward_version
    ]


def _unknown(store: Store, run_id: str, asked: str) -> Unknown:
    incidents = store.incidents.read(run_id)
    if asked.isascii() and asked.isdigit() and len(asked) <= LONGEST_ID:
        incidents = sorted(incidents, key=lambda each: abs(each.number - int(asked)))[:NEAREST]
    else:
        incidents = incidents[::-1][:NEAREST]
    verdicts = store.verdicts.read(run_id, newest=1)
    ids = [each.finding_id for each in store.findings.read(run_id, verdicts[-1].cycle)] if verdicts else []
    return Unknown(asked, tuple(incidents), tuple(difflib.get_close_matches(asked, ids, NEAREST, 0.5)))


# -- detectors -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DetectorRow:
    """How one detector fares in a run."""

    detector: str
    title: str
    """What it is for, in a line; empty for one that is not registered here (any more)."""
    alarms: int
    """Incidents of the run in which it spoke."""
    checks: int
    """Cycles in which it was asked."""
    per_hundred: float | None
    """Alarms per 100 cycles that it could assess; None where there is none."""
    precision: Precision | None
    """By the votes of the whole store; None where it spoke in no incident."""
    evaluated: int | None
    """Last cycle in which it could test something; None = it never could."""
    unassessed: tuple[Unassessed, ...]
    """What it could not assess in the newest check."""
    silences: tuple[Silence, ...]
    """In force, the one that ends last first."""


def detector_table(store: Store, run_id: str) -> list[DetectorRow]:
    """Every detector that was ever asked in the run or is registered: those that spoke first, the most alarms first."""
    known = detectors()
    done = {each.detector: each for each in store.findings.assessments(run_id)}
    verdicts = store.verdicts.read(run_id, newest=1)
    missing = store.findings.unassessed(run_id, verdicts[-1].cycle) if verdicts else {}
    own = {incident.number for incident in store.incidents.read(run_id)}
    spoke = _spoke(store)
    told = {each.detector: each for each in precisions(spoke, store.incidents.votes(), store.labels.read())}
    silences = current_silences(store, run_id)
    rows = []
    for name in sorted({*known, *done}):
        alarms = sum(number in own and name in names for number, names in spoke.items())
        asked = done.get(name)
        assessed = 0 if asked is None else asked.assessed
        rows.append(
            DetectorRow(
                detector=name,
                title=known[name].about.strip().partition("\n")[0] if name in known else "",
                alarms=alarms,
                checks=0 if asked is None else asked.checks,
                per_hundred=100 * alarms / assessed if assessed else None,
                precision=told.get(name),
                evaluated=None if asked is None else asked.newest,
                unassessed=missing.get(name, ()),
                silences=tuple(each for each in silences if each.detector == name),
            )
        )
    return sorted(rows, key=lambda row: (-row.alarms, row.detector))


_SPOKE = Kept(4)


def _spoke(store: Store) -> Mapping[int, tuple[str, ...]]:
    """By incident: which detectors spoke. Pins are only added, so that their number says whether anything is new."""
    found = _SPOKE.ask((store.where, store.incidents.pins()), store.incidents.detectors, wait_s=None)
    assert not isinstance(found, Pending)
    return found


# -- the list ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Listed:
    """An incident of a list, with who spoke in it."""

    incident: Incident
    detectors: tuple[str, ...]


@dataclass(frozen=True)
class AlarmGroup:
    """Incidents that a person would look at together: of one detector (the first that spoke), one family, one run."""

    detector: str
    family: str
    members: tuple[Listed, ...]
    """Newest first."""


def alarm_list(store: Store, run_id: str) -> list[Listed]:
    """The run's incidents, the newest first."""
    spoke = _spoke(store)
    found = store.incidents.read(run_id)
    return [Listed(each, spoke.get(each.number, ())) for each in reversed(found)]


ANY, NOT_RESOLVED = "any", "not resolved"
STATES = (NOT_RESOLVED, "open", "acknowledged", "mitigated", "resolved", "accepted", "regressed", ANY)
"""What a list can be narrowed to: the states of an incident, accepted ones, and those that came back."""
SEVERITIES = (ANY, "blocks", "holds")


def narrowed(listed: Sequence[Listed], state: str = ANY, severity: str = ANY, detector: str = ANY) -> list[Listed]:
    """Those of a list that are in a state, of a severity, and in which a detector spoke."""
    return [each for each in listed if _fits(each, state, severity, detector)]


def _fits(listed: Listed, state: str, severity: str, detector: str) -> bool:
    incident = listed.incident
    states = {
        ANY: True,
        NOT_RESOLVED: incident.state in ACTIVE,
        "accepted": incident.resolution == "accepted",
        "regressed": incident.state in ACTIVE and incident.reopened > 0,
    }
    severities = {ANY: True, "blocks": incident.blocks, "holds": not incident.blocks}
    return (
        states.get(state, incident.state == state)
        and severities[severity]
        and (detector == ANY or detector in listed.detectors)
    )


def grouped(listed: Sequence[Listed]) -> list[AlarmGroup]:
    """The same by detector and slice family; groups with what is not resolved first, then the largest."""
    groups: dict[tuple[str, str], list[Listed]] = {}
    for each in listed:
        # Of several that saw it, the one that reads: it says what it is.
        lead = READS if READS in each.detectors or not each.detectors else each.detectors[0]
        groups.setdefault((lead, each.incident.family), []).append(each)
    made = [AlarmGroup(detector, family, tuple(members)) for (detector, family), members in groups.items()]

    def order(group: AlarmGroup) -> tuple[object, ...]:
        active = sum(each.incident.state in ACTIVE for each in group.members)
        return (-active, -len(group.members), group.detector, group.family)

    return sorted(made, key=order)


# -- silences ------------------------------------------------------------------------------------------------------


def current_silences(store: Store, run_id: str) -> list[Silence]:
    """Those in force, the one that was made last first."""
    begun = store.cycles.read(run_id, newest=1, with_stages=False)
    newest, now = begun[-1].cycle if begun else None, datetime.now(UTC)
    return [each for each in reversed(store.silences.read(run_id)) if in_force(each, newest, now)]


@dataclass(frozen=True)
class SilenceView:
    """A silence, whether it holds, and what it kept from opening an incident."""

    silence: Silence
    in_force: bool
    held: tuple[SilencedFinding, ...]


def silences(store: Store, run_id: str | None = None) -> list[SilenceView]:
    """All that were ever made, the newest first."""
    found = store.silences.read(run_id)
    held: dict[int, list[SilencedFinding]] = {}
    for each in store.silences.silenced([silence.number for silence in found]):
        held.setdefault(each.silence, []).append(each)
    newest = {name: begun[-1].cycle for name in {each.run_id for each in found}
              if (begun := store.cycles.read(name, newest=1))}  # fmt: skip
    now = datetime.now(UTC)
    return [
        SilenceView(each, in_force(each, newest.get(each.run_id), now), tuple(held.get(each.number, ())))
        for each in reversed(found)
    ]


def silence(
    store: Store,
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
    """Silences a detector that there is, as `palomar.data.store.silences` does. StoreError for an unknown one."""
    known = {*detectors(), *(each.detector for each in store.findings.assessments(run_id))}
    if detector not in known:
        near = difflib.get_close_matches(detector, sorted(known), NEAREST, 0.4) or sorted(known)
        raise StoreError(store.where, f"there is no detector {detector!r}; there is {', '.join(near)}")
    return store.silences.add(
        run_id,
        detector,
        actor=actor,
        reason=reason,
        statistic=statistic,
        slice_=slice_,
        until_cycle=until_cycle,
        until=until,
        token=token,
    )


def end_silence(
    store: Store, number: int, *, actor: str, reason: str, token: str | None = None
) -> tuple[Silence, list[Incident]]:
    """Ends a silence before its time, and lets what the newest check found open incidents at once; what it opened.

    Otherwise a run that has ended would never say what was silenced when it did.
    """
    ended = store.silences.end(number, actor=actor, reason=reason, token=token)
    verdicts = store.verdicts.read(ended.run_id, newest=1)
    before = {each.number: each.state for each in store.incidents.read(ended.run_id)}
    changed = open_incidents(store, ended.run_id, verdicts[-1].cycle) if verdicts else []
    return ended, [each for each in changed if before.get(each.number) != each.state]


# -- what can be done ----------------------------------------------------------------------------------------------


def accept(
    store: Store, number: int, *, until_cycle: int, actor: str, reason: str, token: str | None = None
) -> Incident:
    """Accepts what is pinned to an incident up to a cycle, from the run's newest cycle on; see `Incidents.resolve`."""
    return store.incidents.resolve(number, "accepted", actor=actor, reason=reason, until_cycle=until_cycle, token=token)


def block(
    observatory: Observatory, of: Alarm, *, actor: str, reason: str, hours: float, token: str | None = None
) -> Override:
    """Asks the gate to block the newest candidate for an alarm; a second person approves. Noted on the incident.

    StoreError where nothing was decided about it yet, or where it is blocked already.
    """
    if of.candidate is None:
        raise StoreError(observatory.store.where, f"run {of.run_id!r} has no candidate to block")
    asked = request_override(observatory, of.candidate, verdict_="block", reason=reason, hours=hours, actor=actor)
    if of.incident is not None:
        observatory.store.incidents.act(
            of.incident.number,
            actor=actor,
            what=f"asked to block {of.candidate}: {reason}",
            detail={"override": asked.override_id},
            token=token,
        )
    return asked
