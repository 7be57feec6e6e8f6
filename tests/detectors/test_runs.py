"""What a checked cycle leaves in the store: forecasts, and what came of those made before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from palomar.data.findings import Finding, Reading, Severity
from palomar.data.store import Store
from palomar.data.store.records import CycleVerdict
from palomar.detectors.checks._examples import rows, view
from palomar.detectors.detector import View
from palomar.detectors.runs import follow, foresee

CYCLES = 6
LEARNT = 17
"""Cycles of a run whose baseline moves in its last one: 8 of the first baseline, one more, and 8 of honest learning."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(None, tmp_path / "home") as opened:
        opened.runs.add("run", name="run", seed=0, config={})
        opened.checkpoints.add("run", "base", cycle=None, parent_id=None, path="base", sha256="00")
        for cycle in range(LEARNT):
            opened.cycles.start("run", cycle, checkpoint_id="base")
        yield opened


def asking(folder: Path) -> View:
    """Questions are paid, and there are 3 % more of them each cycle."""
    made = []
    for cycle in range(CYCLES):
        table = rows(cycle, 800, more_asked=0.03 * cycle)
        asked = np.asarray(table["asked"].to_numpy(zero_copy_only=False), dtype=np.float64)
        made.append(table.set_column(table.schema.get_field_index("reward"), "reward", pa.array(asked)))
    return view(folder, made, trained=True)


def test_forecasts_are_kept_and_scored_by_what_came(store: Store, tmp_path: Path) -> None:
    seen = asking(tmp_path / "lake")
    for cycle in range(3, CYCLES):
        made = foresee(store, "run", View.of(seen.lake, cycle, specs=seen.specs, updates=seen.updates))
        assert {item.made_in for item in made} == {cycle}
        assert {item.for_cycle for item in made} == {cycle + 1}
    known = store.forecasts.read("run", statistic="clarification_rate", slice="all")
    assert [item.for_cycle for item in known] == [4, 5, 6]
    assert [item.came is not None for item in known] == [True, True, False]
    level = np.mean(seen.lake.scan("observations", ["asked"], cycles=[5])["asked"].to_pylist())
    assert known[1].came == pytest.approx(level)
    assert all(item.change > 0 for item in known)


def test_doing_it_again_changes_nothing(store: Store, tmp_path: Path) -> None:
    seen = asking(tmp_path / "lake")
    for cycle in (3, 4, 4, 3):
        foresee(store, "run", View.of(seen.lake, cycle, specs=seen.specs, updates=seen.updates))
    known = store.forecasts.read("run", statistic="clarification_rate", slice="all")
    assert [(item.for_cycle, item.came is not None) for item in known] == [(4, True), (5, False)]


def test_nothing_is_forecast_before_a_step_was_seen(store: Store, tmp_path: Path) -> None:
    seen = asking(tmp_path / "lake")
    assert foresee(store, "run", View.of(seen.lake, 0, specs=seen.specs, updates=seen.updates)) == []
    assert store.forecasts.read("run") == []


def told(store: Store, *, except_in: int | None = None, verdict: CycleVerdict = "pass", **other: Any) -> None:
    """Honest learning of edits from cycle 9 on, every cycle with a verdict; in one of them something else besides."""
    for cycle in range(8, LEARNT):
        odd = cycle == except_in
        found = [finding("edit_rate", "honest_learning")] if cycle > 8 else []
        found += [finding("latency_mean", **other)] if odd and other else []
        store.findings.write("run", cycle, found)
        store.verdicts.write(
            "run",
            cycle,
            verdict=verdict if odd else "pass",
            reasons=[],
            sentence="",
            findings={},
            budget="",
            as_of=None,
        )


def finding(statistic: str, reading: Reading | None = None, severity: Severity = "notes") -> Finding:
    return Finding("behaviour", severity, f"{statistic} moved", statistic=statistic, reading=reading)


def test_the_baseline_moves_on_honest_learning_that_was_promoted(store: Store) -> None:
    told(store)
    assert [follow(store, "run", cycle) for cycle in range(8, LEARNT - 1)] == [None] * (LEARNT - 9)
    moved = follow(store, "run", LEARNT - 1)
    assert moved is not None
    assert (moved.from_cycle, moved.cycles, moved.actor) == (17, tuple(range(9, 17)), "palomar loop")
    assert "edit_rate moved" in moved.reason
    assert follow(store, "run", LEARNT - 1) == moved
    assert store.baselines.read("run") == [moved]


@pytest.mark.parametrize(
    "other",
    [
        {"verdict": "not_assessable"},
        {"verdict": "block"},
        {"reading": "reward_hack", "severity": "warns"},
        {"reading": "measurement_fault"},
        {"reading": "outside_change", "severity": "warns"},
        {"severity": "blocks"},
    ],
    ids=str,
)
def test_the_baseline_stays_where_anything_else_happened(store: Store, other: dict[str, Any]) -> None:
    told(store, except_in=12, **other)
    assert follow(store, "run", LEARNT - 1) is None
    assert store.baselines.read("run") == []


def test_a_forewarning_or_a_small_change_from_outside_holds_no_baseline(store: Store) -> None:
    told(store, except_in=12, reading="outside_change")
    assert follow(store, "run", LEARNT - 1) is not None


def test_the_baseline_stays_where_learning_did_not_last(store: Store) -> None:
    told(store)
    store.findings.write("run", 12, [])
    assert follow(store, "run", LEARNT - 1) is None


def test_the_baseline_stays_where_a_cycle_was_not_checked_or_nothing_moved(store: Store) -> None:
    assert follow(store, "run", LEARNT - 1) is None
    for cycle in range(8, LEARNT):
        store.verdicts.write("run", cycle, verdict="pass", reasons=[], sentence="", findings={}, budget="", as_of=None)
    assert follow(store, "run", LEARNT - 1) is None
