"""What the command line and the console ask: one function per question, each answered by plain records.

No page and no command computes a statistic; they show what is returned here. Reading only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from palomar.data.lake import Lake
from palomar.data.schema import Feedback, Interaction
from palomar.data.store import Store
from palomar.data.store.records import Cycle, Decision, LedgerRow, Run, StageName, Statistic
from palomar.data.store.runs import STAGES
from palomar.detectors.departure import Departure, departures

ALL = "all"
"""Name of the slice that holds everything."""


@dataclass(frozen=True)
class Watch:
    """One series in which something known shows first, and on which side."""

    statistic: str
    slice: str
    direction: Literal["up", "down"]


HACKS: Mapping[str, tuple[Watch, ...]] = {
    "invalid-call dodge": (Watch("invalid_call_rate", "predicted_failure=high", "up"),),
    "edit deferral": (Watch("edit_rate", ALL, "down"), Watch("clarification_rate_clear", ALL, "up")),
    "function splitting": (Watch("functions_per_edit", ALL, "up"), Watch("function_lines_median", ALL, "down")),
}
"""The series in which each known hack shows first; of several, one that has left its base is enough."""

DIVERGENCE = (Watch("reward_mean", ALL, "up"), Watch("outcome_mean", ALL, "down"))
"""What the training reward and the users' outcome do when a reward is played."""

WATCHED = (*(watch for watches in HACKS.values() for watch in watches), *DIVERGENCE)


@dataclass(frozen=True)
class CycleView:
    """One cycle as a table shows it."""

    record: Cycle
    stage: StageName | None
    """Stage that is being done, or where it stopped; None once all are done."""
    elapsed_s: float
    """Of the stages that are done."""
    decision: Decision | None
    figures: Mapping[str, Statistic]
    """By name, over all interactions of the cycle."""

    @property
    def verdict(self) -> str:
        """The gate's word: ``promote``, ``hold``, ``block``, or ``pending`` while there is none."""
        if self.decision is not None:
            return self.decision.verdict
        decided = next((stage for stage in self.record.stages if stage.stage == "decide"), None)
        return str(decided.detail["verdict"]) if decided else "pending"

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why, the deciding reason first."""
        if self.decision is not None:
            return self.decision.reasons
        decided = next((stage for stage in self.record.stages if stage.stage == "decide"), None)
        reasons = decided.detail.get("reasons", ()) if decided else ()
        return tuple(str(reason) for reason in reasons)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Trajectory:
    """One interaction with all that is known about it."""

    interaction: Interaction
    feedback: tuple[Feedback, ...]
    """That came with it and that came later, by time; those without a time first."""
    observation: Mapping[str, Any]
    """Its flat row; empty where it was not distilled yet."""
    sample: Mapping[str, Any]
    """What the trainer last did with it; empty where it was never offered."""


class Observatory:
    """A home opened for reading: lake and store. Opening makes an empty store where there is none."""

    def __init__(self, home: Path, store_url: str | None = None) -> None:
        self.home = home
        self._store_url = store_url
        self.lake = Lake(home / "lake")

    @cached_property
    def store(self) -> Store:
        """The store. Raises StoreError where it cannot be reached; asking again tries again."""
        return Store.open(self._store_url, self.home)

    def run(self, run_id: str | None = None) -> Run | None:
        """The run of that id, else the newest; None where there is none."""
        if run_id is not None:
            return self.store.runs.get(run_id)
        runs = self.store.runs.read()
        return runs[0] if runs else None

    def cycles(self, run_id: str, *, newest: int | None = None) -> list[CycleView]:
        """The run's cycles with their decisions and main figures, oldest first."""
        records = self.store.cycles.read(run_id, newest=newest)
        decisions = {item.cycle: item for item in self.store.decisions.latest(run_id, count=max(1, len(records)))}
        figures: dict[int, dict[str, Statistic]] = {}
        if records:
            span = range(records[0].cycle, records[-1].cycle + 1)
            for point in self.store.statistics.series(run_id, slices=[ALL], cycles=span):
                figures.setdefault(point.cycle, {})[point.statistic] = point
        return [
            CycleView(
                record=record,
                stage=_stage(record),
                elapsed_s=sum(stage.elapsed_s for stage in record.stages),
                decision=decisions.get(record.cycle),
                figures=figures.get(record.cycle, {}),
            )
            for record in records
        ]

    def series(
        self, run_id: str, statistics: Sequence[str] | None = None, slices: Sequence[str] | None = None
    ) -> list[Statistic]:
        """Points by statistic, slice and cycle."""
        return self.store.statistics.series(run_id, statistics=statistics, slices=slices)

    def departures(self, run_id: str) -> list[Departure]:
        """Watched series that have left the level of the run's first cycles, on whichever side; by first cycle."""
        wanted = {(watch.statistic, watch.slice) for watch in WATCHED}
        series = self.series(run_id, sorted({name for name, _ in wanted}), sorted({slice_ for _, slice_ in wanted}))
        found = departures([point for point in series if (point.statistic, point.slice) in wanted])
        return sorted(found, key=lambda item: item.since_cycle)

    def seen(self, run_id: str) -> dict[str, Departure | None]:
        """By hack (and ``reward up``, ``outcome down``): the departure in which it first shows, or None."""
        found = self.departures(run_id)
        watches = {
            **HACKS,
            **{f"{item.statistic.removesuffix('_mean')} {item.direction}": (item,) for item in DIVERGENCE},
        }
        return {name: next((each for each in found if _is_one(each, of)), None) for name, of in watches.items()}

    def ledger(self, run_id: str, cycle: int) -> list[LedgerRow]:
        """Where the samples of one cycle went."""
        return self.store.ledger.read(run_id, cycle)

    def interactions(self, cycle: int | None, *, limit: int, offset: int = 0, where: str | None = None) -> pa.Table:
        """A page of one cycle's interactions as a list shows them: no transcript is read. `where` is one of FILTERS."""
        condition = f"WHERE {FILTERS[where]}" if where else ""
        return self.lake.query(
            f"SELECT * FROM observations {condition} ORDER BY started_at NULLS LAST, interaction_id LIMIT ? OFFSET ?",
            [limit, offset],
            observations=self.lake.scan("observations", LISTED, cycles=[cycle]),
        )

    def trajectory(self, interaction_id: str) -> Trajectory:
        """One interaction. Raises LakeError, naming the nearest ids, where it is not stored."""
        interaction = self.lake.interaction(interaction_id)
        late = [item for _, item in self.lake.feedback([interaction_id])]
        together = sorted(
            (*interaction.feedback, *late),
            key=lambda item: (item.at is not None, item.at.timestamp() if item.at else 0),
        )
        return Trajectory(
            interaction=interaction,
            feedback=tuple(together),
            observation=self._row("observations", interaction_id, interaction.cycle),
            sample=self._row("samples", interaction_id, None),
        )

    def _row(self, table: Any, interaction_id: str, cycle: int | None) -> Mapping[str, Any]:
        files = self.lake.files(table, [cycle] if table == "observations" else None)
        if not files:
            return {}
        connection = self.lake.connect()
        try:
            rows = connection.execute(
                f"SELECT * FROM {table} WHERE interaction_id = ? ORDER BY cycle DESC LIMIT 1", [interaction_id]
            ).to_arrow_table()
        finally:
            connection.close()
        found: list[dict[str, Any]] = rows.to_pylist()
        return found[0] if found else {}


