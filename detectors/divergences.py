"""Training reward against users' outcome over cycles: what the divergence detector compares, and its test.

    observations --(per cycle, kept)--> Cells --(inside the segments)--> Lines --(two charts each)--> Judged

See `palomar.detectors.checks.divergence` for what it is for, the rule, and what it is blind to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy import stats

from palomar.data.derived import derived
from palomar.detectors.channels import MOST, Channels
from palomar.detectors.decomposition import MixWithin, kitagawa, segment_sql
from palomar.detectors.detector import View
from palomar.detectors.drift import WEIGHT, WITHIN, Drift, drift
from palomar.detectors.overoptimisation import Shape, fit

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

BUDGET = 1.0
"""Alarms per 1000 cycles."""
SHARE = 0.5
"""Of the outcome's gain that the reward's rise would have brought; less is divergence."""
MATURE = 0.5
"""Share of a cycle's interactions whose outcome must be known."""
DIMENSIONS = ("predicted_failure", "ambiguity", "organisation")
"""Of the segments that are held fixed."""
ORGANISATIONS = 20
"""The largest of the reference are segments of their own, the rest are put together."""
PLACED = 0.25
"""Share of a cycle's interactions that must lie in segments that the reference has too: users may be new."""


# -- from rows to cycles -----------------------------------------------------------------------------------------

_SUMS = ("n", "n_o", "o", "oo", "n_r", "r", "rr", "n_b", "b_o", "b_r", "b_rr", "b_or")
_VERSION = "1"


def _sums(view: View, cycle: int) -> pa.Table:
    """Sums of one cycle by reward version, organisation and the other segments; kept beside the lake.

    ``o``: outcome, ``r``: training reward, ``b``: rows that have both.
    """
    others = segment_sql([name for name in DIMENSIONS if name != "organisation"])
    sql = f"""
        SELECT reward_version AS version, coalesce(organisation, 'unknown') AS organisation, {others} AS rest,
          count(*) AS n, count(o) AS n_o, sum(o) AS o, sum(o * o) AS oo, count(r) AS n_r, sum(r) AS r, sum(r * r) AS rr,
          count(o + r) AS n_b, sum(o) FILTER (WHERE r IS NOT NULL) AS b_o, sum(r) FILTER (WHERE o IS NOT NULL) AS b_r,
          sum(r * r) FILTER (WHERE o IS NOT NULL) AS b_rr, sum(o * r) AS b_or, count_if(immature) AS unripe
        FROM (SELECT *, CASE WHEN outcome_status IS DISTINCT FROM 'immature' THEN outcome END AS o,
            CASE WHEN included IS NOT FALSE THEN reward END AS r,
            coalesce(outcome_status = 'immature', false) AS immature FROM observations)
        GROUP BY ALL"""
    return derived(
        view.lake,
        "divergence",
        cycle,
        version=_VERSION,
        parts=[("observations", [cycle])],
        make=lambda: view.query(sql, [cycle]),
    )


@dataclass(frozen=True)
class Cells:
    """Sums over segments; arrays are (cycles, segments). The reference cycles come first."""

    cycles: tuple[int, ...]
    reference: int
    """How many of them are the reference."""
    segments: tuple[str, ...]
    sums: Mapping[str, Floats]
    maturity: Floats
    """Share of the rows with an outcome whose outcome is known, (cycles,); NaN where there are none."""

    def level(self, what: str) -> float:
        """The reference's mean outcome (``o``) or training reward (``r``)."""
        first = slice(0, self.reference)
        return float(self.sums[what][first].sum() / self.sums[f"n_{what}"][first].sum())

    def raw(self, what: str, index: int) -> float:
        """How far a cycle's mean is from the reference's, on whatever mix."""
        return float(self.sums[what][index].sum() / self.sums[f"n_{what}"][index].sum()) - self.level(what)

    def outcome_split(self, index: int) -> MixWithin:
        """Change of the outcome from the reference to one cycle, over the segments that have one at both ends."""
        n, counted, x = (self.sums[name] for name in ("n", "n_o", "o"))
        ends = [
            [part[rows].sum(axis=0) for part in (n, counted, x)]
            for rows in (slice(0, self.reference), slice(index, index + 1))
        ]
        both = (ends[0][1] > 0) & (ends[1][1] > 0)
        before, after = ((end[0] * both, _known(_over(end[2], end[1]))) for end in ends)
        return kitagawa(self.segments, before, after)


