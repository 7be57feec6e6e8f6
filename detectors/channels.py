"""What the drift layer watches: sums that add up, and the channels made of them.

Rows are reduced once, to counts, sums, squares and products with difficulty per cycle, organisation and cell of context
(`Sums`); everything after that is a few thousand numbers, however many rows there were. Four kinds of channel:

- ``mean``: level over everything, on the reference's mix of contexts;
- ``slice``: the same inside one slice (a union of cells), where a hack of 15 % of the traffic is not diluted;
- ``spread``: log of the spread within organisations, for what changes with its mean left alone;
- ``association``: correlation with difficulty within organisations, for what changes in nothing but *when* it is done.

Levels are put on a fixed mix: the distance of each stratum (an organisation's requests in one cell) from its own level
in the reference, weighted by its share of the reference's rows. A change of who asks for what moves no distance and so
no channel. Strata without a reference say nothing on change; their share of the rows is told (`Channels.unplaced`).

A ratio of sums (invalid calls per turn) is a mean like any other once it is written as the mean of

    R + (X - R Y) / mean Y

over rows, with R = sum X / sum Y of the reference in the same slice: the distance that `palomar.reward.pressure` is
about. With the mean Y of the cycle, put on the same mix, it is the ratio itself and not only to first order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Kind = Literal["mean", "slice", "spread", "association"]
Scale = Literal["plain", "log"]
Name = tuple[Kind, str, str]
"""Of a channel: kind, metric, slice."""

WHOLE = "all"
"""The slice of everything."""
MOST = 4.0
"""No row counts more than this many times over when a stratum has become rare."""
FEWEST = 30
"""Rows below which a spread or a correlation of one cycle is not taken."""
LARGEST = 0.75
"""Share of the rows above which a slice says what everything says, and charting it would only spend the budget."""
_STRAY = 0.25  # events; see `_level`
_STEP = 2.0**20
ROLES = ("n", "x", "xx", "d", "dd", "xd", "y", "yy", "xy", "yd", "unripe")


@dataclass(frozen=True)
class Metric:
    """One number or yes-no per row, or a pair of numbers whose sums are divided."""

    name: str
    real: bool
    """False: 0 or 1, whose spread follows from its mean; or a ratio of sums."""
    ratio: bool = False
    """A ratio of sums."""
    scale: Scale = "plain"
    """``log``: log(1 + x) of a long-tailed number is summed: its level is a typical value, not that of the tail."""
    behaviour: bool = True
    """False: what users or a scorer made of it (reward, outcome). Watched over everything only, and never blocks."""


@dataclass(frozen=True)
class Sums:
    """Sums over rows where the metric is known; arrays are (cycles, organisations, cells, metrics).

    `+` adds the rows of two parts. Terms are rounded to multiples of 2^-20, so that sums below 2^33 are exact and the
    order of rows and parts changes nothing.
    """

    metrics: tuple[Metric, ...]
    organisations: tuple[str, ...]
    cells: tuple[str, ...]
    """Of context: disjoint, and together everything."""
    n: Floats
    x: Floats
    xx: Floats
    d: Floats
    """Sum of difficulty over the rows where the metric is known; and below, of its square and product."""
    dd: Floats
    xd: Floats
    y: Floats
    """Sum of what a ratio is per; of any other metric, and so below, the number of rows."""
    yy: Floats
    xy: Floats
    yd: Floats
    unripe: Floats
    """Rows that will count once they were watched for long enough."""
    slices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Positions of each slice's cells; without any, each cell is one."""
    unplaced: tuple[int, ...] = ()
    """Cells whose difficulty is not known: they take no part in associations."""

    def __add__(self, other: Sums) -> Sums:
        if (self.metrics, self.organisations, self.cells) != (other.metrics, other.organisations, other.cells):
            raise ValueError("sums over different metrics, organisations or cells do not add up")
        return replace(self, **{role: getattr(self, role) + getattr(other, role) for role in ROLES})


@dataclass(frozen=True)
class Rows:
    """Interactions; arrays are (rows,) but for ``values``."""

    cycle: Ints
    organisation: Ints
    """Position among the organisations; and below, among the cells."""
    cell: Ints
    difficulty: Floats
    values: Floats
    """(rows, metrics); NaN is "not known" and counts nowhere."""


