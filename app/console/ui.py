"""Entry script of the console: navigation, and the strip that stands above every page.

Pages lie in ``views/`` and not in ``pages/``: Streamlit takes a folder of that name for its own old kind of
navigation, and runs its files before this script is asked.
"""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from palomar.app.console import acting, frame
from palomar.app.console.links import SECTIONS

SIDEBAR_PX = 215
STYLE = Path(__file__).with_name("style.css")

st.set_page_config(page_title="Palomar", page_icon="🔭", layout="wide", initial_sidebar_state=SIDEBAR_PX)
st.html(STYLE)  # a style sheet of our own, the only thing that may be given to this call
if not acting.admitted():
    st.stop()
page = st.navigation(
    {
        section: [
            st.Page(f"views/{name}.py", title=title, url_path=name, default=name == "overview")
            for name, title in pages.items()
        ]
        for section, pages in SECTIONS.items()
    },
    expanded=True,  # else the sidebar hides the last pages behind a button
)
frame.strip()
page.run()
