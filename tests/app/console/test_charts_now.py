"""The charts of the section Now: what is drawn is what is kept, and there is never too much of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from palomar.app.console.charts.alarm import Control, alarm_chart, apart, points, push_chart, pushes
from palomar.app.console.charts.timeline import (
    CURVE,
    CURVES,
    HEIGHT,
    MIDDLE,
    MOST_CYCLES,
    rows,
    said,
    timeline_chart,
)
from palomar.app.now import Moment, Timeline
from palomar.data.findings import Cause
from palomar.data.store.records import Statistic

LIGHT_TEXT = "#FAFAFA"


def statistic(cycle: int, value: float | None, maturity: float | None = None) -> Statistic:
    known = value is not None
    return Statistic(
        cycle, "all", "edit_rate", value, value - 0.1 if known else None, value + 0.1 if known else None, 50,  # type: ignore[operator]
        "ok" if known else "no data", maturity,
    )  # fmt: skip


def moment(cycle: int, **more: Any) -> Moment:
    plain = {"verdict": None, "gate": "pending", "reward": "v1", "changed": False, "opened": ()}
    return Moment(**{"cycle": cycle, **plain, **more})


def control(**more: Any) -> Control:
    usual = {"band": (0.2, 0.4), "before": 0.3, "since": 3, "versions": ((4, "reward abc"),), "share": True}
    return Control(**{**usual, **more})


# -- the control chart of an alarm -----------------------------------------------------------------------------------


def test_points_say_their_state_and_a_gap_is_no_point() -> None:
    series = [statistic(1, 0.3), statistic(2, None), statistic(3, 0.41), statistic(4, 0.2), statistic(5, 0.9, 0.5)]
    table = points(series, (0.2, 0.4))
    assert table["cycle"].to_pylist() == [1, 3, 4, 5]
    assert table["state"].to_pylist() == [
        "in its band",
        "out of its band",
        "in its band",  # on the limit
        "feedback partly in",
    ]
    assert points(series, None)["state"].to_pylist()[1] == "in its band"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_band_limits_versions_and_first_cycle_are_drawn_with_the_themes_ink(theme: Any) -> None:
    series = [statistic(cycle, 0.3) for cycle in range(10)]
    spec = alarm_chart(series, control(), theme, first=0, last=9, height=200)
    texts = [layer for layer in spec["layer"] if layer["mark"]["type"] == "text"]
    assert [layer["data"]["values"] for layer in texts] == [
        [{"limit": 0.2}, {"limit": 0.4}],
        [{"at": 4, "name": "reward abc"}],
        [{"at": 3, "name": "first out"}],
    ]
    assert {layer["mark"]["color"] == LIGHT_TEXT for layer in texts} == {theme == "dark"}
    assert texts[0]["encoding"]["text"]["format"] == ".1%"
    json.dumps(spec)


def test_all_layers_share_the_cycles_that_are_shown() -> None:
    series = [statistic(cycle, 0.3) for cycle in range(140, 200)]
    spec = alarm_chart(
        series, control(versions=((150, "a"), (190, "b")), since=193), "light", first=140, last=199, height=200
    )
    domains = [
        layer["encoding"]["x"]["scale"]["domain"]
        for layer in spec["layer"]
        if "field" in layer["encoding"].get("x", {})
    ]
    assert domains == [[140, 199]] * 7


def test_names_of_versions_do_not_stand_on_each_other() -> None:
    lines = [(cycle, str(cycle)) for cycle in (10, 45, 48, 50, 80, 99)]
    assert apart(lines, 0, 100) == ["10", "", "", "50", "", "99"]
    assert apart([], 0, 100) == []


def test_what_is_not_known_or_not_in_the_picture_is_not_drawn() -> None:
    series = [statistic(cycle, 0.3) for cycle in range(5, 10)]
    spec = alarm_chart(series, control(band=None, before=None), "light", first=5, last=9, height=200)
    assert [layer["mark"]["type"] for layer in spec["layer"]] == ["rule", "line", "point"]


def test_the_axis_holds_band_points_and_level_even_where_all_are_the_same() -> None:
    spec = alarm_chart([statistic(1, 0.3)], control(band=(-2.0, 5.0)), "light", first=1, last=1, height=200)
    low, high = spec["layer"][-1]["encoding"]["y"]["scale"]["domain"]
    assert low < -2.0
    assert high > 5.0
    flat = Statistic(1, "all", "x", 1.0, 1.0, 1.0, 5, "ok", None)
    spec = alarm_chart([flat], control(band=None, before=None), "light", first=1, last=1, height=200)
    low, high = spec["layer"][-1]["encoding"]["y"]["scale"]["domain"]
    assert low < 1.0 < high


def test_pushes_are_the_strongest_named_with_their_slice() -> None:
    causes = [
        Cause("rule:invalid_tool_call", "predicted_failure=high,ambiguity=clear", 0.2, 1.0),
        Cause("term:" + "x" * 80, "all", 0.1, 0.4),
        Cause("odd", "organisation=a", 0.1, 0.1),
    ]
    table = pushes(causes, 2)
    assert table["what"].to_pylist()[0] == "invalid_tool_call · high, clear"
    assert len(table["what"].to_pylist()[1]) <= 34
    assert table["kind"].to_pylist() == ["inclusion rule", "reward term"]
    assert table["share"].to_pylist() == [1.0, 0.4]
    assert push_chart(table, "dark")["layer"][0]["encoding"]["y"]["sort"] == table["what"].to_pylist()


# -- the timeline ----------------------------------------------------------------------------------------------------


def test_timeline_draws_what_happened_and_no_more() -> None:
    of = Timeline(
        (
            moment(0),
            moment(1, verdict="pass", gate="promote"),
            moment(2, verdict="not_assessable", gate="hold", changed=True, reward="abcdef0123456789"),
            moment(3, verdict="block", gate="block", opened=(7, 8)),
        )
    )
    table = rows(of, [statistic(0, 1.0), statistic(1, None), statistic(2, 3.0)], []).to_pylist()
    told = [(row["cycle"], row["lane"], row["state"], row["said"]) for row in table if row["state"]]
    assert told == [
        (1, "check", "pass", "check: pass"),
        (1, "gate", "pass", "gate: promote"),
        (2, "check", "no data", "check: not assessable"),
        (2, "reward version", "new", "reward abcdef012345"),
        (2, "gate", "warn", "gate: hold"),
        (3, "check", "fail", "check: block"),
        (3, "alarms", "fail", "alarm 7, 8 opened"),
        (3, "gate", "fail", "gate: block"),
    ]
    assert [(row["cycle"], row["said"]) for row in table if not row["state"]] == [
        (0, "1 (0.9 to 1.1, n 50)"),
        (2, "3 (2.9 to 3.1, n 50)"),
    ]
    assert said(of) == "4 cycles: 3 checked, 2 alarms opened, 1 promotions, 1 changes of the reward"


def test_curves_fill_their_own_lane_the_higher_the_value_the_higher_up() -> None:
    of = Timeline(tuple(moment(cycle) for cycle in range(3)))
    series = [statistic(0, 1.0), statistic(1, 2.0), statistic(2, 5.0)]
    table = rows(of, series, series).to_pylist()
    for lane in CURVES:
        mine = [row for row in table if row["lane"] == lane]
        top, bottom = MIDDLE[lane] - CURVE / 2, MIDDLE[lane] + CURVE / 2
        # Lowest and highest of intervals, 0.9 and 5.1, are the lane's edges.
        assert mine[0]["low"] == pytest.approx(bottom)
        assert mine[2]["high"] == pytest.approx(top)
        assert [row["y"] for row in mine] == pytest.approx(
            [top + CURVE * (5.1 - value) / (5.1 - 0.9) for value in (1.0, 2.0, 5.0)]
        )
    assert max(MIDDLE.values()) < HEIGHT


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_timeline_names_its_lanes_and_writes_the_limits_of_its_curves(theme: Any) -> None:
    of = Timeline((moment(3), moment(4)))
    series = [statistic(3, 1.0), statistic(4, 2.0)]
    spec = timeline_chart(of, series, series, theme)
    texts = [layer["data"]["values"] for layer in spec["layer"] if layer["mark"]["type"] == "text"]
    assert [[round(row["limit"], 6) for row in values] for values in texts] == [[2.1, 0.9]] * 2
    names = spec["layer"][0]["encoding"]["y"]["axis"]["labelExpr"]
    assert all(json.dumps(name) in names for name in MIDDLE)
    assert spec["layer"][0]["encoding"]["x"]["scale"]["domain"] == [3, 4]


def test_a_picture_of_a_long_run_stays_below_2000_marks() -> None:
    of = Timeline(
        tuple(
            moment(cycle, verdict="pass", gate="promote", changed=True, opened=(cycle,))
            for cycle in range(MOST_CYCLES + 100)
        )
    )
    series = [statistic(cycle, 1.0 + cycle) for cycle in range(MOST_CYCLES + 100)]
    table = rows(of, series, series)
    assert table.num_rows == 6 * MOST_CYCLES
    assert table.num_rows < 2_000
    assert min(table["cycle"].to_pylist()) == 100
    # What is not drawn does not set the scale either.
    assert min(row["low"] for row in table.to_pylist() if row["low"] is not None) >= 0


def test_an_empty_run_has_an_empty_picture() -> None:
    assert rows(Timeline(()), [], []).num_rows == 0
    assert timeline_chart(Timeline(()), [], [], "light")["height"] == HEIGHT
