"""How often the gate's rule is wrong, on simulated candidates of which the truth is known: the rule itself, no copy.

Suites: tasks in families, yes-or-no, both sides on the same tasks; a family's difference is partly its own. What is
computed from them (difference, error clustered by family, floor of Agresti and Min) is what
`palomar.trainer.gate_evidence` computes, for many candidates at once; a test holds the two together. Experiments: the
difference of two arms as it grows, looked at ten times, decided on at each look.

"Worse by the margin" is the least favourable case: that metric exactly at its margin, all others far better and known
exactly, so that nothing else holds the candidate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt
from scipy import stats

from palomar.app.bench import Measure
from palomar.detectors.experiment import Effect, ExperimentReport, Validity
from palomar.trainer.gate_policy import Against, Policy, PolicyText
from palomar.trainer.promotion import CheckEvidence, CycleEvidence, Evidence, Kind, Paired, Word, decide

Floats = npt.NDArray[np.float64]

SEED = 20
FAMILIES = 24
SUITE = """
name: bench
suites:
  s:
    guardrails:
      solved: {champion: 0.08, anchor: 0.10}
      calls: {champion: 0.08, anchor: 0.10}
      asked: {champion: 0.08, anchor: 0.10}
    two_way:
      size: {champion: 0.08}
success:
  - {suite: s, metric: solved, against: milestone}
  - {suite: s, metric: calls, against: milestone}
errors: {suites: 0.01}
"""
LIVE = """
name: bench-live
experiment:
  guardrails:
    kept: {champion: 0.02, anchor: 0.04}
    content: {champion: 0.02, anchor: 0.04}
success:
  - {metric: kept}
"""
CHAIN = """
name: bench-chain
suites:
  s:
    guardrails:
      solved: {champion: 0.01ANCHOR}
neutral_in_a_row: 1000
errors: {suites: 0.01}
"""
METRICS = ("solved", "calls", "asked")
LOOKS = 10
PLANNED = 40_000
"""Users of both arms at the last look."""


def measure(quick: bool) -> list[Measure]:
    """Error rates, the chain of promotions, and a power table; `quick` takes a tenth of the candidates."""
    candidates = 200 if quick else 2_000
    rng = np.random.default_rng(SEED)
    suite, live = PolicyText(SUITE, "bench").policy, PolicyText(LIVE, "bench").policy
    return [
        *_suite_errors(rng, suite, candidates),
        *_live_errors(rng, live, candidates),
        *_chains(rng, 40 if quick else 1_000),
        *_power(rng, candidates),
    ]


# -- suites --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Truth:
    """What a candidate really is, as changes of shares against the other checkpoint."""

    worse: tuple[tuple[str, Against, float], ...] = ()
    """Losses; all other guardrails gain `rest`."""
    rest: float = 0.0
    size: float = 0.0
    gain: float = 0.0
    """Of both success metrics against the milestone."""


def _suite_errors(rng: np.random.Generator, policy: Policy, candidates: int) -> Iterator[Measure]:
    bar = policy.errors
    at_margin = Truth(worse=(("solved", "champion", 0.08),), rest=0.2, gain=0.2)
    yield _rate(
        "promoted though a guardrail is worse than the champion by its margin",
        [word == "promote" for word, _ in _decided(rng, policy, at_margin, candidates)],
        bar.guardrail,
        "256 tasks of 24 families; 8 points",
    )
    at_anchor = Truth(worse=(("solved", "anchor", 0.10),), rest=0.2, gain=0.2)
    yield _rate(
        "promoted though a guardrail is worse than the anchor by its margin",
        [word == "promote" for word, _ in _decided(rng, policy, at_anchor, candidates)],
        bar.guardrail,
        "10 points",
    )
    yield _rate(
        "promoted though a two-way metric changed by its margin",
        [word == "promote" for word, _ in _decided(rng, policy, Truth(rest=0.2, size=0.08, gain=0.2), candidates)],
        bar.equivalence,
        "8 points",
    )
    same = _decided(rng, policy, Truth(), candidates)
    yield _rate("blocked by suites though nothing is worse", [word == "block" for word, _ in same], bar.suites, "")
    better = _decided(rng, policy, Truth(rest=0.2), candidates)
    yield _rate(
        "called improved though no success metric is", [kind == "improved" for _, kind in better], bar.success, ""
    )


def _decided(
    rng: np.random.Generator, policy: Policy, truth: Truth, candidates: int, tasks: int = 256
) -> list[tuple[Word, Kind | None]]:
    """The rule's word on so many candidates."""
    losses = {(metric, against): loss for metric, against, loss in truth.worse}
    asked: list[tuple[str, Against, float]] = []
    for metric in METRICS:
        asked += [(metric, against, -losses.get((metric, against), -truth.rest)) for against in ("champion", "anchor")]
    asked += [("size", "champion", truth.size)]
    asked += [(metric, "milestone", truth.gain) for metric in METRICS[:2]]
    drawn = []
    for name, against, change in asked:
        at_stake = (name, against) in losses or against == "milestone" or (name == "size" and truth.size != 0)
        # What is not at stake must not hold a candidate: known exactly, where the case says how good it is.
        exact = np.full(candidates, change), np.full(candidates, 0.001)
        drawn.append(
            (name, against, *(paired(rng, change, candidates, tasks) if at_stake or not truth.rest else exact))
        )
    said = []
    for number in range(candidates):
        pairs = [_pair(name, against, e[number], s[number], tasks) for name, against, e, s in drawn]
        outcome = decide(_evidence(pairs), policy)
        said.append((outcome.verdict, outcome.kind))
    return said


