"""A candidate against the champion on the same tasks: every behaviour statistic as a paired difference.

Both answered the same shadow prompts, so each task is compared with itself and what tasks differ by cancels. Of task i
with sums x, y over its rows (a rate or mean has y = rows; a task that a statistic does not count has y = 0 there), and
R = sum x / sum y of either side, the difference R' - R has the error of the sum over tasks of

    (x' - R' y') / mean y' - (x - R y) / mean y

clustered by family or user, since tasks of one family are alike; Student t with (clusters - 1) degrees of freedom. For
a yes-no per task with few disagreements that is too rough: without clusters the p-value is then McNemar's mid-p
(Fagerland, Lydersen and Laake 2013), with them that of flipping the signs of whole clusters. All statistics share one
family-wise error (Holm 1979).

Blind to: tasks that only one side has (told as ``unpaired``); what the prompts do not ask for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy import stats

from palomar.detectors.pressure import measured_statistics
from palomar.detectors.statistics import Statistic

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Method = Literal["t", "mcnemar_mid_p", "sign_flip"]
Status = Literal["ok", "no_pairs", "too_few"]

ALPHA = 0.05
"""Chance of even one wrong difference, over all statistics."""
FEW = 10
"""Clusters below which there is no test: not even one that all point the same way can be told from chance."""
FEW_DISAGREE = 25
"""Tasks on which the two disagree, below which a t is too rough for a yes-no."""
POWER = 0.8
_EXACT = 14  # clusters with a difference up to which all signs are tried
_FLIPS = 20_000
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Difference:
    """One statistic, candidate less champion; None where the status leaves no value."""

    statistic: str
    unit: str
    status: Status
    """``no_pairs``: no task counts on both sides; ``too_few``: a value, and fewer than `FEW` clusters."""
    champion: float | None = None
    candidate: float | None = None
    effect: float | None = None
    """Candidate less champion."""
    low: float | None = None
    """Of the 95 % interval of this statistic alone."""
    high: float | None = None
    p: float | None = None
    """Two-sided, of this statistic alone."""
    p_adjusted: float | None = None
    """By Holm over all statistics that were tested."""
    method: Method | None = None
    """Where the p-value comes from; intervals are Student's, or of Agresti and Min where it is McNemar's."""
    smallest: float | None = None
    """Effect that would be seen with probability `POWER` at the strictest of Holm's levels."""
    n: int = 0
    """Tasks that count."""
    clusters: int = 0

    @property
    def differs(self) -> bool:
        """Told apart at the family-wise error `ALPHA`."""
        return self.p_adjusted is not None and self.p_adjusted <= ALPHA


@dataclass(frozen=True)
class Comparison:
    """All statistics, in the order they are registered."""

    differences: tuple[Difference, ...]
    pairs: int
    unpaired: int
    """Tasks that only one side has."""


def compare(
    champion: pa.Table,
    candidate: pa.Table,
    *,
    key: str = "task_id",
    cluster: str | None = None,
    statistics: Sequence[Statistic] | None = None,
) -> Comparison:
    """Compare two tables of observations on the tasks they share.

    ``key`` names the task; rows without one are left out, several rows of one task are taken together. ``cluster``
    names a column of the champion's (family, user) whose tasks belong together; without, each task stands alone.
    """
    chosen = tuple(measured_statistics() if statistics is None else statistics)
    pairs, unpaired = _paired(champion, candidate, key, cluster, chosen)
    codes = np.asarray(pairs["cluster"].combine_chunks().dictionary_encode().indices, dtype=np.int64)
    found = []
    for index, item in enumerate(chosen):
        sides = [pairs[f"{side}_{role}{index}"].to_numpy() for side in ("a", "b") for role in ("x", "y")]
        single = item.kind == "rate" and pairs.num_rows > 0 and max(sides[1].max(), sides[3].max()) <= 1
        found.append(_difference(item, sides, codes, single))
    return Comparison(tuple(_adjusted(found)), pairs.num_rows, unpaired)


