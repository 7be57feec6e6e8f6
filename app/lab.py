"""The reward lab as a page sees it: the reward in force, what was proposed to change it, and what it was before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from palomar.app.patching import Asked, asked_by_finding, asked_by_incident, in_force
from palomar.app.service import Observatory
from palomar.data.errors import StoreError
from palomar.data.store import Store
from palomar.data.store.records import Job, RewardChange, RewardProposal, RewardVersion, Run, ScheduledReward
from palomar.reward.spec import RewardSpec
from palomar.reward.versions import stored_spec

JOBS_LOOKED_AT = 50
"""Among so many of the newest jobs one that has answered already is looked for."""


@dataclass(frozen=True)
class Lab:
    """The reward of a run, and all that it was or might be."""

    run: Run
    present: RewardVersion
    spec: RewardSpec
    from_cycle: int
    """Cycle from which a change that is made now is in force."""
    since: int
    """Cycle from which the present one is."""
    versions: tuple[RewardVersion, ...]
    """All that are stored, oldest first."""
    schedule: tuple[ScheduledReward, ...]
    changes: tuple[RewardChange, ...]
    proposals: tuple[RewardProposal, ...]
    """Of changes of the present one: those of the newest cycle first, in each the best first."""
    cycles: tuple[int, ...]
    """Cycles with interactions, by number."""

    @property
    def last(self) -> RewardChange | None:
        """The change that brought the present one; None where it was there from the beginning."""
        found = [each for each in self.changes if each.version == self.present.version]
        return found[-1] if found else None


def lab(observatory: Observatory, run: Run) -> Lab:
    """All of it, in one reading. Raises StoreError where no reward is in force."""
    store = observatory.store
    present, cycle = in_force(store, run)
    schedule = store.rewards.scheduled(run.run_id)
    proposals = store.rewards.proposals(run.run_id, base=present.version)
    return Lab(
        run=run,
        present=present,
        spec=stored_spec(present),
        from_cycle=cycle,
        since=max(each.from_cycle for each in schedule if each.from_cycle <= cycle),
        versions=tuple(store.rewards.read()),
        schedule=tuple(schedule),
        changes=tuple(store.rewards.changes(run.run_id)),
        proposals=tuple(sorted(proposals, key=lambda each: (-each.cycle, each.place))),
        cycles=observatory.lake.numbered("observations"),
    )


def asked(store: Store, run: Run, incident: int | None, finding: str | None) -> Asked | str | None:
    """What an incident or a finding asks of the reward; why it asks nothing; None where neither is named."""
    try:
        if incident is not None:
            return asked_by_incident(store, run, incident)
        return None if finding is None else asked_by_finding(store, run, finding)
    except StoreError as exc:
        return str(exc)


def answering(proposals: Sequence[RewardProposal], asked_: Asked | None) -> list[tuple[RewardProposal, int | None]]:
    """Proposals with the number of asked targets that each turns (None: nothing is asked, or it was not measured);
    those that turn the most first, else as they came."""
    wanted = set() if asked_ is None or asked_.targets is None else set(asked_.targets)

    def turned(proposal: RewardProposal) -> int | None:
        told = proposal.detail.get("targets")
        if not wanted or not isinstance(told, list):
            return None
        cells = {(each["statistic"], each["slice"], each["want"]) for each in told}
        return sum((each.statistic, each.slice, each.want) in cells for each in wanted)

    found = [(each, turned(each)) for each in proposals]
    return sorted(found, key=lambda each: -(each[1] or 0))


def newest_job(store: Store, kind: str, arguments: Mapping[str, Any]) -> Job | None:
    """The newest job that asked for the same, without its result; None where nobody did."""
    for job in reversed(store.jobs.read(kind=kind, newest=JOBS_LOOKED_AT)):
        if dict(job.arguments) == dict(arguments):
            return job
    return None
