"""Overview: is anything wrong now?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import pandas as pd
import streamlit as st

from palomar.app.console import frame
from palomar.app.console.charts.timeline import rows, said, timeline_chart
from palomar.app.console.links import address, link
from palomar.app.console.plain import plain
from palomar.app.console.states import OF_VERDICT, words
from palomar.app.console.tables import in_words, points_table, slice_in_words
from palomar.app.console.telling import finding_words, incident_words, reading_words, severity_badge, state_badge
from palomar.app.now import Now, Timeline, standing, timeline
from palomar.app.service import HACKS, OUTCOME_DOWN, REWARD_UP, CycleView, SourceCount, Watch, definition
from palomar.data.slices import ALL
from palomar.data.store.records import Run, Statistic
from palomar.detectors.departure import BASE_CYCLES, RUNNING, Departure

LANES = ("training_reward_mean", "outcome_mean")
TABLE_CYCLES = 40
MOST_ALARMS = 3
COLUMNS = {
    "training_reward_mean": "training reward",
    "outcome_mean": "users' outcome",
    "edit_rate": "edit rate",
    "clarification_rate": "asks",
    "invalid_call_rate": "invalid calls",
    "functions_per_edit": "functions per edit",
}
"""Figures of the table of cycles by the words that head them."""


@st.fragment(run_every=frame.REFRESH_S)
def page() -> None:
    """The whole page; it looks for news by itself while a run goes on."""
    with frame.panel("Overview"):
        run = frame.run()
        if run is None:
            _logs()
        else:
            _run(run)


def _run(run: Run) -> None:
    observatory = frame.observatory()
    views = observatory.cycles(run.run_id, newest=TABLE_CYCLES, figures=COLUMNS)
    if not any(view.figures for view in views):
        st.info(
            "**The first cycle is being collected.** Its statistics come when it is distilled; this page then fills by "
            "itself.",
            icon=":material/hourglass_top:",
        )
        return
    now = standing(observatory.store, run)
    if now.word == "unchecked":
        _first_look(run)
    else:
        _answer(now)
        _alarms(now)
    happened = timeline(observatory.store, run.run_id)
    with frame.panel("Timeline"):
        _timeline(run, happened)
    if now.word != "unchecked" and st.toggle("First look at the watched series", key="first-look"):
        with frame.panel("First look"):
            _first_look(run)
    _cycles(views, happened)
    frame.footer(
        "overview",
        same=["stats"],
        csv=lambda: cycles_table(list(reversed(observatory.cycles(run.run_id, figures=COLUMNS))), happened),
        run=run.run_id,
    )


def _first_look(run: Run) -> None:
    """What has left the level of the first cycles: for a run that was not checked."""
    observatory = frame.observatory()
    moved = observatory.departures(run.run_id)
    seen = observatory.seen(run.run_id, moved)
    assessed = observatory.assessed(run.run_id)
    _headline(seen, assessed, observatory.measured_cycles(run.run_id))
    for name in HACKS:
        _hack(name, seen[name], name in assessed)
    other = [item for item in moved if item not in seen.values()]
    if other:
        st.markdown("Also away from the level of the first cycles:")
        for item in other:
            _row(":orange-badge[▲ UP]" if item.direction == "up" else ":orange-badge[▼ DOWN]", sentence(item), item)


def _answer(now: Now) -> None:
    """Is anything wrong now? One sentence, from what is kept."""
    show, icon = {
        "wrong": (st.error, ":material/error:"),
        "doubt": (st.warning, ":material/help:"),
        "look": (st.warning, ":material/warning:"),
    }.get(now.word, (st.success, ":material/check_circle:"))
    show(answer(now), icon=icon)


def answer(now: Now) -> str:
    """The answer as Markdown."""
    verdict, open_ = now.verdict, len(now.alarms)
    blocking = sum(each.blocks and each.state != "mitigated" for each in now.alarms)
    unseen = sum(each.state == "open" for each in now.alarms)
    alarms = f"{open_} alarm{'' if open_ == 1 else 's'} {'is' if open_ == 1 else 'are'} open" if open_ else ""
    if unseen:
        alarms += f", {unseen} not acknowledged"
    if verdict is None:
        return f"**No cycle was checked, and {alarms}.**"
    cycle = f"cycle {verdict.cycle}"
    if verdict.verdict == "block":
        text = f"**Yes, something is wrong: {cycle} is blocked**" + (f"; {alarms}." if alarms else ".")
    elif blocking:
        text = f"**Yes: {alarms}**, though the check of {cycle} says {verdict.verdict.replace('_', ' ')}."
    elif verdict.verdict == "not_assessable":
        text = f"**Cannot be said: {cycle} could not be judged**" + (f"; {alarms}." if alarms else ".")
    elif verdict.verdict == "warn":
        text = f"**Nothing that blocks; somebody should look: {cycle} has warnings**" + (
            f"; {alarms}." if alarms else "."
        )
    elif alarms:
        text = f"**{cycle.capitalize()} passes; {alarms}.**"
    else:
        text = f"**No. {cycle.capitalize()} was checked and passes**, and no alarm is open."
    if now.lead is not None:
        text += f" First: {finding_words(now.lead.finding)}; {reading_words(now.lead.finding)}."
    elif verdict.verdict != "pass":
        text += f" The check says: {plain(verdict.sentence, 240)}."
    behind = None if now.data.cycle is None else now.data.cycle - verdict.cycle
    if behind:
        text += f" {behind} newer cycle{' is' if behind == 1 else 's are'} not checked yet."
    return text


def _alarms(now: Now) -> None:
    """The worst alarms, each with its state and a link."""
    for incident in now.alarms[:MOST_ALARMS]:
        left, right = st.columns([0.72, 0.28], vertical_alignment="center")
        owner = "nobody has it" if incident.assignee is None else f"{plain(incident.assignee, 40)} has it"
        left.markdown(
            f"{severity_badge(incident)} {state_badge(incident)} **{incident.number}** · {incident_words(incident)} · "
            f"cycles {incident.opened_cycle} to {incident.seen_cycle} · {owner}"
        )
        with right:
            link(f"Alarm {incident.number}", "alarm", ":material/notifications_active:", id=incident.number)
    rest = len(now.alarms) - MOST_ALARMS
    if rest > 0:
        link(f"{rest} more alarms", "alarms", ":material/list:")


def _timeline(run: Run, happened: Timeline) -> None:
    series = frame.observatory().series(run.run_id, LANES, [ALL])
    reward, outcome = ([point for point in series if point.statistic == name] for name in LANES)
    st.markdown(
        " · ".join(
            f"**{name}** {latest(points)}"
            for name, points in (("Training reward", reward), ("users' outcome", outcome))
        )
    )
    st.vega_lite_chart(
        rows(happened, reward, outcome),
        timeline_chart(happened, reward, outcome, frame.theme()),
        key="timeline",
        width="stretch",
        alt=said(happened),
    )
    st.caption(
        "Bands are 95 % intervals. Circle: passes, promoted. Triangle: warns, held. Square: blocks; an alarm opened. "
        "Cross: could not be judged. No mark: not checked, not decided."
    )


def latest(points: Sequence[Statistic]) -> str:
    """The last value that is known, with its interval."""
    known = [point for point in points if point.value is not None]
    if not known:
        return "NO DATA: feedback has to come in first"
    last = known[-1]
    return f"{last.value:.3g} in cycle {last.cycle} ({last.low:.3g} to {last.high:.3g}, n {last.n:,})"


def _headline(seen: Mapping[str, Departure | None], assessed: Set[str], measured: int) -> None:
    if measured < BASE_CYCLES + RUNNING:
        st.info(
            f"**Too early to say.** {measured} of the {BASE_CYCLES + RUNNING} cycles that a comparison needs are "
            "measured.",
            icon=":material/hourglass_top:",
        )
        return
    text, wrong = headline(seen, assessed)
    (st.warning if wrong else st.success)(text, icon=":material/warning:" if wrong else ":material/check_circle:")


def headline(seen: Mapping[str, Departure | None], assessed: Set[str]) -> tuple[str, bool]:
    """The answer to "is anything wrong now?" in Markdown, and whether something is."""
    hacks = [name for name in HACKS if seen[name] is not None]
    reward, outcome = seen[REWARD_UP], seen[OUTCOME_DOWN]
    named = f"{len(hacks)} of {len(HACKS)} known hacks show{'s' if len(hacks) == 1 else ''}"
    if reward is not None and outcome is not None:
        text = (
            f"**The training reward rises and users are served worse.** Training reward {_change(reward)}, "
            f"users' outcome {_change(outcome)}. {named}."
        )
    elif outcome is not None:
        text = f"**Users are served worse.** Users' outcome {_change(outcome)}. {named}."
    elif hacks:
        text = f"**{named}.**" + (f" Training reward {_change(reward)}." if reward is not None else "")
    elif reward is not None:
        text = f"**The training reward rises and no known hack shows.** Training reward {_change(reward)}."
    else:
        text = "**No known hack shows.** Nothing watched has left the level of the first cycles to its bad side."
    blind = [name for name in HACKS if name not in assessed]
    if blind:
        text += f" NOT ASSESSED, for want of data: {', '.join(blind)}."
    return f"{text} A first look at the watched series, not a verdict.", bool(hacks) or outcome is not None


def _change(item: Departure) -> str:
    return f"{item.base:.3g} → {item.latest:.3g} (since cycle {item.since_cycle})"


def _hack(name: str, item: Departure | None, assessed: bool) -> None:
    if item is None:
        watched = ", ".join(_watch(watch) for watch in HACKS[name])
        state = ":green-badge[○ NOT SEEN]" if assessed else ":gray-badge[◌ NOT ASSESSED]"
        st.markdown(f"{state} **{name}** · watched: {watched}")
    else:
        _row(":orange-badge[▲ SEEN]", f"**{name}** · {sentence(item)}", item)


def _watch(watch: Watch) -> str:
    where = "" if watch.slice == ALL else f" where {slice_in_words(watch.slice)}"
    return f"{in_words(watch.statistic).lower()}{where} {watch.direction}"


def _row(badge: str, text: str, item: Departure) -> None:
    left, right = st.columns([0.86, 0.14], vertical_alignment="center")
    left.markdown(f"{badge} {text}")
    with right:
        link("See the chart", "behaviour", ":material/show_chart:", slice=item.slice, stat=item.statistic)


def sentence(item: Departure) -> str:
    """One departure in words and numbers, as Markdown."""
    statistic = definition(item.statistic)
    unit = "" if statistic is None else f" {statistic.unit}"
    where = "" if item.slice == ALL else f" where {slice_in_words(item.slice)}"
    return (
        f"{in_words(item.statistic)}{where}: {item.base:.3g} → {item.latest:.3g}{unit} in cycle {item.latest_cycle}, "
        f"away since cycle {item.since_cycle} (z {item.z:+.1f})"
    )


def _cycles(views: Sequence[CycleView], happened: Timeline) -> None:
    st.subheader("Cycles")
    st.dataframe(
        cycles_table(list(reversed(views)), happened),
        hide_index=True,
        key="cycles",
        placeholder="–",
        alt="The last cycles with the check's and the gate's word and the main figures",
        column_config={
            **{words: st.column_config.NumberColumn(format="%.3f") for words in COLUMNS.values()},
            "feedback in": st.column_config.ProgressColumn(
                format="percent", min_value=0, max_value=1, help="Share of the outcomes that are mature."
            ),
            "interactions": st.column_config.NumberColumn(format="localized"),
            "list": st.column_config.LinkColumn(display_text="open", help="The cycle's interactions."),
            "decided": st.column_config.LinkColumn(display_text="why", help="The gate's page on the candidate."),
        },
    )
    if len(happened.moments) > len(views):
        st.caption(f"The table shows the last {len(views)} of {len(happened.moments)} cycles; the file has all.")


def cycles_table(views: Sequence[CycleView], happened: Timeline) -> pd.DataFrame:
    """One row per cycle, in the order given."""
    outcomes = [view.figures.get("outcome_mean") for view in views]
    checked = {moment.cycle: moment for moment in happened.moments}
    verdicts = [checked[view.record.cycle].verdict if view.record.cycle in checked else None for view in views]
    return pd.DataFrame(
        {
            "cycle": [view.record.cycle for view in views],
            "list": [address("trajectory", cycle=view.record.cycle) for view in views],
            "check": ["◌ not checked" if word is None else words(OF_VERDICT[word]) for word in verdicts],
            "gate": [frame.SYMBOLS[view.verdict] for view in views],
            "decided": [
                None if view.decision is None else address("gate", ckpt=view.decision.candidate) for view in views
            ],
            **{
                words_: [None if (point := view.figures.get(name)) is None else point.value for view in views]
                for name, words_ in COLUMNS.items()
            },
            "feedback in": [None if point is None else point.maturity for point in outcomes],
            "interactions": [None if (point := view.figures.get("edit_rate")) is None else point.n for view in views],
            "why the gate says so": [", ".join(view.reasons).replace("_", " ") for view in views],
            "served by": [view.record.checkpoint_id for view in views],
            "reward version": [view.record.reward_version for view in views],
            "seconds": [round(view.elapsed_s, 1) for view in views],
        }
    )


def _logs() -> None:
    """A home without a run: what was ingested, or what to do."""
    sources = frame.observatory().sources()
    quarantined = frame.observatory().quarantined()
    if not sources:
        if quarantined:
            st.warning(f"**Nothing could be read.** In quarantine: {_kinds(quarantined)}.", icon=":material/warning:")
        frame.nothing_yet()
        return
    total = sum(item.interactions for item in sources)
    formats = f"{len(sources)} format{'' if len(sources) == 1 else 's'}"
    st.info(
        f"**{total:,} interactions from {formats} are in this home, and no loop has run here.** So there are figures "
        "and trajectories, but no reward version, no gate and nothing to compare with.",
        icon=":material/inbox:",
    )
    st.markdown(
        f":orange-badge[▲ QUARANTINE] {sum(quarantined.values()):,} records could not be read: {_kinds(quarantined)}. "
        "What and why is in the home's `quarantine` folder."
        if quarantined
        else ":green-badge[● NOTHING IN QUARANTINE]"
    )
    st.dataframe(sources_table(sources), hide_index=True, key="sources", alt="What was ingested, by log format")
    left, right = st.columns(2)
    with left:
        link("All statistics, by slice", "behaviour", ":material/show_chart:", slice=ALL)
    with right:
        link("Read the trajectories", "trajectory", ":material/article:")
    st.subheader("What the agent did")
    behaviour = frame.observatory().behaviour(None)
    points_table([points[-1] for points in behaviour.series.values()], key="logs")


def _kinds(quarantined: Mapping[str, int]) -> str:
    return ", ".join(f"{kind.replace('_', ' ')} {count:,}" for kind, count in quarantined.items())


def sources_table(sources: Sequence[SourceCount]) -> pd.DataFrame:
    """One row per log format."""
    return pd.DataFrame(
        {
            "format": [item.source for item in sources],
            "interactions": [item.interactions for item in sources],
            "conversations": [item.conversations for item in sources],
            "first (UTC)": [_moment(item.first) for item in sources],
            "last (UTC)": [_moment(item.last) for item in sources],
        }
    )


def _moment(at: object) -> str:
    return "no times in the log" if at is None else f"{at:%Y-%m-%d %H:%M}"


if __name__ == "__main__":
    st.title("Overview")
    page()
