"""Flags rewards that are missing out of proportion: invalid, lost to infrastructure, or still waited for.

For: a reward that no scorer gave is no reward of 0, and is not trained on. Where many are missing, training sees a
selection; where more are missing on hard requests, one that is bent.

Fires where

- the share of invalid rewards, of rewards lost to infrastructure, of invalid values of a term, or of rewards that
  waited when the cycle was first offered to the trainer, is above the reference's significantly and by `MARGIN`;
- infrastructure took `MOST_LOST` or more of the rewards, whatever the reference did: a fault may be older than it;
- in the cycle, the share of invalid rewards on requests likely to fail differs from that on those likely to succeed,
  significantly and by `MARGIN` (clustered by user).

From `HOLD` of the rewards on it reads as a measurement fault.

Errors: at most `RATE` false alarms per cycle over all shares that are tested (Student t with overdispersion for the
first, clustered by user for the third; Bonferroni). The second is no test.

Blind to: scorers that fail and pay a number (`failure-paid-as-zero` looks for those), a share that was high in the
reference, and waiting in logs whose trainer says nothing of samples.

Source: NVIDIA-NeMo/RL#431, verl-project/verl-omni#366; DESIGN.md section 3, "reward invalid is never reward zero".
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from scipy import stats

from palomar.data.findings import Finding, Report, Unassessed
from palomar.data.slices import ALL, BANDS
from palomar.detectors.checks._examples import rows
from palomar.detectors.checks._examples import view as example_view
from palomar.detectors.checks._shares import (
    FEWEST_CYCLES,
    FEWEST_ROWS,
    RATE,
    Sign,
    Step,
    before_cycle,
    evidence,
    percent,
    quoted,
    shares,
    step,
)
from palomar.detectors.detector import Example, View, detector

NAME = "reward-invalid"
MARGIN = 0.02
"""Smallest rise of a share, or difference between hard and easy requests, that is told."""
MOST_LOST = 0.05
"""Share of rewards lost to infrastructure that is told whatever the reference was."""
HOLD = 0.1
"""Share of missing rewards from which nothing else said of the cycle can be relied on."""
INVALID = "rewards that are invalid"
LOST = "rewards lost to infrastructure"
WAITING = "rewards that waited when first offered"
_LOST = "coalesce(logged_reward_infrastructure, false)"
_SCORED = "reward_status IS NOT NULL"
SIGNS: Mapping[str, Sign] = {
    INVALID: Sign(f"reward_status = 'invalid' AND NOT {_LOST}", _SCORED),
    LOST: Sign(f"reward_status = 'invalid' AND {_LOST}", _SCORED),
}


def _missing(cycle: int, share: float, *, infrastructure: bool = False, hard: bool = False) -> pa.Table:
    """A cycle in which a share of the rewards is invalid."""
    table = rows(cycle)
    chance = share * (np.asarray(table["predicted_failure"]) > 0.6) / 0.3 if hard else share
    hit = np.random.default_rng(cycle + 7).random(table.num_rows) < chance
    return rows(
        cycle,
        reward=pa.array(np.asarray(table["reward"]), mask=hit),
        reward_status=pa.array(np.where(hit, "invalid", "valid")),
        reward_reason=pa.array(["judge: no answer within 15 s"] * table.num_rows, mask=~hit),
        logged_reward_infrastructure=pa.array([infrastructure] * table.num_rows, mask=~hit),
    )


EXAMPLES = [
    Example(
        "the scorer began to fail",
        lambda folder: example_view(folder, [*(_missing(cycle, 0.01) for cycle in range(4)), _missing(4, 0.3)]),
        "fires",
    ),
    Example(
        "it has been failing all along",
        lambda folder: example_view(folder, [_missing(cycle, 0.1, infrastructure=True) for cycle in range(5)]),
        "fires",
    ),
    Example(
        "it fails on hard requests",
        lambda folder: example_view(folder, [_missing(cycle, 0.1, hard=True) for cycle in range(5)]),
        "fires",
    ),
    Example(
        "as few as ever are invalid, and rewards fall",
        lambda folder: example_view(
            folder, [*(_missing(cycle, 0.02) for cycle in range(4)), rows(4, reward=np.full(400, -1.0))]
        ),
        "clear",
    ),
    Example(
        "nothing was scored",
        lambda folder: example_view(folder, [rows(cycle, reward_status=None, reward=None) for cycle in range(5)]),
        "not_assessable",
    ),
]


@detector(NAME, examples=EXAMPLES)
def reward_invalid(view: View) -> Report:
    """One finding per share that rose, one where infrastructure took many, one where hard requests lose more."""
    terms = sorted(name.removeprefix("status:") for name in view.columns() if name.startswith("status:"))
    signs = {**SIGNS, **{f"values of {term} that are invalid": _term(term) for term in terms}}
    base = before_cycle(view)
    counted = shares(view, NAME, signs, [*base, view.cycle])
    findings: list[Finding] = []
    unassessed: list[Unassessed] = []
    tests = len(signs) + 2
    steps: dict[str, Step] = {}
    for sign in signs:
        x, n = counted.x[sign][:, 0], counted.n[sign][:, 0]
        if n[-1] < FEWEST_ROWS:
            unassessed.append(Unassessed(sign, f"{int(n[-1])} rows where it could be told; it takes {FEWEST_ROWS}"))
        elif (seen := step(x[:-1], n[:-1], x[-1], n[-1], RATE / tests)) is None:
            unassessed.append(Unassessed(sign, f"it takes {FEWEST_CYCLES} reference cycles that have it"))
        else:
            steps[sign] = seen
    if (waited := _waited(view, base, RATE / tests)) is None:
        why = f"it takes samples that a trainer logged, of {FEWEST_CYCLES} reference cycles"
        unassessed.append(Unassessed(WAITING, why))
    else:
        steps[WAITING] = waited
    findings += [
        _rise(view, sign, seen, signs.get(sign), tests)
        for sign, seen in steps.items()
        if seen.effect >= MARGIN and seen.z >= seen.threshold
    ]
    assessed = len(steps)
    lost, scored = counted.x[LOST][-1, counted.slices.index(ALL)], counted.n[LOST][-1, counted.slices.index(ALL)]
    if scored >= FEWEST_ROWS:
        assessed += 1
        if lost >= MOST_LOST * scored and not any(each.statistic == LOST for each in findings):
            findings.append(_lost(view, float(lost / scored), int(scored)))
    missing = any(counted.x[sign][-1, 0] for sign in SIGNS)
    bent = _by_difficulty(view, RATE / tests) if missing else None
    if bent is None:
        assessed += scored >= FEWEST_ROWS  # none is invalid, on whatever requests
    elif isinstance(bent, str):
        unassessed.append(Unassessed("invalid rewards by predicted failure", bent))
    else:
        assessed += 1
        if abs(bent.effect) >= MARGIN and abs(bent.z) >= bent.threshold:
            findings.append(_bent(view, bent, tests))
    power = "; ".join(f"{sign}: a rise of {percent(max(each.smallest, MARGIN))}" for sign, each in steps.items())
    return Report(NAME, tuple(findings), assessed, tuple(unassessed), power)


def _term(name: str) -> Sign:
    status = quoted(f"status:{name}")
    return Sign(f"{status} = 'invalid'", f"{status} IS NOT NULL", (f"status:{name}",))


def _waited(view: View, base: tuple[int, ...], alpha: float) -> Step | None:
    """Of the samples of a cycle's own offer, how many waited. Later offers do not count: old rewards have come in."""
    sampled = [cycle for cycle in view.lake.cycles("samples") if cycle in {*base, view.cycle}]
    if not sampled:
        return None
    offered = view.lake.query(
        "SELECT cycle, count_if(reason = 'reward_waiting') AS x, count(*) AS n FROM offered "
        "WHERE sampled_cycle = cycle GROUP BY cycle",
        offered=view.lake.scan("samples", ("cycle", "sampled_cycle", "reason"), cycles=sampled),
    ).to_pylist()
    known = {row["cycle"]: (row["x"], row["n"]) for row in offered}
    if view.cycle not in known:
        # Before the cycle is trained on, its rewards are what the trainer will see.
        here = view.query(
            f"SELECT count_if(reward_status = 'waiting' AND included IS NULL) AS x, count_if({_SCORED}) AS n "
            "FROM observations"
        ).to_pylist()[0]
        known[view.cycle] = (here["x"], here["n"])
    x, n = (np.array([known[cycle][part] for cycle in base if cycle in known], dtype=np.float64) for part in (0, 1))
    waiting, offers = known[view.cycle]
    return step(x, n, float(waiting), float(offers), alpha)


