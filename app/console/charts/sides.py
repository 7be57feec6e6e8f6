"""Which way a reward pushes: one line per statistic with the present reward, the changed one and users' outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from palomar.app.console.charts.base import BLUE, LIGHTER, ORANGE, PADDING, RULE, Theme, config

SIDES = ("now", "changed", "users' outcome")
SHAPES = ("circle", "triangle-up", "diamond")
SURE = 2.0
"""Standard errors beyond which a side is drawn as sure (a 95 % interval beside 0)."""
LINEAR = 3.0
"""Standard errors up to which the axis is about linear; beyond it is logarithmic: some lie twenty times further."""
TICKS = (-100, -30, -10, -3, 0, 3, 10, 30, 100)
STEP = 30
MOST = 40
"""Statistics on one chart: 160 marks."""
_GREEN = {"light": "#009E73", "dark": "#5FD3B3"}

DRAWN = pa.schema(
    [("statistic", pa.string()), ("side", pa.string()), ("z", pa.float64()),
     ("value", pa.float64()), ("low", pa.float64()), ("high", pa.float64()), ("n", pa.int64())]
)  # fmt: skip


def drawn(rows: Sequence[Mapping[str, Any]], titles: Mapping[str, str]) -> pa.Table:
    """Pressure rows of one slice as chart rows; one without a value has none here either."""
    sides = dict(zip(("old", "new", "outcome"), SIDES, strict=True))
    found = [each for each in rows if each["z"] is not None][: 3 * MOST]
    return pa.Table.from_pylist(
        [
            {
                "statistic": titles[each["statistic"]],
                "side": sides[each["kind"]],
                "z": each["z"],
                **{name: each[name] for name in ("value", "low", "high", "n")},
            }
            for each in found
        ],
        schema=DRAWN,
    )


def push_sides(table: pa.Table, order: Sequence[str], theme: Theme) -> dict[str, Any]:
    """The Vega-Lite specification; its data are `drawn`, of which the reach of the axis is taken."""
    reach = 1.15 * max([abs(each) for each in table["z"].to_pylist()] + [2 * SURE])
    colours = [BLUE, ORANGE] if theme == "light" else [LIGHTER[BLUE], LIGHTER[ORANGE]]
    y = {
        "field": "statistic",
        "type": "nominal",
        "sort": list(order),
        "title": None,
        "axis": {"labelLimit": 260, "ticks": False, "domain": False, "grid": True},
    }
    x = {
        "field": "z",
        "type": "quantitative",
        "title": "← pushes less of it · in standard errors · pushes more of it →",
        "scale": {"type": "symlog", "constant": LINEAR, "domain": [-reach, reach], "nice": False},
        "axis": {"values": [each for each in TICKS if abs(each) <= reach]},
    }
    tip = [
        {"field": "statistic", "title": "statistic"},
        {"field": "side", "title": "by"},
        {"field": "value", "title": "pressure", "format": ".3g"},
        {"field": "low", "title": "95 % from", "format": ".3g"},
        {"field": "high", "title": "to", "format": ".3g"},
        {"field": "z", "title": "standard errors", "format": ".1f"},
        {"field": "n", "title": "n", "format": ","},
    ]
    edges = [{"edge": 0.0, "dash": "zero"}, {"edge": -SURE, "dash": "sure"}, {"edge": SURE, "dash": "sure"}]
    return {
        "config": config(theme),
        "padding": PADDING,
        "width": "container",
        "height": {"step": STEP},
        "layer": [
            {
                "data": {"values": edges},
                "mark": {"type": "rule", "color": RULE[theme]},
                "encoding": {
                    "x": {"field": "edge", "type": "quantitative"},
                    "strokeDash": {
                        "field": "dash",
                        "scale": {"domain": ["zero", "sure"], "range": [[1, 0], [3, 3]]},
                        "legend": None,
                    },
                },
            },
            {
                "mark": {"type": "point", "filled": True, "size": 95, "opacity": 0.95},
                "encoding": {
                    "y": y,
                    "x": x,
                    "color": {
                        "field": "side",
                        "type": "nominal",
                        "scale": {"domain": list(SIDES), "range": [*colours, _GREEN[theme]]},
                        "legend": {"title": None, "orient": "top"},
                    },
                    "shape": {
                        "field": "side",
                        "type": "nominal",
                        "scale": {"domain": list(SIDES), "range": list(SHAPES)},
                        "legend": {"title": None, "orient": "top"},
                    },
                    "tooltip": tip,
                },
            },
        ],
    }
