"""The rule by which a candidate is promoted, held or blocked: a pure function of frozen evidence and a policy.

Every check comes out as ``pass``, ``fail`` or ``unknown``, with its numbers. Missing, immature, too small and invalid
are ``unknown``, and ``unknown`` never becomes ``pass``. In this order:

1. **Validity.** What a faulty cycle or experiment says is not used; unless something else blocks, the candidate is
   held. A suite's tasks are the same whatever happened to the traffic, so only a wrong digest takes the suites with it.
2. **Block**, where it is shown that something is worse: a finding that blocks, a suite that got worse (Holm over all
   of its metrics and comparisons), a must-pass task, a deteriorated metric of the experiment (confidence sequence,
   Bonferroni). Against the champion "worse" is any loss; against the anchor it is one beyond the margin, else a loss
   that the margin allows would block for ever.
3. **Promote** only if all hold: every guardrail is shown not to be worse than champion and anchor by its margin (each
   at the full error: all must pass, so that none is wrong more often than one; intersection-union), two-way metrics
   are shown to be the same (two one-sided tests), the checks were made and block nothing, no incident blocks.
   ``improved`` where a metric of success is shown to be better (Bonferroni), else ``neutral``, of which there may be
   so many in a row.
4. **Hold** otherwise, with what is missing, and until when.

What can be wrong how often, per candidate: promote though a guardrail is worse by its margin, ``errors.guardrail``;
"improved" though no success metric is, ``errors.success``; block though nothing is worse, `Policy.blocks_wrongly` (and
what the detectors state for their own findings).

Intervals of suites are Student's on the families of tasks, once, at a size fixed beforehand; those of an experiment are
confidence sequences, which hold at every look.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from scipy import special, stats

from palomar.detectors.experiment import Effect, ExperimentReport
from palomar.detectors.paired import holm
from palomar.trainer.gate_policy import Against, Margins, Policy, ShiftMargins

Word = Literal["promote", "hold", "block"]
Kind = Literal["improved", "neutral"]
Result = Literal["pass", "fail", "unknown"]
Part = Literal["validity", "block", "require", "success"]
Better = Literal["up", "down", "none"]

SERVES = "it serves, and should be rolled back: "
"""How the sentence begins that blocks a champion."""
POWER = 0.8
"""Chance at which a size is said to be enough."""


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


# -- evidence ------------------------------------------------------------------------------------------------------


class Paired(_Frozen):
    """One metric of a suite: the candidate and another checkpoint on the same tasks."""

    suite: str
    metric: str
    against: Against
    other: str
    """The checkpoint that it is compared with."""
    better: Better
    kind: Literal["share", "mean"]
    tasks: int = 0
    clusters: int = 0
    candidate_value: float | None = None
    other_value: float | None = None
    effect: float | None = None
    """Candidate less the other; None where it is not known."""
    error: float | None = None
    """Standard error, clustered by family of tasks."""
    why: str = ""
    """Why it is not known; empty where it is."""


class Case(_Frozen):
    """A task that must be passed."""

    suite: str
    metric: str
    task: str
    value: float | None
    """1 = passed; None = not measured."""


class Told(_Frozen):
    """A finding of a check, an incident, or a silence and what it holds back."""

    id: str
    code: str
    sentence: str
    blocks: bool
    fault: bool = False
    """It says that the data are faulty."""
    since: int | None = None
    """First cycle in which it showed; None where it says nothing of that."""


class CheckEvidence(_Frozen):
    """What the detectors said of a cycle or of a candidate."""

    verdict: Literal["pass", "warn", "block", "not_assessable"] | None
    """None = it was not checked."""
    sentence: str = ""
    findings: tuple[Told, ...] = ()
    """Those that block, and those that say that the data are faulty."""
    assessed: int | None = None
    """Things that were tested; None where that was not kept."""


class CycleEvidence(_Frozen):
    """How the cycle went that trained the candidate. None = not known."""

    cycle: int | None
    ledger_adds_up: bool | None = None
    ledger_why: str = ""
    offered: int | None = None
    """Samples offered to the update."""
    reward_invalid: int | None = None
    """Of those, the ones whose scorers failed."""
    reward_waiting: int | None = None
    """Of those, the ones whose reward was not known yet."""
    largest_lag: int | None = None


class Evidence(_Frozen):
    """All that the rule looks at. Frozen with the decision, so that it can be asked again."""

    format: Literal[1] = 1
    run_id: str
    candidate: str
    status: str
    """``candidate``, or what became of it."""
    champion: str | None
    anchor: str | None
    milestone: str | None
    newer: str | None = None
    """A candidate of a later cycle that waits too."""
    digests_match: bool | None = None
    digests_why: str = ""
    cycle: CycleEvidence
    cycle_check: CheckEvidence
    candidate_check: CheckEvidence
    incidents: tuple[Told, ...] | None = None
    """Open ones that block, and what blocks and is silenced; None = could not be asked."""
    suites: tuple[Paired, ...] = ()
    cases: tuple[Case, ...] = ()
    experiment: ExperimentReport | None = None
    neutral_in_a_row: int = 0
    """Promotions without a success before this one, since the last with one."""
    blocked_by: tuple[Told, ...] = ()
    """Further reasons to block that the loop knows of."""
    held_by: tuple[str, ...] = ()
    """Further reasons to hold, as codes."""
    at: datetime
    """When it was gathered."""


# -- the answer ----------------------------------------------------------------------------------------------------


class Check(_Frozen):
    """One thing that was looked at. Numbers are None where they do not apply or are not known."""

    code: str
    part: Part
    result: Result
    sentence: str
    """For people, ends without a full stop."""
    rule: tuple[str, ...] = ()
    """Key of the policy that asks for it: ``("suites", "held-out-tasks", "guardrails", "solved")``."""
    benefit: float | None = None
    """Effect, positive = better; of a two-way metric, candidate less the other."""
    low: float | None = None
    """Of ``benefit``, at ``alpha`` on that side alone."""
    high: float | None = None
    margin: float | None = None
    alpha: float | None = None
    p: float | None = None
    n: int | None = None
    unit: Literal["tasks", "users", "samples"] | None = None
    clusters: int | None = None
    smallest: float | None = None
    """Margin that would be shown four times of five if nothing had changed."""
    more: int | None = None
    """Units more at which it would be shown, if what was seen stays as it is; None = no number would do, or unknown."""
    needed: str = ""
    """What would settle it; empty where nothing has to be."""
    evidence: tuple[str, ...] = ()
    """Ids of findings, evaluations (``suite@checkpoint``), incidents, the experiment."""


class Outcome(_Frozen):
    """The answer, with all that it rests on."""

    verdict: Word
    kind: Kind | None
    reasons: Annotated[tuple[str, ...], Field(min_length=1)]
    """Codes, the deciding one first."""
    sentence: str
    checks: tuple[Check, ...]
    needed: tuple[str, ...]
    """Of a hold: what would settle it."""
    expires_at: datetime | None
    """Of a hold: until when it stands."""
    risks: Mapping[str, float]
    """What may be wrong how often, per candidate."""

    @property
    def arithmetic(self) -> str:
        """How the answer follows from the checks, in one line."""
        counts = [
            f"{part} {sum(c.part == part and c.result == 'pass' for c in self.checks)} of "
            f"{sum(c.part == part for c in self.checks)} pass"
            for part in ("validity", "require")
        ]
        failed = sum(check.part == "block" and check.result == "fail" for check in self.checks)
        shown = sum(check.part == "success" and check.result == "pass" for check in self.checks)
        tested = sum(check.part == "block" for check in self.checks)
        return f"{counts[0]}; {failed} of {tested} block; {counts[1]}; {shown} successes shown -> {self.verdict}"


def decide(evidence: Evidence, policy: Policy) -> Outcome:
    """The answer. The same evidence and policy always give the same."""
    validity, faulty = _validity(evidence, policy)
    blocks = _blocks(evidence, policy, faulty)
    requires = _requires(evidence, policy, faulty)
    successes = _successes(evidence, policy, faulty)
    checks = (*validity, *blocks, *requires, *successes)
    blocking = [check for check in blocks if check.result == "fail"]
    invalid = [check for check in validity if check.result != "pass"]
    missing = [check for check in (*blocks, *requires) if check.result != "pass"]
    shown = [check for check in successes if check.result == "pass"]
    risks = {
        "promote though a guardrail is worse by its margin": policy.errors.guardrail,
        "say improved though no success metric is": policy.errors.success,
        "block though nothing is worse": policy.blocks_wrongly,
    }

    def outcome(verdict: Word, kind: Kind | None, reasons: Sequence[str], sentence: str) -> Outcome:
        held = verdict == "hold"
        return Outcome(
            verdict=verdict,
            kind=kind,
            reasons=tuple(dict.fromkeys(reasons)),
            sentence=sentence,
            checks=checks,
            needed=_needed((*invalid, *missing)) if held else (),
            expires_at=evidence.at + timedelta(hours=policy.hold_hours) if held else None,
            risks=risks,
        )

    if blocking:
        others = f"; and {len(blocking) - 1} more" if len(blocking) > 1 else ""
        # The same tests go on after the promotion: of a champion, block is roll back.
        serves = evidence.status == "promoted"
        said = f"{SERVES if serves else ''}{blocking[0].sentence}{others}"
        return outcome("block", None, [*(["rollback"] if serves else []), *(c.code for c in blocking)], said)
    if invalid:
        # What is known to be wrong before what is not known.
        first, *rest = sorted(invalid, key=lambda check: check.result != "fail")
        codes = [f"invalid:{check.code}" for check in (first, *rest)]
        return outcome("hold", None, [*codes, *(check.code for check in missing)], first.sentence)
    if evidence.newer is not None and missing:
        said = f"a newer candidate waits: {evidence.newer}"
        return outcome("hold", None, ["superseded", *(check.code for check in missing)], said)
    if missing:
        first, *rest = sorted(missing, key=lambda check: check.result != "fail")
        others = f"; and {len(rest)} more" if rest else ""
        return outcome("hold", None, [check.code for check in (first, *rest)], f"{first.sentence}{others}")
    if shown:
        return outcome("promote", "improved", [f"improved:{shown[0].code}"], shown[0].sentence)
    if evidence.neutral_in_a_row < policy.neutral_in_a_row:
        number = evidence.neutral_in_a_row + 1
        said = f"nothing is worse, and nothing is shown to be better (number {number} of {policy.neutral_in_a_row})"
        return outcome("promote", "neutral", ["neutral"], said)
    said = (
        f"nothing is worse, but {evidence.neutral_in_a_row} promotions in a row showed no success, and the policy "
        f"allows {policy.neutral_in_a_row}"
    )
    return outcome("hold", None, ["neutral_budget_spent"], said)


def _needed(checks: Sequence[Check]) -> tuple[str, ...]:
    """What would settle a hold, each thing once; where several wait for more units of one kind, the longest wait."""
    said: dict[str, str] = {}
    most: dict[str, int] = {}
    for check in checks:
        if not check.needed:
            continue
        source = ":".join(check.rule[:2]) if check.more is not None else check.needed
        if check.more is not None and check.more <= most.get(source, -1):
            continue
        most[source] = check.more or 0
        said[source] = check.needed
    return tuple(said.values())


# -- validity ------------------------------------------------------------------------------------------------------

_Scope = Literal["all", "cycle", "experiment"]


def _validity(evidence: Evidence, policy: Policy) -> tuple[list[Check], frozenset[_Scope]]:
    """The checks, and what of the evidence may not be used."""
    asked = policy.validity
    found: list[tuple[_Scope, Check]] = []

    def add(scope: _Scope, code: str, ok: bool | None, said: str, needed: str = "", **more: object) -> None:
        result: Result = "unknown" if ok is None else "pass" if ok else "fail"
        rule = ("validity", code) if code in type(asked).model_fields else ()
        settle = "" if ok else needed
        fields = {"code": code, "part": "validity", "result": result, "sentence": said, "rule": rule, "needed": settle}
        found.append((scope, Check.model_validate({**fields, **more})))

    if asked.digests:
        add(
            "all",
            "digests",
            evidence.digests_match,
            evidence.digests_why or "the candidate is what was registered, file by file",
            "put the checkpoint's folder back as it was registered, or register what is there as another",
        )
    if evidence.status not in ("candidate", "promoted"):
        add(
            "all",
            "retired",
            False,
            f"{evidence.candidate} is no candidate any more: {evidence.status}",
            "ask about the candidate of a later cycle (--dry-run says what the rule would have said)",
        )
    if evidence.champion is None:
        add("all", "champion", None, "the run has no champion to compare with", "promote a first checkpoint")
    cycle = evidence.cycle
    if asked.ledger:
        said = "collected = trained + excluded + quarantined + waiting, in every stratum"
        why = cycle.ledger_why or said
        add("cycle", "ledger", cycle.ledger_adds_up, why, "the ledger of the cycle that trained it")
    if asked.max_lag is not None:
        lag = cycle.largest_lag
        said = "not known how old its samples were" if lag is None else f"samples at most {lag} cycles old"
        ok = None if lag is None else lag <= asked.max_lag
        add("cycle", "max_lag", ok, f"{said}; allowed: {asked.max_lag}", "samples of a younger policy")
    for code, bound, lost, what in (
        ("reward_valid_share", asked.reward_valid_share, cycle.reward_invalid, "scorers that failed"),
        ("reward_known_share", asked.reward_known_share, cycle.reward_waiting, "rewards not known by then"),
    ):
        if bound is None:
            continue
        if not cycle.offered or lost is None:
            add("cycle", code, None, f"not known: {what}", "the record of the cycle's training")
            continue
        share = 1 - lost / cycle.offered
        said = (
            f"{what}: {lost} of {cycle.offered} samples ({100 * (1 - share):.1f} %; allowed: {100 * (1 - bound):.3g} %)"
        )
        add("cycle", code, share >= bound, said, "a cycle with fewer of them", n=cycle.offered, unit="samples")
    faults = [told for told in evidence.cycle_check.findings if told.fault]
    if evidence.cycle_check.verdict is not None and policy.check.cycle:
        said = faults[0].sentence if faults else "no fault of measurement was found"
        ids = tuple(told.id for told in faults)
        add("cycle", "measurement", not faults, said, "a cycle whose data are whole", evidence=ids)
    if policy.experiment is not None and evidence.experiment is not None:
        name = evidence.experiment.name
        for each in evidence.experiment.validity:
            ok = None if each.status == "unknown" else each.status == "pass"
            said = f"{each.name.replace('_', ' ')}: {each.why or 'as it should be'}"
            needed = "more units" if ok is None else "a new experiment: what this one measured cannot be believed"
            add("experiment", each.name, ok, said, needed, evidence=(f"experiment:{name}",))
        if not evidence.experiment.validity:
            add("experiment", "experiment_validity", None, "the experiment's assignment was not checked")
    faulty = frozenset(scope for scope, check in found if check.result != "pass")
    return [check for _, check in found], faulty


def _unusable(faulty: frozenset[_Scope], scope: _Scope) -> bool:
    return "all" in faulty or scope in faulty


# -- block ---------------------------------------------------------------------------------------------------------


def _blocks(evidence: Evidence, policy: Policy, faulty: frozenset[_Scope]) -> list[Check]:
    found: list[Check] = []
    told = [("", each) for each in evidence.blocked_by]
    if policy.check.cycle:
        told += [(f"in cycle {evidence.cycle.cycle}: ", each) for each in evidence.cycle_check.findings if each.blocks]
    if policy.check.candidate:
        told += [("the candidate: ", each) for each in evidence.candidate_check.findings if each.blocks]
    for where, each in {one.id: (place, one) for place, one in told}.values():
        found.append(
            Check(
                code=f"finding:{each.code}",
                part="block",
                result="unknown" if _unusable(faulty, "cycle") else "fail",
                sentence=f"{where}{each.sentence}",
                rule=("check",),
                evidence=(each.id,),
            )
        )
    found += _regressions(evidence, policy, faulty)
    for suite, asked in policy.suites.items():
        for metric, tasks in asked.must_pass.items():
            found += [_case(evidence, suite, metric, task, faulty) for task in tasks]
    if policy.experiment is not None and evidence.experiment is not None:
        found += _deteriorations(evidence, policy, faulty)
    return found


def _regressions(evidence: Evidence, policy: Policy, faulty: frozenset[_Scope]) -> list[Check]:
    """Suites that got worse: one family of one-sided tests, Holm."""
    tested: list[tuple[Paired, float, float]] = []
    for suite, asked in policy.suites.items():
        for metric, margins in asked.guardrails.items():
            for against, margin in margins.items():
                pair = _pair(evidence, suite, metric, against)
                if pair is None or _sign(pair.better) == 0 or _too_few(pair, policy) or _unusable(faulty, "all"):
                    continue  # told among what is required
                null = 0.0 if against == "champion" else -margin
                assert pair.effect is not None
                assert pair.error is not None
                benefit = _sign(pair.better) * pair.effect
                tested.append((pair, null, _below(benefit - null, pair.error, pair.clusters - 1)))
    adjusted = holm([p for _, _, p in tested]) if tested else []
    return [
        Check(
            code=f"worse:{pair.suite}:{pair.metric}:{pair.against}",
            part="block",
            result="fail" if p <= policy.errors.suites else "pass",
            sentence=f"{_told(pair)}: {_lost('' if null == 0 else f' beyond {_amount(pair, -null)}', p, policy)} "
            f"(p {p:.2g} after Holm over {len(tested)}; blocks up to {policy.errors.suites:g})",
            rule=("suites", pair.suite, "guardrails", pair.metric),
            benefit=_sign(pair.better) * (pair.effect or 0.0),
            margin=-null or None,
            alpha=policy.errors.suites,
            p=p,
            n=pair.tasks,
            unit="tasks",
            clusters=pair.clusters,
            evidence=_ids(evidence, pair),
        )
        for (pair, null, _), p in zip(tested, adjusted, strict=True)
    ]


def _case(evidence: Evidence, suite: str, metric: str, task: str, faulty: frozenset[_Scope]) -> Check:
    found = [each for each in evidence.cases if (each.suite, each.metric, each.task) == (suite, metric, task)]
    value = found[0].value if found and not _unusable(faulty, "all") else None
    result: Result = "unknown" if value is None else "pass" if value >= 1 else "fail"
    said = {"unknown": "was not measured", "pass": "passes", "fail": "fails, and must pass"}[result]
    return Check(
        code=f"must_pass:{suite}:{metric}:{task}",
        part="block",
        result=result,
        sentence=f"{task} of {suite} ({metric}) {said}",
        rule=("suites", suite, "must_pass", metric),
        needed="" if value is not None else f"run {suite} with task {task}",
        evidence=(f"{suite}@{evidence.candidate}",),
    )


def _deteriorations(evidence: Evidence, policy: Policy, faulty: frozenset[_Scope]) -> list[Check]:
    """Metrics of the experiment that are worse: one-sided confidence sequences, Bonferroni over all."""
    assert policy.experiment is not None
    asked = [
        (metric, against, margin, margins.relative)
        for metric, margins in policy.experiment.guardrails.items()
        for against, margin in margins.items()
    ]
    named = {(metric, against) for metric, against, _, _ in asked}
    asked += [
        (each.metric, each.against, 0.0, False)
        for each in policy.success
        if each.suite is None and each.against == "champion" and (each.metric, each.against) not in named
    ]
    found = []
    for metric, against, margin, relative in asked:
        effect = _effect(evidence, metric, against)
        alpha = policy.errors.deterioration / len(asked)
        bounds = None if effect is None or _unusable(faulty, "experiment") else effect.bounds(alpha)
        size = None if effect is None else _absolute(effect, margin, relative)
        if effect is None or bounds is None or _sign(effect.better) == 0 or size is None:
            continue  # told among what is required
        null = 0.0 if against == "champion" else -size
        low, high = _towards(effect, bounds)
        found.append(
            Check(
                code=f"deteriorated:{metric}:{against}",
                part="block",
                result="fail" if high < null else "pass",
                sentence=f"{_shifted(effect, against)}: {'a' if high < null else 'no'} "
                f"{'loss' if null == 0 else f'loss beyond {size:.3g}'} is shown "
                f"(confidence sequence of the benefit {low:.3g} to {high:.3g} at {alpha:.2g} a side)",
                rule=("experiment", "guardrails", metric),
                benefit=_sign(effect.better) * (effect.effect or 0.0),
                low=low,
                high=high,
                margin=-null or None,
                alpha=alpha,
                n=sum(effect.units.values()),
                unit="users",
                evidence=_experiment_id(evidence),
            )
        )
    return found


# -- require -------------------------------------------------------------------------------------------------------


def _requires(evidence: Evidence, policy: Policy, faulty: frozenset[_Scope]) -> list[Check]:
    found = _checked(evidence, policy)
    for suite, asked in policy.suites.items():
        for two_way, group in ((False, asked.guardrails), (True, asked.two_way)):
            for metric, margins in group.items():
                found += _suite_margins(evidence, policy, suite, metric, margins, two_way=two_way, faulty=faulty)
    if policy.experiment is not None:
        for two_way, shifts in ((False, policy.experiment.guardrails), (True, policy.experiment.two_way)):
            for metric, shift in shifts.items():
                found += _shift_margins(evidence, policy, metric, shift, two_way=two_way, faulty=faulty)
    return found


def _checked(evidence: Evidence, policy: Policy) -> list[Check]:
    found = [
        Check(code=code, part="require", result="fail", sentence=f"held back: {code.replace('_', ' ')}")
        for code in evidence.held_by
    ]
    cycle = evidence.cycle.cycle
    number = "that trained it" if cycle is None else f"{cycle}, which trained it,"
    for wanted, name, what, check in (
        (policy.check.cycle, "cycle", f"cycle {number}", evidence.cycle_check),
        (policy.check.candidate, "candidate", "the candidate", evidence.candidate_check),
    ):
        if not wanted:
            continue
        result: Result
        ids = tuple(told.id for told in check.findings)
        if check.verdict is None:
            result, said = "unknown", f"{what} was not checked"
            needed = f"palomar gate {evidence.candidate} --check"
        elif check.verdict == "not_assessable" or check.assessed == 0:
            result, said = "unknown", f"{what} could not be assessed: {check.sentence}"
            needed = "what the check says it needs (`palomar check`), or a later candidate"
        else:
            result = "fail" if check.verdict == "block" else "pass"
            said, needed = f"{what} was checked: {check.verdict}", ""
            if check.sentence and check.verdict != "pass":
                said += f" ({check.sentence})"
        found.append(
            Check(
                code=f"check:{name}",
                part="require",
                result=result,
                sentence=said,
                rule=("check", name),
                needed=needed,
                evidence=ids,
            )
        )
    if policy.incidents:
        open_ = evidence.incidents
        result = "unknown" if open_ is None else "fail" if open_ else "pass"
        said = "incidents could not be asked" if open_ is None else "no open incident blocks"
        if open_:
            said = f"{_alarms(open_)}: {open_[0].sentence}"
        found.append(
            Check(
                code="incidents",
                part="require",
                result=result,
                sentence=said,
                rule=("incidents",),
                needed=f"an end of {', '.join(told.id for told in open_)}, or an action on it" if open_ else "",
                evidence=tuple(told.id for told in open_ or ()),
            )
        )
    return found


def _alarms(open_: Sequence[Told]) -> str:
    """How many incidents are open, and how many silences hold back what would have opened one."""
    silent = sum(told.id.startswith("silence:") for told in open_)
    counts = {"open incident": len(open_) - silent, "silenced alarm": silent}
    return " and ".join(f"{count} {what}{'s' if count > 1 else ''}" for what, count in counts.items() if count)


def _suite_margins(
    evidence: Evidence,
    policy: Policy,
    suite: str,
    metric: str,
    margins: Margins,
    *,
    two_way: bool,
    faulty: frozenset[_Scope],
) -> list[Check]:
    found = []
    for against, margin in margins.items():
        pair = _pair(evidence, suite, metric, against)
        alpha = policy.errors.equivalence if two_way else policy.errors.guardrail
        fields = {
            "code": f"{'not_same' if two_way else 'not_worse'}:{suite}:{metric}:{against}",
            "part": "require",
            "rule": ("suites", suite, "two_way" if two_way else "guardrails", metric),
            "margin": margin,
            "alpha": alpha,
            "unit": "tasks",
            "evidence": () if pair is None else _ids(evidence, pair),
        }
        why = _why_unknown(pair, policy, suite, metric, against, two_way=two_way, faulty=faulty)
        if why or pair is None:
            needed = f"{suite} on the candidate and on the {against}, with {_enough(policy, suite)}"
            found.append(Check.model_validate({**fields, "result": "unknown", "sentence": why, "needed": needed}))
            continue
        assert pair.effect is not None
        assert pair.error is not None
        benefit = pair.effect if two_way else _sign(pair.better) * pair.effect
        reach = _quantile(1 - alpha, pair.clusters - 1) * pair.error
        judged = _judged(benefit, benefit - reach, benefit + reach, margin, two_way=two_way)
        settle = _settle_tasks(pair, benefit, reach, margin, judged, two_way=two_way)
        said = (
            f"{_told(pair)}; at worst {_worst(pair, benefit, reach, two_way=two_way)}, "
            f"margin {_amount(pair, margin)}: {_SHOWN[judged, two_way]}"
        )
        numbers = {
            "result": judged,
            "sentence": said,
            "benefit": benefit,
            "low": benefit - reach,
            "high": benefit + reach,
            "n": pair.tasks,
            "clusters": pair.clusters,
            "smallest": (_quantile(1 - alpha, pair.clusters - 1) + _normal(POWER)) * pair.error,
        }
        found.append(Check.model_validate({**fields, **numbers, **settle}))
    return found


def _shift_margins(
    evidence: Evidence, policy: Policy, metric: str, margins: ShiftMargins, *, two_way: bool, faulty: frozenset[_Scope]
) -> list[Check]:
    found = []
    for against, margin in margins.items():
        effect = _effect(evidence, metric, against)
        alpha = policy.errors.equivalence if two_way else policy.errors.guardrail
        fields = {
            "code": f"{'not_same' if two_way else 'not_worse'}:{metric}:{against}",
            "part": "require",
            "rule": ("experiment", "two_way" if two_way else "guardrails", metric),
            "alpha": alpha,
            "unit": "users",
            "evidence": _experiment_id(evidence),
        }
        size = None if effect is None else _absolute(effect, margin, margins.relative)
        bounds = None if effect is None else effect.bounds(alpha)
        why, needed = "", "units"
        if evidence.experiment is None:
            why = f"{metric} against the {against}: there is no experiment"
            needed = f"an experiment with an arm of the candidate and one of the {against}"
        elif effect is None:
            why = f"the experiment {evidence.experiment.name} says nothing of {metric} against the {against}"
            needed = f"{metric} in the experiment, with an arm of the {against}"
        elif _unusable(faulty, "experiment"):
            why, needed = f"{metric}: the experiment is not valid", ""
        elif bounds is None:
            why, needed = f"{metric} against the {against}: {effect.why or effect.status}", effect.why or "more users"
        elif not two_way and _sign(effect.better) == 0:
            why, needed = f"{metric} has no good direction", "make it two_way in the policy"
        elif size is None:
            why, needed = f"{metric}: the control's value is not known", "the metric by arm"
        if why or effect is None or bounds is None or size is None:
            said = {"result": "unknown", "sentence": why, "needed": needed}
            found.append(Check.model_validate({**fields, **said}))
            continue
        low, high = bounds if two_way else _towards(effect, bounds)
        benefit = (1 if two_way else _sign(effect.better)) * (effect.effect or 0.0)
        judged = _judged(benefit, low, high, size, two_way=two_way)
        n = sum(effect.units.values())
        settle = _settle_users(benefit, (high - low) / 2, size, judged, n, two_way=two_way)
        worst = (
            f"{max(abs(low), abs(high)):.3g} apart" if two_way else f"{abs(low):.3g} {'worse' if low < 0 else 'better'}"
        )
        said_of = f"{_shifted(effect, against)}; at worst {worst}, margin {size:.3g}: {_SHOWN[judged, two_way]}"
        numbers = {
            "result": judged,
            "sentence": said_of,
            "benefit": benefit,
            "low": low,
            "high": high,
            "margin": size,
            "n": n,
        }
        found.append(Check.model_validate({**fields, **numbers, **settle}))
    return found


_SHOWN: dict[tuple[Result, bool], str] = {
    ("pass", False): "shown not to be worse",
    ("unknown", False): "not shown",
    ("fail", False): "worse by more than the margin",
    ("pass", True): "shown to be the same",
    ("unknown", True): "not shown",
    ("fail", True): "changed by more than the margin",
}


def _judged(benefit: float, low: float, high: float, margin: float, *, two_way: bool) -> Result:
    if two_way:
        if low > -margin and high < margin:
            return "pass"
        return "fail" if high < -margin or low > margin else "unknown"
    return "pass" if low > -margin else "fail" if high < -margin else "unknown"


def _settle_tasks(
    pair: Paired, benefit: float, reach: float, margin: float, judged: Result, *, two_way: bool
) -> dict[str, object]:
    if judged != "unknown":
        return {}
    room = margin - abs(benefit) if two_way else benefit + margin
    if room <= 0:
        return {"needed": f"another candidate: more tasks would not do for {pair.metric}, seen beyond its margin"}
    # Errors fall with the square root, and families must grow with the tasks.
    more = math.ceil(pair.tasks * ((reach / room) ** 2 - 1))
    return {
        "more": more,
        "needed": f"{more} more tasks of {pair.suite}, and of families in proportion, if the difference in "
        f"{pair.metric} stays",
    }


def _settle_users(
    benefit: float, reach: float, margin: float, judged: Result, n: int, *, two_way: bool
) -> dict[str, object]:
    if judged != "unknown":
        return {}
    room = margin - abs(benefit) if two_way else benefit + margin
    if room <= 0:
        return {"needed": "another candidate: more users would not do for what was seen beyond its margin"}
    more = math.ceil(n * ((reach / room) ** 2 - 1))
    return {"more": more, "needed": f"{more} more users, if the difference stays"}


# -- success -------------------------------------------------------------------------------------------------------


def _successes(evidence: Evidence, policy: Policy, faulty: frozenset[_Scope]) -> list[Check]:
    found = []
    alpha = policy.errors.success / max(1, len(policy.success))
    for number, asked in enumerate(policy.success):
        fields = {
            "code": ":".join(filter(None, (asked.suite, asked.metric, asked.against))),
            "part": "success",
            "rule": ("success", str(number)),
            "alpha": alpha,
            "unit": "users" if asked.suite is None else "tasks",
        }
        if asked.suite is None:
            effect = _effect(evidence, asked.metric, asked.against)
            usable = effect is not None and not _unusable(faulty, "experiment") and _sign(effect.better) != 0
            bounds = effect.bounds(alpha) if effect is not None and usable else None
            if effect is None or bounds is None:
                why = "not measured" if effect is None else effect.why or "not to be used"
                found.append(
                    Check.model_validate({**fields, "result": "unknown", "sentence": f"{asked.metric}: {why}"})
                )
                continue
            low, high = _towards(effect, bounds)
            said, numbers = _shifted(effect, asked.against), {"n": sum(effect.units.values())}
            benefit, ids = _sign(effect.better) * (effect.effect or 0.0), _experiment_id(evidence)
        else:
            pair = _pair(evidence, asked.suite, asked.metric, asked.against)
            why = _why_unknown(pair, policy, asked.suite, asked.metric, asked.against, two_way=False, faulty=faulty)
            if why or pair is None or pair.effect is None or pair.error is None:
                found.append(Check.model_validate({**fields, "result": "unknown", "sentence": why}))
                continue
            benefit = _sign(pair.better) * pair.effect
            reach = _quantile(1 - alpha, pair.clusters - 1) * pair.error
            low, high = benefit - reach, benefit + reach
            said, numbers = _told(pair), {"n": pair.tasks, "clusters": pair.clusters}
            ids = _ids(evidence, pair)
        shown = low > 0
        told = {
            "result": "pass" if shown else "unknown",
            "sentence": f"{said}: {'shown to be better' if shown else 'not shown to be better'} at {alpha:.2g}",
            "benefit": benefit,
            "low": low,
            "high": high,
            "evidence": ids,
        }
        found.append(Check.model_validate({**fields, **told, **numbers}))
    return found


# -- statistics and words ------------------------------------------------------------------------------------------


def not_worse(benefit: float, error: float, margin: float, alpha: float, df: float = math.inf) -> tuple[float, bool]:
    """Lower bound of a benefit, and whether it shows that the loss is smaller than the margin; df inf: normal."""
    low = benefit - _quantile(1 - alpha, df) * error
    return low, low > -margin


def same(effect: float, error: float, margin: float, df: float = math.inf) -> tuple[float, float]:
    """P-values of the two one-sided tests of "at least the margin below" and "at least the margin above"."""
    return float(stats.t.sf((effect + margin) / error, df)), float(stats.t.cdf((effect - margin) / error, df))


@lru_cache(maxsize=1024)
def _quantile(level: float, df: float) -> float:
    return float(stats.t.ppf(level, df))


@lru_cache(maxsize=16)
def _normal(level: float) -> float:
    return float(stats.norm.ppf(level))


def _below(benefit: float, error: float, df: float) -> float:
    """One-sided p-value of "not below 0"."""
    return float(special.stdtr(df, benefit / error))  # as stats.t.cdf, without its checks


def _sign(better: Better) -> int:
    return {"up": 1, "down": -1, "none": 0}[better]


def _worst(pair: Paired, benefit: float, reach: float, *, two_way: bool) -> str:
    if two_way:
        return f"{_amount(pair, abs(benefit) + reach)} apart"
    low = benefit - reach
    return f"{_amount(pair, -low)} worse" if low < 0 else f"{_amount(pair, low)} better"


def _lost(beyond: str, p: float, policy: Policy) -> str:
    return f"{'a' if p <= policy.errors.suites else 'no'} loss{beyond} is shown"


def _towards(effect: Effect, bounds: tuple[float, float]) -> tuple[float, float]:
    """Bounds of the benefit."""
    return bounds if effect.better == "up" else (-bounds[1], -bounds[0])


def _absolute(effect: Effect, margin: float, relative: bool) -> float | None:
    if not relative:
        return margin
    value = None if effect.values is None else effect.values.get(effect.control)
    return None if not value else margin * abs(value)


def _pair(evidence: Evidence, suite: str, metric: str, against: Against) -> Paired | None:
    for each in evidence.suites:
        if (each.suite, each.metric, each.against) == (suite, metric, against):
            return each
    return None


def _effect(evidence: Evidence, metric: str, against: Against) -> Effect | None:
    """The experiment's effect of the candidate's arm on a metric, against the arm of that checkpoint."""
    report = evidence.experiment
    other = evidence.champion if against == "champion" else evidence.anchor
    if report is None or other is None:
        return None
    for each in report.effects:
        arms = (report.arms.get(each.control), report.arms.get(each.treatment))
        if each.metric == metric and arms == (other, evidence.candidate):
            return each
    return None


def _too_few(pair: Paired, policy: Policy) -> bool:
    asked = policy.suites[pair.suite]
    known = pair.effect is not None and pair.error is not None and pair.error > 0
    return not known or pair.tasks < asked.min_tasks or pair.clusters < asked.min_clusters


def _why_unknown(
    pair: Paired | None,
    policy: Policy,
    suite: str,
    metric: str,
    against: Against,
    *,
    two_way: bool,
    faulty: frozenset[_Scope],
) -> str:
    """Why nothing can be said; empty where something can."""
    if pair is None:
        return f"{metric} of {suite} was not measured against the {against}"
    if _unusable(faulty, "all"):
        return f"{metric} of {suite}: the candidate itself is in doubt"
    if pair.why:
        return f"{metric} of {suite} against the {against}: {pair.why}"
    if not two_way and _sign(pair.better) == 0:
        return f"{metric} of {suite} has no good direction; the policy must name it as two_way"
    if _too_few(pair, policy):
        return (
            f"{metric} of {suite} against the {against}: {pair.tasks} tasks of {pair.clusters} families; "
            f"the policy asks for {_enough(policy, suite)}"
        )
    return ""


def _enough(policy: Policy, suite: str) -> str:
    asked = policy.suites[suite]
    return f"{asked.min_tasks} tasks of {asked.min_clusters} families"


def _ids(evidence: Evidence, pair: Paired) -> tuple[str, ...]:
    return f"{pair.suite}@{evidence.candidate}", f"{pair.suite}@{pair.other}"


def _experiment_id(evidence: Evidence) -> tuple[str, ...]:
    return () if evidence.experiment is None else (f"experiment:{evidence.experiment.name}",)


def _told(pair: Paired) -> str:
    assert pair.effect is not None
    ours, theirs = (_level(pair, value) for value in (pair.candidate_value, pair.other_value))
    return (
        f"{pair.metric.replace('_', ' ')} {theirs} of the {pair.against} -> {ours} on the same {pair.tasks} tasks "
        f"({_amount(pair, pair.effect, sign=True)})"
    )


def _level(pair: Paired, value: float | None) -> str:
    if value is None:
        return "?"
    return f"{100 * value:.1f} %" if pair.kind == "share" else f"{value:.3g}"


def _amount(pair: Paired, value: float, *, sign: bool = False) -> str:
    plus = "+" if sign else ""
    return f"{100 * value:{plus}.1f} points" if pair.kind == "share" else f"{value:{plus}.3g}"


def _shifted(effect: Effect, against: Against) -> str:
    values = effect.values or {}
    levels = [values.get(effect.control), values.get(effect.treatment)]
    shown = " -> ".join("?" if value is None else f"{value:.4g}" for value in levels)
    return f"{effect.metric.replace('_', ' ')} {shown} against the {against}, {sum(effect.units.values())} users"