def sums_of_rows(
    metrics: tuple[Metric, ...], organisations: tuple[str, ...], cells: tuple[str, ...], cycles: int, rows: Rows
) -> Sums:
    """Sums of rows over ``cycles`` cycles from 0 on; for metrics that are no ratios."""
    shape = (cycles, len(organisations), len(cells))
    place = (rows.cycle * shape[1] + rows.organisation) * shape[2] + rows.cell
    size = int(np.prod(shape))
    d = _exact(rows.difficulty)
    dd = _exact(d * d)

    def total(column: Floats | None, known: Flags | None) -> Floats:
        at = place if known is None else place[known]
        weights = column if column is None or known is None else column[known]
        return np.bincount(at, weights, size).astype(np.float64)

    parts: dict[str, list[Floats]] = {role: [] for role in ("n", "x", "xx", "d", "dd", "xd")}
    for index in range(len(metrics)):
        column = rows.values[:, index]
        missing = np.isnan(column)
        known = ~missing if missing.any() else None
        x = _exact(column)
        for role, summed in {"n": None, "x": x, "xx": _exact(x * x), "d": d, "dd": dd, "xd": _exact(x * d)}.items():
            parts[role].append(total(summed, known))
    of = {role: np.stack(columns, axis=-1).reshape(*shape, -1) for role, columns in parts.items()}
    per = {"y": of["n"], "yy": of["n"], "xy": of["x"], "yd": of["d"], "unripe": np.zeros_like(of["n"])}
    return Sums(metrics, organisations, cells, slices={}, unplaced=(), **of, **per)


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
    """Means in the metric's unit (or log, see `Metric.scale`), log of a spread, Fisher's z of a correlation."""
    variance: Floats
    """Of ``value``, if rows were independent draws."""
    third: Floats
    """Third cumulant of ``value`` under the same: what counts rare events is skewed. 0 for amounts and shapes."""
    n: Floats
    """Rows."""
    unplaced: Floats
    """Share of the rows from strata without a reference, (cycles,)."""
    behaviour: tuple[bool, ...] = ()
    """False where a channel is watched and never blocks; without any, all are behaviour."""
    aliases: Mapping[Name, int] = field(default_factory=dict)
    """Channels left out because they have the same values as another: the position of that one."""
    constant: tuple[Name, ...] = ()
    """Channels left out because their level is the same in every cycle, reference or not."""
    maturity: Mapping[str, Floats] = field(default_factory=dict)
    """Of each metric that waits for users, the share of rows that are ripe, (cycles,)."""


def channels(sums: Sums, reference: int, ripe: float = 0.0) -> Channels:
    """The channels of a run whose first ``reference`` cycles are the reference.

    A metric has no value in a cycle in which less than the share ``ripe`` of its rows is: what is known early is known
    because something happened early, and is no fair sample.
    """
    slices = sums.slices or {name: (index,) for index, name in enumerate(sums.cells)}
    maturity, sums = _ripened(sums, ripe)
    parts = [_level_of(sums, WHOLE, tuple(range(len(sums.cells))), reference)]
    rows = sums.n[:reference].sum(axis=(0, 1)).max(axis=-1)
    for name, cells in slices.items():
        if name != WHOLE and rows[list(cells)].sum() <= LARGEST * rows.sum():
            parts.append(_level_of(sums, name, cells, reference))
    parts += _shapes(sums, reference)

    placed = (sums.n[:reference].sum(axis=0) > 0)[None]
    with np.errstate(invalid="ignore", divide="ignore"):
        counted = int(np.argmax(sums.n.sum(axis=(0, 1, 2))))  # the metric that is known of the most rows
        unplaced = ((sums.n * ~placed).sum(axis=(1, 2)) / sums.n.sum(axis=(1, 2)))[:, counted]
    series = Channels(
        kind=tuple(part.kind for part in parts for _ in part.metrics),
        metric=tuple(metric.name for part in parts for metric in part.metrics),
        slice=tuple(part.slice for part in parts for _ in part.metrics),
        value=np.concatenate([part.value for part in parts], axis=1),
        variance=np.concatenate([np.where(np.isnan(part.value), np.nan, part.variance) for part in parts], axis=1),
        third=np.concatenate([np.broadcast_to(part.third, part.value.shape) for part in parts], axis=1),
        n=np.concatenate([part.n for part in parts], axis=1),
        unplaced=unplaced,
        behaviour=tuple(metric.behaviour for part in parts for metric in part.metrics),
        maturity=maturity,
    )
    return _distinct(series)


@dataclass(frozen=True)
class _Part:
    """Channels of one kind and slice; arrays are (cycles, metrics)."""

    kind: Kind
    slice: str
    metrics: tuple[Metric, ...]
    value: Floats
    variance: Floats
    third: Floats | float
    n: Floats


