"""One alarm: what happened, where, through which term, whether the data can be trusted, and what can be done now.

Laid out for a decision at three in the morning: what is needed fits 1280 x 800, the actions stand below it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import streamlit as st

from palomar.app.alarms import Alarm, Unknown, accept, alarm, block
from palomar.app.console import acting, frame
from palomar.app.console.charts.alarm import Control, alarm_chart, points, push_chart, pushes
from palomar.app.console.links import go, link
from palomar.app.console.plain import plain, shown
from palomar.app.console.states import badge
from palomar.app.console.tables import in_words
from palomar.app.console.telling import (
    about,
    because,
    cause_words,
    figure,
    finding_words,
    gate_badge,
    incident_words,
    is_share,
    reading_words,
    severity_badge,
    silence_words,
    state_badge,
    where,
)
from palomar.app.examples import LabelCounts, labels_of
from palomar.app.service import definition
from palomar.app.why import SlicesOf, slices_of
from palomar.data.findings import Finding
from palomar.data.store.records import ExamplePlace, Run, Statistic, Vote

SLICES, BARS, CHANGES = 5, 4, 4
HEIGHT = 190
ACCEPTED_FOR = 10
"""Cycles that the box for accepting begins with."""
OVERRIDE_H = 24.0


def page() -> None:
    """The whole page. `id` in the URL: the number of an incident, or a finding's id."""
    with frame.panel("Alarm"):
        acting.told()
        run = frame.run()
        if run is None:
            frame.nothing_yet()
            return
        asked = st.query_params.get("id")
        if asked is None:
            _which(run)
            return
        found = alarm(frame.observatory().store, run.run_id, asked)
        if isinstance(found, Unknown):
            _unknown(found, run)
            return
        _alarm(run, found, asked)


def _which(run: Run) -> None:
    """Without an id: the open ones, the worst first."""
    from palomar.app.now import standing

    now = standing(frame.observatory().store, run)
    if not now.alarms:
        checked = "no cycle was checked yet" if now.verdict is None else f"checked up to cycle {now.verdict.cycle}"
        st.info(
            f"**No alarm is open** ({checked}). This page shows one alarm by its number: `alarm?id=12`, or by the id "
            "of a finding.",
            icon=":material/check_circle:",
        )
        link("All alarms and detectors", "alarms", ":material/list:")
        return
    st.markdown("**Which one?** Open alarms, the worst first:")
    for incident in now.alarms[:10]:
        left, right = st.columns([0.3, 0.7], vertical_alignment="center")
        left.markdown(f"{severity_badge(incident)} {state_badge(incident)}")
        with right:
            link(f"{incident.number} · {incident_words(incident)}", "alarm", id=incident.number)


def _unknown(found: Unknown, run: Run) -> None:
    st.warning(
        f"**There is no alarm {plain(found.asked, 40)}** in run {plain(run.name)}: no incident of that number, and no "
        "finding of that id.",
        icon=":material/help:",
    )
    for incident in found.incidents:
        link(f"{incident.number} · {incident_words(incident)}", "alarm", id=incident.number)
    for finding_id in found.findings:
        link(f"Finding {plain(finding_id)}", "alarm", id=finding_id)
    if not found.incidents:
        st.caption("The run has no incidents. They open when a check finds what keeps a cycle from passing.")
    link("All alarms and detectors", "alarms", ":material/list:")


def _alarm(run: Run, of: Alarm, asked: str) -> None:
    cycle, finding = of.shown
    _lead(of, asked, cycle, finding)
    left, right = st.columns([0.56, 0.44])
    with left:
        with frame.panel("Control chart"):
            _chart(run, of, finding)
        with frame.panel("What changed"):
            _changes(of)
    with right:
        with frame.panel("Slices"):
            _slices(run, finding, cycle, of)
        with frame.panel("Terms"):
            _terms(finding)
    with frame.panel("Actions"):
        _actions(of)
    frame.footer(
        "alarm",
        same=["incident", "show", str(of.incident.number)] if of.incident else ["check", "--cycle", str(of.cycle)],
        csv=lambda: findings_table(of),
        id=of.id,
        run=run.run_id,
    )


# -- what happened ---------------------------------------------------------------------------------------------------


def _lead(of: Alarm, asked: str, cycle: int, finding: Finding) -> None:
    """Badges and the sentence."""
    st.markdown(" ".join(_badges(of)))
    st.markdown(alarm_words(of, cycle, finding))
    if of.incident is not None and asked != of.id:
        st.caption(f"Finding {plain(asked, 40)} is part of this incident.")


