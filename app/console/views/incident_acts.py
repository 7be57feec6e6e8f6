"""What a person does about an incident: one form at a time, each written with actor, reason and entry in the log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, time, timedelta

import streamlit as st

from palomar.app.console import acting, frame
from palomar.app.console.plain import plain
from palomar.app.console.states import badge
from palomar.app.incidents import IncidentView
from palomar.app.probing import keep_of_patched
from palomar.data.store import Store
from palomar.data.store.records import Resolution, Scope, Vote

ENDINGS: Mapping[Resolution, str] = {
    "patched": "patched: the reward was changed",
    "rolled_back": "rolled back: an earlier checkpoint serves",
    "accepted": "accepted until a cycle or a date",
    "false_alarm": "false alarm",
}
LATER = ("Assign", "Note an action", "Resolve", "Reopen")
"""Acts that make sense in some states only."""
NOT_NAMED = "(not named)"


def acts(found: IncidentView) -> None:
    """The next step, and one form for whatever is to be done."""
    incident = found.incident
    st.subheader("What to do")
    if incident.state == "open":
        key = f"ack-{incident.number}"
        act = acting.form(key, "Acknowledge", reason=None, shortcut="a")
        if act is not None:
            with acting.doing(key, "Acknowledged. Others see that you look into it."):
                _store().incidents.acknowledge(incident.number, actor=act.actor, token=act.token)
    forms: dict[str, Callable[[IncidentView], None]] = {
        "Comment": _comment,
        "Assign": _assign,
        "Note an action": _action,
        "Name the root cause": _cause,
        "Resolve": _resolve,
        "Rate the alarm": _rate,
    }
    if incident.state == "resolved":
        forms = {"Reopen": _reopen} | {name: form for name, form in forms.items() if name not in LATER}
    if st.query_params.get("do") in LATER and st.query_params["do"] not in forms:
        del st.query_params["do"]  # what was just done is not to be done again; no reader mistyped it
    usual = _next(found)
    chosen = frame.choice("Do", "do", list(forms), default=usual if usual in forms else next(iter(forms)))
    forms[chosen](found)
    _votes(found)


def _next(found: IncidentView) -> str:
    incident = found.incident
    if incident.state == "resolved":
        return "Reopen"
    if incident.assignee is None:
        return "Assign"
    if incident.cause is None:
        return "Name the root cause"
    return "Note an action" if incident.state == "acknowledged" else "Resolve"


def _store() -> Store:
    return frame.observatory().store


def _comment(found: IncidentView) -> None:
    number = found.incident.number
    act = acting.form(f"comment-{number}", "Comment", reason="Words")
    if act is not None:
        with acting.doing(f"comment-{number}", "Your words stand in the timeline."):
            _store().incidents.comment(number, actor=act.actor, words=act.reason, token=act.token)


def _assign(found: IncidentView) -> None:
    number = found.incident.number
    to = st.text_input("To whom", value=acting.person().name, key=f"to-{number}", max_chars=200)
    act = acting.form(f"assign-{number}", "Assign", reason="Why")
    if act is not None:
        with acting.doing(f"assign-{number}", "Assigned."):
            _store().incidents.assign(number, actor=act.actor, to=to.strip(), reason=act.reason, token=act.token)


def _action(found: IncidentView) -> None:
    number = found.incident.number
    stops = st.checkbox(
        "It stops the harm",
        key=f"mitigates-{number}",
        help="The incident is mitigated: findings may go on for some cycles, and candidates are not held by it.",
    )
    act = acting.form(f"action-{number}", "Note the action", reason="What was done or decided")
    if act is not None:
        with acting.doing(f"action-{number}", "The action stands in the timeline."):
            _store().incidents.act(number, actor=act.actor, what=act.reason, mitigates=stops, token=act.token)


def _cause(found: IncidentView) -> None:
    incident, number = found.incident, found.incident.number
    known = incident.cause or {}
    terms = _with([each.name for each in found.charges], known.get("term"))
    slices = _with(sorted({each.pin.finding.slice for each in found.evidence}), known.get("slice"))
    versions = _with([each.version for each in _store().rewards.scheduled(incident.run_id)], known.get("reward"))
    term = st.selectbox("Term or rule", terms, index=_at(terms, known.get("term")), key=f"term-{number}")
    slice_ = st.selectbox("Slice", slices, index=_at(slices, known.get("slice")), key=f"slice-{number}")
    reward = st.selectbox("Reward version", versions, index=_at(versions, known.get("reward")), key=f"reward-{number}")
    act = acting.form(f"cause-{number}", "Name the cause", reason="Root cause, in words")
    if act is not None:
        with acting.doing(f"cause-{number}", "The root cause is named; an earlier word stays in the timeline."):
            _store().incidents.explain(
                number,
                actor=act.actor,
                words=act.reason,
                term=_named(term),
                slice_=_named(slice_),
                reward=_named(reward),
                token=act.token,
            )


def _with(names: list[str], known: object) -> list[str]:
    more = [str(known)] if known and known not in names else []
    return [NOT_NAMED, *more, *dict.fromkeys(names)]


def _at(names: list[str], known: object) -> int:
    return names.index(str(known)) if known else 0


def _named(word: str) -> str | None:
    return None if word == NOT_NAMED else word


def _resolve(found: IncidentView) -> None:
    incident, number = found.incident, found.incident.number
    how = st.radio(
        "How it ended", list(ENDINGS), index=None, format_func=lambda each: ENDINGS[each], key=f"as-{number}"
    )
    newest = max((each.cycle for each in _store().cycles.read(incident.run_id, newest=1)), default=incident.seen_cycle)
    last = st.number_input(
        "Last cycle that this speaks of",
        incident.opened_cycle,
        max(newest, incident.opened_cycle),
        max(newest, incident.opened_cycle),
        key=f"cycle-{number}",
        help="A finding of a later cycle reopens it.",
    )
    until_cycle, until, scope = None, None, []
    if how == "accepted":
        by = st.radio("Accepted until", ("a cycle", "a date"), key=f"until-{number}", horizontal=True)
        if by == "a cycle":
            until_cycle = st.number_input("Last cycle in which it is accepted", int(last) + 1, None, int(last) + 10)
        else:
            day = st.date_input(
                "Cycles that begin after this day (UTC) are not covered",
                value=(datetime.now(UTC) + timedelta(days=7)).date(),
                min_value=(datetime.now(UTC) + timedelta(days=1)).date(),
                key=f"date-{number}",
            )
            until = datetime.combine(day, time(0), UTC) + timedelta(days=1)
        pairs = {_pair(each): each for each in _pinned(found)}
        chosen = st.multiselect(
            "For what (nothing chosen: all that is pinned)", list(pairs), key=f"scope-{number}", placeholder="scope"
        )
        scope = [pairs[each] for each in chosen]
    act = acting.form(f"resolve-{number}", "Resolve", reason="Why")
    if act is None:
        return
    if how is None:
        st.warning("Resolve: say first how it ended.", icon=":material/edit_note:")
        return
    with acting.doing(f"resolve-{number}", "Resolved. A finding of a later cycle that is not covered reopens it."):
        ended = _store().incidents.resolve(
            number,
            how,
            actor=act.actor,
            reason=act.reason,
            cycle=int(last),
            until_cycle=None if until_cycle is None else int(until_cycle),
            until=until,
            scope=scope,
            token=act.token,
        )
        keep_of_patched(frame.observatory(), ended, actor=act.actor)


def _pinned(found: IncidentView) -> list[Scope]:
    return list(dict.fromkeys(Scope(each.pin.finding.statistic, each.pin.finding.slice) for each in found.evidence))


def _pair(scope: Scope) -> str:
    return "@".join(filter(None, (scope.statistic, scope.slice)))


def _reopen(found: IncidentView) -> None:
    number = found.incident.number
    act = acting.form(f"reopen-{number}", "Reopen", reason="Why")
    if act is not None:
        with acting.doing(f"reopen-{number}", "Open again."):
            _store().incidents.reopen(number, actor=act.actor, reason=act.reason, token=act.token)


def _rate(found: IncidentView) -> None:
    number = found.incident.number
    spoke = sorted({each.pin.finding.detector for each in found.evidence})
    about = st.multiselect("Of which detectors (nothing chosen: all)", spoke, key=f"detectors-{number}")
    vote: Vote | None = st.radio(
        "Was it right to be called?",
        ("useful", "not_useful"),
        index=None,
        format_func=lambda each: "useful" if each == "useful" else "not useful",
        key=f"vote-{number}",
        horizontal=True,
    )
    act = acting.form(f"rate-{number}", "Vote", reason=None)
    if act is None:
        return
    if vote is None:
        st.warning("Vote: say first whether it was useful.", icon=":material/edit_note:")
        return
    with acting.doing(f"rate-{number}", "Your vote counts; your last word stands."):
        _store().incidents.vote(number, vote, actor=act.actor, detectors=about, token=act.token)


def _votes(found: IncidentView) -> None:
    """Who thinks what of its alarms, by detector."""
    if not found.votes:
        st.caption("Nobody has said yet whether these alarms were useful.")
        return
    told = []
    for detector in sorted({each.detector for each in found.votes}):
        of = [each for each in found.votes if each.detector == detector]
        useful = sum(each.vote == "useful" for each in of)
        against = len(of) - useful
        word = "USEFUL" if useful > against else "NOT USEFUL" if against > useful else "DISPUTED"
        told.append(f"{badge('no_data', word)} {plain(detector)} {useful} to {against}")
    st.caption(" · ".join(told))