def _ripened(sums: Sums, ripe: float) -> tuple[dict[str, Floats], Sums]:
    """Maturity of what waits, and sums in which a metric has no rows in a cycle that is not ripe."""
    n, unripe = (part.sum(axis=(1, 2)) for part in (sums.n, sums.unripe))
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(unripe > 0, n / (n + unripe), 1.0)
    waits = {metric.name: share[:, index] for index, metric in enumerate(sums.metrics) if unripe[:, index].any()}
    if not (share < ripe).any():
        return waits, sums
    kept = (share >= ripe)[:, None, None, :]
    return waits, replace(sums, **{role: getattr(sums, role) * kept for role in ROLES})


@dataclass(frozen=True)
class _Strata:
    """Sums by stratum, (cycles, strata, metrics), those of ratios in their linear form."""

    of: dict[str, Floats]
    event: Floats
    """By how much one event moves a row's value, (metrics,): 1 for a rate, a row's usual number of them for a ratio
    below 1. For amounts and other ratios, which count no events, it is 0."""
    per: Floats
    """Mean of Y over the reference, (metrics,)."""


def _strata(sums: Sums, cells: tuple[int, ...], chosen: Flags, reference: int) -> _Strata:
    """The strata of some cells, for the chosen metrics."""
    metrics = [metric for metric, yes in zip(sums.metrics, chosen, strict=True) if yes]
    ratio = np.array([metric.ratio for metric in metrics])
    of = {}
    for role in ROLES[:-1]:
        inside = getattr(sums, role)[:, :, list(cells)][..., chosen]
        of[role] = inside.reshape(len(inside), -1, inside.shape[-1])
    base = {role: of[role][:reference].sum(axis=(0, 1)) for role in ("n", "x", "xx", "y")}
    with np.errstate(divide="ignore", invalid="ignore"):
        level = np.where(base["y"] > 0, base["x"] / base["y"], 0.0)
        per = np.where(ratio & (base["y"] > 0), base["y"] / base["n"], 1.0)
        usual = np.where(base["x"] > 0, base["xx"] / base["x"], 1.0)
    distance = (of["x"] - level * of["y"]) / per
    square = (of["xx"] - 2 * level * of["xy"] + level**2 * of["yy"]) / per**2
    linear = {
        "x": level * of["n"] + distance,
        "xx": level**2 * of["n"] + 2 * level * distance + square,
        "xd": level * of["d"] + (of["xd"] - level * of["yd"]) / per,
    }
    counts = np.array([not metric.real for metric in metrics]) & (~ratio | (level < 1))
    event = np.where(counts, np.where(ratio, usual / per, 1.0), 0.0)
    return _Strata(of | {role: np.where(ratio, linear[role], of[role]) for role in linear}, event, per)


def _level_of(sums: Sums, name: str, cells: tuple[int, ...], reference: int) -> _Part:
    chosen = np.array([name == WHOLE or metric.behaviour for metric in sums.metrics])
    metrics = tuple(metric for metric, yes in zip(sums.metrics, chosen, strict=True) if yes)
    kind: Kind = "mean" if name == WHOLE else "slice"
    return _Part(kind, name, metrics, *_level(_strata(sums, cells, chosen, reference), reference))


def _level(strata: _Strata, reference: int) -> tuple[Floats, Floats, Floats, Floats]:
    """Levels on the reference's mix, their variances, third cumulants and rows: each (cycles, metrics).

    The spread within strata is the reference's, so that a rare event's variance is not 0 where it did not happen.
    Shares are cut at `MOST` times the rows there are. What counts events gets the variance of `_STRAY` of them on top:
    one event where there was never one is no alarm.
    """
    n, x, y = (strata.of[role] for role in ("n", "x", "y"))
    base = {role: strata.of[role][:reference].sum(axis=0) for role in ("n", "x", "xx", "y")}
    with np.errstate(divide="ignore", invalid="ignore"):
        level, usual = (np.where(base["n"] > 0, base[role] / base["n"], 0.0) for role in ("x", "y"))
        share = base["n"] / base["n"].sum(axis=0)
        centre = (share * level).sum(axis=0)
        spread = np.maximum((base["xx"] - base["n"] * level**2).sum(axis=0) / base["n"].sum(axis=0), 0.0)
        spread = np.where(spread > 1e-9 * centre**2, spread, 0.0)  # what rounding leaves of a constant
        weight = np.minimum(share, MOST * n / n.sum(axis=1, keepdims=True))
        weight = weight / weight.sum(axis=1, keepdims=True)
        distance = (weight * np.where(n > 0, x / n - level, 0.0)).sum(axis=1)
        per = strata.per + (weight * np.where(n > 0, y / n - usual, 0.0)).sum(axis=1)
        stretch = np.where(per > 0, strata.per / per, np.nan)
        rows = (n * (base["n"] > 0)).sum(axis=1)
        event = strata.event * stretch
        stray = _STRAY * (event / rows) ** 2
        variance = spread * stretch**2 * np.where(n > 0, weight**2 / n, 0.0).sum(axis=1) + stray
        # As of a binomial, whose third cumulant is its variance times (1 - 2 p) events.
        third = event * (1 - 2 * centre) * spread * stretch**2 * np.where(n > 0, weight**3 / n**2, 0.0).sum(axis=1)
        third += stray * event / rows
    return centre + stretch * distance, variance, third, rows