def _badges(of: Alarm) -> list[str]:
    """Severity, state, owner, data, gate."""
    if of.incident is None:
        state = badge("no_data", "NO INCIDENT")
        severity = {"blocks": ("fail", "BLOCKS"), "warns": ("warn", "WARNS")}.get(of.finding.severity)
        parts = ["**Finding**", badge("pass", "NOTE") if severity is None else badge(*severity), state]  # type: ignore[arg-type]
    else:
        owner = of.incident.assignee
        held = badge("no_data", "NOBODY HAS IT") if owner is None else f"{badge('pass', 'OWNER')} {plain(owner, 40)}"
        parts = [f"**Alarm {of.incident.number}**", severity_badge(of.incident), state_badge(of.incident), held]
    if of.trust == "trusted":
        parts.append(badge("pass", "DATA: NO FAULT"))
    else:
        parts.append(badge("fail", f"DATA IN DOUBT: CYCLE {', '.join(map(str, of.faults[:3]))}"))
    parts.append(gate_badge(of.decision) if of.candidate else badge("no_data", "GATE: NO CANDIDATE"))
    if of.silence is not None or of.held:
        parts.append(badge("no_data", "SILENCED"))
    return parts


def alarm_words(of: Alarm, cycle: int, finding: Finding) -> str:
    """The alarm in a sentence with numbers, as Markdown."""
    title = "" if of.incident is None else f"{_capital(incident_words(of.incident))}. "
    meaning = because(finding) if of.incident is not None else reading_words(finding)
    said = f"{title}{finding_words(finding)}; now cycle {cycle}. {_capital(meaning)}"
    if of.cause is not None:
        said += f"; most through {cause_words(finding.causes[0] if finding.causes else of.cause)}"
    said += "."
    if of.incident is not None and of.checked is not None and of.checked > of.incident.seen_cycle:
        said += f" **Not seen since cycle {of.incident.seen_cycle}** (checked up to {of.checked})."
    elif of.cycle != cycle and of.finding.after is not None:
        unit = of.finding.unit or ""
        said += f" When it opened, in cycle {of.cycle}, it was at {figure(of.finding.after, unit)}."
    if of.silence is not None:
        said += f" {silence_words(of.silence)}."
    return said


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _chart(run: Run, of: Alarm, finding: Finding) -> None:
    name = finding.statistic
    if name is None or definition(name) is None:
        st.info(
            f"**No chart**: {about(finding)} is no statistic with a series; its finding says all that is known.",
            icon=":material/show_chart:",
        )
        st.code(shown(finding.sentence, 600)[0], language=None, wrap_lines=True)
        return
    series = frame.observatory().series(run.run_id, [name], [finding.slice])
    known = [point for point in series if point.value is not None]
    if not known:
        st.info(f"**NO DATA**: {in_words(name)} has no value here.", icon=":material/hourglass_top:")
        return
    control = control_of(of, finding)
    drawn = known[-60:]
    spec = alarm_chart(drawn, control, frame.theme(), first=drawn[0].cycle, last=drawn[-1].cycle, height=HEIGHT)
    st.vega_lite_chart(
        points(drawn, control.band), spec, key="control", width="stretch", alt=_said(name, finding, drawn)
    )
    band = "" if control.band is None else " Grey: the band that a cycle may lie in."
    st.caption(f"Lines: 95 %. Triangle: out of its band; diamond: feedback partly in.{band}")


def control_of(of: Alarm, finding: Finding) -> Control:
    """What the chart shows besides its points."""
    band = finding.detail.get("band")
    limits = None
    if isinstance(band, Sequence) and not isinstance(band, str) and len(band) == 2:
        limits = (float(band[0]), float(band[1]))
    return Control(
        band=limits,
        before=finding.before,
        since=finding.since,
        versions=[(line.cycle, f"reward {line.version[:8]}") for line in of.versions],
        share=is_share(finding.unit or ""),
    )


def _said(name: str, finding: Finding, drawn: Sequence[Statistic]) -> str:
    first, last = drawn[0], drawn[-1]
    return (
        f"{name} in {finding.slice}: {first.value:.3g} in cycle {first.cycle}, {last.value:.3g} in cycle {last.cycle}"
    )


