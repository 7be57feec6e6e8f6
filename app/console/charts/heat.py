"""Heat maps of signed numbers: every cell's number printed, what is not sure faded, what is shown there outlined."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from palomar.app.console.charts.base import BLUE, INK, ORANGE, PADDING, Theme, config

MIDDLE = {"light": "#F4F4F4", "dark": "#2B2D34"}
"""Ground of a change of 0, near the page's: white would shine in the dark."""
FADED = 0.55
"""Opacity of a number that is not sure."""
STRONG = 0.55
"""Share of the scale from which on numbers are written in white."""
STEP = 21
"""Pixels a row."""
HEADS, LEGEND = 108, 62
"""Pixels of slanted column heads, and of the legend below."""


@dataclass(frozen=True)
class Mark:
    """One cell."""

    row: str
    column: str
    value: float | None
    """Sets the colour; None leaves the ground."""
    text: str
    """What is printed: the number, or why there is none."""
    sure: bool
    outlined: bool
    told: str
    """All of it in words, for the tooltip."""


SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in ("row", "column", "text", "told")),
        pa.field("value", pa.float64()),
        pa.field("sure", pa.bool_()),
        pa.field("outlined", pa.bool_()),
        pa.field("strong", pa.bool_()),
    ]
)


def drawn(marks: Sequence[Mark], reach: float) -> pa.Table:
    """Cells as chart rows; on a strong colour numbers are written in white."""
    rows = [{**vars(mark), "strong": mark.value is not None and abs(mark.value) > STRONG * reach} for mark in marks]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def reach_of(marks: Sequence[Mark]) -> float:
    """End of the colour scale: the largest number of a sure cell, else of any."""
    sure = [abs(mark.value) for mark in marks if mark.value is not None and mark.sure]
    known = sure or [abs(mark.value) for mark in marks if mark.value is not None]
    return max(known, default=0.0) or 1.0


def heat_map(
    rows: Sequence[str], columns: Sequence[str], reach: float, theme: Theme, *, legend: str, slanted: bool
) -> dict[str, Any]:
    """The specification; its data are `drawn`. Rows and columns in the order given; blue is down, orange is up."""
    scale = {
        "domain": [-reach, 0, reach],
        "range": [BLUE, MIDDLE[theme], ORANGE],
        "clamp": True,
        "interpolate": "rgb",  # by hue, the way from grey to orange would lead through purple
    }
    x = {
        "field": "column",
        "type": "nominal",
        "sort": list(columns),
        "scale": {"domain": list(columns)},
        "title": None,
        "axis": {
            "orient": "top",
            "labelAngle": -35 if slanted else 0,
            "labelLimit": 190,
            "labelOverlap": False,
            "labelAlign": "left" if slanted else "center",
            "ticks": False,
            "domain": False,
        },
    }
    y = {
        "field": "row",
        "type": "nominal",
        "sort": list(rows),
        "scale": {"domain": list(rows)},
        "title": None,
        "axis": {"labelLimit": 270, "labelOverlap": False, "labelFlush": False, "ticks": False, "domain": False},
    }
    tooltip = [{"field": "told", "type": "nominal", "title": " "}]
    return {
        # The height that is given holds the column heads and the legend too.
        "height": STEP * max(1, len(rows)) + (HEADS if slanted else 24) + LEGEND,
        "padding": PADDING,
        "config": config(theme),
        "encoding": {"x": x, "y": y},
        "layer": [
            {
                "mark": {"type": "rect", "stroke": MIDDLE[theme], "strokeWidth": 1},
                "encoding": {
                    "color": {
                        "field": "value",
                        "type": "quantitative",
                        "scale": scale,
                        "legend": {"title": legend, "orient": "bottom", "gradientLength": 220, "format": "+.2~g",
                                   "labelColor": INK[theme], "titleColor": INK[theme], "direction": "horizontal"},
                    },
                    "tooltip": tooltip,
                },
            },
            {
                "transform": [{"filter": "datum.outlined"}],
                "mark": {"type": "rect", "filled": False, "fillOpacity": 0, "stroke": INK[theme], "strokeWidth": 1.6},
                "encoding": {},
            },
            {
                "mark": {"type": "text", "fontSize": 10.5},
                "encoding": {
                    "text": {"field": "text", "type": "nominal"},
                    # By condition: a layer without a scale of colour cannot stand beside one that has it.
                    "color": {"condition": {"test": "datum.strong", "value": "#FFFFFF"}, "value": INK[theme]},
                    "opacity": {"condition": {"test": "datum.sure", "value": 1}, "value": FADED},
                    "tooltip": tooltip,
                },
            },
        ],
    }  # fmt: skip


def signed(value: float | None, reach: float = 1.0, unknown: str = "") -> str:
    """A number for a narrow cell, with its sign: two digits of the scale's end, so that 0.004 beside 0.4 is ``0``."""
    if value is None:
        return unknown
    digits = min(4, max(0, 1 - math.floor(math.log10(reach)))) if reach > 0 else 2
    text = f"{value:+.{digits}f}".replace("+0.", "+.").replace("-0.", "-.")
    return "0" if not text.strip("+-0.") else text
