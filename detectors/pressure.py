"""What the reward pushes, and what users want: pressure on every behaviour statistic, from the logs of some cycles.

Rows of several cycles are pooled, each compared with rows of its own cycle. A row belongs to the cycle that sampled it,
with the advantage it had when it was trained on, be that a cycle later. Rows that wait for their reward are left out,
as are immature ones for the outcome; see `palomar.reward.pressure` for the estimate and `palomar.reward.charges` for
what the reward's pressure is charged to.

Held fixed: cycle, predicted failure, ambiguity and turn; in cells, as fine as the number of rows allows, or by
regression where even the coarse cells are thin.

Measured are the registered statistics that are made of behaviour alone (rates, means and ratios), and the users'
outcome. Those of one kind of request are not: slices are taken here.

Blind to: quantiles and persistence, which are no means over rows; behaviour that no statistic describes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from palomar.data.derived import derived
from palomar.data.errors import LakeError
from palomar.data.lake import Lake, Table
from palomar.data.observations import BEHAVIOUR, OBSERVATIONS
from palomar.data.schema import content_id
from palomar.data.slices import BANDS, FINE, SLICES
from palomar.detectors.statistics import STATISTICS, Statistic
from palomar.reward.charges import BASELINE, COLUMNS, OUTCOME, REWARD, Signals, outcome_signal, reward_signals
from palomar.reward.contexts import FOLDS, OUTSIDE, THIN, Context, Regressors, Strata, merged, numbered
from palomar.reward.pressure import FEW, Behaviours, Pressures, pressure, pressure_in, quantile
from palomar.reward.scoring import contributions
from palomar.reward.spec import RewardSpec

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_COARSE = 2 + len(BANDS)
"""Levels that make the coarse cells: cycle, bands, turn."""
_LEFT_THIN = 0.01
"""Share of the rows that may lie in thin cells, lest all slices be worked on one by one."""
Verdict = Literal["along_up", "along_down", "none", "unclear"]
"""``along_up`` and ``along_down``: the interval excludes 0; ``none``: it holds 0 and lies within the margin;
``unclear``: neither, or there is no interval."""
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

MARGIN = 0.05
"""Largest size of a correlation that counts as none. See docs/pressure.md for why."""

_ESTIMATES = pa.schema(
    [
        pa.field("statistic", pa.string(), nullable=False),
        pa.field("slice", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),  # reward | outcome | term:<name> | rule:<name>
        pa.field("value", pa.float64()),  # per unit of the step; null where the status leaves none
        pa.field("low", pa.float64()),  # of the 95 % interval; null unless status = ok
        pa.field("high", pa.float64()),
        pa.field("z", pa.float64()),  # value over its standard error; null unless status = ok
        pa.field("n", pa.int64(), nullable=False),  # rows that the statistic counts
        pa.field("clusters", pa.int64(), nullable=False),  # users in the slice; pooled over cycles: of the largest
        pa.field("status", pa.string(), nullable=False),  # ok | no data | no variation | too few
        pa.field("level", pa.float64()),  # of the statistic over the same rows; null = no data
        pa.field("adjustment", pa.string(), nullable=False),  # cells | regression: how the context was held fixed
        pa.field("error", pa.float64()),  # standard error of the value, without interval too; null where no value
        pa.field("level_error", pa.float64()),  # standard error of the level
        pa.field("rows", pa.int64(), nullable=False),  # in the slice
        pa.field("total", pa.float64(), nullable=False),  # sum of the statistic's denominator: its weight in a pool
        pa.field("spread", pa.float64()),  # standard deviation of the statistic's phi within contexts
        pa.field("signal_spread", pa.float64()),  # and of the signal
        pa.field("unusual", pa.int64(), nullable=False),  # rows unlike the median in the statistic; or at least so many
        pa.field("signal_unusual", pa.int64(), nullable=False),  # and in the signal
    ]
)
PRESSURE = pa.schema(
    [
        *_ESTIMATES,
        pa.field("correlation", pa.float64()),  # value / (spread x signal_spread), -1 to 1; null where no value
        pa.field("verdict", pa.string(), nullable=False),  # see Verdict
        # Rows that the statistic would have to count for another verdict than unclear, if value and spread stay as they
        # are; null where it is not unclear, or there is no interval.
        pa.field("needed_n", pa.int64()),
    ]
)

_MADE = "1"
"""Raised when the code makes something else of the same rows."""
_BATCH = 32_768
_USERS_OUTCOME = "outcome_mean"
_CONTEXT = ("conversation_id", "user_id", "turn", "predicted_failure", "ambiguity", "reward_version")
_OFFERED = (
    "interaction_id",
    "cycle",
    "sampled_cycle",
    "reward",
    "baseline",
    "advantage",
    "weight",
    "trained",
    "reason",
)


def measured_statistics() -> tuple[Statistic, ...]:
    """The registered statistics whose pressure is taken."""
    behaviour = {name for name in BEHAVIOUR.names if not name.startswith("logged_")}

    def described(item: Statistic) -> bool:
        words = set(re.findall(r"\w+", f"{item.numerator} {item.denominator} {item.where}"))
        return item.kind in ("rate", "mean", "ratio") and words & set(OBSERVATIONS.names) <= behaviour

    return tuple(item for item in STATISTICS.values() if described(item) or item.name == _USERS_OUTCOME)


def pressures(lake: Lake, cycles: Sequence[int | None], specs: Mapping[str, RewardSpec]) -> pa.Table:
    """Pressure of reward, outcome, terms and rules on each statistic in each slice, pooled over cycles: PRESSURE.

    `specs` are reward specs by version; rewards of other versions are charged to no term. Without rows the table is
    empty.
    """
    statistics = measured_statistics()
    batches, behaviours = _rows(lake, cycles, statistics)
    wanted = _among(batches["cycle"], cycles)
    reward = reward_signals(batches, _contributions(batches, specs))
    rows = batches
    if not wanted.all():
        rows, reward, behaviours = batches.filter(pa.array(wanted)), reward.of(wanted), behaviours.of(wanted)
    facts = _Facts.of_rows(rows, behaviours)
    found = [part for signals in (reward, outcome_signal(rows)) for part in _pressures(signals, facts)]
    return judged(pa.concat_tables(found) if found else _ESTIMATES.empty_table())


def cycle_pressures(lake: Lake, cycle: int | None, specs: Mapping[str, RewardSpec]) -> pa.Table:
    """`pressures` of one cycle, kept beside the lake until something that it was made from changes.

    That is the cycle's observations, the updates that were offered some of its rows, and the cycles that those updates
    trained on as well. So a new cycle makes one earlier anew only if it trained on rows of it, whose reward was late.
    """
    updates = _updates(lake, [cycle])
    cycles = _ordered({cycle, *_sampled(lake, updates)})
    known = _distinct(lake, "observations", "reward_version", cycles) & set(specs)
    statistics = [f"{item.name} {_numbers([item])}" for item in measured_statistics()]
    return derived(
        lake,
        "pressure",
        cycle,
        version=content_id(_MADE, repr(SLICES), repr(BANDS), repr(FINE), *statistics, *sorted(map(str, known))),
        parts=[("observations", cycles), ("samples", updates)],
        make=lambda: pressures(lake, [cycle], specs),
    )


def judged(estimates: pa.Table, margin: float = MARGIN) -> pa.Table:
    """The columns of PRESSURE that tell how large a pressure is, and whether it is shown to be there, or not to be."""
    column = {name: _floats(estimates[name]) for name in ("value", "low", "high", "spread", "signal_spread", "n")}
    with np.errstate(divide="ignore", invalid="ignore"):
        unit = column["spread"] * column["signal_spread"]
        correlation, half = column["value"] / unit, (column["high"] - column["low"]) / (2 * unit)
        size = np.abs(correlation)
        there = np.select([column["low"] > 0, column["high"] < 0], [0, 1], default=3)
        verdict = np.where((there == 3) & (size + half <= margin), 2, there)
        # An interval shrinks with the root of n.
        shares = [half / size, np.where(size < margin, half / (margin - size), np.inf)]
        needed = np.ceil(column["n"] * np.minimum(*shares) ** 2)
    needed = np.where(np.isfinite(needed) & (verdict == 3), needed, np.nan)
    found = {
        "correlation": pa.array(np.where(np.isfinite(correlation), correlation, np.nan), from_pandas=True),
        "verdict": pa.array(VERDICTS, pa.string()).take(pa.array(verdict)),
        "needed_n": pa.array(needed, from_pandas=True).cast(pa.int64()),
    }
    return pa.table([*estimates.select(_ESTIMATES.names).columns, *found.values()], schema=PRESSURE)


def combined(tables: Sequence[pa.Table]) -> pa.Table:
    """One PRESSURE table for several cycles, from that of each: what `pressures` of them all would say, nearly.

    Values are weighted by the statistic's denominator and their variances added. A term or rule that a cycle does not
    have pushes nothing there. Three things differ: a user who comes back in another cycle is counted as another one;
    a ratio is taken at each cycle's own level R, which matters where the level moves (and is then the better answer:
    with one R for all, whatever moves the denominator counts as behaviour); and the outcome is in standard deviations
    of each cycle. Rates of all rows agree to the last digits.
    """
    stacked = pa.concat_tables([table.select(_ESTIMATES.names) for table in tables]) if tables else None
    if stacked is None or not stacked.num_rows:
        return PRESSURE.empty_table()
    parts = _Parts.of(stacked, np.repeat(np.arange(len(tables)), [table.num_rows for table in tables]))
    total, rows = parts.about("total"), parts.about("rows")
    some = total.sum(axis=0) > 0
    weight = total / np.where(some, total.sum(axis=0), 1.0)

    def mean(values: Floats, power: int = 1) -> Floats:
        return np.asarray(np.where(some, (weight**power * values).sum(axis=0), np.nan), dtype=np.float64)

    clusters = parts.about("clusters").max(axis=0).astype(np.int64)
    unusual = parts.about("unusual").sum(axis=0).astype(np.int64)
    signal_unusual = parts.pushed("signal_unusual").sum(axis=0).astype(np.int64)
    error = np.sqrt(mean(parts.pushed("error") ** 2, power=2))
    enough = (np.minimum(np.minimum(unusual, signal_unusual), clusters) >= FEW) & (error > 0)
    varies = parts.said("status", ("ok", "too few"))
    status = np.select([~some, ~varies, enough], ["no data", "no variation", "ok"], default="too few")
    value, error = (np.where(some & varies, each, np.nan) for each in (mean(parts.pushed("value")), error))
    sure = np.where(status == "ok", error, np.nan)
    reach = quantile(clusters) * sure
    with np.errstate(invalid="ignore"):
        columns = {
            **{name: stacked[name].take(pa.array(parts.first)) for name in ("statistic", "slice", "kind")},
            "value": value,
            "low": value - reach,
            "high": value + reach,
            "z": value / sure,
            "error": error,
            "n": parts.about("n").sum(axis=0).astype(np.int64),
            "rows": rows.sum(axis=0).astype(np.int64),
            "clusters": clusters,
            "unusual": unusual,
            "signal_unusual": signal_unusual,
            "total": total.sum(axis=0),
            "status": status.astype(np.object_),
            "adjustment": np.where(parts.said("adjustment", ("regression",)), "regression", "cells").astype(np.object_),
            "level": mean(parts.about("level")),
            "level_error": np.sqrt(mean(parts.about("level_error") ** 2, power=2)),
            "spread": np.sqrt(mean(parts.about("spread") ** 2)),
            "signal_spread": np.sqrt((rows * parts.pushed("signal_spread") ** 2).sum(axis=0) / rows.sum(axis=0)),
        }
    return judged(_arrow(columns))


@dataclass(frozen=True)
class _Parts:
    """Rows of several PRESSURE tables by part (T) and by what they are of (G): statistic, slice and kind."""

    stacked: pa.Table
    there: Ints
    """Row of `stacked`, -1 where the part has no such kind: (T, G)."""
    instead: Ints
    """Row of `stacked` with the reward or outcome that the kind is a part of, which each part with rows has: (T, G)."""
    first: Ints
    """Any row of `stacked` of each: (G,)."""

    @classmethod
    def of(cls, stacked: pa.Table, part: Ints) -> _Parts:
        kind = stacked["kind"]
        whole = pc.if_else(pc.equal(kind, OUTCOME), OUTCOME, REWARD)
        key, about = (_codes(stacked["statistic"], stacked["slice"], each) for each in (kind, whole))
        first = np.unique(key, return_index=True)[1]
        place = np.full((part[-1] + 1, len(first)), -1)
        there, instead = place.copy(), place
        there[part, key] = np.arange(len(key))
        own = np.flatnonzero(np.asarray(pc.equal(kind, whole), dtype=np.bool_))
        instead[part[own], about[own]] = own
        return cls(stacked, there, instead[:, about[first]], first)

    def about(self, name: str) -> Floats:
        """What holds of statistic and slice, whether the kind is there or not; 0 where nothing is known: (T, G)."""
        return np.where(self.instead >= 0, np.nan_to_num(_floats(self.stacked[name]))[self.instead], 0.0)

    def pushed(self, name: str) -> Floats:
        """What holds of the kind; 0 where it is not there, or has no value: (T, G)."""
        return np.where(self.there >= 0, np.nan_to_num(_floats(self.stacked[name]))[self.there], 0.0)

    def said(self, name: str, words: Sequence[str]) -> Mask:
        """Whether one part or more says one of these: (G,)."""
        found = np.asarray(pc.is_in(self.stacked[name], value_set=pa.array(words)), dtype=np.bool_)
        return np.asarray(((self.there >= 0) & found[self.there]).any(axis=0), dtype=np.bool_)


def _codes(*words: pa.ChunkedArray) -> Ints:
    """Number of each row's combination of words."""
    joined = pc.binary_join_element_wise(*words, "\0").combine_chunks()
    return np.asarray(joined.dictionary_encode().indices, dtype=np.int64)