def _slices(run: Run, finding: Finding, cycle: int, of: Alarm) -> None:
    if finding.statistic is None:
        st.caption("Slices: NO DATA; it is about no statistic.")
        return
    found = slices_of(frame.observatory(), run.run_id, finding.statistic, cycle)
    if found.excess is None:
        st.caption(f"Slices: NO DATA; {plain(found.why, 160)}")
        return
    table = slices_table(found, finding.unit or "")
    st.markdown(slices_words(found))
    st.dataframe(
        table.head(SLICES),
        hide_index=True,
        key="slices",
        height="content",
        placeholder="–",
        alt="Slices by their share of the change",
        column_config={
            "share": st.column_config.NumberColumn(
                format="%.0f %%", width=55, help="Of the whole change; what other requests make is apart."
            ),
            "n": st.column_config.NumberColumn(format="localized", width=50),
        },
    )
    link("All slices and terms", "why", ":material/grid_on:", alarm=of.id)


def slices_words(found: SlicesOf) -> str:
    """Where the change comes from, in a line of Markdown."""
    excess = found.excess
    assert excess is not None
    if not excess.slices or excess.slices[0].share is None:
        return "**No change to share out** between these cycles."
    lead = excess.slices[0]
    mix = "" if excess.mix_share is None else f"; {100 * excess.mix_share:.0f} % is other requests (mix)"
    return f"**{100 * (lead.share or 0):.0f} % of the change** comes from{where(lead.slice)}{mix}."


def slices_table(found: SlicesOf, unit: str) -> pd.DataFrame:
    """One row per slice, the largest share first."""
    assert found.excess is not None
    rows = found.excess.slices
    return pd.DataFrame(
        {
            "slice": [_short(row.slice) for row in rows],
            "share": [None if row.share is None else 100 * row.share for row in rows],
            "before → now": [f"{figure(row.before, unit)} → {figure(row.after, unit)}" for row in rows],
            "n": [row.n_after for row in rows],
        }
    )


def _short(slice_: str) -> str:
    return ", ".join(
        f"{name.partition('_')[0] if name == 'predicted_failure' else name} {value}".replace("predicted", "failure")
        for name, _, value in (part.partition("=") for part in slice_.split(","))
    )


def _terms(finding: Finding) -> None:
    if not finding.causes:
        st.caption("Terms: NO DATA; the finding is charged to none.")
        return
    table = pushes(finding.causes, BARS)
    st.vega_lite_chart(
        table,
        push_chart(table, frame.theme()),
        key="terms",
        width="stretch",
        alt="Reward terms and rules by their share of what pushes it",
    )


def _changes(of: Alarm) -> None:
    since = "no cycle before it passed" if of.good is None else f"since cycle {of.good}, the last that passed"
    st.markdown(f"**Changes** ({since}):" + ("" if of.changes else " neither reward, checkpoint nor baseline."))
    if of.changes:
        st.text("\n".join(shown(change, 300)[0] for change in of.changes[:CHANGES]))
    detail = of.shown[1].detail
    pushes_ = [(name, detail.get(name)) for name in ("reward", "outcome")]
    said = [
        f"{'the reward' if name == 'reward' else 'users’ outcome'} {value['value']:+.3g} "
        f"({value['low']:+.3g} to {value['high']:+.3g})"
        for name, value in pushes_
        if isinstance(value, dict) and all(isinstance(value.get(key), float) for key in ("value", "low", "high"))
    ]
    if said:
        st.caption(f"Pressure per step, 95 %: {', '.join(said)}.")
    store = frame.observatory().store
    number = None if of.incident is None else of.incident.number
    st.caption(labels_words(labels_of(store, finding_id=of.finding_id if number is None else None, incident=number)))
    with st.container(horizontal=True):
        link("Data health", "health", ":material/monitor_heart:", cycle=of.shown[0])
        finding = of.shown[1]
        if finding.statistic is not None and definition(finding.statistic) is not None:
            link("Behaviour", "behaviour", ":material/show_chart:", stat=finding.statistic, slice=finding.slice)
        link("All alarms", "alarms", ":material/list:")


def labels_words(labelled: Mapping[ExamplePlace, LabelCounts]) -> str:
    """What people said of its examples, in a line."""
    words = {"carrying": "flagged", "random": "random", "counter": "counter-examples"}
    told = [f"{of.hack} of {of.labelled} {words[place]} are hacks" for place, of in labelled.items()]
    return f"Examples labelled: {', '.join(told)}." if told else "Examples: nobody has labelled one yet."


# -- what can be done ------------------------------------------------------------------------------------------------


