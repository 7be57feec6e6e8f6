"""Is anything wrong now? What the console's strip and its first page say of a run, from what is kept.

Cheap enough to be asked every few seconds: a handful of short queries, no lake, no statistic.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Literal

from palomar.data.store import Store
from palomar.data.store.incidents import ACTIVE
from palomar.data.store.records import (
    CheckedCycle,
    Checkpoint,
    Cycle,
    Decision,
    Incident,
    Run,
    Silence,
    StoredFinding,
)
from palomar.data.store.silences import in_force

RECENT = 6
"""Cycles from which it is told how long one takes."""
STALE_CYCLES = 2
"""Without data for so many cycles' time, what is shown is old news."""
LEAST_STALE = timedelta(minutes=5)
"""Demos have cycles of seconds; nobody is told within this time."""

Word = Literal["wrong", "doubt", "look", "clear", "unchecked"]
"""``wrong``: something keeps the newest cycle from passing, or an alarm that blocks is open; ``doubt``: it could not be
judged; ``look``: a person should look; ``clear``; ``unchecked``: no check was kept."""


@dataclass(frozen=True)
class DataAge:
    """When data came last."""

    cycle: int | None
    """Newest cycle that was collected; None = none was."""
    at: datetime | None
    """When that was done."""
    cycle_s: float | None
    """How long a cycle takes: the median of the last ones; None before there are two."""
    going: bool
    """Whether the run goes on, so that more is due."""

    def age(self, now: datetime) -> timedelta | None:
        """Time since; None where nothing came yet."""
        return None if self.at is None else now - self.at

    def stale(self, now: datetime) -> bool:
        """Whether nothing came for `STALE_CYCLES` cycles' time though more is due."""
        age = self.age(now)
        if not self.going or age is None or self.cycle_s is None:
            return False
        return age > max(LEAST_STALE, timedelta(seconds=STALE_CYCLES * self.cycle_s))


@dataclass(frozen=True)
class Now:
    """How a run stands."""

    run: Run
    verdict: CheckedCycle | None
    """Of the newest cycle that was checked; None = none was."""
    lead: StoredFinding | None
    """The finding that says what the verdict does; None where it found nothing, or it is no finding's sentence."""
    alarms: tuple[Incident, ...]
    """Not resolved, the worst first: see `worst_first`."""
    silences: tuple[Silence, ...]
    """In force."""
    candidate: Checkpoint | None
    """Trained last; None = none was."""
    decision: Decision | None
    """The gate's on it that stands; None = none was taken."""
    data: DataAge

    @property
    def word(self) -> Word:
        """The answer in one word."""
        if self.verdict is not None and self.verdict.verdict == "block":
            return "wrong"
        if any(each.blocks and each.state != "mitigated" for each in self.alarms):
            return "wrong"
        if self.verdict is None:
            return "look" if self.alarms else "unchecked"
        if self.verdict.verdict == "not_assessable":
            return "doubt"
        return "look" if self.alarms or self.verdict.verdict == "warn" else "clear"


def standing(store: Store, run: Run) -> Now:
    """What is kept of a run, as it stands now."""
    verdicts = store.verdicts.read(run.run_id, newest=1)
    verdict = verdicts[-1] if verdicts else None
    candidate = store.checkpoints.newest(run.run_id)
    recent = store.cycles.read(run.run_id, newest=RECENT)
    newest = recent[-1].cycle if recent else None
    now = datetime.now(UTC)
    return Now(
        run=run,
        verdict=verdict,
        lead=None if verdict is None else store.findings.saying(run.run_id, verdict.cycle, verdict.sentence),
        alarms=tuple(worst_first(store.incidents.read(run.run_id, states=ACTIVE))),
        silences=tuple(each for each in store.silences.read(run.run_id) if in_force(each, newest, now)),
        candidate=candidate,
        decision=None if candidate is None else store.decisions.get(run.run_id, candidate.checkpoint_id),
        data=data_age(run, recent),
    )


def worst_first(incidents: Sequence[Incident]) -> list[Incident]:
    """Those that block first, of them those that nobody has in hand, then those seen last."""
    order: Mapping[str, int] = {"open": 0, "acknowledged": 1, "mitigated": 2, "resolved": 3}
    return sorted(
        incidents, key=lambda each: (not each.blocks, order[each.state], -each.seen_cycle, -each.opened_cycle)
    )


def data_age(run: Run, recent: Sequence[Cycle]) -> DataAge:
    """From a run's last cycles, oldest first."""
    came = [
        (cycle.cycle, stage.finished_at) for cycle in recent for stage in cycle.stages if stage.stage == "collect"
    ]  # fmt: skip
    took = [(after - before).total_seconds() for (_, before), (_, after) in pairwise(came)]
    cycle, at = came[-1] if came else (None, None)
    return DataAge(cycle, at, statistics.median(took) if took else None, run.status == "running")


@dataclass(frozen=True)
class Moment:
    """What happened in one cycle, for the timeline."""

    cycle: int
    verdict: str | None
    """Of the check; None = it was not checked."""
    gate: str
    """``promote``, ``hold``, ``block``, or ``pending`` while there is no decision."""
    reward: str | None
    """Version in force."""
    changed: bool
    """Whether it is another one than the cycle before had."""
    opened: tuple[int, ...]
    """Incidents that opened in it."""


@dataclass(frozen=True)
class Timeline:
    """All that happened, by cycle."""

    moments: tuple[Moment, ...]


def timeline(store: Store, run_id: str) -> Timeline:
    """What happened in all cycles of a run."""
    records = store.cycles.read(run_id, with_stages=False)
    # Where no decision is kept, the cycle's own stage says what it came to.
    decided = store.cycles.details(run_id, "decide")
    said = {cycle: str(detail.get("verdict", "pending")) for cycle, detail in decided.items()}
    gate = said | {cycle: each.verdict for cycle, each in store.decisions.words(run_id).items()}
    verdicts = store.verdicts.words(run_id)
    opened: dict[int, list[int]] = {}
    for incident in store.incidents.read(run_id):
        opened.setdefault(incident.opened_cycle, []).append(incident.number)
    before = [None, *records[:-1]]
    return Timeline(
        tuple(
            Moment(
                cycle=record.cycle,
                verdict=verdicts.get(record.cycle),
                gate=gate.get(record.cycle, "pending"),
                reward=record.reward_version,
                changed=last is not None and last.reward_version != record.reward_version,
                opened=tuple(opened.get(record.cycle, ())),
            )
            for last, record in zip(before, records, strict=True)
        )
    )
