"""What other systems are told: state changes, read from the audit log, as plain JSON (docs/notify.md).

An entry of the log is told where something is another than before: a decision with another verdict than the one that it
took the place of, a champion that was taken back, an incident in another state. All else is work in between.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from palomar.app.gate_exports import plain_decision
from palomar.app.notify.config import Event
from palomar.data.store import Store
from palomar.data.store.incidents import subject
from palomar.data.store.records import AuditEntry, IncidentState

FORMAT = "palomar-event/1"
MOST_TEXT = 2000
"""Characters of one text; what is longer is cut."""
_STATES: dict[str, IncidentState] = {
    "incident.open": "open",
    "incident.reopen": "open",
    "incident.ack": "acknowledged",
    "incident.resolve": "resolved",
}


@dataclass(frozen=True)
class Happened:
    """A state change of a run."""

    number: int
    """Of its entry in the audit log."""
    event: Event
    body: str
    """JSON in ASCII."""


def since(store: Store, run_id: str, number: int) -> tuple[int, list[Happened]]:
    """The number of the newest entry of the log, and what happened to the run after the one of that number."""
    entries = _after(store, number)
    told = [found for entry in entries if (found := _told(store, run_id, entry)) is not None]
    return (entries[-1].number if entries else number), told


def _after(store: Store, number: int) -> list[AuditEntry]:
    """Entries of the log after one; their numbers have no gaps."""
    while (new := store.audit_log.head().entries - number) > 0:
        entries = store.audit_log.read(newest=new)
        if not entries or entries[0].number <= number + 1:
            return entries
        # Some were added between the two questions; ask for those as well.
    return []


def _told(store: Store, run_id: str, entry: AuditEntry) -> Happened | None:
    if entry.action in ("gate.promote", "gate.hold", "gate.block"):
        return _decision(store, run_id, entry)
    if entry.action == "checkpoint.roll_back" and entry.detail.get("run") == run_id:
        back = {
            "checkpoint": entry.subject.removeprefix("candidate:"),
            "to": entry.detail.get("to"),
            "since_cycle": entry.detail.get("since_cycle"),
        }
        sentence = f"{back['checkpoint']} was taken back; {back['to']} serves from cycle {back['since_cycle']} on"
        return _happened(run_id, entry, "rollback", sentence, {"rollback": back})
    if entry.action in _STATES or entry.action == "incident.action":
        return _incident(store, run_id, entry)
    return None


def _decision(store: Store, run_id: str, entry: AuditEntry) -> Happened | None:
    decision = store.decisions.find(str(entry.detail.get("decision")))
    if decision is None or decision.run_id != run_id:
        return None
    before = None if decision.supersedes is None else store.decisions.find(decision.supersedes)
    if before is not None and (before.verdict, before.kind) == (decision.verdict, decision.kind):
        return None
    word = f"{decision.verdict.upper()}{f' ({decision.kind})' if decision.kind else ''}"
    sentence = f"{decision.candidate}: {word}" + (f": {decision.sentence}" if decision.sentence else "")
    return _happened(run_id, entry, decision.verdict, sentence, {"decision": plain_decision(decision)})


def _incident(store: Store, run_id: str, entry: AuditEntry) -> Happened | None:
    number = entry.subject.removeprefix("incident:")
    incident = store.incidents.get(int(number)) if number.isdecimal() else None
    if incident is None or incident.run_id != run_id:
        return None
    before, after = _states(store.audit_log.read(subject=subject(incident.number)), entry.number)
    if before == after or after is None:
        return None
    said = {
        "number": incident.number,
        "title": incident.title,
        "state": after,
        "was": before,
        "blocks": incident.blocks,
        "opened_cycle": incident.opened_cycle,
        "seen_cycle": incident.seen_cycle,
        "assignee": incident.assignee,
        "resolution": entry.detail.get("resolution"),
        "reason": entry.reason,
    }
    how = f" ({str(said['resolution']).replace('_', ' ')})" if said["resolution"] else ""
    sentence = f"incident {incident.number}, {incident.title}: {after}{how}" + (
        f": {entry.reason}" if entry.reason else ""
    )
    return _happened(run_id, entry, "incident", sentence, {"incident": said})


def _states(timeline: Sequence[AuditEntry], number: int) -> tuple[IncidentState | None, IncidentState | None]:
    """The incident's state before and after an entry of its timeline."""
    before: IncidentState | None = None
    for entry in timeline:
        after = _STATES.get(entry.action, before)
        if entry.action == "incident.action" and entry.detail.get("mitigates"):
            after = "mitigated"
        if entry.number == number:
            return before, after
        before = after
    return before, before


def _happened(run_id: str, entry: AuditEntry, event: Event, sentence: str, more: dict[str, Any]) -> Happened:
    said = {
        "format": FORMAT,
        "id": f"{run_id}/{entry.number}",
        "event": event,
        "run_id": run_id,
        "at": entry.at,
        "actor": entry.actor,
        "sentence": sentence,
        **more,
    }
    return Happened(entry.number, event, json.dumps(_short(said)))


def _short(value: Any) -> Any:
    """With texts that any JSON reader takes (no half characters), and that are not endless."""
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_short(item) for item in value[:100]]
    if isinstance(value, str):
        whole = value.encode("utf-8", "backslashreplace").decode("utf-8")
        return whole if len(whole) <= MOST_TEXT else f"{whole[:MOST_TEXT]} ..."
    return value
