"""A candidate beside others, task by task, on the suites that they all did: what changed, and what it means.

The champion that it was trained from says what one update did; the *anchor*, the policy that served the baseline, says
what all updates since have come to, which is where slow changes show. A difference is read by the pressures of the
cycles that trained it (`palomar.detectors.checks.behaviour`), where its metric measures a behaviour that has some.

Errors: over all metrics of one comparison at most 5 % (Holm; `palomar.detectors.paired`).

Blind to: what the suites do not ask; what users would have made of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pyarrow as pa

from palomar.data.errors import StoreError
from palomar.data.findings import Cause, Finding, Reading, Report, Severity, Unassessed
from palomar.data.store import Store
from palomar.data.store.records import Checkpoint
from palomar.detectors.checks.behaviour import read_learnt
from palomar.detectors.detector import View
from palomar.detectors.paired import ALPHA, Comparison, Difference, compare
from palomar.detectors.statistics import Statistic
from palomar.trainer.evaluation import Evaluation, Metric

NAME = "candidate"
CONTROL = f"family-wise error {ALPHA:g} over all metrics (Holm)"


def evaluations(home: Path, checkpoint: str) -> dict[str, Evaluation]:
    """Suites that a checkpoint was run on, by name; empty where it was run on none."""
    found = [
        Evaluation.from_json(path.read_text("utf-8")) for path in (home / "evaluations" / checkpoint).glob("*.json")
    ]
    return {evaluation.suite: evaluation for evaluation in found}


def others(store: Store, run_id: str, candidate: str) -> tuple[Checkpoint, dict[str, Checkpoint]]:
    """The candidate, and what it is compared with: its champion and the run's base, where those are two.

    Raises StoreError for a checkpoint that the run does not have.
    """
    known = {each.checkpoint_id: each for each in store.checkpoints.read(run_id)}
    if candidate not in known:
        raise StoreError(run_id, f"has no checkpoint {candidate!r}")
    chosen = known[candidate]
    compared: dict[str, Checkpoint] = {}
    if chosen.parent_id is not None:
        compared["champion"] = known[chosen.parent_id]
    base = next((each for each in known.values() if each.cycle is None), None)
    if base is not None and base.checkpoint_id not in (candidate, chosen.parent_id):
        compared["anchor"] = base
    return chosen, compared


def candidate_report(
    view: View | None, home: Path, candidate: Checkpoint, compared: Mapping[str, Checkpoint]
) -> Report:
    """Metrics in which the candidate differs from those it is compared with. `view`: of the cycle that trained it."""
    own = evaluations(home, candidate.checkpoint_id)
    findings: list[Finding] = []
    unassessed: list[Unassessed] = []
    assessed, power = 0, ""
    if not own:
        unassessed.append(Unassessed("everything", f"checkpoint {candidate.checkpoint_id} was run on no suite"))
    for role, other in compared.items():
        beside = evaluations(home, other.checkpoint_id)
        for suite, evaluation in own.items():
            if suite not in beside:
                unassessed.append(Unassessed(f"{suite} against the {role}", f"the {role} was not run on it"))
                continue
            metrics = {metric.name: metric for metric in evaluation.metrics}
            comparison = compare_suites(beside[suite], evaluation)
            for difference in comparison.differences:
                if difference.status != "ok":
                    why = (
                        "no task counts on both sides"
                        if difference.status == "no_pairs"
                        else "too few families of tasks"
                    )
                    unassessed.append(Unassessed(f"{difference.statistic} against the {role}", why))
                    continue
                assessed += 1
                if difference.differs:
                    findings.append(_finding(view, role, suite, metrics[difference.statistic], difference))
            if role == "champion":
                power = _power(comparison)
    return Report(NAME, tuple(findings), assessed, tuple(unassessed), power)


def compare_suites(before: Evaluation, after: Evaluation) -> Comparison:
    """Every metric of a suite, paired by task and clustered by family."""
    statistics = [
        Statistic(
            name=metric.name,
            title=metric.title,
            unit="share of tasks" if metric.kind == "share" else "per task",
            kind="rate" if metric.kind == "share" else "mean",
            numerator=f'"{metric.name}"' if metric.kind == "mean" else f'"{metric.name}" > 0.5',
            good="neither" if metric.better == "none" else metric.better,
            description=metric.title,
        )
        for metric in after.metrics
    ]
    tables = [_table(evaluation) for evaluation in (before, after)]
    return compare(*tables, key="task_id", cluster="family", statistics=statistics)


def _table(evaluation: Evaluation) -> pa.Table:
    results = evaluation.results
    columns = {
        metric.name: pa.array([result.metrics.get(metric.name) for result in results], pa.float64())
        for metric in evaluation.metrics
    }
    return pa.table(
        {
            "task_id": pa.array([result.task_id for result in results], pa.string()),
            "family": pa.array([result.cluster for result in results], pa.string()),
            **columns,
        }
    )


def _finding(view: View | None, role: str, suite: str, metric: Metric, difference: Difference) -> Finding:
    assert difference.effect is not None
    assert difference.champion is not None
    assert difference.candidate is not None
    side: Literal[1, -1] = 1 if difference.effect > 0 else -1
    worse = (metric.better, side) in (("up", -1), ("down", 1))
    severity: Severity = "warns" if worse else "notes"
    reading: Reading | None = None
    said = ""
    causes: tuple[Cause, ...] = ()
    if metric.measures is not None and view is not None:
        told, causes, against = read_learnt(view, metric.measures, side)
        # On the same tasks nothing changed but the policy, so that it cannot have come from outside.
        reading = None if told.reading == "outside_change" else told.reading
        said = f"; {told.why}"
        if reading == "reward_hack":
            severity = "blocks" if against else "warns"
    return Finding(
        detector=NAME,
        severity=severity,
        sentence=f"{metric.title.lower()}: {_figure(metric, difference.champion)} of the {role} -> "
        f"{_figure(metric, difference.candidate)}, on the same {difference.n} tasks of {suite} "
        f"(p {difference.p_adjusted:.2g} after Holm){said}",
        statistic=metric.name,
        slice=role,
        unit=difference.unit,
        before=difference.champion,
        after=difference.candidate,
        effect=difference.effect,
        low=difference.low,
        high=difference.high,
        test=difference.p_adjusted,
        threshold=ALPHA,
        error_control=CONTROL,
        n=difference.n,
        smallest=difference.smallest,
        reading=reading,
        causes=causes,
        detail={"direction": side, "suite": suite, "method": difference.method, "clusters": difference.clusters},
    )


def _figure(metric: Metric, value: float) -> str:
    return f"{100 * value:.1f} %" if metric.kind == "share" else f"{value:.3g}"


def _power(comparison: Comparison) -> str:
    shown = [
        f"{difference.statistic} {difference.smallest:.3g}"
        for difference in comparison.differences
        if difference.smallest is not None
    ]
    return (
        f"would have seen, four times of five, a difference from the champion of: {'; '.join(shown)}" if shown else ""
    )
