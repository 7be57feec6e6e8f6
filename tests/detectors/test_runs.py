"""What a checked cycle leaves in the store: forecasts, and what came of those made before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from palomar.data.store import Store
from palomar.detectors.checks._examples import rows, view
from palomar.detectors.detector import View
from palomar.detectors.runs import foresee

CYCLES = 6


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(None, tmp_path / "home") as opened:
        opened.runs.add("run", name="run", seed=0, config={})
        opened.checkpoints.add("run", "base", cycle=None, parent_id=None, path="base", sha256="00")
        for cycle in range(CYCLES):
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
