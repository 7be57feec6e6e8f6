"""Patches as a person asks for them: what to turn round, what could be done, and putting it in force.

Whatever is written names who wrote it and why, and leaves an entry in the audit log (`palomar.data.store.rewards`).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from palomar.app.service import Observatory
from palomar.data.errors import StoreError
from palomar.data.findings import Finding
from palomar.data.schema import content_id
from palomar.data.slices import ALL
from palomar.data.store import Store
from palomar.data.store.records import RewardChange, RewardProposal, RewardVersion, Run
from palomar.detectors.forecast import history
from palomar.detectors.next_cycle import next_cycle, plain
from palomar.detectors.runs import specs_of
from palomar.reward import changes
from palomar.reward.behaviours import Logged
from palomar.reward.patch import Cell, Limits, Patch, Target, opposed, propose
from palomar.reward.replay import PressureRow, Replay, compare, spec_changes
from palomar.reward.spec import RewardSpec, parse_spec, version
from palomar.reward.spec_text import rewritten
from palomar.reward.versions import stored_spec

Tell = Callable[[float, str], None]
"""How far it is, from 0 to 1, and what is being done, in words."""

OWN = "own"
"""Kind of a proposal that a person wrote."""

AHEAD = 8
"""Cycles that are looked at where none are named, as the check does for what is to come."""

Status = Literal["proposed", "nothing", "infeasible", "not_assessable"]


@dataclass(frozen=True)
class Asked:
    """What is to be turned round, and who says so."""

    targets: tuple[Target, ...] | None
    """None: look for cells in which reward and outcome surely push apart."""
    source: str
    unaimed: tuple[str, ...] = ()
    """What was found and is not on the bench."""


@dataclass(frozen=True)
class Patching:
    """What a person is shown."""

    status: Status
    why: str
    base: str
    cycles: tuple[int | None, ...]
    asked: Asked
    patch: Patch | None = None
    proposals: tuple[RewardProposal, ...] = ()
    """As the store keeps them, the best first."""


def in_force(store: Store, run: Run) -> tuple[RewardVersion, int]:
    """The reward that the next cycle will be paid by, and the number of that cycle. Raises StoreError without one."""
    begun = store.cycles.read(run.run_id, newest=1)
    cycle = begun[-1].cycle + 1 if begun else 0
    record = store.rewards.effective(run.run_id, cycle)
    if record is None:
        raise StoreError(f"run {run.run_id!r}", "has no reward in force")
    return record, cycle


# -- what is asked -------------------------------------------------------------------------------------------------


def asked_by_check(store: Store, run: Run) -> Asked:
    """What the newest kept check blocks or warns for as paid against users; where there is none, a search."""
    verdicts = store.verdicts.read(run.run_id, newest=1)
    if not verdicts:
        return Asked(None, "a search: no check was kept")
    cycle = verdicts[-1].cycle
    found = [each.finding for each in store.findings.read(run.run_id, cycle)]
    aimed = changes.aim(each for each in found if each.severity in ("blocks", "warns"))
    if not aimed.targets:
        return Asked(None, f"a search: the check of cycle {cycle} found nothing that is paid against users")
    return Asked(aimed.targets, f"the check of cycle {cycle}", aimed.unaimed)


def asked_by_finding(store: Store, run: Run, key: str) -> Asked:
    """A finding by (the start of) its key or id, the newest where it was found often.

    Raises StoreError where none begins so, where several do, and where it is nothing that a patch answers.
    """
    exact = store.findings.get(key)  # a whole id, as links have it: to read all findings takes seconds
    stored = [exact] if exact is not None and exact.run_id == run.run_id else store.findings.read(run.run_id)
    matching = [each for each in stored if each.finding.key.startswith(key) or each.finding_id.startswith(key)]
    if not matching:
        raise StoreError(f"finding {key!r}", "the run has none whose key or id begins so; see palomar check --json")
    if len(keys := {each.finding.key for each in matching}) > 1:
        raise StoreError(f"finding {key!r}", f"several begin so: {', '.join(sorted(keys))}")
    newest = matching[-1]
    return _asked([newest.finding], f"the finding {newest.finding.key} of cycle {newest.cycle}")


def asked_by_incident(store: Store, run: Run, incident: int) -> Asked:
    """What an incident's findings say. Raises StoreError where the run has no such incident."""
    there = store.incidents.get(incident)
    if there is None or there.run_id != run.run_id:
        raise StoreError(f"incident {incident}", f"run {run.run_id!r} has no such incident")
    return _asked([each.finding for each in store.incidents.pinned(incident)], f"incident {incident}")


