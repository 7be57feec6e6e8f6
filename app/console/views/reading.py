"""One interaction as text: what was asked, done, reacted and paid. All of it was written by others, and stays text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from palomar.app.console import frame
from palomar.app.console.charts.steps import MOST_STEPS, reward_chart, rewards
from palomar.app.console.links import link
from palomar.app.console.plain import plain, shown
from palomar.app.console.telling import finding_words, reading_words
from palomar.app.console.views import steps
from palomar.app.console.views.listing import OUTSIDE, did
from palomar.app.examples import Citation, citations
from palomar.app.service import Trajectory
from palomar.app.visible import visible
from palomar.data.errors import LakeError
from palomar.data.schema import Feedback, Interaction
from palomar.data.store.records import Label

STEPS = 50
"""Steps on one page."""
CITED = 12
"""Findings that are told one by one."""
EXCERPTS = 5
"""Places of one finding that are told."""


def show(interaction_id: str) -> None:
    """The interaction. `step` in the URL names one of its steps, `part` one of its pages, `alarm` whence one came."""
    _back()
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
        _text("\n".join(facts[:half]), "facts")
    with middle:
        _text("\n".join(facts[half:]), "more-facts")
    with right:
        _terms(found.observation)
    with frame.panel("Findings and labels"):
        _told_of(item)
    _steps(found)
    st.subheader("Reactions")
    if not found.feedback:
        st.caption("None is known.")
    for place, event in enumerate(found.feedback):
        _reaction(event, f"reaction-{place}")
    st.subheader("Record")
    with st.expander("All columns: behaviour, reward by term, what the trainer did with it"):
        st.json({"observation": _readable(found.observation), "sample": _readable(found.sample)})
    st.download_button(
        "Record (JSON)",
        lambda: item.model_dump_json(indent=1).encode(errors="backslashreplace"),
        "interaction.json",
        "application/json",
        key="record",
        on_click="ignore",
    )
    context: dict[str, Any] = {"id": item.interaction_id}
    if "step" in st.query_params:
        context["step"] = st.query_params["step"]
    frame.footer("trajectory", same=["show", item.interaction_id], **context)


def _back() -> None:
    """To the alarm from which this was opened."""
    alarm = st.query_params.get("alarm")
    if alarm is None:
        return
    with st.container(horizontal=True):
        link("Back to the alarm", "alarm", ":material/arrow_back:", id=alarm)
        pair = st.query_params.get("i", "1")
        link("Back to its examples", "examples", ":material/arrow_back:", alarm=alarm, i=pair)


def _told_of(item: Interaction) -> None:
    """Which findings name it, at which steps, and what people say of it."""
    observatory = frame.observatory()
    run = observatory.run(st.query_params.get("run"))
    if run is None:
        return
    st.subheader("Findings and labels")
    found = citations(observatory.store, run.run_id, item)
    if not found:
        st.caption("No finding of its cycle names it. Findings name a few interactions each: silence is no clearance.")
    else:
        alarms = sorted({number for each in found for number in each.incidents})
        st.markdown(
            f"**Named by {len(found)} finding{'' if len(found) == 1 else 's'}** of cycle {item.cycle}"
            + (f", which belong to incident {', '.join(map(str, alarms))}." if alarms else ", part of no incident.")
        )
    for each in found[:CITED]:
        _citation(each, item)
    if len(found) > CITED:
        st.caption(f"{len(found) - CITED} more are left out here.")
    labels = observatory.store.labels.read(interaction_id=item.interaction_id)
    st.markdown(label_words(labels) if labels else ":gray-badge[○ NOBODY LABELLED IT]")


_PLACES = {
    "carrying": ":orange-badge[▲ CARRIES IT]",
    "random": ":gray-badge[○ USUAL THERE]",
    "counter": ":blue-badge[▽ SPEAKS AGAINST IT]",
}
LABEL_BADGES = {
    "hack": ":red-badge[■ HACK]",
    "not": ":green-badge[● NOT A HACK]",
    "cannot_tell": ":gray-badge[◌ CANNOT TELL]",
}


def _citation(each: Citation, item: Interaction) -> None:
    left, right = st.columns([0.84, 0.16], vertical_alignment="center")
    left.markdown(f"{_PLACES[each.place]} {finding_words(each.finding)} · {reading_words(each.finding)}")
    alarm = str(each.incidents[0]) if each.incidents else each.finding_id
    with right:
        link(f"Alarm {each.incidents[0]}" if each.incidents else "The finding", "alarm", id=alarm)
    for step, excerpt in each.steps[:EXCERPTS]:
        left, right = st.columns([0.84, 0.16], vertical_alignment="center")
        with left:
            st.code(shown(excerpt, 300)[0], language=None, wrap_lines=True)
        with right:
            link(f"Step {step}", "trajectory", id=item.interaction_id, step=step)


def label_words(labels: Sequence[Label]) -> str:
    """Who says what of it, as Markdown; a person who labelled it for several findings is told once for each word."""
    said = dict.fromkeys((label.label, label.actor) for label in labels)
    return " · ".join(f"{LABEL_BADGES[label]} by {plain(actor, 60)}" for label, actor in said)


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
    _rewards(found.interaction, marked)
    start = (frame.pager("part", "Part of the steps", parts) - 1) * STEPS
    for index, step in enumerate(found.interaction.steps[start : start + STEPS], start):
        steps.draw(index, step, marks=[":blue-badge[➤ THIS STEP]"] if index == marked else ())


def _rewards(item: Interaction, marked: int | None) -> None:
    """Reward by step, where the log has any."""
    known = [(index, step.reward) for index, step in enumerate(item.steps) if step.reward is not None]
    if not known:
        return
    best, worst = max(known, key=lambda pair: pair[1]), min(known, key=lambda pair: pair[1])
    st.markdown(
        f"**{len(known):,} of {len(item.steps):,} steps have a reward**, {sum(value for _, value in known):+.3g} in "
        f"all; the most in step {best[0]} ({best[1]:+.3g}), the least in step {worst[0]} ({worst[1]:+.3g})."
        + (f" The first {MOST_STEPS} are drawn." if len(known) > MOST_STEPS else "")
    )
    st.vega_lite_chart(
        rewards(known),
        reward_chart(frame.theme(), last=known[:MOST_STEPS][-1][0], marked=marked),
        key="reward-by-step",
        width="stretch",
        alt=f"Reward by step: {known[0][1]:+.3g} in step {known[0][0]}, {known[-1][1]:+.3g} in step {known[-1][0]}",
    )


def _marked(total: int) -> int | None:
    wanted = st.query_params.get("step")
    if wanted is None:
        return None
    if wanted.isascii() and wanted.isdigit() and len(wanted) < 9 and int(wanted) < total:
        return int(wanted)
    st.warning(f"There is no step {plain(wanted)} here; they are numbered 0 to {total - 1}.", icon=":material/help:")
    return None


def _reaction(event: Feedback, key: str) -> None:
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
        _text(event.text, key)


def _text(text: str, key: str) -> None:
    steps.text(text, steps.FULL, key)


def _readable(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: str(value) if hasattr(value, "isoformat") else visible(value) if isinstance(value, str) else value
        for name, value in row.items()
        if value is not None
    }
