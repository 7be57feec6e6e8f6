"""One incident to read: what happened, evidence then and now, who did what, and what to hand over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import streamlit as st

from palomar.app import incidents
from palomar.app.console import frame
from palomar.app.console.charts.control import Panel, control_series, drawn, said
from palomar.app.console.links import link
from palomar.app.console.plain import plain, shown
from palomar.app.console.states import OF_INCIDENT, OF_SEVERITY, State, badge, words
from palomar.app.console.tables import in_words, slice_in_words, slice_words, title, unit
from palomar.app.console.telling import incident_words
from palomar.app.incidents import Evidence, IncidentView
from palomar.data.findings import Finding
from palomar.data.slices import ALL
from palomar.data.store.incidents import ACTIVE
from palomar.data.store.records import AuditEntry
from palomar.detectors.grouping import opens

READINGS: Mapping[str, tuple[State, str]] = {
    "reward_hack": ("fail", "REWARD HACK"),
    "honest_learning": ("pass", "HONEST LEARNING"),
    "outside_change": ("warn", "OUTSIDE CHANGE"),
    "forewarning": ("warn", "FOREWARNING"),
    "measurement_fault": ("warn", "MEASUREMENT FAULT"),
    "not_assessable": ("no_data", "NOT ASSESSABLE YET"),
}
MOST_ENTRIES = 200
MOST_IDS = 5


def head(found: IncidentView) -> None:
    """State, what happened in one sentence with numbers, and what to know before acting."""
    incident, lead = found.incident, found.lead.finding
    reopened = f" {badge('fail', f'REGRESSED ×{incident.reopened}')}" if incident.reopened else ""
    st.markdown(
        f"### {badge(OF_INCIDENT[incident.state], incident.state.upper())} Incident {incident.number}: "
        f"{incident_words(incident)}{reopened}"
    )
    st.text(shown(lead.sentence, 2_000)[0])
    state, word = READINGS.get(lead.reading or "", ("no_data", "NO READING"))
    gate = badge("fail", "BLOCKS CANDIDATES") if incident.blocks else badge("warn", "HOLDS A CYCLE")
    doubt = (
        f"{badge('warn', 'DATA IN DOUBT')} faults of measurement in cycle {', '.join(map(str, found.faults))}"
        if found.faults
        else badge("pass", "NO FAULT FOUND IN ITS DATA")
    )
    st.markdown(f"{badge(state, word)} {gate} {doubt}")
    checked = "" if found.checked is None else f"; cycle {found.checked} is the newest that was checked"
    st.markdown(
        f"Run {plain(incident.run_id)}, opened in cycle **{incident.opened_cycle}** at "
        f"{incident.opened_at:%Y-%m-%d %H:%M} UTC, last seen in cycle **{incident.seen_cycle}**{checked}. "
        + ("**Nobody has it.**" if incident.assignee is None else f"{plain(incident.assignee)} has it.")
    )
    _facts(found)
    _watch(found)
    _picture(found)
    _ways(found)


def _facts(found: IncidentView) -> None:
    if found.charges:
        told = [f"{plain(each.name)} ({each.findings} of {found.findings})" for each in found.charges[:3]]
        st.markdown(f"**Charged first to** {', '.join(told)}")
    cause = found.incident.cause
    if cause is None:
        st.markdown(f"{badge('pending', 'ROOT CAUSE NOT NAMED')}")
    else:
        named = [f"{name} {plain(str(cause[name]))}" for name in ("term", "slice", "reward") if cause.get(name)]
        st.markdown("**Root cause**" + (f" · {' · '.join(named)}" if named else ""))
        st.text(shown(str(cause["words"]), 2_000)[0])
    since = "before it, no cycle passed" if found.good is None else f"since cycle {found.good}, the last that passed"
    changed = plain("; ".join(found.changes), 600) if found.changes else "neither reward, checkpoint nor baseline"
    st.markdown(f"**Changed** ({since}): {changed}")


def _watch(found: IncidentView) -> None:
    """Whether it came back, or how long it has been watched since it ended."""
    incident = found.incident
    if incident.state in ACTIVE:
        if found.quiet and found.checked is not None:
            quiet = found.checked - incident.seen_cycle
            st.markdown(
                f"{badge('pending', 'QUIET')} not seen in the last {quiet} cycle{'s' * (quiet != 1)} up to cycle "
                f"{found.checked}; it is not resolved until somebody says so."
            )
        return
    st.markdown(f"{badge('pass', 'RESOLVED')} {plain(incidents.ending(incident))}")
    if incident.scope:
        covered = [plain("@".join(filter(None, (each.statistic, each.slice)))) for each in incident.scope[:MOST_IDS]]
        more = f" and {len(incident.scope) - MOST_IDS} more" if len(incident.scope) > MOST_IDS else ""
        st.caption(f"Accepted for {', '.join(covered)}{more}")
    last = incident.resolved_cycle
    if found.checked is None or last is None or found.checked <= last:
        st.markdown(
            f"{badge('pending', 'REGRESSION WATCH')} no cycle after cycle {last} was checked yet; a finding of a later "
            "one reopens it."
        )
    elif found.again is not None:
        st.markdown(
            f"{badge('warn', 'SEEN AGAIN')} what is pinned here keeps cycle {found.again} from passing, and did not "
            "reopen it: it is accepted, silenced, or in another incident. Look before you rely on the resolution."
        )
    else:
        st.markdown(
            f"{badge('pass', 'REGRESSION WATCH')} checked up to cycle {found.checked}, {found.checked - last} after "
            "the resolution: nothing of it was found again."
        )


def _picture(found: IncidentView) -> None:
    """The statistic that leads, over the cycles."""
    lead = found.lead.finding
    if lead.statistic is None:
        return
    points = frame.observatory().series(found.incident.run_id, [lead.statistic], [lead.slice])
    known = [point for point in points if point.value is not None]
    if not known:
        return
    where = "" if lead.slice == ALL else f" where {slice_in_words(lead.slice)}"
    st.markdown(f"**{in_words(lead.statistic)}**{where}, {unit(lead.statistic)}")
    drawing = Panel(
        title(lead.statistic), unit(lead.statistic), points, base=lead.before, since_cycle=found.incident.opened_cycle
    )
    spec = control_series(drawing, frame.theme(), first_cycle=points[0].cycle, last_cycle=points[-1].cycle, height=170)
    st.vega_lite_chart(drawn(points), spec, key="lead", width="stretch", alt=said(drawing))
    st.caption("Dashed: the level it is compared with. Dotted: the cycle in which it opened. Band: 95 % interval.")


def _ways(found: IncidentView) -> None:
    """Where to look further."""
    lead, number = found.lead.finding, found.incident.number
    with st.container(horizontal=True):
        link("The alarm", "alarm", ":material/notifications:", id=number)
        link("Slices and terms", "why", ":material/grid_on:", alarm=number)
        link("Examples", "examples", ":material/article:", alarm=number)
        if lead.statistic is not None:
            link("Its chart", "behaviour", ":material/show_chart:", slice=lead.slice, stat=lead.statistic)
        if found.incident.blocks:
            link("Propose a patch", "lab", ":material/science:", incident=number)


# -- evidence --------------------------------------------------------------------------------------------------------


def evidence(found: IncidentView) -> None:
    """Pinned numbers beside what is known now, and whether they are still what was pinned."""
    st.subheader("Evidence, pinned as it was")
    keeping = sum(opens(each.pin.finding) for each in found.evidence)
    broken = [each for each in found.evidence if not each.intact]
    if broken:
        st.markdown(
            f"{badge('fail', 'CHANGED')} {len(broken)} of {len(found.evidence)} pinned findings are not what the audit "
            "log has the hash of: somebody changed the store. Do not decide on them."
        )
    else:
        st.markdown(
            f"{badge('pass', 'INTACT')} {len(found.evidence)} findings are what the audit log has the hash of; "
            f"{keeping} of them keep a cycle from passing."
        )
    number = st.column_config.NumberColumn(format="%.4g")
    st.dataframe(
        evidence_table(found.evidence),
        hide_index=True,
        key="evidence",
        placeholder="–",
        height=min(38 + 35 * len(found.evidence), 388),
        alt="Pinned findings with their numbers then and now",
        column_config={
            **dict.fromkeys(("before", "after", "effect", "from", "to", "same cycle, now", "newest"), number),
            "n": st.column_config.NumberColumn(format="localized"),
            "same cycle, now": st.column_config.NumberColumn(
                format="%.4g", help="The level of the same cycle as it is kept now: a later check knows more feedback."
            ),
        },
    )


def level(finding: Finding | None) -> float | None:
    """The level that a finding speaks of."""
    if finding is None:
        return None
    return finding.after if finding.after is not None else finding.before


def evidence_table(found: Sequence[Evidence]) -> pd.DataFrame:
    """One row per pinned finding, in the order in which they joined."""
    findings = [each.pin.finding for each in found]
    return pd.DataFrame(
        {
            "statistic": [title(each.statistic) if each.statistic else each.detector for each in findings],
            "slice": [slice_words(each.slice) for each in findings],
            "severity": [words(OF_SEVERITY[each.severity], each.severity.upper()) for each in findings],
            "cycle": [each.pin.cycle for each in found],
            "before": [each.before for each in findings],
            "after": [each.after for each in findings],
            "hash": [words("pass", "INTACT") if each.intact else words("fail", "CHANGED") for each in found],
            "same cycle, now": [level(each.again) for each in found],
            "newest": [None if each.latest is None else level(each.latest.finding) for each in found],
            "newest in cycle": [None if each.latest is None else each.latest.cycle for each in found],
            "effect": [each.effect for each in findings],
            "from": [each.low for each in findings],
            "to": [each.high for each in findings],
            "n": [each.n for each in findings],
            "detector": [each.detector for each in findings],
            "why it is here": [shown(each.pin.why, 300)[0] for each in found],
            "pinned (UTC)": [f"{each.pin.pinned_at:%Y-%m-%d %H:%M}" for each in found],
        }
    )


# -- timeline and documents ------------------------------------------------------------------------------------------


def timeline(found: IncidentView) -> None:
    """Its part of the audit log, newest first."""
    st.subheader("Timeline")
    entries = list(reversed(found.timeline))[:MOST_ENTRIES]
    st.dataframe(
        timeline_table(entries),
        hide_index=True,
        key="timeline",
        placeholder="–",
        height=min(38 + 35 * len(entries), 318),
        alt="Who did what, newest first",
        column_config={"why": st.column_config.TextColumn(width="large")},
    )
    if len(found.timeline) > MOST_ENTRIES:
        st.caption(f"The newest {MOST_ENTRIES} of {len(found.timeline):,} entries.")
    link(
        "The same in the audit log",
        "audit",
        ":material/receipt_long:",
        subject=f"incident:{found.incident.number}",
    )


def timeline_table(entries: Sequence[AuditEntry]) -> pd.DataFrame:
    """One row per entry."""
    return pd.DataFrame(
        {
            "at (UTC)": [entry.at[:19].replace("T", " ") for entry in entries],
            "by": [shown(entry.actor, 100)[0] for entry in entries],
            "what": [shown(incidents.told_of(entry), 200)[0] for entry in entries],
            "why": [" ".join(shown(entry.reason, 1_000)[0].split()) for entry in entries],
            "entry": [entry.number for entry in entries],
        }
    )


def documents(found: IncidentView) -> None:
    """The post-mortem, and the words for whoever comes next."""
    number = found.incident.number
    st.subheader("Hand over")
    left, right, _ = st.columns([0.25, 0.25, 0.5])
    left.download_button(
        "Post-mortem (Markdown)",
        lambda: incidents.post_mortem(found, "markdown").encode(errors="replace"),
        f"incident-{number}.md",
        "text/markdown",
        key="post-mortem-md",
        on_click="ignore",
    )
    right.download_button(
        "Post-mortem (HTML)",
        lambda: incidents.post_mortem(found, "html").encode(errors="replace"),
        f"incident-{number}.html",
        "text/html",
        key="post-mortem-html",
        on_click="ignore",
    )
    with st.expander("Text for whoever takes over, to be copied"):
        st.code(shown(incidents.hand_over(found), 6_000)[0], language=None, wrap_lines=True)
