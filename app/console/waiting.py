"""What a page says while something that it shows is being computed, and how it looks again."""

from __future__ import annotations

import time

import streamlit as st

from palomar.app.kept import Pending

WAIT_S = 0.3
"""How long a page waits for what is not there yet; then it says so, and looks again."""
AGAIN_S = 2


def waiting(pending: Pending, what: str) -> None:
    """In the place of what is not there yet. `what` is our own words."""
    st.info(
        f"○ **PENDING.** {what} are being computed, for {pending.elapsed_s:.0f} s now. They are kept, so this happens "
        "once. This page looks again every few seconds.",
        icon=":material/hourglass_top:",
    )
    _again(time.monotonic())


@st.fragment(run_every=AGAIN_S)
def _again(drawn_at: float) -> None:
    """Runs the page again after a moment; at first it is only drawn."""
    if time.monotonic() - drawn_at > AGAIN_S / 2:
        st.rerun()
