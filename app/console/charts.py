"""Charts as Vega-Lite dictionaries: functions of records and theme, without Streamlit and without Altair.

Colours are safe for the common kinds of colour blindness; state is always said by shape or word as well. Text marks get
their ink from the theme, since Vega leaves them black on dark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from palomar.data.store.records import Statistic

Theme = Literal["light", "dark"]
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#8A8A8A"
INK = {"light": "#31333F", "dark": "#FAFAFA"}
IMMATURE_BELOW = 0.999
"""A point of which a smaller share than this is mature is drawn hollow: more will come."""


@dataclass(frozen=True)
class Panel:
    """One small multiple."""

    title: str
    unit: str
    points: Sequence[Statistic]


def rows(points: Sequence[Statistic]) -> list[dict[str, Any]]:
    """Points as chart rows. A point without a value is left out of the line and is a gap, never a zero."""
    return [
        {
            "cycle": point.cycle,
            "value": point.value,
            "low": point.low,
            "high": point.high,
            "n": point.n,
            "state": "partly mature" if point.maturity is not None and point.maturity < IMMATURE_BELOW else "mature",
        }
        for point in points
        if point.value is not None
    ]


def control_series(
    panel: Panel, theme: Theme, *, colour: str = BLUE, last_cycle: int, height: int = 120, base: float | None = None
) -> dict[str, Any]:
    """One statistic over cycles: 95 % band, line, points; hollow diamonds where feedback is still coming in."""
    x = {
        "field": "cycle",
        "type": "quantitative",
        "title": None,
        "scale": {"domain": [0, max(1, last_cycle)], "nice": False},
        "axis": {"tickMinStep": 1, "format": "d", "grid": False},
    }
    y = {"field": "value", "type": "quantitative", "title": None, "scale": {"zero": False}, "axis": {"tickCount": 4}}
    tooltip = [
        {"field": "cycle", "type": "quantitative", "title": "cycle"},
        {"field": "value", "type": "quantitative", "title": panel.title, "format": ".4~g"},
        {"field": "low", "type": "quantitative", "title": "95 % from", "format": ".4~g"},
        {"field": "high", "type": "quantitative", "title": "to", "format": ".4~g"},
        {"field": "n", "type": "quantitative", "title": "n"},
        {"field": "state", "type": "nominal", "title": "feedback"},
    ]
    layers: list[dict[str, Any]] = [
        {
            "mark": {"type": "area", "opacity": 0.18, "color": colour},
            "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
        },
        {"mark": {"type": "line", "color": colour, "strokeWidth": 2}, "encoding": {"x": x, "y": y}},
        {
            "mark": {"type": "point", "color": colour, "size": 36, "filled": True},
            "transform": [{"filter": "datum.state == 'mature'"}],
            "encoding": {"x": x, "y": y, "tooltip": tooltip},
        },
        {
            "mark": {"type": "point", "color": colour, "size": 48, "shape": "diamond", "filled": False},
            "transform": [{"filter": "datum.state != 'mature'"}],
            "encoding": {"x": x, "y": y, "tooltip": tooltip},
        },
    ]
    if base is not None:
        layers.insert(
            0,
            {
                "data": {"values": [{"base": base}]},
                "mark": {"type": "rule", "color": GREY, "strokeDash": [4, 3]},
                "encoding": {"y": {"field": "base", "type": "quantitative"}},
            },
        )
    return {
        "data": {"values": rows(panel.points)},
        "height": height,
        "layer": layers,
        "config": _config(theme),
        "description": f"{panel.title} ({panel.unit}) by cycle",
    }


def _config(theme: Theme) -> dict[str, Any]:
    return {
        "background": "transparent",
        "view": {"stroke": None},
        "axis": {"labelColor": INK[theme], "titleColor": INK[theme], "labelFontSize": 11, "gridOpacity": 0.25},
        "text": {"color": INK[theme]},
    }
