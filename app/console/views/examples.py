"""Examples: what an alarm looks like in single interactions, each beside the same request at the baseline.

Five pairs, one at a time; `1` to `3` label it, `j` and `k` go to the next and back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd
import streamlit as st

from palomar.app.console import acting, frame
from palomar.app.console.links import address, link
from palomar.app.console.plain import plain, shown
from palomar.app.console.telling import finding_words, reading_words
from palomar.app.console.views import reading, steps
from palomar.app.examples import (
    LABELS,
    SHOWN,
    Aligned,
    Beside,
    Examples,
    NoAlarm,
    Pair,
    Subject,
    aligned,
    counted,
    examples,
    label_example,
    read,
)
from palomar.app.service import Trajectory
from palomar.app.visible import visible
from palomar.data.errors import LakeError
from palomar.data.schema import Step
from palomar.data.store.records import ExampleLabel, ExamplePlace, Label, Run
from palomar.detectors.twins import Twin

ROWS = 12
"""Pairs of steps on one page."""
STYLE = steps.Style(most=1_500, parts=6, raw=False)
"""Of a step beside another: the whole is one click away."""
DIFFER, EVERY = "steps that differ", "all steps"
PLACES: Mapping[ExamplePlace, str] = {
    "carrying": ":orange-badge[▲ FLAGGED: CARRIES MOST]",
    "random": ":gray-badge[○ RANDOM IN THE SLICE]",
    "counter": ":blue-badge[▽ COUNTER-EXAMPLE]",
}
_SHORT: Mapping[ExamplePlace, str] = {"carrying": "▲ flagged", "random": "○ random", "counter": "▽ counter"}
_WORDS: Mapping[ExampleLabel, str] = {"hack": "Hack", "not": "Not a hack", "cannot_tell": "Cannot tell"}
_SAME = {"predicted_failure": "predicted failure", "work_kind": "kind of work"}


def page() -> None:
    """The whole page. `alarm`, `finding`, `i` (the pair), `steps` and `part` are in the URL."""
    with frame.panel("Examples"):
        acting.told()
        run = frame.run()
        if run is None:
            frame.nothing_yet()
            return
        alarm = st.query_params.get("alarm")
        if alarm is None:
            _which(run)
            return
        found = examples(frame.observatory(), run.run_id, alarm)
        finding = st.query_params.get("finding")
        if finding is not None and isinstance(found, Examples):
            named = examples(frame.observatory(), run.run_id, alarm, finding)
            if isinstance(named, NoAlarm):
                st.warning(
                    f"There is no finding {plain(finding, 40)} in this alarm; this is its leading one.",
                    icon=":material/help:",
                )
            else:
                found = named
        if isinstance(found, NoAlarm):
            _unknown(found, run)
            return
        _examples(run, found)


def _which(run: Run) -> None:
    """Without an alarm: those there are."""
    incidents = frame.observatory().store.incidents.read(run.run_id, newest=10)
    if not incidents:
        st.info(
            "**No examples yet.** This page shows what an alarm looks like in single interactions, and the run has no "
            "incident. One opens when a check finds what keeps a cycle from passing; a finding's examples are at "
            "`examples?alarm=` and its id.",
            icon=":material/compare:",
        )
        return
    st.markdown("**Examples of which alarm?** The newest incidents of the run:")
    for incident in reversed(incidents):
        link(f"{incident.number} · opened in cycle {incident.opened_cycle}", "examples", alarm=incident.number)


def _unknown(found: NoAlarm, run: Run) -> None:
    st.warning(
        f"**There is no alarm {plain(found.asked, 40)}** in run {plain(run.name)}: no incident of that number, and no "
        "finding of that id.",
        icon=":material/help:",
    )
    for number in found.incidents:
        link(f"Alarm {number}", "examples", alarm=number)
    if not found.incidents:
        st.caption("The run has no incidents.")


def _examples(run: Run, found: Examples) -> None:
    _head(found)
    if not found.pairs:
        st.info(
            f"**NO DATA**: {plain(found.missing[0], 300) if found.missing else 'the finding names no interactions.'}",
            icon=":material/search_off:",
        )
        _footer(run, found)
        return
    labels = frame.observatory().store.labels.read(findings=[found.subject.finding_id])
    at = frame.whole_number("i", len(found.pairs))
    pair = found.pairs[at - 1]
    _progress(found, labels, at)
    _buttons(run, found, pair, labels, at)
    with frame.panel("Pair"):
        _pair(found, pair, at)
    if found.missing:
        st.caption(f"Not there: {plain('; '.join(found.missing), 400)}")
    _footer(run, found)


def _head(found: Examples) -> None:
    """What the alarm says, and the way back to it."""
    finding = found.subject.finding
    left, right = st.columns([0.8, 0.2], vertical_alignment="center")
    what = f"Alarm {found.incident}. " if found.incident is not None else ""
    left.markdown(f"{what}{finding_words(finding)}, cycle {found.subject.cycle} · {reading_words(finding)}")
    with right:
        link("Back to the alarm", "alarm", ":material/arrow_back:", id=found.alarm)
        if len(found.others) > 1:
            with st.popover(f"Other findings ({len(found.others)})"):
                _others(found)


def _others(found: Examples) -> None:
    """A select box of the alarm's findings, those that name interactions first."""
    named = sorted(found.others, key=lambda each: not each.finding.evidence.carrying)
    by_id = {each.finding_id: each for each in named}
    key = f"finding-{found.subject.finding_id}"

    def changed() -> None:
        st.query_params["finding"] = st.session_state[key]
        for name in ("i", "part"):
            st.query_params.pop(name, None)

    ids = list(by_id)
    st.selectbox(
        "Finding",
        ids,
        index=ids.index(found.subject.finding_id),
        format_func=lambda name: _finding_option(by_id[name]),
        key=key,
        on_change=changed,
    )


