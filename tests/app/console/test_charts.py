"""Charts are dictionaries: what they say, how many marks they have, and that Vega-Lite would take them."""

from __future__ import annotations

import json

import pytest

from palomar.app.console.charts.base import Theme
from palomar.app.console.charts.control import MOST_CYCLES, Panel, control_series, drawn, said
from palomar.data.store.records import Statistic

MOST_MARKS = 2_000


def point(cycle: int, value: float | None = 0.5, maturity: float | None = None) -> Statistic:
    spread = None if value is None else 0.1
    return Statistic(
        cycle=cycle,
        slice="all",
        statistic="edit_rate",
        value=value,
        low=None if value is None or spread is None else value - spread,
        high=None if value is None or spread is None else value + spread,
        n=0 if value is None else 100,
        status="no data" if value is None else "ok",
        maturity=maturity,
    )


def chart(points: list[Statistic], theme: Theme = "light", **more: float) -> dict[str, object]:
    panel = Panel("Edit rate", "share", points, base=more.get("base"), since_cycle=None)
    return control_series(panel, theme, first_cycle=0, last_cycle=points[-1].cycle, height=100)


def test_a_cycle_without_a_value_is_a_gap_and_never_a_zero() -> None:
    rows = drawn([point(0), point(1, None), point(2)]).to_pylist()
    assert [row["value"] for row in rows] == [0.5, None, 0.5]
    assert rows[1]["low"] is None


def test_immature_points_are_another_shape_and_say_so() -> None:
    spec = chart([point(0, maturity=1.0), point(1, maturity=0.4)])
    assert drawn([point(0, maturity=1.0), point(1, maturity=0.4)])["feedback"].to_pylist() == ["in", "partly in"]
    shapes = [layer["mark"].get("shape") for layer in spec["layer"]]  # type: ignore[attr-defined]
    assert "diamond" in shapes


def test_two_hundred_cycles_stay_below_the_most_marks() -> None:
    points = [point(cycle) for cycle in range(1_000)]
    spec, rows = chart(points), drawn(points)
    assert (rows["cycle"][0].as_py(), rows["cycle"][-1].as_py()) == (1_000 - MOST_CYCLES, 999)
    assert rows.num_rows * len(spec["layer"]) < MOST_MARKS  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0.0, 5.0, -3.0])
def test_values_that_are_all_the_same_have_an_axis_of_some_width(value: float) -> None:
    same = [Statistic(cycle, "all", "x", value, value, value, 3, "ok", None) for cycle in range(3)]
    line = next(layer for layer in chart(same)["layer"] if layer["mark"]["type"] == "line")  # type: ignore[attr-defined]
    low, high = line["encoding"]["y"]["scale"]["domain"]
    assert low < value < high


def test_a_base_outside_the_points_is_still_on_the_axis() -> None:
    line = next(layer for layer in chart([point(0), point(1)], base=9.0)["layer"] if layer["mark"]["type"] == "line")  # type: ignore[attr-defined]
    assert line["encoding"]["y"]["scale"]["domain"][1] > 9.0


def test_charts_are_json_and_differ_by_theme() -> None:
    light, dark = (json.dumps(chart([point(0), point(1)], theme), allow_nan=False) for theme in ("light", "dark"))
    assert light != dark
    assert "#FAFAFA" in dark
    assert "#FAFAFA" not in light


def test_a_chart_is_said_in_words() -> None:
    panel = Panel("Edit rate", "share of interactions", [point(0, 0.75), point(1, None), point(2, 0.25)])
    assert said(panel) == "Edit rate, share of interactions: 0.75 in cycle 0, 0.25 in cycle 2"
    assert said(Panel("Edit rate", "share", [point(0, None)])) == "Edit rate: no data"
