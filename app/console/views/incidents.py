"""Incidents: the list, or one of them from alarm to cause to cure to closed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import pandas as pd
import streamlit as st

from palomar.app import incidents
from palomar.app.console import acting, frame
from palomar.app.console.links import address, link
from palomar.app.console.plain import plain, shown
from palomar.app.console.states import OF_INCIDENT, badge, words
from palomar.app.console.views import incident_acts, incident_view
from palomar.app.service import Observatory
from palomar.data.store.incidents import ACTIVE
from palomar.data.store.records import Incident

MOST = 200
"""Incidents in the table; the CSV has all."""
STATES = ("not resolved", "all", "open", "acknowledged", "mitigated", "resolved", "regressed", "accepted")
KINDS = ("all kinds", "blocks", "holds")
ANYONE, NOBODY = "anyone", "nobody"


def page() -> None:
    """The list, or with ``id`` in the URL one incident."""
    acting.told()
    with frame.panel("Incidents"):
        observatory = frame.observatory()
        if not observatory.has_store:
            frame.nothing_yet()
            return
        wanted = st.query_params.get("id")
        if wanted is None:
            _list(observatory)
            return
        number = int(wanted) if wanted.isascii() and wanted.isdigit() and len(wanted) < 10 else None
        found = None if number is None else incidents.view(observatory.store, number)
        if found is None:
            _unknown(observatory, wanted, number)
            return
        _one(found)


def _unknown(observatory: Observatory, wanted: str, number: int | None) -> None:
    known = observatory.store.incidents.read()
    st.warning(f"**There is no incident {plain(wanted)}** in this store.", icon=":material/help:")
    near = sorted(known, key=lambda each: (abs(each.number - (number or each.number)), -each.number))[:5]
    if near:
        st.markdown("The nearest:")
        for each in near:
            link(f"Incident {each.number}", "incidents", ":material/arrow_forward:", id=each.number)
            st.text(shown(each.title, 200)[0])
    link("All incidents", "incidents", ":material/arrow_back:")
    frame.footer("incidents", same=["incident", "list", "--all"])


# -- the list --------------------------------------------------------------------------------------------------------


def _list(observatory: Observatory) -> None:
    run = frame.run()
    every = list(reversed(observatory.store.incidents.read(None if run is None else run.run_id)))
    left, middle, right = st.columns(3)
    with left:
        state = frame.choice("State", "state", STATES)
    with middle:
        kind = frame.choice("Kind", "kind", KINDS)
    with right:
        owners = [ANYONE, NOBODY, *sorted({each.assignee for each in every if each.assignee is not None})]
        owner = frame.choice("Owner", "owner", owners)
    found = [each for each in every if _wanted(each, state, kind, owner)]
    st.markdown(sentence(every))
    if found:
        _table(found[:MOST])
        if len(found) > MOST:
            st.caption(f"The newest {MOST} of {len(found):,}; the CSV has all of them.")
        numbers = [str(each.number) for each in found[:MOST]]
        titles = {str(each.number): each.title for each in found}
        chosen = st.selectbox(
            "Open an incident",
            numbers,
            index=None,
            placeholder="Number or words",
            format_func=lambda number: f"{number}: {titles[number]}",
            key="open",
        )
        if chosen is not None:
            st.query_params["id"] = chosen
            st.rerun()
    else:
        _nothing(observatory, None if run is None else run.run_id, every)
    frame.footer(
        "incidents",
        same=["incident", "list", *(["--all"] if state != "not resolved" else [])],
        csv=lambda: pd.DataFrame([_plain(each) for each in found]),
        state=state,
        kind=kind,
        owner=owner,
        **({} if run is None else {"run": run.run_id}),
    )


def _wanted(incident: Incident, state: str, kind: str, owner: str) -> bool:
    in_state = {
        "not resolved": incident.state in ACTIVE,
        "all": True,
        "regressed": incident.reopened > 0 and incident.state in ACTIVE,
        "accepted": incident.resolution == "accepted",
    }.get(state, incident.state == state)
    of_kind = kind == KINDS[0] or incident.blocks == (kind == "blocks")
    return in_state and of_kind and owner in (ANYONE, incident.assignee or NOBODY)


def sentence(every: Sequence[Incident]) -> str:
    """How many there are in which state, as Markdown."""
    counts = [(state, sum(each.state == state for each in every)) for state in OF_INCIDENT]
    told = " · ".join(f"{badge(OF_INCIDENT[state], state.upper())} {count}" for state, count in counts)
    back = sum(each.reopened > 0 and each.state in ACTIVE for each in every)
    regressed = f" · {badge('fail', 'REGRESSED')} {back}" if back else ""
    return f"{told}{regressed}"


def _table(found: Sequence[Incident]) -> None:
    st.dataframe(
        pd.DataFrame(
            {
                "open": [address("incidents", id=each.number) for each in found],
                "number": [each.number for each in found],
                "state": [state_words(each) for each in found],
                "what": [shown(each.title, 200)[0] for each in found],
                "where": [shown(each.family, 100)[0] for each in found],
                "gate": [words("fail", "BLOCKS") if each.blocks else words("warn", "HOLDS") for each in found],
                "cycles": [f"{each.opened_cycle} to {each.seen_cycle}" for each in found],
                "owner": [each.assignee for each in found],
                "opened (UTC)": [f"{each.opened_at:%Y-%m-%d %H:%M}" for each in found],
                "changed (UTC)": [f"{each.changed_at:%Y-%m-%d %H:%M}" for each in found],
            }
        ),
        hide_index=True,
        key="incidents",
        placeholder="–",
        alt="Incidents, newest first",
        column_config={
            "open": st.column_config.LinkColumn(display_text="open"),
            "what": st.column_config.TextColumn(width="medium"),
        },
    )


def state_words(incident: Incident) -> str:
    """For a cell: shape, state, how it ended, and whether it came back; our own words only."""
    word = incident.state.upper()
    if incident.resolution is not None:
        word = f"{word}: {incident.resolution.replace('_', ' ')}"
    if incident.reopened and incident.state in ACTIVE:
        word = f"{word}, REGRESSED"
    return words(OF_INCIDENT[incident.state], word)


def _plain(incident: Incident) -> dict[str, object]:
    values = asdict(incident)
    return {name: str(value) if isinstance(value, list | tuple | dict) else value for name, value in values.items()}


def _nothing(observatory: Observatory, run_id: str | None, every: Sequence[Incident]) -> None:
    if every:
        st.info(f"**None of {len(every)} incidents is like that.** Choose other filters.", icon=":material/filter_alt:")
        return
    checked = [] if run_id is None else observatory.store.verdicts.read(run_id)
    if checked:
        st.info(
            f"**No incident was ever opened.** {len(checked)} cycles were checked, the newest is cycle "
            f"{checked[-1].cycle}; nothing kept one from passing.",
            icon=":material/check_circle:",
        )
    else:
        st.info(
            "**No incidents, and no cycle was checked yet.** An incident opens when a check finds something that keeps "
            "a cycle from passing. The loop checks each cycle; by hand: `palomar check --cycle N --keep`.",
            icon=":material/hourglass_top:",
        )


# -- one incident ----------------------------------------------------------------------------------------------------


def _one(found: incidents.IncidentView) -> None:
    number = found.incident.number
    link("All incidents", "incidents", ":material/arrow_back:")
    left, right = st.columns([0.64, 0.36], gap="large")
    with left, frame.panel("What happened"):
        incident_view.head(found)
    with right, frame.panel("Acts"):
        incident_acts.acts(found)
    with frame.panel("Evidence"):
        incident_view.evidence(found)
    with frame.panel("Timeline"):
        incident_view.timeline(found)
    with frame.panel("Hand over"):
        incident_view.documents(found)
    frame.footer(
        "incidents",
        same=["incident", "show", str(number), "--all"],
        csv=lambda: incident_view.evidence_table(found.evidence),
        id=number,
    )


if __name__ == "__main__":
    st.title("Incidents")
    page()