def _asked(findings: Sequence[Finding], source: str) -> Asked:
    aimed = changes.aim(findings)
    if not aimed.targets:
        read = ", ".join(dict.fromkeys((each.reading or "not read").replace("_", " ") for each in findings))
        measured = f"; the bench does not measure {', '.join(aimed.unaimed)}" if aimed.unaimed else ""
        raise StoreError(source, f"is nothing that a patch answers ({read or 'no finding'}){measured}")
    return Asked(aimed.targets, source, aimed.unaimed)


def asked_by_person(
    statistic: str, slice_: str, want: Literal[-1, 1] | None, logged: Logged, spec: RewardSpec
) -> Asked:
    """A statistic in a slice. `want`: None = the users' outcome's way. Raises StoreError where that is not known."""
    if want is None:
        found = [each for each in opposed(logged, spec) if each.cell == (statistic, slice_)]
        if not found:
            raise StoreError(
                f"{statistic} in {slice_}", "reward and outcome do not surely push it apart; say --less or --more"
            )
        want = found[0].want
    return Asked((Target(statistic, slice_, want),), "a person")


# -- what could be done --------------------------------------------------------------------------------------------


def look(
    observatory: Observatory,
    run: Run | None,
    reward: RewardVersion | tuple[RewardSpec, str],
    asked: Asked,
    *,
    logged: Logged,
    cycles: Sequence[int | None],
    actor: str,
    limits: Limits | None = None,
    tell: Tell | None = None,
) -> Patching:
    """Proposals for the reward in force (or, without a run, for a spec and its text), kept where there is a run."""
    spec, text = (stored_spec(reward), reward.text) if isinstance(reward, RewardVersion) else reward
    base = version(spec)
    known = _specs(observatory)
    if not len(logged):
        return Patching("not_assessable", "no interactions in these cycles", base, tuple(cycles), asked)

    def told(share: float) -> None:
        if tell is not None:
            tell(0.15 + 0.7 * share, "tries changes of the reward")

    found = propose(logged, spec, asked.targets, text=text, limits=limits, known=known, tell=told)
    status, why = _status(found, asked)
    kept: tuple[RewardProposal, ...] = ()
    if run is not None and found.proposals and status == "proposed":
        if tell is not None:
            tell(0.9, "expects the next cycle")
        newest = max(each for each in cycles if each is not None)
        predicted = predictions(observatory, found, newest)
        kept = tuple(changes.kept(observatory.store, run.run_id, newest, found, actor=actor, predicted=predicted))
    return Patching(status, why, base, tuple(cycles), asked, found, kept)


def _status(found: Patch, asked: Asked) -> tuple[Status, str]:
    sides = {(row.kind == "old", row.statistic, row.slice): row for row in found.before}
    if not found.targets:
        return "nothing", "reward and users' outcome nowhere surely push apart"
    still = [target for target in found.targets if _way(sides.get((True, *target.cell))) != target.want]
    if not still:
        return "nothing", f"the reward in force pushes what {asked.source} names the way it should go already"
    if all((True, *target.cell) not in sides or sides[True, *target.cell].low is None for target in still):
        return "not_assessable", "no pressure on it can be estimated from these rows"
    if not found.proposals:
        return "infeasible", "no change within the limits turns it round"
    return "proposed", ""


def _way(row: PressureRow | None) -> int:
    if row is None or row.low is None or row.high is None:
        return 0
    return 1 if row.low > 0 else -1 if row.high < 0 else 0


def predictions(observatory: Observatory, found: Patch, cycle: int) -> dict[str, list[dict[str, object]]]:
    """By the version of each proposal: the targets in the cycle after this, under the present reward and under it."""
    there = [each for each in observatory.lake.numbered("observations") if each <= cycle]
    past = history(observatory.lake, there, _specs(observatory))
    old: dict[Cell, PressureRow] = {(row.statistic, row.slice): row for row in found.before if row.kind == "old"}
    cells = [target.cell for target in found.targets]
    made = {}
    for each in found.proposals:
        new = {(row.statistic, row.slice): row for row in each.predicted}
        made[version(each.spec)] = plain(next_cycle(past, old, {cell: new[cell] for cell in cells if cell in new}))
    return made


