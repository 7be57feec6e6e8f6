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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from palomar.data.errors import LakeError
from palomar.data.lake import Lake
from palomar.data.observations import BEHAVIOUR, OBSERVATIONS
from palomar.detectors.cube import BANDS
from palomar.detectors.measure import ALL
from palomar.detectors.statistics import STATISTICS, Statistic
from palomar.reward.charges import BASELINE, COLUMNS, OUTCOME, Signals, outcome_signal, reward_signals
from palomar.reward.contexts import FOLDS, THIN, Context, Regressors, Strata, merged
from palomar.reward.pressure import Behaviours, pressure
from palomar.reward.scoring import contributions
from palomar.reward.spec import RewardSpec

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

SLICES: Mapping[str, Mapping[str, str]] = {
    ALL: {},
    "predicted_failure=high": {"predicted_failure": "high"},
    "ambiguity=clear": {"ambiguity": "clear"},
    "ambiguity=vague": {"ambiguity": "vague"},
    "predicted_failure=high,ambiguity=clear": {"predicted_failure": "high", "ambiguity": "clear"},
}
"""Bands of `palomar.detectors.cube.BANDS` by slice. A hole for hard requests alone does not show in `ALL`."""

FINE = {"predicted_failure": (0.2, 0.4, 0.6, 0.8), "ambiguity": (0.25, 0.5, 0.75)}
"""Inner edges of the finest cells; the bands' edges are among them."""

PRESSURE = pa.schema(
    [
        pa.field("statistic", pa.string(), nullable=False),
        pa.field("slice", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),  # reward | outcome | term:<name> | rule:<name>
        pa.field("value", pa.float64()),  # per unit of the step; null where the status leaves none
        pa.field("low", pa.float64()),  # of the 95 % interval; null unless status = ok
        pa.field("high", pa.float64()),
        pa.field("z", pa.float64()),  # value over its standard error; null unless status = ok
        pa.field("n", pa.int64(), nullable=False),  # rows that the statistic counts
        pa.field("clusters", pa.int64(), nullable=False),  # users in the slice
        pa.field("status", pa.string(), nullable=False),  # ok | no data | no variation | too few
        pa.field("level", pa.float64()),  # of the statistic over the same rows; null = no data
        pa.field("adjustment", pa.string(), nullable=False),  # cells | regression: how the context was held fixed
    ]
)

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
    batches = _rows(lake, cycles, statistics)
    wanted = _among(batches["cycle"], cycles)
    reward = reward_signals(batches, _contributions(batches, specs)).of(wanted)
    rows = batches.filter(pa.array(wanted))
    facts = _Facts.of_rows(rows, statistics)
    found: list[dict[str, Any]] = []
    for signals in (reward, outcome_signal(rows)):
        for name, bands in SLICES.items():
            found += _pressures(signals, facts, name, signals.counted & facts.within(bands))
    return pa.Table.from_pylist(found, schema=PRESSURE)


def _pressures(signals: Signals, facts: _Facts, slice_: str, chosen: Mask) -> list[dict[str, Any]]:
    if not chosen.any():
        return []
    context = facts.context(chosen)
    result = pressure(signals.values[chosen], facts.behaviours.of(chosen), context, facts.clusters[chosen])
    return [
        {
            "statistic": statistic,
            "slice": slice_,
            "kind": kind,
            **{name: _known(getattr(result, name)[k, s]) for name in ("value", "low", "high", "z")},
            "n": int(result.n[k]),
            "clusters": result.clusters,
            "status": str(result.status[k, s]),
            "level": _known(result.level[k]),
            "adjustment": "cells" if isinstance(context, Strata) else "regression",
        }
        for k, statistic in enumerate(facts.behaviours.names)
        for s, kind in enumerate(signals.names)
        if (statistic, kind) != (_USERS_OUTCOME, OUTCOME)  # its variance: positive by definition
    ]


@dataclass(frozen=True)
class _Facts:
    """What is known of N rows, apart from what they were paid."""

    behaviours: Behaviours
    clusters: Ints
    """User of each row; its conversation where the log names no user, itself where it names neither."""
    turn: Ints
    """0 for the first of a conversation, 1 for any later one."""
    cycle: Ints
    probability: Mapping[str, Floats]
    """Of the dimensions in `BANDS`; NaN where not known."""

    @classmethod
    def of_rows(cls, rows: pa.Table, statistics: Sequence[Statistic]) -> _Facts:
        def stacked(prefix: str) -> Floats:
            columns = [rows[f"{prefix}{index}"].to_numpy() for index in range(len(statistics))]
            return np.column_stack(columns) if rows.num_rows else np.zeros((0, len(statistics)))

        user = pc.binary_join_element_wise("user", rows["user_id"], " ")
        conversation = pc.binary_join_element_wise("conversation", rows["conversation_id"], " ")
        owner = pc.coalesce(user, conversation, rows["interaction_id"]).combine_chunks()
        return cls(
            behaviours=Behaviours(tuple(item.name for item in statistics), stacked("x"), stacked("y")),
            clusters=np.asarray(owner.dictionary_encode().indices, dtype=np.int64),
            turn=np.minimum(rows["turn"].to_numpy(), 1).astype(np.int64),
            cycle=np.asarray(pc.fill_null(rows["cycle"], -1), dtype=np.int64),
            probability={name: pc.fill_null(rows[name], float("nan")).to_numpy() for name in BANDS},
        )

    def within(self, bands: Mapping[str, str]) -> Mask:
        """Rows in all of the named bands; one whose place is not known is in none."""
        inside = np.ones(len(self.clusters), dtype=np.bool_)
        for name, band in bands.items():
            edges, names = BANDS[name]
            inside &= _bins(self.probability[name], edges) == names.index(band)
        return inside

    def context(self, chosen: Mask) -> Context:
        """What is held fixed on some rows."""
        coarse = [self.cycle, *(_bins(value, BANDS[name][0]) for name, value in self.probability.items()), self.turn]
        fine = [_bins(value, FINE[name]) for name, value in self.probability.items()]
        levels = np.column_stack([*coarse, *fine])[chosen]
        _, cell, sizes = np.unique(levels[:, : len(coarse)], axis=0, return_inverse=True, return_counts=True)
        thin_share = float((sizes[cell.reshape(-1)] < THIN).mean())
        clusters = self.clusters[chosen]
        if thin_share > 0.5 and len(np.unique(clusters)) >= FOLDS:
            return Regressors(self._features()[chosen], clusters)
        return Strata(merged(levels))

    def _features(self) -> Floats:
        columns = [self.turn.astype(np.float64)]
        columns += [(self.cycle == each).astype(np.float64) for each in np.unique(self.cycle)[1:]]
        for value in self.probability.values():
            unknown = np.isnan(value)
            columns += [np.where(unknown, 0.5, value), unknown.astype(np.float64)]
        return np.column_stack(columns)


