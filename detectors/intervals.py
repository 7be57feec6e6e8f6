"""Values of statistics with 95 % intervals, from sums and histograms; arrays are (groups,), NaN is "no value"."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from palomar.data.clock import LifeTable

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

Z95 = float(stats.norm.ppf(0.975))


@dataclass(frozen=True)
class Estimate:
    """Values with their intervals."""

    value: Floats
    low: Floats
    high: Floats


def wilson(successes: Floats, n: Floats) -> Estimate:
    """Share of successes with Wilson's (1927) score interval, which has width at 0 and 1 too."""
    with np.errstate(divide="ignore", invalid="ignore"):
        share = successes / n
        centre = (share + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
        half = Z95 / (1 + Z95**2 / n) * np.sqrt(share * (1 - share) / n + Z95**2 / (4 * n**2))
    # The limits at 0 and 1 are exactly 0 and 1; rounding would leave them a hair beside.
    low = np.where(successes == 0, np.where(n > 0, 0.0, np.nan), centre - half)
    high = np.where(successes == n, np.where(n > 0, 1.0, np.nan), centre + half)
    return Estimate(share, low, high)


def from_sums(n: Floats, *, x: Floats, y: Floats, xx: Floats, yy: Floats, xy: Floats) -> Estimate:
    """Ratio of two sums over ``n`` rows with the delta method's interval (a mean is the ratio with every y = 1).

    The variance is that of the residuals x - r y, as in Cochran's "Sampling Techniques" (1977), 6.4. NaN limits where
    one row alone says nothing on the spread.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(y != 0, x / y, np.nan)
        residual = np.maximum(xx - 2 * ratio * xy + ratio**2 * yy, 0.0)
        error = np.where(n > 1, np.sqrt(n * residual / (n - 1)) / np.abs(y), np.nan)
    return Estimate(ratio, ratio - Z95 * error, ratio + Z95 * error)


def of_counts(n: Floats, estimate: Estimate, x: Floats, y: Floats) -> Estimate:
    """A ratio of counts: no limit lies below 0, and where nothing was counted the upper one is not 0 either.

    With no event in n rows at most Wilson's upper share of rows has one, which is taken as one event a row.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        at_most = wilson(np.zeros_like(n), n).high * n / y
    none = (x == 0) & (y > 0)
    low = np.where(none, 0.0, np.maximum(estimate.low, 0.0))
    return Estimate(estimate.value, low, np.where(none, at_most, estimate.high))


def from_histogram(counts: Floats, upper_edges: Floats, quantile: float, *, interpolate: bool) -> Estimate:
    """Quantile of binned values; ``counts`` of shape (groups, bins), the last bin without an upper edge.

    The interval is that of the order statistics at ranks n q -+ 1.96 sqrt(n q (1-q)) (the normal approximation of the
    binomial one). ``interpolate``: geometrically inside the bin; else a bin's values are all its upper edge. A quantile
    in the last bin is not a number.
    """
    n = counts.sum(axis=1)
    middle = n * quantile
    spread = Z95 * np.sqrt(n * quantile * (1 - quantile))
    below = np.cumsum(counts, axis=1)

    def at(rank: Floats) -> Floats:
        wanted = np.clip(rank, 0.5, np.maximum(n - 0.5, 0.5))[:, None]
        index = np.argmax(below >= wanted, axis=1)
        edges = np.append(upper_edges, np.nan)
        if not interpolate:
            return np.where(n > 0, edges[index], np.nan)
        rows = np.arange(len(n))
        inside = counts[rows, index]
        with np.errstate(divide="ignore", invalid="ignore"):
            share = (wanted[:, 0] - (below[rows, index] - inside)) / inside
        lower = edges[np.maximum(index - 1, 0)]
        return np.where(n > 0, lower * (edges[index] / lower) ** share, np.nan)

    return Estimate(at(middle), at(middle - spread), at(middle + spread))


def from_survival(table: LifeTable) -> Estimate:
    """The life table's survival at its last time."""
    return Estimate(table.estimate, table.low, table.high)
