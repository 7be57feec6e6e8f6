"""Why: in which slices a figure moved, what pushes it there, what it did to the mean reward, and whether edits stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import streamlit as st

from palomar.app.console import frame
from palomar.app.console.charts import curves as curve_chart
from palomar.app.console.charts import heat as heat_chart
from palomar.app.console.charts import waterfall as bar_chart
from palomar.app.console.links import link
from palomar.app.console.plain import plain
from palomar.app.console.states import badge
from palomar.app.console.tables import in_words, slice_in_words, slice_words, title, unit
from palomar.app.console.telling import figure, is_share, reading_words, where
from palomar.app.console.views.pressure import kind_words
from palomar.app.console.waiting import WAIT_S, waiting
from palomar.app.kept import Pending
from palomar.app.service import Observatory, definition
from palomar.app.visible import visible
from palomar.app.why import (
    Heat,
    Persistence,
    RewardBetween,
    SlicesOf,
    Subject,
    TermsOf,
    heat_of,
    persistence_of,
    reward_between,
    slices_of,
    subject_of,
    terms_of,
)
from palomar.data.clock import HORIZONS
from palomar.data.slices import ALL
from palomar.data.store.records import Run
from palomar.detectors.excess import FEW, Excess
from palomar.detectors.slice_changes import SliceChange

BASELINE = "baseline"
BY: Mapping[str, tuple[str, ...]] = {
    "request": ("predicted_failure", "ambiguity"),
    "organisation": ("organisation",),
    "work_kind": ("work_kind",),
    "language": ("language",),
    "arm": ("arm",),
}
BY_WORDS: Mapping[str, str] = {
    "request": "how hard x how vague",
    "organisation": "organisation",
    "work_kind": "kind of work",
    "language": "language",
    "arm": "arm of an experiment",
}
FIRST = "clarification_rate"
"""Statistic that is shown where none is named."""
NAMED, SHOWN = 3, 12


def page() -> None:
    """The whole page. `alarm`, `stat`, `from`, `to`, `by` and `slice` are in the URL."""
    with frame.panel("Slices and terms"):
        observatory = frame.observatory()
        run = frame.run()
        if run is None and not observatory.lake.files("observations"):
            frame.nothing_yet()
            return
        there = observatory.lake.numbered("observations")
        if run is None or not there:
            st.info(
                "**Nothing to compare yet.** This page compares cycles of a loop, and "
                + ("this home holds logs outside a loop." if run is None else "the first one is not distilled yet.")
                + " Statistics by slice are on the page Behaviour.",
                icon=":material/hourglass_top:",
            )
            link("Behaviour", "behaviour", ":material/show_chart:")
            frame.footer("why", same=["stats", "--slices"])
            return
        subject = _subject(observatory, run)
        if subject is not None:
            _alarm(subject)
        _body(observatory, run, there, subject)


def _subject(observatory: Observatory, run: Run) -> Subject | None:
    asked = st.query_params.get("alarm")
    if asked is None:
        return None
    found = subject_of(observatory, run.run_id, asked)
    if found is None:
        st.warning(
            f"There is no alarm {plain(asked, 40)} in run {plain(run.name)}: no incident of that number, and no "
            "finding of that id. Choose a statistic instead.",
            icon=":material/help:",
        )
    return found


def _alarm(subject: Subject) -> None:
    asked = st.query_params.get("alarm", "")
    left, right = st.columns([0.2, 0.8], vertical_alignment="center")
    with left:
        link("Back to the alarm", "alarm", ":material/arrow_back:", id=asked)
    severity = {"blocks": badge("fail", "BLOCKS"), "warns": badge("warn", "WARNS")}.get(subject.finding.severity)
    right.markdown(
        f"{severity or badge('no_data', 'NOTED')} found in cycle {subject.cycle}{where(subject.finding.slice)}: "
        f"{reading_words(subject.finding)}"
    )


def _body(observatory: Observatory, run: Run, there: Sequence[int], subject: Subject | None) -> None:
    named = subject.finding.statistic if subject is not None else None
    if subject is not None and (named is None or definition(named) is None):
        st.info(
            f"This alarm is about {plain(named or subject.finding.detector)}, which is not measured by slice. Its "
            "evidence is on the alarm's page; below is what is.",
            icon=":material/info:",
        )
        named = None
    newest = subject.cycle if subject is not None and subject.cycle in there else there[-1]
    names = _statistics(observatory, run, newest, named)
    if not names:
        st.info("**No statistics yet.** They come when a cycle is distilled.", icon=":material/hourglass_top:")
        return
    usual = named or (FIRST if FIRST in names else names[0])
    columns = st.columns([0.34, 0.18, 0.2, 0.28])
    with columns[0]:
        statistic = frame.choice("Statistic", "stat", names, title, usual)
    with columns[1]:
        cycle = int(frame.choice("Cycle", "to", [str(each) for each in reversed(there)], default=str(newest)))
    with columns[2]:
        earlier = [str(each) for each in reversed(there) if each < cycle]
        since = frame.choice("Compared with", "from", [BASELINE, *earlier], _since)
    with columns[3]:
        by = frame.choice("Slices by", "by", list(BY), BY_WORDS.__getitem__)
    reference = () if since == BASELINE else (int(since),)
    slice_ = _slice(subject)
    found = slices_of(observatory, run.run_id, statistic, cycle, by=BY[by], reference=reference)
    st.markdown(headline(found))
    with frame.panel("Slices"):
        _slices(found)
    with frame.panel("Heat map"):
        _heat(heat_of(observatory, run.run_id, statistic, cycle, reference=reference))
    left, right = st.columns(2)
    with left, frame.panel("What pushes it"):
        _terms(observatory, run, statistic, slice_, cycle)
    with right, frame.panel("Do edits stay?"):
        _persistence(observatory, found.reference, cycle, slice_)
    with frame.panel("Mean reward"):
        _reward(reward_between(observatory, run.run_id, found.reference, cycle))
    _footer(found, since, by, slice_, subject)


def _statistics(observatory: Observatory, run: Run, cycle: int, named: str | None) -> list[str]:
    points = observatory.store.statistics.series(run.run_id, slices=[ALL], cycles=range(cycle, cycle + 1))
    known = [point.statistic for point in points if point.value is not None]
    return list(dict.fromkeys([*([named] if named is not None else []), *sorted(known, key=title)]))


def _since(value: str) -> str:
    return "the baseline" if value == BASELINE else f"cycle {value}"


def _slice(subject: Subject | None) -> str:
    """Where pressures and persistence are looked at: named in the URL, else the alarm's."""
    usual = subject.finding.slice if subject is not None else ALL
    return st.query_params.get("slice", usual)


