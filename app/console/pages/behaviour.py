"""Behaviour: every statistic over the cycles, in one slice, as small multiples."""

from __future__ import annotations

from collections import defaultdict

import pandas as pd
import streamlit as st

from palomar.app.console import frame
from palomar.app.console.charts import BLUE, GREY, Panel, control_series
from palomar.app.console.plain import plain
from palomar.app.service import ALL
from palomar.data.store.records import Run, Statistic
from palomar.detectors.departure import Departure, departures
from palomar.detectors.statistics import STATISTICS

COLUMNS = 3


def page() -> None:
    """The whole page. `slice` and `stat` are in the URL."""
    st.title("Behaviour")
    with frame.panel("Behaviour"):
        run = frame.current_run()
        if run is None:
            return
        _body(run)


def _body(run: Run) -> None:
    series = frame.observatory().series(run.run_id)
    if not series:
        st.info("No statistics yet: they come when the first cycle is distilled.", icon="⏳")
        return
    slices = sorted({point.slice for point in series}, key=lambda name: (name != ALL, name))
    wanted = st.query_params.get("slice", ALL)
    if wanted not in slices:
        st.warning(f"There is no slice {plain(wanted)}; showing all interactions.", icon="❓")
        wanted = ALL
    chosen = st.selectbox(
        "Slice",
        slices,
        index=slices.index(wanted),
        format_func=lambda name: plain(name.replace("=", " is ")),
        key="slice-choice",
    )
    st.query_params["slice"] = chosen
    points: defaultdict[str, list[Statistic]] = defaultdict(list)
    for point in series:
        if point.slice == chosen:
            points[point.statistic].append(point)
    moved = {item.statistic: item for item in departures([point for point in series if point.slice == chosen])}
    last = max(point.cycle for point in series)
    one = st.query_params.get("stat")
    if one is not None and one in points:
        _big(one, points[one], moved.get(one), last)
        if st.button("All statistics", key="all-statistics"):
            del st.query_params["stat"]
            st.rerun()
        return
    if one is not None:
        st.warning(f"There is no statistic {plain(one)} in this slice; showing all.", icon="❓")
    st.caption(
        "Bands are 95 % intervals, the dashed line is the level of the first two cycles. Statistics that have left it "
        "come first and are marked ▲ or ▼. Hollow diamonds: part of the feedback is still to come."
    )
    ordered = sorted(points, key=lambda name: (name not in moved, _position(name)))
    for start in range(0, len(ordered), COLUMNS):
        for column, name in zip(st.columns(COLUMNS), ordered[start : start + COLUMNS], strict=False):
            with column, st.container(border=True):
                _small(name, points[name], moved.get(name), last)
    table = pd.DataFrame([vars(point) for name in ordered for point in points[name]])
    st.download_button(
        "CSV (all points of this slice)",
        table.to_csv(index=False).encode(),
        "behaviour.csv",
        "text/csv",
        key="csv",
        on_click="ignore",
    )
    st.caption(f"The same on the command line: `palomar stats --slice '{plain(chosen)}' --json`.")


def _position(name: str) -> int:
    return list(STATISTICS).index(name) if name in STATISTICS else len(STATISTICS)


def _small(name: str, points: list[Statistic], moved: Departure | None, last: int) -> None:
    title, unit = title_of(name)
    latest = points[-1]
    mark = "" if moved is None else (" ▲" if moved.direction == "up" else " ▼")
    st.markdown(f"**{plain(title)}**{mark}")
    if latest.value is None:
        st.caption(f"NO DATA in cycle {latest.cycle}: {plain(latest.status.replace('_', ' '))}")
    else:
        since = f", away since cycle {moved.since_cycle}" if moved is not None else ""
        st.caption(f"{latest.value:.3g} {plain(unit)} in cycle {latest.cycle} (n {latest.n:,}){since}")
    if any(point.value is not None for point in points):
        st.vega_lite_chart(_spec(title, unit, points, moved, last, height=110), key=f"small-{name}", width="stretch")


def _big(name: str, points: list[Statistic], moved: Departure | None, last: int) -> None:
    title, unit = title_of(name)
    st.subheader(plain(title))
    statistic = STATISTICS.get(name)
    if statistic is not None:
        st.text(statistic.description)
    if moved is not None:
        st.warning(
            f"Away from the level of the first two cycles ({moved.base:.3g}) since cycle {moved.since_cycle}.", icon="⚠️"
        )
    if any(point.value is not None for point in points):
        st.vega_lite_chart(_spec(title, unit, points, moved, last, height=320), key=f"big-{name}", width="stretch")
    st.dataframe(pd.DataFrame([vars(point) for point in points]), hide_index=True, key="points")


def _spec(
    title: str, unit: str, points: list[Statistic], moved: Departure | None, last: int, *, height: int
) -> dict[str, object]:
    known = [point.value for point in points[:2] if point.value is not None]
    base = moved.base if moved is not None else (sum(known) / len(known) if known else None)
    return control_series(
        Panel(title, unit, points),
        frame.theme(),
        colour=BLUE if points[-1].value is not None else GREY,
        last_cycle=last,
        height=height,
        base=base,
    )


def title_of(name: str) -> tuple[str, str]:
    """Title and unit of a statistic; terms of a reward and reasons of exclusion are named by the spec."""
    statistic = STATISTICS.get(name)
    return (statistic.title, statistic.unit) if statistic is not None else (name.replace("_", " "), "")
