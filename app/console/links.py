"""Pages by section, and links between them; each link carries the ids that its target needs, so that it can be sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlencode

import streamlit as st

Page = Literal[
    "overview",
    "alarm",
    "alarms",
    "behaviour",
    "pressure",
    "why",
    "examples",
    "trajectory",
    "cohorts",
    "report",
    "lab",
    "gate",
    "incidents",
    "experiments",
    "health",
    "audit",
    "settings",
]
SECTIONS: Mapping[str, Mapping[Page, str]] = {
    "Now": {"overview": "Overview", "alarm": "Alarm", "alarms": "Alarms and detectors"},
    "Why": {
        "behaviour": "Behaviour",
        "pressure": "Pressure",
        "why": "Slices and terms",
        "examples": "Examples",
        "trajectory": "Trajectory",
        "cohorts": "Cohorts",
        "report": "Evidently's report",
    },
    "Act": {"lab": "Reward lab", "gate": "Gate", "incidents": "Incidents", "experiments": "Experiments"},
    "Trust": {"health": "Data health", "audit": "Audit", "settings": "Settings"},
}
"""Titles of the pages by section, in the order of the sidebar; each lies in ``views/<page>.py``."""
CARRIED = ("run",)
"""What a link takes along from the address it stands on, unless it names it itself."""


def link(label: str, page: Page, icon: str | None = None, /, **context: str | int) -> None:
    """A link to a page. `label` is read as Markdown: our own words."""
    st.page_link(f"views/{page}.py", label=label, icon=icon, query_params=_parameters(context))


def go(page: Page, /, **context: str | int) -> None:
    """Opens a page at once, in place of this one: after something was done."""
    st.switch_page(f"views/{page}.py", query_params=_parameters(context))


def address(page: Page, /, **context: str | int) -> str:
    """The same as a relative URL, for cells of tables and for "copy link"."""
    asked = urlencode(_parameters(context))
    place = "" if page == "overview" else page
    return f"{place}?{asked}" if asked else place


def _parameters(context: Mapping[str, str | int]) -> dict[str, str]:
    carried = {name: st.query_params[name] for name in CARRIED if name in st.query_params}
    return carried | {name: str(value) for name, value in context.items()}