def cells_of(view: View, cycles: Sequence[int], reference: int) -> Cells:
    """Sums of cycles, the first ``reference`` of which are the reference; rewards of the version paid last."""
    tables = [_sums(view, cycle) for cycle in cycles]
    paid = [row for table in tables[-1:] for row in table.to_pylist() if row["n_r"]]
    version = max(paid, key=lambda row: row["n_r"])["version"] if paid else None
    whole = pa.concat_tables(
        [table.append_column("cycle", pa.array([index] * table.num_rows)) for index, table in enumerate(tables)]
    ).to_pandas()
    first = whole[whole["cycle"] < reference].groupby("organisation")["n"].sum()
    largest = set(first.nlargest(ORGANISATIONS).index)
    placed = whole["organisation"].where(whole["organisation"].isin(largest), "others")
    segment = whole["rest"] + " | " + placed
    names = tuple(sorted(set(segment)))
    place = segment.map({name: index for index, name in enumerate(names)}).to_numpy()
    # Rewards of another version are on another scale; outcomes are what they are.
    same = (whole["version"].isna() if version is None else whole["version"] == version).to_numpy()
    sums = {}
    for name in _SUMS:
        values = whole[name].fillna(0.0).to_numpy(dtype=np.float64)
        filled = np.zeros((len(cycles), len(names)))
        kept = values if name in ("n", "n_o", "o", "oo") else np.where(same, values, 0.0)
        np.add.at(filled, (whole["cycle"].to_numpy(), place), kept)
        sums[name] = filled
    unripe = whole.groupby("cycle")["unripe"].sum().reindex(range(len(cycles)), fill_value=0).to_numpy(dtype=np.float64)
    known = sums["n_o"].sum(axis=1)
    return Cells(tuple(cycles), reference, names, sums, _over(known, known + unripe))


@dataclass(frozen=True)
class Lines:
    """How far cycles are from the reference on the same requests, and how sure that is; arrays are (cycles,)."""

    reference: int
    slope: float
    """Outcome per reward among the reference's rows, within segments; at least 0."""
    reward: Floats
    outcome: Floats
    reward_variance: Floats
    """If rows were independent draws; so are the next, with the covariance."""
    outcome_variance: Floats
    covariance: Floats
    placed: Floats
    """Share of the rows that lie in segments which reference and cycle both have."""

    @property
    def shortfall(self) -> Floats:
        """Outcome less `SHARE` of what the reward's rise would have brought."""
        found: Floats = self.outcome - SHARE * self.slope * self.reward
        return found

    @property
    def shortfall_variance(self) -> Floats:
        """Of it."""
        part = SHARE * self.slope
        found: Floats = self.outcome_variance + part**2 * self.reward_variance - 2 * part * self.covariance
        return found

    def only(self, usable: Flags) -> Lines:
        """Without the values of the other cycles."""
        kept = {
            field.name: np.where(usable, getattr(self, field.name), np.nan)
            for field in fields(self)
            if field.name not in ("reference", "slope", "placed")
        }
        return replace(self, **kept)  # type: ignore[arg-type]


def lines(cells: Cells) -> Lines:
    """The part inside the segments of each cycle's distance from the reference.

    The distance at the reference's mix of requests and that at the cycle's, by halves, which is Kitagawa's within part.
    The training reward is the mean over what is trained on, so that on a given mix it also depends on which share of
    each segment is: that is the policy's doing, and stays in.
    """
    sums = cells.sums
    base = {name: values[: cells.reference].sum(axis=0)[None] for name, values in sums.items()}
    there = (base["n_o"] > 0) & (sums["n_o"] > 0)
    now = _over(sums["n"], sums["n"].sum(axis=1, keepdims=True))
    before = _over(base["n"], base["n"].sum(keepdims=True))
    mixes = [_shares(np.where(there, mix, 0.0)) for mix in (np.minimum(before, MOST * now), now)]

    def level(of: Mapping[str, Floats], what: str, mix: Floats) -> Floats:
        """Mean on a mix, (cycles,)."""
        per_request = of["n_o"] if what == "o" else of["n"]
        amount, counted = (_known(_over(of[name], per_request)) for name in (what, f"n_{what}"))
        return _over((mix * amount).sum(axis=1), (mix * counted).sum(axis=1))

    def distance(what: str) -> Floats:
        apart: Floats = np.mean([level(sums, what, mix) - level(base, what, mix) for mix in mixes], axis=0)
        return apart

    # Variances of rows are the reference's: those of a cycle would fall with the behaviour that is looked for.
    spread_o, spread_r = (_spread(base[f"n_{what}"], base[what], base[what], base[what * 2]) for what in "or")
    spread_b = _spread(base["n_b"], base["b_r"], base["b_r"], base["b_rr"])
    together = _spread(base["n_b"], base["b_o"], base["b_r"], base["b_or"])
    mix = (mixes[0] + mixes[1]) / 2
    trained = _known(_over(sums["n_r"], sums["n"]))
    share = (mix * trained).sum(axis=1)
    apart = _known(_over(sums["r"], sums["n_r"])) - level(sums, "r", mix)[:, None]
    # Of a row's (reward less the level) where it is trained on, 0 where it is not.
    paid = trained * (spread_r + apart**2) - (trained * apart) ** 2
    found = {
        "reward": distance("r"),
        "outcome": distance("o"),
        "reward_variance": _over((mix**2 * _known(_over(paid, sums["n"]))).sum(axis=1), share**2),
        "outcome_variance": spread_o * (mix**2 * _known(_over(1.0, sums["n_o"]))).sum(axis=1),
        "covariance": together
        * _over((mix**2 * _known(_over(sums["n_b"], sums["n_o"] * sums["n"]))).sum(axis=1), share),
    }
    none = np.logical_not(there.any(axis=1))
    return Lines(
        cells.reference,
        max(together / spread_b, 0.0) if spread_b > 0 else 0.0,
        **{name: np.where(none, np.nan, values) for name, values in found.items()},
        placed=np.where(there, now, 0.0).sum(axis=1),
    )


