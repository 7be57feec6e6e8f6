"""Flags advantages that do not follow from the rewards of the samples that were trained on.

For: a row without a reward that counts as 0 in its group's mean; a masked, padded or rejected rollout whose reward
still moves its peers. The rewards in the log are right, and what is learnt from them is something else.

A trainer's A = (r - b) / s is taken apart (see `palomar.reward.charges`): b as logged, or from two different rewards of
a group where only A is. It is then rebuilt from the rewards, under the rule that is right (mean of the rows that are
trained on, of the group, the batch or the rows that share the baseline; or of the others, leave-one-out) and under
those that are wrong. Only rows whose group holds rows that do not count can tell, and only those are asked. Fires where

- a **wrong rule** gives `MATCH` of these baselines, and no right one does;
- a row that is **not trained on** has a weight and an advantage, or one that is trained on has none, or no reward;
- `SIGNS` of the advantages or more have **the other sign** than reward less baseline.

Errors: rules are compared by equality to `TOLERANCE` of the rewards' spread, no tests; a coincidence would need rewards
whose means agree.

Blind to: baselines that follow from no such rule (a learnt critic, a moving average: "not assessable"), what clipping,
KL or length do to an advantage later, and samples of trainers that log only what they kept.

Source: huggingface/trl#5775, verl-project/verl#6310, PrimeIntellect-ai/prime-rl#1746.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from palomar.data.findings import Evidence, Finding, Report, Unassessed
from palomar.detectors.checks._examples import rows
from palomar.detectors.checks._examples import samples as example_samples
from palomar.detectors.checks._examples import view as example_view
from palomar.detectors.checks._shares import percent
from palomar.detectors.detector import Example, View, detector

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

NAME = "advantages-wrong"
TOLERANCE = 1e-3
"""Baselines are equal that differ by less than this share of the rewards' standard deviation."""
MATCH = 0.99
"""Share of the baselines that a rule must give."""
FEWEST = 10
"""Rows that can tell, at least."""
SIGNS = 0.01
"""Share of advantages with the wrong sign that is told."""
RIGHT = ("mean", "leave-one-out")
WRONG = {
    "dropped": "rows that are not trained on are counted in the baseline",
    "missing as 0": "rows without a reward are counted as 0 in the baseline",
    "dropped, missing as 0": "rows that are not trained on are counted in the baseline, those without a reward as 0",
}


def _grouped(folder: Path, rule: str, *, logged: bool = True, critic: bool = False) -> View:
    """Four cycles in groups of four; in the last one some rows are dropped or have no reward, under a rule."""
    made = example_view(folder, [*map(_groups_of_four, range(4))], reference=range(3))
    table = _groups_of_four(3)
    reward = np.asarray(table["reward"].to_numpy(zero_copy_only=False), dtype=float)
    group = np.arange(table.num_rows) // 4
    trained = np.asarray(table["included"]) & np.isfinite(reward)
    counted = {"right": trained, "dropped": np.isfinite(reward), "missing as 0": trained | ~np.isfinite(reward)}[rule]
    total = np.bincount(group, np.where(counted, np.nan_to_num(reward), 0.0))
    baseline = (total / np.bincount(group, counted.astype(float)))[group]
    if critic:
        baseline = 0.5 * np.asarray(table["predicted_failure"])
    advantage = np.where(trained, reward - baseline, np.nan)
    shown = np.where(trained, baseline, np.nan) if logged else np.full(len(reward), np.nan)
    made.lake.append_samples(example_samples(table, 3, baseline=shown, advantage=advantage), 3)
    return made


def _groups_of_four(cycle: int) -> pa.Table:
    rng = np.random.default_rng(cycle + 21)
    reward = rng.normal(0, 1, 400)
    missing, dropped = rng.random(400) < 0.08, rng.random(400) < 0.08
    return rows(
        cycle,
        group_id=[f"g{index // 4}" for index in range(400)],
        reward=np.where(missing, np.nan, reward),
        reward_status=pa.array(np.where(missing, "invalid", "valid")),
        included=~missing & ~dropped,
        exclusion=pa.array(np.where(missing, "reward_invalid", np.where(dropped, "masked", ""))),
    )