def _actions(of: Alarm) -> None:
    """The bar below: keys for what can be taken back, reasons for what decides."""
    with st.bottom, st.container(horizontal=True, vertical_alignment="bottom", key="actions"):
        if of.incident is not None and of.incident.state == "open":
            with st.container(width="content"):
                _acknowledge(of)
        if st.button("Examples", key="examples", shortcut="e"):
            go("examples", alarm=of.id)
        if st.button("Patch", key="patch", shortcut="p"):
            go("lab", **({"finding": of.finding_id} if of.incident is None else {"incident": of.incident.number}))
        if of.incident is not None:
            if st.button("Incident", key="incident", shortcut="i"):
                go("incidents", id=of.incident.number)
            if of.incident.state != "resolved":
                with st.popover("Accept…"):
                    _accept(of)
        if of.candidate is not None:
            with st.popover("Block…"):
                _block(of)
        if of.incident is not None:
            _votes(of)


def _acknowledge(of: Alarm) -> None:
    assert of.incident is not None
    number = of.incident.number
    act = acting.form(f"ack-{number}", "Acknowledge", reason=None, shortcut="a")
    if act is not None:
        with acting.doing(f"ack-{number}", f"Alarm {number} is acknowledged; others see who has it in hand."):
            frame.observatory().store.incidents.acknowledge(number, actor=act.actor, token=act.token)


def _accept(of: Alarm) -> None:
    assert of.incident is not None
    number = of.incident.number
    newest = max(of.checked or 0, of.shown[0])
    st.markdown(
        "**Accept what is pinned here up to a cycle.** Never for ever: a finding of a later cycle, or of anything "
        "else, opens it again. The check of a cycle still blocks its checkpoint."
    )
    until = st.number_input("Last cycle in which it is", newest + 1, newest + 500, newest + ACCEPTED_FOR, key="until")
    act = acting.form(f"accept-{number}", "Accept until then")
    if act is not None:
        with acting.doing(f"accept-{number}", f"Alarm {number} is accepted until cycle {int(until)}."):
            accept(
                frame.observatory().store,
                number,
                until_cycle=int(until),
                actor=act.actor,
                reason=act.reason,
                token=act.token,
            )


def _block(of: Alarm) -> None:
    assert of.candidate is not None
    name = plain(of.candidate, 20)
    if of.decision is None:
        st.markdown(
            f"**Nothing was decided about {name} yet**"
            + (
                "; while this alarm is open and blocks, the gate does not promote it."
                if of.incident is not None and of.incident.blocks
                else ", so there is nothing to decide otherwise."
            )
        )
    elif of.decision.verdict == "block":
        st.markdown(f"**{name} is blocked already.**")
    elif of.asked:
        who = ", ".join(plain(each.requested_by, 40) for each in of.asked)
        st.markdown(f"**Asked for already** by {who}; another person must approve.")
    else:
        st.markdown(
            f"**Ask the gate to block {name}**, the newest candidate, for {OVERRIDE_H:.0f} hours. Another person "
            "approves on the gate's page; both names and reasons go into the audit log."
        )
        act = acting.form("block", "Ask for the block")
        if act is not None:
            with acting.doing("block", "The block was asked for; another person must approve it on the gate's page."):
                block(frame.observatory(), of, actor=act.actor, reason=act.reason, hours=OVERRIDE_H, token=act.token)
    link("Gate", "gate", ":material/gavel:", ckpt=of.candidate)


def _votes(of: Alarm) -> None:
    assert of.incident is not None
    number = of.incident.number
    own = {each.vote for each in of.votes if each.actor == acting.person().name}
    words: tuple[tuple[Vote, str], ...] = (("useful", "Useful"), ("not_useful", "Not useful"))
    for vote, label in words:
        key = f"vote-{vote}-{number}"
        with st.container(width="content"):
            act = acting.form(key, f"{label} ✓" if vote in own else label, reason=None)
        if act is not None:
            with acting.doing(key, f"Noted: this alarm was {vote.replace('_', ' ')}; it counts for its detectors."):
                frame.observatory().store.incidents.vote(number, vote, actor=act.actor, token=act.token)


def findings_table(of: Alarm) -> pd.DataFrame:
    """Every finding of the alarm, a row each."""
    return pd.DataFrame(
        [
            {
                "detector": each.detector,
                "statistic": each.statistic,
                "slice": each.slice,
                "severity": each.severity,
                "reading": each.reading,
                "before": each.before,
                "after": each.after,
                "effect": each.effect,
                "low": each.low,
                "high": each.high,
                "n": each.n,
                "since": each.since,
                "sentence": each.sentence,
            }
            for each in of.findings
        ]
    )


if __name__ == "__main__":
    st.title("Alarm")
    page()
