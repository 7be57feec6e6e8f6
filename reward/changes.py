"""From what was found to a change of the reward: targets, proposals that are kept, and how one comes into force.

    findings -> targets -> proposals (kept) -> a new version, from the next cycle on -> (a revert)

Findings say where a pressure is to turn round, and that is all they say: no figure of a detector can come into a spec,
since a spec names terms, and terms read facts of interactions (`palomar.reward.rows`). Training against a monitor
teaches hiding.

A change never touches the cycle that is running, and none is made twice: a proposal is about one version, and once
another is in force it is stale.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from palomar.data.errors import StoreError
from palomar.data.findings import Finding
from palomar.data.schema import content_id
from palomar.data.slices import ALL, SLICES
from palomar.data.store import Store
from palomar.data.store.records import RewardChange, RewardProposal
from palomar.reward import versions
from palomar.reward.behaviours import MEASURED
from palomar.reward.patch import Patch, Proposal, Target
from palomar.reward.replay import ANY, PressureRow
from palomar.reward.spec import parse_spec, version

AGAINST_USERS = ("reward_hack", "forewarning")
"""Readings that a patch answers."""
_CLEAR = "clarification_rate_clear"
_ON_THE_BENCH = {each.name for each in MEASURED}
_LEAST_LOSS = 0.01


@dataclass(frozen=True)
class Aim:
    """What some findings ask of the reward."""

    targets: tuple[Target, ...]
    unaimed: tuple[str, ...]
    """What the bench does not measure, in words; it is not patched."""


def aim(findings: Iterable[Finding]) -> Aim:
    """Less of what the reward pushes against users, once per statistic and slice, of all findings read so."""
    targets: dict[tuple[str, str], Target] = {}
    unaimed: dict[str, None] = {}
    for finding in findings:
        if finding.reading not in AGAINST_USERS:
            continue
        side = finding.detail.get("direction")
        cell = _cell(finding)
        if cell is None or side not in (1, -1):
            unaimed[f"{finding.statistic or finding.detector} in {finding.slice}"] = None
            continue
        want: Literal[-1, 1] = -1 if side == 1 else 1
        targets.setdefault(cell, Target(*cell, want))
    return Aim(tuple(targets.values()), tuple(unaimed))


def _cell(finding: Finding) -> tuple[str, str] | None:
    """Where the bench measures what the finding is about; None where it does not."""
    statistic, slice_ = finding.statistic, finding.slice
    if statistic == _CLEAR:  # which is the rate of all questions, on clear requests
        bands = {**SLICES.get(slice_, {"?": "?"}), "ambiguity": "clear"}
        statistic = "clarification_rate"
        slice_ = next((name for name, of in SLICES.items() if of == bands), "")
    return (statistic, slice_) if statistic in _ON_THE_BENCH and slice_ in SLICES else None


# -- proposals -----------------------------------------------------------------------------------------------------


def kept(
    store: Store,
    run_id: str,
    cycle: int,
    found: Patch,
    *,
    actor: str,
    predicted: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
) -> list[RewardProposal]:
    """The proposals as the store keeps them, the best first. Keeping them again changes nothing.

    `predicted`: the next cycle by the version of each proposal, as plain records.
    """
    made = datetime.now(UTC)
    records = []
    for place, each in enumerate(found.proposals, start=1):
        name = version(each.spec)
        records.append(
            RewardProposal(
                run_id=run_id,
                proposal_id=content_id(run_id, str(cycle), found.version, name),
                cycle=cycle,
                place=place,
                base=found.version,
                version=name,
                kind=each.kind,
                title=each.title,
                text=each.text,
                actor=actor,
                detail={**described(each, found.before), "next_cycle": list((predicted or {}).get(name, ()))},
                made_at=made,
            )
        )
    store.rewards.propose(records)
    return records


def described(proposal: Proposal, before: Sequence[PressureRow]) -> dict[str, Any]:
    """What a person weighs about a proposal, as plain values."""
    old = {(row.statistic, row.slice): row for row in before if row.kind == "old"}
    outcome = {(row.statistic, row.slice): row for row in before if row.kind != "old"}
    aimed = [target.cell for target in (*proposal.turned, *proposal.unturned)]
    new = {(row.statistic, row.slice): row for row in proposal.predicted}
    return {
        "diff": proposal.diff,
        "changes": list(proposal.changes),
        "turned": [str(target) for target in proposal.turned],
        "targets": [dict(vars(target)) for target in proposal.turned],
        "unturned": [str(target) for target in proposal.unturned],
        "lost": [f"{statistic} in {slice_}" for statistic, slice_ in proposal.lost],
        "reversed": [
            f"{statistic} in {slice_}"
            for statistic, slice_ in proposal.lost
            if _opposite(old.get((statistic, slice_)), new.get((statistic, slice_)))
        ],
        "distance": proposal.distance,
        "relative_change": proposal.relative_change,
        "honest_hurt": proposal.honest_hurt,
        "pushed_less": _pushed_less(proposal),
        "pressures": [
            {
                "statistic": cell[0],
                "slice": cell[1],
                "old": _interval(old.get(cell)),
                "new": _interval(new.get(cell)),
                "outcome": _interval(outcome.get(cell)),
            }
            for cell in aimed
        ],
    }


def _pushed_less(proposal: Proposal) -> list[dict[str, Any]]:
    """Behaviours of which a smaller share is pushed, the largest loss first."""
    rows = [
        each
        for each in proposal.replay.changes
        if each.slice == ALL and each.behaviour != ANY and each.old_pushed - each.new_pushed > _LEAST_LOSS
    ]
    rows.sort(key=lambda each: each.new_pushed - each.old_pushed)
    return [
        {"behaviour": each.behaviour, "n": each.n, "before": each.old_pushed, "after": each.new_pushed} for each in rows
    ]


def _opposite(old: PressureRow | None, new: PressureRow | None) -> bool:
    """Whether a pressure goes the other way, be it surely or not."""
    values = [0.0 if row is None or row.value is None else row.value for row in (old, new)]
    return values[0] * values[1] < 0


def _interval(row: PressureRow | None) -> dict[str, float | None] | None:
    return None if row is None else {"value": row.value, "low": row.low, "high": row.high}


# -- changes -------------------------------------------------------------------------------------------------------


def apply(
    store: Store, proposal: RewardProposal, *, reason: str, actor: str, after: int | None = None
) -> RewardChange | None:
    """Makes a proposal a new version, in force from the next cycle on; None where it would be in force anyway.

    `after`: refuse where this is not the newest cycle that has begun. Raises StoreError where the proposal is stale,
    and without a reason and an actor.
    """
    cycles = store.cycles.read(proposal.run_id, newest=1)
    now = store.rewards.effective(proposal.run_id, cycles[-1].cycle + 1 if cycles else 0)
    if now is None or now.version not in (proposal.base, proposal.version):
        at = "none" if now is None else now.version
        raise StoreError(
            f"proposal {proposal.proposal_id}", f"is stale: it changes reward {proposal.base}, and {at} is in force"
        )
    record = versions.register(
        store, parse_spec(proposal.text), text=proposal.text, reason=reason, actor=actor, parent=proposal.base
    )
    return store.rewards.change(
        proposal.run_id,
        record.version,
        action="patch",
        reason=reason,
        actor=actor,
        expected=proposal.base,
        proposal_id=proposal.proposal_id,
        after=after,
    )


def revert(
    store: Store, run_id: str, to: str, *, reason: str, actor: str, after: int | None = None
) -> RewardChange | None:
    """Lets a stored version be in force again from the next cycle on; None where it would be anyway."""
    return store.rewards.change(run_id, to, action="revert", reason=reason, actor=actor, after=after)
