"""Who may ship: a gate turns evidence about a candidate into promote, hold or block.

`Gate` is the interface that the cycle knows. `EvaluationGate` is the simple one behind it: it looks at the evaluation
suites and nothing else. `palomar.trainer.promotion_gate` is the one that `palomar gate` asks too. Doubt never becomes a
pass: a suite that is missing, or too small, holds the candidate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal, Protocol

import numpy as np
from scipy import stats

from palomar.data.schema import content_id
from palomar.trainer.config import GateConfig
from palomar.trainer.evaluation import Direction, Evaluation, Metric, paired

Verdict = Literal["promote", "hold", "block"]
Result = Literal["pass", "fail", "unknown"]


@dataclass(frozen=True)
class GateDecision:
    """What a gate says about a candidate; its fields are those that `palomar.data.store.decisions` keeps of it."""

    verdict: Verdict
    reasons: tuple[str, ...]
    """Reason codes, the deciding one first: ``evaluation_regression:<suite>:<metric>``, ``no_regression``, ..."""
    evidence: dict[str, Any]
    """Plain values, for the decision's record."""
    kind: Literal["improved", "neutral"] | None = None
    """Of a promotion; None where the gate does not tell."""
    sentence: str = ""
    """For people; empty where the gate has none."""
    inputs: dict[str, Any] | None = None
    """All that the rule was given, so that it can be asked again; None where that is not kept."""
    policy_text: str | None = None
    """The policy, word for word; None where it has no text."""
    expires_at: datetime | None = None
    """Of a hold: until when it stands."""


@dataclass(frozen=True)
class Evidence:
    """What is known about a candidate and the champion it would replace."""

    candidate: Mapping[str, Evaluation]
    """Evaluations by suite."""
    champion: Mapping[str, Evaluation]
    hacks: tuple[str, ...] = ()
    """Reward hacks that the candidate's reward still pushes, as reason codes: they block. Empty where the run only
    observes (`palomar.trainer.response`)."""
    holds: tuple[str, ...] = ()
    """Further reasons to hold it back: ``reward_changed`` where what it was trained on is paid no more."""


class Gate(Protocol):
    """Anything that decides."""

    policy: str
    """Version of its rule, kept with every decision."""

    def decide(self, evidence: Evidence) -> GateDecision:
        """The same evidence always gives the same decision."""
        ...

    def watch(self, champion: str, cycle: int) -> GateDecision | None:
        """The same tests on the champion that served in a cycle: the decision to take it back; None: it stays."""
        ...


@dataclass(frozen=True)
class Comparison:
    """One metric, candidate against champion, on the tasks to which it applies for both."""

    suite: str
    metric: str
    result: Result
    """``fail``: significantly worse; ``unknown``: too few tasks to say anything."""
    tasks: int
    candidate: float | None
    """Mean over those tasks; None without any."""
    champion: float | None
    p_worse: float | None
    """One-sided p-value of "no worse than the champion"; None where it was not tested."""


class EvaluationGate:
    """Blocks a candidate that an evaluation suite shows to be worse, task by task; see the module's docstring.

    Only metrics that the config names and that have a good direction are tested. Shares are compared by McNemar's
    exact test, means by the paired t-test, both one-sided; ``alpha`` is divided by the number of comparisons
    (Bonferroni).
    """

    def __init__(self, suites: tuple[str, ...], config: GateConfig) -> None:
        self.suites = suites
        self.config = config
        self.policy = f"evaluation-{content_id(repr(sorted(suites)), repr(config))[:8]}"

    def decide(self, evidence: Evidence) -> GateDecision:
        """Block on a hack or a significant regression; else hold while anything is missing; else promote."""
        reasons_hold = list(evidence.holds)
        pairs: list[tuple[Metric, Evaluation, Evaluation]] = []
        for name in self.suites:
            candidate, champion = evidence.candidate.get(name), evidence.champion.get(name)
            if candidate is None or champion is None:
                reasons_hold.append(f"evaluation_missing:{name}")
            elif [result.task_id for result in candidate.results] != [result.task_id for result in champion.results]:
                reasons_hold.append(f"evaluation_not_comparable:{name}")
            else:
                pairs += [(metric, candidate, champion) for metric in candidate.metrics if self._asks(metric)]
        if not pairs and len(reasons_hold) == len(evidence.holds):
            reasons_hold.append("evaluation_missing")
        comparisons = [
            self._compare(metric, candidate, champion, self.config.alpha / len(pairs))
            for metric, candidate, champion in pairs
        ]
        failed = list(evidence.hacks)
        failed += [f"evaluation_regression:{c.suite}:{c.metric}" for c in comparisons if c.result == "fail"]
        reasons_hold += [f"evaluation_too_small:{c.suite}:{c.metric}" for c in comparisons if c.result == "unknown"]
        details: dict[str, Any] = {"comparisons": [asdict(comparison) for comparison in comparisons]}
        if failed:
            return GateDecision("block", tuple(failed + reasons_hold), details)
        if reasons_hold:
            return GateDecision("hold", tuple(reasons_hold), details)
        return GateDecision("promote", ("no_regression",), details)

    def watch(self, champion: str, cycle: int) -> GateDecision | None:
        """Nothing: suites say the same of a checkpoint after its promotion as before."""
        return None

    def _asks(self, metric: Metric) -> bool:
        return metric.name in self.config.metrics and metric.better != "none"

    def _compare(self, metric: Metric, candidate: Evaluation, champion: Evaluation, alpha: float) -> Comparison:
        new, old = paired(metric.name, candidate, champion)
        known = len(new) >= self.config.min_tasks
        p_worse = p_value(new, old, metric.kind == "share", metric.better) if known else None
        return Comparison(
            suite=candidate.suite,
            metric=metric.name,
            result="unknown" if p_worse is None else "fail" if p_worse < alpha else "pass",
            tasks=len(new),
            candidate=float(np.mean(new)) if new else None,
            champion=float(np.mean(old)) if old else None,
            p_worse=p_worse,
        )


def p_value(new: list[float], old: list[float], is_share: bool, better: Direction) -> float:
    """One-sided p-value of "`new` is no worse than `old`", paired; small where it is worse."""
    worse = np.subtract(old, new) if better == "up" else np.subtract(new, old)
    if is_share:
        losses, wins = int((worse > 0).sum()), int((worse < 0).sum())
        if losses + wins == 0:
            return 1.0
        return float(stats.binomtest(losses, losses + wins, alternative="greater").pvalue)
    if np.ptp(worse) == 0:
        # The t-test of a constant is 0/0; a difference that is the same on every task has nothing to do with chance.
        return 0.0 if worse[0] > 0 else 1.0
    return float(stats.ttest_1samp(worse, 0.0, alternative="greater").pvalue)
