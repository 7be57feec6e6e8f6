"""Findings and incidents in words of ours, as Markdown: names that others gave stand in code spans.

A finding's own sentence is for texts; it is made by detectors, which a team may write itself, and names slices after
what stands in logs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from palomar.app.console.plain import plain
from palomar.app.console.states import State, badge
from palomar.app.console.tables import in_words, slice_in_words, unit
from palomar.app.service import definition
from palomar.data.findings import Cause, Finding, Reading
from palomar.data.slices import ALL
from palomar.data.store.records import Decision, Incident, Silence
from palomar.detectors.grouping import FAULT, WORDS

READINGS: Mapping[Reading, str] = {
    "reward_hack": "reward hack",
    "honest_learning": "honest learning",
    "outside_change": "outside change",
    "forewarning": "forewarning",
    "measurement_fault": "measurement fault",
    "not_assessable": "not assessable yet",
}
_BECAUSE: Mapping[Reading, str] = {
    "reward_hack": "the reward pushes it and users do not want it",
    "honest_learning": "the reward pushes it and users want it",
    "outside_change": "the reward does not push it",
    "forewarning": "it has not moved yet; the reward pushes it against users",
    "measurement_fault": "the data are at fault, not the policy",
    "not_assessable": "the reward pushes it; what users think is not known yet",
}
_STATES: Mapping[str, tuple[State, str]] = {
    "open": ("fail", "OPEN"),
    "acknowledged": ("warn", "ACKNOWLEDGED"),
    "mitigated": ("pending", "MITIGATED"),
    "resolved": ("pass", "RESOLVED"),
}
_GATE: Mapping[str, tuple[State, str]] = {
    "promote": ("pass", "PROMOTE"),
    "hold": ("warn", "HOLD"),
    "block": ("fail", "BLOCK"),
}


def figure(value: float | None, of: str = "") -> str:
    """A level in its unit, without it: shares as per cent. "not known" for None."""
    if value is None:
        return "not known"
    return f"{100 * value:.1f} %" if is_share(of) else f"{value:.3g}"


def is_share(of: str) -> bool:
    """Whether a unit is a share of something, which reads best as per cent."""
    return of.startswith("share")


def finding_words(finding: Finding) -> str:
    """What moved, from where to where, how sure and since when; one sentence without a full stop."""
    of = finding.unit or ("" if finding.statistic is None else unit(finding.statistic))
    what = f"**{about(finding)}**"
    band = finding.detail.get("band")
    if finding.before is not None and finding.after is not None:
        shown = "" if is_share(of) or not of else f" {of if definition(finding.statistic or '') else plain(of)}"
        what += f": **{figure(finding.before, of)} → {figure(finding.after, of)}**{shown}"
    elif finding.effect is not None:
        what += f": {finding.effect:+.3g}"
    known = []
    if isinstance(band, Sequence) and not isinstance(band, str) and len(band) == 2:
        known.append(f"band {figure(float(band[0]), of)} to {figure(float(band[1]), of)}")
    if finding.n:
        known.append(f"n {finding.n:,}")
    if known:
        what += f" ({', '.join(known)})"
    if finding.since is not None:
        what += f", first out in cycle {finding.since}"
    return what


def reading_words(finding: Finding) -> str:
    """What it means, in a few words."""
    return because(finding) if finding.reading is None else f"{READINGS[finding.reading]}: {because(finding)}"


def because(finding: Finding) -> str:
    """Why it is read so; of what was not read: who saw it."""
    return f"seen by {plain(finding.detector)}" if finding.reading is None else _BECAUSE[finding.reading]


def about(finding: Finding) -> str:
    """What a finding is about, and where."""
    name = in_words(finding.statistic) if finding.statistic else plain(finding.detector)
    return name + where(finding.slice)


def where(slice_: str) -> str:
    """`` where predicted failure is high``; empty for everything."""
    if slice_ == ALL:
        return ""
    return f" where {' and '.join(slice_in_words(part) for part in slice_.split(','))}"


def cause_words(cause: Cause) -> str:
    """A term or rule and its share of what pushes."""
    kind, _, name = cause.name.partition(":")
    what = {"term": "the term", "rule": "the rule"}.get(kind, plain(kind))
    return f"{what} {plain(name)} ({100 * cause.share:.0f} % of the push{where(cause.slice)})"


def incident_words(incident: Incident) -> str:
    """What an incident is about; in words of ours where it is about one of the known strands."""
    lead, _, rest = incident.title.partition(": ")
    strand = incident.strands[0]
    if strand not in WORDS and strand != FAULT:
        return plain(incident.title)
    subject = WORDS[strand] if strand in WORDS else plain(rest)
    family = "" if incident.family == ALL else f" where {plain(incident.family)}"
    return f"{lead if lead in _LEADS else 'alarm'}: {subject}{family}"


def family_words(family: str) -> str:
    """All kinds of tasks, or the cohort that alone has it."""
    return "all kinds of tasks" if family == ALL else f"only {plain(family)}"


_LEADS = ("reward hack", "measurement fault", "change that cannot be read yet", "alarm")


def state_badge(incident: Incident) -> str:
    """Where an incident stands."""
    return badge(*_STATES[incident.state])


def state_cell(incident: Incident) -> str:
    """The same for a cell of a table: shape and word."""
    shape = state_badge(incident).partition("[")[2].rstrip("]")
    if incident.resolution == "accepted":
        end = incident.until_cycle if incident.until_cycle is not None else incident.until
        return f"{shape} accepted until {f'cycle {end}' if isinstance(end, int) else utc(end)}"
    if incident.resolution is not None:
        return f"{shape} {incident.resolution.replace('_', ' ')}"
    return shape + (" regressed" if incident.reopened else "")


def severity_badge(incident: Incident) -> str:
    """Whether it blocks, or keeps a cycle from being judged."""
    return badge("fail", "BLOCKS") if incident.blocks else badge("no_data", "HOLDS")


def gate_badge(decision: Decision | None) -> str:
    """The gate's word on a candidate."""
    return badge("pending", "GATE: PENDING") if decision is None else gate_word_badge(decision.verdict)


def gate_word_badge(word: str) -> str:
    """The gate's word as a badge."""
    state, said = _GATE.get(word, ("pending", "PENDING"))
    return badge(state, f"GATE: {said}")


def silence_words(silence: Silence) -> str:
    """What is silenced, until when, by whom."""
    what = plain(silence.detector)
    if silence.statistic is not None:
        what += f" on {plain(silence.statistic)}"
    if silence.slice is not None:
        what += f" where {plain(silence.slice)}"
    return f"{what} silenced {until_words(silence)} by {plain(silence.actor)}"


def until_words(silence: Silence) -> str:
    """Until when it holds."""
    if silence.until_cycle is not None:
        return f"until cycle {silence.until_cycle}"
    return f"until {utc(silence.until)}"


def utc(at: datetime | None) -> str:
    """A time as we write it."""
    return "not known" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def span(age: timedelta) -> str:
    """How long, in the unit that fits."""
    minutes = int(age.total_seconds() // 60)
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h" if minutes < 72 * 60 else f"{minutes // 1440} days"
