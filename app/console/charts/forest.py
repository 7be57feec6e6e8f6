"""A forest chart: the change of each metric with its interval, and the line of no change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from palomar.app.console.charts.base import BLUE, INK, LIGHTER, ORANGE, PADDING, RULE, Theme, config
from palomar.detectors.experiment import Effect, ExperimentReport

ROW, AXIS = 28, 54
WIDEST = 1.5
"""Relative changes beyond this are cut at the chart's edge and say so: one of +1,000 % would flatten all others."""

DRAWN = pa.schema(
    [
        ("metric", pa.string()),
        ("change", pa.float64()),
        ("low", pa.float64()),
        ("high", pa.float64()),
        ("state", pa.string()),
        ("label", pa.string()),
    ]
)


def relative(effects: Sequence[Effect]) -> list[Effect]:
    """Those that can be drawn together: known, with a relative change."""
    return [
        each
        for each in effects
        if each.status == "known" and None not in (each.relative, each.relative_low, each.relative_high)
    ]


def drawn(found: ExperimentReport, effects: Sequence[Effect]) -> pa.Table:
    """Effects as chart rows, in the order given; what has no relative change has none here."""
    rows = []
    for each in relative(effects):
        assert each.relative is not None
        assert each.relative_low is not None
        assert each.relative_high is not None
        state = "worse" if each in found.worse else "better" if each in found.improved else "not shown"
        cut = each.relative_high > WIDEST or each.relative_low < -WIDEST
        label = f"{each.relative:+.1%}" + (f" {state}" if state != "not shown" else "") + (" (cut)" if cut else "")
        bound = [max(-WIDEST, min(WIDEST, value)) for value in (each.relative, each.relative_low, each.relative_high)]
        rows.append([each.metric.replace("_", " "), *bound, state, label])
    return pa.table([list(column) for column in zip(*rows, strict=True)] if rows else [[]] * 6, schema=DRAWN)


def forest(found: ExperimentReport, effects: Sequence[Effect], theme: Theme) -> dict[str, Any]:
    """Points with intervals that hold at every look; shape and word say what is shown, never colour alone."""
    order = [each.metric.replace("_", " ") for each in relative(effects)]
    blue, orange = (LIGHTER[BLUE], LIGHTER[ORANGE]) if theme == "dark" else (BLUE, ORANGE)
    y = {
        "field": "metric",
        "type": "nominal",
        "sort": order,
        "title": None,
        "axis": {"labelLimit": 240, "labelOverlap": False},
    }
    ends = [
        value for each in relative(effects) for value in (each.relative_low, each.relative_high) if value is not None
    ]
    low, high = max(-WIDEST, min([*ends, -0.05])), min(WIDEST, max([*ends, 0.05]))
    room = 0.3 * (high - low)
    x = {
        "field": "change",
        "type": "quantitative",
        "title": "change against the control",
        "scale": {"domain": [low - 0.05 * (high - low), high + room], "nice": False},
        "axis": {"format": "+.0%", "tickCount": 7},
    }
    colour = {
        "field": "state",
        "type": "nominal",
        "scale": {"domain": ["worse", "better", "not shown"], "range": [orange, blue, RULE[theme]]},
        "legend": None,
    }
    shape = {
        "field": "state",
        "type": "nominal",
        "scale": {"domain": ["worse", "better", "not shown"], "range": ["square", "circle", "diamond"]},
        "legend": None,
    }
    tooltip = [
        {"field": "metric", "type": "nominal"},
        {"field": "change", "type": "quantitative", "format": "+.2%"},
        {"field": "low", "type": "quantitative", "format": "+.2%", "title": "from"},
        {"field": "high", "type": "quantitative", "format": "+.2%", "title": "to"},
        {"field": "state", "type": "nominal", "title": "shown"},
    ]
    return {
        "height": ROW * max(1, len(order)) + AXIS,
        "layer": [
            {
                "data": {"values": [{"none": 0}]},
                "mark": {"type": "rule", "color": INK[theme], "strokeDash": [4, 3]},
                "encoding": {"x": {"field": "none", "type": "quantitative"}},
            },
            {
                "mark": {"type": "rule", "strokeWidth": 2},
                "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "y": y, "color": colour},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
                "encoding": {"x": x, "y": y, "color": colour, "shape": shape, "tooltip": tooltip},
            },
            {
                "mark": {"type": "text", "align": "left", "dx": 8, "color": INK[theme]},
                "encoding": {"x": {**x, "field": "high"}, "y": y, "text": {"field": "label"}},
            },
        ],
        "padding": PADDING,
        "config": config(theme),
    }


def said(effects: Sequence[Effect]) -> str:
    """The chart in words, for those who cannot see it."""
    return "; ".join(
        f"{each.metric.replace('_', ' ')} {each.relative:+.1%} ({each.relative_low:+.1%} to {each.relative_high:+.1%})"
        for each in relative(effects)
    )
