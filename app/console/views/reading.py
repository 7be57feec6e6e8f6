"""One interaction as text: what was asked, done, reacted and paid. All of it was written by others, and stays text."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import pandas as pd
import streamlit as st

from palomar.app.console import frame
from palomar.app.console.links import link
from palomar.app.console.plain import plain, shown
from palomar.app.console.views.listing import OUTSIDE, did
from palomar.app.service import Trajectory
from palomar.app.visible import visible
from palomar.data.errors import LakeError
from palomar.data.schema import Edit, Feedback, Step, ToolCall

STEPS = 50
"""Steps on one page."""
PARTS = 20
"""Tool calls, edits or hunks of one step that are shown."""
FAILED = ("failed", "timed_out", "refused")


def show(interaction_id: str) -> None:
    """The interaction. `step` in the URL names one of its steps, `part` one of its pages."""
    try:
        found = frame.observatory().trajectory(interaction_id)
    except LakeError as exc:
        st.warning(f"**This interaction cannot be shown**: {plain(interaction_id)}.", icon=":material/search_off:")
        st.code(shown(str(exc), 1_000)[0], language=None, wrap_lines=True)
        link("To the list", "trajectory", ":material/arrow_back:")
        return
    item = found.interaction
    cycle = OUTSIDE if item.cycle is None else str(item.cycle)
    link(
        "Back to the list" + ("" if item.cycle is None else f" of cycle {cycle}"),
        "trajectory",
        ":material/arrow_back:",
        cycle=cycle,
    )
    st.markdown(f"**Interaction** {plain(item.interaction_id)}")
    st.markdown(sentence(found))
    facts = _facts(found)
    half = -(-len(facts) // 2)
    left, middle, right = st.columns([0.3, 0.3, 0.4])
    with left:
        _text("\n".join(facts[:half]))
    with middle:
        _text("\n".join(facts[half:]))
    with right:
        _terms(found.observation)
    _steps(found)
    st.subheader("Reactions")
    if not found.feedback:
        st.caption("None is known.")
    for event in found.feedback:
        _reaction(event)
    st.subheader("Record")
    with st.expander("All columns: behaviour, reward by term, what the trainer did with it"):
        st.json({"observation": _readable(found.observation), "sample": _readable(found.sample)})
    left, right = st.columns([0.2, 0.8], vertical_alignment="center")
    left.download_button(
        "Record (JSON)",
        lambda: item.model_dump_json(indent=1).encode(errors="backslashreplace"),
        "interaction.json",
        "application/json",
        key="record",
        on_click="ignore",
    )
    right.caption(frame.same_by("show", item.interaction_id))


def sentence(found: Trajectory) -> str:
    """What happened, in one line of Markdown."""
    row, sample = found.observation, found.sample
    if not row:
        return ":gray-badge[○ NOT DISTILLED] No facts were derived from it yet."
    parts = [f"The agent **{_DID[did(row)]}**"]
    invalid = sum(value for name, value in row.items() if name.startswith("invalid_"))
    if invalid:
        parts.append(f":orange-badge[✖ {invalid} INVALID CALL{'S' if invalid > 1 else ''}]")
    if row.get("tests_run"):
        parts.append(f"{row['tests_passed']} of {row['tests_run']} tests pass")
    parts.append(f"reward {_paid(row, 'reward', 'valid', 'not scored')}")
    parts.append(f"users' outcome {_paid(row, 'outcome', 'mature', 'not defined')}")
    reason = sample.get("reason") or row.get("exclusion")
    if reason:
        parts.append(f":orange-badge[◌ LEFT OUT OF TRAINING] {plain(reason)}")
    elif sample.get("advantage") is not None:
        parts.append(f"trained on with advantage {sample['advantage']:+.3g}")
    return " · ".join(parts)


_DID = {
    "edited": "edited",
    "asked": "asked instead of editing",
    "neither": "neither edited nor asked",
    "no edit": "made no edit",
}


def _paid(row: Mapping[str, Any], name: str, good: str, absent: str) -> str:
    status = row.get(f"{name}_status")
    if status != good:
        return f"**{absent if status is None else status.upper()}**"
    value = row.get(name)
    return f"**{absent}**" if value is None else f"**{value:+.3g}**"


def _facts(found: Trajectory) -> list[str]:
    item, sample = found.interaction, found.sample
    latency = None if item.latency_s is None else f"{item.latency_s:.1f} s"
    trained = (
        None if not sample else f"cycle {sample['cycle']}, lag {sample['policy_lag']}, weight {sample['weight']:g}"
    )
    facts = {
        "format": item.source,
        "origin": item.origin if item.origin_record is None else f"{item.origin}, record {item.origin_record}",
        "time": None if item.started_at is None else f"{item.started_at:%Y-%m-%d %H:%M:%S} UTC",
        "cycle": item.cycle,
        "checkpoint": item.checkpoint,
        "task": item.task_id,
        "organisation": item.cohort.organisation,
        "kind of work": item.cohort.work_kind,
        "language": item.cohort.language,
        "predicted failure": item.predicted_failure,
        "ambiguity": item.ambiguity,
        "latency": latency,
        "tokens written": item.tokens_out,
        "stopped because": item.stop_reason,
        "labels": ", ".join(item.labels) or None,
        "offered to training": trained,
    }
    known = {name: f"{value:.3g}" if isinstance(value, float) else value for name, value in facts.items()}
    return [f"{name}: {' '.join(str(value)[:300].split())}" for name, value in known.items() if value is not None]


def _terms(row: Mapping[str, Any]) -> None:
    names = [name.removeprefix("term:") for name in row if name.startswith("term:")]
    logged = row.get("logged_reward")
    if not names:
        st.caption(
            "No reward spec has scored it." + ("" if logged is None else f" The log's own reward is {logged:.3g}.")
        )
        return
    st.dataframe(
        pd.DataFrame(
            {
                "reward term": [visible(name.replace("_", " ")) for name in names],
                "value": [row[f"term:{name}"] for name in names],
                "status": [str(row.get(f"status:{name}")).replace("_", " ") for name in names],
            }
        ),
        hide_index=True,
        key="terms",
        placeholder="–",
        alt="Reward by term, before weights",
        column_config={"value": st.column_config.NumberColumn(format="%.4g")},
    )


def _steps(found: Trajectory) -> None:
    total = len(found.interaction.steps)
    st.subheader(f"{total} step{'' if total == 1 else 's'}")
    marked = _marked(total)
    parts = max(1, -(-total // STEPS))
    if marked is not None and "part" not in st.query_params:
        st.query_params["part"] = str(marked // STEPS + 1)
    start = (frame.pager("part", "Part of the steps", parts) - 1) * STEPS
    for index, step in enumerate(found.interaction.steps[start : start + STEPS], start):
        _step(index, step, index == marked)


def _marked(total: int) -> int | None:
    wanted = st.query_params.get("step")
    if wanted is None:
        return None
    if wanted.isascii() and wanted.isdigit() and len(wanted) < 9 and int(wanted) < total:
        return int(wanted)
    st.warning(f"There is no step {plain(wanted)} here; they are numbered 0 to {total - 1}.", icon=":material/help:")
    return None


_AUTHORS = {
    "person": ":material/person: person",
    "agent": ":material/smart_toy: agent",
    "tool": ":material/build: tool",
    "harness": ":material/settings: harness",
}


def _step(index: int, step: Step, marked: bool) -> None:
    with st.container(border=True, key=f"step-{index}"):
        line = [f"**{index} · {_AUTHORS[step.author]}**"]
        if marked:
            line.insert(0, ":blue-badge[➤ THIS STEP]")
        if step.role not in (step.author, {"agent": "assistant", "person": "user"}.get(step.author)):
            line.append(f"logged as {plain(step.role)}")
        if step.branch:
            line.append(f"branch {plain(step.branch)}")
        if step.reward is not None:
            line.append(f"reward {step.reward:+.3g}")
        if step.is_question:
            line.append(":blue-badge[? ASKS]")
        if step.truncated:
            line.append(":orange-badge[✂ CUT OFF] at the length limit")
        st.markdown(" · ".join(line))
        if step.thinking:
            with st.expander("Reasoning"):
                _text(step.thinking)
        if step.text:
            _text(step.text)
        for call in step.tool_calls[:PARTS]:
            _call(call)
        for edit in step.edits[:PARTS]:
            _edit(edit)
        for what, count in (("tool calls", len(step.tool_calls)), ("edits", len(step.edits))):
            if count > PARTS:
                st.caption(f"{count - PARTS:,} more {what} are in the record (JSON).")


def _call(call: ToolCall) -> None:
    if call.invalidity:
        state = f":orange-badge[✖ INVALID: {call.invalidity.replace('_', ' ')}]"
    elif call.outcome in FAILED:
        state = f":orange-badge[✖ {call.outcome.replace('_', ' ')}]"
    else:
        state = ":green-badge[✔ ok]" if call.outcome == "ok" else f":gray-badge[○ {call.outcome.replace('_', ' ')}]"
    code = "" if call.exit_code is None else f" · exit code {call.exit_code}"
    st.markdown(f"Tool call {plain(call.name or 'without a name')} {state}{code}")
    if call.problem:
        _text(call.problem)
    if call.arguments:
        _code(call.arguments, "json")
    if call.result:
        st.caption("answered")
        _code(call.result, None)


def _edit(edit: Edit) -> None:
    state = {"applied": ":green-badge[✔ applied]", "failed": ":orange-badge[✖ failed]"}.get(
        edit.outcome, f":gray-badge[○ {edit.outcome}]"
    )
    sizes = ""
    if edit.functions_before is not None and edit.functions_after is not None:
        sizes = f" · functions {len(edit.functions_before)} → {len(edit.functions_after)}"
    form = edit.form.replace("_", " ")
    st.markdown(f"Edit of {plain(edit.path or 'an unnamed file')} {state} · {form}{sizes}")
    if edit.text is not None:
        # The whole edit as logged; hunks, where there are any, hold less of it.
        _code(edit.text, "diff")
        return
    for hunk in edit.hunks[:PARTS]:
        _code(diff_of(hunk.before, hunk.after), "diff")
    if len(edit.hunks) > PARTS:
        st.caption(f"{len(edit.hunks) - PARTS:,} more hunks are in the record (JSON).")


def diff_of(before: str, after: str) -> str:
    """A hunk as unified diff lines; the signs carry it, colours only help. Long texts are cut before they are compared.

    difflib is quadratic at worst, so that two hostile texts could keep a page busy.
    """
    (before, left_before), (after, left_after) = shown(before), shown(after)
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=3))[2:]
    if left_before or left_after:
        lines.append(f"\\ {left_before:,} characters before and {left_after:,} after are not compared here")
    return "\n".join(lines) if lines else "\\ no line differs"


def _reaction(event: Feedback) -> None:
    line = [f"**{event.author}: {event.kind.replace('_', ' ')}**"]
    if event.value is not None:
        line.append(f"{event.value:.3g}")
    if event.label:
        sure = "" if event.label_probability is None else f" ({event.label_probability:.2f})"
        line.append(f"read as {event.label}{sure}")
    if event.path:
        line.append(plain(event.path))
    line.append("time not known" if event.at is None else f"{event.at:%Y-%m-%d %H:%M:%S} UTC")
    st.markdown(" · ".join(line))
    if event.text:
        _text(event.text)


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
        st.caption(f"✂ {count:,} more characters are in the record (JSON).")


def _readable(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: str(value) if hasattr(value, "isoformat") else visible(value) if isinstance(value, str) else value
        for name, value in row.items()
        if value is not None
    }
