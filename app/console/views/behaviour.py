"""Behaviour: every statistic over the cycles, in one slice, as small multiples; one of them large on demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pandas as pd
import streamlit as st

from palomar.app.console import frame
from palomar.app.console.charts.control import MOST_CYCLES, Panel, control_series, drawn, said
from palomar.app.console.links import link
from palomar.app.console.plain import plain
from palomar.app.console.tables import in_words, points_table, slice_words, title, unit, without_data
from palomar.app.service import WATCHED, Behaviour, definition
from palomar.data.slices import ALL
from palomar.data.store.records import Statistic

COLUMNS = 3
WATCHED_GROUP, MOVED_GROUP, EVERY_GROUP = "known hacks, reward, outcome", "all that moved", "all"
NAMED = 6
"""Moved statistics that are named in a sentence."""
_WATCHED = {watch.statistic for watch in WATCHED}
GROUPS: Mapping[str, Callable[[str], bool]] = {
    "reward": lambda name: name.startswith(("reward", "logged_reward", "term:", "excluded")),
    "users": lambda name: name.startswith(("outcome", "dissatisfied", "edit_persistence", "latency")),
    "tool calls": lambda name: name.startswith("invalid") or name.endswith("_call_rate"),
    "code": lambda name: name.startswith(("function", "complexity", "test_pass")),
    "what it does": lambda name: True,
}
"""Subjects by name; a statistic belongs to the first that takes it."""


def page() -> None:
    """The whole page. `slice`, `group` and `stat` are in the URL."""
    with frame.panel("Behaviour"):
        observatory = frame.observatory()
        run = frame.run()
        if run is None and not observatory.lake.files("observations"):
            frame.nothing_yet()
            return
        run_id = None if run is None else run.run_id
        wanted = st.query_params.get("slice", ALL)
        found = observatory.behaviour(run_id, wanted)
        if not found.slices:
            st.info(
                "**No statistics yet.** They come when the first cycle is distilled; reload then.",
                icon=":material/hourglass_top:",
            )
            return
        left, right = st.columns([0.5, 0.5])
        with left:
            chosen = frame.choice("Slice", "slice", found.slices, slice_words, ALL)
        if chosen != wanted:
            found = observatory.behaviour(run_id, chosen)
        _body(found, right)


def _body(found: Behaviour, beside: object) -> None:
    looped = {
        name: kept for name, points in found.series.items() if (kept := [at for at in points if at.cycle is not None])
    }
    one = st.query_params.get("stat")
    if one is not None and one not in found.series:
        st.warning(f"There is no statistic {plain(one)} in this slice; these are all.", icon=":material/help:")
        one = None
    if one is not None:
        _large(found, one)
    elif looped:
        _multiples(found, looped, beside)
    else:
        st.markdown(
            f"**{_count(found):,} interactions outside a loop**: one figure each, and no cycles to draw them over."
        )
        points_table([points[-1] for points in found.series.values()], key="logs")
    _footer(found, one)


def _count(found: Behaviour) -> int:
    return max((point.n for point in found.series.get("edit_rate", ())), default=0)


def _multiples(found: Behaviour, looped: Mapping[str, Sequence[Statistic]], beside: object) -> None:
    with beside:  # type: ignore[attr-defined]
        chosen = frame.choice("Statistics", "group", [WATCHED_GROUP, MOVED_GROUP, *GROUPS, EVERY_GROUP])
    names = in_group(chosen, looped, found)
    cycles = [point.cycle for points in looped.values() for point in points]
    first, last = min(cycles), max(cycles)
    moved = [name for name in names if name in found.departures]
    named = [in_words(name).lower() for name in moved[:NAMED]]
    if len(moved) > NAMED:
        named[-1] += f" and {len(moved) - NAMED} more"
    elsewhere = len(found.departures) - len(moved)
    st.markdown(
        f"**{len(moved)} of these {len(names)} have left the level of the first cycles**"
        + (f": {', '.join(named)}." if named else ".")
        + (f" So have {elsewhere} others (“{MOVED_GROUP}”)." if elsewhere else "")
    )
    charted = [name for name in names if any(point.value is not None for point in looped[name])]
    for start in range(0, len(charted), COLUMNS):
        for column, name in zip(st.columns(COLUMNS), charted[start : start + COLUMNS], strict=False):
            with column, st.container(border=True, height="stretch"):
                _small(found, name, looped[name], first, last)
    without_data([looped[name][-1] for name in names if name not in charted])
    older = f" Only the last {MOST_CYCLES} cycles are drawn." if last - first >= MOST_CYCLES else ""
    st.caption(
        f"Figures are those of cycle {last}. Bands are 95 % intervals. Dashed: the level of the first two cycles. "
        "Dotted: the cycle in which a series left it. Hollow diamonds: part of the feedback is still to come."
        f"{older}"
    )


def in_group(group: str, names: Mapping[str, object], found: Behaviour) -> list[str]:
    """Names of a group: moved ones first, then those of the known hacks, then as registered."""
    if group == WATCHED_GROUP:
        chosen = [name for name in names if name in _WATCHED]
    elif group == MOVED_GROUP:
        chosen = [name for name in names if name in found.departures]
    elif group == EVERY_GROUP:
        chosen = list(names)
    else:
        chosen = [name for name in names if next(word for word, holds in GROUPS.items() if holds(name)) == group]
    return sorted(chosen, key=lambda name: (name not in found.departures, name not in _WATCHED))


def _small(found: Behaviour, name: str, points: Sequence[Statistic], first: int, last: int) -> None:
    moved = found.departures.get(name)
    latest = next(point for point in reversed(points) if point.value is not None)
    state = ":gray-badge[○ AS BEFORE]"
    if moved is not None:
        arrow = "▲ UP" if moved.direction == "up" else "▼ DOWN"
        state = f":orange-badge[{arrow} since cycle {moved.since_cycle}]"
    behind = "" if latest.cycle == last else f" · cycle {latest.cycle}, none since"
    st.markdown(
        f"**{in_words(name)}**  \n{state}  \n:small[**{latest.value:.3g}** {unit(name)} · n {latest.n:,}{behind}]"
    )
    _chart(found, name, points, first, last, height=110, key=f"small-{name}")
    link("Enlarge", "behaviour", ":material/open_in_full:", slice=found.slice, stat=name)


def _large(found: Behaviour, name: str) -> None:
    points = found.series[name]
    looped = [point for point in points if point.cycle is not None]
    link("All statistics of this slice", "behaviour", ":material/arrow_back:", slice=found.slice)
    st.subheader(title(name) if definition(name) is not None else "A series of your own")
    statistic = definition(name)
    moved = found.departures.get(name)
    latest = next((point for point in reversed(points) if point.value is not None), None)
    if latest is None:
        st.info(f"**NO DATA**: {points[-1].status} in every cycle.", icon=":material/hourglass_top:")
    elif moved is not None:
        st.warning(
            f"**{moved.base:.3g} → {moved.latest:.3g}** {unit(name)}, away from the level of the first cycles since "
            f"cycle {moved.since_cycle} (z {moved.z:+.1f} in cycle {moved.latest_cycle}).",
            icon=":material/warning:",
        )
    else:
        st.markdown(
            f"**{latest.value:.3g}** {unit(name)} (95 %: {latest.low:.3g} to {latest.high:.3g}, n {latest.n:,})"
            + (f" in cycle {latest.cycle}; it has not left the level of the first cycles." if looped else ".")
        )
    if statistic is not None:
        st.text(statistic.description)
    if latest is not None and looped:
        _chart(found, name, looped, looped[0].cycle, looped[-1].cycle, height=300, key=f"large-{name}")
        newest = looped[-1].cycle
        link(f"Interactions of cycle {newest}", "trajectory", ":material/article:", cycle=newest)
    points_table(list(reversed(points)), key="points", cycles=True)


def _chart(
    found: Behaviour, name: str, points: Sequence[Statistic], first: int, last: int, *, height: int, key: str
) -> None:
    moved = found.departures.get(name)
    panel = Panel(
        title(name),
        unit(name),
        points,
        base=found.base.get(name),
        since_cycle=None if moved is None else moved.since_cycle,
    )
    spec = control_series(panel, frame.theme(), first_cycle=first, last_cycle=last, height=height)
    st.vega_lite_chart(drawn(points), spec, key=key, width="stretch", alt=said(panel))


def _footer(found: Behaviour, one: str | None) -> None:
    points = [point for name, series in found.series.items() for point in series if one in (None, name)]
    left, right = st.columns([0.2, 0.8], vertical_alignment="center")
    left.download_button(
        "CSV (all points)",
        lambda: pd.DataFrame([vars(point) for point in points]).to_csv(index=False).encode(),
        "behaviour.csv",
        "text/csv",
        key="csv",
        on_click="ignore",
    )
    options = [*([] if found.slice == ALL else ["--slice", found.slice]), *([] if one is None else ["--stat", one])]
    right.caption(frame.same_by("stats", *options))


if __name__ == "__main__":
    st.title("Behaviour")
    page()
