"""Measures all behaviour statistics in all slices: one cube of sums that add up, then series with intervals.

    observations  --(DuckDB, once)-->  Cube  --(merge with cubes of other partitions)-->  Cube  -->  series

A cube holds, for every cell (cycle x all slice dimensions), the sums that the statistics are made of: counts, sums,
squares and products, and histograms with fixed edges. Cubes of partitions add up to the cube of the whole, to the last
digit (`Statistic.real`), in any order. A slice is one value of one dimension; ``all`` is everything.

Intervals are 95 % and take rows as independent draws: Wilson's for rates, the delta method for ratios, normal for
means, order statistics for quantiles, log-log Greenwood for survival. Rows of one user are alike, so where few users
make most rows they are too narrow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy import sparse

from palomar.data.clock import life_table
from palomar.data.lake import Lake
from palomar.data.slices import ALL
from palomar.data.store.records import Statistic as Point
from palomar.detectors.cube import (
    DIMENSIONS,
    Cube,
    cube,
    histograms_of,
    horizons_of,
    sums_of,
    times_before,
    upper_edges,
)
from palomar.detectors.intervals import Estimate, from_histogram, from_sums, from_survival, of_counts, wilson
from palomar.detectors.statistics import Statistic

Floats = npt.NDArray[np.float64]

UNKNOWN = "unknown"

SERIES = pa.schema(
    [
        pa.field("cycle", pa.int32()),  # null: logs from outside a loop
        pa.field("slice", pa.string(), nullable=False),  # all, or dimension=value
        pa.field("statistic", pa.string(), nullable=False),
        pa.field("value", pa.float64()),  # null unless status = ok
        pa.field("low", pa.float64()),
        pa.field("high", pa.float64()),
        pa.field("n", pa.int64(), nullable=False),  # size of the denominator: rows, or what a ratio is per
        pa.field("status", pa.string(), nullable=False),  # ok | no data | immature | not estimable
        pa.field("maturity", pa.float64()),  # share of the rows watched long enough; null where none is waited for
    ]
)


def measure(lake: Lake, cycles: Sequence[int | None]) -> list[Point]:
    """All statistics in all slices of some cycles, as the store keeps them; None: logs from outside a loop."""
    with lake.connect(["observations"], cycles) as connection:
        return [Point(**row) for row in series(cube(connection)).to_pylist()]


def series(measured: Cube) -> pa.Table:
    """Value, interval, n, status and maturity per cycle, slice and statistic, with the columns of ``SERIES``.

    A slice in which a statistic has no rows says so (``no data``) where the cycle has some; a statistic that a whole
    cycle lacks is said to lack it once, for ``all``.
    """
    groups = _groups(measured)
    horizons = horizons_of(measured.statistics)
    columns: list[dict[str, npt.NDArray[np.generic]]] = []
    for statistic in measured.statistics:
        result = _result(statistic, groups, horizons)
        shown = np.flatnonzero((result.num_rows[groups.all_of] > 0) | groups.is_all)
        columns.append(_columns(statistic, result, shown))
    joined = {name: np.concatenate([part[name] for part in columns]) for name in columns[0]}
    group = pa.array(joined.pop("group"))
    table = pa.table(
        [
            pa.array(groups.cycle, pa.int32()).take(group),
            pa.array(groups.slice, pa.string()).take(group),
            pa.array([statistic.name for statistic in measured.statistics]).take(
                pa.array(np.repeat(np.arange(len(columns)), [len(part["group"]) for part in columns]))
            ),
            # NaN is "no value" in NumPy, null is in Arrow.
            *(pa.array(joined[field.name], field.type, from_pandas=True) for field in list(SERIES)[3:]),
        ],
        schema=SERIES,
    )
    return table.sort_by([("cycle", "ascending"), ("slice", "ascending"), ("statistic", "ascending")])


@dataclass(frozen=True)
class _Groups:
    """Slices of cycles, with the cube's sums over the cells of each."""

    cycle: list[int | None]
    slice: list[str]
    sums: Mapping[str, Floats]
    histograms: Mapping[str, Floats]
    all_of: npt.NDArray[np.int64]
    """Position of the whole cycle that a slice is of."""

    @property
    def is_all(self) -> npt.NDArray[np.bool_]:
        """True for whole cycles."""
        whole: npt.NDArray[np.bool_] = self.all_of == np.arange(len(self.all_of))
        return whole