def _bins(value: Floats, edges: tuple[float, ...]) -> Ints:
    """Number of each value's bin, which holds its lower edge; one more for what is not known."""
    return np.where(np.isnan(value), len(edges) + 1, np.digitize(value, edges)).astype(np.int64)


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


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
        for name, paid in contributions(rows.filter(pa.array(here)), spec).items():
            if any(term.name == name and term.weight != 0 for term in spec.terms):
                found.setdefault(name, np.full(rows.num_rows, np.nan))[here] = paid
    return found


# -- reading the lake ----------------------------------------------------------------------------------------------


def _rows(lake: Lake, cycles: Sequence[int | None], statistics: Sequence[Statistic]) -> pa.Table:
    """Observations of the cycles, and all others that were trained on together with them; what was made of each.

    Columns: COLUMNS and SAMPLE_COLUMNS of `palomar.reward.charges`, the context, the terms, and of statistic number i
    the ``x<i>`` and ``y<i>`` of `Behaviours`.
    """
    decided = _decisions(lake, cycles)
    others = [cycle for cycle in pc.unique(decided["sampled_cycle"]).to_pylist() if cycle is not None]
    connection = lake.connect(["observations"], sorted({*cycles, *others}, key=lambda cycle: (cycle is None, cycle)))
    connection.register("decided", decided.drop_columns(["sampled_cycle"]))
    connection.register("wanted", pa.table({"cycle": pa.array(cycles, pa.int32())}))
    try:
        names = [name for name, *_ in connection.execute("SELECT * FROM observations LIMIT 0").description or ()]
        terms = [f'"{name.replace(chr(34), chr(34) * 2)}"' for name in names if name.startswith(("term:", "status:"))]
        kept = dict.fromkeys(["interaction_id", *COLUMNS, *_CONTEXT])
        listed = ", ".join([*(f"observations.{name}" for name in kept), *terms, *_numbers(statistics)])
        return connection.execute(
            f"SELECT {listed}, decided.* EXCLUDE (interaction_id) FROM observations "
            "LEFT JOIN decided ON observations.interaction_id = decided.interaction_id "
            "WHERE decided.interaction_id IS NOT NULL OR EXISTS "
            "(SELECT 1 FROM wanted WHERE wanted.cycle IS NOT DISTINCT FROM observations.cycle)"
        ).to_arrow_table()
    except duckdb.Error as exc:
        raise LakeError(f"the lake cannot answer: {exc}") from exc
    finally:
        connection.close()


def _decisions(lake: Lake, cycles: Sequence[int | None]) -> pa.Table:
    """The trainer's word on every sample of the updates that were offered one of these cycles: trained on, or its last.

    It has none on a cycle that was only watched; what it would have made of it is rebuilt.

    With the columns interaction_id, sampled_cycle and SAMPLE_COLUMNS.
    """
    numbered = [cycle for cycle in cycles if cycle is not None]
    updates = [cycle for cycle in lake.cycles("samples") if cycle is not None and numbered and cycle >= min(numbered)]
    return lake.query(
        """
        SELECT interaction_id, sampled_cycle, cycle AS update_cycle, reward AS paid, baseline, advantage, weight,
            trained, reason
        FROM offered
        WHERE cycle IN (SELECT o.cycle FROM offered AS o JOIN wanted ON o.sampled_cycle = wanted.cycle)
            AND sampled_cycle NOT IN (SELECT sampled_cycle FROM offered WHERE reason = ? AND sampled_cycle IS NOT NULL)
        QUALIFY row_number() OVER (PARTITION BY interaction_id ORDER BY trained DESC, cycle DESC) = 1
        """,
        [BASELINE],
        offered=lake.scan("samples", _OFFERED, cycles=updates),
        wanted=pa.table({"cycle": pa.array(numbered, pa.int32())}),
    )


def _numbers(statistics: Sequence[Statistic]) -> list[str]:
    """SQL of X and Y of each statistic; both 0 on a row that it does not count."""
    found = []
    for index, item in enumerate(statistics):
        numerator, denominator = f"({item.numerator})", f"({item.denominator})"
        if item.kind == "rate":
            counted = f"{numerator} IS NOT NULL" if item.denominator == "1" else denominator
            x, y = f"coalesce({numerator}, false)::INT", "1"
        else:
            counted = f"{numerator} IS NOT NULL AND {denominator} IS NOT NULL"
            x, y = numerator, denominator
        condition = f"({item.where}) AND {counted}"
        found += [
            f"(CASE WHEN {condition} THEN {value} ELSE 0 END)::DOUBLE AS {name}{index}"
            for name, value in (("x", x), ("y", y))
        ]
    return found
