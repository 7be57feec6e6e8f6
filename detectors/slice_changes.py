"""How one statistic changed in every slice and cycle against a reference: what a heat map shows.

A cycle's value is compared with the mean of the slice's reference cycles (by rows), as a Student t whose error holds
the sampling error of both and what reference cycles differ by beyond it. With one reference cycle that is not known,
and rows alone count. Over all slices and cycles that are looked at, false discoveries are held at `DISCOVERY`
(Benjamini and Hochberg 1995, scipy).

A first look, by eye: verdicts are those of `palomar.detectors.drift`, which puts levels on the reference's mix, borrows
strength between channels and remembers earlier cycles. Slices overlap, so what survives in one often does in others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy import stats

from palomar.data.store.records import Statistic
from palomar.detectors.excess import FEW

DISCOVERY = 0.05
"""Share of the changes said to be there that may be none."""
RIPE = 0.95
"""Share of the rows that must have been watched long enough for a value to be compared."""
_Z95 = float(stats.norm.ppf(0.975))

Status = Literal["ok", "few", "immature", "no data", "no reference", "reference"]
"""``few``: fewer than `FEW` rows; ``reference``: it is compared with others of which it is one, so it is not tested."""


@dataclass(frozen=True)
class SliceChange:
    """A slice in a cycle."""

    slice: str
    cycle: int
    value: float | None
    base: float | None
    """Mean of the reference cycles."""
    n: int
    status: Status
    change: float | None
    """``value - base``; None where one of them is not known."""
    low: float | None = None
    """Of the 95 % interval of the change; None unless it was tested."""
    high: float | None = None
    p: float | None = None
    survives: bool = False
    """Whether the change is there at the false discovery rate of all that was tested."""


def slice_changes(
    points: Sequence[Statistic], reference: Collection[int], cycles: Collection[int]
) -> list[SliceChange]:
    """Changes of one statistic in ``cycles``, by slice and cycle; ``points`` hold those and the reference."""
    by_slice: defaultdict[str, dict[int, Statistic]] = defaultdict(dict)
    for point in points:
        by_slice[point.slice][point.cycle] = point
    found: list[SliceChange] = []
    tested: list[tuple[int, float, float]] = []
    for _, at in sorted(by_slice.items()):
        base = _Base.of([at[each] for each in sorted(reference) if each in at])
        for cycle in sorted(cycles):
            if cycle not in at:
                continue
            found.append(_change(at[cycle], base, cycle in reference))
            own = _error(at[cycle])
            if found[-1].status == "ok" and base is not None and own is not None:
                error = (own**2 + base.between + base.error**2) ** 0.5
                if error > 0:
                    tested.append((len(found) - 1, error, base.freedom))
    return _tested(found, tested)


def _tested(found: list[SliceChange], tested: Sequence[tuple[int, float, float]]) -> list[SliceChange]:
    """The same with intervals and p-values; all at once, since scipy takes a millisecond a call."""
    if not tested:
        return found
    place, error, freedom = (np.array(column) for column in zip(*tested, strict=True))
    change = np.array([found[int(index)].change for index in place], dtype=np.float64)
    p = 2 * stats.t.sf(np.abs(change) / error, freedom)
    reach = stats.t.ppf(0.975, freedom) * error
    survives = stats.false_discovery_control(p, method="bh") <= DISCOVERY
    for index, moved, wide, chance, there in zip(place, change, reach, p, survives, strict=True):
        known = {"low": float(moved - wide), "high": float(moved + wide), "p": float(chance), "survives": bool(there)}
        found[int(index)] = replace(found[int(index)], **known)  # type: ignore[arg-type]
    return found


@dataclass(frozen=True)
class _Base:
    """A slice in the reference cycles."""

    level: float
    error: float
    """Standard error of ``level``."""
    between: float
    """Variance between cycles beyond that of their rows."""
    freedom: float
    """Degrees of freedom; infinite with a single cycle, where only rows count."""

    @classmethod
    def of(cls, points: Sequence[Statistic]) -> _Base | None:
        known = [point for point in points if point.n and _ripe(point) and _error(point) is not None]
        if not known:
            return None
        value = np.array([point.value for point in known], dtype=np.float64)
        error = np.array([_error(point) for point in known], dtype=np.float64)
        weight = np.array([point.n for point in known], dtype=np.float64)
        weight /= weight.sum()
        several = len(known) > 1
        between = max(0.0, float(value.var(ddof=1) - (error**2).mean())) if several else 0.0
        variance = float((weight**2 * (error**2 + between)).sum())
        return cls(float(weight @ value), variance**0.5, between, len(known) - 1 if several else float("inf"))


def _change(point: Statistic, base: _Base | None, in_reference: bool) -> SliceChange:
    level = None if base is None else base.level
    status: Status = "ok"
    if point.value is None:
        status = "immature" if point.status == "immature" else "no data"
    elif level is None:
        status = "no reference"
    elif not _ripe(point):
        status = "immature"
    elif point.n < FEW:
        status = "few"
    elif in_reference:
        status = "reference"
    change = None if point.value is None or level is None else point.value - level
    return SliceChange(point.slice, point.cycle, point.value, level, point.n, status, change)


def _error(point: Statistic) -> float | None:
    """Standard error behind a 95 % interval."""
    if point.value is None or point.low is None or point.high is None:
        return None
    return (point.high - point.low) / (2 * _Z95)


def _ripe(point: Statistic) -> bool:
    return point.maturity is None or point.maturity >= RIPE
