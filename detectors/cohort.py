"""A cohort: interactions that share something. How large it is over the cycles, and how it differs from others.

A cohort is an SQL condition of our own over ``observations`` with values as parameters (`palomar.app.cohorts` makes it
from what a person chose). Figures and their intervals are those of `palomar.detectors.measure`, so that a cohort that
is a slice has the slice's figures. Differences are those of `palomar.detectors.arms`: each figure with the influence of
each unit (user, else conversation), so that what one user's rows have in common widens the interval; a user who is in
both cohorts counts in both, and what that takes from the difference's variance is taken.

A difference between cohorts is no effect: nobody drew who is in which.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import duckdb
import numpy as np
import numpy.typing as npt
from scipy import stats

from palomar.data.errors import LakeError
from palomar.data.lake import Lake
from palomar.data.slices import ALL
from palomar.data.store.records import Statistic as Point
from palomar.detectors.arms import MIN_EVENTS, Figure, figures_by_arm
from palomar.detectors.cube import cube
from palomar.detectors.intervals import Z95, wilson
from palomar.detectors.measure import series
from palomar.detectors.statistics import Statistic, expanded

LEVEL = 0.05
"""Chance of any difference that is called clear where there is none, over all that are compared (Holm)."""
_UNIT = "coalesce('u ' || user_id, 'c ' || conversation_id, 'i ' || interaction_id)"


@dataclass(frozen=True)
class Condition:
    """Which rows: our own SQL, with ``?`` where a value stands."""

    sql: str
    parameters: tuple[object, ...] = ()


EVERYTHING = Condition("true")


@dataclass(frozen=True)
class Size:
    """A cohort in one cycle."""

    cycle: int | None
    """None: logs from outside a loop."""
    n: int
    of: int
    """Interactions of the cycle."""
    share: float
    """0 to 1, with its 95 % interval by Wilson."""
    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """One statistic of two groups of interactions. None is "not known"."""

    statistic: str
    own: Point | None
    other: Point | None
    value: float | None
    """Own less other."""
    low: float | None
    """Of its 95 % interval, by itself."""
    high: float | None
    p: float | None
    """Of no difference, adjusted by Holm over all that are compared."""
    why: str
    """Why there is no difference; empty where there is one."""

    @property
    def clear(self) -> bool:
        """Whether it is told apart from none, all others considered."""
        return self.p is not None and self.p <= LEVEL


@dataclass(frozen=True)
class Comparison:
    """Two groups of interactions in some cycles."""

    n: int
    other_n: int
    both: int
    """Interactions in both."""
    units: int
    """Users (else conversations) of the first."""
    other_units: int
    differences: tuple[Difference, ...]
    """In the order in which statistics are registered, those of the reward last."""


def sizes(lake: Lake, own: Condition) -> list[Size]:
    """How large a cohort is in each cycle that the lake has; logs outside a loop come last."""
    if not lake.files("observations"):
        return []
    with _asking(lake, None) as connection:
        rows = connection.execute(
            f"SELECT cycle, count_if({own.sql}) AS n, count(*) AS total FROM observations "
            "GROUP BY cycle ORDER BY cycle NULLS LAST",
            list(own.parameters),
        ).fetchall()
    n, total = (np.array([row[place] for row in rows], dtype=np.float64) for place in (1, 2))
    estimate = wilson(n, total)
    return [
        Size(cycle, count, of, *(float(side[place]) for side in (estimate.value, estimate.low, estimate.high)))
        for place, (cycle, count, of) in enumerate(rows)
    ]


def values_of(lake: Lake, columns: Mapping[str, str], most: int) -> dict[str, tuple[str, ...]]:
    """By name: the commonest values, sorted, of each of some columns (our own SQL), ``most`` of them at most."""
    with _asking(lake, None) as connection:
        # One pass over all columns: one query for each would open every file again.
        listed = ", ".join(f"histogram(({sql})::VARCHAR)" for sql in columns.values())
        (row,) = connection.execute(f"SELECT {listed} FROM observations").fetchall()
    found = {name: Counter(counts or {}) for name, counts in zip(columns, row, strict=True)}
    return {name: tuple(sorted(value for value, _ in of.most_common(most))) for name, of in found.items()}


def compare(lake: Lake, cycles: Sequence[int | None], own: Condition, other: Condition | None = None) -> Comparison:
    """Every statistic of a cohort beside another (None: the rest of the interactions) in some cycles together."""
    beside = other or Condition(f"({own.sql}) IS NOT TRUE", own.parameters)
    with _asking(lake, cycles) as connection:
        return _compare(connection, own, beside)


@contextmanager
def _asking(lake: Lake, cycles: Sequence[int | None] | None) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to observations; what DuckDB cannot do, be it for a damaged file, is a LakeError."""
    try:
        with lake.connect(["observations"], cycles) as connection:
            yield connection
    except duckdb.Error as exc:
        raise LakeError(f"the lake cannot answer: {exc}") from exc