# -- slices ----------------------------------------------------------------------------------------------------------


def headline(found: SlicesOf) -> str:
    """From where to where, and which slices make most of it; as Markdown."""
    of = unit(found.statistic)
    name = in_words(found.statistic)
    excess = found.excess
    if excess is None:
        return f"**{name}** in cycle {found.cycle}: {badge('no_data')} not split by slices: {plain(found.why)}."
    against = f"{span_words(found.reference)}"
    shown = "" if is_share(of) else f" {of}"
    text = (
        f"**{name}: {figure(excess.before, of)} → {figure(excess.after, of)}**{shown} in cycle {found.cycle} against "
        f"{against}."
    )
    largest = [item for item in excess.slices if item.share is not None and item.share > 0][:NAMED]
    if excess.mix_share is None or not largest:
        return f"{text} Nothing changed that slices could share."
    told = [f"{100 * (item.share or 0.0):.0f} %{where(item.slice)}" for item in largest]
    return (
        f"{text} Of the change {', '.join(told)}; other requests than before (mix) make {100 * excess.mix_share:.1f} %."
    )


def span_words(cycles: Sequence[int]) -> str:
    """``cycles 0 to 7``."""
    if len(cycles) == 1:
        return f"cycle {cycles[0]}"
    if list(cycles) == list(range(cycles[0], cycles[-1] + 1)):
        return f"cycles {cycles[0]} to {cycles[-1]}"
    return f"cycles {', '.join(map(str, cycles[:8]))}{' and more' if len(cycles) > 8 else ''}"


