"""What the findings of a cycle do to a run's incidents: open one, join one, reopen one, or nothing.

A group of findings (see `palomar.detectors.grouping`) goes to the incident of the same strand and cohort. Where that is
resolved, cycles decide and never the time of arrival:

| resolved as | reopened by a finding that keeps a cycle from passing, of a cycle after the resolution's, |
|---|---|
| patched, rolled back | whatever it is |
| accepted until | that is outside the scope, or of a cycle after the end (or that began after it) |
| false alarm | unless the same thing was pinned and its effect is not larger now |

A finding of the resolution's cycle or an earlier one that arrives late is pinned and reopens nothing.

A finding that is **silenced** opens and reopens nothing either, and is noted at the silence; it joins an incident that
is there for other reasons. Silences go by the cycle, or by when it began, like what is accepted: checking a cycle again
says the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from palomar.data.findings import Finding
from palomar.data.slices import ALL
from palomar.data.store import Store
from palomar.data.store.incidents import ACTIVE, Arrival
from palomar.data.store.records import Incident, PinnedFinding, Silence, StoredFinding
from palomar.detectors.check import READS
from palomar.detectors.grouping import FAULT, FOLLOWS, WORDS, Group, Member, group, title_of

_Pins = Mapping[int, Sequence[PinnedFinding]]


def open_incidents(store: Store, run_id: str, cycle: int) -> list[Incident]:
    """Lets the kept findings of a cycle open, join or reopen incidents; those that changed.

    To be called whenever a check was kept (`palomar.detectors.runs.keep`); calling it again changes nothing.
    """
    found = store.findings.read(run_id, cycle)
    record = store.cycles.get(run_id, cycle)
    began = None if record is None else record.started_at
    return store.incidents.arrive(
        run_id, cycle, lambda known, pins, silences: arrivals(found, known, pins, cycle, began, silences=silences)
    )


def arrivals(
    found: Sequence[StoredFinding],
    known: Sequence[Incident],
    pins: _Pins,
    cycle: int,
    began: datetime | None,
    *,
    silences: Sequence[Silence] = (),
) -> list[Arrival]:
    """What the findings of one cycle do to the incidents of their run.

    ``began``: when the cycle began, to hold against the end of what was accepted or silenced; None = not known, which
    no end in time covers.
    """
    active = [incident for incident in known if incident.state in ACTIVE]
    # Where an incident is about what follows only, its findings stay free to be explained.
    cured = [incident for incident in active if incident.strands[0] not in FOLLOWS]
    parts = {pin.key: incident.strands[0] for incident in cured for pin in pins.get(incident.number, ())}
    told = []
    taken: set[int] = set()
    for each in group(found, parts, {incident.strands[0] for incident in cured}):
        incident = _home(each, [one for one in known if one.number not in taken], pins)
        if incident is not None:
            taken.add(incident.number)
        silent = {
            member.stored.finding_id: silence
            for member in each.openers
            if (silence := silenced(silences, member.stored.finding, cycle, began)) is not None
        }
        arrival, held = _arrival(each, incident, pins, cycle, began, silent=silent)
        if arrival is not None:
            told.append(arrival)
        told += _withheld(each, held, silent)
    return told


def silenced(silences: Sequence[Silence], finding: Finding, cycle: int, began: datetime | None) -> Silence | None:
    """The silence by which a finding of the cycle opens nothing; None where there is none."""
    return next((each for each in silences if _silences(each, finding, cycle, began)), None)


def end_of(silence: Silence) -> str:
    """Until when it holds, in words."""
    if silence.until_cycle is not None:
        return f"until cycle {silence.until_cycle}"
    assert silence.until is not None
    return f"until {silence.until:%Y-%m-%d %H:%M} UTC"


def _silences(silence: Silence, finding: Finding, cycle: int, began: datetime | None) -> bool:
    if silence.ended_at is not None or silence.detector != finding.detector:
        return False
    if silence.statistic not in (None, finding.statistic) or silence.slice not in (None, finding.slice):
        return False
    if silence.until_cycle is not None:
        return cycle <= silence.until_cycle
    return silence.until is not None and began is not None and began <= silence.until


def covered(
    incident: Incident, pins: Sequence[PinnedFinding], finding: Finding, cycle: int, began: datetime | None
) -> str | None:
    """Why a finding does not reopen a resolved incident; None = it does."""
    if incident.state != "resolved" or incident.resolved_cycle is None:
        return None
    if cycle <= incident.resolved_cycle:
        return f"it is of cycle {cycle}, the incident was resolved as of cycle {incident.resolved_cycle}"
    if incident.resolution == "accepted":
        return _accepted(incident, finding, cycle, began)
    if incident.resolution == "false_alarm":
        return _false_before(pins, finding)
    return None


def _accepted(incident: Incident, finding: Finding, cycle: int, began: datetime | None) -> str | None:
    inside = any(
        scope.statistic in (None, finding.statistic) and scope.slice in (None, finding.slice)
        for scope in incident.scope
    )
    if not inside:
        return None
    if incident.until_cycle is not None and cycle <= incident.until_cycle:
        return f"accepted until cycle {incident.until_cycle}"
    if incident.until is not None and began is not None and began <= incident.until:
        return f"accepted until {incident.until:%Y-%m-%d %H:%M} UTC"
    return None


def _false_before(pins: Sequence[PinnedFinding], finding: Finding) -> str | None:
    """A false alarm is silent on the same thing, read alike, moved the same way and no farther."""
    for pin in pins:
        if pin.key != finding.key or pin.finding.reading != finding.reading:
            continue
        was, now = pin.finding.effect, finding.effect
        neither = was is None and now is None  # no effect to compare by: then the same thing is the same alarm
        if neither or (was is not None and now is not None and was * now >= 0 and abs(now) <= abs(was)):
            return "the same alarm was false before, and the effect is not larger now"
    return None


def _home(each: Group, known: Sequence[Incident], pins: _Pins) -> Incident | None:
    """The incident that a group is part of: of the same strand; one that is not resolved before one that is."""
    keys = {member.stored.finding.key for member in each.members}
    own = {each.strand} if each.strand != FAULT else (set(each.also) - {READS} or set(each.also))

    def fits(incident: Incident) -> bool:
        active = incident.state in ACTIVE
        # What is found everywhere takes up what was first found in a cohort, and the other way round.
        if incident.family != each.family and not (active and ALL in (incident.family, each.family)):
            return False
        if (incident.strands[0] == FAULT) != (each.strand == FAULT):
            return False
        if own & set(incident.strands):
            return True
        # What follows from a hack may show before the hack does: then the incident turns out to be about the hack.
        return (
            active and incident.strands[0] in FOLLOWS and any(pin.key in keys for pin in pins.get(incident.number, ()))
        )

    def best(incident: Incident) -> tuple[bool, bool, bool, int]:
        return (
            incident.state in ACTIVE,
            bool(own & set(incident.strands)),
            incident.family == each.family,
            incident.number,
        )

    return max(filter(fits, known), key=best, default=None)


def _arrival(
    each: Group,
    incident: Incident | None,
    pins: _Pins,
    cycle: int,
    began: datetime | None,
    *,
    silent: Mapping[str, Silence],
) -> tuple[Arrival | None, Sequence[Member]]:
    """What a group does, and which of its findings would have opened or reopened an incident and are silenced."""
    there = () if incident is None else pins.get(incident.number, ())
    if incident is None:
        if all(member.stored.finding_id in silent for member in each.openers):
            return None, each.openers
        return _told(each, None, "open", _why(each, cycle), each.members), ()
    if incident.state in ACTIVE:
        keys = {pin.key for pin in there}
        new = [member for member in each.members if member.stored.finding.key not in keys]
        what = f"{_count(len(new))} of cycle {cycle} joined; {new[0].stored.finding.sentence}" if new else ""
        return _told(each, incident, "join", what, new), ()
    ids = {pin.finding_id for pin in there}
    why_not = [covered(incident, there, member.stored.finding, cycle, began) for member in each.openers]
    uncovered = [member for member, why in zip(each.openers, why_not, strict=True) if why is None]
    if not uncovered:
        late = [member for member in each.openers if member.stored.finding_id not in ids]
        if not late or incident.resolved_cycle is None or cycle > incident.resolved_cycle:
            return None, ()
        return _told(each, incident, "late", f"{_count(len(late))} came late: {why_not[0]}", late), ()
    loud = [member for member in uncovered if member.stored.finding_id not in silent]
    if not loud:
        return None, uncovered
    reason = f"{_again(incident, cycle)}: {loud[0].stored.finding.sentence}"
    new = [member for member in uncovered if member.stored.finding_id not in ids]
    return _told(each, incident, "reopen", reason, new), ()


def _withheld(each: Group, held: Sequence[Member], silent: Mapping[str, Silence]) -> list[Arrival]:
    """What silences keep from opening an incident, by silence."""
    by_silence: dict[int, tuple[Silence, list[Member]]] = {}
    for member in held:
        silence = silent[member.stored.finding_id]
        by_silence.setdefault(silence.number, (silence, []))[1].append(member)
    return [
        replace(
            _told(each, None, "withhold", "", members),
            silence=number,
            reason=f"{_count(len(members))} opened no incident, silenced {end_of(silence)}: "
            f"{members[0].stored.finding.sentence}",
        )
        for number, (silence, members) in sorted(by_silence.items())
    ]


def _again(incident: Incident, cycle: int) -> str:
    match incident.resolution:
        case "accepted" if incident.until_cycle is not None and cycle > incident.until_cycle:
            return f"found in cycle {cycle}, after the end of what was accepted (cycle {incident.until_cycle})"
        case "accepted":
            return f"found in cycle {cycle}, outside of what was accepted"
        case "false_alarm":
            return f"found in cycle {cycle}, and more than the alarm that was false"
        case _:
            return f"found again in cycle {cycle}, resolved as of cycle {incident.resolved_cycle}"


def _told(each: Group, incident: Incident | None, what: str, reason: str, members: Sequence[Member]) -> Arrival:
    before = () if incident is None else incident.strands
    # A strand with a cure of its own leads; of two, the one that was there first.
    strands = [*before, each.strand, *each.also]
    strands.sort(key=lambda name: name in FOLLOWS)
    family = each.family if incident is None or incident.family == each.family else ALL
    lead = strands[0]
    keep = incident is not None and incident.strands[0] == lead and incident.family == family
    return Arrival(
        incident=None if incident is None else incident.number,
        what=what,
        reason=reason,
        title=incident.title if incident is not None and keep else title_of(lead, family, each.lead),
        strands=tuple(dict.fromkeys(strands)),
        family=family,
        blocks=each.blocks,
        keeps=bool(each.openers),
        findings=tuple((member.stored, member.why) for member in members),
    )


def _why(each: Group, cycle: int) -> str:
    about = "a fault of measurement" if each.strand == FAULT else WORDS.get(each.strand, each.strand)
    where = "" if each.family == ALL else f" in {each.family}"
    return f"{_count(len(each.openers))} of cycle {cycle} about {about}{where}: {each.lead.sentence}"


def _count(number: int) -> str:
    return "1 finding" if number == 1 else f"{number} findings"
