"""The charts of one alarm: its statistic over the cycles with its band, and what pushes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from palomar.app.console.charts.base import BLUE, INK, LIGHTER, ORANGE, PADDING, RULE, Theme, config
from palomar.data.findings import Cause
from palomar.data.store.records import Statistic

IMMATURE_BELOW = 0.999
GREY = {"light": "#9A9DA5", "dark": "#7C7F88"}
SHAPES = {"in its band": "circle", "out of its band": "triangle-up", "feedback partly in": "diamond"}
LABELS = 4
"""Names of versions that have room beside each other."""
LABEL = 34
"""Characters of a label beside a bar."""
POINTS = pa.schema(
    [
        ("cycle", pa.int32()),
        ("value", pa.float64()),
        ("low", pa.float64()),
        ("high", pa.float64()),
        ("n", pa.int64()),
        ("state", pa.string()),
    ]
)
PUSHES = pa.schema([("what", pa.string()), ("share", pa.float64()), ("kind", pa.string())])


@dataclass(frozen=True)
class Control:
    """What the control chart shows besides its points."""

    band: tuple[float, float] | None
    """Limits; None where the detector draws none."""
    before: float | None
    """Level that it is compared with."""
    since: int | None
    """First cycle out."""
    versions: Sequence[tuple[int, str]]
    """Cycle and name of each reward that came into force."""
    share: bool
    """Whether the axis reads best as per cent."""


def points(series: Sequence[Statistic], band: tuple[float, float] | None) -> pa.Table:
    """Points with a value as chart rows, with the state that their shape says."""
    known = [point for point in series if point.value is not None]
    columns = [[getattr(point, name) for point in known] for name in POINTS.names[:-1]]
    return pa.table([*columns, [_state(point, band) for point in known]], schema=POINTS)


def _state(point: Statistic, band: tuple[float, float] | None) -> str:
    if point.maturity is not None and point.maturity < IMMATURE_BELOW:
        return "feedback partly in"
    assert point.value is not None
    return "in its band" if band is None or band[0] <= point.value <= band[1] else "out of its band"


def alarm_chart(
    series: Sequence[Statistic], control: Control, theme: Theme, *, first: int, last: int, height: int
) -> dict[str, Any]:
    """One statistic over cycles: the grey band with its limits written, intervals, points by state, version lines.

    The specification only; its data are `points`.
    """
    blue, orange = (LIGHTER[each] if theme == "dark" else each for each in (BLUE, ORANGE))
    form = ".1%" if control.share else ".3~g"
    x: dict[str, Any] = {
        "field": "cycle",
        "type": "quantitative",
        "title": "cycle",
        "scale": {"domain": [first, max(first + 1, last)], "nice": False, "padding": 8},
        "axis": {"tickMinStep": 1, "format": "d", "grid": False, "tickCount": 8},
    }
    low, high = _domain(series, control)
    y = {
        "field": "value",
        "type": "quantitative",
        "title": None,
        "scale": {"domain": [low, high], "nice": False, "zero": False},
        "axis": {"tickCount": 5, "format": ".0%" if control.share else ".3~g"},
    }
    tooltip = [
        {"field": "cycle", "type": "quantitative", "title": "cycle"},
        {"field": "value", "type": "quantitative", "title": "value", "format": form},
        {"field": "low", "type": "quantitative", "title": "95 % from", "format": form},
        {"field": "high", "type": "quantitative", "title": "to", "format": form},
        {"field": "n", "type": "quantitative", "title": "n", "format": ","},
        {"field": "state", "type": "nominal", "title": "state"},
    ]
    state = {
        "field": "state",
        "type": "nominal",
        "scale": {"domain": list(SHAPES), "range": list(SHAPES.values())},
        "legend": None,
    }
    colour = {**state, "scale": {"domain": list(SHAPES), "range": [blue, orange, blue]}}
    layers = [
        *_band(control, theme),
        *_versions(control, theme, x),
        {
            "mark": {"type": "rule", "color": RULE[theme], "opacity": 0.7},
            "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
        },
        {"mark": {"type": "line", "color": GREY[theme], "strokeWidth": 1}, "encoding": {"x": x, "y": y}},
        {
            "mark": {"type": "point", "filled": True, "size": 55, "opacity": 1},
            "encoding": {"x": x, "y": y, "shape": state, "color": colour, "tooltip": tooltip},
        },
    ]
    return {
        "height": height,
        "layer": layers,
        "padding": {**PADDING, "right": 52 if control.band else 10, "top": 14},
        "config": config(theme),
    }


def _band(control: Control, theme: Theme) -> list[dict[str, Any]]:
    if control.band is None:
        return []
    low, high = control.band
    said = ".1%" if control.share else ".3~g"
    limits = [{"limit": low}, {"limit": high}]
    limit = {"field": "limit", "type": "quantitative"}
    return [
        {
            "data": {"values": [{"low": low, "high": high}]},
            "mark": {"type": "rect", "color": GREY[theme], "opacity": 0.22},
            "encoding": {"y": {"field": "low", "type": "quantitative"}, "y2": {"field": "high"}},
        },
        {
            "data": {"values": limits},
            "mark": {"type": "text", "align": "left", "dx": 4, "fontSize": 10, "color": INK[theme]},
            "encoding": {
                "y": limit,
                "x": {"value": "width"},
                "text": {"field": "limit", "type": "quantitative", "format": said},
            },
        },
    ]


def _versions(control: Control, theme: Theme, x: dict[str, Any]) -> list[dict[str, Any]]:
    """Dotted lines where another reward came into force, and a dashed one at the first cycle out."""
    first, last = x["scale"]["domain"]
    inside = [(at, name) for at, name in control.versions if at > first]
    names = apart(inside, first, last)
    lines = [{"at": at, "name": name} for (at, _), name in zip(inside, names, strict=True)]
    marked = [{"at": control.since, "name": "first out"}] if control.since is not None and control.since > first else []
    made: list[dict[str, Any]] = []
    # Names of versions stand at the top, that of the first cycle out at the bottom.
    kinds = ((lines, [1, 3], RULE[theme], 0), (marked, [5, 4], LIGHTER[ORANGE], "height"))
    for rows, dash, ink, place in kinds:
        if not rows:
            continue
        at = {**x, "field": "at"}
        made.append(
            {
                "data": {"values": rows},
                "mark": {"type": "rule", "strokeDash": dash, "color": ink},
                "encoding": {"x": at},
            }
        )
        made.append(
            {
                "data": {"values": rows},
                "mark": {"type": "text", "align": "left", "dx": 3, "dy": -6, "fontSize": 10, "color": INK[theme]},
                "encoding": {"x": at, "y": {"value": place}, "text": {"field": "name", "type": "nominal"}},
            }
        )
    return made


def apart(lines: Sequence[tuple[int, str]], first: int, last: int) -> list[str]:
    """Names of the lines; empty where one would stand on the name of a later one."""
    room, named = (last - first) / LABELS, float("inf")
    names = []
    for at, name in reversed(lines):
        fits = named - at >= room
        names.append(name if fits else "")
        named = at if fits else named
    return names[::-1]


def _domain(series: Sequence[Statistic], control: Control) -> tuple[float, float]:
    values = [value for point in series for value in (point.value, point.low, point.high) if value is not None]
    values += [value for value in (*(control.band or ()), control.before) if value is not None]
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    room = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    return low - room, high + room


def pushes(causes: Sequence[Cause], most: int) -> pa.Table:
    """The strongest causes as bars: term or rule with its slice, and its share of the push."""
    rows = causes[:most]
    columns = [
        [_label(cause) for cause in rows],
        [cause.share for cause in rows],
        ["inclusion rule" if cause.name.startswith("rule:") else "reward term" for cause in rows],
    ]
    return pa.table(columns, schema=PUSHES)


def _label(cause: Cause) -> str:
    name = cause.name.partition(":")[2] or cause.name
    values = [part.partition("=")[2] or part for part in cause.slice.split(",")]
    said = f"{name} · {', '.join(values)}"
    return said if len(said) <= LABEL else f"{said[: LABEL - 1]}…"


def push_chart(table: pa.Table, theme: Theme) -> dict[str, Any]:
    """Horizontal bars, the strongest first; the share is written at the end of each. The data are `pushes`."""
    blue, orange = (LIGHTER[each] if theme == "dark" else each for each in (BLUE, ORANGE))
    y = {
        "field": "what",
        "type": "nominal",
        "sort": table["what"].to_pylist(),
        "title": None,
        "axis": {"labelLimit": 220, "labelOverlap": False, "ticks": False, "domain": False},
    }
    x = {"field": "share", "type": "quantitative", "title": None, "axis": None, "scale": {"domain": [0, 1.15]}}
    colour = {
        "field": "kind",
        "type": "nominal",
        "scale": {"domain": ["reward term", "inclusion rule"], "range": [blue, orange]},
        "legend": None,
    }
    tip = [{"field": "what", "type": "nominal"}, {"field": "kind", "type": "nominal"},
           {"field": "share", "type": "quantitative", "format": ".0%"}]  # fmt: skip
    return {
        "height": {"step": 20},
        "layer": [
            {"mark": {"type": "bar", "height": 12}, "encoding": {"x": x, "y": y, "color": colour, "tooltip": tip}},
            {
                "mark": {"type": "text", "align": "left", "dx": 4, "fontSize": 11, "color": INK[theme]},
                "encoding": {"x": x, "y": y, "text": {"field": "share", "type": "quantitative", "format": ".0%"}},
            },
        ],
        "padding": PADDING,
        "config": config(theme),
    }
