"""The pictures of behaviour, pressure, and slices and terms as dictionaries."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from palomar.app.console.charts import banded, curves, heat, waterfall
from palomar.app.console.charts.base import INK, Theme
from palomar.data.store.records import Forecast, Statistic

MOST_MARKS = 2_000


def point(cycle: int, value: float | None, maturity: float | None = None) -> Statistic:
    half = None if value is None else 0.05
    low, high = (None, None) if value is None or half is None else (value - half, value + half)
    return Statistic(cycle, "all", "edit_rate", value, low, high, 100, "ok", maturity)


def test_a_waterfall_ends_where_its_bars_lead_whatever_their_order() -> None:
    bars = [waterfall.Bar("from", 0.0, True, ""), waterfall.Bar("a", 0.5, False, ""),
            waterfall.Bar("b", -0.2, False, ""), waterfall.Bar("to", 0.0, True, "")]  # fmt: skip
    rows = waterfall.drawn(1.0, bars).to_pylist()
    assert [row["start"] for row in rows[1:]] == [row["end"] for row in rows[:-1]]
    assert rows[-1]["end"] == pytest.approx(1.3)
    assert [row["way"] for row in rows] == ["total", "up", "down", "total"]
    assert [row["text"] for row in rows] == ["1", "+0.5", "-0.2", "1.3"]
    spec = waterfall.waterfall(bars, "light")
    y = spec["encoding"]["y"]
    assert y["sort"] == y["scale"]["domain"] == ["from", "a", "b", "to"]
    assert y["axis"]["labelOverlap"] is False


def test_numbers_of_a_heat_map_are_short_signed_and_never_a_false_zero() -> None:
    assert [heat.signed(value) for value in (0.12, -0.5, 0.04, -0.04, 1.25, None)] == (
        ["+.1", "-.5", "0", "0", "+1.2", ""]
    )  # fmt: skip
    assert [heat.signed(value, 0.4) for value in (0.123, 0.004, 0.1)] == ["+.12", "0", "+.10"]
    assert [heat.signed(value, 70.0) for value in (52.3, -0.4, 0.6)] == ["+52", "0", "+1"]
    assert heat.signed(3e-5, 1e-4) == "0"
    assert heat.signed(None, 1.0, "–") == "–"
    marks = [heat.Mark("r", "a", 0.9, "+.90", True, True, ""), heat.Mark("r", "b", None, "n<30", False, False, ""),
             heat.Mark("r", "c", 5.0, "+5", False, False, "")]  # fmt: skip
    assert heat.reach_of(marks) == 0.9  # what is not sure does not pale what is
    rows = heat.drawn(marks, 0.9).to_pylist()
    assert [row["strong"] for row in rows] == [True, False, True]
    assert rows[1]["value"] is None
    assert heat.reach_of([]) == 1.0


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_middle_of_a_heat_map_is_near_the_grounds_of_the_theme(theme: Theme) -> None:
    spec = heat.heat_map(["r"], ["a"], 1.0, theme, legend="x", slanted=True)
    colours = spec["layer"][0]["encoding"]["color"]["scale"]
    assert colours["domain"] == [-1.0, 0, 1.0]
    assert colours["range"][1] == heat.MIDDLE[theme]
    assert colours["interpolate"] == "rgb"
    assert spec["layer"][1]["mark"]["stroke"] == INK[theme]


def test_labels_at_line_ends_do_not_lie_on_each_other_and_stay_inside() -> None:
    points = [curves.Point(name, "high", value, None, None, "") for name, value in
              (("a", 0.98), ("b", 0.99), ("c", 1.0), ("d", 0.2))]  # fmt: skip
    points.append(curves.Point("a", "high", 0.1, None, None, "", compared=True))
    placed = curves.labels(points, (0.0, 1.0))
    assert [label.line for label in placed] == ["d", "a", "b", "c"]
    heights = [label.y for label in placed]
    assert all(high - low >= curves.APART - 1e-9 for low, high in pairwise(heights))
    assert heights[-1] <= 1.0
    assert heights[0] == 0.2  # nothing pushed it


def test_a_point_without_an_interval_leaves_a_gap_in_the_ribbon() -> None:
    rows = curves.drawn([curves.Point("a", "low", 0.1, None, None, ""), curves.Point("a", 60.0, 0.1, 0.0, 0.2, "")])
    assert rows["low"].to_pylist() == [None, 0.0]
    assert rows["at"].to_pylist() == [None, 60.0]


def test_states_have_shapes_of_their_own_and_gaps_are_no_zeros() -> None:
    assert banded.SHAPES["outside"] != banded.SHAPES["inside"] != banded.SHAPES["immature"]
    series = banded.Series([point(0, 0.5), point(1, None), point(2, 0.9), point(3, 0.6, 0.4)],
                           ["inside", "no band", "outside", "immature"], banded.Limits(0.4, 0.7, 0.5, 0, 1),
                           [(2, "reward abc")], [Forecast(2, 3, "edit_rate", 0.6, 0.1, low=0.5, high=0.7)])  # fmt: skip
    rows = banded.drawn(series).to_pylist()
    assert [row["value"] for row in rows if row["what"] == "point"] == [0.5, None, 0.9, 0.6]
    assert rows[-1]["state"] == "not known yet"
    spec = json.dumps(banded.banded_chart(series, "dark", first=0, last=3))
    for written in ('"text": "0.7"', '"text": "0.4"', '"name": "reward abc"', '"at": 1.5'):
        assert written in spec


@pytest.mark.parametrize(("came", "words"), [(None, "not known yet"), (0.6, "inside"), (0.9, "OUTSIDE")])
def test_a_forecast_says_in_words_what_came(came: float | None, words: str) -> None:
    made = Forecast(2, 3, "edit_rate", 0.6, 0.1, low=0.5, high=0.7, came=came)
    assert words in banded.forecast_words(made)


def test_the_longest_control_chart_stays_below_the_most_marks() -> None:
    cycles = range(120)
    points = [point(cycle, 0.5) for cycle in cycles]
    made = [Forecast(cycle, cycle + 1, "edit_rate", 0.5, 0.0, low=0.4, high=0.6) for cycle in cycles]
    series = banded.Series(points, ["inside"] * 120, banded.Limits(0.4, 0.7, 0.5, 0, 7),
                           [(cycle, "r") for cycle in range(0, 120, 10)], made, None, points, "other")  # fmt: skip
    rows = banded.drawn(series).num_rows
    assert rows == 360
    # Two marks a point, two a forecast, one of the other series; lines and areas are one each.
    assert MOST_MARKS > 2 * 120 + 2 * 120 + 120 + 2 * 12 + 12
    spec: dict[str, Any] = banded.banded_chart(series, "light", first=0, last=119)
    assert len(json.dumps(spec)) < 12_000
