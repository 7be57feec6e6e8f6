"""When a champion that was found bad is taken back, what serves in its place, and who is told.

It is taken back to the last former champion that served before what is wrong first showed; where nothing says since
when, to the one that it took the place of. A checkpoint that was rolled back never serves again.

What does not count against a champion that serves: what a person has accepted or called a false alarm; and, of one that
was put back, what has been found in every cycle since before that: averages over cycles forget slowly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from palomar.data.findings import Finding
from palomar.data.slices import ALL
from palomar.data.store import Store
from palomar.data.store.incidents import ACTIVE, Arrival
from palomar.data.store.records import Decision, Incident, IncidentState, PinnedFinding, Silence
from palomar.detectors.incidents import covered
from palomar.trainer.promotion import SERVES, Evidence, Told

DETECTOR = "gate"
"""Whose finding it is where a champion is taken back and no detector found anything."""


def speaks_against(store: Store, run_id: str, cycle: int) -> Callable[[Finding], bool]:
    """Whether a finding of a cycle counts against the champion that serves in it."""
    record = store.cycles.get(run_id, cycle)
    began = None if record is None else record.started_at
    resolved: tuple[IncidentState, ...] = ("resolved",)
    excused = [
        (incident, store.incidents.pinned(incident.number))
        for incident in store.incidents.read(run_id, states=resolved)
        if incident.resolution in ("accepted", "false_alarm")
    ]
    remembered = _remembered(store, run_id, cycle)

    def counts(finding: Finding) -> bool:
        if finding.key in remembered:
            return False
        return not any(
            finding.key in {pin.key for pin in pins} and covered(incident, pins, finding, cycle, began)
            for incident, pins in excused
        )

    return counts


def _remembered(store: Store, run_id: str, cycle: int) -> frozenset[str]:
    """Keys of what has blocked in every cycle since before the champion was put back; none where it was not."""
    served = store.cycles.served(run_id)
    name = served.get(cycle)
    champion = None if name is None else store.checkpoints.get(run_id, name)
    first = cycle
    while name is not None and served.get(first - 1) == name:
        first -= 1
    if champion is None or champion.served_from is None or champion.served_from >= first:
        return frozenset()
    blocked = [
        {found.finding.key for found in store.findings.read(run_id, each) if found.finding.severity == "blocks"}
        for each in range(first - 1, cycle)
    ]
    return frozenset(set.intersection(*blocked))


def target(store: Store, run_id: str, decision: Decision) -> str | None:
    """What is to serve in place of the champion that a decision blocks; None where there is nothing to go back to."""
    served = store.cycles.served(run_id)
    known = {each.checkpoint_id: each for each in store.checkpoints.read(run_id)}
    former = {cycle: name for cycle, name in served.items() if name is not None and known[name].status == "superseded"}
    since = [each.since for each in _blocking(decision) if each.since is not None]
    first = min(since, default=max(served, default=0) + 1)
    before = [cycle for cycle in former if cycle < first]
    # What showed in the first cycles already was not taught by any update: then the oldest of all.
    return former[max(before)] if before else former[min(former)] if former else None


def tell_incidents(store: Store, run_id: str, decision: Decision, *, to: str, cycle: int, actor: str) -> None:
    """Notes a rollback on the incidents of what it rests on, and opens one where there is none.

    The harm is stopped and its cause is not: they stay open, and the gate holds what is trained next, until a person or
    a patch has seen to the reward.
    """
    ids = {each.id for each in _blocking(decision)}
    found = [store.findings.get(each) for each in ids]
    keys = {each.finding.key for each in found if each is not None}
    active = store.incidents.read(run_id, states=ACTIVE)
    concerned = [one.number for one in active if keys & {pin.key for pin in store.incidents.pinned(one.number)}]
    for number in concerned or [_open(store, run_id, decision, cycle)]:
        store.incidents.act(
            number,
            actor=actor,
            what=f"{decision.candidate} was taken back, {to} serves from cycle {cycle + 1} on: "
            f"{decision.sentence.removeprefix(SERVES)}",
            detail={"decision": decision.decision_id, "checkpoint": decision.candidate, "to": to},
            token=f"rollback {decision.decision_id} incident {number}",
        )


def _open(store: Store, run_id: str, decision: Decision, cycle: int) -> int:
    """An incident of its own, where no detector found what the gate blocks by: a suite, an experiment, two people."""
    finding = Finding(
        detector=DETECTOR,
        severity="blocks",
        sentence=decision.sentence or f"the gate blocks {decision.candidate}: {', '.join(decision.reasons)}",
        detail={"decision": decision.decision_id, "reasons": list(decision.reasons)},
    )
    store.findings.write(run_id, cycle, [finding], candidate=decision.candidate)
    (kept,) = store.findings.read(run_id, cycle, candidate=decision.candidate)

    def arrivals(
        _: Sequence[Incident], pins: Mapping[int, Sequence[PinnedFinding]], silences: Sequence[Silence]
    ) -> Sequence[Arrival]:
        if any(pin.finding_id == kept.finding_id for each in pins.values() for pin in each):
            return ()
        title = f"champion taken back: {decision.candidate}"
        why = f"the gate blocks the champion: {finding.sentence}"
        member = (kept, "the gate found it")
        return (Arrival(None, "open", why, title, (DETECTOR,), ALL, blocks=True, keeps=True, findings=(member,)),)

    store.incidents.arrive(run_id, cycle, arrivals)
    for each in store.incidents.read(run_id):
        if any(pin.finding_id == kept.finding_id for pin in store.incidents.pinned(each.number)):
            return each.number
    raise AssertionError("it was pinned just now")


def _blocking(decision: Decision) -> list[Told]:
    """The findings that a decision blocks by, as they were frozen with it; none where it kept none."""
    if decision.inputs is None:
        return []
    frozen = Evidence.model_validate(decision.inputs)
    told = (*frozen.cycle_check.findings, *frozen.candidate_check.findings)
    return [each for each in told if each.blocks and f"finding:{each.code}" in decision.reasons]
