"""Bars that lead from one total to another, and pairs of intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from palomar.app.console.charts.base import BLUE, INK, LIGHTER, ORANGE, PADDING, RULE, Theme, config

STEP = 26


@dataclass(frozen=True)
class Bar:
    """One part of a change; a total has no length."""

    label: str
    part: float
    total: bool
    told: str


SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in ("label", "text", "way", "told")),
        *(pa.field(name, pa.float64()) for name in ("start", "end", "outer")),
    ]
)


def drawn(start: float, bars: Sequence[Bar]) -> pa.Table:
    """Rows of the chart: each bar begins where the one before it ends, so the last total is where they all lead."""
    rows, at = [], start
    for bar in bars:
        end = at + bar.part
        text = f"{end:.3g}" if bar.total else f"{bar.part:+.3g}"
        way = "total" if bar.total else "up" if bar.part >= 0 else "down"
        rows.append({"label": bar.label, "text": text, "way": way, "told": bar.told, "start": at, "end": end,
                     "outer": max(at, end)})  # fmt: skip
        at = end
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def waterfall(bars: Sequence[Bar], theme: Theme) -> dict[str, Any]:
    """The specification; its data are `drawn`. Horizontal, in the order given, every label shown, totals as ticks."""
    up, down = (LIGHTER[ORANGE], LIGHTER[BLUE]) if theme == "dark" else (ORANGE, BLUE)
    order = [bar.label for bar in bars]
    y = {
        "field": "label",
        "type": "nominal",
        "sort": order,
        "scale": {"domain": order},
        "title": None,
        "axis": {"labelOverlap": False, "labelLimit": 240, "ticks": False, "domain": False},
    }
    x = {
        "type": "quantitative",
        "title": None,
        "scale": {"zero": False, "nice": True, "padding": 34},
        "axis": {"tickCount": 6, "format": ".2~g"},
    }
    tooltip = [{"field": "told", "type": "nominal", "title": " "}]
    return {
        "height": STEP * max(1, len(order)) + 24,
        "padding": PADDING,
        "config": config(theme),
        "encoding": {"y": y},
        "layer": [
            {
                "transform": [{"filter": "datum.way != 'total'"}],
                "mark": {"type": "bar", "height": 13},
                "encoding": {
                    "x": {**x, "field": "start"},
                    "x2": {"field": "end"},
                    "color": {
                        "field": "way",
                        "type": "nominal",
                        "scale": {"domain": ["up", "down"], "range": [up, down]},
                        "legend": None,
                    },
                    "tooltip": tooltip,
                },
            },
            {
                "transform": [{"filter": "datum.way == 'total'"}],
                "mark": {"type": "tick", "thickness": 3, "size": 22, "color": INK[theme]},
                "encoding": {"x": {**x, "field": "end"}, "tooltip": tooltip},
            },
            {
                "mark": {"type": "text", "align": "left", "dx": 6, "fontSize": 11, "color": INK[theme]},
                "encoding": {"x": {**x, "field": "outer"}, "text": {"field": "text", "type": "nominal"}},
            },
        ],
    }


@dataclass(frozen=True)
class Interval:
    """A number with its interval, on a line of its own beside another of the same label."""

    label: str
    side: str
    value: float
    low: float | None
    high: float | None
    told: str


PAIRS = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in ("label", "side", "told")),
        *(pa.field(name, pa.float64()) for name in ("value", "low", "high")),
    ]
)


def drawn_pairs(intervals: Sequence[Interval]) -> pa.Table:
    """Intervals as chart rows."""
    return pa.Table.from_pylist([vars(item) for item in intervals], schema=PAIRS)


def pairs(
    order: Sequence[str], sides: Sequence[str], theme: Theme, *, title: str, step: int = STEP, legend: bool = True
) -> dict[str, Any]:
    """One or two numbers a line with their intervals, about 0: the first side a circle in blue, the second a square."""
    first, second = (LIGHTER[BLUE], LIGHTER[ORANGE]) if theme == "dark" else (BLUE, ORANGE)
    y = {
        "field": "label",
        "type": "nominal",
        "sort": list(order),
        "scale": {"domain": list(order), "paddingInner": 0.25},
        "title": None,
        "axis": {"labelOverlap": False, "labelLimit": 270, "ticks": False, "grid": True, "gridOpacity": 0.12},
    }
    offset = {"field": "side", "type": "nominal", "scale": {"domain": list(sides)}}
    x = {"type": "quantitative", "title": title, "axis": {"format": "+.2~g", "tickCount": 7}}
    colour = {
        "field": "side",
        "type": "nominal",
        "scale": {"domain": list(sides), "range": [first, second]},
        "legend": {"title": None, "orient": "top", "labelColor": INK[theme]} if legend else None,
    }
    shape = {"field": "side", "type": "nominal", "scale": {"domain": list(sides), "range": ["circle", "square"]},
             "legend": {"title": None, "orient": "top", "labelColor": INK[theme]} if legend else None}  # fmt: skip
    return {
        # The height that is given holds axis and legend too.
        "height": step * max(1, len(order)) + 44 + (34 if legend else 0),
        "padding": PADDING,
        "config": config(theme),
        "layer": [
            {
                "data": {"values": [{"zero": 0}]},
                "mark": {"type": "rule", "color": RULE[theme]},
                "encoding": {"x": {"field": "zero", "type": "quantitative"}},
            },
            {
                "mark": {"type": "rule", "strokeWidth": 2},
                "encoding": {"y": y, "yOffset": offset, "x": {**x, "field": "low"}, "x2": {"field": "high"},
                             "color": colour},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 55, "opacity": 1},
                "encoding": {
                    "y": y, "yOffset": offset, "x": {**x, "field": "value"}, "color": colour, "shape": shape,
                    "tooltip": [{"field": "told", "type": "nominal", "title": " "}],
                },
            },
        ],
    }  # fmt: skip
