"""Links between pages; each carries the ids that its target needs, so that it can be sent to somebody."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlencode

import streamlit as st

Page = Literal["behaviour", "trajectory"]


def link(label: str, page: Page, icon: str | None = None, **context: str | int) -> None:
    """A link to a page. `label` is read as Markdown: our own words."""
    parameters = {name: str(value) for name, value in context.items()}
    st.page_link(f"views/{page}.py", label=label, icon=icon, query_params=parameters)


def address(page: Page, **context: str | int) -> str:
    """The same as a relative URL, for cells of tables."""
    return f"{page}?{urlencode(context)}"
