"""Flags groups that train on a side term alone: all answers failed the task, and the shorter ones are praised for it.

For: filters on the variance of the *shaped* reward. A group in which every answer is wrong has no difference in the
task's term, but a length or latency term makes one; after scaling by the group's spread it weighs as much as any other.

The task's term is the one that makes most of the rewards' variance, over the reference and the cycle (with the spec's
weights where the spec is known). Fires where groups in which that term is equal, and at its lowest, make up `MARGIN` of
the sum of absolute advantages or more, and are `FEWEST` or more.

Errors: no test; a share of what was trained on, with a margin.

Blind to: logs without groups, without terms, or with one term; a task's term that is never equal, and one that varies
less than a side term throughout (then the side term is taken for the task).

Source: NVIDIA-NeMo/RL#2431.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from palomar.data.findings import Cause, Evidence, Finding, Report, Unassessed
from palomar.detectors.checks._examples import rows, samples
from palomar.detectors.checks._examples import view as example_view
from palomar.detectors.checks._shares import before_cycle, percent, quoted
from palomar.detectors.detector import Example, View, detector

Floats = npt.NDArray[np.float64]

NAME = "side-terms"
MARGIN = 0.1
"""Share of the absolute advantages that is told."""
FEWEST = 10
"""Groups."""


def _shaped(folder: Path, *, filtered_by: str) -> View:
    """Groups of four, a third of them all wrong, under a reward of correctness and a little length."""
    made = example_view(folder, [*map(_groups_of_four, range(4))], reference=range(3))
    table = _groups_of_four(3)
    right, reward = (np.asarray(table[name]).reshape(-1, 4) for name in ("term:correct", "reward"))
    decides = right if filtered_by == "correct" else reward
    kept = np.repeat(np.ptp(decides, axis=1) > 0, 4)
    advantage = (reward - reward.mean(axis=1, keepdims=True)) / np.maximum(reward.std(axis=1, keepdims=True), 1e-9)
    made.lake.append_samples(
        samples(
            table, 3, trained=kept, weight=kept.astype(float), advantage=np.where(kept, advantage.ravel(), np.nan),
            baseline=np.where(kept, np.repeat(reward.mean(axis=1), 4), np.nan),
            reason=[None if each else "no_spread" for each in kept],
        ), 3,
    )  # fmt: skip
    return made


def _groups_of_four(cycle: int) -> pa.Table:
    rng = np.random.default_rng(cycle + 31)
    right = (rng.random(400) < 0.6) & np.repeat(rng.random(100) < 0.66, 4)
    length = -0.1 * rng.random(400)
    terms: dict[str, Any] = {"term:correct": right.astype(float), "term:length": length}
    return rows(cycle, group_id=[f"g{index // 4}" for index in range(400)], reward=right + length, **terms)


EXAMPLES = [
    Example("the filter looks at the shaped reward", lambda folder: _shaped(folder, filtered_by="reward"), "fires"),
    Example("the filter looks at the task", lambda folder: _shaped(folder, filtered_by="correct"), "clear"),
    Example("no groups", lambda folder: example_view(folder, [*map(rows, range(4))]), "not_assessable"),
]


@detector(NAME, examples=EXAMPLES)
def side_terms(view: View) -> Report:
    """One finding where such groups make up much of the update."""
    weights = _weights(view)
    terms = sorted(name for name in view.columns() if name.startswith("term:") and weights.get(name, 1.0) != 0)
    if len(terms) < 2:
        return Report(
            NAME, unassessed=(Unassessed("side terms", f"it takes two reward terms; there are {len(terms)}"),)
        )
    table = _trained(view, terms)
    groups = table["group_id"].combine_chunks().dictionary_encode().indices
    group = np.asarray(groups, dtype=np.int64)
    sizes = np.bincount(group) if len(group) else np.zeros(0, dtype=np.int64)
    if (sizes >= 2).sum() < FEWEST:
        why = f"{int((sizes >= 2).sum())} groups with two rows that were trained on; it takes {FEWEST}"
        return Report(NAME, unassessed=(Unassessed("side terms", why),))
    task = _task(view, terms, weights)
    if task is None:
        return Report(NAME, unassessed=(Unassessed("side terms", "no term differs between rows"),))
    values = {name: _numbers(table[name]) for name in terms}
    amount = np.abs(_numbers(table["advantage"]))
    low = float(np.nanmin(values[task]))
    least, most = _extremes(np.where(np.isnan(values[task]), low, values[task]), group, len(sizes))
    failed = (least == most) & (least == low) & (sizes >= 2) & (np.bincount(group, weights=amount) > 0)
    share = float(amount[failed[group]].sum() / amount.sum()) if amount.sum() > 0 else 0.0
    power = f"{percent(MARGIN)} of the absolute advantages"
    if failed.sum() < FEWEST or share < MARGIN:
        return Report(NAME, assessed=1, power=power)
    inside = failed[group]
    side = max((name for name in terms if name != task), key=lambda name: _within(values[name], group, inside))
    ids = np.asarray(table["interaction_id"].to_pylist(), dtype=object)
    order = np.flatnonzero(inside)[np.argsort(-amount[inside], kind="stable")]
    finding = Finding(
        detector=NAME,
        severity="warns",
        sentence=(
            f"{int(failed.sum()):,} of {int((sizes >= 2).sum()):,} groups trained on failed the task altogether "
            f"({task} is {low:g} in all their rows) and carry {percent(share)} of the advantages: what they teach "
            f"comes from {side}"
        ),
        statistic=task,
        unit="share of absolute advantages",
        after=share,
        threshold=MARGIN,
        error_control="no test: a share of what was trained on",
        n=len(group),
        since=view.cycle,
        reading="forewarning",
        causes=(Cause(side, "all", share, 1.0),),
        evidence=Evidence(tuple(ids[order[:5]]), (), tuple(ids[~inside][:1])),
        detail={"task": task, "side": side, "groups": int(failed.sum())},
    )
    return Report(NAME, (finding,), 1, power=power)


def _weights(view: View) -> Mapping[str, float]:
    """Weight of each term in the spec of the cycle's rewards; empty where it is not known."""
    versions = view.query("SELECT DISTINCT reward_version AS v FROM observations")["v"].to_pylist()
    specs = [view.specs[version] for version in versions if version in view.specs]
    return {f"term:{term.name}": term.weight for spec in specs for term in spec.terms}


