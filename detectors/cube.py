"""The cube: sums and histograms per cell that statistics are made of, from one pass over observations.

A cell is a cycle with one value of every slice dimension. Cubes of partitions add up to the cube of the whole, in any
order and to the last digit (see `Statistic.real`): what one machine cannot scan, several can.

Sums come from one DuckDB query. Histograms come from a second one over their few columns, whose rows are streamed with
the number of their cell and counted by NumPy: a group-by on cell and bin has nearly as many groups as rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy import sparse

from palomar.data.observations import OBSERVATIONS
from palomar.data.slices import BANDS
from palomar.detectors.statistics import Grid, Statistic, expanded

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

DIMENSIONS = ("predicted_failure", "ambiguity", "organisation", "work_kind", "language", "arm")
"""What slices are made of."""

_BATCH = 1_000_000
_DENSE = 1 << 24  # histogram cells up to which counting into one array beats sorting
_LOG_STEPS, _LOG_LOW, _LOG_HIGH = 8, -10, 24  # bins a doubling, from 2^-10 (0.001) to 2^24 (1.7e7)
_LOG_BINS = _LOG_STEPS * (_LOG_HIGH - _LOG_LOW) + 2
_LIFE_STEPS, _LIFE_TIMES = 4, 101  # times a doubling; 1 s, ..., 2^25 s (about a year)
_HALF_BINS = 514  # up to 0, 0.5, ..., 256, and beyond

Cell = tuple[Any, ...]
"""cycle (or None), then a word or None per dimension."""


@dataclass(frozen=True)
class Cube:
    """Partial sums per cell."""

    statistics: tuple[Statistic, ...]
    cells: tuple[Cell, ...]
    sums: Mapping[str, Floats]
    """Arrays of shape (cells,), named by what they sum."""
    histograms: Mapping[str, sparse.csr_matrix]
    """Counts of shape (cells, bins), named by what they count."""


def cube(connection: duckdb.DuckDBPyConnection, relation: str = "observations") -> Cube:
    """The cube of all registered statistics over a relation with the columns of ``observations``.

    Statistics of reward terms and reasons of exclusion are those that the relation has.
    """
    columns = [name for name, *_ in connection.execute(f"SELECT * FROM {relation} LIMIT 0").description or ()]
    reasons = connection.execute(
        f"SELECT DISTINCT exclusion FROM {relation} WHERE exclusion IS NOT NULL ORDER BY exclusion"
    ).fetchall()
    statistics = expanded(columns, [reason for (reason,) in reasons])
    names = list(dict.fromkeys(sql for statistic in statistics for sql in sums_of(statistic).values()))
    grouped = ", ".join(f"{sql} AS {name}" for name, sql in zip(DIMENSIONS, _DIMENSION_SQL, strict=True))
    summed = ", ".join(f"({sql})::DOUBLE" for sql in names)
    table = connection.execute(f"SELECT cycle, {grouped}, {summed} FROM {relation} GROUP BY ALL").to_arrow_table()
    keys = table.select(range(1 + len(DIMENSIONS)))
    sums = {name: table.column(1 + len(DIMENSIONS) + index).to_numpy() for index, name in enumerate(names)}
    histograms = _histograms(connection, relation, keys, statistics)
    known = {name: np.nan_to_num(values) for name, values in sums.items()}  # nothing to sum is a sum of 0
    return merge(Cube(statistics, tuple(_cells(keys)), known, histograms))  # merged alone: in the order of cells


def merge(*cubes: Cube) -> Cube:
    """The cube of all rows of the given cubes."""
    statistics = {statistic.name: statistic for part in cubes for statistic in part.statistics}
    cells = sorted({cell for part in cubes for cell in part.cells}, key=_order)
    place = {cell: index for index, cell in enumerate(cells)}
    rows = np.array([place[cell] for part in cubes for cell in part.cells], dtype=np.int64)
    move = sparse.csr_matrix((np.ones(len(rows)), (rows, np.arange(len(rows)))), shape=(len(cells), len(rows)))

    names = list(dict.fromkeys(name for part in cubes for name in part.sums))
    # What a partition does not have, it has none of: terms and reasons differ from one to the next.
    sums = np.hstack([np.stack([part.sums.get(name, np.zeros(len(part.cells))) for name in names]) for part in cubes])

    def piled(name: str) -> sparse.csr_matrix:
        bins = next(part.histograms[name].shape[1] for part in cubes if name in part.histograms)
        empty = [sparse.csr_matrix((len(part.cells), bins)) for part in cubes]
        return sparse.vstack([part.histograms.get(name, none) for part, none in zip(cubes, empty, strict=True)])

    return Cube(
        tuple(statistics.values()),
        tuple(cells),
        dict(zip(names, (move @ sums.T).T, strict=True)),
        {name: move @ piled(name) for name in dict.fromkeys(name for part in cubes for name in part.histograms)},
    )


def _order(cell: Cell) -> tuple[Any, ...]:
    return tuple((value is None, value) for value in cell)


def _dimension(name: str) -> str:
    """SQL of a slice dimension: small integers for bands (named in `_cells`), so that grouping stays cheap."""
    if name not in BANDS:
        return name
    edges = BANDS[name][0]
    cases = " ".join(f"WHEN {name} < {edge} THEN {index}" for index, edge in enumerate(edges))
    return f"CASE {cases} WHEN {name} IS NOT NULL THEN {len(edges)} END"


_DIMENSION_SQL = [_dimension(name) for name in DIMENSIONS]


def _cells(keys: pa.Table) -> list[Cell]:
    columns = [keys["cycle"].to_pylist()]
    for name in DIMENSIONS:
        values = keys[name].to_pylist()
        names = BANDS.get(name, ((), ()))[1]
        columns.append([names[value] if names and value is not None else value for value in values])
    return list(zip(*columns, strict=True))


# -- sums --------------------------------------------------------------------------------------------------------


def sums_of(statistic: Statistic) -> dict[str, str]:
    """SQL aggregates a statistic is made of, by their role; equal SQL of several statistics is summed once."""
    numerator = f"({statistic.numerator})"
    if statistic.kind == "rate":
        counted = _known(numerator) if statistic.denominator == "1" else [f"({statistic.denominator})"]
        among = _all(_where(statistic), *counted)
        roles = {"n": _count(among), "x": f"count_if({_all(among, numerator)})"}
    elif statistic.kind == "mean":
        known = _all(_where(statistic), *_known(numerator))
        x = _if(_where(statistic), numerator)
        roles = {"n": _count(known), "x": _sum(x, statistic), "xx": _sum(f"{x} * {x}", statistic)}
    elif statistic.kind == "ratio":
        denominator = f"({statistic.denominator})"
        known = _all(_where(statistic), *_known(numerator), *_known(denominator))
        x = _if(_all(_where(statistic), *_known(denominator)), numerator)
        y = _if(_all(_where(statistic), *_known(numerator)), denominator)
        products = {"x": x, "y": y, "xx": f"{x} * {x}", "yy": f"{y} * {y}", "xy": f"{x} * {y}"}
        roles = {"n": _count(known)} | {role: _sum(sql, statistic) for role, sql in products.items()}
    else:
        roles = {}
    if statistic.unripe is not None:
        roles["unripe"] = f"count_if({statistic.unripe})"
    return roles


def _where(statistic: Statistic) -> str:
    return statistic.where if statistic.where == "true" else f"({statistic.where})"


def _all(*conditions: str) -> str:
    return " AND ".join(condition for condition in conditions if condition != "true") or "true"


def _known(sql: str) -> list[str]:
    """Condition that an expression has a value; none where all its columns always have one."""
    words = set(re.findall(r"[A-Za-z_]\w*", sql))
    certain = words <= _NEVER_NULL and '"' not in sql
    return [] if certain else [f"{sql} IS NOT NULL"]


_NEVER_NULL = {field.name for field in OBSERVATIONS if not field.nullable}


def _if(condition: str, value: str) -> str:
    number = f"({value})::DOUBLE"
    return number if condition == "true" else f"CASE WHEN {condition} THEN {number} END"


def _count(condition: str) -> str:
    return "count(*)" if condition == "true" else f"count_if({condition})"


def _sum(value: str, statistic: Statistic) -> str:
    # Adding and taking away 1.5 * 2^32 rounds a double to a multiple of 2^-20: two additions, where round() is a call.
    return f"sum(({value}) + 6442450944.0 - 6442450944.0)" if statistic.real else f"sum({value})"


# -- histograms --------------------------------------------------------------------------------------------------


def histograms_of(statistic: Statistic) -> dict[str, str]:
    """Names of the histograms a statistic is made of, by their role."""
    if statistic.kind == "quantile":
        return {"counts": f"{statistic.grid}:{_value(statistic)}"}
    if statistic.kind == "survival":
        return {"lost": f"lost:{_value(statistic)}", "watched": f"watched:{_value(statistic)}"}
    return {}


def _value(statistic: Statistic) -> str:
    """SQL of what is binned. Survival: seconds until the loss, or minus the seconds watched without one (0 is -0.0)."""
    value = f"({statistic.numerator})"
    if statistic.kind == "survival":
        value = f"coalesce({value}::DOUBLE, -({statistic.denominator})::DOUBLE)"
    where = _where(statistic)
    return value if where == "true" else f"CASE WHEN {where} THEN {value} END"


def _histograms(
    connection: duckdb.DuckDBPyConnection, relation: str, keys: pa.Table, statistics: Sequence[Statistic]
) -> dict[str, sparse.csr_matrix]:
    binned = {_value(statistic): statistic for statistic in statistics if histograms_of(statistic)}
    horizons = horizons_of(statistics)
    counts = {
        name: _Counter(len(keys), num_bins(name, horizons))
        for statistic in binned.values()
        for name in histograms_of(statistic).values()
    }
    for cell, columns in _stream(connection, relation, keys, list(binned)):
        for statistic, column in zip(binned.values(), columns, strict=True):
            for name, rows, bins in _binned(statistic, column, horizons):
                counts[name].add(cell[rows], bins)
    return {name: counter.result() for name, counter in counts.items()}


def _stream(
    connection: duckdb.DuckDBPyConnection, relation: str, keys: pa.Table, values: Sequence[str]
) -> Iterator[tuple[Ints, list[Floats]]]:
    """Batches of the rows' cells and values (NaN for null)."""
    named = [f"k{index}" for index in range(keys.num_columns)]
    connection.register("cells", keys.rename_columns(named).append_column("cell", pa.array(np.arange(len(keys)))))
    dimensions = ", ".join(f"{sql} AS {name}" for sql, name in zip(["cycle", *_DIMENSION_SQL], named, strict=True))
    listed = ", ".join(f"({sql})::DOUBLE AS v{index}" for index, sql in enumerate(values))
    same = " AND ".join(f"cells.{name} IS NOT DISTINCT FROM rows.{name}" for name in named)
    columns = ", ".join(f"v{index}" for index in range(len(values)))
    reader = connection.execute(
        f"SELECT cell, {columns} FROM (SELECT {dimensions}, {listed} FROM {relation}) AS rows JOIN cells ON {same}"
    ).to_arrow_reader(_BATCH)
    for batch in reader:
        cell, *rest = batch.columns
        yield cell.to_numpy(), [column.to_numpy(zero_copy_only=False) for column in rest]
    connection.unregister("cells")


