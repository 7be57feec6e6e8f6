"""Overview: is anything wrong now?"""

from __future__ import annotations

import pandas as pd
import streamlit as st

from palomar.app.console import frame
from palomar.app.console.charts import BLUE, ORANGE, Panel, control_series
from palomar.app.console.plain import plain
from palomar.app.service import ALL, WATCHED, CycleView
from palomar.data.store.records import Run
from palomar.detectors.departure import Departure
from palomar.detectors.statistics import STATISTICS

LANES = (("reward_mean", BLUE), ("outcome_mean", ORANGE))
TABLE_CYCLES = 40


def page() -> None:
    """The whole page; it looks for news by itself while a run goes on."""
    st.title("Overview")
    _body()


@st.fragment(run_every=frame.REFRESH_S)
def _body() -> None:
    with frame.panel("Run"):
        run = frame.current_run()
        if run is None:
            return
        views = frame.observatory().cycles(run.run_id)
        frame.strip(run, views)
        if not views:
            st.info("The first cycle is being collected. Its statistics come when it is distilled.", icon="⏳")
            return
        _sentences(frame.observatory().departures(run.run_id))
        _lanes(run)
        _table(views)


def _sentences(found: list[Departure]) -> None:
    """What has moved, said before it is drawn."""
    if not found:
        st.success(
            "No watched behaviour has left the level of the first two cycles. This is a first look at "
            f"{len(WATCHED)} series, not a verdict.",
            icon="✅",
        )
        return
    st.warning(
        "\n".join(["Left the level of the first two cycles:", *(f"- {sentence(item)}" for item in found)]), icon="⚠️"
    )


def sentence(item: Departure) -> str:
    """One departure in words and numbers, with a link to its chart."""
    statistic = STATISTICS[item.statistic]
    where = "" if item.slice == ALL else f" on {plain(item.slice.replace('=', ' '))}"
    link = f"behaviour?slice={item.slice}&stat={item.statistic}"
    return (
        f"**{plain(statistic.title)}**{where}: {item.base:.3g} → {item.latest:.3g} {plain(statistic.unit)} in cycle "
        f"{item.latest_cycle}, away since cycle {item.since_cycle} (z {item.z:+.1f}). [See the chart]({link})"
    )


def _lanes(run: Run) -> None:
    series = frame.observatory().series(run.run_id, [name for name, _ in LANES], [ALL])
    last = max((point.cycle for point in series), default=0)
    for column, (name, colour) in zip(st.columns(len(LANES)), LANES, strict=True):
        statistic = STATISTICS[name]
        points = [point for point in series if point.statistic == name]
        with column, st.container(border=True):
            st.markdown(f"**{plain(statistic.title)}**, {plain(statistic.unit)}")
            drawn = Panel(statistic.title, statistic.unit, points)
            if any(point.value is not None for point in points):
                spec = control_series(drawn, frame.theme(), colour=colour, last_cycle=last, height=170)
                st.vega_lite_chart(spec, key=f"lane-{name}", width="stretch")
            else:
                st.caption("Not known yet: feedback has to come in first.")
    st.caption("Bands are 95 % intervals. Hollow diamonds: part of the feedback is still to come.")


def _table(views: list[CycleView]) -> None:
    st.subheader("Cycles")
    newest = list(reversed(views))[:TABLE_CYCLES]
    table = pd.DataFrame(
        {
            "cycle": [view.record.cycle for view in newest],
            "gate": [frame.SYMBOLS[view.verdict] for view in newest],
            "why": [", ".join(view.reasons) for view in newest],
            "served by": [view.record.checkpoint_id for view in newest],
            "reward version": [view.record.reward_version for view in newest],
            **{name: [_value(view, name) for view in newest] for name, _ in LANES},
            "edit rate": [_value(view, "edit_rate") for view in newest],
            "clarification rate": [_value(view, "clarification_rate") for view in newest],
            "interactions": [_n(view, "edit_rate") for view in newest],
            "seconds": [round(view.elapsed_s, 1) for view in newest],
        }
    )
    st.dataframe(
        table,
        hide_index=True,
        key="cycles",
        column_config={
            name: st.column_config.NumberColumn(format="%.3f")
            for name in ("reward_mean", "outcome_mean", "edit rate", "clarification rate")
        },
    )
    st.download_button(
        "CSV (all cycles)",
        table.to_csv(index=False).encode(),
        "cycles.csv",
        "text/csv",
        key="cycles-csv",
        on_click="ignore",
    )
    st.caption("The same on the command line: `palomar stats --json`.")


def _value(view: CycleView, name: str) -> float | None:
    point = view.figures.get(name)
    return None if point is None else point.value


def _n(view: CycleView, name: str) -> int | None:
    point = view.figures.get(name)
    return None if point is None else point.n
