"""Lines with ribbons that are labelled where they end: incentive curves by predicted failure, and what lasts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from palomar.app.console.charts.base import BLUE, INK, LIGHTER, ORANGE, PADDING, RULE, Theme, config

COLOURS = (BLUE, ORANGE, "#009E73", "#CC79A7", "#7F7F7F")
"""Of lines, in their order; told apart by shape as well."""
LIGHT = {**LIGHTER, "#009E73": "#2CC79A", "#CC79A7": "#E5A3C6", "#7F7F7F": "#B5B5B5"}
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross")
DASHED = [5, 3]
APART = 0.075
"""Least distance of two labels, as a share of the height."""


@dataclass(frozen=True)
class Point:
    """One point of a line."""

    line: str
    x: str | float
    y: float
    low: float | None
    high: float | None
    told: str
    """In words, for the tooltip."""
    compared: bool = False
    """Of what it is compared with: drawn dashed."""


SCHEMA = pa.schema(
    [
        pa.field("line", pa.string()),
        pa.field("x", pa.string()),
        *(pa.field(name, pa.float64()) for name in ("at", "y", "low", "high")),
        pa.field("told", pa.string()),
        pa.field("compared", pa.bool_()),
        pa.field("one", pa.string()),  # line and side, so that solid and dashed are two lines
    ]
)


def drawn(points: Sequence[Point]) -> pa.Table:
    """Points as chart rows; without an interval the ribbon has a gap."""
    return pa.Table.from_pylist(
        [
            {
                **vars(point),
                "x": str(point.x),
                "at": point.x if isinstance(point.x, float) else None,
                "one": f"{point.line}{' (compared)' if point.compared else ''}",
            }
            for point in points
        ],
        schema=SCHEMA,
    )


def incentive_curves(
    points: Sequence[Point], bands: Sequence[str], lines: Sequence[str], domain: tuple[float, float], theme: Theme
) -> dict[str, Any]:
    """What behaviours are paid over the honest thing, by band. Its data are `drawn(points)`.

    ``lines``: all that may be drawn, so that a behaviour has one colour and shape whatever else is shown.
    """
    x = {
        "field": "x",
        "type": "ordinal",
        "sort": list(bands),
        "scale": {"domain": list(bands), "type": "point", "padding": 0.35},
        "title": "predicted failure",
        "axis": {"labelAngle": 0, "grid": False},
    }
    zero = {
        "data": {"values": [{"zero": 0}]},
        "mark": {"type": "rule", "color": RULE[theme], "strokeWidth": 1},
        "encoding": {"y": {"field": "zero", "type": "quantitative"}},
    }
    return _lines(points, lines, x, domain, theme, height=280, interpolate="linear", before=[zero], label_x="x")


def lasting_curves(
    points: Sequence[Point], lines: Sequence[str], theme: Theme, *, longest: float, marks: Sequence[tuple[str, float]]
) -> dict[str, Any]:
    """Shares of edits that are still there, as steps over time (log scale). ``marks``: horizons by name."""
    ticks = [second for second in (60, 300, 1_800, 5_400, 21_600, 86_400) if second <= longest * 1.001]
    x = {
        "field": "at",
        "type": "quantitative",
        "scale": {"type": "log", "domain": [60, max(longest, 61.0)], "nice": False, "clamp": True},
        "title": "time since the edit",
        "axis": {
            "values": ticks,
            "labelExpr": "datum.value < 3600 ? datum.value / 60 + ' min' : datum.value / 3600 + ' h'",
            "grid": False,
        },
    }
    horizons = {
        "data": {"values": [{"mark": second, "name": name} for name, second in marks if second <= longest]},
        "mark": {"type": "rule", "color": RULE[theme], "strokeDash": [1, 3]},
        "encoding": {"x": {"field": "mark", "type": "quantitative"}},
    }
    values = [edge for point in points for edge in (point.y, point.low) if edge is not None]
    lowest = max(0.0, min(values, default=0.0) - 0.05)
    return _lines(points, lines, x, (lowest, 1.0), theme, height=260, interpolate="step-after", before=[horizons],
                  label_x="at", percent=True)  # fmt: skip


def _lines(
    points: Sequence[Point],
    lines: Sequence[str],
    x: dict[str, Any],
    domain: tuple[float, float],
    theme: Theme,
    *,
    height: int,
    interpolate: str,
    before: list[dict[str, Any]],
    label_x: str,
    percent: bool = False,
) -> dict[str, Any]:
    palette = [COLOURS[index % len(COLOURS)] for index in range(len(lines))]
    if theme == "dark":
        palette = [LIGHT[colour] for colour in palette]
    colour = {"field": "line", "type": "nominal", "scale": {"domain": list(lines), "range": palette}, "legend": None}
    shape = {
        "field": "line",
        "type": "nominal",
        "scale": {"domain": list(lines), "range": [SHAPES[index % len(SHAPES)] for index in range(len(lines))]},
        "legend": None,
    }
    y = {
        "field": "y",
        "type": "quantitative",
        "title": None,
        "scale": {"domain": list(domain), "nice": False, "zero": False, "clamp": True},
        "axis": {"tickCount": 5, "format": ".0%" if percent else ".2~g"},
    }
    dashed = {"condition": {"test": "datum.compared", "value": DASHED}, "value": [1, 0]}
    tooltip = [{"field": "told", "type": "nominal", "title": " "}]
    detail = {"field": "one", "type": "nominal"}
    layers: list[dict[str, Any]] = [
        *before,
        {
            "mark": {"type": "area", "interpolate": interpolate, "clip": True},
            "encoding": {
                "x": x,
                "y": {**y, "field": "low"},
                "y2": {"field": "high"},
                "color": colour,
                "detail": detail,
                "opacity": {"condition": {"test": "datum.compared", "value": 0.08}, "value": 0.18},
            },
        },
        {
            "mark": {"type": "line", "interpolate": interpolate, "strokeWidth": 2, "clip": True},
            "encoding": {"x": x, "y": y, "color": colour, "detail": detail, "strokeDash": dashed},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 55 if not percent else 12, "opacity": 1},
            "encoding": {
                "x": x, "y": y, "color": colour, "shape": shape, "tooltip": tooltip,
                "opacity": {"condition": {"test": "datum.compared", "value": 0.55}, "value": 1},
            },
        },
        {
            "data": {"values": [{**vars(label), "at": label.x, "x": str(label.x)} for label in labels(points, domain)]},
            "mark": {"type": "text", "align": "left", "dx": 9, "fontSize": 11, "color": INK[theme]},
            "encoding": {
                "x": {**x, "field": label_x},
                "y": {**y, "field": "y"},
                "text": {"field": "line", "type": "nominal"},
            },
        },
    ]  # fmt: skip
    return {"height": height, "layer": layers, "padding": {**PADDING, "right": 130}, "config": config(theme)}


@dataclass(frozen=True)
class Label:
    """Words at the end of a line."""

    line: str
    x: str | float
    y: float
    """Moved away from the others; the line ends near it."""


def labels(points: Sequence[Point], domain: tuple[float, float]) -> list[Label]:
    """One for each line at its last point, none on top of another; a line that is drawn twice is named once."""
    last = {point.line: point for point in points if point.compared}
    last |= {point.line: point for point in points if not point.compared}
    placed = sorted((Label(point.line, point.x, point.y) for point in last.values()), key=lambda label: label.y)
    least = APART * (domain[1] - domain[0])
    for index in range(1, len(placed)):
        low = placed[index - 1].y + least
        placed[index] = replace(placed[index], y=max(placed[index].y, low))
    over = placed[-1].y - domain[1] if placed else 0.0
    if over > 0:  # pushed out at the top: the whole pile moves down, as far as it has to
        for index in range(len(placed) - 1, -1, -1):
            high = domain[1] if index == len(placed) - 1 else placed[index + 1].y - least
            placed[index] = replace(placed[index], y=min(placed[index].y, high))
    return placed
