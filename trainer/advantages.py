"""From rewards to advantages: how much more of each sample the next policy should do.

    A_i = (r_i - b_i) / s

``b`` is the mean reward of the *samples that are trained on*: in the batch, in the sample's group (GRPO, Shao et al.
2024) or in its context (stratum of predicted failure x ambiguity). ``s`` is the standard deviation of ``r - b`` over
the batch, or 1.

Who counts: a sample with a valid reward that the reward spec includes and that nothing else bars. All others get
weight 0 and a reason, and take no part in any baseline or in ``s``: a reward that is missing is not 0 (trl#5775), an
excluded sample's reward moves none of its peers (prime-rl#1746, verl#6310). Adding a constant to every reward changes
nothing.

The batch baseline lets the included samples' mean hide what exclusion removed, and a context baseline makes
E[A | context] = 0: which of them a loop uses decides what a hole in the reward can teach it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from palomar.trainer.config import AdvantageConfig

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

Status = Literal["ok", "empty", "all_excluded", "no_spread"]

ROUNDING = 8 * float(np.finfo(np.float64).eps)
"""Rewards that differ by less than this share of their size are equal: what is left is rounding."""


@dataclass(frozen=True)
class Advantages:
    """Advantage of each row of the observations it was computed from, in their order."""

    status: Status
    """``ok``, or why there is nothing to learn from: no rows, none that count, or no difference between rewards."""
    value: tuple[float | None, ...]
    """In standard deviations where scaled, else in units of the reward; None where the sample does not count."""
    baseline: tuple[float | None, ...]
    """What was subtracted from the reward; None where the sample does not count."""
    weight: tuple[float, ...]
    """1 where the sample counts, else 0."""
    reason: tuple[str | None, ...]
    """Why it does not count: the name of the exclusion rule, ``reward_waiting``, ``reward_invalid``,
    ``reward_missing``, ``alone_in_group`` (or ``..._context``), or what the caller barred it for."""


def advantages(
    observations: pa.Table, config: AdvantageConfig, *, barred: Mapping[str, str] | None = None
) -> Advantages:
    """Advantages of scored observations (``palomar.data.observations``); `barred` maps interaction ids to reasons.

    A row is judged in this order: the exclusion rule, its reward's status, `barred`, then its peers.
    """
    barred = barred or {}
    rewards, reasons = _judge(observations, barred)
    counts = np.array([reason is None for reason in reasons], dtype=bool)
    if config.baseline != "batch":
        keys = _groups(observations) if config.baseline == "group" else _contexts(observations, config.context_edges)
        alone = counts & (_peers(keys, counts) == 1)
        # One sample is its own mean: it would count as a perfectly average one, which nobody knows.
        for row in np.flatnonzero(alone):
            reasons[row] = f"alone_in_{config.baseline}"
        counts &= ~alone
    else:
        keys = np.zeros(len(rewards), dtype=np.int64)
    if not counts.any():
        return _result("empty" if len(rewards) == 0 else "all_excluded", rewards, rewards, counts, reasons)
    baseline = _means(rewards, keys, counts)
    value = rewards - baseline
    spread = float(np.sqrt(np.mean(value[counts] ** 2)))
    if spread <= ROUNDING * float(np.abs(rewards[counts]).max()):
        return _result("no_spread", np.zeros_like(value), baseline, counts, reasons)
    return _result("ok", value / spread if config.scale else value, baseline, counts, reasons)


def _judge(observations: pa.Table, barred: Mapping[str, str]) -> tuple[Floats, list[str | None]]:
    """Reward of each row (NaN where there is none) and the reason why it does not count."""
    rewards = observations["reward"].to_pylist()
    reasons: list[str | None] = []
    columns = ("interaction_id", "reward_status", "included", "exclusion")
    rows = zip(*(observations[name].to_pylist() for name in columns), strict=True)
    for reward, (interaction_id, status, included, exclusion) in zip(rewards, rows, strict=True):
        if included is False:
            reasons.append(exclusion or "excluded")
        elif status != "valid":
            reasons.append(f"reward_{status or 'missing'}")
        elif reward is None or not np.isfinite(reward):
            reasons.append("reward_invalid")
        else:
            reasons.append(barred.get(interaction_id))
    return np.array([np.nan if reward is None else reward for reward in rewards], dtype=np.float64), reasons


def _groups(observations: pa.Table) -> npt.NDArray[np.int64]:
    """Group number of each row. A row without a group is a group of its own."""
    names = observations["group_id"].to_pylist()
    known: dict[str, int] = {}
    return np.array(
        [-1 - row if name is None else known.setdefault(name, len(known)) for row, name in enumerate(names)], np.int64
    )


def _contexts(observations: pa.Table, edges: tuple[float, ...]) -> npt.NDArray[np.int64]:
    """Stratum number of each row; "not known" is a stratum of its own on either side."""
    codes = []
    for name in ("predicted_failure", "ambiguity"):
        values = np.array([np.nan if value is None else value for value in observations[name].to_pylist()], np.float64)
        codes.append(np.where(np.isnan(values), len(edges) + 1, np.digitize(values, edges)))
    return np.asarray(codes[0] * (len(edges) + 2) + codes[1], dtype=np.int64)


def _peers(keys: npt.NDArray[np.int64], counts: Bools) -> npt.NDArray[np.int64]:
    """Number of counting rows that share each row's key."""
    _, index = np.unique(keys, return_inverse=True)
    return np.asarray(np.bincount(index, weights=counts)[index], dtype=np.int64)


def _means(rewards: Floats, keys: npt.NDArray[np.int64], counts: Bools) -> Floats:
    """Mean reward of the counting rows that share each row's key; NaN where there are none."""
    _, index = np.unique(keys, return_inverse=True)
    # Relative to one reward first, so that a large constant in all of them costs no digits.
    origin = rewards[counts][0]
    totals = np.bincount(index, weights=np.where(counts, rewards - origin, 0.0))
    sizes = np.bincount(index, weights=counts)
    means = np.divide(totals, sizes, out=np.full_like(totals, np.nan), where=sizes > 0)
    return np.asarray(origin + means[index], dtype=np.float64)


def _result(status: Status, value: Floats, baseline: Floats, counts: Bools, reasons: list[str | None]) -> Advantages:
    return Advantages(
        status=status,
        value=tuple(float(x) if used else None for x, used in zip(value, counts, strict=True)),
        baseline=tuple(float(x) if used else None for x, used in zip(baseline, counts, strict=True)),
        weight=tuple(counts.astype(float).tolist()),
        reason=tuple(reasons),
    )
