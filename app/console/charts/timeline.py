"""A run in one picture: reward, users' outcome, checks, alarms, reward versions and the gate over the same cycles."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from palomar.app.console.charts.base import BLUE, INK, LIGHTER, ORANGE, PADDING, Theme, config
from palomar.app.now import Moment, Timeline
from palomar.data.store.records import Statistic

MOST_CYCLES = 250
"""Cycles drawn, the newest; with six lanes that stays at 1,500 marks."""
MANY = 80
"""Cycles from which on marks are small."""
CURVE, GAP, LANE = 70, 12, 21
"""Heights in pixels: of a curve, between two, of a lane of marks."""
GREEN, YELLOW = "#009E73", "#E69F00"
GREY = {"light": "#8A8D95", "dark": "#8A8D95"}
CHECK, ALARMS, REWARD, GATE = "check", "alarms", "reward version", "gate"
LANES = (CHECK, ALARMS, REWARD, GATE)
CURVES = ("training reward", "users' outcome")
MIDDLE: Mapping[str, float] = {
    **{name: number * (CURVE + GAP) + CURVE / 2 for number, name in enumerate(CURVES)},
    **{name: len(CURVES) * (CURVE + GAP) + (number + 0.5) * LANE for number, name in enumerate(LANES)},
}
"""Where each lane stands, in pixels from the top. One view and not one a lane, since only that follows the width of
the page."""
HEIGHT = len(CURVES) * (CURVE + GAP) + len(LANES) * LANE
SCHEMA = pa.schema(
    [
        ("cycle", pa.int32()),
        ("lane", pa.string()),
        ("y", pa.float64()),
        ("low", pa.float64()),
        ("high", pa.float64()),
        ("state", pa.string()),
        ("said", pa.string()),
    ]
)
STATES: Mapping[str, tuple[str, str]] = {
    "pass": ("circle", GREEN),
    "warn": ("triangle-up", YELLOW),
    "fail": ("square", ORANGE),
    "no data": ("cross", ""),
    "pending": ("diamond", ""),
    "new": ("triangle-down", BLUE),
}
"""Shape and colour by state; an empty colour is the grey of the theme."""
_OF_CHECK = {"pass": "pass", "warn": "warn", "block": "fail", "not_assessable": "no data"}
_OF_GATE = {"promote": "pass", "hold": "warn", "block": "fail", "pending": "pending"}


def rows(of: Timeline, reward: Sequence[Statistic], outcome: Sequence[Statistic]) -> pa.Table:
    """All that is drawn, a row a mark. A cycle without a value, a check or a decision has none: a gap, never a zero."""
    moments = of.moments[-MOST_CYCLES:]
    found: list[tuple[Any, ...]] = []
    for lane, series in zip(CURVES, (reward, outcome), strict=True):
        drawn = _drawn(of, series)
        low, high = _range(drawn)

        for point in drawn:
            words = f"{point.value:.3g} ({_known(point.low)} to {_known(point.high)}, n {point.n:,})"
            places = [_place(value, lane, low, high) for value in (point.value, point.low, point.high)]
            found.append((point.cycle, lane, *places, "", words))
    for moment in moments:
        for lane, state, words in _events(moment):
            found.append((moment.cycle, lane, MIDDLE[lane], None, None, state, words))
    columns = list(zip(*found, strict=True)) if found else [()] * len(SCHEMA)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


def _place(value: float | None, lane: str, low: float, high: float) -> float | None:
    """Pixels from the top; None for what is not known."""
    top = MIDDLE[lane] - CURVE / 2
    return None if value is None else top + CURVE * (high - value) / (high - low)


def _events(moment: Moment) -> list[tuple[str, str, str]]:
    """Lane, state and words of what happened in a cycle."""
    found = []
    if moment.verdict is not None:
        found.append((CHECK, _OF_CHECK[moment.verdict], f"check: {moment.verdict.replace('_', ' ')}"))
    if moment.opened:
        found.append((ALARMS, "fail", f"alarm {', '.join(map(str, moment.opened[:8]))} opened"))
    if moment.changed:
        found.append((REWARD, "new", f"reward {(moment.reward or 'unknown')[:12]}"))
    if moment.gate != "pending":
        found.append((GATE, _OF_GATE.get(moment.gate, "pending"), f"gate: {moment.gate}"))
    return found


def _drawn(of: Timeline, series: Sequence[Statistic]) -> list[Statistic]:
    first = of.moments[-MOST_CYCLES:][0].cycle if of.moments else 0
    return [point for point in series if point.value is not None and point.cycle >= first]


def _range(drawn: Sequence[Statistic]) -> tuple[float, float]:
    """Lowest and highest of what is drawn, of width even where all is the same."""
    values = [value for point in drawn for value in (point.value, point.low, point.high) if value is not None]
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = 0.0 if high > low else 0.1 * abs(high) or 1.0
    return low - room, high + room


def _known(value: float | None) -> str:
    return "?" if value is None else f"{value:.3g}"


def timeline_chart(
    of: Timeline, reward: Sequence[Statistic], outcome: Sequence[Statistic], theme: Theme
) -> dict[str, Any]:
    """The specification; its data are `rows`. The limits of each curve are written at its right end."""
    moments = of.moments[-MOST_CYCLES:]
    first, last = (moments[0].cycle, moments[-1].cycle) if moments else (0, 1)
    x: dict[str, Any] = {
        "field": "cycle",
        "type": "quantitative",
        "scale": {"domain": [first, max(first + 1, last)], "nice": False, "padding": 8},
        "axis": {"title": "cycle", "format": "d", "tickMinStep": 1, "tickCount": 15},
    }
    y: dict[str, Any] = {
        "field": "y",
        "type": "quantitative",
        "title": None,
        "scale": {"domain": [HEIGHT, 0], "nice": False, "zero": False},
        "axis": {
            "values": list(MIDDLE.values()),
            "labelExpr": _names(),
            "ticks": False,
            "domain": False,
            "gridOpacity": 0,
            "labelLimit": 120,
        },
    }
    layers: list[dict[str, Any]] = []
    for lane, series, colour in zip(CURVES, (reward, outcome), (BLUE, ORANGE), strict=True):
        layers += _curve(
            lane, _range(_drawn(of, series)), LIGHTER[colour] if theme == "dark" else colour, (x, y), theme
        )
    names = list(STATES)
    state = {"field": "state", "type": "nominal", "legend": None}
    layers.append(
        {
            "transform": [{"filter": "datum.state != ''"}],
            "mark": {"type": "point", "filled": True, "size": 60 if last - first < MANY else 22, "opacity": 1},
            "encoding": {
                "x": x,
                "y": y,
                "shape": {**state, "scale": {"domain": names, "range": [STATES[name][0] for name in names]}},
                "color": {
                    **state,
                    "scale": {"domain": names, "range": [STATES[name][1] or GREY[theme] for name in names]},
                },
                "tooltip": _TOOLTIP,
            },
        }
    )
    return {"height": HEIGHT, "layer": layers, "padding": {**PADDING, "right": 44}, "config": config(theme)}


_TOOLTIP = [{"field": "cycle", "type": "quantitative"}, {"field": "said", "type": "nominal", "title": "what"}]


def _names() -> str:
    """A Vega expression that gives a lane's name for where it stands."""
    said = json.dumps("")
    for name, middle in MIDDLE.items():
        said = f"datum.value == {middle} ? {json.dumps(name)} : {said}"
    return said


