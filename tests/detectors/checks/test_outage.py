"""Which cycles are outages: numbers, and what looks like one and is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from palomar.data.lake import Lake
from palomar.detectors.checks._examples import rows, view
from palomar.detectors.checks._shares import Shares, jumps, step
from palomar.detectors.checks.outage import outage, outage_cycles
from palomar.detectors.checks.truncation import truncation
from palomar.detectors.checks.undecodable_calls import undecodable_calls
from palomar.detectors.detector import View

N = 400


def down(cycle: int, share: float, *, where: str | None = None) -> pa.Table:
    """Calls of a share of the interactions time out; ``where``: of one organisation only."""
    table = rows(cycle)
    hit = (np.asarray(table["tool_calls"]) > 0) & (np.random.default_rng(cycle + 40).random(N) < share)
    if where is not None:
        hit &= np.asarray(table["organisation"]) == where
    return rows(cycle, calls_timed_out=hit.astype(int))


def test_two_cycles_in_a_row_are_both_outages_and_what_follows_is_none(tmp_path: Path) -> None:
    made = view(tmp_path, [*map(rows, range(6)), down(6, 0.8), down(7, 0.8), rows(8)], reference=range(5))
    assert outage_cycles(made) == {6, 7}


def test_outage_within_the_reference_is_found_and_leaves_the_reference_usable(tmp_path: Path) -> None:
    made = view(tmp_path, [rows(0), rows(1), down(2, 0.8), *map(rows, range(3, 7)), down(7, 0.8)], reference=range(6))
    assert outage_cycles(made) == {2, 7}


def test_the_cycle_says_since_when_and_how_much(tmp_path: Path) -> None:
    made = view(tmp_path, [*map(rows, range(5)), down(5, 0.8), down(6, 0.8)], reference=range(5))
    (found,) = outage(made).findings
    called = made.query(
        "SELECT avg((calls_timed_out > 0)::INT) AS x, count(*) AS n FROM observations WHERE tool_calls > 0"
    )
    assert found.since == 5
    assert (found.before, found.after, found.n) == (0.0, called["x"][0].as_py(), called["n"][0].as_py())
    assert found.low is not None
    assert 0 < found.low < (found.effect or 0) < (found.high or 0)
    assert found.detail["hold"] is True
    assert found.reading == "measurement_fault"


@pytest.mark.parametrize(
    ("name", "shares"),
    [
        ("what grows by degrees is learnt", [0.05, 0.12, 0.2, 0.3, 0.45, 0.6]),
        ("a rise below the margin is none", [0.0, 0.0, 0.0, 0.0, 0.0, 0.06]),
    ],
)
def test_no_outage(tmp_path: Path, name: str, shares: list[float]) -> None:
    made = view(
        tmp_path, [*map(rows, range(5)), *(down(5 + i, share) for i, share in enumerate(shares))], reference=range(5)
    )
    assert not outage_cycles(made), name


def test_tools_of_one_organisation_are_no_outage(tmp_path: Path) -> None:
    made = view(tmp_path, [*map(rows, range(5)), down(5, 0.9, where="north")], reference=range(5))
    assert not outage_cycles(made)


def test_a_new_cycle_costs_no_second_look_at_old_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = view(tmp_path, [*map(rows, range(5)), down(5, 0.8)], reference=range(5))
    outage_cycles(made)
    made.lake.write_observations(rows(6), 6)
    later = View.of(Lake(tmp_path), 6, reference=range(5))
    looked: list[object] = []
    query = View.query
    monkeypatch.setattr(
        View, "query", lambda self, sql, cycles=None, *rest: looked.append(cycles) or query(self, sql, cycles, *rest)
    )
    assert outage_cycles(later) == {5}
    assert looked == [[6]]


def test_where_nothing_tells_interactions_apart_a_flood_is_not_assessable_and_an_outage_is(tmp_path: Path) -> None:
    unknown: dict[str, Any] = {"organisation": None, "predicted_failure": None, "work_kind": None}
    called = np.asarray(rows(5)["tool_calls"]) > 0
    last = rows(5, calls_timed_out=called.astype(int), invalid_malformed=called.astype(int), **unknown)
    made = view(tmp_path, [*(rows(cycle, **unknown) for cycle in range(5)), last], reference=range(5))
    assert [found.detail["slices"] for found in outage(made).findings] == [{}]
    flood = undecodable_calls(made)
    assert not flood.findings
    assert "nothing tells interactions apart" in flood.unassessed[0].why


@pytest.mark.parametrize(("rise", "told"), [(0.03, False), (0.1, True)])
def test_a_rise_of_cut_outputs_below_the_margin_is_not_told_however_many_rows(
    tmp_path: Path, rise: float, told: bool
) -> None:
    def cut(cycle: int, share: float) -> pa.Table:
        return rows(cycle, 4000, truncated=np.random.default_rng(cycle).random(4000) < share)

    made = view(tmp_path, [*(cut(cycle, 0.01) for cycle in range(4)), cut(4, 0.01 + rise)])
    assert bool(truncation(made).findings) == told


def test_a_hack_that_was_fast_is_no_flood(tmp_path: Path) -> None:
    """As in a recorded run: 3 %, then 18 % within a cycle, and on; alike in all slices."""

    def broken(cycle: int, share: float) -> pa.Table:
        table = rows(cycle)
        hit = (np.asarray(table["tool_calls"]) > 0) & (np.random.default_rng(cycle + 80).random(N) < share)
        return rows(cycle, invalid_malformed=0, invalid_unparsed=hit.astype(int))

    for last in (6, 7, 8, 9):
        shares_ = {5: 0.027, 6: 0.18, 7: 0.32, 8: 0.43, 9: 0.5}
        tables = [broken(cycle, shares_.get(cycle, 0.009)) for cycle in range(last + 1)]
        report = undecodable_calls(view(tmp_path / str(last), tables, reference=range(5)))
        assert report.assessed
        assert not report.findings


# -- the test of a share -----------------------------------------------------------------------------------------


def test_step_is_the_two_sample_test_of_proportions_where_cycles_are_alike() -> None:
    """56/70 against 48/80, by hand: 0.2 / sqrt(104/150 x 46/150 x (1/70 + 1/80)) = 2.6502; t of 2 + 4 degrees."""
    found = step(np.array([12.0, 12.0, 24.0]), np.array([20.0, 20.0, 40.0]), 56.0, 70.0, 0.05)
    assert found is not None
    assert found.z == pytest.approx(2.6502, abs=1e-4)
    assert found.threshold == pytest.approx(stats.t.isf(0.025, 6))
    assert (found.before, found.after) == (0.6, 0.8)


def test_step_needs_three_cycles() -> None:
    assert step(np.array([1.0, 1.0]), np.array([100.0, 100.0]), 50.0, 100.0, 0.05) is None
    assert step(np.array([1.0, 1.0, 0.0]), np.array([100.0, 100.0, 0.0]), 50.0, 100.0, 0.05) is None


@pytest.mark.parametrize("n", [500, 1_000_000])
@pytest.mark.parametrize("spread", [0.0, 0.01, 0.2])
def test_false_alarms_of_the_step_stay_at_the_stated_rate(n: int, spread: float) -> None:
    """Shares around 5 %, of which cycles differ by `spread` of it; 8 reference cycles; asked at 1 %, 4,000 runs."""
    rng = np.random.default_rng(3)
    alarms = 0
    for _ in range(4000):
        share = np.clip(0.05 * (1 + spread * rng.standard_normal(9)), 0.001, 0.999)
        x = rng.binomial(n, share).astype(float)
        found = step(x[:8], np.full(8, float(n)), x[8], float(n), 0.01)
        assert found is not None
        alarms += abs(found.z) >= found.threshold
    assert alarms <= 40 + 4 * np.sqrt(40)


def shares(values: list[list[float]], n: float) -> Shares:
    """One sign in `ALL` and two slices: (cycles, slices)."""
    share = np.array(values)
    return Shares(
        tuple(range(len(share))),
        ("all", "organisation=a", "organisation=b"),
        {"s": share * n},
        {"s": np.full(share.shape, n)},
    )


@pytest.mark.parametrize("n", [500.0, 1_000_000.0])
def test_a_jump_must_show_in_every_slice(n: float) -> None:
    steady = [[0.02, 0.02, 0.02]] * 8
    assert set(jumps(shares([*steady, [0.4, 0.4, 0.4]], n), range(8), 0.1)) == {8}
    assert not jumps(shares([*steady, [0.4, 0.75, 0.05]], n), range(8), 0.1)


@pytest.mark.parametrize("n", [500.0, 1_000_000.0])
def test_a_jump_from_a_level_that_was_reached_by_degrees_is_none(n: float) -> None:
    steady = [[0.02] * 3] * 8
    grown = [[share] * 3 for share in (0.06, 0.12, 0.3, 0.6)]
    assert not jumps(shares([*steady, *grown], n), range(8), 0.1)