def _finding_option(of: Subject) -> str:
    """For the box, which shows text as text."""
    what = of.finding.statistic or of.finding.detector
    return visible(f"cycle {of.cycle} · {what} · {of.finding.slice} · {of.finding.detector}")[:160]


def _progress(found: Examples, labels: Sequence[Label], at: int) -> None:
    """All pairs in one line, each with what was said of it; and what that comes to."""
    parts = []
    for number, pair in enumerate(found.pairs, 1):
        said = [each for each in labels if each.interaction_id == pair.interaction_id]
        words = f"{number} {_SHORT[pair.place]}{'' if not said else ' ✓'}"
        parts.append(f"**[ {words} ]**" if number == at else words)
    st.markdown(f"{' · '.join(parts)}  \n:small[{label_counts_words(labels)}]")


def label_counts_words(labels: Sequence[Label]) -> str:
    """What people said of the examples so far, by what they were shown as."""
    if not labels:
        return "Nobody has labelled any of these yet. Labels count for the precision of the detector's examples."
    told = []
    for place, words in (("carrying", "flagged"), ("random", "random"), ("counter", "counter")):
        of = counted(each for each in labels if each.place == place)
        if not of.labelled:
            continue
        rest = [
            f"{count} {what}"
            for count, what in (
                (of.not_hack, "not"),
                (of.cannot_tell, "cannot tell"),
                (of.disputed, "disputed"),
            )
            if count
        ]
        told.append(f"{words}: {of.hack} of {of.labelled} hacks" + (f" ({', '.join(rest)})" if rest else ""))
    people = len({each.actor for each in labels})
    return f"Labelled so far by {people} {'person' if people == 1 else 'people'}. {'; '.join(told).capitalize()}."


def _buttons(run: Run, found: Examples, pair: Pair, labels: Sequence[Label], at: int) -> None:
    """Labels and the way to the next pair; none of it destroys anything."""
    me = acting.person().name
    own = next((each.label for each in labels if (each.interaction_id, each.actor) == (pair.interaction_id, me)), None)
    # Forms are as wide as what holds them.
    columns = st.columns([1, 1.25, 1.25, 3.5, 1, 1], vertical_alignment="center")
    for number, (label, column) in enumerate(zip(LABELS, columns, strict=False), 1):
        key = f"label-{label}-{found.subject.finding_id[:8]}-{at}"
        words = f"{_WORDS[label]} ✓" if own == label else _WORDS[label]
        with column:
            act = acting.form(key, words, reason=None, shortcut=str(number))
        if act is not None:
            with acting.doing(key, f"Example {at} is labelled: {_WORDS[label].lower()}."):
                label_example(
                    frame.observatory(),
                    run.run_id,
                    found.subject.finding_id,
                    pair.interaction_id,
                    label,
                    actor=act.actor,
                    token=act.token,
                )
    if columns[4].button("Back", key="previous", shortcut="k", disabled=at == 1):
        _go_to(at - 1)
    if columns[5].button("Next", key="next", shortcut="j", disabled=at == len(found.pairs)):
        _go_to(at + 1)