def _binned(
    statistic: Statistic, column: Floats, horizons: Floats
) -> Iterator[tuple[str, npt.NDArray[np.bool_], Ints]]:
    """Histogram, rows it counts, and their bins."""
    names = histograms_of(statistic)
    known = ~np.isnan(column)
    if statistic.kind == "survival":
        lost = known & ~np.signbit(column)
        yield names["lost"], lost, times_before(column[lost], horizons)
        watched = known & np.signbit(column)
        yield names["watched"], watched, times_up_to(-column[watched], horizons)
    elif statistic.grid == "half":
        yield names["counts"], known, np.clip(np.ceil(2 * column[known]), 0, _HALF_BINS - 1).astype(np.int64)
    else:
        with np.errstate(divide="ignore"):
            index = np.ceil(_LOG_STEPS * (np.log2(column[known]) - _LOG_LOW))
        yield names["counts"], known, np.clip(index, 0, _LOG_BINS - 1).astype(np.int64)


class _Counter:
    """Counts of bins per cell: in one array while that is small, else sorted batch by batch."""

    def __init__(self, num_cells: int, num_bins: int) -> None:
        self._shape = (num_cells, num_bins)
        self._dense = np.zeros(num_cells * num_bins, dtype=np.int64) if num_cells * num_bins <= _DENSE else None
        self._sparse = sparse.csr_matrix(self._shape, dtype=np.int64)

    def add(self, cell: Ints, bins: Ints) -> None:
        if self._dense is not None:
            self._dense += np.bincount(cell * self._shape[1] + bins, minlength=len(self._dense))
        else:
            ones = np.ones(len(cell), dtype=np.int64)
            self._sparse = self._sparse + sparse.csr_matrix((ones, (cell, bins)), shape=self._shape)

    def result(self) -> sparse.csr_matrix:
        return self._sparse if self._dense is None else sparse.csr_matrix(self._dense.reshape(self._shape))