def _compare(connection: duckdb.DuckDBPyConnection, own: Condition, other: Condition) -> Comparison:
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE units AS SELECT unit, row_number() OVER (ORDER BY unit) - 1 AS number "
        f"FROM (SELECT DISTINCT {_UNIT} AS unit FROM observations)"
    )
    for name, of in (("own", own), ("other", other)):
        connection.execute(
            f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT observations.* REPLACE ('{name}' AS arm), number "
            f"FROM observations JOIN units ON units.unit = {_UNIT} WHERE {of.sql}",
            list(of.parameters),
        )
    connection.execute("CREATE OR REPLACE TEMP VIEW mine AS SELECT * FROM own UNION ALL BY NAME SELECT * FROM other")
    counts = connection.execute(
        "SELECT (SELECT count(*) FROM own), (SELECT count(*) FROM other), "
        "(SELECT count(*) FROM own SEMI JOIN other USING (interaction_id)), "
        "(SELECT count(DISTINCT number) FROM own), (SELECT count(DISTINCT number) FROM other), "
        "(SELECT count(*) FROM units)"
    ).fetchall()[0]
    columns = [name for name, *_ in connection.execute("SELECT * FROM mine LIMIT 0").description or ()]
    reasons = connection.execute(
        "SELECT DISTINCT exclusion FROM mine WHERE exclusion IS NOT NULL ORDER BY exclusion"
    ).fetchall()
    metrics = expanded(columns, [reason for (reason,) in reasons])
    sides = {name: _points(connection, name) for name in ("own", "other")}
    found = [
        _difference(connection, metric, sides["own"].get(metric.name), sides["other"].get(metric.name), counts[5])
        for metric in metrics
    ]
    n, other_n, both, mine, theirs, _ = counts
    return Comparison(n, other_n, both, mine, theirs, tuple(_adjusted(found)))


def _points(connection: duckdb.DuckDBPyConnection, name: str) -> dict[str, Point]:
    """Figures of one side, over all its cycles together."""
    # What slices are made of besides the two bands, which some statistics read, is left out: one cell, not thousands.
    connection.execute(
        f"CREATE OR REPLACE TEMP VIEW pooled AS SELECT * REPLACE (NULL::INT AS cycle, NULL::VARCHAR AS organisation, "
        f"NULL::VARCHAR AS work_kind, NULL::VARCHAR AS language, NULL::VARCHAR AS arm) FROM {name}"
    )
    return {
        row["statistic"]: Point(**row) for row in series(cube(connection, "pooled")).to_pylist() if row["slice"] == ALL
    }


def _difference(
    connection: duckdb.DuckDBPyConnection, metric: Statistic, own: Point | None, other: Point | None, units: int
) -> Difference:
    nothing = Difference(metric.name, own, other, None, None, None, None, "")
    figures = figures_by_arm(connection, metric)
    sides = [figures.get(name) for name in ("own", "other")]
    whose = ("the cohort", "the other")
    for side, name in zip(sides, whose, strict=True):
        if not isinstance(side, Figure):
            why = "no interaction of it counts" if side is None else side.why
            return _because(nothing, f"{name}: {why}")
    left, right = (side for side in sides if isinstance(side, Figure))
    for side, name in zip((left, right), whose, strict=True):
        if len(side.units) < 2:
            return _because(nothing, f"{name}: one user only, whose spread nobody knows")
    if left.events + right.events < MIN_EVENTS:
        return _because(nothing, f"counted for {left.events + right.events} users; {MIN_EVENTS} are needed")
    # Each unit's part in the difference. Those of two arms without a common unit add up to `confidence.difference`.
    moved = np.zeros(units)
    np.add.at(moved, left.units, _parts(left))
    np.subtract.at(moved, right.units, _parts(right))
    error = float(np.sqrt((moved**2).sum()))
    if not error > 0:
        return _because(nothing, "it does not vary")
    value = left.value - right.value
    p = float(2 * stats.norm.sf(abs(value) / error))
    return Difference(metric.name, own, other, value, value - Z95 * error, value + Z95 * error, p, "")


def _parts(of: Figure) -> npt.NDArray[np.float64]:
    """(units,): what each moves the figure; the sum of squares is its variance, with n - 1."""
    n = len(of.units)
    parts: npt.NDArray[np.float64] = of.influence / np.sqrt(n * (n - 1))
    return parts


def _because(of: Difference, why: str) -> Difference:
    return Difference(of.statistic, of.own, of.other, None, None, None, None, why)


def _adjusted(found: Sequence[Difference]) -> list[Difference]:
    from statsmodels.stats.multitest import multipletests  # type: ignore[import-untyped]

    tested = [each for each in found if each.p is not None]
    if not tested:
        return list(found)
    adjusted = iter(multipletests([each.p for each in tested], method="holm")[1])
    return [
        each
        if each.p is None
        else Difference(
            each.statistic, each.own, each.other, each.value, each.low, each.high, float(next(adjusted)), ""
        )
        for each in found
    ]