def _specs(observatory: Observatory) -> Mapping[str, RewardSpec]:
    return specs_of(observatory.store) if observatory.has_store else {}


def search(
    observatory: Observatory,
    run: Run,
    cycles: Sequence[int],
    *,
    incident: int | None = None,
    finding: str | None = None,
    statistic: str | None = None,
    slice_: str = ALL,
    want: Literal[-1, 1] | None = None,
    actor: str,
    tell: Tell | None = None,
) -> Patching:
    """`look` for the reward in force, asked by an incident, a finding, a person's statistic, or else the newest check.

    Raises StoreError where what asks is not there, or is nothing that a patch answers.
    """
    store = observatory.store
    present, _ = in_force(store, run)
    if incident is not None:
        asked = asked_by_incident(store, run, incident)
    elif finding is not None:
        asked = asked_by_finding(store, run, finding)
    else:
        asked = asked_by_check(store, run)
    if tell is not None:
        tell(0.05, "reads the interactions")
    logged = Logged.read(observatory.lake, cycles)
    if statistic is not None:
        asked = asked_by_person(statistic, slice_, want, logged, stored_spec(present))
    return look(observatory, run, present, asked, logged=logged, cycles=cycles, actor=actor, tell=tell)


def details(found: Patching) -> list[dict[str, Any]]:
    """The proposals with all that is told of them, kept or not."""
    if found.proposals:
        return [
            {"number": each.place, "id": each.proposal_id, "version": each.version, "kind": each.kind,
             "title": each.title, **each.detail, "spec": each.text}
            for each in found.proposals
        ]  # fmt: skip
    if found.patch is None or found.status != "proposed":
        return []
    return [
        {"number": number, "id": None, "version": version(each.spec), "kind": each.kind, "title": each.title,
         **changes.described(each, found.patch.before), "next_cycle": [], "spec": each.text}
        for number, each in enumerate(found.patch.proposals, start=1)
    ]  # fmt: skip


def plain_patching(run: Run | None, found: Patching) -> dict[str, Any]:
    """What was found, as the command line gives it."""
    patch_ = found.patch
    return {
        "run": None if run is None else run.run_id,
        "status": found.status,
        "why": found.why,
        "base": found.base,
        "cycles": found.cycles,
        "num_rows": None if patch_ is None else patch_.num_rows,
        "asked_by": found.asked.source,
        "targets": [] if patch_ is None else [vars(target) for target in patch_.targets],
        "unaimed": found.asked.unaimed,
        "proposals": details(found),
        "refused": [
            {"change": each.change, "target": str(each.target), "conflict": each.conflict}
            for each in (() if patch_ is None else patch_.refused)
        ],
    }


# -- what another reward would have paid ---------------------------------------------------------------------------


def replayed(
    observatory: Observatory,
    old: str,
    new: str,
    cycles: Sequence[int | None],
    *,
    flagged: Sequence[str] = (),
    tell: Tell | None = None,
) -> Replay:
    """A replay of two specs given as YAML. Raises ConfigError for one that is none, StoreError without rows."""
    before, after = parse_spec(old, source="the old reward"), parse_spec(new, source="the new reward")
    if tell is not None:
        tell(0.05, "reads the interactions")
    logged = Logged.read(observatory.lake, cycles)
    if not len(logged):
        raise StoreError(str(observatory.home), "has no interactions in these cycles, so that there is nothing to pay")
    if tell is not None:
        tell(0.3, f"pays {len(logged):,} interactions twice")
    return compare(logged, before, after, known=_specs(observatory), flagged=flagged)


def flagged_by(store: Store, incident: int) -> list[str]:
    """Interactions that carry what an incident's findings say; those drawn at random or against it are not among them.

    None where it is not known which they are.
    """
    pins = store.incidents.pinned(incident)
    return list(dict.fromkeys(each for pin in pins for each in pin.finding.evidence.carrying))


# -- into force ----------------------------------------------------------------------------------------------------