# -- grids -------------------------------------------------------------------------------------------------------


def upper_edges(grid: Grid) -> Floats:
    """Upper edges of a quantile's bins but the last, which has none."""
    if grid == "half":
        return np.arange(_HALF_BINS - 1) / 2
    return np.exp2(_LOG_LOW + np.arange(_LOG_BINS - 1) / _LOG_STEPS)


def horizons_of(statistics: Sequence[Statistic]) -> Floats:
    """All horizons, ascending; they are times of the life tables' grid, so that each is met exactly."""
    return np.array(sorted({statistic.horizon.seconds for statistic in statistics if statistic.horizon is not None}))


def times_before(seconds: Floats, horizons: Floats) -> Ints:
    """Number of grid times before a moment: the interval of `palomar.data.clock.life_table` in which a loss falls."""
    with np.errstate(divide="ignore"):
        steps = np.clip(np.ceil(_LIFE_STEPS * np.log2(seconds)), 0, _LIFE_TIMES)
    passed: Ints = (steps + np.searchsorted(horizons, seconds, side="left")).astype(np.int64)
    return passed


def times_up_to(seconds: Floats, horizons: Floats) -> Ints:
    """Number of grid times up to a moment and at it: those that a row was watched to."""
    with np.errstate(divide="ignore"):
        steps = np.clip(np.floor(_LIFE_STEPS * np.log2(seconds)) + 1, 0, _LIFE_TIMES)
    passed: Ints = (steps + np.searchsorted(horizons, seconds, side="right")).astype(np.int64)
    return passed


def num_bins(name: str, horizons: Floats) -> int:
    """Number of bins of a histogram by its name."""
    sizes = {"half": _HALF_BINS, "log": _LOG_BINS}
    return sizes.get(name.split(":", maxsplit=1)[0], _LIFE_TIMES + len(horizons) + 1)
