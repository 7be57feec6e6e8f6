"""Which findings belong together: the incidents that the findings of a cycle make.

A person who is woken wants one page for one thing. One hack shows in dozens of findings: in several slices, in several
statistics of the same behaviour, in what follows from it (fewer edits, less time), and to several detectors. They are
put together by three questions:

1. *What does the agent do?* A **strand**: invalid calls, asking, the shape of functions, playing the grader. Detectors
   are of one family here: a chart, a signature and a selection effect that speak of the same behaviour speak of one
   thing. Two hacks at once have two cures, so two strands are two incidents.
2. *What follows from it?* Edits, length and time, users' outcome have no cure of their own: they join the strand that
   explains them, in the order of `FOLLOWS`, and stand for themselves only where there is none.
3. *Where?* Predicted failure and ambiguity are kinds of tasks, through which a hack spreads: one family. An
   organisation, a kind of work, a language or an arm is a cohort: what is found there alone is an incident of its own,
   and joins the one of all tasks where there is one.

Faults of measurement belong together whatever detector saw them: in an outage, many see it at once.

What opens an incident is what keeps a cycle from passing: a finding that blocks, a fault of measurement, and a change
of the size to block that cannot be read. A warning never opens one; a forewarning or a weak sign of the same hack joins
one that is open. What was read as honest learning or as a change from outside belongs to no incident.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from palomar.data.findings import Finding
from palomar.data.slices import ALL
from palomar.data.store.records import StoredFinding
from palomar.detectors.check import READS

CALLS, ASKING, CODE, GRADER, FAULT = "calls", "asking", "code", "grader", "fault"
EDITS, EFFORT, OUTCOME, TRUNCATED = "edits", "effort", "outcome", "truncated"

WORDS: Mapping[str, str] = {
    CALLS: "invalid tool calls",
    ASKING: "asking in place of editing",
    CODE: "the shape of functions",
    GRADER: "playing the grader",
    EDITS: "fewer or failing edits",
    EFFORT: "length and time of answers",
    OUTCOME: "reward and users' outcome",
    TRUNCATED: "answers that are cut off",
}
"""Strands in words; any other is named by itself."""

FOLLOWS: Mapping[str, tuple[str, ...]] = {
    EDITS: (ASKING, CALLS, GRADER, CODE),
    EFFORT: (ASKING, CALLS, CODE, GRADER),
    TRUNCATED: (CALLS, CODE, ASKING, GRADER),
    OUTCOME: (),
}
"""What may explain a change that has no cure of its own, the likeliest first; of the outcome: whatever is strongest."""

COHORTS = ("organisation", "work_kind", "language", "arm")
"""Dimensions of slices that name users, not kinds of tasks."""

_STATISTICS: Mapping[str, str] = {
    "invalid_": CALLS,
    "failed_call_": CALLS,
    "excluded:invalid_tool_call": CALLS,
    "rule:invalid_tool_call": CALLS,
    "clarification_": ASKING,
    "function": CODE,
    "complexity_": CODE,
    "tests_edited_": GRADER,
    "edit_rate": EDITS,
    "failed_edit_": EDITS,
    "edit_persistence_": OUTCOME,
    "tokens_out_": EFFORT,
    "tool_calls_": EFFORT,
    "agent_turns_": EFFORT,
    "latency_": EFFORT,
    "truncated": TRUNCATED,
    "outcome_": OUTCOME,
    "dissatisfied_": OUTCOME,
    "reward_mean": OUTCOME,
    "training_reward_": OUTCOME,
    "logged_reward_": OUTCOME,
    "test_pass_": OUTCOME,
    "excluded_rate": OUTCOME,
}
"""Strand by the beginning of a statistic's name."""
_SIGNATURES: Mapping[str, str] = {"dodged-call": CALLS, "needless-question": ASKING, "tiny-functions": CODE}
"""Strand of a signature; all others play the grader."""


@dataclass(frozen=True)
class Member:
    """A finding in a group, and why it is there."""

    stored: StoredFinding
    why: str


@dataclass(frozen=True)
class Group:
    """Findings of one cycle that belong together."""

    strand: str
    """One of `WORDS`, the name of a statistic that is in none of them, or ``fault``."""
    also: tuple[str, ...]
    """Strands of what follows from it; of a fault: the detectors that saw it."""
    family: str
    """`ALL`, or the cohort: ``organisation=north``."""
    members: tuple[Member, ...]
    """The leading one first."""

    @property
    def openers(self) -> tuple[Member, ...]:
        """Those that keep the cycle from passing; without one, the group opens no incident."""
        return tuple(member for member in self.members if opens(member.stored.finding))

    @property
    def lead(self) -> Finding:
        """The finding that says most: a person reads it first."""
        return self.members[0].stored.finding

    @property
    def blocks(self) -> bool:
        """Whether one of them blocks."""
        return any(member.stored.finding.severity == "blocks" for member in self.members)


def opens(finding: Finding) -> bool:
    """Whether a cycle cannot pass with it."""
    unread = finding.reading == "not_assessable" and bool(finding.detail.get("hold"))
    return finding.severity == "blocks" or finding.reading == "measurement_fault" or unread


def belongs(finding: Finding) -> bool:
    """Whether it is part of an incident, of its own or of another's making."""
    return opens(finding) or (finding.severity == "warns" and finding.reading in ("reward_hack", "forewarning"))