def _slices(found: SlicesOf) -> None:
    if found.excess is None:
        return
    table = slices_table(found.excess)
    st.dataframe(
        table.head(SHOWN),
        hide_index=True,
        key="slices",
        placeholder="–",
        alt="Slices by their share of the change; other requests apart",
        column_config={
            "share of the change": st.column_config.NumberColumn(format="percent"),
            "part": st.column_config.NumberColumn(format="%+.4f", help="In the statistic's unit; parts add up."),
            "before": st.column_config.NumberColumn(format="%.4g"),
            "after": st.column_config.NumberColumn(format="%.4g"),
            "n before": st.column_config.NumberColumn(format="localized"),
            "n after": st.column_config.NumberColumn(format="localized"),
        },
    )
    more = f" {len(table) - SHOWN} more are in the file." if len(table) > SHOWN else ""
    st.caption(
        "Parts and the mix add up to the change (Kitagawa). A slice that went the other way has a negative share."
        f"{more} A cause is not proven by a share: a search picks winners, so confirm it on the next cycle."
    )


def slices_table(excess: Excess) -> pd.DataFrame:
    """One row per slice, the largest share first, then the mix, then all."""
    rows = [
        {
            "slice": slice_cell(item.slice), "share of the change": item.share, "part": item.part,
            "before": item.before, "after": item.after, "n before": item.n_before, "n after": item.n_after,
            "": f"n < {FEW}" if item.few else "",
        }
        for item in excess.slices
    ]  # fmt: skip
    mixed = {"slice": "other requests (mix)", "share of the change": excess.mix_share, "part": excess.mix}
    whole = {"slice": "all", "share of the change": None if excess.mix_share is None else 1.0, "part": excess.total,
             "before": excess.before, "after": excess.after}  # fmt: skip
    return pd.DataFrame([*rows, mixed, whole])


def slice_cell(name: str) -> str:
    """A slice for a cell or a chart; not for Markdown."""
    return visible(" and ".join(slice_words(part) for part in name.split(",")))


def _heat(found: Heat) -> None:
    if not found.cells:
        st.info(
            f"◌ **NO DATA**: {in_words(found.statistic)} has no points by slice in the store.", icon=":material/inbox:"
        )
        return
    points = is_share(unit(found.statistic))
    tested = [item for item in found.cells if item.p is not None]
    survive = [item for item in tested if item.survives]
    what = "in points" if points else f"in {unit(found.statistic)}"
    st.markdown(
        f"**Change against {span_words(found.reference)}, {what}**, by slice and cycle: {len(survive)} of "
        f"{len(tested)} cells that were tested are there at a false discovery rate of 5 %."
    )
    sure = [abs(item.change) for item in found.cells if item.change is not None and item.status in ("ok", "reference")]
    marks = [
        heat_mark(item, points, unit(found.statistic), (100 if points else 1) * max(sure, default=1.0))
        for item in found.cells
    ]
    reach = heat_chart.reach_of(marks)
    rows = [slice_cell(name) for name in found.slices]
    spec = heat_chart.heat_map(
        rows, [str(cycle) for cycle in found.cycles], reach, frame.theme(), legend=f"change {what}", slanted=False
    )
    st.vega_lite_chart(
        heat_chart.drawn(marks, reach), spec, key="heat", width="stretch",
        alt=f"Change of {title(found.statistic)} by slice and cycle",
    )  # fmt: skip
    more = f" {found.more} slices that changed less are not drawn." if found.more else ""
    st.caption(
        "Columns are cycles. Blue is down, orange up. Outlined: there after correction for all cells. Faded: not "
        f"tested (the reference, n < {FEW}, or feedback still to come) or not there. A first look: verdicts are the "
        f"check's.{more}"
    )


