"""Alarms and detectors: what was raised, how each detector fares, and what is silenced until when."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from palomar.app.alarms import (
    ANY,
    SEVERITIES,
    STATES,
    AlarmGroup,
    DetectorRow,
    Listed,
    SilenceView,
    alarm_list,
    detector_table,
    end_silence,
    grouped,
    narrowed,
    silence,
    silences,
)
from palomar.app.console import acting, frame
from palomar.app.console.links import address, go
from palomar.app.console.plain import plain, shown
from palomar.app.console.telling import (
    family_words,
    incident_words,
    severity_badge,
    silence_words,
    state_badge,
    state_cell,
    until_words,
    utc,
)
from palomar.data.store.incidents import ACTIVE
from palomar.data.store.records import Run, Silence
from palomar.detectors.incidents import end_of

PER_PAGE = 50
SILENCE_FOR = 10
"""Cycles that the box for a silence begins with."""


def page() -> None:
    """The whole page. `state`, `severity` and `detector` are in the URL."""
    acting.told()
    run: Run | None = None
    rows: list[Listed] = []
    with frame.panel("Alarms"):
        run = frame.run()
        if run is None:
            frame.nothing_yet()
            return
        rows = alarm_list(frame.observatory().store, run.run_id)
        _alarms(run, rows)
    if run is None:
        return
    with frame.panel("Detectors"):
        _detectors(run)
    with frame.panel("Silences"):
        _silences(run)
    frame.footer("alarms", same=["alarms"], csv=lambda: alarms_table(rows), run=run.run_id)


# -- alarms ----------------------------------------------------------------------------------------------------------


def _alarms(run: Run, rows: Sequence[Listed]) -> None:
    st.markdown(headline(rows))
    if not rows:
        _none(run)
        return
    named = sorted({name for row in rows for name in row.detectors})
    left, middle, right = st.columns(3)
    with left:
        state = frame.choice("State", "state", STATES)
    with middle:
        severity = frame.choice("Severity", "severity", SEVERITIES)
    with right:
        detector = frame.choice("Detector", "detector", [ANY, *named])
    chosen = narrowed(rows, state, severity, detector)
    if not chosen:
        st.info(
            f"**None of the {len(rows)} alarms is like that.** Choose another state, severity or detector.",
            icon=":material/filter_alt_off:",
        )
        return
    pages = -(-len(chosen) // PER_PAGE)
    at = frame.pager("page", "Page", pages) if pages > 1 else 1
    part = chosen[(at - 1) * PER_PAGE : at * PER_PAGE]
    for number, group in enumerate(grouped(part)):
        _group(group, number)
    _open(part)


def headline(rows: Sequence[Listed]) -> str:
    """How many there are and in which state, as Markdown."""
    active = [row.incident for row in rows if row.incident.state in ACTIVE]
    unseen = sum(each.state == "open" for each in active)
    accepted = sum(row.incident.resolution == "accepted" for row in rows)
    again = sum(each.reopened > 0 for each in active)
    if not rows:
        return "**No alarm was ever raised in this run.**"
    text = f"**{len(active)} of {len(rows)} alarms {'is' if len(active) == 1 else 'are'} not resolved**"
    parts = [f"{unseen} not acknowledged"] if active else []
    parts += [f"{again} came back after being resolved"] * bool(again)
    parts += [f"{accepted} accepted for a while"] * bool(accepted)
    return f"{text}{': ' if parts else ''}{', '.join(parts)}."


def _none(run: Run) -> None:
    store = frame.observatory().store
    verdicts = store.verdicts.read(run.run_id, newest=1)
    if not verdicts:
        st.info(
            "**No cycle was checked yet**, so there is nothing that could have been raised. The loop checks each "
            "cycle; by hand: `palomar check --keep`.",
            icon=":material/hourglass_top:",
        )
        return
    asked = store.findings.assessments(run.run_id)
    st.info(
        f"**No alarms up to cycle {verdicts[-1].cycle}.** {len(asked)} detectors ran, last at "
        f"{utc(verdicts[-1].checked_at)}.",
        icon=":material/check_circle:",
    )


def _group(group: AlarmGroup, number: int) -> None:
    active = sum(row.incident.state in ACTIVE for row in group.members)
    st.markdown(
        f"**{plain(group.detector, 60)}** · {family_words(group.family)} · {len(group.members)} "
        f"alarm{'' if len(group.members) == 1 else 's'}, {active} not resolved"
    )
    st.dataframe(
        group_table(group),
        hide_index=True,
        key=f"group-{number}",
        placeholder="–",
        alt="Alarms of one detector and slice family, the newest first",
        column_config={
            "open": st.column_config.LinkColumn(display_text="open", width="small"),
            "alarm": st.column_config.NumberColumn(width="small"),
        },
    )


def group_table(group: AlarmGroup) -> pd.DataFrame:
    """One row per alarm."""
    return pd.DataFrame(
        {
            "alarm": [row.incident.number for row in group.members],
            "open": [address("alarm", id=row.incident.number) for row in group.members],
            "state": [state_cell(row.incident) for row in group.members],
            "severity": ["■ blocks" if row.incident.blocks else "◌ holds" for row in group.members],
            "what": [shown(row.incident.title, 120)[0] for row in group.members],
            "cycles": [f"{row.incident.opened_cycle} to {row.incident.seen_cycle}" for row in group.members],
            "owner": [row.incident.assignee and shown(row.incident.assignee, 40)[0] for row in group.members],
            "seen by": [", ".join(row.detectors) for row in group.members],
            "opened (UTC)": [f"{row.incident.opened_at:%Y-%m-%d %H:%M}" for row in group.members],
        }
    )


def alarms_table(rows: Sequence[Listed]) -> pd.DataFrame:
    """All alarms of the run, for the file."""
    return pd.DataFrame(
        [
            {
                "alarm": row.incident.number,
                "state": row.incident.state,
                "resolution": row.incident.resolution,
                "blocks": row.incident.blocks,
                "title": row.incident.title,
                "family": row.incident.family,
                "opened_cycle": row.incident.opened_cycle,
                "seen_cycle": row.incident.seen_cycle,
                "owner": row.incident.assignee,
                "reopened": row.incident.reopened,
                "detectors": " ".join(row.detectors),
                "opened_at": row.incident.opened_at.isoformat(),
            }
            for row in rows
        ]
    )


def _open(rows: Sequence[Listed]) -> None:
    """A way to an alarm by keyboard: rows of a table cannot be reached with one."""
    by_label = {f"{row.incident.number}": row for row in rows}
    chosen = st.selectbox(
        "Open an alarm",
        list(by_label),
        index=None,
        placeholder="by its number",
        format_func=lambda label: f"{label} · {shown(by_label[label].incident.title, 80)[0]}",
        key="open-alarm",
    )
    if chosen is not None:
        incident = by_label[chosen].incident
        st.markdown(f"{severity_badge(incident)} {state_badge(incident)} {incident_words(incident)}")
        if st.button("Open it", key="open-it"):
            go("alarm", id=incident.number)


# -- detectors -------------------------------------------------------------------------------------------------------


def _detectors(run: Run) -> None:
    st.subheader("Detectors")
    rows = detector_table(frame.observatory().store, run.run_id)
    st.markdown(detectors_words(rows))
    st.dataframe(
        detectors_table(rows),
        hide_index=True,
        key="detectors",
        placeholder="–",
        alt="Detectors with their alarms, precision, and what they could not assess",
        column_config={
            "alarms per 100 cycles": st.column_config.NumberColumn(
                format="%.1f", help="Incidents in which it spoke, per 100 cycles that it could assess."
            ),
            "precision": st.column_config.NumberColumn(
                format="percent", help="Useful among rated alarms, by people's votes; empty where nobody rated one."
            ),
            "not assessed": st.column_config.NumberColumn(help="Things that it could not test in the newest check."),
        },
    )
    missing = [(row, item) for row in rows for item in row.unassessed]
    if missing:
        with st.expander(f"What could not be assessed in the newest check ({len(missing)})"):
            st.dataframe(
                pd.DataFrame(
                    {
                        "detector": [row.detector for row, _ in missing],
                        "what": [shown(item.what, 200)[0] for _, item in missing],
                        "why, and what it would take": [shown(item.why, 300)[0] for _, item in missing],
                    }
                ),
                hide_index=True,
                key="unassessed",
                alt="What detectors could not assess, with the reason",
            )


def detectors_words(rows: Sequence[DetectorRow]) -> str:
    """How detectors fare, in a sentence."""
    asked = [row for row in rows if row.checks]
    if not asked:
        return f"**None of the {len(rows)} detectors was asked yet**: no cycle was checked."
    able = sum(not row.unassessed for row in asked)
    spoke = sum(row.alarms > 0 for row in asked)
    rated = sum(row.precision.rated for row in asked if row.precision is not None)
    text = f"**{len(asked)} detectors were asked; {spoke} spoke in an alarm**; {able} could assess all that they test"
    told = f"{rated} of their alarms were rated" if rated else "nobody has rated an alarm, so no precision is known"
    return f"{text}. {told[0].upper()}{told[1:]}."


def detectors_table(rows: Sequence[DetectorRow]) -> pd.DataFrame:
    """One row per detector."""
    told = [row.precision for row in rows]
    return pd.DataFrame(
        {
            "detector": [shown(row.detector, 60)[0] for row in rows],
            "alarms": [row.alarms for row in rows],
            "alarms per 100 cycles": [row.per_hundred for row in rows],
            "precision": [None if each is None else each.value for each in told],
            "95 %": [
                "not rated"
                if each is None or each.low is None or each.high is None
                else f"{100 * each.low:.0f} to {100 * each.high:.0f} % of {each.rated}"
                for each in told
            ],
            "examples that are hacks": [
                "none labelled" if each is None or not each.labelled else f"{each.hacks} of {each.labelled}"
                for each in told
            ],
            "last evaluated": [evaluated(row) for row in rows],
            "not assessed": [len(row.unassessed) for row in rows],
            "silenced": [", ".join(_where(each) for each in row.silences) for row in rows],
            "what it is for": [shown(row.title, 160)[0] for row in rows],
        }
    )


def evaluated(row: DetectorRow) -> str:
    """In which cycle it could test something last."""
    if not row.checks:
        return "◌ never asked"
    return "◌ never could" if row.evaluated is None else f"cycle {row.evaluated}"


def _where(of: Silence) -> str:
    what = " in ".join(shown(part, 60)[0] for part in (of.statistic, of.slice) if part)
    return f"{end_of(of)}{f' ({what})' if what else ''}"


# -- silences --------------------------------------------------------------------------------------------------------


def _silences(run: Run) -> None:
    st.subheader("Silences")
    store = frame.observatory().store
    found = silences(store, run.run_id)
    force = [each for each in found if each.in_force]
    st.markdown(silences_words(found))
    for each in force:
        _silence(each)
    over = [each for each in found if not each.in_force]
    if over:
        with st.expander(f"Silences that are over ({len(over)})"):
            st.dataframe(silences_table(over), hide_index=True, key="over", placeholder="–", alt="Silences that ended")
    with st.expander("Silence a detector…"):
        _add(run)


def silences_words(found: Sequence[SilenceView]) -> str:
    """What is silenced, in a sentence."""
    force = [each for each in found if each.in_force]
    held = sum(len(each.held) for each in force)
    if not force:
        return "**Nothing is silenced.** A silence spares a call and hides nothing: the gate still sees what blocks."
    return (
        f"**{len(force)} silence{' is' if len(force) == 1 else 's are'} in force**; {held} "
        f"finding{'' if held == 1 else 's'} opened no incident by them. The gate takes those that block for open "
        "incidents."
    )


def _silence(each: SilenceView) -> None:
    number = each.silence.number
    with st.container(border=True):
        st.markdown(f"**{number}** · {silence_words(each.silence)}, since {utc(each.silence.made_at)}")
        st.text(shown(each.silence.reason, 500)[0])
        if each.held:
            newest = each.held[-1]
            st.markdown(f"{len(each.held)} opened no incident, the last in cycle {newest.cycle}:")
            st.text(shown(newest.sentence, 300)[0])
        act = acting.form(f"end-silence-{number}", f"End silence {number} now")
        if act is not None:
            with acting.doing(
                f"end-silence-{number}", f"Silence {number} is over; what is still found opens an alarm."
            ):
                end_silence(frame.observatory().store, number, actor=act.actor, reason=act.reason, token=act.token)


def _add(run: Run) -> None:
    store = frame.observatory().store
    rows = detector_table(store, run.run_id)
    begun = store.cycles.read(run.run_id, newest=1)
    newest = begun[-1].cycle if begun else 0
    left, middle, right = st.columns(3)
    detector = left.selectbox("Detector", [row.detector for row in rows], key="silence-detector")
    statistic = middle.text_input("Only this statistic", key="silence-statistic", placeholder="any", max_chars=200)
    slice_ = right.text_input("Only this slice", key="silence-slice", placeholder="any", max_chars=200)
    until = st.number_input(
        "Last cycle that it covers", newest, newest + 100, newest + SILENCE_FOR, key="silence-until"
    )
    st.caption(
        "Its findings are kept and shown; they open and reopen no incident until then. It never lets a checkpoint "
        "pass, and always ends."
    )
    act = acting.form("silence", "Silence it")
    if act is not None:
        with acting.doing("silence", f"Silenced until cycle {int(until)}."):
            silence(
                store,
                run.run_id,
                detector,
                actor=act.actor,
                reason=act.reason,
                statistic=statistic.strip() or None,
                slice_=slice_.strip() or None,
                until_cycle=int(until),
                token=act.token,
            )


def silences_table(found: Sequence[SilenceView]) -> pd.DataFrame:
    """One row per silence."""
    return pd.DataFrame(
        {
            "silence": [each.silence.number for each in found],
            "detector": [shown(each.silence.detector, 60)[0] for each in found],
            "statistic": [each.silence.statistic for each in found],
            "slice": [each.silence.slice for each in found],
            "until": [until_words(each.silence).removeprefix("until ") for each in found],
            "by": [shown(each.silence.actor, 60)[0] for each in found],
            "reason": [shown(each.silence.reason, 300)[0] for each in found],
            "ended": [
                "by itself" if each.silence.ended_at is None else f"by {shown(each.silence.ended_by or '', 60)[0]}"
                for each in found
            ],
            "opened no incident": [len(each.held) for each in found],
        }
    )


if __name__ == "__main__":
    st.title("Alarms and detectors")
    page()