EXAMPLES = [
    Example("masked rollouts move their group", lambda folder: _grouped(folder, "dropped"), "fires"),
    Example("a reward that is missing counts as 0", lambda folder: _grouped(folder, "missing as 0"), "fires"),
    Example("only advantages are logged", lambda folder: _grouped(folder, "dropped", logged=False), "fires"),
    Example("the mean of those trained on", lambda folder: _grouped(folder, "right"), "clear"),
    Example("the same, only advantages logged", lambda folder: _grouped(folder, "right", logged=False), "clear"),
    Example("a learnt critic", lambda folder: _grouped(folder, "right", critic=True), "not_assessable"),
    Example("no samples", lambda folder: example_view(folder, [*map(rows, range(4))]), "not_assessable"),
]


@dataclass(frozen=True)
class _Batch:
    """What an update was offered, N rows."""

    ids: pa.ChunkedArray
    reward: Floats
    """NaN where there is none."""
    baseline: Floats
    advantage: Floats
    weight: Floats
    trained: Mask
    group: Ints
    """-1 where the row has none."""


@detector(NAME, examples=EXAMPLES)
def advantages_wrong(view: View) -> Report:
    """One finding for a wrong rule, one for rows that should not count, one for wrong signs."""
    batch = _batch(view)
    if isinstance(batch, str):
        return Report(NAME, unassessed=(Unassessed("advantages", batch),))
    findings = [found for found in (_strays(view, batch),) if found is not None]
    assessed = int(bool(findings))
    unassessed = []
    verdict = _rule(batch)
    if isinstance(verdict, str):
        unassessed.append(Unassessed("baselines", verdict))
    else:
        assessed += 1
        rule, share, telling, signs = verdict
        if rule in WRONG:
            findings.append(_wrong_rule(view, batch, rule, share, telling))
        if signs is not None and signs.sum() >= max(1, SIGNS * batch.trained.sum()):
            findings.append(_wrong_signs(view, batch, signs))
    power = "a rule that moves baselines by a thousandth of the rewards' spread" if assessed else ""
    return Report(NAME, tuple(findings), assessed, tuple(unassessed), power)


def _batch(view: View) -> _Batch | str:
    if view.cycle is None or view.cycle not in view.lake.cycles("samples"):
        return "the trainer logged no sample of this cycle"
    wanted = ("interaction_id", "sampled_cycle", "reward", "baseline", "advantage", "weight", "trained", "reason")
    offered = view.lake.scan("samples", wanted, cycles=[view.cycle])
    sampled = [cycle for cycle in offered["sampled_cycle"].unique().to_pylist() if cycle is not None]
    with view.lake.connect(["observations"], sorted({view.cycle, *sampled})) as connection:
        connection.register("offered", offered)
        table = connection.execute(
            "SELECT interaction_id, coalesce(offered.reward, CASE WHEN observations.reward_status = 'valid' "
            "THEN observations.reward END) AS reward, baseline, advantage, weight, trained, group_id "
            "FROM offered LEFT JOIN observations USING (interaction_id) "
            "WHERE offered.reason IS DISTINCT FROM 'reward_waiting'"
        ).to_arrow_table()
    numbers = {
        name: np.asarray(table[name].to_numpy(zero_copy_only=False), dtype=np.float64)
        for name in ("reward", "baseline", "advantage", "weight")
    }
    trained = np.asarray(table["trained"].to_numpy(zero_copy_only=False), dtype=np.bool_)
    if not trained.any():
        return "nothing was trained on"
    codes = table["group_id"].combine_chunks().dictionary_encode().indices.fill_null(-1)
    return _Batch(ids=table["interaction_id"], trained=trained, group=np.asarray(codes, dtype=np.int64), **numbers)