def _pressures(signals: Signals, facts: _Facts) -> list[pa.Table]:
    """One table for each slice that has rows."""
    slices = {name: signals.counted & facts.within(bands) for name, bands in SLICES.items()}
    slices = {name: mask for name, mask in slices.items() if mask.any()}
    if not slices:
        return []
    together, cells = facts.cells(signals.counted, slices)
    found: dict[str, tuple[Pressures, Context]] = {}
    if together:
        masks = [slices[name] for name in together]
        results = pressure_in(masks, signals.values, facts.behaviours, cells, facts.clusters)
        found = {name: (result, cells) for name, result in zip(together, results, strict=True)}
    for name, mask in slices.items():
        if name not in found:
            context = facts.context(mask)
            result = pressure(signals.values[mask], facts.behaviours.of(mask), context, facts.clusters[mask])
            found[name] = result, context
    return [_table(name, *found[name], facts.behaviours.names, signals.names) for name in slices]


def _table(
    slice_: str, result: Pressures, context: Context, statistics: Sequence[str], kinds: Sequence[str]
) -> pa.Table:
    """The estimates of one slice, statistics slowest."""
    shape = result.value.shape
    k, s = (index.ravel() for index in np.indices(shape))
    columns: dict[str, Any] = {
        "statistic": np.array(statistics, dtype=np.object_)[k],
        "slice": [slice_] * len(k),
        "kind": np.array(kinds, dtype=np.object_)[s],
        **{name: getattr(result, name).ravel() for name in ("value", "low", "high", "z", "error", "status")},
        **{name: getattr(result, name)[k] for name in ("n", "level", "level_error", "total", "spread", "unusual")},
        **{name: getattr(result, name)[s] for name in ("signal_spread", "signal_unusual")},
        **{name: [getattr(result, name)] * len(k) for name in ("rows", "clusters")},
        "adjustment": ["cells" if isinstance(context, Strata) else "regression"] * len(k),
    }
    table = _arrow(columns)
    # The outcome's own pressure is its variance: positive by definition.
    own = pc.and_(pc.equal(table["statistic"], _USERS_OUTCOME), pc.equal(table["kind"], OUTCOME))
    return table.filter(pc.invert(own))