def heat_mark(item: SliceChange, points: bool, of: str, largest: float) -> heat_chart.Mark:
    """A cell of the heat map; shares as points of 100. ``largest``: change that is drawn, which sets the digits."""
    scale = 100 if points else 1
    change = None if item.change is None else scale * item.change
    text = f"n<{FEW}" if item.status == "few" else heat_chart.signed(change, largest, "–")
    told = f"{slice_cell(item.slice)}, cycle {item.cycle}: "
    if item.value is None or item.base is None:
        told += item.status
    else:
        told += f"{figure(item.base, of)} → {figure(item.value, of)}, n {item.n:,}"
        if item.low is not None and item.high is not None:
            told += f"; change {scale * item.low:+.3g} to {scale * item.high:+.3g} (95 %)"
        else:
            told += f"; not tested: {item.status}"
    sure = item.low is not None and item.high is not None and (item.low > 0 or item.high < 0)
    shown = None if item.status == "few" else change
    return heat_chart.Mark(slice_cell(item.slice), str(item.cycle), shown, text, sure, item.survives, told)


# -- what pushes it --------------------------------------------------------------------------------------------------


def _terms(observatory: Observatory, run: Run, statistic: str, slice_: str, cycle: int) -> None:
    found = terms_of(observatory, run.run_id, statistic, slice_, cycle, wait_s=WAIT_S)
    st.markdown(f"**What pushes it{where(slice_)}**")
    if isinstance(found, Pending):
        waiting(found, f"Pressures of cycle {cycle}")
        return
    if found.reward is None:
        st.info(f"◌ **NO DATA**: {plain(found.why)}.", icon=":material/inbox:")
        return
    st.markdown(terms_words(found))
    pushes = [each for each in (found.outcome, found.reward, *found.terms, *found.rules) if each is not None]
    known = [each for each in pushes if each.value is not None]
    intervals = [
        bar_chart.Interval(
            kind_words(each.name), "pressure", each.value or 0.0, each.low, each.high,
            f"{kind_words(each.name)}: {each.value:+.4g} per step, {each.verdict.replace('_', ' ')}, {each.status}",
        )
        for each in known
    ]  # fmt: skip
    if not intervals:
        st.info(f"◌ **NO DATA**: {found.reward.status} in {span_words(found.cycles)}.", icon=":material/inbox:")
        return
    spec = bar_chart.pairs(
        [kind_words(each.name) for each in known], ["pressure"], frame.theme(),
        title=f"{unit(statistic)} per unit step", step=22, legend=False,
    )  # fmt: skip
    st.vega_lite_chart(
        bar_chart.drawn_pairs(intervals), spec, key="pushes", width="stretch",
        alt=f"Pressure of the users' outcome, the reward, its terms and rules on {title(statistic)}",
    )  # fmt: skip
    st.caption(
        f"{span_words(found.cycles).capitalize()}, n {found.n:,}. The terms add up to the reward; “left out” is part "
        "of it already. 95 % intervals."
    )
    link("All behaviours: the pressure matrix", "pressure", ":material/grid_on:", cycle=cycle, slice=slice_, pool=8)


