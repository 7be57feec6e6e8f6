"""What the command line and the console ask: one function per question, each answered by plain records.

No page and no command computes a statistic; they show what is returned here. Reading only.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from palomar.data.lake import Lake, Table
from palomar.data.schema import Feedback, Interaction
from palomar.data.slices import ALL
from palomar.data.store import Store
from palomar.data.store.records import Cycle, DecisionWord, LedgerRow, Run, StageName, Statistic
from palomar.data.store.runs import STAGES
from palomar.detectors.check import Checked, check
from palomar.detectors.departure import BASE_CYCLES, RUNNING, Departure, base_level, departures
from palomar.detectors.detector import View
from palomar.detectors.measure import measure
from palomar.detectors.runs import specs_of, view_of
from palomar.detectors.statistics import STATISTICS, expanded
from palomar.detectors.statistics import Statistic as Definition


@dataclass(frozen=True)
class Watch:
    """One series in which something known shows first, and on which side."""

    statistic: str
    slice: str
    direction: Literal["up", "down"]


HACKS: Mapping[str, tuple[Watch, ...]] = {
    "invalid-call dodge": (Watch("invalid_call_rate", "predicted_failure=high", "up"),),
    "edit deferral": (Watch("clarification_rate_clear", ALL, "up"), Watch("edit_rate", "ambiguity=clear", "down")),
    "function splitting": (Watch("functions_per_edit", ALL, "up"), Watch("function_lines_median", ALL, "down")),
}
"""The series in which each known hack shows first; of several, one that has left its base is enough."""

REWARD_UP, OUTCOME_DOWN = "training reward up", "outcome down"
DIVERGENCE: Mapping[str, tuple[Watch, ...]] = {
    REWARD_UP: (Watch("training_reward_mean", ALL, "up"),),
    OUTCOME_DOWN: (Watch("outcome_mean", ALL, "down"),),
}
"""What the training reward and the users' outcome do when a reward is played."""

WATCHED = tuple(watch for watches in (*HACKS.values(), *DIVERGENCE.values()) for watch in watches)


@dataclass(frozen=True)
class CycleView:
    """One cycle as a table shows it."""

    record: Cycle
    stage: StageName | None
    """Stage that is being done, or where it stopped; None once all are done."""
    elapsed_s: float
    """Of the stages that are done."""
    decision: DecisionWord | None
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
class Behaviour:
    """Every statistic of one slice over the cycles."""

    slice: str
    slices: tuple[str, ...]
    """All that there are, `ALL` first."""
    series: Mapping[str, tuple[Statistic, ...]]
    """Points by statistic, by cycle; statistics in the order they are registered, those of the reward last."""
    departures: Mapping[str, Departure]
    """By statistic: those that have left the level of the first cycles, on whichever side."""
    base: Mapping[str, float]
    """By statistic: the level of the first cycles."""


@dataclass(frozen=True)
class SourceCount:
    """What the lake holds of one log format."""

    source: str
    interactions: int
    conversations: int
    first: datetime | None
    """Start of its first interaction; None where no log has times."""
    last: datetime | None
    cycles: int
    """In how many training cycles; 0 = all outside a loop."""


