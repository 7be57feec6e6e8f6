"""Entry script of the console: navigation only."""

from __future__ import annotations

import streamlit as st

from palomar.app.console.pages import behaviour, overview, trajectory

st.set_page_config(page_title="Palomar", page_icon="🔭", layout="wide")
page = st.navigation(
    {
        "Now": [st.Page(overview.page, title="Overview", url_path="overview", default=True)],
        "Why": [
            st.Page(behaviour.page, title="Behaviour", url_path="behaviour"),
            st.Page(trajectory.page, title="Trajectory", url_path="trajectory"),
        ],
    }
)
page.run()