def _curve(
    lane: str, limits: tuple[float, float], colour: str, axes: tuple[dict[str, Any], dict[str, Any]], theme: Theme
) -> list[dict[str, Any]]:
    x, y = axes
    mine = [{"filter": f"datum.lane == {json.dumps(lane)}"}]
    low, high = limits
    written = [
        {"y": MIDDLE[lane] - CURVE / 2 + 4, "limit": high},
        {"y": MIDDLE[lane] + CURVE / 2 - 4, "limit": low},
    ]
    return [
        {
            "transform": mine,
            "mark": {"type": "area", "opacity": 0.2, "color": colour},
            "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
        },
        {
            "transform": mine,
            "mark": {"type": "line", "color": colour, "strokeWidth": 2, "point": {"size": 10, "color": colour}},
            "encoding": {"x": x, "y": y, "tooltip": _TOOLTIP},
        },
        {
            "data": {"values": written},
            "mark": {"type": "text", "align": "left", "dx": 4, "fontSize": 10, "color": INK[theme]},
            "encoding": {
                "x": {"value": "width"},
                "y": y,
                "text": {"field": "limit", "type": "quantitative", "format": ".2~g"},
            },
        },
    ]


def said(of: Timeline) -> str:
    """The picture in words."""
    opened = sum(len(moment.opened) for moment in of.moments)
    checked = sum(moment.verdict is not None for moment in of.moments)
    promoted = sum(moment.gate == "promote" for moment in of.moments)
    changed = sum(moment.changed for moment in of.moments)
    return (
        f"{len(of.moments)} cycles: {checked} checked, {opened} alarms opened, {promoted} promotions, "
        f"{changed} changes of the reward"
    )