# -- rules -------------------------------------------------------------------------------------------------------


def _rule(batch: _Batch) -> tuple[str, float, Mask, Mask | None] | str:
    """Rule that the baselines follow, the share that it gives, the rows that can tell, and advantages of wrong sign."""
    known = batch.trained & np.isfinite(batch.reward)
    spread = float(batch.reward[known].std()) if known.any() else 0.0
    if spread == 0:
        return "the rewards trained on do not differ"
    grouped = bool((batch.group[batch.trained] >= 0).mean() > 0.5)
    group = np.where(batch.group >= 0, batch.group, batch.group.max(initial=-1) + 1 + np.arange(len(batch.group)))
    keys = {"group": group, "batch": np.zeros(len(group), dtype=np.int64)} if grouped else {
        "batch": np.zeros(len(group), dtype=np.int64)
    }  # fmt: skip
    logged = bool(np.isfinite(batch.baseline[known]).mean() > 0.5)
    signs = None
    if logged:
        centred = batch.reward - batch.baseline
        signs = known & (np.abs(centred) > TOLERANCE * spread) & (np.sign(centred) * np.sign(batch.advantage) < 0)
    best: tuple[str, float, Mask] | None = None
    for key in keys.values():
        baseline = batch.baseline if logged else _implied(batch, key, known)
        usable = known & np.isfinite(baseline)
        if usable.sum() < FEWEST:
            continue
        rules = _baselines(batch, key, known)
        if logged:
            _, peers = np.unique(np.where(usable, np.round(baseline / spread, 9), np.nan), return_inverse=True)
            rules["mean of its peers"] = _mean(batch.reward, peers.reshape(-1), usable)
        equal = {name: np.abs(value - baseline) <= TOLERANCE * spread for name, value in rules.items()}
        right = np.zeros(len(usable), dtype=np.bool_)
        for name in (*RIGHT, "mean of its peers"):
            right |= equal.get(name, False)
        plain = rules["mean"]
        apart = {name: usable & (np.abs(rules[name] - plain) > TOLERANCE * spread) for name in WRONG}
        telling = usable & np.logical_or.reduce(list(apart.values()))
        at = telling if telling.sum() >= FEWEST else usable
        share = float(right[at].mean())
        if share >= MATCH:
            return "right", share, telling, signs
        for name in WRONG:
            match = float(equal[name][at].mean())
            if apart[name].sum() >= FEWEST and match >= MATCH and (best is None or match > best[1]):
                best = (name, match, telling)
    if best is not None:
        return *best, signs
    return "the baselines follow from no rule that is known here (a learnt critic, a moving average)"


def _baselines(batch: _Batch, key: Ints, known: Mask) -> dict[str, Floats]:
    """Baseline of each row under each rule: (N,), NaN where there is none."""
    everyone = np.isfinite(batch.reward)
    zeroed = np.where(everyone, batch.reward, 0.0)
    count = np.bincount(key, weights=known)[key]
    mean = _mean(batch.reward, key, known)
    with np.errstate(divide="ignore", invalid="ignore"):
        left_out = np.where(count > 1, (mean * count - batch.reward) / (count - 1), np.nan)
    return {
        "mean": mean,
        "leave-one-out": left_out,
        "dropped": _mean(batch.reward, key, everyone),
        "missing as 0": _mean(zeroed, key, known | ~everyone),
        "dropped, missing as 0": _mean(zeroed, key, np.ones(len(key), dtype=np.bool_)),
    }


def _mean(values: Floats, key: Ints, counted: Mask) -> Floats:
    """Mean of the counted rows of each row's key; NaN where there are none."""
    total = np.bincount(key, weights=np.where(counted, np.nan_to_num(values), 0.0))
    count = np.bincount(key, weights=counted)
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Floats = (total / count)[key]
    return found


