"""The feedback clock, against published survival data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palomar.data.clock import Horizon, life_table, maturity, survival

HOUR = Horizon("1h", 3600.0)


def known(known_answers: Path, case: str) -> dict[str, Any]:
    cases: list[dict[str, Any]] = json.loads((known_answers / "survival.json").read_text())["cases"]
    (found,) = [item for item in cases if item["id"] == case]
    return found


def test_kaplan_meier_matches_freireich_1963_remission_data(known_answers: Path) -> None:
    """Estimates and log-log limits of R survival 3.5-3 on the 6-MP arm, at every time of a relapse."""
    case = known(known_answers, "kaplan_meier_freireich")
    time = np.array(case["inputs"]["time"], dtype=np.float64)
    event = np.array(case["inputs"]["event"], dtype=bool)
    expected = case["expected"]
    for index, horizon in enumerate(expected["time"]):
        found = survival(time, event, horizon)
        assert found.status == "estimated"
        assert found.estimate == pytest.approx(expected["survival"][index], abs=case["tolerance"]["abs"])
        assert found.low == pytest.approx(expected["lower"][index], abs=case["tolerance"]["abs"])
        assert found.high == pytest.approx(expected["upper"][index], abs=case["tolerance"]["abs"])
    assert survival(time, event, 10).n_at_risk == 15  # as every textbook tabulates it
    assert survival(time, event, 10).n_censored == 2  # at 6 and 9; the one at 10 was watched that long


def test_persistence_at_20_matches_satten_and_datta_2001_and_not_the_naive_shares(known_answers: Path) -> None:
    case = known(known_answers, "ipcw_equals_kaplan_meier")
    time = np.array(case["inputs"]["time"], dtype=np.float64)
    event = np.array(case["inputs"]["event"], dtype=bool)
    for horizon, value in zip(case["inputs"]["horizons"], case["expected"]["ipcw"], strict=True):
        assert survival(time, event, horizon).estimate == pytest.approx(value, abs=case["tolerance"]["abs"])
    naive = case["expected"]["naive_drop_immature_h20"]
    assert abs(survival(time, event, 20).estimate - naive) > 0.1  # type: ignore[operator]


def test_the_life_table_matches_freireich_1963_on_the_grid_of_weeks(known_answers: Path) -> None:
    case = known(known_answers, "kaplan_meier_freireich")
    lost, censored = _table(case["inputs"]["time"], case["inputs"]["event"], num_times=36)
    for index, horizon in enumerate(case["expected"]["time"]):
        found = life_table(lost[None], censored[None], horizon - 1)
        assert found.estimate[0] == pytest.approx(case["expected"]["survival"][index], abs=1e-10)
        assert found.low[0] == pytest.approx(case["expected"]["lower"][index], abs=1e-10)
        assert found.high[0] == pytest.approx(case["expected"]["upper"][index], abs=1e-10)


def _table(times: Any, events: Any, num_times: int) -> tuple[Any, Any]:
    """Counts on the grid 1, 2, ...: lost at time t falls in interval t-1; censored at t was not watched to t+1."""
    lost, censored = np.zeros(num_times + 1, dtype=np.int64), np.zeros(num_times + 1, dtype=np.int64)
    for time, event in zip(times, events, strict=True):
        if event:
            lost[min(time - 1, num_times)] += 1
        else:
            censored[min(time, num_times)] += 1
    return lost, censored


@given(st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=1, max_size=40), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_life_table_equals_lifelines_on_times_of_its_grid(rows: list[tuple[int, bool]], horizon: int) -> None:
    times, events = zip(*rows, strict=True)
    exact = survival(np.array(times, dtype=np.float64), np.array(events), horizon)
    lost, censored = _table(times, events, num_times=14)
    found = life_table(lost[None], censored[None], horizon - 1)
    if exact.estimate is None:
        assert np.isnan(found.estimate[0])
        return
    assert found.estimate[0] == pytest.approx(exact.estimate, abs=1e-12)
    assert found.n_at_risk[0] == exact.n_at_risk
    assert found.low[0] == pytest.approx(exact.low, abs=1e-6)
    assert found.high[0] == pytest.approx(exact.high, abs=1e-6)


def test_life_tables_of_partitions_add_up() -> None:
    rows = [(1, True), (2, False), (2, True), (5, False), (9, True), (9, False), (12, False)]
    whole = _table(*zip(*rows, strict=True), num_times=14)
    parts = [_table(*zip(*part, strict=True), num_times=14) for part in (rows[:3], rows[3:])]
    for index in (0, 1):
        assert (whole[index] == parts[0][index] + parts[1][index]).all()


def test_nobody_watched_up_to_the_horizon_is_not_estimable() -> None:
    found = survival(np.array([10.0, 20.0]), np.array([True, False]), 3600)
    assert (found.status, found.estimate, found.low) == ("not_estimable", None, None)
    assert (found.n, found.n_at_risk, found.n_censored) == (2, 0, 1)
    assert survival(np.array([]), np.array([], dtype=bool), 3600).status == "not_estimable"
    lost, censored = _table([1, 2], [True, False], num_times=14)
    assert np.isnan(life_table(lost[None], censored[None], 5).estimate[0])


def test_all_lost_is_zero_and_none_lost_is_one_each_with_an_interval_of_some_width() -> None:
    lost = survival(np.array([10.0, 20.0]), np.array([True, True]), 3600)
    assert (lost.status, lost.estimate, lost.low) == ("estimated", 0.0, 0.0)
    assert lost.high == pytest.approx(0.975)  # Clopper-Pearson, 0 of the 1 that was left for the last loss
    kept = survival(np.full(10, 4000.0), np.zeros(10, dtype=bool), 3600)
    assert (kept.estimate, kept.high) == (1.0, 1.0)
    assert kept.low == pytest.approx(0.025 ** (1 / 10))  # Clopper-Pearson, 10 of 10


def test_a_negative_or_missing_duration_is_refused() -> None:
    for bad in (-1.0, np.nan):
        with pytest.raises(ValueError, match="durations"):
            survival(np.array([bad]), np.array([False]), 1.0)


def test_maturity_is_watched_long_enough_or_the_event_came_before() -> None:
    rows = pa.table(
        {
            "watched_s": pa.array([3600.0, 3599.0, 60.0, 60.0, 9000.0, None, None]),
            "edit_lost_s": pa.array([None, None, 30.0, None, 4000.0, None, 100.0]),
        }
    )
    found = maturity(rows, HOUR)
    assert found.mature.tolist() == [True, False, True, False, True, False, True]
    assert found.share == pytest.approx(4 / 6)  # the sixth has no clock


def test_maturity_without_any_clock_is_unknown() -> None:
    rows = pa.table({"watched_s": pa.array([None], pa.float64()), "edit_lost_s": pa.array([None], pa.float64())})
    assert maturity(rows, HOUR).share is None