def _by_difficulty(view: View, alpha: float) -> Step | str:
    """Hard against easy requests of the cycle, clustered by user; or why that cannot be told."""
    edges, _ = BANDS["predicted_failure"]
    table = view.query(
        f"SELECT coalesce(user_id, conversation_id, interaction_id) AS u, predicted_failure >= {edges[-1]} AS hard, "
        f"count(*) AS n, count_if(reward_status = 'invalid') AS x FROM observations WHERE {_SCORED} AND "
        f"(predicted_failure < {edges[0]} OR predicted_failure >= {edges[-1]}) GROUP BY ALL ORDER BY ALL"
    )
    user = np.asarray(table["u"].combine_chunks().dictionary_encode().indices, dtype=np.int64)
    hard = np.asarray(table["hard"], dtype=bool)
    x, n = (table[name].to_numpy().astype(np.float64) for name in ("x", "n"))
    if min(n[hard].sum(), n[~hard].sum()) < FEWEST_ROWS:
        return f"it takes {FEWEST_ROWS} scored rows with a predicted failure below {edges[0]}, and from {edges[-1]} on"
    share = {side: float(x[hard == side].sum() / n[hard == side].sum()) for side in (False, True)}
    influence = np.where(hard, (x - share[True] * n) / n[hard].sum(), -(x - share[False] * n) / n[~hard].sum())
    sums = np.bincount(user, weights=influence)
    error = float(np.sqrt((sums**2).sum() * len(sums) / max(len(sums) - 1, 1)))
    # Users with an invalid reward carry the estimate; few of them allow no narrow t.
    freedom = max(len(np.unique(user[x > 0])) - 1, 1)
    threshold = float(stats.t.isf(alpha / 2, freedom))
    effect = share[True] - share[False]
    return Step(
        before=share[False], after=share[True], low=effect - threshold * error, high=effect + threshold * error,
        z=effect / error if error > 0 else 0.0, threshold=threshold, n=int(n.sum()), smallest=threshold * error,
    )  # fmt: skip


