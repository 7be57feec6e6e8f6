"""The drift layer's sums (`palomar.detectors.channels.Sums`) of real runs, from the lake's observations.

One group-by a cycle, over organisation and cell of context (band of predicted failure x band of ambiguity), kept beside
the lake, so that looking again costs the new cycle only. What is charted:

- the registered statistics that are made of behaviour, those whose pressure is taken
  (`palomar.detectors.pressure.measured_statistics`), in every slice;
- what users and scorers made of it (`WATCHED`), over everything only: it warns and never blocks.

Long-tailed numbers are summed as log(1 + x): tokens, latency, functions of a file. One stuck run, or one huge file,
moves the mean of a cycle by more than any habit of the agent does, and a limit taken from the reference's quantiles
would make the sums of a cycle depend on which cycles it is compared with.

Difficulty, for associations, is the middle of one of five bands of predicted failure: products with it then follow from
sums by band, and a scan costs half as much.

Organisations with few rows are pooled (`OTHERS`), first within a cycle and then over the reference, so that their
number is bounded however many there are.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise, product

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from palomar.data.derived import derived
from palomar.data.lake import Lake
from palomar.data.observations import OBSERVATIONS
from palomar.data.schema import content_id
from palomar.data.slices import BANDS
from palomar.data.slices import SLICES as PRESSURE_SLICES
from palomar.detectors.channels import ROLES, WHOLE, Metric, Sums
from palomar.detectors.pressure import measured_statistics
from palomar.detectors.statistics import STATISTICS, Statistic

Floats = npt.NDArray[np.float64]

WATCHED = (
    "outcome_mean",
    "dissatisfied_rate",
    "reward_mean",
    "training_reward_mean",
    "logged_reward_mean",
    "reward_invalid_rate",
    "excluded_rate",
)
"""Charted without being behaviour."""

LONG_TAILED = ("tokens_in", "tokens_out", "latency_s", "functions_after")
"""Columns whose mean is charted as the mean of log(1 + x)."""

SLICES: Mapping[str, Mapping[str, str]] = {name: bands for name, bands in PRESSURE_SLICES.items() if name != WHOLE}
"""Bands by slice: those in which the pressure is taken."""

UNKNOWN, OTHERS = "unknown", "(others)"
_TOGETHER = 20  # cycles that are counted by one query
RARE, FEW = 0.005, 0.02
"""Share of a cycle's rows, and of the reference's, below which an organisation is pooled with others."""

_DIMENSIONS = tuple(BANDS)
_CELLS = tuple(product(*((*names, UNKNOWN) for _, names in BANDS.values())))
_AMBIGUITIES = (*BANDS["ambiguity"][1], UNKNOWN)
_EDGES = tuple(sorted({0.2, 0.4, 0.6, 0.8, *BANDS["predicted_failure"][0]}))
_MIDDLES = tuple((low + high) / 2 for low, high in pairwise((0.0, *_EDGES, 1.0)))
_FINE_CELLS = tuple(product((*_MIDDLES, None), _AMBIGUITIES))
_SUMMED = ("n", "x", "xx", "y", "yy", "xy", "unripe")


def charted() -> tuple[Statistic, ...]:
    """The registered statistics that are charted."""
    behaviour = [item for item in measured_statistics() if item.name not in WATCHED]
    return (*behaviour, *(STATISTICS[name] for name in WATCHED if name in STATISTICS))


def metric_of(statistic: Statistic) -> Metric:
    """How the drift layer charts a statistic."""
    return Metric(
        name=statistic.name,
        real=statistic.kind == "mean",
        ratio=statistic.kind == "ratio",
        scale="log" if statistic.kind == "mean" and statistic.numerator in LONG_TAILED else "plain",
        behaviour=statistic.name not in WATCHED,
    )


def sums_of_lake(
    lake: Lake, cycles: Sequence[int], reference: int, statistics: Sequence[Statistic] | None = None
) -> Sums:
    """Sums of cycles in the order given, of which the first ``reference`` are the reference.

    Organisations are told apart that have at least the share `FEW` of the reference's rows; one that the reference does
    not have at all, while it is more than `RARE`, is told apart too, since nothing can be said of a change in it.
    """
    chosen = charted() if statistics is None else tuple(statistics)
    parts = _of_cycles(lake, cycles, chosen)
    known = _organisations(parts, reference)
    position = {name: index for index, name in enumerate(known)}
    shape = (len(cycles), len(known), len(_CELLS), len(chosen))
    sums = {role: np.zeros((shape[0], int(np.prod(shape[1:])))) for role in ROLES}
    coarse = np.array([_cell_of(*cell) for cell in _FINE_CELLS])
    middle = np.array([failure or 0.0 for failure, _ in _FINE_CELLS])
    for number, part in enumerate(parts):
        encoded = part["organisation"].combine_chunks().dictionary_encode()
        pooled = position.get(OTHERS, 0)
        of_name = np.array([position.get(name, pooled) for name in encoded.dictionary.to_pylist()], dtype=np.int64)
        cell = part["cell"].to_numpy()
        place = of_name[np.asarray(encoded.indices)] * shape[2] + coarse[cell]
        place = place * shape[3] + part["metric"].to_numpy()
        d = middle[cell]
        columns = {role: part[role].to_numpy() for role in _SUMMED}
        columns |= {"d": columns["n"] * d, "dd": columns["n"] * d**2, "xd": columns["x"] * d, "yd": columns["y"] * d}
        for role, column in columns.items():
            sums[role][number] = np.bincount(place, column, sums[role].shape[1])
    slices = {
        name: tuple(
            index
            for index, cell in enumerate(_CELLS)
            if all(cell[_DIMENSIONS.index(dimension)] == band for dimension, band in bands.items())
        )
        for name, bands in SLICES.items()
    }
    return Sums(
        metrics=tuple(metric_of(item) for item in chosen),
        organisations=tuple(known),
        cells=tuple(f"predicted_failure={failure},ambiguity={ambiguity}" for failure, ambiguity in _CELLS),
        **{role: summed.reshape(shape) for role, summed in sums.items()},
        slices=slices,
        unplaced=tuple(index for index, (failure, _) in enumerate(_CELLS) if failure == UNKNOWN),
    )


def _cell_of(middle: float | None, ambiguity: str) -> int:
    """Position in ``_CELLS`` of a fine cell."""
    edges, names = BANDS["predicted_failure"]
    return _CELLS.index((UNKNOWN if middle is None else names[bisect(edges, middle)], ambiguity))


def _organisations(parts: Sequence[pa.Table], reference: int) -> list[str]:
    """Names that are told apart, in alphabetical order."""
    counted: dict[str, float] = {}
    for part in parts[:reference]:
        # Some metrics count all rows, so the largest n of a cell is its rows.
        cells = part.group_by(["organisation", "cell"]).aggregate([("n", "max")])
        sizes = cells.group_by("organisation").aggregate([("n_max", "sum")])
        for name, size in zip(sizes["organisation"].to_pylist(), sizes["n_max_sum"].to_pylist(), strict=True):
            counted[name] = counted.get(name, 0.0) + size
    total = sum(counted.values())
    large = {name for name, size in counted.items() if size >= FEW * total}
    new = {name for part in parts[reference:] for name in pc.unique(part["organisation"]).to_pylist()} - set(counted)
    return sorted(large | new | {OTHERS})


# -- one cycle -----------------------------------------------------------------------------------------------------


def _of_cycles(lake: Lake, cycles: Sequence[int], statistics: Sequence[Statistic]) -> list[pa.Table]:
    """Sums of each cycle: a row per organisation, cell and metric, with ``_SUMMED`` as columns; kept beside the lake.

    Cycles that are not there yet are counted together, some at a time: planning such a query takes as long as counting
    a small cycle.
    """
    inner, sums = _sql(statistics)
    version = content_id(_SIZES, *inner, *sums.values())

    def kept(cycle: int, make: Callable[[], pa.Table]) -> pa.Table:
        return derived(lake, "drift", cycle, version=version, parts=[("observations", [cycle])], make=make)

    def missing() -> pa.Table:
        raise _MissingError

    found: dict[int, pa.Table] = {}
    absent = []
    for cycle in cycles:
        try:
            found[cycle] = kept(cycle, missing)
        except _MissingError:
            absent.append(cycle)
    for first in range(0, len(absent), _TOGETHER):
        together = absent[first : first + _TOGETHER]
        for cycle, table in _counted(lake, together, inner, sums, len(statistics)).items():
            found[cycle] = kept(cycle, partial(_same, table))
    return [found[cycle] for cycle in cycles]


class _MissingError(Exception):
    """A cycle was not counted yet."""


def _same(table: pa.Table) -> pa.Table:
    return table


def _counted(
    lake: Lake, cycles: Sequence[int], inner: Sequence[str], sums: Mapping[tuple[int, str], str], num_statistics: int
) -> dict[int, pa.Table]:
    """Sums of cycles that are not kept yet; in one order, so that what is added up from them comes out the same."""
    asked = list(dict.fromkeys(sums.values()))
    with lake.connect(["observations"], cycles) as connection:
        connection.execute(f"CREATE TEMP TABLE sizes AS {_SIZES}")
        pooled = connection.execute("SELECT count(*) FROM sizes WHERE rare").fetchone() != (0,)
        organisation = _POOLED if pooled else _ORGANISATION
        listed = ", ".join([f"{organisation} AS organisation", *inner])
        wide = connection.execute(
            f"SELECT cycle, organisation, cell, {', '.join(asked)} FROM (SELECT {listed} FROM observations) "
            "GROUP BY cycle, organisation, cell ORDER BY cycle, organisation, cell"
        ).to_arrow_table()
    columns = np.array([np.nan_to_num(column.to_numpy().astype(np.float64)) for column in wide.columns[3:]])
    of = columns.reshape(len(asked), -1)[[asked.index(sql) for sql in sums.values()]]
    stacked = of.reshape(num_statistics, len(_SUMMED), wide.num_rows)
    at = wide["cycle"].to_numpy()
    found = {}
    for cycle in cycles:
        here = np.flatnonzero(at == cycle)
        metric, place = np.nonzero(stacked[:, :, here].any(axis=1))
        row = here[place]
        found[cycle] = pa.table(
            {
                "organisation": wide["organisation"].take(pa.array(row)),
                "cell": wide["cell"].cast(pa.int64()).take(pa.array(row)),
                "metric": pa.array(metric),
                **{role: pa.array(stacked[metric, index, row]) for index, role in enumerate(_SUMMED)},
            }
        )
    return found


_ORGANISATION = f"coalesce(organisation, '{UNKNOWN}')"
_SIZES = (
    f"SELECT cycle, {_ORGANISATION} AS name, count(*) < {RARE} * sum(count(*)) OVER (PARTITION BY cycle) AS rare "
    "FROM observations GROUP BY cycle, name"
)
_POOLED = (
    f"CASE WHEN (cycle, {_ORGANISATION}) IN (SELECT (cycle, name) FROM sizes WHERE rare) THEN '{OTHERS}' "
    f"ELSE {_ORGANISATION} END"
)
_ROUND = "({} + 6442450944.0 - 6442450944.0)"  # to a multiple of 2^-20, as in `palomar.detectors.cube`
_ROUND_LOG = "({} + 6597069766656.0 - 6597069766656.0)"  # of 2^-10: a log to a thousandth, whose square needs no more


def _sql(statistics: Sequence[Statistic]) -> tuple[list[str], dict[tuple[int, str], str]]:
    """Columns of the rows (but their organisation), and the aggregate of each statistic, by position, and role.

    Aggregates are what a scan costs, so equal ones are asked for once, and CASE stands for FILTER, which is slower.
    """
    inner = ["cycle", f"{_cell()} AS cell"]
    found: dict[tuple[int, str], str] = {}
    named: dict[str, str] = {}

    def column(sql: str) -> str:
        if sql not in named:
            named[sql] = f"c{len(named)}"
            inner.append(f"{sql} AS {named[sql]}")
        return named[sql]

    for index, item in enumerate(statistics):
        roles = _roles(item, metric_of(item), column)
        found |= {(index, role): roles.get(role, "0") for role in _SUMMED}
    return inner, found


def _roles(item: Statistic, metric: Metric, column: Callable[[str], str]) -> dict[str, str]:
    """Aggregates of one statistic, by role."""
    numerator, denominator = f"({item.numerator})", f"({item.denominator})"
    conditions = [] if item.where == "true" else [f"({item.where})"]
    if item.kind == "rate" and item.denominator != "1":
        conditions.append(denominator)
    else:
        conditions += [f"{sql} IS NOT NULL" for sql in (numerator, denominator) if not _certain(sql)]
    known = " AND ".join(conditions)
    alone = conditions == [f"{numerator} IS NOT NULL"]  # then what is made of the numerator is null by itself

    def of(value: str) -> str:
        return column(value if alone or not known else f"CASE WHEN {known} THEN {value} END")

    if metric.real or metric.ratio:
        value, exact = f"{numerator}::DOUBLE", _ROUND if item.real and metric.scale == "plain" else "{}"
        # No number is below 0 here, and no bad row may stop the rest. greatest() would make a 0 of a null.
        logged = _ROUND_LOG.format(f"ln(1 + ({value} + abs({value})) / 2)")
        x = of(logged if metric.scale == "log" else exact.format(value))
        roles = {"n": f"count({x})" if known else "count(*)", "x": f"sum({x})"}
        roles["xx"] = f"sum({exact.format(f'{x} * {x}')})"
        if metric.ratio:
            y = of(exact.format(f"{denominator}::DOUBLE"))
            roles |= {
                "y": f"sum({y})",
                "yy": f"sum({exact.format(f'{y} * {y}')})",
                "xy": f"sum({exact.format(f'{x} * {y}')})",
            }
    else:
        events = f"count({column(f'CASE WHEN {known} AND {numerator} THEN 1 END'.replace('WHEN  AND', 'WHEN'))})"
        roles = {"n": f"count({of(numerator if alone else '1')})" if known else "count(*)", "x": events, "xx": events}
    if not metric.ratio:
        roles |= {"y": roles["n"], "yy": roles["n"], "xy": roles["x"]}
    if item.unripe is not None:
        roles["unripe"] = f"count({column(f'CASE WHEN {item.unripe} THEN 1 END')})"
    return roles


_NEVER_NULL = {field.name for field in OBSERVATIONS if not field.nullable}


def _certain(sql: str) -> bool:
    """True for an expression of columns that always have a value."""
    return set(re.findall(r"[A-Za-z_]\w*", sql)) <= _NEVER_NULL


def _cell() -> str:
    """SQL of the position of a row's cell in ``_FINE_CELLS``."""
    digits = []
    for dimension, edges in (("predicted_failure", _EDGES), ("ambiguity", BANDS["ambiguity"][0])):
        cases = " ".join(f"WHEN {dimension} < {edge} THEN {index}" for index, edge in enumerate(edges))
        digits.append(f"(CASE WHEN {dimension} IS NULL THEN {len(edges) + 1} {cases} ELSE {len(edges)} END)")
    failure, ambiguity = digits
    return f"{failure} * {len(_AMBIGUITIES)} + {ambiguity}"
