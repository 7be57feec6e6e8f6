"""When a statistic left the level of the run's first cycles, and stayed away: a first look, not a verdict.

Each later cycle is compared with the pooled first ones by a z of the two means; a series has *departed* at the first
of `RUNNING` cycles in a row with |z| > `THRESHOLD` on the same side. It is what a person sees in the chart, put in
numbers, and is how the benchmarks date the onset of a hack.

Blind to: slow creep inside the noise, a level that comes back, and the variance between cycles, which is not estimated
here (with one base and thousands of looks some departure by chance is to be expected).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import numpy as np

from palomar.data.store.records import Statistic

BASE_CYCLES = 2
THRESHOLD = 4.0
RUNNING = 2
_Z95 = 1.959964


@dataclass(frozen=True)
class Departure:
    """One statistic in one slice that left its base."""

    statistic: str
    slice: str
    since_cycle: int
    """First of the cycles away."""
    direction: Literal["up", "down"]
    base: float
    """Pooled value of the first cycles."""
    latest: float
    """Value of the last cycle that has one."""
    latest_cycle: int
    z: float
    """Of the latest cycle against the base."""


def departures(series: Sequence[Statistic]) -> list[Departure]:
    """Departures among series sorted by statistic, slice and cycle, as ``store.statistics.series`` returns them."""
    found = []
    for (statistic, slice_), points in groupby(series, key=lambda point: (point.statistic, point.slice)):
        departure = _departure(statistic, slice_, list(points))
        if departure is not None:
            found.append(departure)
    return found


def base_level(points: Sequence[Statistic]) -> float | None:
    """Pooled value of the first `BASE_CYCLES` points that have one, weighted by n; None where none has."""
    known = [point for point in points if point.value is not None][:BASE_CYCLES]
    total = sum(point.n for point in known)
    return sum((point.value or 0.0) * point.n for point in known) / total if total else None


def _departure(statistic: str, slice_: str, points: Sequence[Statistic]) -> Departure | None:
    known = [point for point in points if point.value is not None and point.low is not None and point.high is not None]
    if len(known) < BASE_CYCLES + RUNNING:
        return None
    value = np.array([point.value for point in known], dtype=np.float64)
    low = np.array([point.low for point in known], dtype=np.float64)
    high = np.array([point.high for point in known], dtype=np.float64)
    n = np.array([point.n for point in known], dtype=np.float64)
    error = (high - low) / (2 * _Z95)
    base = float(np.average(value[:BASE_CYCLES], weights=n[:BASE_CYCLES]))
    base_error = float(np.sqrt(np.mean(error[:BASE_CYCLES] ** 2) / BASE_CYCLES))
    spread = np.sqrt(error[BASE_CYCLES:] ** 2 + base_error**2)
    difference = value[BASE_CYCLES:] - base
    z = np.divide(difference, spread, out=np.zeros_like(difference), where=spread > 0)
    for side in (1, -1):
        away = side * z > THRESHOLD
        together = np.convolve(away, np.ones(RUNNING), mode="valid") == RUNNING
        if together.any():
            first = BASE_CYCLES + int(np.argmax(together))
            return Departure(
                statistic=statistic,
                slice=slice_,
                since_cycle=known[first].cycle,
                direction="up" if side > 0 else "down",
                base=base,
                latest=float(value[-1]),
                latest_cycle=known[-1].cycle,
                z=float(z[-1]),
            )
    return None
