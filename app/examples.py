"""Examples of an alarm: what flagged interactions look like beside the same request at the baseline, and labels.

An alarm is an incident, by its number, or a finding, by its id. Of an incident its leading finding is shown, or the
first that names interactions; any other of its findings can be asked for. Five examples: two that carry most of the
effect, two drawn at random from the same place, and one that speaks against it, as the detector that made the finding
picked them. Where it picked none they are picked now, by the rule that the check uses (`palomar.detectors.evidence`).
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from palomar.app.kept import Kept, Pending, state
from palomar.app.service import Observatory, Trajectory
from palomar.data.errors import StoreError
from palomar.data.findings import Evidence, Finding
from palomar.data.schema import Edit, Interaction, Step, ToolCall
from palomar.data.slices import ALL
from palomar.data.store import Store
from palomar.data.store.records import ExampleLabel, ExamplePlace, Label
from palomar.detectors.evidence import evidence
from palomar.detectors.runs import baseline_of
from palomar.detectors.statistics import STATISTICS
from palomar.detectors.twins import Twin, twins

LABELS: tuple[ExampleLabel, ...] = get_args(ExampleLabel)
SHOWN: Mapping[ExamplePlace, int] = {"carrying": 2, "random": 2, "counter": 1}
"""How many of each are shown."""
LONGEST_NUMBER = 9
"""Digits of an incident's number; a longer id is a finding's."""
MOST_STEPS = 400
"""Steps of each side that are aligned: comparing takes their product at worst."""

_MISSING: Mapping[ExamplePlace, str] = {
    "carrying": "none is named that carries the effect",
    "random": "none is named that is usual there",
    "counter": "no counter-example: none on the other side fared as well as is usual there",
}


@dataclass(frozen=True)
class Subject:
    """The finding whose examples are shown."""

    finding_id: str
    cycle: int
    finding: Finding


@dataclass(frozen=True)
class Pair:
    """One example and its twin."""

    place: ExamplePlace
    interaction_id: str
    twin: Twin | None
    """None: the baseline has no interaction to set beside it."""


@dataclass(frozen=True)
class Examples:
    """The examples of one finding."""

    run_id: str
    alarm: str
    """As it was asked for."""
    incident: int | None
    subject: Subject
    others: tuple[Subject, ...]
    """All findings of the incident that name interactions or for which some can be picked; the leading one first."""
    pairs: tuple[Pair, ...]
    missing: tuple[str, ...]
    """What is not there, and why."""
    baseline: tuple[int, ...]
    """Cycles in which twins were looked for."""
    picked_now: bool
    """Whether the examples were picked now, since the finding names none."""


@dataclass(frozen=True)
class NoAlarm:
    """There is no such alarm or finding."""

    asked: str
    incidents: tuple[int, ...]
    """The nearest numbers, or the newest."""


_PAIRS = Kept(64)


def examples(observatory: Observatory, run_id: str, alarm: str, finding_id: str | None = None) -> Examples | NoAlarm:
    """Examples of an alarm of a run; ``finding_id``: of that finding of the incident."""
    store = observatory.store
    found = _subjects(store, run_id, alarm)
    if found is None:
        return _none(store, run_id, alarm)
    incident, subjects = found
    if finding_id is None:
        subject = next((each for each in subjects if each.finding.evidence.carrying), subjects[0])
    else:
        of = next((each for each in subjects if each.finding_id == finding_id), None)
        if of is None:
            return NoAlarm(finding_id, () if incident is None else (incident,))
        subject = of
    baseline = baseline_of(store, run_id, subject.cycle)
    named, picked_now, why = _picked(observatory, subject)
    chosen = [(place, name) for place, most in SHOWN.items() for name in _places(named)[place][:most]]
    missing = [why] if why else [_MISSING[place] for place in SHOWN if not _places(named)[place]]
    ids = [name for _, name in chosen]
    lake = observatory.lake
    beside = _PAIRS.ask(
        ("twins", tuple(ids), subject.cycle, baseline, state(lake, ("observations", [subject.cycle, *baseline]))),
        lambda: twins(lake, ids, subject.cycle, baseline),
        wait_s=None,
    )
    assert not isinstance(beside, Pending)
    return Examples(
        run_id=run_id,
        alarm=alarm,
        incident=incident,
        subject=subject,
        others=tuple(subjects),
        pairs=tuple(Pair(place, name, beside.get(name)) for place, name in chosen),
        missing=tuple(missing),
        baseline=baseline,
        picked_now=picked_now,
    )


def _subjects(store: Store, run_id: str, alarm: str) -> tuple[int | None, list[Subject]] | None:
    if alarm.isascii() and alarm.isdigit() and len(alarm) <= LONGEST_NUMBER:
        incident = store.incidents.get(int(alarm))
        if incident is None or incident.run_id != run_id:
            return None
        pins = store.incidents.pinned(incident.number)
        return incident.number, [Subject(pin.finding_id, pin.cycle, pin.finding) for pin in pins]
    known = _known(store, run_id, alarm)
    return (known[0][0], [known[0][1]]) if known else None


def _known(store: Store, run_id: str, finding_id: str) -> list[tuple[int | None, Subject]]:
    """A finding as it is kept now, and as it was pinned to each incident: a later check may name other interactions."""
    known: list[tuple[int | None, Subject]] = []
    found = store.findings.get(finding_id)
    if found is not None and found.run_id == run_id:
        known.append((None, Subject(finding_id, found.cycle, found.finding)))
    for number in store.incidents.of_findings([finding_id]).get(finding_id, ()):
        incident = store.incidents.get(number)
        if incident is not None and incident.run_id == run_id:
            pins = [pin for pin in store.incidents.pinned(number) if pin.finding_id == finding_id]
            known += [(number, Subject(finding_id, pin.cycle, pin.finding)) for pin in pins]
    return known


def _none(store: Store, run_id: str, alarm: str) -> NoAlarm:
    numbers = [incident.number for incident in store.incidents.read(run_id)]
    if alarm.isascii() and alarm.isdigit() and len(alarm) <= LONGEST_NUMBER:
        return NoAlarm(alarm, tuple(sorted(numbers, key=lambda number: abs(number - int(alarm)))[:3]))
    return NoAlarm(alarm, tuple(numbers[::-1][:3]))


def _places(named: Evidence) -> Mapping[ExamplePlace, tuple[str, ...]]:
    return {"carrying": named.carrying, "random": named.random, "counter": named.counter}


def _picked(observatory: Observatory, subject: Subject) -> tuple[Evidence, bool, str]:
    """What the finding names, else what is picked now; whether it is, and why there is nothing."""
    finding = subject.finding
    if finding.evidence != Evidence():
        return finding.evidence, False, ""
    statistic = STATISTICS.get(finding.statistic or "")
    if statistic is None:
        return Evidence(), False, "the finding names no interactions, and is about no statistic to pick some by"
    side = finding.detail.get("direction", finding.effect)
    if not isinstance(side, int | float) or not side:
        return Evidence(), False, "the finding names no interactions, and does not say whether it rose or fell"
    bands = {} if finding.slice == ALL else dict(part.split("=", 1) for part in finding.slice.split(","))
    lake = observatory.lake

    def pick() -> Evidence:
        return evidence(lake, subject.cycle, statistic, bands, 1 if side > 0 else -1, seed=0)

    parts = state(lake, ("observations", [subject.cycle]), ("samples", [subject.cycle]))
    try:
        found = _PAIRS.ask(("picked", statistic.name, finding.slice, side > 0, subject.cycle, parts), pick, wait_s=None)
    except ValueError as exc:  # a slice of a detector's own
        return Evidence(), False, f"the finding names no interactions, and none can be picked: {exc}"
    assert not isinstance(found, Pending)
    if found == Evidence():
        return found, True, "no interaction of the cycle is in the slice any more"
    return found, True, ""


_READ = Kept(16)


def read(observatory: Observatory, interaction_id: str) -> Trajectory:
    """As `Observatory.trajectory`, read once while nothing comes in: whoever labels sees the same pair again and again.

    Raises LakeError where it is not stored.
    """
    lake = observatory.lake
    parts = state(lake, ("feedback", None), ("observations", None), ("samples", None))
    found = _READ.ask((interaction_id, parts), lambda: observatory.trajectory(interaction_id), wait_s=None)
    assert not isinstance(found, Pending)
    return found


# -- side by side --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Beside:
    """A step of each side that stand beside each other; None where the other side has none."""

    own: int | None
    twin: int | None
    same: bool
    """Whether both did the same, word for word."""


@dataclass(frozen=True)
class Aligned:
    """Two interactions, step by step."""

    steps: tuple[Beside, ...]
    left_out: int
    """Steps beyond `MOST_STEPS` of either side that were not aligned."""

    @property
    def differ(self) -> tuple[Beside, ...]:
        """Those that are not the same."""
        return tuple(each for each in self.steps if not each.same)


def aligned(own: Interaction, twin: Interaction) -> Aligned:
    """Steps set beside each other by what kind they are: author, tools called, whether it edits or asks."""
    left, right = own.steps[:MOST_STEPS], twin.steps[:MOST_STEPS]
    matcher = difflib.SequenceMatcher(None, [_kind(each) for each in left], [_kind(each) for each in right], False)
    rows: list[Beside] = []
    for _, first, last, begin, end in matcher.get_opcodes():
        # What was replaced stands beside what replaced it, as far as both go.
        for place in range(max(last - first, end - begin)):
            a = first + place if first + place < last else None
            b = begin + place if begin + place < end else None
            same = a is not None and b is not None and _content(left[a]) == _content(right[b])
            rows.append(Beside(a, b, same))
    return Aligned(tuple(rows), max(0, len(own.steps) - MOST_STEPS) + max(0, len(twin.steps) - MOST_STEPS))


def _kind(step: Step) -> tuple[object, ...]:
    return step.author, tuple(call.name for call in step.tool_calls), bool(step.edits), bool(step.is_question)


def _content(step: Step) -> tuple[object, ...]:
    """All that a reader sees of a step; ids and times are not of it."""
    calls = tuple((_call(each)) for each in step.tool_calls)
    return step.author, step.text, step.thinking, calls, tuple(_edit(each) for each in step.edits), step.is_question


def _call(call: ToolCall) -> tuple[object, ...]:
    return call.name, call.arguments, call.invalidity, call.outcome, call.exit_code, call.problem, call.result


def _edit(edit: Edit) -> tuple[object, ...]:
    return edit.path, edit.outcome, edit.text, edit.hunks


# -- labels --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelCounts:
    """What people said of some examples: interactions, each by the majority of those who told."""

    hack: int
    not_hack: int
    cannot_tell: int
    """All that nobody could tell."""
    disputed: int
    """As many say it is as say it is not."""

    @property
    def labelled(self) -> int:
        """Interactions that anybody labelled."""
        return self.hack + self.not_hack + self.cannot_tell + self.disputed


def label_example(
    observatory: Observatory,
    run_id: str,
    finding_id: str,
    interaction_id: str,
    label: ExampleLabel,
    *,
    actor: str,
    reason: str = "",
    token: str | None = None,
) -> Label:
    """Says of one of a finding's examples whether it is a hack; the last word of each person stands.

    StoreError where there is no such finding, or the interaction is none of its examples.
    """
    store = observatory.store
    known = [subject for _, subject in _known(store, run_id, finding_id)]
    if not known:
        raise StoreError(store.where, f"there is no finding {finding_id!r}")
    named = [_places(_picked(observatory, subject)[0]) for subject in known]
    place = next((name for places in named for name, ids in places.items() if interaction_id in ids), None)
    if place is None:
        there = ", ".join(dict.fromkeys(repr(each) for places in named for ids in places.values() for each in ids))
        raise StoreError(
            store.where, f"{interaction_id!r} is no example of finding {finding_id!r}; there are: {there or 'none'}"
        )
    return store.labels.set(finding_id, interaction_id, label, place=place, actor=actor, reason=reason, token=token)


def counted(labels: Iterable[Label]) -> LabelCounts:
    """Labels added up over people; an interaction that two findings name is counted once."""
    told: dict[str, Counter[str]] = {}
    for each in labels:
        told.setdefault(each.interaction_id, Counter())[each.label] += 1
    sums: Counter[Literal["hack", "not", "cannot_tell", "disputed"]] = Counter()
    for said in told.values():
        if said["hack"] > said["not"]:
            sums["hack"] += 1
        elif said["not"] > said["hack"]:
            sums["not"] += 1
        else:
            sums["disputed" if said["hack"] else "cannot_tell"] += 1
    return LabelCounts(sums["hack"], sums["not"], sums["cannot_tell"], sums["disputed"])


def labels_of(
    store: Store, *, finding_id: str | None = None, incident: int | None = None
) -> Mapping[ExamplePlace, LabelCounts]:
    """What people said of the examples of a finding, or of all of an incident; by what they were shown as.

    Places without a label are missing.
    """
    found = store.labels.read(findings=None if finding_id is None else [finding_id], incident=incident)
    return {
        place: counted(each for each in found if each.place == place)
        for place in SHOWN
        if any(each.place == place for each in found)
    }


# -- who cites an interaction --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Citation:
    """A finding that names an interaction."""

    finding_id: str
    cycle: int
    finding: Finding
    place: ExamplePlace
    incidents: tuple[int, ...]
    """That it is pinned to."""
    steps: tuple[tuple[int, str], ...]
    """Steps that speak for it, each with a short excerpt (an agent's text), where its detector names some."""


def citations(store: Store, run_id: str, item: Interaction) -> list[Citation]:
    """Findings of the interaction's own cycle that name it, with the steps where a signature saw it."""
    if item.cycle is None:
        return []
    found = []
    for stored in store.findings.read(run_id, item.cycle):
        named = _places(stored.finding.evidence)
        place = next((name for name, ids in named.items() if item.interaction_id in ids), None)
        if place is not None:
            found.append((stored, place))
    incidents = store.incidents.of_findings([stored.finding_id for stored, _ in found])
    return [
        Citation(
            stored.finding_id,
            stored.cycle,
            stored.finding,
            place,
            incidents.get(stored.finding_id, ()),
            _steps(stored.finding, item),
        )
        for stored, place in found
    ]


def _steps(finding: Finding, item: Interaction) -> tuple[tuple[int, str], ...]:
    from palomar.detectors.signature import assess, signatures

    kind, _, name = (finding.statistic or "").partition(":")
    if kind != "signature" or name not in signatures():
        return ()
    (said,) = assess(item, [name])
    return tuple((place.step, place.excerpt) for place in said.verdict.evidence)