def _shapes(sums: Sums, reference: int) -> list[_Part]:
    """Spreads of amounts, and associations with difficulty."""
    behaviour = np.array([metric.behaviour for metric in sums.metrics])
    amount = np.array([metric.real and not metric.ratio for metric in sums.metrics])
    everything = tuple(range(len(sums.cells)))
    placed = tuple(index for index in everything if index not in sums.unplaced)
    found = []
    for kind, chosen, cells in (("spread", amount, everything), ("association", behaviour, placed)):
        if not chosen.any() or not cells:
            continue
        by_cell = _strata(sums, cells, chosen, reference).of
        whole = {
            role: by_cell[role].reshape(len(by_cell[role]), -1, len(cells), chosen.sum()).sum(axis=2)
            for role in ("n", "x", "xx", "d", "dd", "xd")
        }
        metrics = tuple(metric for metric, yes in zip(sums.metrics, chosen, strict=True) if yes)
        n, free, xx, dd, xd = _within(whole)
        with np.errstate(divide="ignore", invalid="ignore"):
            if kind == "spread":
                value = np.where((free >= FEWEST) & (xx > 0), np.log(xx / free) / 2, np.nan)
                found.append(_Part("spread", WHOLE, metrics, value, 1 / (2 * free), 0.0, n))
            else:
                correlation = np.clip(xd / np.sqrt(xx * dd), -1 + 1e-12, 1 - 1e-12)
                value = np.where((free >= FEWEST) & (xx > 0) & (dd > 0), np.arctanh(correlation), np.nan)
                found.append(_Part("association", WHOLE, metrics, value, 1 / (free - 2), 0.0, n))
    return found


def _within(whole: dict[str, Floats]) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Rows, degrees of freedom, and squares and products within organisations: each (cycles, metrics)."""
    n = whole["n"]
    with np.errstate(divide="ignore", invalid="ignore"):
        about = {
            name: np.where(n > 0, whole[name] - whole[left] * whole[right] / n, 0.0).sum(axis=1)
            for name, left, right in (("xx", "x", "x"), ("dd", "d", "d"), ("xd", "x", "d"))
        }
        # What rounding leaves of a constant.
        about["xx"] = np.where(about["xx"] > 1e-9 * whole["xx"].sum(axis=1), about["xx"], 0.0)
    rows = n.sum(axis=1)
    free = np.maximum(rows - (n > 0).sum(axis=1), 0.0)
    return rows, free, about["xx"], about["dd"], about["xd"]


def _distinct(series: Channels) -> Channels:
    """Without channels that never varied, and with one of those that are the same."""
    names: list[Name] = list(zip(series.kind, series.metric, series.slice, strict=True))
    dead: set[tuple[str, str]] = set()
    constant: list[Name] = []
    kept: list[int] = []
    first: dict[tuple[bytes, bytes], int] = {}
    aliases: dict[Name, int] = {}
    for index, name in enumerate(names):
        value = series.value[:, index]
        known = value[~np.isnan(value)]
        level = name[0] in ("mean", "slice") and len(known) > 0
        flat = level and np.ptp(known) <= 1e-9 * np.abs(known).max()
        if flat or (name[0] in ("spread", "association") and (name[1], WHOLE) in dead):
            constant.append(name)
            dead.add((name[1], name[2]))
            continue
        key = (value.tobytes(), series.variance[:, index].tobytes())
        if len(known) and key in first:
            aliases[name] = first[key]
            continue
        first[key] = len(kept)
        kept.append(index)
    return replace(
        series,
        kind=tuple(series.kind[index] for index in kept),
        metric=tuple(series.metric[index] for index in kept),
        slice=tuple(series.slice[index] for index in kept),
        value=series.value[:, kept],
        variance=series.variance[:, kept],
        third=series.third[:, kept],
        n=series.n[:, kept],
        behaviour=tuple(series.behaviour[index] for index in kept),
        aliases=aliases,
        constant=tuple(constant),
    )
