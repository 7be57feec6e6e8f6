"""Behaviour: every statistic over the cycles, in one slice, as small multiples; one of them large on demand.

Large, with the check's band, the reward versions, what was forecast and what came, the findings on it, and a second
slice or run beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set

import pandas as pd
import streamlit as st

from palomar.app.console import frame
from palomar.app.console.charts import banded
from palomar.app.console.charts.control import MOST_CYCLES, Panel, control_series, drawn, said
from palomar.app.console.links import link
from palomar.app.console.plain import plain
from palomar.app.console.states import OF_SEVERITY, badge
from palomar.app.console.tables import in_words, points_table, slice_words, title, unit, without_data
from palomar.app.console.telling import READINGS, figure, is_share, where
from palomar.app.console.waiting import WAIT_S, waiting
from palomar.app.control import Band, Control, controlled
from palomar.app.kept import Pending
from palomar.app.service import WATCHED, Behaviour, Observatory, definition
from palomar.app.visible import visible
from palomar.data.slices import ALL
from palomar.data.store.records import Run, Statistic, StoredFinding

COLUMNS = 3
WATCHED_GROUP, MOVED_GROUP, EVERY_GROUP = "known hacks, reward, outcome", "all that moved", "all"
NO_OTHER = "none"
SHOWN_FINDINGS = 6
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
    """The whole page. `slice`, `group`, `stat`, `from`, `to` and `cmp` are in the URL."""
    with frame.panel("Behaviour"):
        observatory = frame.observatory()
        run = frame.run()
        if run is None and not observatory.lake.files("observations"):
            frame.nothing_yet()
            return
        run_id = None if run is None else run.run_id
        wanted = st.query_params.get("slice", ALL)
        one = st.query_params.get("stat")
        if run is not None and one is not None and _one(observatory, run, one, wanted):
            return
        found = observatory.behaviour(run_id, wanted)
        if not found.slices:
            st.info(
                "**No statistics yet.** They come when the first cycle is distilled; reload then.",
                icon=":material/hourglass_top:",
            )
            return
        left, middle, right = st.columns([0.4, 0.36, 0.24])
        with left:
            chosen = frame.choice("Slice", "slice", found.slices, slice_words, ALL)
        if chosen != wanted:
            found = observatory.behaviour(run_id, chosen)
        _body(found, middle, right)


def _body(found: Behaviour, beside: object, range_: object) -> None:
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
        with range_:  # type: ignore[attr-defined]
            first, last = window({point.cycle for points in looped.values() for point in points})
        shown = {name: [at for at in points if first <= at.cycle <= last] for name, points in looped.items()}
        _multiples(found, {name: points for name, points in shown.items() if points}, beside)
    else:
        st.markdown(
            f"**{_count(found):,} interactions outside a loop**: one figure each, and no cycles to draw them over."
        )
        points_table([points[-1] for points in found.series.values()], key="logs")
    _footer(found, one)


def window(cycles: Set[int]) -> tuple[int, int]:
    """First and last cycle that are shown, from `from` and `to` in the URL; without them the newest."""
    there = sorted(cycles)
    left, right = st.columns(2)
    with right:
        last = int(frame.choice("To cycle", "to", [str(each) for each in reversed(there)]))
    before = [each for each in there if each <= last]
    usual = before[max(0, len(before) - MOST_CYCLES)]
    with left:
        first = int(frame.choice("From cycle", "from", [str(each) for each in before], default=str(usual)))
    return first, last


# -- one statistic, large --------------------------------------------------------------------------------------------


def _one(observatory: Observatory, run: Run, name: str, slice_: str) -> bool:
    """A statistic of a run, large; False where the slice has none of that name."""
    there = {point.cycle for point in observatory.series(run.run_id, [name], [slice_])}
    if not there:
        return False
    newest = max(there)
    latest = observatory.store.statistics.series(run.run_id, statistics=[name], cycles=range(newest, newest + 1))
    slices = sorted({slice_, *(point.slice for point in latest)}, key=lambda each: (each != ALL, each))
    link("All statistics of this slice", "behaviour", ":material/arrow_back:", slice=slice_)
    columns = st.columns([0.3, 0.36, 0.34])
    with columns[0]:
        slice_ = frame.choice("Slice", "slice", slices, slice_words, ALL)
    with columns[1]:
        others = [NO_OTHER, *(f"slice:{each}" for each in slices if each != slice_)]
        others += [f"run:{each.run_id}" for each in observatory.store.runs.read() if each.run_id != run.run_id]
        beside = frame.choice("Beside", "cmp", others, _beside)
    with columns[2]:
        first, last = window(there)
    found = controlled(observatory, run.run_id, name, slice_, cycles=range(first, last + 1), wait_s=WAIT_S)
    kind, _, other = beside.partition(":")
    second: Sequence[Statistic] = ()
    if beside != NO_OTHER:
        of_run, of_slice = (other, slice_) if kind == "run" else (run.run_id, other)
        second = observatory.store.statistics.series(
            of_run, statistics=[name], slices=[of_slice], cycles=range(first, last + 1)
        )
    _controlled(found, second, beside, first, last)
    with frame.panel("Findings"):
        _findings(found.findings)
    with frame.panel("Forecasts"):
        _forecasts(found)
    st.markdown("**Every point**, the newest first")
    points_table(list(reversed(found.points)), key="points", cycles=True)
    context: dict[str, str | int] = {"stat": name, "slice": slice_, "from": first, "to": last}
    if beside != NO_OTHER:
        context["cmp"] = beside
    left, middle, right = st.columns(3)
    with left:
        link(f"Interactions of cycle {last}", "trajectory", ":material/article:", cycle=last)
    with middle:
        link("Why: slices and terms", "why", ":material/account_tree:", stat=name, to=last)
    with right:
        link("Pressure on it", "pressure", ":material/grid_on:", cycle=last)
    frame.footer(
        "behaviour",
        same=["stats", *([] if slice_ == ALL else ["--slice", slice_]), "--stat", name],
        csv=lambda: control_table(found),
        **context,
    )
    return True


def _beside(name: str) -> str:
    kind, _, of = name.partition(":")
    return "nothing" if name == NO_OTHER else f"run {of}" if kind == "run" else slice_words(of)


def _controlled(found: Control, second: Sequence[Statistic], beside: str, first: int, last: int) -> None:
    name = found.statistic
    statistic = definition(name)
    st.subheader(title(name) if statistic is not None else "A series of your own")
    latest = next((point for point in reversed(found.points) if point.value is not None), None)
    if latest is None:
        status = found.points[-1].status if found.points else "not measured"
        st.info(f"◌ **NO DATA**: {plain(status)} in every cycle from {first} to {last}.", icon=":material/inbox:")
    else:
        (st.warning if is_out(found) else st.markdown)(control_words(found, latest))
    if statistic is not None:
        st.text(statistic.description)
    if isinstance(found.band, Pending):
        waiting(found.band, "The check's bands")
    if latest is None:
        return
    band = found.band
    limits = None
    if isinstance(band, Band) and band.low is not None and band.high is not None and band.same_scale:
        limits = banded.Limits(band.low, band.high, band.level, band.reference[0], band.reference[-1])
    series = banded.Series(
        points=found.points,
        states=found.states,
        limits=limits,
        versions=[(each.cycle, f"reward {each.version[:8]}") for each in found.versions],
        forecasts=found.forecasts,
        base=found.base,
        other=second,
        other_name=_other_name(beside),
    )
    spec = banded.banded_chart(series, frame.theme(), first=first, last=last)
    st.vega_lite_chart(
        banded.drawn(series), spec, key="large", width="stretch", alt=said(Panel(title(name), unit(name), found.points))
    )
    if beside != NO_OTHER and not any(point.value is not None for point in second):
        st.info(f"◌ **NO DATA** beside it: {_other_words(beside)} has no such points here.", icon=":material/inbox:")
    st.caption(chart_words(found, limits is not None, bool(second)))


def _other_name(beside: str) -> str:
    """For the chart, which shows text as it is."""
    return visible(_beside(beside))


def _other_words(beside: str) -> str:
    kind, _, of = beside.partition(":")
    return f"run {plain(of)}" if kind == "run" else f"the slice {plain(of)}"


def is_out(found: Control) -> bool:
    """Whether the check has it out of its band; without a band, whether it has left the level of the first cycles."""
    band = found.band
    if isinstance(band, Pending) or band.low is None:
        return found.departure is not None
    return band.status in ("warns", "blocks")


def control_words(found: Control, latest: Statistic) -> str:
    """The level and where the check stands on it, as Markdown."""
    of = unit(found.statistic)
    shown = "" if is_share(of) or not of else f" {of}"
    between = "" if latest.low is None or latest.high is None else (
        f"95 %: {figure(latest.low, of)} to {figure(latest.high, of)}, "
    )  # fmt: skip
    text = (
        f"**{figure(latest.value, of)}**{shown} in cycle {latest.cycle}{where(found.slice)} ({between}n {latest.n:,})."
    )
    if latest.maturity is not None and latest.maturity < 1:
        text += f" {100 * latest.maturity:.0f} % of its feedback is in."
    band = found.band
    if isinstance(band, Pending):
        return f"{text} {badge('pending')} its band is being computed."
    if band.low is None or band.high is None:
        return f"{text} {badge('no_data', 'NO BAND')} {plain(band.why)}. {first_look(found)}"
    states = {"steady": badge("pass", "WITHIN ITS BAND"), "warns": badge("warn", "OUT OF ITS BAND"),
              "blocks": badge("fail", "OUT, AND BLOCKS")}  # fmt: skip
    what = "the typical value (of logs) lies in" if not band.same_scale else "the check expects"
    text += (
        f" {states.get(band.status, badge('no_data', 'NOT ASSESSABLE'))} as of cycle {band.cycle}: {what} "
        f"{figure(band.low, of)} to {figure(band.high, of)}"
    )
    return text + (f"; first out in cycle {band.first_out}." if band.first_out is not None else "; it never was out.")


def first_look(found: Control) -> str:
    """Whether it has left the level of the first cycles, as Markdown."""
    moved = found.departure
    if moved is None:
        return "At a first look it has not left the level of the first cycles."
    return (
        f"At a first look, {moved.base:.3g} → {moved.latest:.3g}: away from the level of the first cycles since cycle "
        f"{moved.since_cycle} (z {moved.z:+.1f} in cycle {moved.latest_cycle})."
    )


def chart_words(found: Control, limits: bool, second: bool) -> str:
    """How to read the chart."""
    parts = ["Lines at the points: 95 % intervals."]
    if limits:
        parts.append(
            "Grey: the check's band, on the mix of requests of its baseline (marked at the bottom; dashed: its level). "
            "▲ orange: outside it."
        )
    elif found.base is not None:
        parts.append("Dashed: the level of the first cycles.")
    parts.append("◇ hollow: part of the feedback is still to come.")
    if found.versions:
        parts.append("Dotted: another reward came into force.")
    if found.forecasts:
        parts.append("Green: what was expected the cycle before, with its 90 % interval.")
    if second:
        parts.append("■ dashed: what it is compared with.")
    return " ".join(parts)


def _findings(found: Sequence[StoredFinding]) -> None:
    st.markdown("**Findings on it**, the newest first")
    if not found:
        st.caption("No check found anything on this statistic in this slice.")
        return
    for each in found[:SHOWN_FINDINGS]:
        finding = each.finding
        left, right = st.columns([0.84, 0.16], vertical_alignment="center")
        word = {"blocks": "BLOCKS", "warns": "WARNS", "notes": "NOTED"}[finding.severity]
        reading = "" if finding.reading is None else f" · {READINGS[finding.reading]}"
        of = unit(found[0].finding.statistic or "")
        levels = (
            f" · {figure(finding.before, of)} → {figure(finding.after, of)}"
            if finding.before is not None and finding.after is not None
            else ""
        )
        left.markdown(
            f"{badge(OF_SEVERITY[finding.severity], word)} cycle {each.cycle}, {plain(finding.detector)}{reading}"
            f"{levels}"
        )
        with right:
            link("Open", "alarm", ":material/open_in_new:", id=each.finding_id)
    if len(found) > SHOWN_FINDINGS:
        st.caption(f"{len(found) - SHOWN_FINDINGS} older ones are on the pages of their alarms.")


def _forecasts(found: Control) -> None:
    st.markdown("**Forecasts against what came**")
    st.markdown(forecast_line(found))
    if not found.forecasts:
        return
    st.dataframe(
        forecast_table(found),
        hide_index=True,
        key="forecasts",
        placeholder="–",
        height=215,
        alt="Forecasts by cycle with what came and whether it lay inside",
        column_config={
            name: st.column_config.NumberColumn(format="%.4g")
            for name in ("expected", "90 % from", "to", "came", "step size")
        },
    )


def forecast_line(found: Control) -> str:
    """How good forecasts were, and what the newest says, as Markdown."""
    of = unit(found.statistic)
    if not found.forecasts and not found.scored.known:
        return (
            f"{badge('no_data')} no forecast was made of it: none is before two updates were followed by a cycle, and "
            "of a statistic without pressure there is none."
        )
    text = f"{badge('no_data', 'NOT SCORED YET')} it is not known yet what came."
    if found.scored.known:
        share = 100 * found.scored.inside / found.scored.known
        text = (
            f"Over all cycles what came lay inside the interval in **{found.scored.inside} of {found.scored.known}** "
            f"({share:.0f} %; 90 % would be right)."
        )
    newest = found.forecasts[-1] if found.forecasts else None
    if newest is not None and newest.came is None and newest.low is not None and newest.high is not None:
        text += (
            f" For cycle {newest.for_cycle}: {figure(newest.value, of)} ({figure(newest.low, of)} to "
            f"{figure(newest.high, of)}), not known yet."
        )
    elif newest is not None and newest.inside is not None:
        word = badge("pass", "INSIDE") if newest.inside else badge("warn", "OUTSIDE")
        text += (
            f" Cycle {newest.for_cycle}: {figure(newest.value, of)} expected, {figure(newest.came, of)} came {word}."
        )
    return text


def forecast_table(found: Control) -> pd.DataFrame:
    """One row per forecast, the newest first."""
    rows = list(reversed(found.forecasts))
    inside = {True: "● inside", False: "▲ outside", None: "○ not known yet"}
    return pd.DataFrame(
        {
            "for cycle": [each.for_cycle for each in rows],
            "expected": [each.value for each in rows],
            "90 % from": [each.low for each in rows],
            "to": [each.high for each in rows],
            "came": [each.came for each in rows],
            "what came": [inside[each.inside] for each in rows],
            "step size": [each.step for each in rows],
            "made in": [each.made_in for each in rows],
        }
    )


def control_table(found: Control) -> pd.DataFrame:
    """Points with state, band and forecast, for the file."""
    expected = {each.for_cycle: each for each in found.forecasts}
    band = found.band if isinstance(found.band, Band) else None
    return pd.DataFrame(
        [
            {
                **vars(point), "state": state, "band_low": None if band is None else band.low,
                "band_high": None if band is None else band.high,
                "forecast": None if (made := expected.get(point.cycle)) is None else made.value,
                "forecast_low": None if made is None else made.low,
                "forecast_high": None if made is None else made.high,
            }
            for point, state in zip(found.points, found.states, strict=True)
        ]
    )  # fmt: skip


# -- all of them, small ----------------------------------------------------------------------------------------------


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
    options = [*([] if found.slice == ALL else ["--slice", found.slice]), *([] if one is None else ["--stat", one])]
    frame.footer(
        "behaviour",
        same=["stats", *options],
        csv=lambda: pd.DataFrame([vars(point) for point in points]),
        slice=found.slice,
        **({} if one is None else {"stat": one}),
    )


if __name__ == "__main__":
    st.title("Behaviour")
    page()