def _groups(measured: Cube) -> _Groups:
    """Every value of every dimension in every cycle; a dimension that is unknown throughout makes no slices."""
    place: dict[tuple[int | None, str], int] = {}
    member, cell_of = [], []
    known = [any(cell[1 + index] is not None for cell in measured.cells) for index in range(len(DIMENSIONS))]
    for number, (cycle, *values) in enumerate(measured.cells):
        names = [ALL] + [
            f"{dimension}={UNKNOWN if value is None else value}"
            for dimension, value, some in zip(DIMENSIONS, values, known, strict=True)
            if some
        ]
        for name in names:
            member.append(place.setdefault((cycle, name), len(place)))
            cell_of.append(number)
    shape = (len(place), len(measured.cells))
    over = sparse.csr_matrix((np.ones(len(member)), (member, cell_of)), shape=shape)
    return _Groups(
        cycle=[cycle for cycle, _ in place],
        slice=[name for _, name in place],
        sums=dict(zip(measured.sums, (over @ np.stack(list(measured.sums.values())).T).T, strict=True)),
        histograms={name: (over @ counts).toarray() for name, counts in measured.histograms.items()},
        all_of=np.array([place[cycle, ALL] for cycle, _ in place], dtype=np.int64),
    )


@dataclass(frozen=True)
class _Result:
    """One statistic in every group; arrays are (groups,)."""

    estimate: Estimate
    """NaN where there is no value."""
    n: Floats
    num_rows: Floats
    """Rows that count, or would once they are ripe."""
    maturity: Floats
    """NaN where there are no rows."""


def _result(statistic: Statistic, groups: _Groups, horizons: Floats) -> _Result:
    if statistic.kind == "survival":
        return _survival(statistic, groups, horizons)
    sums = {role: groups.sums[sql] for role, sql in sums_of(statistic).items()}
    match statistic.kind:
        case "rate":
            n = sums["n"]
            estimate = wilson(sums["x"], n)
        case "mean":
            n = sums["n"]
            estimate = from_sums(n, x=sums["x"], y=n, xx=sums["xx"], yy=n, xy=sums["x"])  # every y is 1
        case "ratio":
            n = sums["y"]
            moments = {role: sums[role] for role in ("x", "y", "xx", "yy", "xy")}
            estimate = of_counts(sums["n"], from_sums(sums["n"], **moments), sums["x"], n)
        case _:
            counts = groups.histograms[histograms_of(statistic)["counts"]]
            n = counts.sum(axis=1)
            edges = upper_edges(statistic.grid)
            estimate = from_histogram(counts, edges, statistic.quantile, interpolate=statistic.grid == "log")
    unripe = sums.get("unripe", np.zeros_like(n))
    with np.errstate(invalid="ignore"):
        maturity = n / (n + unripe)
    return _Result(estimate, n, n + unripe, maturity)


def _survival(statistic: Statistic, groups: _Groups, horizons: Floats) -> _Result:
    assert statistic.horizon is not None
    names = histograms_of(statistic)
    lost, watched = (groups.histograms[names[role]].astype(np.int64) for role in ("lost", "watched"))
    last = int(times_before(np.array([statistic.horizon.seconds]), horizons)[0])
    n = (lost + watched).sum(axis=1).astype(np.float64)
    settled = lost[:, : last + 1].sum(axis=1) + lost[:, last + 1 :].sum(axis=1) + watched[:, last + 1 :].sum(axis=1)
    with np.errstate(invalid="ignore"):
        maturity = settled / n
    return _Result(from_survival(life_table(lost, watched, last)), n, n, maturity)


def _columns(statistic: Statistic, result: _Result, shown: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[np.generic]]:
    """Columns of the series for some groups (their positions are ``group``); NaN is no value."""
    value = result.estimate.value[shown]
    waits = statistic.unripe is not None or statistic.kind == "survival"
    unknown = "not estimable" if statistic.kind == "survival" else "immature"
    status = np.where(result.num_rows[shown] > 0, unknown, "no data")
    return {
        "group": shown,
        "value": value,
        "low": result.estimate.low[shown],
        "high": result.estimate.high[shown],
        "n": np.rint(result.n[shown]).astype(np.int64),
        "status": np.where(np.isnan(value), status, "ok").astype(np.object_),
        "maturity": result.maturity[shown] if waits else np.full(len(shown), np.nan),
    }