def _reasons(view: View) -> str:
    found = view.query(
        "SELECT reward_reason, count(*) AS n FROM observations WHERE reward_status = 'invalid' "
        "GROUP BY reward_reason ORDER BY n DESC, reward_reason LIMIT 3"
    ).to_pylist()
    return ", ".join(f"{row['reward_reason'] or 'no reason'} ({row['n']:,})" for row in found)


def _rise(view: View, sign: str, at: Step, shown: Sign | None, tests: int) -> Finding:
    reasons = f"; most often: {_reasons(view)}" if sign in (INVALID, LOST) else ""
    fault = sign != WAITING and at.after >= HOLD
    where = shown or Sign("reward_status = 'waiting'")
    found = Finding(
        detector=NAME,
        severity="warns",
        sentence=f"{sign}: {percent(at.before)} -> {percent(at.after)}, n={at.n:,}{reasons}",
        statistic=sign,
        unit="share",
        error_control=f"{RATE:g} false alarms per cycle over {tests} shares, Student t with overdispersion, Bonferroni",
        since=view.cycle,
        reading="measurement_fault" if fault else None,
        evidence=evidence(view, where.holds, where.among),
        detail={"hold": fault},
    )
    return at.told(found, least=MARGIN)


def _lost(view: View, share: float, n: int) -> Finding:
    sign = SIGNS[LOST]
    return Finding(
        detector=NAME,
        severity="warns",
        sentence=f"{LOST}: {percent(share)}, n={n:,}, as in the reference; most often: {_reasons(view)}",
        statistic=LOST,
        unit="share",
        after=share,
        threshold=MOST_LOST,
        error_control=f"no test: told from {percent(MOST_LOST)} on",
        n=n,
        reading="measurement_fault" if share >= HOLD else None,
        evidence=evidence(view, sign.holds, sign.among),
        detail={"hold": share >= HOLD},
    )


def _bent(view: View, at: Step, tests: int) -> Finding:
    found = Finding(
        detector=NAME,
        severity="warns",
        sentence=(
            f"rewards are invalid for {percent(at.before)} of the requests likely to succeed and {percent(at.after)} "
            f"of those likely to fail, n={at.n:,}: what is left to train on is another mix; most often: "
            f"{_reasons(view)}"
        ),
        statistic=INVALID,
        slice="predicted_failure=high",
        unit="share",
        error_control=f"{RATE:g} false alarms per cycle over {tests} shares, Student t clustered by user, Bonferroni",
        evidence=evidence(view, "reward_status = 'invalid'", _SCORED),
        detail={"effect": "hard less easy requests"},
    )
    return at.told(found, least=MARGIN)
