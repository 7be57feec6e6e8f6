"""Entry script of the console: navigation, and the strip that stands above every page.

Pages lie in ``views/`` and not in ``pages/``: Streamlit takes a folder of that name for its own old kind of
navigation, and runs its files before this script is asked.
"""

from __future__ import annotations

import streamlit as st

from palomar.app.console import frame

st.set_page_config(page_title="Palomar", page_icon="🔭", layout="wide")
page = st.navigation(
    {
        "Now": [st.Page("views/overview.py", title="Overview", default=True)],
        "Why": [
            st.Page("views/behaviour.py", title="Behaviour", url_path="behaviour"),
            st.Page("views/trajectory.py", title="Trajectory", url_path="trajectory"),
        ],
    }
)
st.sidebar.caption(
    "Local single-user mode: no sign-in. Whoever reaches this port reads everything in the home. All times are UTC."
)
frame.strip()
page.run()
