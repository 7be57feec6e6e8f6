"""Trajectory: one interaction, readable as text with its tool calls, edits and reactions; and the list to find it."""

from __future__ import annotations

import difflib
from typing import Any

import streamlit as st

from palomar.app.console import frame
from palomar.app.console.plain import plain, shown
from palomar.app.service import FILTERS, Trajectory
from palomar.data.schema import Edit, Step, ToolCall

ROWS = 50
STEPS = 50
FAILED = ("failed", "timed_out", "refused")


def page() -> None:
    """A list of a cycle's interactions, or the one named by `id` in the URL."""
    st.title("Trajectory")
    with frame.panel("Trajectory"):
        wanted = st.query_params.get("id")
        if wanted is None:
            _list()
            return
        if st.button("Back to the list", key="back"):
            del st.query_params["id"]
            st.rerun()
        _one(frame.observatory().trajectory(wanted))


def _list() -> None:
    cycles = frame.observatory().lake.cycles("observations")
    if not cycles:
        st.info("Nothing is in the lake yet. `palomar ingest PATH` reads logs; `palomar demo` makes some.", icon="⏳")
        return
    left, middle, right = st.columns(3)
    names = {("outside a loop" if cycle is None else str(cycle)): cycle for cycle in reversed(cycles)}
    chosen = left.selectbox("Cycle", list(names), key="cycle")
    narrowed = middle.selectbox("Only", ["everything", *FILTERS], key="only")
    at = int(right.number_input("Page", min_value=1, step=1, key="page")) - 1
    rows = frame.observatory().interactions(
        names[chosen], limit=ROWS, offset=at * ROWS, where=None if narrowed == "everything" else narrowed
    )
    if rows.num_rows == 0:
        st.info("No interaction here. Choose another cycle, filter or page.", icon="🔍")
        return
    picked = st.dataframe(
        rows.to_pandas(),
        hide_index=True,
        on_select="rerun",
        selection_mode="single-row",
        key=f"list-{chosen}-{narrowed}-{at}",
    )
    ids = rows["interaction_id"].to_pylist()
    if picked.selection.rows:
        _open(ids[picked.selection.rows[0]])
    chosen_id = st.selectbox("Or by id", ids, index=None, format_func=plain, key="by-id")
    if chosen_id is not None:
        _open(chosen_id)


def _open(interaction_id: str) -> None:
    st.query_params["id"] = interaction_id
    st.rerun()


def _one(found: Trajectory) -> None:
    item = found.interaction
    st.subheader(plain(item.interaction_id))
    _facts(found)
    total = len(item.steps)
    start = 0
    if total > STEPS:
        pages = -(-total // STEPS)
        start = (int(st.number_input(f"Steps, page of {pages}", 1, pages, key="steps")) - 1) * STEPS
    for index, step in enumerate(item.steps[start : start + STEPS], start):
        _step(index, step)
    st.subheader("Reactions")
    if not found.feedback:
        st.caption("None is known.")
    for event in found.feedback:
        when = "" if event.at is None else f" · {event.at:%Y-%m-%d %H:%M:%S} UTC"
        label = (
            f" · read as {event.label} ({event.label_probability:.2f})"
            if event.label and event.label_probability
            else ""
        )
        st.markdown(f"**{event.author}: {event.kind}**{plain(label)}{when}")
        if event.text:
            _text(event.text)
    with st.expander("All columns: behaviour, reward by term, what the trainer did with it"):
        st.json({"observation": _readable(found.observation), "sample": _readable(found.sample)})
    st.download_button(
        "Record (JSON)",
        item.model_dump_json(indent=1).encode(),
        "interaction.json",
        "application/json",
        key="record",
        on_click="ignore",
    )
    st.caption(f"The same on the command line: `palomar show {plain(item.interaction_id)}`.")


def _facts(found: Trajectory) -> None:
    item, row, sample = found.interaction, found.observation, found.sample
    facts = {
        "task": item.task_id,
        "checkpoint": item.checkpoint,
        "cycle": item.cycle,
        "organisation": item.cohort.organisation,
        "kind of work": item.cohort.work_kind,
        "predicted failure": item.predicted_failure,
        "ambiguity": item.ambiguity,
        "latency": None if item.latency_s is None else f"{item.latency_s:.1f} s",
        "tests passed": None if item.tests_run is None else f"{item.tests_passed} of {item.tests_run}",
        "reward": row.get("reward") if row.get("reward_status") == "valid" else row.get("reward_status"),
        "outcome": row.get("outcome") if row.get("outcome_status") == "mature" else row.get("outcome_status"),
        "advantage": sample.get("advantage"),
        "left out of training": sample.get("reason") or row.get("exclusion"),
    }
    known = {name: value for name, value in facts.items() if value is not None}
    lines = [
        f"{name}: {value:.3g}" if isinstance(value, float) else f"{name}: {value}" for name, value in known.items()
    ]
    _text("\n".join(lines))


def _step(index: int, step: Step) -> None:
    with st.container(border=True):
        said = f" (as {plain(step.role)})" if step.role not in (step.author, "assistant") else ""
        branch = f" · branch {plain(step.branch)}" if step.branch else ""
        cut = " · CUT OFF at the length limit" if step.truncated else ""
        st.markdown(f"**{index} · {step.author}**{said}{branch}{cut}")
        if step.thinking:
            with st.expander("Reasoning"):
                _text(step.thinking)
        if step.text:
            _text(step.text)
        for call in step.tool_calls:
            _call(call)
        for edit in step.edits:
            _edit(edit)


def _call(call: ToolCall) -> None:
    state = (
        f"✖ INVALID: {call.invalidity}"
        if call.invalidity
        else f"{'✖' if call.outcome in FAILED else '✔'} {call.outcome}"
    )
    st.markdown(f"Tool call **{plain(call.name or 'without a name')}** · {state}")
    if call.problem:
        st.text(shown(call.problem)[0])
    if call.arguments:
        _code(call.arguments, "json")
    if call.result:
        _code(call.result, None)


def _edit(edit: Edit) -> None:
    sizes = ""
    if edit.functions_before is not None and edit.functions_after is not None:
        sizes = f" · functions {len(edit.functions_before)} → {len(edit.functions_after)}"
    st.markdown(f"Edit of **{plain(edit.path or 'an unnamed file')}** · {edit.form} · {edit.outcome}{sizes}")
    if edit.text is not None:
        _code(edit.text, "diff")
        return
    for hunk in edit.hunks:
        _code(diff_of(hunk.before, hunk.after), "diff")


def diff_of(before: str, after: str) -> str:
    """A hunk as unified diff lines; the signs carry it, colours only help."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=3)
    return "\n".join(list(lines)[2:])


def _text(text: str) -> None:
    body, left_out = shown(text)
    st.text(body)
    _left_out(left_out)


def _code(text: str, language: str | None) -> None:
    body, left_out = shown(text)
    st.code(body, language=language, wrap_lines=True)
    _left_out(left_out)


def _left_out(count: int) -> None:
    if count:
        st.caption(f"{count:,} more characters are in the record (JSON).")


def _readable(row: Any) -> dict[str, Any]:
    return {
        name: str(value) if hasattr(value, "isoformat") else value for name, value in row.items() if value is not None
    }