def terms_words(found: TermsOf) -> str:
    """What the reward and users do to it, and the term that does most, as Markdown."""
    ways = {"along_up": "pushes it **up**", "along_down": "pushes it **down**", "none": "is shown not to push it"}
    assert found.reward is not None
    reward = ways.get(found.reward.verdict, "is not known to push it")
    users = "is not known" if found.outcome is None else {
        "along_up": "wants it **up**", "along_down": "wants it **down**", "none": "is shown not to care",
    }.get(found.outcome.verdict, "is not known")  # fmt: skip
    text = f"The reward {reward}; users' outcome {users}."
    if found.reward.verdict in ("along_up", "along_down"):
        side = 1 if found.reward.verdict == "along_up" else -1
        along = [each for each in (*found.terms, *found.rules) if side * (each.value or 0.0) > 0]
        if along:
            first = max(along, key=lambda each: side * (each.value or 0.0))
            kind, _, name = first.name.partition(":")
            text += f" Most of it comes from {'the term' if kind == 'term' else 'leaving out'} {plain(name)}."
    return text


# -- what lasts ------------------------------------------------------------------------------------------------------


def _persistence(observatory: Observatory, before: Sequence[int], cycle: int, slice_: str) -> None:
    st.markdown("**Do edits stay?**")
    chosen = slice_
    try:
        found = [persistence_of(observatory, cycles, chosen) for cycles in (before, [cycle])]
    except ValueError:
        chosen = ALL
        found = [persistence_of(observatory, cycles, chosen) for cycles in (before, [cycle])]
    if not any(each.steps for each in found):
        st.info(
            "◌ **NO DATA**: no edit of these cycles was watched, or the logs have no times.", icon=":material/inbox:"
        )
        return
    names = [_since(BASELINE) if len(before) != 1 else span_words(before), f"cycle {cycle}"]
    st.markdown(lasting_words(found, names, chosen))
    points = [
        curve_chart.Point(
            name, max(step.at, 60.0), step.share, step.low, step.high,
            f"{name}: {100 * step.share:.1f} % there after {_duration(step.at)}, {step.at_risk:,} watched so long",
            compared=index == 0,
        )
        for index, (name, each) in enumerate(zip(names, found, strict=True))
        for step in each.steps
        if step.at >= 60
    ]  # fmt: skip
    longest = max((step.at for each in found for step in each.steps), default=60.0)
    spec = curve_chart.lasting_curves(
        points, names[::-1], frame.theme(), longest=longest,
        marks=[(horizon.name, horizon.seconds) for horizon in HORIZONS],
    )  # fmt: skip
    st.vega_lite_chart(
        curve_chart.drawn(points), spec, key="lasting", width="stretch", alt="Share of edits still there, over time"
    )
    elsewhere = "" if chosen == slice_ else f" Of all requests: {slice_in_words(slice_)} is no band of hard or vague."
    st.caption(
        "Kaplan-Meier: an edit counts for as long as it was watched. Ribbons: 95 %, by users. Dashed: what it is "
        f"compared with. Dotted: 30 min, 90 min, 1 day.{elsewhere}"
    )


def lasting_words(found: Sequence[Persistence], names: Sequence[str], slice_: str) -> str:
    """The shares at the longest horizon that both were watched for, as Markdown. `names` are our own words."""
    told = []
    for horizon in reversed(HORIZONS):
        at = [next((step for step in each.steps if step.at == horizon.seconds), None) for each in found]
        if all(step is not None for step in at):
            told = [
                f"{name} {100 * step.share:.1f} %" for name, step in zip(names, at, strict=True) if step is not None
            ]
            return (
                f"Still there after {_duration(horizon.seconds)}{where(slice_)}: {', '.join(told)} "
                f"(n {found[0].edits:,} and {found[1].edits:,})."
            )
    counts = " and ".join(f"{each.edits:,}" for each in found)
    return f"{counts} edits were watched{where(slice_)}; both for none of the horizons."


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.0f} h"


# -- the mean reward -------------------------------------------------------------------------------------------------


