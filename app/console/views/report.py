"""Evidently's report on a cycle: a second opinion on what drifted, drawn by us; its own page in a sandbox."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from palomar.app.console import frame
from palomar.app.console.handing import ticket
from palomar.app.console.links import link
from palomar.app.console.plain import plain
from palomar.app.console.states import words
from palomar.app.drift_report import MOST_BYTES, DriftReport, cycles_with_a_page, drift_report
from palomar.app.visible import visible
from palomar.detectors.evidently_report import METHOD, THRESHOLD, Column

OUTSIDE = "none"
"""What stands in the URL for logs outside a loop."""
NAMED = 5


def page() -> None:
    """The whole page. `cycle` is in the URL."""
    with frame.panel("Report"):
        frame.run()
        observatory = frame.observatory()
        there = observatory.lake.cycles("observations")
        if not there:
            frame.nothing_yet()
            return
        with_page = cycles_with_a_page(observatory)
        names = {_name(cycle): cycle for cycle in sorted(there, key=lambda cycle: (cycle is None, -(cycle or 0)))}
        usual = next((_name(cycle) for cycle in with_page if cycle in there), next(iter(names)))
        left, right = st.columns([0.35, 0.65], vertical_alignment="bottom")
        with left:
            chosen = frame.choice("Cycle", "cycle", list(names), lambda name: _option(name, names, with_page), usual)
        kept_of = [_cycle_words(cycle) for cycle in with_page if cycle in there]
        right.caption(f"A page is kept of {', '.join(kept_of[:8])}." if kept_of else "No report is kept in this home.")
        found = drift_report(observatory, names[chosen])
        _page_of(found)
        if found.state == "none":
            _none(names[chosen])
        elif found.state == "stale":
            _stale(names[chosen])
        else:
            _found(found)
        frame.footer(
            "report",
            same=["report", *(["--cycle", str(names[chosen])] if names[chosen] is not None else []), "--no-texts"],
            csv=(lambda: columns_table(found.columns)) if found.columns else None,
            cycle=chosen,
        )


def _name(cycle: int | None) -> str:
    return OUTSIDE if cycle is None else str(cycle)


def _cycle_words(cycle: int | None) -> str:
    return "logs outside a loop" if cycle is None else f"cycle {cycle}"


def _option(name: str, names: dict[str, int | None], with_page: Sequence[int | None]) -> str:
    return _cycle_words(names.get(name)) + (" · kept" if name in names and names[name] in with_page else "")


def _none(cycle: int | None) -> None:
    st.info(
        f"**No report is kept of {_cycle_words(cycle)}.** It would show, column by column, how far the cycle lies from "
        "its reference by Evidently's measure. It takes seconds and draws plots, so that no check makes it; the "
        "command below does, and this page shows what it kept.",
        icon=":material/query_stats:",
    )
    _how(cycle)


def _stale(cycle: int | None) -> None:
    st.warning(
        f"**The report on {_cycle_words(cycle)} is out of date**: the observations of the cycle or of its reference "
        "have changed since (more feedback came in), or the reference was moved. Its figures are not shown; its page "
        "still is.",
        icon=":material/update:",
    )
    _how(cycle)


def _how(cycle: int | None) -> None:
    command = "palomar report" + ("" if cycle is None else f" --cycle {cycle}")
    st.code(command, language=None)


def _found(found: DriftReport) -> None:
    st.markdown(report_words(found))
    number = st.column_config.NumberColumn(format="%.3f")
    st.dataframe(
        columns_table([column for column in found.columns if column.value is not None]).drop(columns="why not"),
        hide_index=True,
        key="columns",
        placeholder="–",
        height=420,
        alt="Columns by how far they are from the reference",
        column_config={
            METHOD.upper(): number,
            "drift from": number,
            "n": st.column_config.NumberColumn(format="localized"),
        },
    )
    silent = [column for column in found.columns if column.value is None]
    if silent:
        with st.expander(f"◌ NO DATA: {len(silent)} columns that were not compared, and why"):
            st.text("\n".join(visible(f"{column.name}: {column.why}") for column in silent))
    st.caption(
        "The population stability index (PSI) is a distance, not a test: 0.1 is a small change and 0.25 a large one by "
        "rule of thumb. Its thresholds have no stated error rate, so that nothing here blocks or warns."
    )
    link("Behaviour, with bands and intervals", "behaviour", ":material/show_chart:")


def report_words(found: DriftReport) -> str:
    """What the report says, in a sentence."""
    compared, drifted = found.compared, found.drifted
    named = [f"{plain(column.name, 60)} ({column.value:.2f})" for column in drifted[:NAMED]]
    more = f" and {len(drifted) - NAMED} more" if len(drifted) > NAMED else ""
    return (
        f"**{len(drifted)} of {len(compared)} columns drifted** in {_cycle_words(found.cycle)} (PSI of {THRESHOLD:g} "
        "or more)"
        + (f": {', '.join(named)}{more}." if named else ".")
        + f" {found.n:,} interactions beside {found.reference_n:,} of the reference. A second opinion, not a verdict."
    )


def columns_table(columns: Sequence[Column]) -> pd.DataFrame:
    """One row per column, the most different first."""
    return pd.DataFrame(
        {
            "": [_state(column) for column in columns],
            "column": [visible(column.name) for column in columns],
            METHOD.upper(): [column.value for column in columns],
            "drift from": [column.threshold for column in columns],
            "n": [column.n for column in columns],
            "method": [visible(column.method or "") for column in columns],
            "why not": [visible(column.why) for column in columns],
        }
    )


def _state(column: Column) -> str:
    if column.drifted is None:
        return words("no_data")
    return words("warn", "DRIFT") if column.drifted else words("pass", "NO DRIFT")


def _page_of(found: DriftReport) -> None:
    """Evidently's own page: as a document of its own, and as a file."""
    if found.page is None:
        if found.state == "kept":
            st.caption("Evidently's own page has gone from the home; `palomar report` makes it again.")
        return
    path = found.page
    size = path.stat().st_size
    with st.container(horizontal=True, vertical_alignment="center"):
        if size <= MOST_BYTES:
            st.link_button("Open Evidently's page", ticket(path), icon=":material/open_in_new:")
        st.download_button(
            f"Download it ({size / 1e6:.1f} MB)",
            path.read_bytes,
            f"evidently-{_name(found.cycle)}.html",
            "application/octet-stream",
            key="evidently",
            on_click="ignore",
            icon=":material/download:",
        )
    st.caption(
        "It opens in a tab of its own, in a sandbox: its scripts run, and reach neither this console nor the network."
    )


if __name__ == "__main__":
    st.title("Evidently's report")
    page()
