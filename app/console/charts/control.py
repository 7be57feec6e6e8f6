"""Control charts: one statistic over the cycles, with its band."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from palomar.app.console.charts.base import BLUE, LIGHTER, PADDING, RULE, Theme, config
from palomar.data.store.records import Statistic

IMMATURE_BELOW = 0.999
"""A point of which a smaller share than this is mature is drawn hollow: more will come."""
MOST_CYCLES = 120
"""Cycles on one chart; the newest. With band, line and points that stays below 500 marks."""


@dataclass(frozen=True)
class Panel:
    """What one chart shows."""

    title: str
    unit: str
    points: Sequence[Statistic]
    base: float | None = None
    """Level of the first cycles."""
    since_cycle: int | None = None
    """Cycle in which it left that level; None = it has not."""


DRAWN = pa.schema(
    [
        ("cycle", pa.int32()),
        ("value", pa.float64()),
        ("low", pa.float64()),
        ("high", pa.float64()),
        ("n", pa.int64()),
        ("feedback", pa.string()),
    ]
)


def drawn(points: Sequence[Statistic]) -> pa.Table:
    """Points as chart rows. A point without a value has none here either: a gap in the line, never a zero.

    A table and not part of the specification, since Streamlit takes milliseconds a chart to make one of that.
    """
    shown = points[-MOST_CYCLES:]
    feedback = [
        "partly in" if point.maturity is not None and point.maturity < IMMATURE_BELOW else "in" for point in shown
    ]
    columns = [[getattr(point, name) for point in shown] for name in DRAWN.names[:-1]]
    return pa.table([*columns, feedback], schema=DRAWN)


def control_series(
    panel: Panel, theme: Theme, *, first_cycle: int, last_cycle: int, height: int, colour: str = BLUE
) -> dict[str, Any]:
    """One statistic over cycles: 95 % band, line, points; hollow diamonds where feedback is still coming in.

    The specification only; its data are `drawn(panel.points)`. The dashed line is the level of the first cycles, the
    dotted one the cycle in which the series left it.
    """
    first_cycle = max(first_cycle, last_cycle - MOST_CYCLES + 1)
    colour = LIGHTER[colour] if theme == "dark" else colour
    x = {
        "field": "cycle",
        "type": "quantitative",
        "title": None,
        "scale": {
            "domain": [first_cycle, max(first_cycle + 1, last_cycle)],
            "nice": False,
            "padding": 6,
            "zero": False,
        },
        "axis": {"tickMinStep": 1, "format": "d", "grid": False, "tickCount": 6},
    }
    y = {
        "field": "value",
        "type": "quantitative",
        "title": None,
        "scale": {"domain": _domain(panel.points[-MOST_CYCLES:], panel.base), "nice": False, "zero": False},
        "axis": {"tickCount": 4, "format": ".3~g"},
    }
    tooltip = [
        {"field": "cycle", "type": "quantitative", "title": "cycle"},
        {"field": "value", "type": "quantitative", "title": "value", "format": ".4~g"},
        {"field": "low", "type": "quantitative", "title": "95 % from", "format": ".4~g"},
        {"field": "high", "type": "quantitative", "title": "to", "format": ".4~g"},
        {"field": "n", "type": "quantitative", "title": "n", "format": ","},
        {"field": "feedback", "type": "nominal", "title": "feedback"},
    ]
    rule = {"type": "rule", "color": RULE[theme]}
    layers: list[dict[str, Any]] = []
    if panel.base is not None:
        layers.append(
            {
                "data": {"values": [{"base": panel.base}]},
                "mark": {**rule, "strokeDash": [5, 4]},
                "encoding": {"y": {"field": "base", "type": "quantitative"}},
            }
        )
    if panel.since_cycle is not None and panel.since_cycle >= first_cycle:
        layers.append(
            {
                "data": {"values": [{"since": panel.since_cycle}]},
                "mark": {**rule, "strokeDash": [1, 3]},
                "encoding": {"x": {"field": "since", "type": "quantitative"}},
            }
        )
    layers += [
        {
            "mark": {"type": "area", "opacity": 0.2, "color": colour, "clip": True},
            "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
        },
        {"mark": {"type": "line", "color": colour, "strokeWidth": 2}, "encoding": {"x": x, "y": y}},
        {
            "mark": {"type": "point", "color": colour, "size": 30, "filled": True, "opacity": 1},
            "transform": [{"filter": "datum.feedback == 'in'"}],
            "encoding": {"x": x, "y": y, "tooltip": tooltip},
        },
        {
            "mark": {"type": "point", "color": colour, "size": 60, "shape": "diamond", "filled": False, "opacity": 1},
            "transform": [{"filter": "datum.feedback != 'in'"}],
            "encoding": {"x": x, "y": y, "tooltip": tooltip},
        },
    ]
    return {"height": height, "layer": layers, "padding": PADDING, "config": config(theme)}


def said(panel: Panel) -> str:
    """The chart in words, for those who cannot see it."""
    known = [point for point in panel.points if point.value is not None]
    if not known:
        return f"{panel.title}: no data"
    first, last = known[0], known[-1]
    return (
        f"{panel.title}, {panel.unit}: {first.value:.3g} in cycle {first.cycle}, {last.value:.3g} in cycle {last.cycle}"
    )


def _domain(points: Sequence[Statistic], base: float | None) -> list[float]:
    """Lowest and highest of what is drawn, with some room; of width even where all values are the same."""
    known = [value for point in points for value in (point.value, point.low, point.high) if value is not None]
    values = known if base is None else [*known, base]
    if not values:
        return [0.0, 1.0]
    low, high = min(values), max(values)
    room = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    return [low - room, high + room]
