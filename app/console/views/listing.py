"""The list of a cycle's interactions: what each did and what came of it, without a word of its transcript."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import streamlit as st

from palomar.app.console import frame
from palomar.app.console.links import link
from palomar.app.service import FILTERS, Listed
from palomar.app.visible import visible

ROWS = 50
EVERYTHING = "everything"
OUTSIDE = "none"
"""What stands in the URL for logs outside a loop."""


def show() -> None:
    """The list. `cycle`, `only` and `page` are in the URL."""
    observatory = frame.observatory()
    cycles = observatory.lake.cycles("observations")
    if not cycles:
        frame.nothing_yet()
        return
    names = {OUTSIDE if cycle is None else str(cycle): cycle for cycle in reversed(cycles)}
    # The newest cycle of a loop comes before logs outside of it.
    choices = sorted(names, key=lambda name: (names[name] is None, -(names[name] or 0)))
    left, middle, right = st.columns([0.35, 0.35, 0.3])
    with left:
        cycle = frame.choice("Cycle", "cycle", choices, cycle_words)
    with middle:
        only = frame.choice("Only", "only", [EVERYTHING, *FILTERS])
    narrowed = None if only == EVERYTHING else only
    total = observatory.interactions(names[cycle], limit=0, where=narrowed).total
    with right:
        at = frame.pager("page", "Page", max(1, -(-total // ROWS)))
    found = observatory.interactions(names[cycle], limit=ROWS, offset=(at - 1) * ROWS, where=narrowed)
    _sentence(found, cycle, narrowed, at)
    if not found.rows.num_rows:
        link("Everything in this cycle", "trajectory", ":material/arrow_back:", cycle=cycle)
        return
    ids = found.rows["interaction_id"].to_pylist()
    picked = st.dataframe(
        table(found),
        hide_index=True,
        on_select="rerun",
        selection_mode="single-row",
        key=f"list-{cycle}-{only}-{at}",
        alt="Interactions; select a row to read one",
        height=440,
        placeholder="–",
        column_config={
            "reward": st.column_config.NumberColumn(format="%.3f"),
            "users' outcome": st.column_config.NumberColumn(format="%.2f"),
            "predicted failure": st.column_config.NumberColumn(format="%.2f"),
            "ambiguity": st.column_config.NumberColumn(format="%.2f"),
        },
    )
    if picked["selection"]["rows"]:
        _open(ids[picked["selection"]["rows"][0]])
    chosen = st.selectbox(
        "Open one by its id",
        ids,
        index=None,
        key=f"open-{cycle}-{only}-{at}",
        accept_new_options=True,
        placeholder="choose from this page, or type any id",
    )
    if chosen:
        _open(chosen)
    st.caption("Select a row to read it. " + frame.same_by("show", "ID"))


def cycle_words(name: str) -> str:
    """A cycle as a select box names it."""
    return "logs outside a loop" if name == OUTSIDE else f"cycle {name}"


def _open(interaction_id: str) -> None:
    st.query_params.from_dict({"id": interaction_id})
    st.rerun()


def _sentence(found: Listed, cycle: str, narrowed: str | None, at: int) -> None:
    where = cycle_words(cycle)
    if not found.total:
        st.info(f"**None in {where}** that fits “{narrowed}”.", icon=":material/search_off:")
        return
    first = (at - 1) * ROWS + 1
    fitting = "" if narrowed is None else f" that fit “{narrowed}”"
    st.markdown(
        f"**{found.total:,} interactions in {where}{fitting}**; these are {first:,} to "
        f"{first + found.rows.num_rows - 1:,}, by time (UTC)."
    )


def table(found: Listed) -> pd.DataFrame:
    """The list with columns named for people. Cells are text to Streamlit, never markup."""
    return pd.DataFrame([_row(row) for row in found.rows.to_pylist()])


def _row(row: dict[str, Any]) -> dict[str, Any]:
    invalid = sum(value for name, value in row.items() if name.startswith("invalid_"))
    tests = None if row["tests_run"] is None else f"{row['tests_passed']} of {row['tests_run']}"
    return {
        "id": visible(row["interaction_id"]),
        "time (UTC)": None if row["started_at"] is None else f"{row['started_at']:%Y-%m-%d %H:%M:%S}",
        "did": did(row),
        "invalid calls": invalid,
        "tests passed": tests,
        "follow-up": row["follow_up"],
        "reward": row["reward"],
        "users' outcome": row["outcome"] if row["outcome_status"] == "mature" else None,
        "left out of training": None if row["exclusion"] is None else row["exclusion"].replace("_", " "),
        "predicted failure": row["predicted_failure"],
        "ambiguity": row["ambiguity"],
        "organisation": _clean(row["organisation"]),
        "kind of work": _clean(row["work_kind"]),
        "task": _clean(row["task_id"]),
        "tool calls": row["tool_calls"],
        "format": row["source"],
    }


def did(row: Mapping[str, Any]) -> str:
    """What the agent did in the end, in a word or two."""
    if row["edited"]:
        return "edited"
    if row["asked"] is None:
        return "no edit"  # and the log does not let one tell whether it asked
    return "asked" if row["asked"] else "neither"


def _clean(text: str | None) -> str | None:
    return None if text is None else visible(text)
