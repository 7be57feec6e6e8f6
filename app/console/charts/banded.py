"""The large control chart: band and limits, intervals, states by shape, reward versions, forecasts, a second series.

Every layer is of one small table (`drawn`), told apart by its column ``what``; so a chart of 120 cycles with forecasts
and a second series stays below 1,000 marks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from palomar.app.console.charts.base import BLUE, INK, LIGHTER, ORANGE, PADDING, RULE, Theme, config
from palomar.data.store.records import Forecast, Statistic

HEIGHT = 320
ROWS = 3
"""Of labels of reward versions at the top."""
GREEN = {"light": "#009E73", "dark": "#2CC79A"}
"""Of forecasts."""
BAND = {"light": "#8A8D97", "dark": "#9CA0AC"}
SHAPES: Mapping[str, str] = {
    "reference": "circle",
    "inside": "circle",
    "no band": "circle",
    "outside": "triangle-up",
    "immature": "diamond",
}
"""By state; immature ones are hollow as well."""
STATE_WORDS: Mapping[str, str] = {
    "reference": "in the baseline",
    "inside": "within the band",
    "outside": "outside the band",
    "immature": "feedback still to come",
    "no band": "no band to compare with",
}


@dataclass(frozen=True)
class Limits:
    """The band."""

    low: float
    high: float
    level: float | None
    first: int
    """Cycles of the baseline, which are marked below."""
    last: int


@dataclass(frozen=True)
class Series:
    """What is drawn."""

    points: Sequence[Statistic]
    states: Sequence[str]
    limits: Limits | None
    versions: Sequence[tuple[int, str]]
    """Cycle from which on another reward was in force, and its name cut short."""
    forecasts: Sequence[Forecast] = ()
    base: float | None = None
    """Level to draw where there is no band."""
    other: Sequence[Statistic] = ()
    other_name: str = ""
    """Our own words."""


SCHEMA = pa.schema(
    [
        ("what", pa.string()),  # point | forecast | other
        ("cycle", pa.int32()),
        ("value", pa.float64()),
        ("low", pa.float64()),
        ("high", pa.float64()),
        ("n", pa.int64()),
        ("state", pa.string()),
        ("told", pa.string()),
    ]
)


def drawn(series: Series) -> pa.Table:
    """All rows of the chart. A point without a value leaves a gap, never a zero."""
    rows = [
        {
            "what": "point", "cycle": point.cycle, "value": point.value, "low": point.low, "high": point.high,
            "n": point.n, "state": state, "told": _told(point, STATE_WORDS[state]),
        }
        for point, state in zip(series.points, series.states, strict=True)
    ]  # fmt: skip
    rows += [
        {
            "what": "forecast", "cycle": each.for_cycle, "value": each.value, "low": each.low, "high": each.high,
            "n": None, "state": forecast_words(each), "told": _foretold(each),
        }
        for each in series.forecasts
    ]  # fmt: skip
    rows += [
        {
            "what": "other", "cycle": point.cycle, "value": point.value, "low": point.low, "high": point.high,
            "n": point.n, "state": "other", "told": f"{series.other_name}: {_told(point, '')}",
        }
        for point in series.other
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def _told(point: Statistic, state: str) -> str:
    if point.value is None:
        return f"cycle {point.cycle}: {point.status}"
    between = "" if point.low is None or point.high is None else f" ({point.low:.4g} to {point.high:.4g})"
    return f"cycle {point.cycle}: {point.value:.4g}{between}, n {point.n:,}" + (f", {state}" if state else "")


def _foretold(each: Forecast) -> str:
    between = "" if each.low is None or each.high is None else f" ({each.low:.4g} to {each.high:.4g})"
    return f"expected in cycle {each.for_cycle}: {each.value:.4g}{between}; {forecast_words(each)}"


def forecast_words(each: Forecast) -> str:
    """What came of a forecast."""
    if each.came is None:
        return "not known yet"
    if each.inside is None:
        return f"{each.came:.4g} came; no interval"
    return f"{each.came:.4g} came, {'inside' if each.inside else 'OUTSIDE'}"


def banded_chart(series: Series, theme: Theme, *, first: int, last: int) -> dict[str, Any]:
    """The specification; its data are `drawn(series)`. ``first`` and ``last``: cycles of the axis."""
    blue, orange = (LIGHTER[BLUE], LIGHTER[ORANGE]) if theme == "dark" else (BLUE, ORANGE)
    low, high = _domain(series)
    last = max(last, *(each.for_cycle for each in series.forecasts)) if series.forecasts else last
    x = {
        "field": "cycle",
        "type": "quantitative",
        "title": "cycle",
        "scale": {"domain": [first, max(first + 1, last)], "nice": False, "padding": 8},
        "axis": {"tickMinStep": 1, "format": "d", "grid": False, "tickCount": 12},
    }
    y = {
        "field": "value",
        "type": "quantitative",
        "title": None,
        "scale": {"domain": [low, high], "nice": False, "zero": False},
        "axis": {"tickCount": 6, "format": ".3~g"},
    }
    layers: list[dict[str, Any]] = []
    if series.limits is not None:
        layers += _band(series.limits, x, y, theme)
    elif series.base is not None:
        layers.append(_level(series.base, y, theme))
    layers += _versions(series.versions, x, high, theme)
    if series.forecasts:
        layers += _forecasts(x, y, GREEN[theme])
    if series.other:
        layers += _other(series, x, y, orange, theme)
    layers += _points(x, y, blue, orange)
    return {"height": HEIGHT, "layer": layers, "padding": {**PADDING, "right": 74}, "config": config(theme)}


def _band(limits: Limits, x: dict[str, Any], y: dict[str, Any], theme: Theme) -> list[dict[str, Any]]:
    """Grey from limit to limit over the whole width, the limits written at the right."""
    edges = [("upper limit", limits.high, -5), ("lower limit", limits.low, 9)]
    written = [{"at": value, "text": f"{value:.3g}"} for _, value, _ in edges]
    values = [{"low": limits.low, "high": limits.high}]
    found: list[dict[str, Any]] = [
        {
            "data": {"values": values},
            "mark": {"type": "rect", "color": BAND[theme], "opacity": 0.2},
            "encoding": {"y": {**y, "field": "low"}, "y2": {"field": "high"}},
        },
        {
            "data": {"values": written},
            "mark": {"type": "text", "align": "left", "dx": 6, "fontSize": 11, "color": INK[theme]},
            "encoding": {"y": {**y, "field": "at"}, "x": {"value": "width"}, "text": {"field": "text"}},
        },
        {
            "data": {"values": [{"from": limits.first, "to": limits.last}]},
            "mark": {"type": "rule", "color": RULE[theme], "strokeWidth": 4, "opacity": 0.6, "clip": True},
            "encoding": {"x": {**x, "field": "from"}, "x2": {"field": "to"}, "y": {"value": "height"}},
        },
    ]
    return [*found, *([] if limits.level is None else [_level(limits.level, y, theme)])]


def _level(level: float, y: dict[str, Any], theme: Theme) -> dict[str, Any]:
    return {
        "data": {"values": [{"level": level}]},
        "mark": {"type": "rule", "color": RULE[theme], "strokeDash": [5, 4]},
        "encoding": {"y": {**y, "field": "level"}},
    }


def _versions(versions: Sequence[tuple[int, str]], x: dict[str, Any], top: float, theme: Theme) -> list[dict[str, Any]]:
    """Dotted lines where the reward changed, labelled at the top."""
    if not versions:
        return []
    # Between the last cycle under the old one and the first under the new.
    values = [{"at": cycle - 0.5, "name": name} for cycle, name in versions]
    line = {
        "data": {"values": values},
        "mark": {"type": "rule", "color": INK[theme], "strokeDash": [1, 3], "strokeWidth": 1.5, "clip": True},
        "encoding": {"x": {**x, "field": "at"}},
    }
    mark = {"type": "text", "align": "left", "dx": 4, "fontSize": 10.5, "color": INK[theme], "clip": True}
    labels = [
        # Those of neighbours stand one above the other.
        {
            "data": {"values": values[row::ROWS]},
            "mark": mark,
            "encoding": {"x": {**x, "field": "at"}, "y": {"value": 6 + 12 * row}, "text": {"field": "name"}},
        }
        for row in range(min(ROWS, len(values)))
    ]
    return [line, *labels]


def _forecasts(x: dict[str, Any], y: dict[str, Any], green: str) -> list[dict[str, Any]]:
    """What was expected: a thin bar a cycle with a tick at the level; crosses where what came lay outside."""
    here = [{"filter": "datum.what == 'forecast'"}]
    told = [{"field": "told", "type": "nominal", "title": " "}]
    return [
        {
            "transform": here,
            "mark": {"type": "bar", "color": green, "opacity": 0.28, "width": 7, "clip": True},
            "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "tooltip": told},
        },
        {
            "transform": here,
            "mark": {"type": "tick", "orient": "horizontal", "color": green, "thickness": 2, "size": 11, "clip": True},
            "encoding": {"x": x, "y": y, "tooltip": told},
        },
    ]


def _other(series: Series, x: dict[str, Any], y: dict[str, Any], colour: str, theme: Theme) -> list[dict[str, Any]]:
    """The second series: dashed, squares, named where it ends."""
    here = [{"filter": "datum.what == 'other'"}]
    known = [point for point in series.other if point.value is not None]
    found: list[dict[str, Any]] = [
        {
            "transform": here,
            "mark": {"type": "area", "color": colour, "opacity": 0.12, "clip": True},
            "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
        },
        {
            "transform": here,
            "mark": {"type": "line", "color": colour, "strokeDash": [5, 3], "strokeWidth": 2, "clip": True},
            "encoding": {"x": x, "y": y},
        },
        {
            "transform": here,
            "mark": {"type": "point", "shape": "square", "filled": True, "size": 26, "color": colour, "opacity": 1,
                     "clip": True},
            "encoding": {"x": x, "y": y, "tooltip": [{"field": "told", "type": "nominal", "title": " "}]},
        },
    ]  # fmt: skip
    if known:
        found.append(
            {
                "data": {"values": [{"cycle": known[-1].cycle, "value": known[-1].value, "name": series.other_name}]},
                "mark": {"type": "text", "align": "right", "dx": -4, "dy": -11, "fontSize": 11, "color": INK[theme]},
                "encoding": {"x": x, "y": y, "text": {"field": "name"}},
            }
        )
    return found


def _points(x: dict[str, Any], y: dict[str, Any], blue: str, orange: str) -> list[dict[str, Any]]:
    here = {"filter": "datum.what == 'point'"}
    told = [{"field": "told", "type": "nominal", "title": " "}]
    shape = {
        "field": "state",
        "type": "nominal",
        "scale": {"domain": list(SHAPES), "range": list(SHAPES.values())},
        "legend": None,
    }
    out = {"condition": {"test": "datum.state == 'outside'", "value": orange}, "value": blue}
    return [
        {
            "transform": [here],
            "mark": {"type": "rule", "strokeWidth": 1.3, "opacity": 0.75, "clip": True},
            "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": out},
        },
        {
            "transform": [here],
            "mark": {"type": "line", "color": blue, "strokeWidth": 1.8, "opacity": 0.8},
            "encoding": {"x": x, "y": y},
        },
        {
            "transform": [here, {"filter": "datum.state != 'immature'"}],
            "mark": {"type": "point", "filled": True, "opacity": 1},
            "encoding": {
                "x": x, "y": y, "shape": shape, "color": out, "tooltip": told,
                "size": {"condition": {"test": "datum.state == 'outside'", "value": 62}, "value": 38},
            },
        },
        {
            "transform": [here, {"filter": "datum.state == 'immature'"}],
            "mark": {"type": "point", "filled": False, "opacity": 1, "strokeWidth": 1.6, "size": 64, "color": blue},
            "encoding": {"x": x, "y": y, "shape": shape, "tooltip": told},
        },
    ]  # fmt: skip


def _domain(series: Series) -> tuple[float, float]:
    """All that is drawn, with some room at the top for the labels; intervals that dwarf all else are cut."""
    points = [value for point in (*series.points, *series.other) for value in (point.value,) if value is not None]
    limits = [] if series.base is None else [series.base]
    limits = limits if series.limits is None else [series.limits.low, series.limits.high]
    core = [*points, *limits, *(each.value for each in series.forecasts)]
    if not core:
        return 0.0, 1.0
    low, high = min(core), max(core)
    span = (high - low) or 0.1 * abs(high) or 1.0
    ends = [(each.low, each.high) for each in (*series.points, *series.other)]
    ends += [(each.low, each.high) for each in series.forecasts]
    edges = [edge for pair in ends for edge in pair if edge is not None]
    low, high = max(min([low, *edges]), low - 0.5 * span), min(max([high, *edges]), high + 0.5 * span)
    return low - 0.05 * (high - low), high + 0.09 * ((high - low) or span)
