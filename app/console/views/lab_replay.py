"""What a change would have paid for what was logged: whom it pushes, what turns round, who gains and who loses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from palomar.app import lab as bench
from palomar.app import patching
from palomar.app.console import acting, frame, working
from palomar.app.console.charts.sides import MOST, drawn, push_sides
from palomar.app.console.links import address
from palomar.app.console.plain import plain
from palomar.app.console.states import badge
from palomar.app.console.tables import in_words, slice_words, title
from palomar.app.console.telling import utc
from palomar.app.console.views.lab_hand import Change
from palomar.app.lab import Lab
from palomar.app.visible import visible
from palomar.data.slices import ALL
from palomar.data.store.jobs import UNDER_WAY
from palomar.data.store.records import Job
from palomar.reward.replay import ANY

Result = Mapping[str, Any]
_PERCENT = st.column_config.NumberColumn(format="percent")
_FIGURE = st.column_config.NumberColumn(format="%.3g")


def replay(found: Lab, change: Change, cycles: Sequence[int], incident: int | None) -> None:
    """A button; then how far it is; then what came of it."""
    with st.expander("Diff against the reward in force"):
        st.code(change.diff or "\\ no line differs", language="diff")
    if not cycles:
        st.info("**No interactions yet**: there is nothing to replay on.", icon=":material/hourglass_top:")
        return
    store = frame.observatory().store
    flagged = [] if incident is None else patching.flagged_by(store, incident)
    arguments = {"old": found.present.text, "new": change.text, "cycles": list(cycles), "flagged": flagged}
    job = bench.newest_job(store, "replay", arguments)
    if job is not None and job.state in UNDER_WAY:
        working.following(job.job_id)
        return
    if job is not None and job.state == "done":
        whole = store.jobs.get(job.job_id)
        if whole is not None and whole.result is not None:
            _told(whole, whole.result)
        return
    if job is not None:
        working.failed(job)
    act = acting.form("replay", f"Replay it on cycles {cycles[0]} to {cycles[-1]}", reason=None)
    if act is not None:
        with acting.doing("replay", "Asked. What it would have paid is shown below, as soon as it is there."):
            asked = working.ask("replay", arguments, act)
            if change.proposal is None:
                st.query_params["job"] = asked.job_id  # so that the address says what was changed by hand


def _told(job: Job, result: Result) -> None:
    st.markdown(sentence(result))
    for line in _beside(result):
        st.markdown(line)
    st.caption(
        f"Replayed at {utc(job.finished_at)} (job {plain(job.job_id)}). A replay is of the policy that was logged: it "
        "says which way the next step would push, not where many steps lead."
    )
    slices = list(dict.fromkeys(each["slice"] for each in result["changes"]))
    slice_ = frame.choice("Where", "where", slices, slice_words)
    left, right = st.columns([0.52, 0.48], gap="large")
    with left:
        _pressures(result, slice_)
    with right:
        _behaviours(result, slice_)
        _terms(result, slice_)
    _rows(result)
    _coverage(result)
    st.download_button(
        "CSV of the replay",
        lambda: frame.as_csv(pd.DataFrame(result["changes"])),
        f"replay-{job.job_id}.csv",
        "text/csv",
        key="replay-csv",
        on_click="ignore",
    )


def sentence(result: Result) -> str:
    """What it comes to, as Markdown; numbers and words of our own."""
    whole = next((each for each in result["changes"] if (each["slice"], each["behaviour"]) == (ALL, ANY)), None)
    cycles = [each for each in result["cycles"] if each is not None]
    said = f"On {result['num_rows']:,} interactions of cycles {min(cycles)} to {max(cycles)}" if cycles else "On logs"
    if whole is not None:
        said += f", the mean reward goes **from {whole['old']:+.3f} to {whole['new']:+.3f}**"
    said += f"; the advantages change by **{100 * result['distance']:.0f} %** of their size"
    flips = result["flips"]
    if flips is not None:
        tau = "" if flips["tau"] is None else f" (Kendall's tau {flips['tau']:.2f})"
        said += (
            f"; of {flips['pairs']:,} pairs within a {flips['within']}, {100 * flips['flipped']:.1f} % turn round{tau}"
        )
    return said + "."


def _beside(result: Result) -> list[str]:
    """The hacks that lose their gain, honest ones hurt, and rows that are trained on or not."""
    lines = []
    flagged = result["flagged"]
    if flagged is not None:
        if not flagged["n"]:
            lines.append(f"{badge('no_data', 'FLAGGED')} No interaction that the incident names lies in these cycles.")
        elif flagged["lost"] is None:
            lines.append(
                f"{badge('no_data')} None of the {flagged['n']} flagged interactions in these cycles was pushed."
            )
        else:
            state = badge("pass" if flagged["lost"] >= 0.5 else "warn", "FLAGGED")
            lines.append(
                f"{state} Of {flagged['gained']} flagged interactions that were pushed, **"
                f"{100 * flagged['lost']:.0f} % lose their gain**."
            )
        if flagged["honest_hurt"] is not None:
            lines.append(
                f"Of the {flagged['honest_gained']:,} others that were pushed, "
                f"**{100 * flagged['honest_hurt']:.1f} %** are pushed no more."
            )
    for each in result["inclusion"]:
        if each["before"] != each["after"]:
            mean = "" if each["reward"] is None else f", paid {each['reward']:+.3g} on average"
            lines.append(f"{each['n']:,} go from {plain(each['before'])} to {plain(each['after'])}{mean}.")
    return lines


def _pressures(result: Result, slice_: str) -> None:
    rows = [each for each in result["pressures"] if each["slice"] == slice_]
    cells = {(each["statistic"], each["kind"]): each for each in rows}
    names = list(dict.fromkeys(each["statistic"] for each in rows))
    turned = [name for name in names if _side(cells.get((name, "old"))) != _side(cells.get((name, "new")))]
    st.markdown("**Which way it pushes**")
    if not rows:
        st.caption("No pressure could be taken here.")
        return
    against = [
        name for name in names
        if _side(cells.get((name, "new"))) * _side(cells.get((name, "outcome"))) < 0
    ]  # fmt: skip
    before = [
        name for name in names
        if _side(cells.get((name, "old"))) * _side(cells.get((name, "outcome"))) < 0
    ]  # fmt: skip
    st.markdown(
        f"{len(turned)} of {len(names)} pressures change their side; against users go **{len(before)} now, "
        f"{len(against)} then** (95 % intervals beside 0)."
    )
    # What is pushed hardest now stands on top; a statistic without a value is named below.
    order = sorted(
        (name for name in names if any(cells.get((name, kind), {}).get("z") is not None for kind in ("old", "new"))),
        key=lambda name: -abs(cells.get((name, "old"), {}).get("z") or 0.0),
    )[:MOST]
    titles = {name: title(name).replace("_", " ") for name in names}
    chosen = [each for each in rows if each["statistic"] in order]
    table = drawn(chosen, titles)
    st.vega_lite_chart(
        table,
        push_sides(table, [titles[name] for name in order], frame.theme()),
        key=f"sides-{slice_}",
        width="stretch",
    )
    st.caption(
        "Beyond the dotted lines a side is sure. What lies further than 12 standard errors is drawn at the edge."
    )
    missing = [name for name in names if name not in order]
    if missing:
        st.caption(f"NO DATA: {', '.join(in_words(name) for name in missing)}.")


def _side(row: Mapping[str, Any] | None) -> int:
    if row is None or row["low"] is None or row["high"] is None:
        return 0
    return int(row["low"] > 0) - int(row["high"] < 0)


def _behaviours(result: Result, slice_: str) -> None:
    rows = [each for each in result["changes"] if each["slice"] == slice_]
    st.markdown("**Who gains and who loses**")
    table = pd.DataFrame(
        {
            "behaviour": [_named(each["behaviour"]) for each in rows],
            "n": [each["n"] for each in rows],
            "reward now": [each["old"] for each in rows],
            "then": [each["new"] for each in rows],
            "pushed now": [each["old_pushed"] for each in rows],
            "pushed then": [each["new_pushed"] for each in rows],
        }
    )
    st.dataframe(
        table,
        hide_index=True,
        key=f"behaviours-{slice_}",
        placeholder="–",
        alt="Mean reward and share pushed by behaviour, now and under the change",
        column_config={
            "reward now": _FIGURE,
            "then": _FIGURE,
            "pushed now": _PERCENT,
            "pushed then": _PERCENT,
            "n": st.column_config.NumberColumn(format="localized"),
        },
    )


def _named(behaviour: str) -> str:
    return "all interactions" if behaviour == ANY else behaviour.replace("_", " ")


def _terms(result: Result, slice_: str) -> None:
    rows = [each for each in result["terms"] if (each["slice"], each["behaviour"]) == (slice_, ANY)]
    if not rows:
        return
    st.markdown("**What each term pays on average**")
    st.dataframe(
        pd.DataFrame(
            {
                "term": [visible(each["term"]) for each in rows],
                "now": [each["old"] for each in rows],
                "then": [each["new"] for each in rows],
            }
        ),
        hide_index=True,
        key=f"terms-{slice_}",
        placeholder="–",
        alt="Mean contribution of each term, now and under the change",
        column_config={"now": _FIGURE, "then": _FIGURE},
    )


def _rows(result: Result) -> None:
    """The interactions that gain and lose the most, each with a link to what it did."""
    moved = [("gains", each) for each in result["gainers"]] + [("loses", each) for each in result["losers"]]
    if not moved:
        return
    with st.expander(f"The {len(moved)} interactions whose advantage moves most"):
        st.dataframe(
            pd.DataFrame(
                {
                    "": [side for side, _ in moved],
                    "interaction": [visible(each["interaction_id"]) for _, each in moved],
                    "did": [", ".join(map(_named, each["behaviours"])) for _, each in moved],
                    "advantage now": [each["old"] for _, each in moved],
                    "then": [each["new"] for _, each in moved],
                    "open": [address("trajectory", id=each["interaction_id"]) for _, each in moved],
                }
            ),
            hide_index=True,
            key="movers",
            alt="Interactions whose advantage moves most",
            column_config={
                "advantage now": _FIGURE,
                "then": _FIGURE,
                "open": st.column_config.LinkColumn(display_text="open"),
            },
        )


def _coverage(result: Result) -> None:
    """Where the scores come from, since a replay is as good as they are."""
    rows = result["coverage"]
    bad = [each for each in rows if each["invalid"] or each["waiting"]]
    stored, total = sum(each["stored"] for each in rows), sum(each["stored"] + each["recomputed"] for each in rows)
    share = (
        "" if not total else f", {100 * stored / total:.0f} % of its scores as they were paid, the others recomputed"
    )
    with st.expander(
        f"Coverage: {result['compared']:,} of {result['num_rows']:,} interactions have a reward under both{share}"
        + (f"; {len(bad)} terms lack values" if bad else "")
    ):
        st.dataframe(
            pd.DataFrame(
                {
                    "term": [visible(each["term"]) for each in rows],
                    **{
                        name.replace("_", " "): [each[name] for each in rows]
                        for name in ("stored", "recomputed", "valid", "not_applicable", "waiting", "invalid")
                    },
                    "mostly because": [None if each["why"] is None else visible(each["why"]) for each in rows],
                }
            ),
            hide_index=True,
            key="coverage",
            placeholder="–",
            alt="Where the scores of each term come from",
        )