def _task(view: View, terms: list[str], weights: Mapping[str, float]) -> str | None:
    """The term that makes most of the rewards' variance."""
    variance = dict.fromkeys(terms, 0.0)
    for cycle in (*before_cycle(view), view.cycle):
        known = [name for name in terms if name in view.columns(cycles=[cycle])]
        if known:
            listed = ", ".join(f"var_pop({quoted(name)}) AS v{index}" for index, name in enumerate(known))
            row = view.query(f"SELECT {listed} FROM observations", [cycle]).to_pylist()[0]
            for index, name in enumerate(known):
                variance[name] += weights.get(name, 1.0) ** 2 * (row[f"v{index}"] or 0.0)
    best = max(terms, key=lambda name: variance[name])
    return best if variance[best] > 0 else None


def _trained(view: View, terms: list[str]) -> pa.Table:
    """Rows in groups that were trained on: by the trainer's word, else by the inclusion rules with r - mean."""
    listed = ", ".join(quoted(name) for name in terms)
    logged = view.cycle is not None and view.cycle in view.lake.cycles("samples")
    if not logged:
        return view.query(
            f"SELECT interaction_id, group_id, reward - avg(reward) OVER (PARTITION BY group_id) AS advantage, "
            f"{listed} FROM observations WHERE group_id IS NOT NULL AND reward_status = 'valid' "
            "AND included IS NOT FALSE"
        )
    offered = view.lake.scan("samples", ("interaction_id", "trained", "advantage"), cycles=[view.cycle])
    with view.lake.connect(["observations"], [view.cycle]) as connection:
        connection.register("offered", offered)
        return connection.execute(
            f"SELECT interaction_id, group_id, advantage, {listed} FROM observations JOIN offered "
            "USING (interaction_id) WHERE trained AND group_id IS NOT NULL ORDER BY interaction_id"
        ).to_arrow_table()


def _numbers(column: pa.ChunkedArray) -> Floats:
    return np.asarray(column.to_numpy(), dtype=np.float64)


def _extremes(values: Floats, group: npt.NDArray[np.int64], count: int) -> tuple[Floats, Floats]:
    least, most = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(least, group, values)
    np.maximum.at(most, group, values)
    return least, most


def _within(values: Floats, group: npt.NDArray[np.int64], inside: npt.NDArray[np.bool_]) -> float:
    """Variance of a term within the groups in question."""
    known = inside & np.isfinite(values)
    if not known.any():
        return 0.0
    count = np.bincount(group, weights=known)
    mean = np.bincount(group, weights=np.where(known, values, 0.0)) / np.maximum(count, 1)
    return float(((values - mean[group])[known] ** 2).mean())