@dataclass(frozen=True)
class Listed:
    """A page of a list of interactions."""

    rows: pa.Table
    """With the columns LISTED."""
    total: int
    """Rows on all pages."""


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
        self._measuring = threading.Lock()
        self._measured: tuple[object, list[Statistic]] | None = None

    @cached_property
    def store(self) -> Store:
        """The store. Raises StoreError where it cannot be reached; asking again tries again."""
        return Store.open(self._store_url, self.home)

    @property
    def has_store(self) -> bool:
        """False in a home in which no store was made yet; a database given by URL is taken to be there."""
        return self._store_url is not None or (self.home / "palomar.db").exists()

    def reopen(self) -> None:
        """Forgets the open store, so that the next question opens it anew: after a failure, or a home begun afresh."""
        store = self.__dict__.pop("store", None)
        if store is not None:
            store.close()

    def run(self, run_id: str | None = None) -> Run | None:
        """The run of that id, else the newest; None where there is none. Asking makes no store."""
        if not self.has_store:
            return None
        if run_id is not None:
            return self.store.runs.get(run_id)
        runs = self.store.runs.read()
        return runs[0] if runs else None

    def cycles(
        self, run_id: str, *, newest: int | None = None, figures: Collection[str] | None = None
    ) -> list[CycleView]:
        """The run's cycles with their decisions and figures, oldest first. ``figures``: only these; None = all."""
        records = self.store.cycles.read(run_id, newest=newest)
        decisions = self.store.decisions.words(run_id, since=records[0].cycle) if records else {}
        known: dict[int, dict[str, Statistic]] = {}
        if records and (figures is None or figures):
            span = range(records[0].cycle, records[-1].cycle + 1)
            names = None if figures is None else sorted(figures)
            for point in self.store.statistics.series(run_id, statistics=names, slices=[ALL], cycles=span):
                known.setdefault(point.cycle, {})[point.statistic] = point
        return [
            CycleView(
                record=record,
                stage=_stage(record),
                elapsed_s=sum(stage.elapsed_s for stage in record.stages),
                decision=decisions.get(record.cycle),
                figures=known.get(record.cycle, {}),
            )
            for record in records
        ]

    def series(
        self, run_id: str, statistics: Sequence[str] | None = None, slices: Sequence[str] | None = None
    ) -> list[Statistic]:
        """Points by statistic, slice and cycle."""
        return self.store.statistics.series(run_id, statistics=statistics, slices=slices)

    def measured_cycles(self, run_id: str) -> int:
        """How many cycles of the run have statistics."""
        return len({point.cycle for point in self._watched(run_id)})

    def departures(self, run_id: str) -> list[Departure]:
        """Watched series that have left the level of the run's first cycles, on whichever side; by first cycle."""
        return sorted(departures(self._watched(run_id)), key=lambda item: item.since_cycle)

    def seen(self, run_id: str, found: Sequence[Departure] | None = None) -> dict[str, Departure | None]:
        """By hack (and `REWARD_UP`, `OUTCOME_DOWN`): the departure in which it first shows, or None.

        ``found``: what `departures` said, where the caller has asked already.
        """
        found = self.departures(run_id) if found is None else found
        watches = {**HACKS, **DIVERGENCE}
        return {name: next((each for each in found if _is_one(each, of)), None) for name, of in watches.items()}

    def assessed(self, run_id: str) -> frozenset[str]:
        """Which hacks could have been seen: those of which a watched series has enough cycles to be compared."""
        known = Counter((point.statistic, point.slice) for point in self._watched(run_id) if point.value is not None)
        enough = {series for series, cycles in known.items() if cycles >= BASE_CYCLES + RUNNING}
        return frozenset(
            name for name, of in HACKS.items() if any((watch.statistic, watch.slice) in enough for watch in of)
        )

    def _watched(self, run_id: str) -> list[Statistic]:
        wanted = {(watch.statistic, watch.slice) for watch in WATCHED}
        series = self.series(run_id, sorted({name for name, _ in wanted}), sorted({slice_ for _, slice_ in wanted}))
        return [point for point in series if (point.statistic, point.slice) in wanted]

    def behaviour(self, run_id: str | None, slice_: str = ALL) -> Behaviour:
        """Every statistic of one slice of a run; without a run, of the logs in the lake.

        The slice need not be there: the answer then says which there are, and holds no series.
        """
        if run_id is None:
            points = self.measured()
            slices = {point.slice for point in points}
            points = [point for point in points if point.slice == slice_]
            points.sort(key=lambda point: (point.statistic, -1 if point.cycle is None else point.cycle))
        else:
            slices = set(self.store.statistics.slices(run_id))
            points = self.series(run_id, slices=[slice_])
        series: defaultdict[str, list[Statistic]] = defaultdict(list)
        for point in points:
            series[point.statistic].append(point)
        looped = [point for point in points if point.cycle is not None]
        base = {name: base_level([point for point in of if point.cycle is not None]) for name, of in series.items()}
        return Behaviour(
            slice=slice_,
            slices=tuple(sorted(slices, key=lambda name: (name != ALL, name))),
            series={name: tuple(series[name]) for name in sorted(series, key=_position)},
            departures={item.statistic: item for item in departures(looped)},
            base={name: level for name, level in base.items() if level is not None},
        )

    def measured(self) -> list[Statistic]:
        """All statistics in all slices of everything in the lake, measured anew when a file of it has changed.

        For homes that hold logs and no run: a run keeps its series in the store. A point of logs outside a loop has
        no cycle.
        """
        files = [(path, path.stat()) for path in self.lake.files("observations")]
        state = [(path, status.st_mtime_ns, status.st_size) for path, status in files]
        with self._measuring:
            if self._measured is None or self._measured[0] != state:
                cycles = self.lake.cycles("observations")
                self._measured = (state, measure(self.lake, cycles) if cycles else [])
            return list(self._measured[1])

    def sources(self) -> list[SourceCount]:
        """What was ingested, by log format; the largest first."""
        columns = ("source", "conversation_id", "started_at", "cycle")
        rows = self.lake.query(
            "SELECT source, count(*) AS interactions, count(DISTINCT conversation_id) AS conversations, "
            "min(started_at) AS first, max(started_at) AS last, count(DISTINCT cycle) AS cycles "
            "FROM observations GROUP BY source ORDER BY interactions DESC, source",
            observations=self.lake.scan("observations", columns),
        )
        return [SourceCount(**row) for row in rows.to_pylist()]

    def quarantined(self) -> Mapping[str, int]:
        """Records that could not be read, by kind of problem; empty where nothing was noted."""
        return self.store.quarantine.by_kind() if self.has_store else {}

    def view(self, cycle: int | None = None) -> View | None:
        """What detectors may look at to judge a cycle, without a number the newest; None where the lake has none."""
        there = self.lake.cycles("observations")
        numbered = [each for each in there if each is not None]
        if cycle is None and numbered:
            cycle = max(numbered)
        if cycle not in there:
            return None
        run = self.run()
        if cycle is None or run is None:
            return View.of(self.lake, cycle, specs=specs_of(self.store) if self.has_store else {})
        return view_of(self.lake, self.store, run.run_id, cycle)

    def check(self, cycle: int | None = None, names: Collection[str] | None = None) -> Checked | None:
        """All detectors on a cycle, run now; None where there is nothing to check. Nothing is stored."""
        view = self.view(cycle)
        return None if view is None else check(view, names)

    def ledger(self, run_id: str, cycle: int) -> list[LedgerRow]:
        """Where the samples of one cycle went."""
        return self.store.ledger.read(run_id, cycle)

    def interactions(self, cycle: int | None, *, limit: int, offset: int = 0, where: str | None = None) -> Listed:
        """A page of one cycle's interactions as a list shows them: no transcript is read. `where` is one of FILTERS."""
        found = self.lake.scan("observations", LISTED, where=FILTERS[where] if where else None, cycles=[cycle])
        rows = self.lake.query(
            "SELECT * FROM found ORDER BY started_at NULLS LAST, interaction_id LIMIT ? OFFSET ?",
            [limit, offset],
            found=found,
        )
        return Listed(rows, found.num_rows)

    def trajectory(self, interaction_id: str) -> Trajectory:
        """One interaction. Raises LakeError, naming the nearest ids, where it is not stored."""
        interaction = self.lake.interaction(interaction_id)
        late = [item for _, item in self.lake.feedback([interaction_id])]
        together = sorted(
            (*interaction.feedback, *late),
            key=lambda item: (item.at is not None, item.at.timestamp() if item.at else 0),
        )
        # A sample is offered to the trainer in its own cycle or a later one.
        own = -1 if interaction.cycle is None else interaction.cycle
        offered = [at for at in self.lake.cycles("samples") if at is None or at >= own]
        return Trajectory(
            interaction=interaction,
            feedback=tuple(together),
            observation=self._row("observations", interaction_id, [interaction.cycle]),
            sample=self._row("samples", interaction_id, offered),
        )

    def _row(self, table: Table, interaction_id: str, cycles: Sequence[int | None] | None) -> Mapping[str, Any]:
        rows: list[dict[str, Any]] = self.lake.rows(table, [interaction_id], cycles).to_pylist()
        return max(rows, key=lambda row: -1 if row["cycle"] is None else row["cycle"], default={})


LISTED = (
    "interaction_id",
    "source",
    "cycle",
    "started_at",
    "task_id",
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
    "hard": "predicted_failure >= 0.6",
    "clear": "ambiguity < 0.5",
}
"""What a list can be narrowed to, as SQL over LISTED."""


def _is_one(departure: Departure, watches: Sequence[Watch]) -> bool:
    return any(
        (departure.statistic, departure.slice, departure.direction) == (watch.statistic, watch.slice, watch.direction)
        for watch in watches
    )


def definition(name: str) -> Definition | None:
    """What a statistic means, those of reward terms and of reasons of exclusion too; None for a foreign series."""
    if name in STATISTICS:
        return STATISTICS[name]
    kind, _, of = name.partition(":")
    more = expanded([name] if kind == "term" else [], [of] if kind == "excluded" else [])
    return more[-1] if more[-1].name == name else None


def _position(name: str) -> tuple[int, str]:
    return (list(STATISTICS).index(name) if name in STATISTICS else len(STATISTICS), name)


def _stage(record: Cycle) -> StageName | None:
    if record.status == "complete":  # be it by an earlier version, which knew fewer stages
        return None
    done = {stage.stage for stage in record.stages}
    return next((stage for stage in STAGES if stage not in done), None)
