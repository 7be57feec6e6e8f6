"""A change of the reward by hand: a number for each weight, a switch for each rule, or the whole text."""

from __future__ import annotations

import difflib
import hashlib
from dataclasses import dataclass

import streamlit as st

from palomar.app import patching
from palomar.app.console import working
from palomar.app.console.plain import plain, shown
from palomar.app.lab import Lab
from palomar.data.errors import ConfigError, StoreError
from palomar.data.store.records import RewardProposal
from palomar.reward.replay import spec_changes
from palomar.reward.spec import parse_spec, version

OWN = "own"
"""In the URL: the change is the one by hand."""
ACROSS = 4
"""Weights in a row."""


@dataclass(frozen=True)
class Change:
    """What is replayed and applied."""

    text: str
    """The whole spec."""
    diff: str
    proposal: RewardProposal | None = None
    """None: it was made by hand, and is not kept yet."""


def change(found: Lab) -> Change | None:
    """The form; None where it is as the reward in force, or no spec, which is said with its line."""
    start, named = _start(found)
    key = hashlib.sha256(start.encode()).hexdigest()[:HASH]
    as_text = st.toggle("As text", key=f"as-text-{key}", help="The whole spec in YAML, for what the form cannot say.")
    try:
        text = _text(start, key) if as_text else _form(start, key)
        spec = parse_spec(text, source="the spec")
    except (ConfigError, StoreError) as exc:
        st.error("**This is no reward.** Nothing was kept.", icon=":material/error:")
        st.code(shown(str(exc), 1_000)[0], language=None, wrap_lines=True)
        return None
    if version(spec) == found.present.version:
        st.caption(f"As it is in force{named}: change a weight or a rule, and what differs is shown here.")
        return None
    st.markdown("**What differs from the reward in force:**")
    st.text("\n".join(spec_changes(found.spec, spec)))
    lines = difflib.unified_diff(found.present.text.splitlines(), text.splitlines(), "in force", "by hand", lineterm="")
    return Change(text, "\n".join(lines))


HASH = 10


def _start(found: Lab) -> tuple[str, str]:
    """The text that the form starts from: that of a replay, of a version that the URL names, else of the present."""
    job = working.job_named("job")
    if job is not None and job.kind == "replay":
        return str(job.arguments["new"]), f" in the replay {plain(job.job_id)}"
    wanted = st.query_params.get("base", found.present.version)
    matching = [each for each in found.versions if each.version.startswith(wanted)]
    return (matching[0] if len(matching) == 1 else found.present).text, ""


def _form(start: str, key: str) -> str:
    """The text with the weights and rules as the form has them."""
    spec = parse_spec(start, source="the spec")
    weights: dict[str, float] = {}
    with st.container(key="weights"):
        for first in range(0, len(spec.terms), ACROSS):
            for column, term in zip(st.columns(ACROSS), spec.terms[first : first + ACROSS], strict=False):
                weights[term.name] = float(
                    column.number_input(
                        f"weight of {plain(term.name)}",
                        value=float(term.weight),
                        step=max(abs(term.weight) / 10, 0.001),
                        format="%.4g",
                        key=f"weight-{key}-{term.name}",
                        help=f"kind {plain(term.kind)}; 0: measured and kept, but not paid",
                    )
                )
    without = []
    for rule in spec.inclusion:
        kept = st.toggle(
            f"leave out of training what {plain(rule.name)} holds for",
            value=True,
            key=f"rule-{key}-{rule.name}",
            help=f"condition {plain(rule.condition)}; off: it is trained on, as the reward pays it",
        )
        if not kept:
            without.append(rule.name)
    if not spec.inclusion:
        st.caption("No rule leaves samples out of training.")
    return patching.edited(start, weights, without, why="by hand")[1]


def _text(start: str, key: str) -> str:
    return str(st.text_area("Spec (YAML)", value=start, height=420, key=f"spec-{key}", max_chars=200_000))
