"""Why a level moved: other requests came (mix), or the same ones went otherwise (within).

- `kitagawa` splits a change over the values of one or more slice dimensions (Kitagawa 1955). It weighs both ends alike,
  which makes it the two-player Shapley value, and Oaxaca and Blinder's split with dummies at weight 0.5.
- `oaxaca_blinder` does the same where the mix is of numbers and not of slices, by regression (statsmodels).
- `adtributor` ranks dimensions by how well few of their values explain a change of a total (Bhagwan et al., NSDI 2014).

`mix_within` is `kitagawa` on a statistic of the lake, between the reference and the cycle of a view.

All describe, none proves a cause: which weights are taken as given changes the split (27.9 to -43.8 unexplained in one
data set, see the tests), and a search picks winners, so a suspected slice is confirmed on later traffic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import rel_entr

from palomar.data.slices import BANDS
from palomar.detectors.cube import DIMENSIONS, sums_of
from palomar.detectors.detector import View
from palomar.detectors.measure import UNKNOWN
from palomar.detectors.statistics import STATISTICS

Floats = npt.NDArray[np.float64]
Weights = Literal["pooled", "cotton", "reimers", "neumark"]
"""Whose coefficients count as given: of all rows with the group among the regressors; the groups', by size; their plain
mean; of all rows without the group."""

_STATSMODELS: Mapping[Weights, str] = {"neumark": "nuemark"}  # its own spelling


@dataclass(frozen=True)
class MixWithin:
    """A change of a level, split; effects are in the level's unit and add up to ``total``."""

    segments: tuple[str, ...]
    before: float
    after: float
    total: float
    mix: float
    """What other shares of the segments make."""
    within: float
    """What other levels inside the segments make."""
    mix_by_segment: Floats
    """(segments,), and so those that follow."""
    within_by_segment: Floats
    amounts: tuple[Floats, Floats]
    """What the level is per (rows, calls), before and after."""
    levels: tuple[Floats, Floats]
    """Before and after; NaN where a segment has nothing in it."""


def kitagawa(segments: Sequence[str], before: tuple[Floats, Floats], after: tuple[Floats, Floats]) -> MixWithin:
    """Split a change over segments; each end is the amounts (rows, calls) and the levels of the segments.

    A segment that one end lacks has no level of its own there, and takes that of the other: it is all mix. Raises
    ValueError where one end has nothing at all.
    """
    (n_before, level_before), (n_after, level_after) = before, after
    if not n_before.sum() > 0 or not n_after.sum() > 0:
        raise ValueError("a change is between two ends, and one of them has nothing in it")
    start = np.where(n_before > 0, level_before, level_after)
    end = np.where(n_after > 0, level_after, level_before)
    start, end = (np.where((n_before > 0) | (n_after > 0), level, 0.0) for level in (start, end))
    share_before, share_after = n_before / n_before.sum(), n_after / n_after.sum()
    mix = (start + end) / 2 * (share_after - share_before)
    within = (share_before + share_after) / 2 * (end - start)
    first, last = float(share_before @ start), float(share_after @ end)
    levels = (np.where(n_before > 0, level_before, np.nan), np.where(n_after > 0, level_after, np.nan))
    return MixWithin(
        tuple(segments), first, last, last - first, float(mix.sum()), float(within.sum()), mix, within,
        (n_before, n_after), levels,
    )  # fmt: skip


def mix_within(view: View, statistic: str, dimension: str | Sequence[str]) -> MixWithin | None:
    """A statistic's change from the reference to the cycle, split over one dimension, or over several at once.

    One query. None where either end has no rows that count. Raises ValueError for a statistic that is not registered
    or no rate, mean or ratio (a quantile does not add up over slices), and for an unknown dimension.
    """
    definition = STATISTICS.get(statistic)
    if definition is None or definition.kind not in ("rate", "mean", "ratio"):
        raise ValueError(f"{statistic!r} is no rate, mean or ratio among the statistics, so it does not add up")
    names = (dimension,) if isinstance(dimension, str) else tuple(dimension)
    sums = sums_of(definition)
    amount = sums["y" if definition.kind == "ratio" else "n"]
    segment = segment_sql(names)
    # Twice the reference when it holds the cycle itself would be no comparison at all.
    reference = [cycle for cycle in view.reference if cycle != view.cycle]
    found = view.query(
        f"SELECT {segment} AS segment, cycle IS NOT DISTINCT FROM ? AS now, ({amount})::DOUBLE AS amount, "
        f"({sums['x']})::DOUBLE AS total FROM observations GROUP BY ALL ORDER BY segment",
        [*reference, view.cycle],
        [view.cycle],
    )
    segments = list(dict.fromkeys(found["segment"].to_pylist()))
    ends = np.zeros((2, 2, len(segments)))
    place = {name: index for index, name in enumerate(segments)}
    for row in found.to_pylist():
        ends[int(row["now"]), :, place[row["segment"]]] = row["amount"] or 0.0, row["total"] or 0.0
    amounts, totals = ends[:, 0], ends[:, 1]
    if not (amounts.sum(axis=1) > 0).all():
        return None
    levels = np.divide(totals, amounts, out=np.zeros_like(totals), where=amounts > 0)
    return kitagawa(segments, (amounts[0], levels[0]), (amounts[1], levels[1]))


