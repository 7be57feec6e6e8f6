"""What every page has: the observatory, the run, the strip at the top, and the words for empty and failed states."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import streamlit as st

from palomar.app.console.charts import Theme
from palomar.app.console.plain import plain
from palomar.app.service import CycleView, Observatory
from palomar.data.errors import PalomarError
from palomar.data.store.records import Run

REFRESH_S = 3
"""How often a page looks for news while a run is going on."""

SYMBOLS = {"promote": "● PROMOTED", "hold": "◐ HELD", "block": "■ BLOCKED", "pending": "○ PENDING"}
"""State in a word and a shape, never by colour alone."""


@st.cache_resource(max_entries=4)
def _observatory(home: str, store_url: str | None) -> Observatory:
    return Observatory(Path(home), store_url)


def observatory() -> Observatory:
    """The home that the console was started on."""
    return _observatory(os.environ.get("PALOMAR_HOME", ".palomar"), os.environ.get("PALOMAR_STORE"))


def theme() -> Theme:
    """Which theme the reader has."""
    return "dark" if st.context.theme.type == "dark" else "light"


@contextmanager
def panel(title: str) -> Iterator[None]:
    """A part of a page that may fail without taking the others with it."""
    try:
        yield
    except PalomarError as exc:
        st.error(f"{plain(title)}: {plain(str(exc), 500)}", icon="⚠️")
        st.caption("The other parts of this page are not affected. Reload to try again.")


def current_run() -> Run | None:
    """The run that pages show; says what to do where there is none."""
    run = observatory().run()
    if run is None:
        st.info(
            "No run yet. `palomar demo` trains a small policy here in a few minutes; `palomar init` and `palomar run` "
            "start your own; `palomar ingest PATH` reads logs you have.",
            icon="🔭",
        )
    return run


def strip(run: Run, views: list[CycleView]) -> None:
    """Where the run stands, in one line."""
    planned = run.config.get("cycles")
    complete = sum(view.record.status == "complete" for view in views)
    parts = [
        f"Run **{plain(run.name)}**",
        f"{complete} of {planned} cycles done" if planned else f"{complete} cycles done",
    ]
    last = views[-1] if views else None
    if last is not None and last.record.status == "stopped":
        parts.append(f"■ STOPPED in cycle {last.record.cycle}: {plain(last.record.problem or '', 300)}")
    elif run.status == "complete":
        parts.append("● COMPLETE")
    elif last is not None and last.stage is not None:
        parts.append(f"◌ cycle {last.record.cycle} is at **{last.stage}**")
    newest = max((stage.finished_at for view in views for stage in view.record.stages), default=run.created_at)
    parts.append(f"last news {newest:%Y-%m-%d %H:%M:%S} UTC")
    st.markdown(" · ".join(parts))
