"""Trajectory: one interaction, readable as text with its tool calls, edits and reactions; without an id, the list."""

from __future__ import annotations

import streamlit as st

from palomar.app.console import frame
from palomar.app.console.views import listing, reading


def page() -> None:
    """The list of a cycle's interactions, or the one that `id` in the URL names."""
    with frame.panel("Trajectory"):
        wanted = st.query_params.get("id")
        if wanted is None:
            listing.show()
        else:
            reading.show(wanted)


if __name__ == "__main__":
    st.title("Trajectory")
    page()