def _arrow(columns: Mapping[str, Any]) -> pa.Table:
    """As _ESTIMATES. NaN is "no value" in NumPy, null is in Arrow."""

    def array(values: Any, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
        return values if isinstance(values, pa.ChunkedArray) else pa.array(values, kind, from_pandas=True)

    return pa.table([array(columns[field.name], field.type) for field in _ESTIMATES], schema=_ESTIMATES)


@dataclass(frozen=True)
class _Facts:
    """What is known of N rows, apart from what they were paid."""

    behaviours: Behaviours
    clusters: Ints
    """User of each row; its conversation where the log names no user, itself where it names neither."""
    levels: Ints
    """What is held fixed, as bins: (N, 6). Cycle, predicted failure, ambiguity, turn (0 for the first of a
    conversation, 1 for any later), and finer bins of predicted failure and ambiguity."""
    probability: Mapping[str, Floats]
    """Of the dimensions in `BANDS`; NaN where not known."""

    @classmethod
    def of_rows(cls, rows: pa.Table, behaviours: Behaviours) -> _Facts:
        probability = {name: _floats(rows[name]) for name in BANDS}
        coarse = [_bins(value, BANDS[name][0]) for name, value in probability.items()]
        fine = [_bins(value, FINE[name]) for name, value in probability.items()]
        cycle = np.asarray(pc.fill_null(rows["cycle"], -1), dtype=np.int64)
        turn = np.minimum(rows["turn"].to_numpy(), 1).astype(np.int64)
        return cls(
            behaviours=behaviours,
            clusters=_owners(rows["user_id"], rows["conversation_id"]),
            levels=np.column_stack([cycle, *coarse, turn, *fine]),
            probability=probability,
        )

    def within(self, bands: Mapping[str, str]) -> Mask:
        """Rows in all of the named bands; one whose place is not known is in none."""
        inside = np.ones(len(self.clusters), dtype=np.bool_)
        for column, (name, (_, names)) in enumerate(BANDS.items(), start=1):
            if name in bands:
                inside &= self.levels[:, column] == names.index(bands[name])
        return inside

    def cells(self, counted: Mask, slices: Mapping[str, Mask]) -> tuple[list[str], Strata]:
        """The slices of the counted rows that can share one set of cells, and that set.

        They can where cells need not reach over the bands that slices are made of: then those of a slice are the ones
        that it would have alone. A few rows in bands that hold hardly any must not keep millions from it: they may lie
        in thin cells.
        """
        levels = self.levels[counted]
        codes = np.full(len(self.levels), OUTSIDE, dtype=np.int64)
        codes[counted] = merged(levels, within=1 + len(BANDS))
        if _thin(codes[counted]).mean() > _LEFT_THIN:
            return [], Strata(codes)
        thin = np.zeros(len(codes), dtype=np.bool_)
        thin[counted] = _thin(numbered(levels[:, :_COARSE]))
        return [name for name, mask in slices.items() if not self._takes_regression(mask, thin[mask])], Strata(codes)

    def context(self, chosen: Mask) -> Context:
        """What is held fixed on some rows alone."""
        levels = self.levels[chosen]
        if self._takes_regression(chosen, _thin(numbered(levels[:, :_COARSE]))):
            return Regressors(self._features()[chosen], self.clusters[chosen])
        return Strata(merged(levels))

    def _takes_regression(self, chosen: Mask, thin: Mask) -> bool:
        return float(thin.mean()) > 0.5 and len(np.unique(self.clusters[chosen])) >= FOLDS

    def _features(self) -> Floats:
        cycle, turn = self.levels[:, 0], self.levels[:, _COARSE - 1]
        columns = [turn.astype(np.float64)]
        columns += [(cycle == each).astype(np.float64) for each in np.unique(cycle)[1:]]
        for value in self.probability.values():
            unknown = np.isnan(value)
            columns += [np.where(unknown, 0.5, value), unknown.astype(np.float64)]
        return np.column_stack(columns)


def _thin(cell: Ints) -> Mask:
    """Rows whose cell holds too few."""
    return np.asarray((np.bincount(cell) < THIN)[cell], dtype=np.bool_)


def _bins(value: Floats, edges: tuple[float, ...]) -> Ints:
    """Number of each value's bin, which holds its lower edge; one more for what is not known."""
    bins = np.zeros(len(value), dtype=np.int64)
    for edge in edges:
        bins += value >= edge
    return np.where(np.isnan(value), len(edges) + 1, bins)


def _owners(user: pa.ChunkedArray, conversation: pa.ChunkedArray) -> Ints:
    """Who each row is counted with: its user, else its conversation, else nobody."""
    owner = np.arange(len(user), dtype=np.int64)
    for column in (conversation, user):
        words = column.combine_chunks().dictionary_encode()
        number = np.asarray(pc.fill_null(words.indices, -1), dtype=np.int64)
        owner = np.where(number >= 0, number, len(words.dictionary) + owner)
    return owner


def _floats(column: pa.ChunkedArray) -> Floats:
    return np.asarray(pc.fill_null(column.cast(pa.float64()), float("nan")).to_numpy(), dtype=np.float64)


def _among(cycle: pa.ChunkedArray, cycles: Sequence[int | None]) -> Mask:
    return np.asarray(pc.is_in(cycle, value_set=pa.array(cycles, pa.int32())).to_numpy(), dtype=np.bool_)


def _contributions(rows: pa.Table, specs: Mapping[str, RewardSpec]) -> dict[str, Floats]:
    """What each term added to each row's reward, NaN where the row's spec has no such term or is not at hand."""
    found: dict[str, Floats] = {}
    for version in pc.unique(rows["reward_version"]).drop_null().to_pylist():
        if version not in specs:
            continue
        here = np.asarray(pc.fill_null(pc.equal(rows["reward_version"], version), False).to_numpy(), dtype=np.bool_)
        spec = specs[version]
        terms = rows.select([name for name in rows.column_names if name.startswith(("term:", "status:"))])
        for name, paid in contributions(terms if here.all() else terms.filter(pa.array(here)), spec).items():
            if any(term.name == name and term.weight != 0 for term in spec.terms):
                found.setdefault(name, np.full(rows.num_rows, np.nan))[here] = paid
    return found


# -- reading the lake ----------------------------------------------------------------------------------------------


def _rows(lake: Lake, cycles: Sequence[int | None], statistics: Sequence[Statistic]) -> tuple[pa.Table, Behaviours]:
    """Observations of the cycles, and all others that were trained on together with them; what was made of each.

    Columns: COLUMNS and SAMPLE_COLUMNS of `palomar.reward.charges`, the context, and the terms.
    """
    decided = _decisions(lake, cycles)
    others = [cycle for cycle in pc.unique(decided["sampled_cycle"]).to_pylist() if cycle is not None]
    connection = lake.connect(["observations"], _ordered({*cycles, *others}))
    connection.register("decided", decided.drop_columns(["sampled_cycle"]))
    connection.register("wanted", pa.table({"cycle": pa.array(cycles, pa.int32())}))
    try:
        names = [name for name, *_ in connection.execute("SELECT * FROM observations LIMIT 0").description or ()]
        terms = [f'"{name.replace(chr(34), chr(34) * 2)}"' for name in names if name.startswith(("term:", "status:"))]
        kept = dict.fromkeys([*COLUMNS, *_CONTEXT])
        listed = ", ".join([*_numbers(statistics), *(f"observations.{name}" for name in kept), *terms])
        (at_most,) = connection.execute("SELECT count(*) FROM observations").fetchall()[0]
        reader = connection.execute(
            f"SELECT {listed}, decided.* EXCLUDE (interaction_id) FROM observations "
            "LEFT JOIN decided ON observations.interaction_id = decided.interaction_id "
            "WHERE decided.interaction_id IS NOT NULL OR EXISTS "
            "(SELECT 1 FROM wanted WHERE wanted.cycle IS NOT DISTINCT FROM observations.cycle)"
        ).to_arrow_reader(_BATCH)
        return _split(reader, tuple(item.name for item in statistics), at_most)
    except duckdb.Error as exc:
        raise LakeError(f"the lake cannot answer: {exc}") from exc
    finally:
        connection.close()


def _split(reader: pa.RecordBatchReader, names: tuple[str, ...], at_most: int) -> tuple[pa.Table, Behaviours]:
    """The columns after the numbers as a table, and the numbers with those of one row side by side, as they are used.

    Batch by batch: all of it twice would be the most memory that pressures take.
    """
    num, rest, total = len(names), [], 0
    numbers = np.empty((2, at_most, num))
    for batch in reader:
        columns = batch.columns
        until = total + batch.num_rows
        for axis in range(2):
            part = [column.to_numpy() for column in columns[axis * num : (axis + 1) * num]]
            np.stack(part, axis=1, out=numbers[axis, total:until])
        rest.append(pa.record_batch(columns[2 * num :], schema=_after(batch.schema, 2 * num)))
        total = until
    table = pa.Table.from_batches(rest, schema=_after(reader.schema, 2 * num))
    return table, Behaviours(names, numbers[0, :total], numbers[1, :total])


def _after(schema: pa.Schema, start: int) -> pa.Schema:
    return pa.schema([schema.field(index) for index in range(start, len(schema))])


def _decisions(lake: Lake, cycles: Sequence[int | None]) -> pa.Table:
    """The trainer's word on every sample of the updates that were offered one of these cycles: trained on, or its last.

    It has none on a cycle that was only watched; what it would have made of it is rebuilt.

    With the columns interaction_id, sampled_cycle and SAMPLE_COLUMNS.
    """
    return lake.query(
        """
        SELECT interaction_id, sampled_cycle, cycle AS update_cycle, reward AS paid, baseline, advantage, weight,
            trained, reason
        FROM offered
        WHERE sampled_cycle NOT IN (SELECT sampled_cycle FROM offered WHERE reason = ? AND sampled_cycle IS NOT NULL)
        QUALIFY row_number() OVER (PARTITION BY interaction_id ORDER BY trained DESC, cycle DESC) = 1
        """,
        [BASELINE],
        offered=lake.scan("samples", _OFFERED, cycles=_updates(lake, cycles)),
    )


def _updates(lake: Lake, cycles: Iterable[int | None]) -> list[int]:
    """The updates that were offered rows of some cycles."""
    wanted = {cycle for cycle in cycles if cycle is not None}
    later = [each for each in lake.cycles("samples") if each is not None and wanted and each >= min(wanted)]
    return [update for update in later if _sampled(lake, [update]) & wanted]


def _sampled(lake: Lake, updates: Iterable[int]) -> set[Any]:
    """Cycles that sampled what the updates were offered."""
    return _distinct(lake, "samples", "sampled_cycle", updates) - {None}


def _distinct(lake: Lake, table: Table, column: str, cycles: Iterable[int | None]) -> set[Any]:
    """All values of a column in some cycles; of each cycle they are looked up once, and kept."""
    found: set[Any] = set()
    for cycle in cycles:
        states = tuple((path.name, path.stat().st_mtime_ns) for path in lake.files(table, [cycle]))
        found |= _values(lake, table, column, cycle, states)
    return found


@lru_cache(maxsize=4096)
def _values(lake: Lake, table: Table, column: str, cycle: int | None, _states: object) -> frozenset[Any]:
    def look() -> pa.Table:
        return lake.scan(table, [column], cycles=[cycle]).group_by(column).aggregate([])

    kept = derived(lake, column, cycle, version="1", parts=[(table, [cycle])], make=look)
    return frozenset(kept[column].to_pylist())


def _ordered(cycles: Iterable[int | None]) -> list[int | None]:
    return sorted(cycles, key=lambda cycle: (cycle is None, cycle or 0))


def _numbers(statistics: Sequence[Statistic]) -> list[str]:
    """SQL of X of each statistic, then of Y of each; both 0 on a row that it does not count."""
    found: dict[str, list[str]] = {"x": [], "y": []}
    for index, item in enumerate(statistics):
        numerator, denominator = f"({item.numerator})", f"({item.denominator})"
        if item.kind == "rate":
            counted = f"{numerator} IS NOT NULL" if item.denominator == "1" else denominator
            x, y = f"coalesce({numerator}, false)::INT", "1"
        else:
            counted = f"{numerator} IS NOT NULL AND {denominator} IS NOT NULL"
            x, y = numerator, denominator
        condition = f"({item.where}) AND {counted}"
        for axis, value in (("x", x), ("y", y)):
            found[axis].append(f"(CASE WHEN {condition} THEN {value} ELSE 0 END)::DOUBLE AS {axis}{index}")
    return found["x"] + found["y"]