def _paired(
    champion: pa.Table, candidate: pa.Table, key: str, cluster: str | None, statistics: Sequence[Statistic]
) -> tuple[pa.Table, int]:
    """A row per task with sums x and y of both sides, and the number of tasks that lack one."""
    connection = duckdb.connect()
    try:
        connection.register("champion", champion)
        connection.register("candidate", candidate)
        sums = ", ".join(f"sum({x}) AS x{i}, sum({y}) AS y{i}" for i, (x, y) in enumerate(map(_numbers, statistics)))
        of = f"coalesce(any_value({cluster})::VARCHAR, {key}::VARCHAR)" if cluster else f"{key}::VARCHAR"
        for name, table in (("a", "champion"), ("b", "candidate")):
            named = f"{of} AS cluster, " if name == "a" else ""
            connection.execute(
                f"CREATE TEMP TABLE {name} AS SELECT {key} AS task, {named}{sums} FROM {table} "
                f"WHERE {key} IS NOT NULL GROUP BY {key}"
            )
        columns = ", ".join(
            f"{side}.{role}{index} AS {side}_{role}{index}"
            for side in ("a", "b")
            for index in range(len(statistics))
            for role in ("x", "y")
        )
        listed = f", {columns}" if columns else ""
        pairs = connection.execute(
            f"SELECT a.cluster AS cluster{listed} FROM a JOIN b USING (task) ORDER BY task"
        ).to_arrow_table()
        (sizes,) = connection.execute("SELECT (SELECT count(*) FROM a) + (SELECT count(*) FROM b)").fetchall()
        return pairs, int(sizes[0]) - 2 * pairs.num_rows
    finally:
        connection.close()


def _numbers(statistic: Statistic) -> tuple[str, str]:
    """SQL of x and y of a row, both 0 where it does not count."""
    numerator, denominator = f"({statistic.numerator})", f"({statistic.denominator})"
    counted = [f"({statistic.where})", f"{numerator} IS NOT NULL"]
    x, y = numerator, denominator
    if statistic.kind == "rate":
        x, y = f"{numerator}::INT", "1"
        if statistic.denominator != "1":
            counted[1] = denominator
            x = f"coalesce({numerator}, false)::INT"
    else:
        counted.append(f"{denominator} IS NOT NULL")
    condition = " AND ".join(counted)
    return tuple(f"(CASE WHEN {condition} THEN {value} ELSE 0 END)::DOUBLE" for value in (x, y))  # type: ignore[return-value]


def _difference(statistic: Statistic, sides: Sequence[Floats], codes: Ints, single: bool) -> Difference:
    old_x, old_y, new_x, new_y = sides
    nothing = Difference(statistic.name, statistic.unit, "no_pairs")
    if not old_y.any() or not new_y.any():
        return nothing
    old, new = old_x.sum() / old_y.sum(), new_x.sum() / new_y.sum()
    counts = (old_y > 0) | (new_y > 0)
    influence = ((new_x - new * new_y) / new_y.mean() - (old_x - old * old_y) / old_y.mean())[counts]
    cluster = codes[counts]
    groups, n = len(np.unique(cluster)), int(counts.sum())
    effect = float(new - old)
    said = replace(
        nothing,
        status="too_few",
        champion=float(old),
        candidate=float(new),
        effect=effect,
        n=n,
        clusters=groups,
    )
    if groups < FEW:
        return said
    error = clustered_error(influence, cluster) * n / len(codes)  # means are over all pairs
    reach = float(stats.t.ppf(0.975, groups - 1)) * error
    said = replace(said, status="ok", low=effect - reach, high=effect + reach, smallest=error)
    if error <= _ROUNDING * (abs(old) + abs(new)):  # every task moved alike: no scale for a t
        same = abs(effect) <= _ROUNDING * (abs(old) + abs(new))
        said = replace(said, p=1.0 if same else 2.0 ** (1 - groups), method="sign_flip")
    else:
        said = replace(said, p=float(2 * stats.t.sf(abs(effect) / error, groups - 1)), method="t")
    both = single and bool((old_y == new_y).all())
    gained, lost = int(((new_x > old_x) & counts).sum()), int(((new_x < old_x) & counts).sum())
    if both and gained + lost < FEW_DISAGREE:
        if groups == n:
            low, high = agresti_min(lost, gained, n)
            # Not the t's error, which is 0 where the two never disagree.
            smallest = (high - low) / 2 / stats.norm.ppf(0.975)
            return replace(said, low=low, high=high, p=mid_p(lost, gained), method="mcnemar_mid_p", smallest=smallest)
        return replace(
            said, p=sign_flip(np.bincount(cluster, (new_x - old_x)[counts]).astype(np.float64)), method="sign_flip"
        )
    return said


