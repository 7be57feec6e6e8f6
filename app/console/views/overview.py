"""Overview: is anything wrong now?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import pandas as pd
import streamlit as st

from palomar.app.console import frame
from palomar.app.console.charts.base import BLUE, ORANGE
from palomar.app.console.charts.control import Panel, control_series, drawn, said
from palomar.app.console.links import address, link
from palomar.app.console.tables import in_words, points_table, slice_in_words
from palomar.app.service import HACKS, OUTCOME_DOWN, REWARD_UP, CycleView, SourceCount, Watch, definition
from palomar.data.slices import ALL
from palomar.data.store.records import Run, Statistic
from palomar.detectors.departure import BASE_CYCLES, RUNNING, Departure

LANES = (("training_reward_mean", BLUE), ("outcome_mean", ORANGE))
TABLE_CYCLES = 40
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
    views = observatory.cycles(run.run_id)
    if not any(view.figures for view in views):
        st.info(
            "**The first cycle is being collected.** Its statistics come when it is distilled; this page then fills by "
            "itself.",
            icon=":material/hourglass_top:",
        )
        return
    measured = sum(bool(view.figures) for view in views)
    moved = observatory.departures(run.run_id)
    seen = observatory.seen(run.run_id, moved)
    assessed = observatory.assessed(run.run_id)
    _headline(seen, assessed, measured)
    for name in HACKS:
        _hack(name, seen[name], name in assessed)
    other = [item for item in moved if item not in seen.values()]
    if other:
        st.markdown("Also away from the level of the first cycles:")
        for item in other:
            _row(":orange-badge[▲ UP]" if item.direction == "up" else ":orange-badge[▼ DOWN]", sentence(item), item)
    _lanes(run)
    _cycles(views)


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


def _lanes(run: Run) -> None:
    series = frame.observatory().series(run.run_id, [name for name, _ in LANES], [ALL])
    cycles = [point.cycle for point in series]
    for column, (name, colour) in zip(st.columns(len(LANES)), LANES, strict=True):
        points = [point for point in series if point.statistic == name]
        with column, st.container(border=True):
            _lane(name, colour, points, min(cycles, default=0), max(cycles, default=0))
    st.caption(
        "Bands are 95 % intervals. Hollow diamonds: part of the feedback is still to come, and the point may move."
    )


def _lane(name: str, colour: str, points: Sequence[Statistic], first: int, last: int) -> None:
    statistic = definition(name)
    assert statistic is not None
    known = [point for point in points if point.value is not None]
    if not known:
        st.markdown(f"**{statistic.title}** · NO DATA: feedback has to come in first")
        return
    latest = known[-1]
    st.markdown(
        f"**{statistic.title}** · {latest.value:.3g} {statistic.unit} in cycle {latest.cycle} "
        f"({latest.low:.3g} to {latest.high:.3g}, n {latest.n:,})"
    )
    panel = Panel(statistic.title, statistic.unit, points)
    spec = control_series(panel, frame.theme(), colour=colour, first_cycle=first, last_cycle=last, height=150)
    st.vega_lite_chart(drawn(points), spec, key=f"lane-{name}", width="stretch", alt=said(panel))


def _cycles(views: Sequence[CycleView]) -> None:
    st.subheader("Cycles")
    newest = list(reversed(views))[:TABLE_CYCLES]
    st.dataframe(
        cycles_table(newest),
        hide_index=True,
        key="cycles",
        placeholder="–",
        alt="The last cycles with the gate's word and the main figures",
        column_config={
            **{words: st.column_config.NumberColumn(format="%.3f") for words in COLUMNS.values()},
            "feedback in": st.column_config.ProgressColumn(
                format="percent", min_value=0, max_value=1, help="Share of the outcomes that are mature."
            ),
            "interactions": st.column_config.NumberColumn(format="localized"),
            "list": st.column_config.LinkColumn(display_text="open", help="The cycle's interactions."),
        },
    )
    older = f". The table shows the last {TABLE_CYCLES} of {len(views)}." if len(views) > TABLE_CYCLES else ""
    left, right = st.columns([0.2, 0.8], vertical_alignment="center")
    left.download_button(
        "CSV (all cycles)",
        lambda: cycles_table(list(reversed(views))).to_csv(index=False).encode(),
        "cycles.csv",
        "text/csv",
        key="cycles-csv",
        on_click="ignore",
    )
    right.caption(frame.same_by("stats") + older)


def cycles_table(views: Sequence[CycleView]) -> pd.DataFrame:
    """One row per cycle, in the order given."""
    outcomes = [view.figures.get("outcome_mean") for view in views]
    return pd.DataFrame(
        {
            "cycle": [view.record.cycle for view in views],
            "list": [address("trajectory", cycle=view.record.cycle) for view in views],
            "gate": [frame.SYMBOLS[view.verdict] for view in views],
            **{
                words: [None if (point := view.figures.get(name)) is None else point.value for view in views]
                for name, words in COLUMNS.items()
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