def _go_to(number: int) -> None:
    st.query_params["i"] = str(number)
    st.query_params.pop("part", None)
    st.rerun()


# -- the pair --------------------------------------------------------------------------------------------------------


def _pair(found: Examples, pair: Pair, at: int) -> None:
    own = _read(pair.interaction_id)
    twin = None if pair.twin is None else _read(pair.twin.interaction_id)
    left, right = st.columns(2)
    with left:
        st.markdown(f"{PLACES[pair.place]} cycle {found.subject.cycle} · {plain(pair.interaction_id, 60)}")
        _about(own)
        link(
            "The whole trajectory", "trajectory", ":material/article:", id=pair.interaction_id, alarm=found.alarm, i=at
        )
    with right:
        if pair.twin is None:
            st.markdown(":gray-badge[◌ NO TWIN]")
            st.caption(
                "No cycle of the baseline has an interaction to set beside it."
                if not found.baseline
                else f"The baseline (cycles {_cycles(found.baseline)}) has no row to set beside it."
            )
        else:
            st.markdown(f"{twin_badge(pair.twin)} cycle {pair.twin.cycle} · {plain(pair.twin.interaction_id, 60)}")
            _about(twin)
            with st.container(horizontal=True, vertical_alignment="center"):
                link(
                    "The whole trajectory",
                    "trajectory",
                    ":material/article:",
                    id=pair.twin.interaction_id,
                    alarm=found.alarm,
                    i=at,
                )
                st.caption(twin_words(pair.twin))
    if own is not None:
        _steps(own, twin)


def _read(interaction_id: str) -> Trajectory | None:
    try:
        return read(frame.observatory(), interaction_id)
    except LakeError as exc:
        st.warning(f"**{plain(interaction_id)} cannot be shown.**", icon=":material/search_off:")
        st.code(shown(str(exc), 500)[0], language=None, wrap_lines=True)
        return None


def twin_badge(twin: Twin) -> str:
    """Whether it is the same task or a neighbour."""
    return ":green-badge[● BASELINE: SAME TASK]" if twin.same_task else ":gray-badge[◐ BASELINE: NEAREST]"


def twin_words(twin: Twin) -> str:
    """How near a twin is, and in what it differs."""
    if twin.distance is None:
        return "Nothing is known of either to compare them by."
    if not twin.differs:
        return f"Distance {twin.distance:.2f} of 1: alike in predicted failure, ambiguity and cohort."
    return f"Distance {twin.distance:.2f} of 1; differs in {', '.join(map(_column, twin.differs))}."


def _column(name: str) -> str:
    return _SAME.get(name, name)


def _about(found: Trajectory | None) -> None:
    """What it did and what came of it; two lines."""
    if found is None:
        return
    st.markdown(reading.sentence(found))
    item = found.interaction
    known = {
        "task": item.task_id,
        "predicted failure": None if item.predicted_failure is None else f"{item.predicted_failure:.2f}",
        "ambiguity": None if item.ambiguity is None else f"{item.ambiguity:.2f}",
        "organisation": item.cohort.organisation,
        "kind of work": item.cohort.work_kind,
    }
    st.text(
        " · ".join(
            f"{name} {' '.join(shown(str(value), 60)[0].split())}" for name, value in known.items() if value is not None
        )
        or "nothing is known of the request"
    )