def _adjusted(found: Sequence[Difference]) -> list[Difference]:
    """With Holm's p-values, and the errors in ``smallest`` turned into what they would show."""
    tested = [item for item in found if item.p is not None]
    if not tested:
        return list(found)
    adjusted = dict(zip([item.statistic for item in tested], holm([item.p or 0.0 for item in tested]), strict=True))

    def done(item: Difference) -> Difference:
        if item.p is None or item.smallest is None:
            return item
        seen = stats.t.isf(ALPHA / len(tested) / 2, item.clusters - 1) + stats.norm.ppf(POWER)
        return replace(item, p_adjusted=adjusted[item.statistic], smallest=float(seen) * item.smallest or None)

    return [done(item) for item in found]


# -- tests ---------------------------------------------------------------------------------------------------------


def clustered_error(influence: Floats, clusters: Ints) -> float:
    """Standard error of a mean from each row's distance to it, summed within clusters (Miller 2024), C / (C - 1)."""
    sums = np.bincount(np.unique(clusters, return_inverse=True)[1], weights=influence - influence.mean())
    return float(np.sqrt(len(sums) / max(len(sums) - 1, 1) * (sums**2).sum())) / len(influence)


def mid_p(lost: int, gained: int) -> float:
    """Two-sided mid-p of McNemar: that of the exact binomial less half the chance of exactly this outcome."""
    disagree = lost + gained
    if disagree == 0:
        return 1.0
    exact = float(stats.binomtest(lost, disagree).pvalue)
    return min(exact - float(stats.binom.pmf(lost, disagree, 0.5)), 1.0)


def agresti_min(lost: int, gained: int, n: int) -> tuple[float, float]:
    """95 % interval of a difference of paired shares: Wald's with half a task more in each cell (Agresti, Min 2005)."""
    size, plus, minus = n + 2, gained + 0.5, lost + 0.5
    centre = (plus - minus) / size
    reach = float(stats.norm.ppf(0.975)) * np.sqrt(plus + minus - (plus - minus) ** 2 / size) / size
    return max(centre - reach, -1.0), min(centre + reach, 1.0)


def sign_flip(differences: Floats) -> float:
    """Two-sided p-value of a sum of differences when each sign could as well have been the other (Fisher 1935).

    All signs are tried up to `_EXACT` differences that are not 0, else `_FLIPS` draws and the one that was seen.
    """
    known = np.abs(differences[differences != 0])
    seen = abs(float(differences.sum())) - 1e-9 * float(known.sum())
    if not len(known):
        return 1.0
    if len(known) <= _EXACT:
        signs = 1 - 2 * (np.arange(2 ** len(known))[:, None] >> np.arange(len(known)) & 1)
        return float((np.abs(signs @ known) >= seen).mean())
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (_FLIPS, len(known)))
    return float(((np.abs(signs @ known) >= seen).sum() + 1) / (_FLIPS + 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values that may each be held against the family-wise error, in their order (Holm 1979)."""
    order = np.argsort(p_values, kind="stable")
    factors = len(p_values) - np.arange(len(p_values))
    stepped = np.minimum(np.maximum.accumulate(np.asarray(p_values)[order] * factors), 1.0)
    adjusted = np.empty(len(p_values))
    adjusted[order] = stepped
    return [float(each) for each in adjusted]
