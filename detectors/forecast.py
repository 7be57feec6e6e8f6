"""What the next cycle will look like: the pressure of what was trained on, times a step size learnt from past cycles.

The update of cycle t moves the policy that serves cycle t + 1. To first order a statistic changes by

    level(t + 1) - level(t) = eta x pressure(t) + sampling error of both levels + misfit

The step size eta is not known. It is learnt from the changes that came, each divided by the standard deviation of its
phi, with all statistics and slices pooled: one common eta, and a deviation of each statistic as far as the data say so
(empirical Bayes, DerSimonian & Laird 1986). Statistics differ since not all that is rewarded can be learnt: whether an
edit stays is luck as well as choice. Old cycles count less (`HALF_LIFE`): steps change with the optimiser, and with how
far a behaviour has gone already. Outlying changes count less (Huber 1964). The error of the pressures, known from their
intervals, is taken out of the squares, else eta would come out too small.

An interval is 90 % and holds the error of eta and of the pressure, the sampling error of both levels (the next cycle is
taken to be as large), and the misfit: what changes were larger in the past than all this explains, of the statistic
where it has shown, else of all. Its quantile is Student's, by twice the number of changes that eta was learnt from.

Where nothing was trained on in a cycle, no change is expected.

Blind to: what moves no pressure but the behaviour (other users, tools, an outage); second order: a behaviour near 0 or
1, several steps on one batch, clipping. A wrong forecast says that one of them happened; see `scores`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from scipy import stats

from palomar.data.lake import Lake
from palomar.data.slices import ALL
from palomar.detectors.pressure import cycle_pressures
from palomar.reward.charges import REWARD
from palomar.reward.spec import RewardSpec

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

CONFIDENCE = 0.9
LEAST = 2
"""Changes after training that must be known before a step size is told."""
HALF_LIFE = 5.0
"""Cycles after which a change counts half."""
_CUT = 2.0
"""Standard errors beyond which a change counts less."""
_PRIOR = 3.0
"""Cycles that the misfit of all statistics counts as, beside those of one."""
_ROUNDS = 12

HISTORY = pa.schema(
    [
        pa.field("cycle", pa.int32(), nullable=False),
        pa.field("statistic", pa.string(), nullable=False),
        pa.field("slice", pa.string(), nullable=False),
        pa.field("level", pa.float64()),
        pa.field("level_error", pa.float64()),  # standard error
        pa.field("pressure", pa.float64()),  # of the reward; null = not known
        pa.field("pressure_error", pa.float64()),
        pa.field("spread", pa.float64()),  # standard deviation of phi within contexts
        pa.field("rows", pa.int64(), nullable=False),  # in the slice
        pa.field("trained", pa.bool_(), nullable=False),  # whether the cycle's update changed the policy
    ]
)
FORECAST = pa.schema(
    [
        pa.field("made_in", pa.int32(), nullable=False),  # the cycle that it rests on
        pa.field("for_cycle", pa.int32(), nullable=False),  # the next one
        pa.field("statistic", pa.string(), nullable=False),
        pa.field("slice", pa.string(), nullable=False),
        pa.field("status", pa.string(), nullable=False),  # ok | not trained | no step size | no pressure | no variation
        pa.field("level", pa.float64()),  # measured in made_in
        pa.field("value", pa.float64()),  # expected level; null unless status = ok or not trained
        pa.field("change", pa.float64()),  # expected: value - level
        pa.field("low", pa.float64()),  # of the 90 % interval of the level that will be measured
        pa.field("high", pa.float64()),
        pa.field("error", pa.float64()),  # standard error behind it
        pa.field("pressure", pa.float64()),
        pa.field("step", pa.float64()),  # eta of the statistic
        pa.field("step_error", pa.float64()),
        pa.field("common_step", pa.float64()),  # eta of all statistics
        pa.field("came", pa.float64()),  # level measured in for_cycle; null = not known yet
    ]
)
SCORES = pa.schema(
    [
        pa.field("n", pa.int64(), nullable=False),  # forecasts with an interval, of which it is known what came
        pa.field("coverage", pa.float64()),  # share whose interval held it; 0.9 is right
        pa.field("signed_error", pa.float64()),  # mean of (came - value) / error; 0 is right
        pa.field("skill", pa.float64()),  # 1 - squared error / that of "no change"; over 0 is better than that
    ]
)


def forecasts(lake: Lake, cycles: Sequence[int], specs: Mapping[str, RewardSpec]) -> pa.Table:
    """The forecast that each of the cycles would have made with those before it, and what came: FORECAST.

    The last cycle's is about one that is not there yet. Each is made from what is known now of the cycles up to its
    own; rewards that came late are in it.
    """
    return replayed(history(lake, cycles, specs))


def history(lake: Lake, cycles: Sequence[int], specs: Mapping[str, RewardSpec]) -> pa.Table:
    """Levels and pressures of some cycles: HISTORY."""
    tables = {cycle: cycle_pressures(lake, cycle, specs) for cycle in cycles}
    return history_of(tables, _trained(lake, cycles))


def history_of(tables: Mapping[int, pa.Table], trained: Collection[int]) -> pa.Table:
    """The same from the PRESSURE table of each cycle, and those cycles whose update changed the policy."""
    parts = []
    for cycle, table in sorted(tables.items()):
        rows = table.filter(pc.equal(table["kind"], REWARD))
        known = {
            "cycle": pa.array([cycle] * rows.num_rows, pa.int32()),
            "pressure": rows["value"],
            "pressure_error": rows["error"],
            "trained": pa.array([cycle in trained] * rows.num_rows),
        }
        columns = [known[name] if name in known else rows[name] for name in HISTORY.names]
        parts.append(pa.table(columns, schema=HISTORY))
    return pa.concat_tables(parts) if parts else HISTORY.empty_table()


def _trained(lake: Lake, cycles: Sequence[int]) -> set[int]:
    """Cycles whose update trained on some sample; all of them where no trainer logged anything."""
    if not lake.cycles("samples"):
        return set(cycles)
    rows = lake.query(
        "SELECT DISTINCT cycle FROM offered WHERE trained",
        offered=lake.scan("samples", ["cycle", "trained"], cycles=list(cycles)),
    )
    return set(rows["cycle"].to_pylist())


def replayed(past: pa.Table) -> pa.Table:
    """FORECAST of each cycle of a HISTORY by those before it, with what came."""
    series = _Series.of(past)
    made = [series.forecast(position) for position in range(len(series.cycles))]
    return pa.concat_tables(made) if made else FORECAST.empty_table()


def forecast(past: pa.Table) -> pa.Table:
    """FORECAST of the last cycle of a HISTORY."""
    series = _Series.of(past)
    return series.forecast(len(series.cycles) - 1) if series.cycles else FORECAST.empty_table()


def scores(made: pa.Table, by: Sequence[str] = ()) -> pa.Table:
    """How good forecasts were: SCORES, after the columns of FORECAST that they are grouped by."""
    known = made.filter(pc.and_(pc.is_valid(made["came"]), pc.is_valid(made["error"])))
    values = {name: known[name].to_numpy() for name in ("came", "value", "level", "low", "high", "error")}
    off = (values["came"] - values["value"]) / values["error"]
    naive = (values["came"] - values["level"]) / values["error"]
    inside = (values["low"] <= values["came"]) & (values["came"] <= values["high"])
    table = pa.table(
        {
            **{name: known[name] for name in by},
            "inside": inside.astype(np.float64),
            "off": off,
            "square": off**2,
            "naive": naive**2,
        }
    )
    aims = [("inside", "count"), ("inside", "mean"), ("off", "mean"), ("square", "sum"), ("naive", "sum")]
    sums = table.group_by(list(by)).aggregate(aims)
    empty = not known.num_rows
    skill = pc.subtract(1.0, pc.divide(sums["square_sum"], sums["naive_sum"])) if not empty else pa.nulls(sums.num_rows)
    columns = [sums["inside_count"], sums["inside_mean"], sums["off_mean"], skill]
    fields = [made.schema.field(name) for name in by]
    return pa.table([*(sums[name] for name in by), *columns], schema=pa.schema([*fields, *SCORES]))


@dataclass(frozen=True)
class _Series:
    """A HISTORY as arrays of T cycles and M statistics in slices, NaN where nothing is known."""

    cycles: tuple[int, ...]
    keys: tuple[tuple[str, str], ...]
    """Statistic and slice: (M,)."""
    statistic: Ints
    """Number of the statistic: (M,)."""
    trained: Mask
    """(T,)."""
    values: Mapping[str, Floats]
    """The other columns: (T, M)."""

    @classmethod
    def of(cls, past: pa.Table) -> _Series:
        cycle, cycle_of = np.unique(past["cycle"].to_numpy(), return_inverse=True)
        keys: dict[tuple[str, str], int] = {}
        pairs = zip(past["statistic"].to_pylist(), past["slice"].to_pylist(), strict=True)
        key_of = np.array([keys.setdefault(pair, len(keys)) for pair in pairs], dtype=np.int64)
        names = list(dict.fromkeys(statistic for statistic, _ in keys))
        trained = np.zeros(len(cycle), dtype=np.bool_)
        trained[cycle_of] = np.asarray(past["trained"], dtype=np.bool_)
        values = {}
        for name in ("level", "level_error", "pressure", "pressure_error", "spread", "rows"):
            values[name] = np.full((len(cycle), len(keys)), np.nan)
            values[name][cycle_of, key_of] = pc.fill_null(past[name].cast(pa.float64()), float("nan")).to_numpy()
        return cls(
            cycles=tuple(int(each) for each in cycle),
            keys=tuple(keys),
            statistic=np.array([names.index(statistic) for statistic, _ in keys], dtype=np.int64),
            trained=trained,
            values=values,
        )

    def forecast(self, now: int) -> pa.Table:
        """Made in the cycle at a position, from it and those before: FORECAST."""
        step = _learnt(self._changes(now)) if self.trained[now] else None
        at = {name: values[now] for name, values in self.values.items()}
        there = np.isfinite(at["level"])
        pressure = np.where(np.isfinite(at["pressure"]), at["pressure"], np.nan)
        variance = 2 * at["level_error"] ** 2
        if not self.trained[now]:
            change, slope, slope_error = np.zeros(len(pressure)), np.zeros(len(pressure)), np.zeros(len(pressure))
            status = np.full(len(pressure), "not trained", dtype="<U12")
            reach = float(stats.norm.ppf((1 + CONFIDENCE) / 2))
        elif step is None:
            change, slope, slope_error = (np.full(len(pressure), np.nan) for _ in range(3))
            status = np.full(len(pressure), "no step size", dtype="<U12")
            reach = np.nan
        else:
            slope, slope_error = step.slope[self.statistic], step.error[self.statistic]
            change = slope * pressure
            error = np.nan_to_num(at["pressure_error"])
            variance = variance + (slope_error * pressure) ** 2 + (slope**2 + slope_error**2) * error**2
            variance = variance + step.misfit[self.statistic] * at["spread"] ** 2
            status = np.where(np.isfinite(change), "ok", "no pressure").astype("<U12")
            # A change is told by several statistics, which do not move as one, nor each on its own.
            reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, 2 * step.changes))
        # A level without error is one that all rows agree on: nobody knows how often others will come.
        status = np.where(at["level_error"] > 0, status, "no variation")
        change = np.where(at["level_error"] > 0, change, np.nan)
        value = at["level"] + change
        error = np.where(np.isfinite(value), np.sqrt(variance), np.nan)
        following = now + 1 < len(self.cycles) and self.cycles[now + 1] == self.cycles[now] + 1
        came = self.values["level"][now + 1] if following else np.full(len(pressure), np.nan)
        columns: dict[str, Any] = {
            "made_in": [self.cycles[now]] * len(pressure),
            "for_cycle": [self.cycles[now] + 1] * len(pressure),
            "statistic": [statistic for statistic, _ in self.keys],
            "slice": [slice_ for _, slice_ in self.keys],
            "status": status.astype(np.object_),
            "level": at["level"],
            "value": value,
            "change": change,
            "low": value - reach * error,
            "high": value + reach * error,
            "error": error,
            "pressure": pressure,
            "step": slope,
            "step_error": slope_error,
            "common_step": np.full(len(pressure), np.nan if step is None else step.common),
            "came": came,
        }
        arrays = [pa.array(columns[field.name], field.type, from_pandas=True) for field in FORECAST]
        return pa.table(arrays, schema=FORECAST).filter(pa.array(there))

    def _changes(self, now: int) -> _Changes:
        """What is known at a position of the changes that followed an update."""
        cycle = np.array(self.cycles)
        before = np.flatnonzero(self.trained[:now] & (np.diff(cycle[: now + 1]) == 1))
        was = {name: values[before] for name, values in self.values.items()}
        after = {name: self.values[name][before + 1] for name in ("level", "level_error")}
        with np.errstate(divide="ignore", invalid="ignore"):
            x, x_error = was["pressure"] / was["spread"], np.nan_to_num(was["pressure_error"]) / was["spread"]
            y = (after["level"] - was["level"]) / was["spread"]
            noise = (was["level_error"] ** 2 + after["level_error"] ** 2) / was["spread"] ** 2
        # Slices overlap: together they must not count for more than their rows do.
        whole = [slice_ == ALL for _, slice_ in self.keys]
        rows = was["rows"]
        everything = np.nanmax(np.where(whole, rows, np.nan), axis=1, initial=1.0)[:, None]
        several = np.nansum(rows, axis=1, keepdims=True) / everything / (self.statistic.max(initial=0) + 1)
        count = np.broadcast_to(0.5 ** ((now - 1 - before[:, None]) / HALF_LIFE) / np.maximum(several, 1.0), x.shape)
        usable = np.isfinite(x) & np.isfinite(y) & np.isfinite(noise) & (noise > 0)
        statistic = np.broadcast_to(self.statistic, x.shape)
        return _Changes(
            statistic=statistic[usable],
            x=x[usable],
            x_error=x_error[usable],
            y=y[usable],
            noise=noise[usable],
            count=count[usable],
            num=int(self.statistic.max(initial=-1)) + 1,
            cycles=len(before),
        )


@dataclass(frozen=True)
class _Changes:
    """n changes of statistics in slices, each from one cycle to the next, in standard deviations of phi."""

    statistic: Ints
    """Number of the statistic."""
    x: Floats
    """Pressure."""
    x_error: Floats
    y: Floats
    """Change that came."""
    noise: Floats
    """Variance of y by sampling."""
    count: Floats
    """How much each counts, at most 1."""
    num: int
    """Statistics there are."""
    cycles: int
    """Cycles that were followed by a change."""


@dataclass(frozen=True)
class _Step:
    """Step sizes of K statistics."""

    common: float
    slope: Floats
    """(K,)."""
    error: Floats
    misfit: Floats
    """Variance of a change beyond sampling, in squared standard deviations of phi: (K,)."""
    changes: int
    """Cycles that they were learnt from."""


def _learnt(of: _Changes) -> _Step | None:
    """Step sizes; None where too few changes are known."""
    if of.cycles < LEAST or not len(of.x):
        return None
    statistic, num, x, y, count = of.statistic, of.num, of.x, of.y, of.count

    def of_each(values: Floats) -> Floats:
        return np.bincount(statistic, weights=values, minlength=num).astype(np.float64)

    slope, misfit = np.zeros(num), np.zeros(num)
    for _ in range(_ROUNDS):
        known = of.noise + slope[statistic] ** 2 * of.x_error**2
        left = y - slope[statistic] * x
        variance = known + misfit[statistic]
        far = np.abs(left) / np.sqrt(variance)
        # One outlier must not make the misfit of all, nor be taken for none.
        excess = np.minimum(left**2, (_CUT + 1) ** 2 * variance) - known
        overall = max(float((count * excess).sum() / count.sum()), 0.0)
        misfit = np.maximum((_PRIOR * overall + of_each(count * excess)) / (_PRIOR + of_each(count)), 0.0)
        weight = count * np.minimum(1.0, _CUT / np.maximum(far, 1e-9)) / (known + misfit[statistic])
        square = of_each(weight * x**2)
        cleaned = np.maximum(square - of_each(weight * of.x_error**2), 0.2 * square)
        seen = cleaned > 0
        single = np.divide(of_each(weight * x * y), cleaned, out=np.zeros(num), where=seen)
        common, between = _pooled(single[seen], 1 / cleaned[seen])
        # Each statistic's own word, drawn to the common one by as much as it is unsure.
        precision = cleaned + (1 / between if between > 0 else np.inf)
        slope = np.where(np.isfinite(precision), common + (single - common) * cleaned / precision, common)
        error = np.sqrt(1 / precision + _variance(cleaned[seen], between) * (1 - cleaned / precision) ** 2)
    return _Step(common, slope, error, misfit, of.cycles)


def _pooled(values: Floats, variances: Floats) -> tuple[float, float]:
    """Mean of values with known variances, and their variance beyond it (DerSimonian & Laird 1986)."""
    weight = 1 / variances
    mean = float((weight * values).sum() / weight.sum())
    free = weight.sum() - (weight**2).sum() / weight.sum()
    between = max(float(((weight * (values - mean) ** 2).sum() - (len(values) - 1)) / free), 0.0) if free > 0 else 0.0
    weight = 1 / (variances + between)
    return float((weight * values).sum() / weight.sum()), between


def _variance(precision: Floats, between: float) -> float:
    """Of the common step."""
    return float(1 / (1 / (1 / precision + between)).sum())