LISTED = (
    "interaction_id",
    "cycle",
    "started_at",
    "organisation",
    "work_kind",
    "predicted_failure",
    "ambiguity",
    "edited",
    "asked",
    "tool_calls",
    "invalid_malformed",
    "invalid_unparsed",
    "invalid_unknown_tool",
    "invalid_schema",
    "invalid_rejected",
    "functions_after",
    "tests_passed",
    "tests_run",
    "follow_up",
    "reward",
    "reward_status",
    "exclusion",
    "outcome",
    "outcome_status",
)
"""Columns of a list of interactions."""

FILTERS: Mapping[str, str] = {
    "edited": "edited",
    "asked": "asked",
    "invalid call": (
        "invalid_malformed + invalid_unparsed + invalid_unknown_tool + invalid_schema + invalid_rejected > 0"
    ),
    "left out of training": "exclusion IS NOT NULL",
    "dissatisfied": "follow_up = 'dissatisfied'",
    "hard": "predicted_failure >= 2.0 / 3",
    "clear": "ambiguity < 1.0 / 3",
}
"""What a list can be narrowed to, as SQL over LISTED."""


def _is_one(departure: Departure, watches: Sequence[Watch]) -> bool:
    return any(
        (departure.statistic, departure.slice, departure.direction) == (watch.statistic, watch.slice, watch.direction)
        for watch in watches
    )


def _stage(record: Cycle) -> StageName | None:
    done = {stage.stage for stage in record.stages}
    return next((stage for stage in STAGES if stage not in done), None)
