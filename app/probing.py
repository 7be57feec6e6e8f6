"""Probes made of what was logged: each resolved incident leaves its case, so that no later reward pays for it again."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from palomar.app.service import Observatory
from palomar.data.errors import PalomarError, StoreError
from palomar.data.store.records import Incident
from palomar.detectors.grouping import ASKING, CALLS, CODE, TRUNCATED, WORDS
from palomar.reward.behaviours import BEHAVIOURS, Logged
from palomar.reward.probes.cases import ProbeFile, cases_of, write_probe

FOLDER = "probes"
"""Where a home keeps them."""
CASES = 200
"""Interactions that are kept of an incident, besides those that its findings name."""
ON_THE_BENCH = {CALLS: "broken call", ASKING: "question", CODE: "split", TRUNCATED: "cut off"}
"""By strand of an incident: the behaviour of the bench (`palomar.reward.behaviours`) that it is about. Other strands
are of several behaviours (playing the grader), or of what follows from some (fewer edits, users' outcome)."""


@dataclass(frozen=True)
class KeptProbe:
    """What was kept."""

    path: Path
    cases: int
    unreadable: int
    """Interactions left out, since they are not of the simulated production."""


def keep_probe(
    observatory: Observatory,
    *,
    name: str,
    behaviour: str,
    title: str,
    actor: str,
    reason: str,
    incident: int | None = None,
    ids: Sequence[str] = (),
) -> KeptProbe:
    """Keeps logged interactions as a probe, and says so in the audit log. The same again changes nothing.

    Of an incident: those that carry its findings, and of its cycles such as show the behaviour, where that is one that
    the bench knows. StoreError where there are none that can be replayed, ConfigError where the name is taken.
    """
    chosen = dict.fromkeys(ids)
    if incident is not None:
        chosen |= dict.fromkeys(_of_incident(observatory, incident, behaviour))
    listed = list(chosen)
    interactions = observatory.lake.interactions(listed) if listed else []
    cases, unreadable = cases_of(interactions)
    if not cases:
        raise StoreError(
            f"probe {name!r}",
            f"none of {len(listed)} interactions can be replayed; only those of the simulated production can",
        )
    kept = ProbeFile(name=name, behaviour=behaviour, title=title, cases=tuple(cases))
    path = observatory.home / FOLDER / f"{name}.json"
    known = path.exists()
    path = write_probe(path.parent, kept)
    if not known:
        observatory.store.audit_log.append(
            actor=actor,
            action="probe.keep",
            subject=f"probe:{name}",
            reason=reason,
            detail={"incident": incident, "behaviour": behaviour, "cases": [case.interaction_id for case in cases]},
        )
    return KeptProbe(path, len(cases), unreadable)


def keep_of_patched(observatory: Observatory, incident: Incident, *, actor: str) -> KeptProbe | str | None:
    """The probe that an incident leaves which ended as patched; why there is none, in words; None where none is due.

    To be called after it was resolved, which it never undoes: what cannot be kept is said in the audit log. The same
    again changes nothing.
    """
    if incident.state != "resolved" or incident.resolution != "patched":
        return None
    number = incident.number
    strand = incident.strands[0]
    behaviour = ON_THE_BENCH.get(strand)
    name = f"incident-{number}-cycle-{incident.resolved_cycle}"
    try:
        if behaviour is None:
            raise StoreError(f"incident {number}", f"{WORDS.get(strand, strand)} is no single behaviour of the bench")
        return keep_probe(
            observatory,
            name=name,
            behaviour=behaviour,
            title=f"does what incident {number} showed",
            actor=actor,
            reason=f"incident {number} was resolved as patched",
            incident=number,
        )
    except (PalomarError, OSError) as exc:
        why = str(exc)
    with suppress(PalomarError):  # it is resolved, and that stands
        observatory.store.audit_log.append(
            actor=actor,
            action="probe.none",
            subject=f"probe:{name}",
            reason=why,
            detail={"incident": number},
            token=f"probe.none {name}",
        )
    return why


def _of_incident(observatory: Observatory, number: int, behaviour: str) -> list[str]:
    incident = observatory.store.incidents.get(number)
    if incident is None:
        raise StoreError(f"incident {number}", "there is no such incident")
    pinned = observatory.store.incidents.pinned(number)
    carrying = [each for pin in pinned for each in pin.finding.evidence.carrying]
    shows = next((each.shows for each in BEHAVIOURS if each.name == behaviour), None)
    if shows is None:
        return carrying
    there = set(observatory.lake.cycles("observations"))
    cycles = [cycle for cycle in range(incident.opened_cycle, incident.seen_cycle + 1) if cycle in there]
    if not cycles:
        return carrying
    logged = Logged.read(observatory.lake, cycles)
    showing = logged.table["interaction_id"].filter(shows(logged.rows)).to_pylist()
    return [each for each in carrying if each in set(showing)] + sorted(showing)[:CASES]