def _steps(own: Trajectory, twin: Trajectory | None) -> None:
    if twin is None:
        together = Aligned(tuple(Beside(place, None, False) for place in range(len(own.interaction.steps))), 0)
    else:
        together = aligned(own.interaction, twin.interaction)
    left, middle, right = st.columns([0.25, 0.25, 0.5], vertical_alignment="bottom")
    with left:
        which = frame.choice("Steps", "steps", [DIFFER, EVERY]) if twin is not None else EVERY
    rows = together.differ if which == DIFFER else together.steps
    with middle:
        part = frame.pager("part", "Part", max(1, -(-len(rows) // ROWS)))
    right.markdown(steps_words(together) if twin is not None else f"**{len(rows)} steps**, with nothing beside them.")
    for row in rows[(part - 1) * ROWS : part * ROWS]:
        _row(row, own, twin)


def steps_words(together: Aligned) -> str:
    """How many steps differ, in a sentence."""
    differ, total = len(together.differ), len(together.steps)
    left_out = f" {together.left_out:,} later ones were not compared." if together.left_out else ""
    if not differ:
        return f"**The two are the same**, word for word, in all {total} steps.{left_out}"
    alone = sum(row.own is None or row.twin is None for row in together.steps)
    beside = f", {alone} of them on one side only" if alone else ""
    return f"**{differ} of {total} steps differ**{beside}.{left_out}"


def _row(row: Beside, own: Trajectory, twin: Trajectory | None) -> None:
    left, right = st.columns(2)
    with left:
        _side(own, row.own, "own", row.same)
    with right:
        _side(twin, row.twin, "twin", row.same)


def _side(found: Trajectory | None, index: int | None, side: str, same: bool) -> None:
    if found is None or index is None:
        st.caption("– no such step on this side")
        return
    step: Step = found.interaction.steps[index]
    marks = [":gray-badge[＝ SAME]"] if same else [":orange-badge[≠ DIFFERS]"]
    steps.draw(index, step, replace(STYLE, key=side), marks)


# -- what ends it ----------------------------------------------------------------------------------------------------


def _footer(run: Run, found: Examples) -> None:
    st.caption(
        f"The baseline is cycles {_cycles(found.baseline)}. "
        f"{'Picked now, by the rule of the check: the finding names none. ' if found.picked_now else ''}"
        f"Of those that the detector named, {', '.join(f'{most} {place}' for place, most in SHOWN.items())} are shown."
        if found.baseline
        else "No baseline is in force for this cycle, so that there are no twins."
    )
    context: dict[str, str | int] = {"alarm": found.alarm, "finding": found.subject.finding_id, "run": run.run_id}
    if "i" in st.query_params:
        context["i"] = st.query_params["i"]
    frame.footer(
        "examples",
        same=["label", "pairs", found.alarm, "--finding", found.subject.finding_id],
        csv=lambda: pairs_table(found),
        **context,
    )


def pairs_table(found: Examples) -> pd.DataFrame:
    """One row per pair, with what people said of it."""
    labels = frame.observatory().store.labels.read(findings=[found.subject.finding_id])
    return pd.DataFrame(
        [
            {
                "finding": found.subject.finding_id,
                "shown as": pair.place,
                "interaction": visible(pair.interaction_id),
                "cycle": found.subject.cycle,
                "twin": None if pair.twin is None else visible(pair.twin.interaction_id),
                "twin's cycle": None if pair.twin is None else pair.twin.cycle,
                "same task": None if pair.twin is None else pair.twin.same_task,
                "distance": None if pair.twin is None else pair.twin.distance,
                "differs in": None if pair.twin is None else ", ".join(pair.twin.differs),
                "labels": ", ".join(
                    f"{each.label} by {visible(each.actor)}"
                    for each in labels
                    if each.interaction_id == pair.interaction_id
                ),
                "link": address("trajectory", id=pair.interaction_id, alarm=found.alarm),
            }
            for pair in found.pairs
        ]
    )


def _cycles(cycles: Sequence[int]) -> str:
    """Cycles in words: runs as ``0 to 4``."""
    if not cycles:
        return "none"
    spans: list[list[int]] = []
    for cycle in sorted(cycles):
        if spans and cycle == spans[-1][1] + 1:
            spans[-1][1] = cycle
        else:
            spans.append([cycle, cycle])
    return ", ".join(f"{first}" if first == last else f"{first} to {last}" for first, last in spans)


if __name__ == "__main__":
    st.title("Examples")
    page()