def paired(rng: np.random.Generator, change: float, candidates: int, tasks: int) -> tuple[Floats, Floats]:
    """Difference and its error for so many candidates: (candidates,) each.

    Of each task it is drawn whether the two disagree and who is right; a family leans to one side by its own amount.
    """
    disagree = 0.25
    lean = rng.normal(0.0, 0.05, (candidates, FAMILIES, 1))
    lost = np.clip((disagree - change - lean) / 2, 0.0, 0.5)
    gained = np.clip((disagree + change + lean) / 2, 0.0, 0.5)
    drawn = rng.random((candidates, FAMILIES, -(-tasks // FAMILIES)))
    differences = ((drawn > 1 - gained).astype(np.float64) - (drawn < lost)).reshape(candidates, FAMILIES, -1)
    return estimates(differences)


def estimates(differences: Floats) -> tuple[Floats, Floats]:
    """Mean and error clustered by family of paired differences, (candidates, families, tasks) -> (candidates,) each."""
    n = differences.shape[1] * differences.shape[2]
    effect = differences.mean(axis=(1, 2))
    sums = (differences - effect[:, None, None]).sum(axis=2)
    clusters = differences.shape[1]
    error = np.sqrt(clusters / (clusters - 1) * (sums**2).sum(axis=1)) / n
    plus, minus = ((differences * side > 0).sum(axis=(1, 2)) + 0.5 for side in (1, -1))
    least = np.sqrt(plus + minus - (plus - minus) ** 2 / (n + 2)) / (n + 2)
    return effect, np.maximum(error, least)


# -- an experiment -------------------------------------------------------------------------------------------------


def _live_errors(rng: np.random.Generator, policy: Policy, candidates: int) -> Iterator[Measure]:
    bar = policy.errors
    worse = _looked_at(rng, policy, {("kept", "champion"): -0.02}, 0.05, candidates)
    note = f"{LOOKS} looks up to {PLANNED:,} users; 2 points"
    yield _rate("promoted at any look though the experiment's guardrail is worse by its margin", worse[0], 0.05, note)
    same = _looked_at(rng, policy, {}, 0.0, candidates)
    yield _rate("blocked at any look though nothing is worse", same[1], bar.deterioration, f"{LOOKS} looks")
    yield _rate("called improved at any look though nothing is", same[2], bar.success, f"{LOOKS} looks")


def _looked_at(
    rng: np.random.Generator, policy: Policy, truth: dict[tuple[str, str], float], rest: float, candidates: int
) -> tuple[list[bool], list[bool], list[bool]]:
    """Whether each candidate was promoted, blocked, called improved at any look."""
    comparisons = [(metric, arm) for metric in ("kept", "content") for arm in ("champion", "anchor")]
    units = PLANNED // LOOKS
    per_unit = 2 * 0.45  # of a difference of two arms with a share near 0.7, times the root of all users
    steps = rng.normal(0.0, per_unit / np.sqrt(units), (candidates, len(comparisons), LOOKS))
    means = np.cumsum(steps, axis=2) / np.arange(1, LOOKS + 1)
    ever: tuple[list[bool], list[bool], list[bool]] = ([], [], [])
    for number in range(candidates):
        words: list[tuple[Word, Kind | None]] = []
        for look in range(LOOKS):
            seen = (look + 1) * units
            effects = tuple(
                _effect(metric, arm, truth.get((metric, arm), rest) + means[number, at, look], seen, per_unit)
                for at, (metric, arm) in enumerate(comparisons)
            )
            outcome = decide(_evidence((), _report(effects)), policy)
            words.append((outcome.verdict, outcome.kind))
        ever[0].append(any(word == "promote" for word, _ in words))
        ever[1].append(any(word == "block" for word, _ in words))
        ever[2].append(any(kind == "improved" for _, kind in words))
    return ever


def _effect(metric: str, arm: str, value: float, seen: int, per_unit: float) -> Effect:
    return Effect(
        metric=metric,
        better="up",
        control=arm,
        treatment="new",
        effect=value,
        low=None,
        high=None,
        relative=None,
        relative_low=None,
        relative_high=None,
        units={arm: seen // 2, "new": seen // 2},
        alpha=0.05,
        status="known",
        why="",
        values={arm: 0.7, "new": 0.7 + value},
        error=per_unit / np.sqrt(seen),
        planned=PLANNED,
    )


def _report(effects: Sequence[Effect]) -> ExperimentReport:
    arms = {"champion": "old", "anchor": "base", "new": "new"}
    return ExperimentReport("bench", arms, tuple(effects), (Validity("sample_ratio", "pass", None, None, ""),), NOW)


# -- a chain of promotions -----------------------------------------------------------------------------------------

STEPS = 35
STEP_MEAN, STEP_SD, ERROR, ANCHOR_ERROR = -0.001, 0.004, 0.006, 0.0035
"""As in the simulation that the rule is compared with: steps of -0.1 % on average, errors of 0.6 % and 0.35 %."""


def _chains(rng: np.random.Generator, runs: int) -> Iterator[Measure]:
    """35 checkpoints in a row, each judged against the last that was promoted, under three rules."""
    steps = rng.normal(STEP_MEAN, STEP_SD, (runs, STEPS))
    noise = rng.normal(0.0, 1.0, (runs, STEPS, 2))
    champion = PolicyText(CHAIN.replace("ANCHOR", ""), "bench").policy
    both = PolicyText(CHAIN.replace("ANCHOR", ", anchor: 0.01"), "bench").policy
    for name, policy, aim in (
        ("no significant loser", None, None),
        ("not worse than the champion by 1 %", champion, None),
        ("not worse than champion and anchor by 1 %", both, 0.05),
    ):
        ends, promotions = _chain(policy, steps, noise)
        yield Measure(f"chain of {STEPS}, {name}: promotions", float(promotions.mean()), "", runs, (SEED,))
        yield Measure(f"chain of {STEPS}, {name}: true change at its end", 100 * float(ends.mean()), "%", runs, (SEED,))
        crept = float((ends < -0.01).mean())
        yield Measure(f"chain of {STEPS}, {name}: ends more than 1 % below the anchor", crept, "", runs, (SEED,), aim)


def _chain(policy: Policy | None, steps: Floats, noise: Floats) -> tuple[Floats, Floats]:
    """True change at the end of each run, and how many were promoted. Without a policy: unless significantly worse."""
    ends, promotions = np.zeros(len(steps)), np.zeros(len(steps))
    limit = stats.norm.ppf(0.025) * ERROR
    for run, (changes, errors) in enumerate(zip(steps, noise, strict=True)):
        for change, (ours, anchors) in zip(changes, errors, strict=True):
            seen = change + ERROR * ours
            if policy is None:
                promoted = seen > limit
            else:
                pairs = [_pair("solved", "champion", seen, ERROR, 10_000, clusters=5_000)]
                level = ends[run] + change + ANCHOR_ERROR * anchors
                pairs.append(_pair("solved", "anchor", level, ANCHOR_ERROR, 10_000, clusters=5_000))
                promoted = decide(_evidence(pairs), policy).verdict == "promote"
            if promoted:
                ends[run] += change
                promotions[run] += 1
    return ends, promotions


# -- power ---------------------------------------------------------------------------------------------------------


def _power(rng: np.random.Generator, candidates: int) -> Iterator[Measure]:
    """How often an equal candidate is let through, by margin and tasks."""
    for margin in (0.03, 0.05, 0.08):
        text = SUITE.replace("champion: 0.08", f"champion: {margin}").replace(
            "anchor: 0.10", f"anchor: {margin + 0.02}"
        )
        policy = PolicyText(text, "bench").policy
        for tasks in (256, 1_024, 4_096):
            some = max(50, candidates // 10)
            words = _decided(rng, policy, Truth(), some, tasks)
            share = float(np.mean([word == "promote" for word, _ in words]))
            yield Measure(
                f"an equal candidate is promoted, {tasks} tasks, {100 * margin:.0f} points", share, "", some, (SEED,)
            )


# -- shared --------------------------------------------------------------------------------------------------------

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def _rate(name: str, wrong: Sequence[bool], aim: float, note: str) -> Measure:
    """A rate with its 95 % interval, which may lie above what is stated as far as chance can carry it."""
    said = stats.binomtest(sum(wrong), len(wrong)).proportion_ci(method="wilson")
    interval = f"95 % {said.low:.4f}..{said.high:.4f}, stated {aim:g}"
    # The aim that the figure is held to is what a rate of exactly `aim` exceeds in one of a hundred such benchmarks.
    bar = stats.binom.ppf(0.99, len(wrong), aim) / len(wrong)
    return Measure(
        name,
        sum(wrong) / len(wrong),
        "",
        len(wrong),
        (SEED,),
        float(bar),
        note="; ".join(filter(None, (note, interval))),
    )


def _pair(name: str, against: Against, effect: float, error: float, tasks: int, *, clusters: int = FAMILIES) -> Paired:
    return Paired(
        suite="s",
        metric=name,
        against=against,
        other="old",
        better="none" if name == "size" else "up",
        kind="share",
        tasks=tasks,
        clusters=clusters,
        candidate_value=0.5,
        other_value=0.5,
        effect=effect,
        error=error,
    )


def _evidence(pairs: Sequence[Paired], report: ExperimentReport | None = None) -> Evidence:
    """Evidence in which all else is as it should be."""
    return Evidence(
        run_id="bench",
        candidate="new",
        status="candidate",
        champion="old",
        anchor="base",
        milestone="base",
        digests_match=True,
        cycle=CycleEvidence(
            cycle=9, ledger_adds_up=True, offered=100, reward_invalid=0, reward_waiting=0, largest_lag=0
        ),
        cycle_check=CheckEvidence(verdict="pass"),
        candidate_check=CheckEvidence(verdict="pass", assessed=1),
        incidents=(),
        suites=tuple(pairs),
        experiment=report,
        at=NOW,
    )
