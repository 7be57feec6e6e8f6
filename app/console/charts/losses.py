"""Where samples were lost: a bar for each reason, with a tick at the usual share; and how much feedback is in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from palomar.app.console.charts.base import BLUE, INK, LIGHTER, ORANGE, PADDING, RULE, Theme, config
from palomar.app.health import Loss, Ripeness

MOST_BARS = 15
"""Reasons on the chart, the largest; the table has all."""
MOST_CYCLES = 120
ROW = 30
"""Height of a bar with its gap, in pixels."""

AXIS = 54
"""Height of the axis with its title."""

LOST = pa.schema(
    [
        ("reason", pa.string()),
        ("share", pa.float64()),
        ("usual", pa.float64()),
        ("low", pa.float64()),
        ("high", pa.float64()),
        ("count", pa.int64()),
        ("state", pa.string()),
        ("label", pa.string()),
    ]
)
RIPE = pa.schema([("cycle", pa.int32()), ("share", pa.float64()), ("n", pa.int64()), ("state", pa.string())])


def reason_of(loss: Loss) -> str:
    """What a bar is called: the place, and the reason where there is one."""
    return loss.place if not loss.reason else f"{loss.place}: {loss.reason.replace('_', ' ')}"


def drawn_losses(losses: Sequence[Loss]) -> pa.Table:
    """Losses as chart rows, in the order given."""
    shown = losses[:MOST_BARS]
    states = [
        "unusual" if each.unusual else "usual" if each.usual is not None else "nothing to compare" for each in shown
    ]
    labels = [f"{100 * each.share:.3g} % ({each.count:,})" + (" unusual" if each.unusual else "") for each in shown]
    columns = [[reason_of(each)[:60] for each in shown]]
    columns += [[getattr(each, name) for each in shown] for name in LOST.names[1:-2]]
    return pa.table([*columns, states, labels], schema=LOST)


def loss_bars(losses: Sequence[Loss], theme: Theme) -> dict[str, Any]:
    """Horizontal bars of the share lost; a tick at the usual share, a thin line over all that was seen before.

    What is outside that line is orange and says so in its label.
    """
    order = [reason_of(each)[:60] for each in losses[:MOST_BARS]]
    blue, orange = (LIGHTER[BLUE], LIGHTER[ORANGE]) if theme == "dark" else (BLUE, ORANGE)
    most = max((max(each.share, each.high or 0.0) for each in losses[:MOST_BARS]), default=0.0) or 1.0
    y = {
        "field": "reason",
        "type": "nominal",
        "sort": order,
        "title": None,
        "axis": {"labelLimit": 260, "labelOverlap": False},
    }
    x = {
        "field": "share",
        "type": "quantitative",
        "title": "share of what was received",
        # Room for the label behind the longest bar.
        "scale": {"domain": [0, min(1.35 * most, 1.35)]},
        "axis": {"format": ".0%", "tickCount": 5},
    }
    tooltip = [
        {"field": "reason", "type": "nominal"},
        {"field": "count", "type": "quantitative", "format": ","},
        {"field": "share", "type": "quantitative", "format": ".2%"},
        {"field": "usual", "type": "quantitative", "format": ".2%", "title": "usual (median)"},
        {"field": "low", "type": "quantitative", "format": ".2%", "title": "smallest before"},
        {"field": "high", "type": "quantitative", "format": ".2%", "title": "largest before"},
    ]
    colour = {"condition": {"test": "datum.state == 'unusual'", "value": orange}, "value": blue}
    return {
        "height": ROW * len(order) + AXIS,
        "layer": [
            {
                "mark": {"type": "bar", "height": 14},
                "encoding": {"x": x, "y": y, "color": colour, "tooltip": tooltip},
            },
            {
                "mark": {"type": "rule", "color": RULE[theme], "strokeWidth": 2, "yOffset": 10},
                "transform": [{"filter": "isValid(datum.low)"}],
                "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "y": y},
            },
            {
                "mark": {"type": "tick", "color": INK[theme], "thickness": 3, "size": 22},
                "transform": [{"filter": "isValid(datum.usual)"}],
                "encoding": {"x": {**x, "field": "usual"}, "y": y},
            },
            {
                "mark": {"type": "text", "align": "left", "dx": 8, "color": INK[theme]},
                "transform": [{"calculate": "max(datum.share, isValid(datum.high) ? datum.high : 0)", "as": "end"}],
                "encoding": {"x": {**x, "field": "end"}, "y": y, "text": {"field": "label"}},
            },
        ],
        "padding": PADDING,
        "config": config(theme),
    }


def drawn_ripeness(found: Sequence[Ripeness]) -> pa.Table:
    """Cycles as chart rows; one of which nothing is known has no row, so that it is a gap."""
    shown = [each for each in found[-MOST_CYCLES:] if each.share is not None]
    states = ["in" if each.share is not None and each.share >= 1 else "still coming" for each in shown]
    columns = [[each.cycle for each in shown], [each.share for each in shown], [each.n for each in shown], states]
    return pa.table(columns, schema=RIPE)


def ripeness_points(found: Sequence[Ripeness], theme: Theme) -> dict[str, Any]:
    """Share of the feedback that is in, by cycle; hollow diamonds where more is to come."""
    colour = LIGHTER[BLUE] if theme == "dark" else BLUE
    cycles = [each.cycle for each in found[-MOST_CYCLES:]]
    first, last = min(cycles, default=0), max(cycles, default=1)
    x = {
        "field": "cycle",
        "type": "quantitative",
        "title": "cycle",
        "scale": {"domain": [first, max(first + 1, last)], "nice": False, "padding": 8},
        "axis": {"tickMinStep": 1, "format": "d", "grid": False},
    }
    y = {
        "field": "share",
        "type": "quantitative",
        "title": None,
        "scale": {"domain": [0, 1.05], "nice": False},
        "axis": {"format": ".0%", "tickCount": 3, "values": [0, 0.5, 1]},
    }
    tooltip = [
        {"field": "cycle", "type": "quantitative"},
        {"field": "share", "type": "quantitative", "format": ".1%", "title": "feedback in"},
        {"field": "n", "type": "quantitative", "format": ",", "title": "outcomes known"},
    ]
    shapes: list[dict[str, Any]] = [
        {
            "mark": {"type": "point", "color": colour, "size": 30, "filled": True, "opacity": 1},
            "transform": [{"filter": "datum.state == 'in'"}],
            "encoding": {"x": x, "y": y, "tooltip": tooltip},
        },
        {
            "mark": {"type": "point", "color": colour, "size": 70, "shape": "diamond", "filled": False, "opacity": 1},
            "transform": [{"filter": "datum.state != 'in'"}],
            "encoding": {"x": x, "y": y, "tooltip": tooltip},
        },
    ]
    return {"height": 120, "layer": shapes, "padding": PADDING, "config": config(theme)}


def losses_said(losses: Sequence[Loss]) -> str:
    """The bars in words, for those who cannot see them."""
    return "; ".join(
        f"{reason_of(each)} {100 * each.share:.3g} %"
        + ("" if each.usual is None else f", usually {100 * each.usual:.3g} %")
        for each in losses[:MOST_BARS]
    )
