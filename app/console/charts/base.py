"""What all charts share: colours, ink and configuration.

Colours are safe for the common kinds of colour blindness; state is always said by shape or word as well. Text marks get
their ink from the theme, since Vega leaves them black on dark.
"""

from __future__ import annotations

from typing import Any, Literal

Theme = Literal["light", "dark"]
BLUE, ORANGE = "#0072B2", "#D55E00"
LIGHTER = {BLUE: "#56B4E9", ORANGE: "#E69F00"}
"""The same hue for a dark ground."""
INK = {"light": "#31333F", "dark": "#FAFAFA"}
RULE = {"light": "#6E7079", "dark": "#A5A8B2"}

PADDING = {"left": 0, "right": 10, "top": 6, "bottom": 0}


def config(theme: Theme) -> dict[str, Any]:
    """The `config` of every specification: grounds, axes and text in the theme's ink."""
    return {
        "background": "transparent",
        "view": {"stroke": None},
        "axis": {"labelColor": INK[theme], "titleColor": INK[theme], "labelFontSize": 11, "gridOpacity": 0.25},
        "text": {"color": INK[theme]},
    }