def edited(text: str, weights: Mapping[str, float], without: Sequence[str], *, why: str) -> tuple[RewardSpec, str]:
    """A spec with other weights and without some inclusion rules, and its text, comments and all.

    Raises ConfigError where that is no spec, StoreError where it names a term or rule that is not there.
    """
    spec = parse_spec(text)
    strangers = [
        *(set(weights) - {term.name for term in spec.terms}),
        *(set(without) - {r.name for r in spec.inclusion}),
    ]
    if strangers:
        raise StoreError(f"reward {spec.name}", f"has no {', '.join(map(repr, sorted(strangers)))}")
    terms = tuple(
        term if weights.get(term.name, term.weight) == term.weight
        else term.model_copy(update={"weight": float(weights[term.name])})
        for term in spec.terms
    )  # fmt: skip
    rules = tuple(rule for rule in spec.inclusion if rule.name not in without)
    new = spec.model_copy(update={"terms": terms, "inclusion": rules})
    changed = rewritten(text, new, why=why)
    return parse_spec(changed), changed  # checked anew: a copy is not


def propose_own(
    store: Store, run: Run, text: str, *, title: str, actor: str, replay: Mapping[str, Any] | None = None
) -> RewardProposal:
    """Keeps a person's spec as a proposal to change the reward in force; the same spec again is the proposal there is.

    Of a replay (`Replay.to_dict`) against that reward, how much it changes is kept with it. Raises ConfigError for text
    that is no spec, and StoreError without an actor, where nothing would change, and where no cycle has begun.
    """
    if not actor.strip():
        raise StoreError(f"run {run.run_id!r}", "a proposal needs an actor")
    spec = parse_spec(text)
    present, cycle = in_force(store, run)
    name = version(spec)
    if name == present.version:
        raise StoreError(f"reward {name}", "is in force already: nothing was changed")
    if cycle == 0:
        raise StoreError(
            f"run {run.run_id!r}", "has begun no cycle yet, so that there is nothing to propose a change in"
        )
    there = store.rewards.proposals(run.run_id, cycle - 1)
    proposal = RewardProposal(
        run_id=run.run_id,
        proposal_id=content_id(run.run_id, str(cycle - 1), present.version, name),
        cycle=cycle - 1,
        place=max((each.place for each in there), default=0) + 1,
        base=present.version,
        version=name,
        kind=OWN,
        title=title.strip() or "by hand",
        text=text,
        actor=actor,
        detail=_own_detail(present, spec, text, replay),
        made_at=datetime.now(UTC),
    )
    store.rewards.propose([proposal])
    return next(
        each for each in store.rewards.proposals(run.run_id, cycle - 1) if each.proposal_id == proposal.proposal_id
    )


def _own_detail(
    present: RewardVersion, spec: RewardSpec, text: str, replay: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What a proposal of the bench has too, as far as it is known of a spec that nobody asked the bench for."""
    diff = difflib.unified_diff(present.text.splitlines(), text.splitlines(), "old", "new", lineterm="")
    told = {"diff": "\n".join(diff), "changes": list(spec_changes(stored_spec(present), spec)), "next_cycle": []}
    fits = replay is not None and (replay["old"], replay["new"]) == (present.version, version(spec))
    return {**told, "distance": replay["distance"] if replay is not None and fits else None}


def apply_stored(
    store: Store, run: Run, proposal_id: str, *, reason: str, actor: str, incident: int | None = None
) -> RewardChange | None:
    """Puts a kept proposal in force, by (the start of) its id; None where it is already.

    `incident`: the one that it answers, on whose timeline it is noted. Raises StoreError where no or several ids begin
    so, and where the proposal is stale.
    """
    matching = [each for each in store.rewards.proposals(run.run_id) if each.proposal_id.startswith(proposal_id)]
    if len(matching) != 1:
        raise StoreError(f"proposal {proposal_id!r}", "several begin so" if matching else "the run has none of that id")
    change = changes.apply(store, matching[0], reason=reason, actor=actor)
    if incident is not None and change is not None:
        what = f"reward patched from cycle {change.from_cycle} on: {matching[0].title}"
        detail = {"proposal": matching[0].proposal_id, "version": change.version, "reason": reason}
        store.incidents.act(incident, actor=actor, what=what, mitigates=True, detail=detail)
    return change


def revert(store: Store, run: Run, to: str, *, reason: str, actor: str) -> RewardChange | None:
    """Puts a stored version in force again; None where it is already."""
    return changes.revert(store, run.run_id, to, reason=reason, actor=actor)