def _shares(weight: Floats) -> Floats:
    return _known(_over(weight, weight.sum(axis=1, keepdims=True)))


def _known(values: Floats) -> Floats:
    """With 0 for what has no value; only for what is weighted by 0 there."""
    return np.nan_to_num(values)


def _spread(n: Floats, x: Floats, y: Floats, xy: Floats) -> float:
    """Covariance of two numbers of a row within segments."""
    left = (xy - _known(_over(x * y, n))).sum()
    return float(left / max(n.sum(), 1.0))


def _over(top: Floats | float, bottom: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Floats = np.where(bottom != 0, np.asarray(top) / bottom, np.nan)
    return found


# -- the test ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Side:
    """One of the two tests in every monitored cycle; arrays are (charts, monitored)."""

    chart: Drift
    threshold: float
    """Of the statistic, one-sided, on each of the two charts."""

    @property
    def statistic(self) -> Floats:
        """Deviation from the reference over its error; NaN where there is no value."""
        return self.chart.statistic[:, :, 0]

    def beyond(self, sign: int) -> Flags:
        """Monitored cycles out on that side, on either chart."""
        with np.errstate(invalid="ignore"):
            out: Flags = np.any(sign * self.statistic > self.threshold, axis=0)
        return out

    @property
    def smallest(self) -> float:
        """Lasting shift that would be seen within `WITHIN` cycles in every second run."""
        later = min(WITHIN, self.chart.error.shape[1]) - 1
        seen = self.chart.error[:, later, 0] / np.array([1, 1 - (1 - WEIGHT) ** (later + 1)])
        return self.threshold * float(np.nanmin(seen)) if np.isfinite(seen).any() else float("nan")


@dataclass(frozen=True)
class Judged:
    """Both tests over all monitored cycles."""

    reward: Side
    outcome: Side
    """Of the outcome alone, for the report; the test is the shortfall's."""
    shortfall: Side

    @property
    def alarms(self) -> Flags:
        """Monitored cycles in which the reward is up and the outcome has not followed, (monitored,)."""
        both: Flags = self.reward.beyond(1) & self.shortfall.beyond(-1)
        return both

    def since(self, place: int) -> int:
        """First monitored cycle of the run of alarms that ends at ``place``; a cycle without values breaks none."""
        alarms = self.alarms[: place + 1]
        quiet = np.flatnonzero(~alarms & ~np.isnan(self.shortfall.statistic[0, : place + 1]))
        first = int(quiet[-1]) + 1 if len(quiet) else 0
        return first + int(np.argmax(alarms[first:]))


def one_channel(value: Floats, variance: Floats, third: Floats | None = None) -> Channels:
    """A channel of its own, from a series; (cycles,), NaN is "no value"."""
    known = ~np.isnan(value)
    return Channels(
        kind=("mean",),
        metric=("value",),
        slice=("all",),
        value=value[:, None],
        variance=np.where(known, variance, np.nan)[:, None],
        third=np.zeros((len(value), 1)) if third is None else np.where(known, third, np.nan)[:, None],
        n=known[:, None].astype(np.float64),
        unplaced=np.zeros(len(value)),
    )


def judge(series: Lines, budget: float = BUDGET) -> Judged:
    """Both tests at ``budget`` alarms per 1000 cycles."""

    def side(value: Floats, variance: Floats) -> Side:
        chart = drift(one_channel(value, variance), series.reference, budget)
        # One-sided, on two charts.
        return Side(chart, float(stats.t.isf(budget / 1000 / 2, max(float(chart.freedom[0]), 1.0))))

    return Judged(
        side(series.reward, series.reward_variance),
        side(series.outcome, series.outcome_variance),
        side(series.shortfall, series.shortfall_variance),
    )


def shapes(series: Lines, cycles: Sequence[int], updates: Mapping[int, Mapping[str, Any]]) -> dict[str, Shape]:
    """Shape of reward and outcome over the serving policy's distance from the base, where the trainer logged it.

    A cycle is served by the policy that came out of the update before; the reference's cycles count as the base's
    where none is logged for them.
    """
    kl = np.array([_distance(updates.get(cycle - 1)) for cycle in cycles])
    kl[: series.reference] = np.where(np.isnan(kl[: series.reference]), 0.0, kl[: series.reference])
    found = {
        name: fit(kl, value, np.sqrt(variance))
        for name, value, variance in (
            ("reward", series.reward, series.reward_variance),
            ("outcome", series.outcome, series.outcome_variance),
        )
    }
    return {name: shape for name, shape in found.items() if shape is not None}


def _distance(update: Mapping[str, Any] | None) -> float:
    value = (update or {}).get("kl_base")
    return float("nan") if value is None else max(float(value), 0.0)
