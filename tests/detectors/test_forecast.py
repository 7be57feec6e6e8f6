"""Forecasts: what is learnt and how sure, in worlds where the step size is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from palomar.detectors.checks import _examples
from palomar.detectors.forecast import FORECAST, HISTORY, SCORES, forecast, forecasts, history_of, replayed, scores
from palomar.detectors.pressure import PRESSURE

Floats = npt.NDArray[np.float64]
STEP = 0.8
SPREAD = 0.4
ROWS = 1000


def world(
    seed: int,
    *,
    cycles: int = 14,
    statistics: int = 10,
    deviation: float = 0.0,
    pressure: float = 0.2,
    pressure_error: float = 0.03,
    misfit: float = 0.0,
    shock: tuple[int, float] | None = None,
    trained_from: int = 0,
) -> pa.Table:
    """A HISTORY in which levels move by STEP times the true pressure; all but the spread in standard deviations of phi.

    `deviation`: of a statistic's own step from STEP; `misfit`: standard deviation of what else moves a level in a
    cycle; `shock`: a cycle after which all levels stand so much further along.
    """
    rng = np.random.default_rng(seed)
    step = STEP + deviation * rng.normal(size=statistics)
    error = 1 / np.sqrt(ROWS)
    level = rng.random(statistics)
    rows = []
    for cycle in range(cycles):
        push = pressure * rng.normal(size=statistics)
        for index in range(statistics):
            rows.append(
                {
                    "cycle": cycle, "statistic": f"s{index}", "slice": "all", "rows": ROWS,
                    "level": SPREAD * (level[index] + error * rng.normal()), "level_error": SPREAD * error,
                    "pressure": SPREAD * (push[index] + pressure_error * rng.normal()),
                    "pressure_error": SPREAD * pressure_error, "spread": SPREAD, "trained": cycle >= trained_from,
                }
            )  # fmt: skip
        level = level + (cycle >= trained_from) * step * push + misfit * rng.normal(size=statistics)
        if shock is not None and cycle == shock[0]:
            level = level + shock[1] * np.sign(push)  # along the pressure, so that it looks like a larger step
    return pa.Table.from_pylist(rows, schema=HISTORY)


def steps(made: pa.Table) -> list[float]:
    """The common step of each cycle that has one."""
    return [each for each in pc.unique(made["common_step"]).to_pylist() if each is not None]


@pytest.mark.parametrize(
    ("what", "held"),
    [
        ({}, (0.89, 0.96)),
        ({"deviation": 0.4}, (0.89, 0.96)),
        ({"misfit": 0.1}, (0.87, 0.94)),
        ({"pressure": 0.1, "pressure_error": 0.06}, (0.89, 0.96)),
    ],
)
def test_intervals_hold_what_came_as_often_as_they_say(what: dict[str, Any], held: tuple[float, float]) -> None:
    made = pa.concat_tables([replayed(world(seed, **what)) for seed in range(40)])
    found = scores(made).to_pylist()[0]
    assert found["n"] == 40 * 10 * 11  # of 14 cycles two have too few changes before them, and one has nothing after
    assert held[0] < found["coverage"] < held[1]
    assert abs(found["signed_error"]) < 0.1
    assert found["skill"] > 0.2


def test_the_step_size_is_found_though_pressures_are_known_badly() -> None:
    """Plain least squares would find 0.8 x 0.1^2 / (0.1^2 + 0.06^2) = 0.59."""
    found = [steps(replayed(world(seed, pressure=0.1, pressure_error=0.06)))[-1] for seed in range(40)]
    assert np.mean(found) == pytest.approx(STEP, abs=0.04)


def test_a_statistic_that_cannot_be_learnt_gets_a_step_of_its_own() -> None:
    past = world(1, cycles=16)
    luck = pc.equal(past["statistic"], "s0")
    fixed = pc.if_else(luck, SPREAD * 0.5, past["level"])
    past = past.set_column(past.column_names.index("level"), "level", fixed)
    row = {row["statistic"]: row for row in forecast(past).to_pylist()}
    assert abs(row["s0"]["step"]) < 0.15
    others = [row[f"s{index}"]["step"] for index in range(1, 10)]
    assert np.mean(others) == pytest.approx(STEP, abs=0.1)


def test_one_outside_change_neither_spoils_the_step_nor_is_forecast() -> None:
    calm, shaken = replayed(world(2, cycles=16)), replayed(world(2, cycles=16, shock=(9, 1.0)))
    assert steps(shaken)[-1] == pytest.approx(steps(calm)[-1], abs=0.15)
    missed = scores(shaken, by=["made_in"]).to_pylist()
    assert {row["made_in"]: row["coverage"] for row in missed}[9] < 0.2
    assert {row["made_in"]: row["coverage"] for row in missed}[15 - 1] > 0.7


def test_nothing_is_said_before_enough_is_known_and_no_change_where_nothing_was_trained() -> None:
    made = replayed(world(3, cycles=9, trained_from=4))
    assert made.schema == FORECAST
    said = {row["made_in"]: row for row in made.to_pylist() if row["statistic"] == "s0"}
    assert [said[cycle]["status"] for cycle in range(9)] == ["not trained"] * 4 + ["no step size"] * 2 + ["ok"] * 3
    assert [said[cycle]["change"] for cycle in range(5)] == [0.0] * 4 + [None]
    assert said[3]["high"] - said[3]["value"] == pytest.approx(1.6449 * np.sqrt(2 / ROWS) * SPREAD, rel=1e-3)
    assert said[8]["for_cycle"] == 9
    assert said[8]["came"] is None
    quiet = scores(replayed(world(4, cycles=60, statistics=30, trained_from=99))).to_pylist()[0]
    assert quiet["coverage"] == pytest.approx(0.9, abs=0.02)
    assert quiet["skill"] == 0


def test_a_gap_in_the_cycles_is_no_change() -> None:
    past = world(5, cycles=10)
    gap = past.filter(pc.not_equal(past["cycle"], 6))
    made = replayed(gap)
    assert 5 not in scores(made, by=["made_in"])["made_in"].to_pylist()
    shock = replayed(world(5, cycles=10, shock=(5, 9.0)))
    without = replayed(world(5, cycles=10, shock=(5, 9.0)).filter(pc.not_equal(past["cycle"], 6)))
    assert steps(without)[-1] == pytest.approx(STEP, abs=0.1)
    assert len(steps(shock)) == len(steps(without)) + 1


def test_slices_that_say_the_same_do_not_make_it_surer() -> None:
    past = world(6)
    again = [
        past.set_column(2, "slice", pa.array([name] * past.num_rows)).cast(HISTORY) for name in ("half", "other half")
    ]
    once, thrice = forecast(past), forecast(pa.concat_tables([past, *again]))
    before, after = (
        {row["statistic"]: row for row in made.to_pylist() if row["slice"] == "all"} for made in (once, thrice)
    )
    for statistic, row in before.items():
        assert after[statistic]["step_error"] == pytest.approx(row["step_error"], rel=0.1)
        assert after[statistic]["high"] == pytest.approx(row["high"], rel=0.02)


def test_what_never_varied_is_not_forecast() -> None:
    past = world(7)
    sure = pc.if_else(pc.equal(past["statistic"], "s1"), 0.0, past["level_error"])
    made = replayed(past.set_column(past.column_names.index("level_error"), "level_error", sure))
    found = {row["status"] for row in made.to_pylist() if row["statistic"] == "s1"}
    assert found == {"no variation"}
    assert "s1" not in scores(made, by=["statistic"])["statistic"].to_pylist()


def test_scores_are_those_of_the_calculation_by_hand() -> None:
    def row(statistic: str, value: float, came: float | None) -> dict[str, object]:
        return {
            "made_in": 1, "for_cycle": 2, "statistic": statistic, "slice": "all", "status": "ok", "level": 1.0,
            "value": value, "low": value - 2, "high": value + 2, "error": 1.0, "came": came,
        }  # fmt: skip

    made = pa.Table.from_pylist([row("a", 2.0, 3.0), row("a", 2.0, 5.0), row("b", 0.0, None)], schema=FORECAST)
    found = scores(made)
    assert found.schema == SCORES
    # Off by 1 and 3; no change would have been off by 2 and 4.
    assert found.to_pylist() == [{"n": 2, "coverage": 0.5, "signed_error": 2.0, "skill": 0.5}]
    assert scores(made, by=["statistic"])["statistic"].to_pylist() == ["a"]
    assert scores(made.slice(2)).to_pylist() == [{"n": 0, "coverage": None, "signed_error": None, "skill": None}]


def test_nothing_known_is_nothing_forecast() -> None:
    assert forecast(HISTORY.empty_table()).num_rows == replayed(HISTORY.empty_table()).num_rows == 0
    assert history_of({}, []).num_rows == 0
    assert history_of({3: PRESSURE.empty_table()}, [3]).num_rows == 0


def test_a_lake_is_forecast_from_its_pressures_and_updates(tmp_path: Path) -> None:
    tables = [_examples.rows(cycle, n=500, seed=cycle) for cycle in range(6)]
    view = _examples.view(tmp_path, tables, trained=True, reference=(0, 1))
    made = forecasts(view.lake, range(6), view.specs)
    said = {row["made_in"]: row for row in made.to_pylist() if (row["statistic"], row["slice"]) == ("edit_rate", "all")}
    assert [said[cycle]["status"] for cycle in range(6)] == ["not trained"] * 2 + ["no step size"] * 2 + ["ok"] * 2
    for cycle in range(5):
        assert said[cycle]["came"] == said[cycle + 1]["level"]
    assert said[5]["low"] < said[5]["value"] < said[5]["high"]
    assert said[5]["value"] == pytest.approx(said[5]["level"] + said[5]["step"] * said[5]["pressure"])