def segment_sql(dimensions: Sequence[str]) -> str:
    """SQL of the segment that a row is in: its values of the dimensions, such as ``mid | north``.

    Raises ValueError for an unknown dimension.
    """
    unknown = [name for name in dimensions if name not in DIMENSIONS]
    if unknown or not dimensions:
        raise ValueError(f"no slice dimension {', '.join(unknown) or 'named'}; there are {', '.join(DIMENSIONS)}")
    return f"concat_ws(' | ', {', '.join(_value_sql(name) for name in dimensions)})"


def _value_sql(dimension: str) -> str:
    if dimension not in BANDS:
        return f"coalesce({dimension}::VARCHAR, '{UNKNOWN}')"
    edges, names = BANDS[dimension]
    cases = " ".join(f"WHEN {dimension} < {edge} THEN '{name}'" for edge, name in zip(edges, names, strict=False))
    return f"CASE {cases} WHEN {dimension} IS NOT NULL THEN '{names[-1]}' ELSE '{UNKNOWN}' END"


@dataclass(frozen=True)
class OaxacaBlinder:
    """A gap between two groups of rows, after less before."""

    gap: float
    explained: float
    """By the covariates being other; with ``unexplained`` it makes the gap."""
    unexplained: float
    """By the same covariates going with other levels."""
    endowments: float
    """Three-fold: the covariates' part at the levels of before; it, the next and ``interaction`` make the gap."""
    coefficients: float
    """The levels' part at the covariates of before."""
    interaction: float


def oaxaca_blinder(
    values: Floats, covariates: Floats, after: npt.NDArray[np.bool_], weights: Weights = "pooled"
) -> OaxacaBlinder:
    """Split the gap of means between rows before and rows after; (rows,), (rows, covariates), (rows,).

    Intercepts are added here: pass no constant column. Raises ValueError where a group has no more rows than there
    are coefficients.
    """
    from statsmodels.stats.oaxaca import OaxacaBlinder as Model  # type: ignore[import-untyped]

    if min(int(after.sum()), int((~after).sum())) <= covariates.shape[1] + 1:
        raise ValueError(f"a group has no more rows than the {covariates.shape[1] + 1} coefficients to fit")
    # The gap is the group with the smaller flag less the other. `hasconst` must be said: the default takes the
    # covariates to hold a constant and fits through the origin. `swap` would turn a negative gap round, and give each
    # group the other's share in "cotton".
    columns = np.column_stack([~after, covariates]).astype(np.float64)
    model = Model(values, columns, 0, hasconst=False, swap=False)
    unexplained, explained, gap = model.two_fold(two_fold_type=_STATSMODELS.get(weights, weights)).params
    endowments, coefficients, interaction, _ = model.three_fold().params
    return OaxacaBlinder(
        *(float(part) for part in (gap, explained, unexplained, endowments, coefficients, interaction))
    )


@dataclass(frozen=True)
class Explanation:
    """What one dimension has to say on a change of a total."""

    dimension: str
    power: Mapping[str, float]
    """By value: its share of the change, negative where it went the other way."""
    surprise: Mapping[str, float]
    """By value: how far its share of the total moved, its term of Jensen and Shannon's divergence in nats."""
    elements: tuple[str, ...]
    """The few values that together explain enough, the most surprising first; empty where none do."""

    @property
    def explained(self) -> float:
        """Share of the change that the elements explain together."""
        return sum(self.power[name] for name in self.elements)

    @property
    def total_surprise(self) -> float:
        """Of the elements."""
        return sum(self.surprise[name] for name in self.elements)


def adtributor(
    dimensions: Mapping[str, Mapping[str, tuple[float, float]]], enough: float = 0.67, each: float = 0.1
) -> tuple[Explanation, ...]:
    """Dimensions by how surprising the values are that explain the change; those that explain it come first.

    For each dimension: its values with the total that was expected and that came. Values are taken by surprise, each
    if it explains more than ``each`` of the change, until they explain more than ``enough`` of it. One dimension at a
    time; amounts of at least 0 that add up, no rates. Raises ValueError where a dimension's total did not change.
    """
    found = []
    for name, values in dimensions.items():
        pairs = np.array(list(values.values()), dtype=np.float64)
        expected, actual = pairs[:, 0], pairs[:, 1]
        change = float((actual - expected).sum())
        if change == 0 or not (pairs.sum(axis=0) > 0).all():
            raise ValueError(f"{name}: its total went from {expected.sum():g} to {actual.sum():g}")
        power = (actual - expected) / change
        p, q = expected / expected.sum(), actual / actual.sum()
        middle = (p + q) / 2
        surprise = (rel_entr(p, middle) + rel_entr(q, middle)) / 2
        # A term of the divergence is never negative but for the rounding of equal shares.
        explanation = Explanation(
            name,
            dict(zip(values, power.tolist(), strict=True)),
            dict(zip(values, np.maximum(surprise, 0.0).tolist(), strict=True)),
            (),
        )
        found.append(_with_elements(explanation, enough, each))
    return tuple(sorted(found, key=lambda item: (not item.elements, -item.total_surprise)))


def _with_elements(item: Explanation, enough: float, each: float) -> Explanation:
    chosen: list[str] = []
    explained = 0.0
    for name in sorted(item.surprise, key=lambda value: -item.surprise[value]):
        if item.power[name] <= each:
            continue
        chosen.append(name)
        explained += item.power[name]
        if explained > enough:
            return Explanation(item.dimension, item.power, item.surprise, tuple(chosen))
    return item
