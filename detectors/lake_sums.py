"""The drift layer's sums (`palomar.detectors.channels.Sums`) of real runs, from the lake's observations.

One group-by a cycle, over organisation and cell of context (band of predicted failure x band of ambiguity), kept beside
the lake, so that looking again costs the new cycle only. What is charted:

- the registered statistics that are made of behaviour, those whose pressure is taken
  (`palomar.detectors.pressure.measured_statistics`), in every slice;
- what users and scorers made of it (`WATCHED`), over everything only: it warns and never blocks.

Long-tailed numbers are summed as log(1 + x): tokens, latency, functions of a file. One stuck run, or one huge file,
moves the mean of a cycle by more than any habit of the agent does, and a limit taken from the reference's quantiles
would make the sums of a cycle depend on which cycles it is compared with.

Organisations with few rows are pooled (`OTHERS`), first within a cycle and then over the reference, so that their
number is bounded however many there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from palomar.data.derived import derived
from palomar.data.lake import Lake
from palomar.data.schema import content_id
from palomar.detectors.channels import ROLES, WHOLE, Metric, Sums
from palomar.detectors.cube import BANDS
from palomar.detectors.pressure import SLICES as PRESSURE_SLICES
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
RARE, FEW = 0.005, 0.02
"""Share of a cycle's rows, and of the reference's, below which an organisation is pooled with others."""

_DIMENSIONS = tuple(BANDS)
_CELLS = tuple(product(*((*names, UNKNOWN) for _, names in BANDS.values())))


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
    parts = [_of_cycle(lake, cycle, chosen) for cycle in cycles]
    known = _organisations(parts, reference)
    position = {name: index for index, name in enumerate(known)}
    shape = (len(cycles), len(known), len(_CELLS), len(chosen))
    sums = {role: np.zeros(shape) for role in ROLES}
    for number, part in enumerate(parts):
        names = part["organisation"].to_pylist()
        at = np.array([position.get(name, position.get(OTHERS, 0)) for name in names], dtype=np.int64)
        where = (at, part["cell"].to_numpy(), part["metric"].to_numpy())
        for role in ROLES:
            np.add.at(sums[role][number], where, part[role].to_numpy())
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
        **sums,
        slices=slices,
        unplaced=tuple(index for index, (failure, _) in enumerate(_CELLS) if failure == UNKNOWN),
    )


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


def _of_cycle(lake: Lake, cycle: int, statistics: Sequence[Statistic]) -> pa.Table:
    """Sums of a cycle, a row per organisation, cell and metric, with ``ROLES`` as columns; kept beside the lake."""
    inner, sums = _sql(statistics)
    asked = list(dict.fromkeys(sums.values()))

    def make() -> pa.Table:
        with lake.connect(["observations"], [cycle]) as connection:
            connection.execute(f"CREATE TEMP TABLE large AS {_LARGE_ORGANISATIONS}")
            wide = connection.execute(
                f"SELECT organisation, cell, {', '.join(asked)} FROM (SELECT {', '.join(inner)} FROM observations) "
                "GROUP BY organisation, cell"
            ).to_arrow_table()
        columns = np.array([np.nan_to_num(column.to_numpy().astype(np.float64)) for column in wide.columns[2:]])
        of = columns.reshape(len(asked), -1)[[asked.index(sql) for sql in sums.values()]]
        stacked = of.reshape(len(statistics), len(ROLES), wide.num_rows)
        metric, row = np.nonzero(stacked.any(axis=1))
        return pa.table(
            {
                "organisation": wide["organisation"].take(pa.array(row)),
                "cell": wide["cell"].cast(pa.int64()).take(pa.array(row)),
                "metric": pa.array(metric),
                **{role: pa.array(stacked[metric, index, row]) for index, role in enumerate(ROLES)},
            }
        )

    version = content_id(_LARGE_ORGANISATIONS, *inner, *sums.values())
    return derived(lake, "drift", cycle, version=version, parts=[("observations", [cycle])], make=make)


_ORGANISATION = f"coalesce(organisation, '{UNKNOWN}')"
_LARGE_ORGANISATIONS = (
    f"SELECT {_ORGANISATION} AS name FROM observations GROUP BY name "
    f"HAVING count(*) >= {RARE} * (SELECT count(*) FROM observations)"
)
_ROUND = "({} + 6442450944.0 - 6442450944.0)"  # to a multiple of 2^-20, as in `palomar.detectors.cube`


def _sql(statistics: Sequence[Statistic]) -> tuple[list[str], dict[tuple[int, str], str]]:
    """Columns of the rows that are grouped, and the aggregate of each statistic (by position) and role."""
    inner = [
        f"CASE WHEN {_ORGANISATION} IN (SELECT name FROM large) THEN {_ORGANISATION} ELSE '{OTHERS}' END "
        "AS organisation",
        f"{_cell()} AS cell",
        f"{_ROUND.format('coalesce(predicted_failure, 0)')} AS d",
        f"{_ROUND.format('coalesce(predicted_failure, 0) * coalesce(predicted_failure, 0)')} AS dd",
    ]
    found: dict[tuple[int, str], str] = {}
    conditions: dict[str, str] = {}
    for index, item in enumerate(statistics):
        metric = metric_of(item)
        numerator, denominator = f"({item.numerator})", f"({item.denominator})"
        counted = [f"({item.where})"]
        if item.kind == "rate" and item.denominator != "1":
            counted.append(denominator)
        else:
            counted += [f"{numerator} IS NOT NULL", f"{denominator} IS NOT NULL"]
        condition = " AND ".join(counted)
        known = conditions.get(condition)
        if known is None:
            known = conditions[condition] = f"k{index}"
            inner.append(f"coalesce({condition}, false) AS {known}")
        per_row = {role: f"sum({role}) FILTER ({known})" for role in ("d", "dd")}
        roles = {"n": f"count_if({known})", **per_row, "unripe": "0"}
        if item.unripe is not None:
            inner.append(f"coalesce({item.unripe}, false) AS u{index}")
            roles["unripe"] = f"count_if(u{index})"
        if metric.real or metric.ratio:
            value = f"{numerator}::DOUBLE"
            value = f"ln(1 + greatest({value}, 0))" if metric.scale == "log" else value
            whole = not item.real and metric.scale == "plain"
            exact = "{}" if whole else _ROUND
            inner.append(f"CASE WHEN {known} THEN {value if whole else _ROUND.format(value)} END AS x{index}")
            x, y = f"x{index}", f"y{index}"
            roles |= {
                "x": f"sum({x})",
                "xx": f"sum({exact.format(f'{x} * {x}')})",
                "xd": f"sum({exact.format(f'{x} * d')})",
            }
            if metric.ratio:
                inner.append(f"CASE WHEN {known} THEN {exact.format(f'{denominator}::DOUBLE')} END AS {y}")
                roles |= {
                    "y": f"sum({y})",
                    "yy": f"sum({exact.format(f'{y} * {y}')})",
                    "xy": f"sum({exact.format(f'{x} * {y}')})",
                    "yd": f"sum({exact.format(f'{y} * d')})",
                }
        else:
            inner.append(f"{known} AND coalesce({numerator}, false) AS x{index}")
            events = f"count_if(x{index})"
            roles |= {"x": events, "xx": events, "xd": f"sum(d) FILTER (x{index})"}
        if not metric.ratio:
            roles |= {"y": roles["n"], "yy": roles["n"], "xy": roles["x"], "yd": roles["d"]}
        found |= {(index, role): roles[role] for role in ROLES}
    return inner, found


def _cell() -> str:
    """SQL of the position of a row's cell in ``_CELLS``."""
    digits = []
    for dimension, (edges, names) in BANDS.items():
        cases = " ".join(f"WHEN {dimension} < {edge} THEN {index}" for index, edge in enumerate(edges))
        digits.append(f"(CASE WHEN {dimension} IS NULL THEN {len(names)} {cases} ELSE {len(names) - 1} END)")
    failure, ambiguity = digits
    return f"{failure} * {len(BANDS['ambiguity'][1]) + 1} + {ambiguity}"