def _implied(batch: _Batch, key: Ints, known: Mask) -> Floats:
    """Baseline of each row from advantages alone: where the line through a key's rewards and advantages is 0."""
    usable = known & np.isfinite(batch.advantage)
    weight = usable.astype(np.float64)

    def mean(values: Floats) -> Floats:
        return _mean(values, key, usable)

    r, a = np.where(usable, batch.reward, 0.0), np.where(usable, batch.advantage, 0.0)
    over, up = mean(r), mean(a)
    cross, square = mean(weight * (r - over) * (a - up)), mean(weight * (a - up) ** 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.where(square > 1e-18, cross / square, np.nan)
        found: Floats = over - up * scale
    return found


# -- findings ----------------------------------------------------------------------------------------------------


def _wrong_rule(view: View, batch: _Batch, rule: str, share: float, telling: Mask) -> Finding:
    known = batch.trained & np.isfinite(batch.reward)
    spread = float(batch.reward[known].std())
    n = int(telling.sum())
    return Finding(
        detector=NAME,
        severity="warns",
        sentence=(
            f"{WRONG[rule]}: of {n:,} samples in groups where that can be told, {percent(share)} have exactly such a "
            f"baseline, of {int(batch.trained.sum()):,} trained on; their advantages do not follow from the rewards"
        ),
        statistic="baseline",
        unit="share of baselines",
        after=share,
        threshold=MATCH,
        error_control=f"no test: equality to {TOLERANCE:g} of the rewards' spread ({spread:.3g})",
        n=n,
        since=view.cycle,
        reading="measurement_fault",
        evidence=_evidence(batch, telling),
        detail={"hold": True, "rule": rule},
    )


def _strays(view: View, batch: _Batch) -> Finding | None:
    """Rows that are not trained on and count all the same, or the other way round."""
    paid = ~batch.trained & (batch.weight != 0) & (np.nan_to_num(batch.advantage) != 0)
    unpaid = batch.trained & (~np.isfinite(batch.reward) | ~np.isfinite(batch.advantage))
    if not paid.any() and not unpaid.any():
        return None
    parts = [
        f"{int(which.sum()):,} {what}"
        for which, what in (
            (paid, "samples that are left out have a weight and an advantage"),
            (unpaid, "samples that are trained on have no reward or no advantage"),
        )
        if which.any()
    ]
    return Finding(
        detector=NAME,
        severity="warns",
        sentence=f"{' and '.join(parts)}, of {len(batch.ids):,} offered",
        statistic="weights",
        unit="samples",
        after=float(paid.sum() + unpaid.sum()),
        error_control="no test: a count",
        n=len(batch.ids),
        since=view.cycle,
        reading="measurement_fault",
        evidence=_evidence(batch, paid | unpaid),
        detail={"hold": True},
    )


def _evidence(batch: _Batch, rows_: Mask) -> Evidence:
    """Five of the rows, those with the largest advantages, and by id where these are equal."""
    ids = np.asarray(batch.ids.filter(pa.array(rows_)).to_pylist(), dtype=object)
    order = np.lexsort((ids.astype(str), -np.abs(np.nan_to_num(batch.advantage[rows_]))))
    return Evidence(tuple(ids[order[:5]]))


def _wrong_signs(view: View, batch: _Batch, signs: Mask) -> Finding:
    return Finding(
        detector=NAME,
        severity="warns",
        sentence=f"{int(signs.sum()):,} of {int(batch.trained.sum()):,} advantages have the other sign than "
        "reward less baseline",
        statistic="advantage",
        unit="samples",
        after=float(signs.sum()),
        error_control="no test: a count",
        n=int(batch.trained.sum()),
        since=view.cycle,
        reading="measurement_fault",
        evidence=_evidence(batch, signs),
        detail={"hold": True},
    )
