"""Reward by step of one interaction, as bars from zero: blue above it, orange below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from palomar.app.console.charts.base import BLUE, LIGHTER, ORANGE, PADDING, RULE, Theme, config

MOST_STEPS = 500
"""Bars; of a longer interaction the first are drawn."""


def rewards(steps: Sequence[tuple[int, float]]) -> pa.Table:
    """Chart rows from pairs of step and its reward; a step without one has no row: a gap, never a zero."""
    drawn = steps[:MOST_STEPS]
    return pa.table(
        {
            "step": pa.array([step for step, _ in drawn], pa.int32()),
            "reward": pa.array([value for _, value in drawn], pa.float64()),
            "side": ["below 0" if value < 0 else "0 or above" for _, value in drawn],
        }
    )


def reward_chart(theme: Theme, *, last: int, marked: int | None = None, height: int = 110) -> dict[str, Any]:
    """The specification; its data are `rewards(...)`. ``last``: number of the last step; ``marked``: one of them."""
    blue, orange = (LIGHTER[colour] if theme == "dark" else colour for colour in (BLUE, ORANGE))
    x = {
        "field": "step",
        "type": "quantitative",
        "title": "step",
        "scale": {"domain": [-0.5, max(last, 1) + 0.5], "nice": False},
        "axis": {"tickMinStep": 1, "format": "d", "grid": False},
    }
    bars = {
        "mark": {"type": "bar", "size": max(1, min(18, 600 // max(last, 1)))},
        "encoding": {
            "x": x,
            "y": {"field": "reward", "type": "quantitative", "title": "reward", "axis": {"tickCount": 3}},
            "color": {
                "field": "side",
                "type": "nominal",
                "legend": None,
                "scale": {"domain": ["0 or above", "below 0"], "range": [blue, orange]},
            },
            "tooltip": [
                {"field": "step", "type": "quantitative", "title": "step"},
                {"field": "reward", "type": "quantitative", "title": "reward", "format": "+.4~g"},
            ],
        },
    }
    layers = [bars]
    if marked is not None:
        layers.append(
            {
                "data": {"values": [{"step": marked}]},
                "mark": {"type": "rule", "color": RULE[theme], "strokeDash": [1, 3]},
                "encoding": {"x": {"field": "step", "type": "quantitative"}},
            }
        )
    return {"height": height, "layer": layers, "padding": PADDING, "config": config(theme)}
