"""The feedback clock: what has been watched long enough, and how much survives where it has not.

A reaction comes after minutes or days. Up to a *horizon* an interaction is **mature** for it when it has been watched
that long, or when the event came before. To drop what is not mature, or to count it as kept, is biased (0.467 and 0.667
against 0.627 on Freireich's data at 20 weeks); Kaplan and Meier's product-limit estimate uses every row for as long as
it was watched. It assumes that how long a row was watched says nothing about whether the edit would stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy import stats

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

_Z95 = float(stats.norm.ppf(0.975))


@dataclass(frozen=True)
class Horizon:
    """How long after its interaction a reaction still counts."""

    name: str
    """Short, for names of statistics: ``90m``."""
    seconds: float


HORIZONS = (Horizon("30m", 1800.0), Horizon("90m", 5400.0), Horizon("1d", 86400.0))
"""Horizons at which edit persistence is shown."""

FOLLOW_UP_HORIZON = Horizon("90m", 5400.0)
"""A follow-up that comes later is counted as none."""


@dataclass(frozen=True)
class Maturity:
    """Which rows have been watched up to a horizon."""

    mature: Mask
    """Shape (rows,)."""
    share: float | None
    """Share of the mature among the rows that have a clock; None where no row has one."""


def maturity(observations: pa.Table, horizon: Horizon, *, event: str = "edit_lost_s") -> Maturity:
    """Maturity of each row for an event (a column of seconds, null = not so far).

    A row without times is not mature for anything that has not come yet.
    """
    watched = _seconds(observations["watched_s"])
    event_s = _seconds(observations[event])
    mature = (watched >= horizon.seconds) | (event_s <= horizon.seconds)
    clocked = ~np.isnan(watched) | ~np.isnan(event_s)
    share = float(mature[clocked].mean()) if clocked.any() else None
    return Maturity(mature, share)


def _seconds(column: pa.ChunkedArray) -> Floats:
    """As floats, NaN for null; comparisons with NaN are false."""
    values: Floats = column.to_numpy().astype(np.float64)
    return values


@dataclass(frozen=True)
class Survival:
    """Share of rows that outlive a horizon, with a 95 % interval."""

    status: Literal["estimated", "not_estimable"]
    """``not_estimable``: nobody was watched up to the horizon. That is no 0 and no 1."""
    estimate: float | None
    low: float | None
    high: float | None
    n: int
    """Rows, lost and censored."""
    n_at_risk: int
    """Rows still there just before the horizon: what the estimate rests on at its end."""
    n_censored: int
    """Rows that were not lost while they were watched, and not watched up to the horizon."""


def survival(durations_s: Floats, lost: Mask, horizon_s: float) -> Survival:
    """Kaplan-Meier share that survives ``horizon_s``; both inputs of shape (rows,).

    ``durations_s``: seconds until the loss, or else until when it was watched. Estimate and the log-log interval from
    Greenwood's variance are lifelines'. Where nothing (or everything) was lost by then that interval has no width, so
    Clopper and Pearson's exact one is given for the rows at risk at the horizon (or at the last loss).
    Raises ValueError for a negative or missing duration.
    """
    # lifelines takes a second to import, and most who use this module ask for maturity only.
    from lifelines import KaplanMeierFitter

    if np.isnan(durations_s).any() or (durations_s < 0).any():
        raise ValueError("durations must be known and not negative")
    n = len(durations_s)
    n_at_risk = int((durations_s >= horizon_s).sum())
    n_censored = int((~lost & (durations_s < horizon_s)).sum())
    if not n:
        return Survival("not_estimable", None, None, None, 0, 0, 0)
    fitted = KaplanMeierFitter().fit(durations_s, lost)
    estimate = float(fitted.predict(horizon_s))
    if not n_at_risk and estimate > 0:
        return Survival("not_estimable", None, None, None, n, 0, n_censored)
    if estimate in (0.0, 1.0):
        at_last_loss = int((durations_s >= durations_s[lost & (durations_s <= horizon_s)].max(initial=0)).sum())
        low, high = exact_interval(n_at_risk, n_at_risk) if estimate else exact_interval(0, at_last_loss)
    else:
        interval = fitted.confidence_interval_survival_function_
        low, high = (float(value) for value in interval.loc[:horizon_s].iloc[-1])
    return Survival("estimated", estimate, low, high, n, n_at_risk, n_censored)


def exact_interval(successes: int, n: int) -> tuple[float, float]:
    """Clopper and Pearson's (1934) 95 % interval of a share; ``n`` must be at least 1."""
    low = 0.0 if successes == 0 else float(stats.beta.ppf(0.025, successes, n - successes + 1))
    high = 1.0 if successes == n else float(stats.beta.ppf(0.975, successes + 1, n - successes))
    return low, high


@dataclass(frozen=True)
class LifeTable:
    """Survival of many groups on one grid of times, from counts that add up over partitions. Arrays are (groups,)."""

    estimate: Floats
    """NaN where it cannot be estimated."""
    low: Floats
    high: Floats
    n_at_risk: npt.NDArray[np.int64]
    """Rows still there before the last time of the grid."""


def life_table(lost: npt.NDArray[np.int64], censored: npt.NDArray[np.int64], last: int) -> LifeTable:
    """Kaplan-Meier at time ``last`` of a grid, for many groups at once.

    ``lost[g, j]``: rows of group g lost in the j-th interval (after time j-1, up to time j, from 0);
    ``censored[g, j]``: rows not lost and watched up to time j-1 but not up to j. Both (groups, times + 1): the last one
    holds what lies beyond the grid. Equal to `survival` on times that lie on the grid. A row that was censored inside
    an interval is taken out at its start, which costs a little of what is known and claims nothing.
    """
    n = (lost + censored).sum(axis=1, keepdims=True)
    gone_before = np.cumsum(lost + censored, axis=1) - (lost + censored)
    # Censored in interval j means not watched to its end, so it is out before the losses of j are counted.
    at_risk = (n - gone_before - censored)[:, : last + 1].astype(np.float64)
    losses = lost[:, : last + 1].astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        estimate = np.prod(np.where(at_risk > 0, 1 - losses / at_risk, 1.0), axis=1)
        greenwood = np.sum(np.where(losses > 0, losses / (at_risk * (at_risk - losses)), 0.0), axis=1)
        log = np.log(estimate)
        width = _Z95 * np.sqrt(greenwood) / np.abs(log)
        low, high = estimate ** np.exp(width), estimate ** np.exp(-width)
    end = at_risk[:, -1].astype(np.int64)
    for group in np.flatnonzero((estimate == 1.0) & (end > 0)):
        low[group], high[group] = exact_interval(int(end[group]), int(end[group]))
    for group in np.flatnonzero((estimate == 0.0) & (n[:, 0] > 0)):
        low[group], high[group] = exact_interval(0, int(at_risk[group, np.flatnonzero(losses[group])[-1]]))
    nothing = (end <= 0) & (estimate > 0)
    for values in (estimate, low, high):
        values[nothing] = np.nan
    return LifeTable(estimate, low, high, end)
