"""What the drift layer watches: sums that add up, and the channels made of them.

Rows are reduced once, to counts, sums, squares and products with difficulty per cycle, organisation and slice
(`Sums`); everything after that is a few thousand numbers, however many rows there were. Four kinds of channel:

- ``mean``: level over all slices, on the reference's mix of organisations;
- ``slice``: the same inside one slice, where a hack of 15 % of the traffic is not diluted;
- ``spread``: log of the spread within organisations, for what changes with its mean left alone;
- ``association``: correlation with difficulty within organisations, for what changes in nothing but *when* it is done.

Means are put on a fixed mix: each organisation's distance from its own reference level, weighted by its share of the
reference rows. A change of mix alone moves no distance and so no channel. Organisations without a reference say
nothing on change; their share of the rows is told (`Channels.unplaced`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Kind = Literal["mean", "slice", "spread", "association"]

MOST = 4.0
"""No row counts more than this many times over when an organisation has become rare."""
FEWEST = 30
"""Rows below which a spread or a correlation of one cycle is not taken."""
_STRAY = 0.25  # events; see `_level`
_STEP = 2.0**20


@dataclass(frozen=True)
class Metric:
    """One number or yes-no per row."""

    name: str
    real: bool
    """False: 0 or 1, whose spread follows from its mean. Long-tailed numbers are summed as logs."""


@dataclass(frozen=True)
class Sums:
    """Sums over rows where the metric is known; arrays are (cycles, organisations, slices, metrics).

    `+` adds the rows of two parts. Terms are rounded to multiples of 2^-20, so that sums below 2^33 are exact and the
    order of rows and parts changes nothing.
    """

    metrics: tuple[Metric, ...]
    organisations: tuple[str, ...]
    slices: tuple[str, ...]
    """Disjoint, and together everything."""
    n: Floats
    x: Floats
    xx: Floats
    d: Floats
    """Sum of difficulty over the rows where the metric is known; and below, of its square and product."""
    dd: Floats
    xd: Floats

    def __add__(self, other: Sums) -> Sums:
        if (self.metrics, self.organisations, self.slices) != (other.metrics, other.organisations, other.slices):
            raise ValueError("sums over different metrics, organisations or slices do not add up")
        return Sums(
            self.metrics,
            self.organisations,
            self.slices,
            *(getattr(self, role) + getattr(other, role) for role in ("n", "x", "xx", "d", "dd", "xd")),
        )


@dataclass(frozen=True)
class Rows:
    """Interactions; arrays are (rows,) but for ``values``."""

    cycle: Ints
    organisation: Ints
    """Position among the organisations; and below, among the slices."""
    slice: Ints
    difficulty: Floats
    values: Floats
    """(rows, metrics); NaN is "not known" and counts nowhere."""


def sums_of_rows(
    metrics: tuple[Metric, ...], organisations: tuple[str, ...], slices: tuple[str, ...], cycles: int, rows: Rows
) -> Sums:
    """Sums of rows over ``cycles`` cycles from 0 on."""
    shape = (cycles, len(organisations), len(slices))
    cell = (rows.cycle * shape[1] + rows.organisation) * shape[2] + rows.slice
    cells = int(np.prod(shape))
    d = _exact(rows.difficulty)
    dd = _exact(d * d)

    def total(column: Floats | None, known: npt.NDArray[np.bool_] | None) -> Floats:
        place = cell if known is None else cell[known]
        weights = column if column is None or known is None else column[known]
        return np.bincount(place, weights, cells).astype(np.float64)

    parts: dict[str, list[Floats]] = {role: [] for role in ("n", "x", "xx", "d", "dd", "xd")}
    for index in range(len(metrics)):
        column = rows.values[:, index]
        missing = np.isnan(column)
        known = ~missing if missing.any() else None
        x = _exact(column)
        for role, summed in {"n": None, "x": x, "xx": _exact(x * x), "d": d, "dd": dd, "xd": _exact(x * d)}.items():
            parts[role].append(total(summed, known))
    stacked = {role: np.stack(columns, axis=-1).reshape(*shape, -1) for role, columns in parts.items()}
    return Sums(metrics, organisations, slices, **stacked)


def _exact(values: Floats) -> Floats:
    rounded: Floats = np.rint(values * _STEP) / _STEP
    return rounded


@dataclass(frozen=True)
class Channels:
    """Series of all channels; arrays are (cycles, channels), NaN is "no value"."""

    kind: tuple[Kind, ...]
    metric: tuple[str, ...]
    slice: tuple[str, ...]
    """``all`` but for slices."""
    value: Floats
    """Means in the metric's unit, log of a spread, Fisher's z of a correlation."""
    variance: Floats
    """Of ``value``, if rows were independent draws."""
    n: Floats
    """Rows."""
    unplaced: Floats
    """Share of the rows from organisations without a reference, (cycles,)."""


def channels(sums: Sums, reference: int) -> Channels:
    """The channels of a run whose first ``reference`` cycles are the reference."""
    names, slices = [metric.name for metric in sums.metrics], sums.slices
    real = np.array([metric.real for metric in sums.metrics])
    parts: list[tuple[Kind, list[str], str, Floats, Floats, Floats]] = []

    whole = {role: getattr(sums, role).sum(axis=2) for role in ("n", "x", "xx", "d", "dd", "xd")}
    parts.append(("mean", names, "all", *_level(whole["n"], whole["x"], whole["xx"], real, reference)))
    rows = sums.n[:reference].sum(axis=(0, 1, 3))
    for index, name in enumerate(slices):
        # Most of the rows say what all of them say, and charting it twice would only spend the budget twice.
        if rows[index] > rows.sum() / 2:
            continue
        inside = [role[:, :, index] for role in (sums.n, sums.x, sums.xx)]
        parts.append(("slice", names, name, *_level(inside[0], inside[1], inside[2], real, reference)))

    n, free, xx, dd, xd = _within(whole)
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = np.where((free >= FEWEST) & (xx > 0), np.log(xx / free) / 2, np.nan)
        correlation = np.clip(xd / np.sqrt(xx * dd), -1 + 1e-12, 1 - 1e-12)
        association = np.where((free >= FEWEST) & (xx > 0) & (dd > 0), np.arctanh(correlation), np.nan)
        amounts = [name for name, yes in zip(names, real, strict=True) if yes]
        parts.append(("spread", amounts, "all", spread[:, real], (1 / (2 * free))[:, real], n[:, real]))
        parts.append(("association", names, "all", association, 1 / (free - 2), n))

    known = (whole["n"][:reference].sum(axis=0) > 0)[None]
    with np.errstate(invalid="ignore"):
        unplaced = (whole["n"] * ~known).sum(axis=(1, 2)) / whole["n"].sum(axis=(1, 2))
    value, variance, count = (np.concatenate([part[place] for part in parts], axis=1) for place in (3, 4, 5))
    return Channels(
        kind=tuple(kind for kind, listed, *_ in parts for _ in listed),
        metric=tuple(name for _, listed, *_ in parts for name in listed),
        slice=tuple(slice_ for _, listed, slice_, *_ in parts for _ in listed),
        value=value,
        variance=np.where(np.isnan(value), np.nan, variance),
        n=count,
        unplaced=unplaced,
    )


def _level(
    n: Floats, x: Floats, xx: Floats, real: npt.NDArray[np.bool_], reference: int
) -> tuple[Floats, Floats, Floats]:
    """Means on the reference's mix, their variances and rows; (cycles, organisations, metrics) in, one axis fewer out.

    The spread within organisations is the reference's, so that a rare event's variance is not 0 where it did not
    happen. Shares are cut at `MOST` times the rows there are. A rate gets the variance of `_STRAY` events on top: one
    event where there was never one is no alarm.
    """
    base_n, base_x = n[:reference].sum(axis=0), x[:reference].sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        level = np.where(base_n > 0, base_x / base_n, 0.0)
        share = base_n / base_n.sum(axis=0)
        centre = (share * level).sum(axis=0)
        spread = np.maximum((xx[:reference].sum(axis=0) - base_n * level**2).sum(axis=0) / base_n.sum(axis=0), 0.0)
        spread = np.where(spread > 1e-9 * centre**2, spread, 0.0)  # what rounding leaves of a constant
        distance = np.where(n > 0, x / n - level, 0.0)
        weight = np.minimum(share, MOST * n / n.sum(axis=1, keepdims=True))
        weight = weight / weight.sum(axis=1, keepdims=True)
        value = centre + (weight * distance).sum(axis=1)
        variance = spread * np.where(n > 0, weight**2 / n, 0.0).sum(axis=1)
        rows = (n * (base_n > 0)).sum(axis=1)
        variance += np.where(real, 0.0, _STRAY / rows**2)
    return value, variance, rows


def _within(whole: dict[str, Floats]) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Rows, degrees of freedom, and squares and products within organisations: each (cycles, metrics)."""
    n = whole["n"]
    with np.errstate(divide="ignore", invalid="ignore"):
        about = {
            name: np.where(n > 0, whole[name] - whole[left] * whole[right] / n, 0.0).sum(axis=1)
            for name, left, right in (("xx", "x", "x"), ("dd", "d", "d"), ("xd", "x", "d"))
        }
    rows = n.sum(axis=1)
    free = np.maximum(rows - (n > 0).sum(axis=1), 0.0)
    return rows, free, about["xx"], about["dd"], about["xd"]