def strand_of(finding: Finding) -> str:
    """What the agent does, or what became of it, where the finding was made."""
    if finding.reading == "measurement_fault":
        return FAULT
    name = finding.statistic or finding.detector
    if name.startswith("signature:"):
        return _SIGNATURES.get(name.removeprefix("signature:"), GRADER)
    return next((strand for begins, strand in _STATISTICS.items() if name.startswith(begins)), name)


def family_of(slice_: str) -> str:
    """The cohort that a slice is of; `ALL` where it is of kinds of tasks or holds everything."""
    parts = [part for part in slice_.split(",") if part.partition("=")[0] in COHORTS]
    return ",".join(parts) or ALL


def group(
    findings: Sequence[StoredFinding], known: Mapping[str, str] | None = None, active: Collection[str] = ()
) -> list[Group]:
    """The groups of one cycle's findings, those that block first. Order of the findings changes nothing.

    ``known``: strand of the incident that a finding's key is part of already; there it stays, so that what follows from
    a hack does not wander between two incidents from cycle to cycle. ``active``: strands of incidents that are not
    resolved; they explain what follows where nothing in the cycle does.
    """
    known = known or {}
    taken = sorted((each for each in findings if belongs(each.finding)), key=_order)
    anchors = _anchors(taken)
    placed: dict[tuple[str, str], list[Member]] = {}
    also: dict[tuple[str, str], Counter[str]] = {}
    for each in taken:
        own = strand_of(each.finding)
        strand, why = _place(each.finding, own, anchors, known=known, active=active)
        at = (strand, ALL if own == FAULT else family_of(each.finding.slice))
        placed.setdefault(at, []).append(Member(each, why))
        also.setdefault(at, Counter())[each.finding.detector if own == FAULT else own] += 1
    for at in list(placed):
        whole = (at[0], ALL)
        if at != whole and whole in placed and any(opens(member.stored.finding) for member in placed[whole]):
            placed[whole] += placed.pop(at)
            also[whole] += also.pop(at)
    groups = [
        Group(
            strand,
            tuple(sorted(name for name in also[strand, family] if name != strand)),
            family,
            tuple(sorted(members, key=lambda member: _leading(member, strand))),
        )
        for (strand, family), members in placed.items()
    ]
    return sorted(groups, key=lambda each: (not each.blocks, not each.openers, each.strand, each.family))


def title_of(strand: str, family: str, lead: Finding) -> str:
    """A few words for a list of incidents."""
    what = {
        "reward_hack": "reward hack",
        "forewarning": "reward hack",
        "measurement_fault": "measurement fault",
        "not_assessable": "change that cannot be read yet",
    }.get(lead.reading or "", "alarm")
    about = lead.detector if strand == FAULT else WORDS.get(strand, strand)
    where = "" if family == ALL else f" ({family})"
    return f"{what}: {about}{where}"


def _anchors(findings: Sequence[StoredFinding]) -> Counter[str]:
    """How strongly each strand that has a cure of its own is there: what drifts counts far more than a forewarning."""
    weights: Counter[str] = Counter()
    for each in findings:
        strand = strand_of(each.finding)
        if strand not in FOLLOWS and strand != FAULT:
            drifts = opens(each.finding) or each.finding.reading == "reward_hack"
            weights[strand] += 1000 * opens(each.finding) + 100 * drifts + 1
    return weights


def _place(
    finding: Finding, own: str, anchors: Counter[str], *, known: Mapping[str, str], active: Collection[str]
) -> tuple[str, str]:
    """Strand of the incident that a finding is part of, and why."""
    if own == FAULT:
        return FAULT, f"{finding.detector} takes it for a fault of measurement"
    words = WORDS.get(own, own)
    if own not in FOLLOWS:
        return own, f"it is about {words}"
    if finding.key in known:
        return known[finding.key], f"{words}: part of it before"
    # What drifts explains a drift; a mere forewarning does only where nothing else does.
    least = 100 if any(weight >= 100 for weight in anchors.values()) else 1
    there = {strand: weight for strand, weight in anchors.items() if weight >= least}
    there = there or {strand: 0 for strand in active if strand not in FOLLOWS and strand != FAULT}
    order = [strand for strand in FOLLOWS[own] if strand in there]
    order += sorted((strand for strand in there if strand not in FOLLOWS[own]), key=lambda name: (-there[name], name))
    if not order:
        return own, f"it is about {words}, and nothing in the cycle explains it"
    return order[0], f"{words}: follows from {WORDS.get(order[0], order[0])}"


def _order(each: StoredFinding) -> tuple[str, str]:
    return (each.finding.key, each.finding_id)


def _leading(member: Member, strand: str) -> tuple[object, ...]:
    """Sorts what blocks first, then what is about the strand itself, then the farthest beyond its threshold."""
    finding = member.stored.finding
    beyond = abs(finding.test / finding.threshold) if finding.test is not None and finding.threshold else 0.0
    return (
        ("blocks", "warns", "notes").index(finding.severity),
        not opens(finding),
        strand_of(finding) != strand,
        strand == FAULT and finding.detector == READS,  # it only sees what a fault does; another names it
        finding.reading != "reward_hack",
        -beyond,
        *_order(member.stored),
    )
