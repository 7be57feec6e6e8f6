"""One step of an interaction as text: what was said, called and edited. Others wrote all of it, and it stays text.

Long texts are cut. Where they are, a button beside them downloads the whole as a text file.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

import streamlit as st

from palomar.app.console.plain import MAX_SHOWN, plain, shown
from palomar.data.schema import Edit, Step, ToolCall

PARTS = 20
"""Tool calls, edits or hunks of one step that are shown."""
FAILED = ("failed", "timed_out", "refused")
_AUTHORS = {
    "person": ":material/person: person",
    "agent": ":material/smart_toy: agent",
    "tool": ":material/build: tool",
    "harness": ":material/settings: harness",
}


@dataclass(frozen=True)
class Style:
    """How much of a step is shown."""

    key: str = "step"
    """Begins the keys of its elements: two interactions on one page need two."""
    most: int = MAX_SHOWN
    """Characters of one text."""
    parts: int = PARTS
    """Tool calls, edits or hunks."""
    raw: bool = True
    """Whether what is cut can be downloaded here."""


FULL = Style()


def draw(index: int, step: Step, style: Style = FULL, marks: Sequence[str] = ()) -> None:
    """A step in a box of its own. ``marks``: badges of ours that stand before its line."""
    key = f"{style.key}-{index}"
    with st.container(border=True, key=key):
        st.markdown(" · ".join([*marks, *_badges(index, step)]))
        if step.thinking:
            with st.expander("Reasoning"):
                text(step.thinking, style, f"{key}-thinking")
        if step.text:
            text(step.text, style, f"{key}-text")
        for place, call in enumerate(step.tool_calls[: style.parts]):
            _call(call, style, f"{key}-call-{place}")
        for place, edit in enumerate(step.edits[: style.parts]):
            _edit(edit, style, f"{key}-edit-{place}")
        for what, count in (("tool calls", len(step.tool_calls)), ("edits", len(step.edits))):
            if count > style.parts:
                st.caption(f"{count - style.parts:,} more {what} are in the record (JSON).")


def _badges(index: int, step: Step) -> list[str]:
    line = [f"**{index} · {_AUTHORS[step.author]}**"]
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
    return line


def _call(call: ToolCall, style: Style, key: str) -> None:
    if call.invalidity:
        state = f":orange-badge[✖ INVALID: {call.invalidity.replace('_', ' ')}]"
    elif call.outcome in FAILED:
        state = f":orange-badge[✖ {call.outcome.replace('_', ' ')}]"
    else:
        state = ":green-badge[✔ ok]" if call.outcome == "ok" else f":gray-badge[○ {call.outcome.replace('_', ' ')}]"
    code = "" if call.exit_code is None else f" · exit code {call.exit_code}"
    st.markdown(f"Tool call {plain(call.name or 'without a name')} {state}{code}")
    if call.problem:
        text(call.problem, style, f"{key}-problem")
    if call.arguments:
        _code(call.arguments, "json", style, f"{key}-arguments")
    if call.result:
        st.caption("answered")
        _code(call.result, None, style, f"{key}-result")


def _edit(edit: Edit, style: Style, key: str) -> None:
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
        _code(edit.text, "diff", style, f"{key}-text")
        return
    for hunk in edit.hunks[: style.parts]:
        st.code(diff_of(hunk.before, hunk.after, style.most), language="diff", wrap_lines=True)
    if len(edit.hunks) > style.parts:
        st.caption(f"{len(edit.hunks) - style.parts:,} more hunks are in the record (JSON).")


def diff_of(before: str, after: str, most: int = MAX_SHOWN) -> str:
    """A hunk as unified diff lines; the signs carry it, colours only help. Long texts are cut before they are compared.

    difflib is quadratic at worst, so that two hostile texts could keep a page busy.
    """
    (before, left_before), (after, left_after) = shown(before, most), shown(after, most)
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=3))[2:]
    if left_before or left_after:
        lines.append(f"\\ {left_before:,} characters before and {left_after:,} after are not compared here")
    return "\n".join(lines) if lines else "\\ no line differs"


def text(whole: str, style: Style, key: str) -> None:
    """Prose, cut; with a button for the whole."""
    body, left_out = shown(whole, style.most)
    st.text(body)
    _left_out(whole, left_out, style, key)


def _code(whole: str, language: str | None, style: Style, key: str) -> None:
    body, left_out = shown(whole, style.most)
    st.code(body, language=language, wrap_lines=True)
    _left_out(whole, left_out, style, key)


def _left_out(whole: str, count: int, style: Style, key: str) -> None:
    if not count:
        return
    if not style.raw:
        st.caption(f"✂ {count:,} more characters.")
        return
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption(f"✂ {count:,} more characters are in the record (JSON).")
        # Called once somebody asks for it: a page holds no second copy of what was cut.
        st.download_button(
            "Download raw",
            lambda: whole.encode(errors="backslashreplace"),
            f"{key}.txt",
            "application/octet-stream",
            key=f"{key}-raw",
            on_click="ignore",
            icon=":material/download:",
            type="tertiary",
        )