def _reward(found: RewardBetween) -> None:
    st.markdown("**Why the training reward changed**")
    change = found.change
    if change is None:
        st.info(f"◌ **NO DATA**: {plain(found.why)}.", icon=":material/inbox:")
        return
    st.markdown(reward_words(found))
    bars = reward_bars(found)
    st.vega_lite_chart(
        bar_chart.drawn(change.before, bars),
        bar_chart.waterfall(bars, frame.theme()), key="waterfall", width="stretch",
        alt=f"From {change.before:.3g} to {change.after:.3g}: "
        + ", ".join(f"{bar.label} {bar.part:+.3g}" for bar in bars if not bar.total),
    )  # fmt: skip
    waiting = (
        f" {change.waiting_after:,} rewards of cycle {found.after} are still to come." if change.waiting_after else ""
    )
    st.caption(
        "Every bar is exact and they add up. Terms: what they paid otherwise for the same requests. Mix: other "
        f"requests came. Left out: what leaving these samples out adds to the mean of what is trained on.{waiting}"
    )


def reward_words(found: RewardBetween) -> str:
    """How much, and what most of it is, as Markdown."""
    change = found.change
    assert change is not None
    bars = sorted((bar for bar in reward_bars(found) if not bar.total), key=lambda bar: -abs(bar.part))[:2]
    told = [f"{plain(bar.label)} {bar.part:+.3g}" for bar in bars]
    return (
        f"Mean reward of what is trained on: **{change.before:.3g} → {change.after:.3g}** ({change.total:+.3g}; n "
        f"{change.n_before:,} and {change.n_after:,}), most of it {' and '.join(told)}."
    )


def reward_bars(found: RewardBetween) -> list[bar_chart.Bar]:
    """From one total to the other; terms, what was left out, and the mix."""
    change = found.change
    assert change is not None
    bars = [bar_chart.Bar(_total(found.before), 0.0, True, f"{_total(found.before)}: {change.before:.4g}")]
    for item in change.terms:
        label = visible(item.name if not item.note else f"{item.name} ({item.note})")
        bars.append(bar_chart.Bar(label, item.part, False,
                                  f"{label}: paid {item.before:+.4g} before, {item.after:+.4g} after"))  # fmt: skip
    bars += [
        bar_chart.Bar(visible(f"left out: {item.reason}"), item.part, False,
                      f"left out: {visible(item.reason)}, {item.n_before:,} before, {item.n_after:,} after")
        for item in change.left_out
    ]  # fmt: skip
    bars.append(bar_chart.Bar("other requests (mix)", change.mix, False, "other shares of hard and vague requests"))
    bars.append(bar_chart.Bar(f"cycle {found.after}", 0.0, True, f"cycle {found.after}: {change.after:.4g}"))
    return bars


def _total(cycles: Sequence[int]) -> str:
    return span_words(cycles)


# -- the end of the page ---------------------------------------------------------------------------------------------


def _footer(found: SlicesOf, since: str, by: str, slice_: str, subject: Subject | None) -> None:
    context: dict[str, str | int] = {"stat": found.statistic, "to": found.cycle, "from": since, "by": by}
    context["slice"] = slice_
    asked = st.query_params.get("alarm")
    if subject is not None and asked is not None:
        context["alarm"] = asked
    options = ["--stat", found.statistic, "--to", str(found.cycle)]
    options += [] if since == BASELINE else ["--from", since]
    options += [] if slice_ == ALL else ["--slice", slice_]
    options += [word for name in BY[by] for word in ("--by", name)] if by != "request" else []
    left, middle, right = st.columns(3)
    with left:
        link("This statistic over the cycles", "behaviour", ":material/show_chart:", stat=found.statistic, slice=ALL)
    with middle:
        if asked is not None:
            link("Examples", "examples", ":material/article:", alarm=asked)
    with right:
        link("Try another reward in the lab", "lab", ":material/science:")
    excess = found.excess
    frame.footer("why", same=["why", *options], csv=None if excess is None else lambda: slices_table(excess), **context)


if __name__ == "__main__":
    st.title("Slices and terms")
    page()
