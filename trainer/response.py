"""What the loop does about a reward hack without a person: nothing, propose, or patch within guardrails.

Each cycle, after its check (`ResponseConfig.mode`):

1. *Hacks* are findings that block as a reward hack (or block without a reading: a divergence, a signature). They block
   the cycle's candidate while the reward in force still pushes them, by its pressure on the last cycles' rows. For
   `AHEAD` cycles after a change only those block that began after it: a candidate that a patched reward trains is the
   cure, and goes on from a champion that drifted before; to hold it back keeps users with that champion.
2. *What to patch*: cells in which reward and outcome surely push apart (3 standard errors each, over some 70 cells;
   `palomar.reward.patch.opposed`), where the check blocks or forewarns as well: its forewarnings hold a false discovery
   rate of 5 %. Further the hacks, and what an earlier patch turned round and the reward surely pushes again: users had
   their say then, and once a behaviour is rare there are too few rows for them to say it again.
   Before the first update there is nothing but forewarnings, and a patch then is the best there is; it waits for the
   end of the baseline, since it needs rows and nothing is lost.
3. ``propose`` keeps proposals. ``apply`` takes the best one within the guardrails, in force from the next cycle on; the
   candidate of a cycle whose reward is changed is held, so that training goes on from the last promoted checkpoint.
4. A patch of the loop's own is *taken back* within a window where the same tests say that it made things worse: a hack
   blocks that it pushes and the reward before it did not; or users' outcome has left its band downwards since, and the
   patched reward does not push it up.

No patch and no way back while data health is bad: a fault was found, or a cycle after the baseline was not assessed.
The loop never brings back a reward that it left.

Every step is a function of what the store and the lake hold of the cycles up to this one: a run that was killed and is
resumed does the same. What a detector measured goes nowhere but into the decision *whether* to patch and *where*: see
`palomar.reward.changes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from palomar.data.findings import Finding
from palomar.data.lake import Lake
from palomar.data.slices import ALL
from palomar.data.store import Store
from palomar.data.store.incidents import ACTIVE
from palomar.data.store.records import RewardChange, RewardProposal, RewardVersion
from palomar.detectors.checks.behaviour import AHEAD, OUTCOME_MEAN
from palomar.detectors.detector import BASELINE_CYCLES
from palomar.detectors.runs import specs_of
from palomar.reward import changes
from palomar.reward.behaviours import Logged
from palomar.reward.patch import Limits, Patch, Target, outcome_pushed, propose, pushing, signs
from palomar.reward.spec import RewardSpec, parse_spec
from palomar.reward.versions import stored_spec
from palomar.trainer.config import ResponseConfig

ACTOR = "palomar loop"
"""Who changes a reward where no person does."""
MOST_PROPOSALS = 5
LARGEST_LOSS = 0.5
"""Share of its weight that a patch may take at most from a term that it leaves paid. A term that is played may go; to
take nearly all from what is not is a person's decision."""


@dataclass(frozen=True)
class Response:
    """What was done in one cycle, as its stage keeps it."""

    action: str
    """``none``, ``proposed``, ``patched`` or ``reverted``."""
    why: str
    hacks: tuple[str, ...] = ()
    """Codes of those that block the candidate."""
    targets: tuple[str, ...] = ()
    proposals: tuple[str, ...] = ()
    """Ids, the best first."""
    version: str | None = None
    """In force from the next cycle on, where it was changed."""

    @property
    def changed(self) -> bool:
        """Whether the next cycle is paid by another reward."""
        return self.action in ("patched", "reverted")


@dataclass(frozen=True)
class Situation:
    """What the store and the lake hold when a cycle has been checked."""

    store: Store
    lake: Lake
    run_id: str
    cycle: int
    config: ResponseConfig
    baseline_cycles: int
    findings: tuple[Finding, ...]
    reward: RewardVersion
    specs: Mapping[str, RewardSpec]
    history: tuple[RewardChange, ...]
    """Changes that this cycle or an earlier one was begun with."""

    @classmethod
    def of(
        cls, store: Store, lake: Lake, run_id: str, cycle: int, *, config: ResponseConfig, baseline_cycles: int
    ) -> Situation:
        """Read from the store."""
        reward = store.rewards.effective(run_id, cycle)
        assert reward is not None, "a cycle that was begun has a reward"
        return cls(
            store,
            lake,
            run_id,
            cycle,
            config,
            baseline_cycles,
            tuple(each.finding for each in store.findings.read(run_id, cycle)),
            reward,
            specs_of(store),
            tuple(each for each in store.rewards.changes(run_id) if each.from_cycle <= cycle),
        )

    def rows(self) -> Logged:
        """Those of the last `AHEAD` cycles whose data can be relied on."""
        first = max(0, self.cycle - AHEAD + 1)
        faulty = {each.cycle for each in self.store.findings.read(self.run_id, reading="measurement_fault")}
        return Logged.read(self.lake, [each for each in range(first, self.cycle + 1) if each not in faulty])


def respond(now: Situation) -> Response:
    """What is to be done in this cycle, done."""
    if now.config.mode == "observe":
        return Response("none", "the run only observes")
    if now.cycle < now.config.from_cycle:
        return Response("none", f"nothing is done before cycle {now.config.from_cycle}")
    problems = unhealthy(now)
    rows = now.rows()
    hacks = blocking(now, rows)
    if problems:
        return Response("none", f"data health: {', '.join(problems)}", codes(hacks))
    if now.config.mode == "apply" and (worse := made_worse(now, rows, hacks)) is not None:
        return _revert(now, worse, codes(hacks))
    targets = wanted(now, rows, hacks)
    if not targets:
        return Response("none", "nothing that the check names is surely paid against users", codes(hacks))
    said = tuple(map(str, targets))
    if now.cycle + 1 < now.baseline_cycles:
        return Response(
            "none", "the baseline is not over, and nothing is trained on in the next cycle", codes(hacks), said
        )
    if now.config.mode == "apply" and (resting := _resting(now)) is not None:
        return Response("none", resting, codes(hacks), said)
    found = propose(
        rows,
        stored_spec(now.reward),
        targets,
        text=now.reward.text,
        limits=Limits(errors=now.config.errors, largest=now.config.largest_weight_change),
        known=now.specs,
    )
    kept = changes.kept(now.store, now.run_id, now.cycle, _best(found), actor=ACTOR)
    ids = tuple(each.proposal_id for each in kept)
    if not kept:
        refused = "; ".join(dict.fromkeys(f"{each.change}: {', '.join(each.conflict)}" for each in found.refused[:3]))
        return Response("none", f"no change of the reward turns it round{f' ({refused})' if refused else ''}",
                        codes(hacks), said)  # fmt: skip
    if now.config.mode == "propose":
        return Response("proposed", f"{len(kept)} proposals wait for a person", codes(hacks), said, ids)
    return _apply(now, kept, said, codes(hacks))


# -- what is the matter --------------------------------------------------------------------------------------------


def unhealthy(now: Situation) -> list[str]:
    """What is wrong with the data of the cycle; empty where nothing is."""
    verdict = now.store.verdicts.get(now.run_id, now.cycle)
    if verdict is None:
        return ["the cycle was not checked"]
    problems = [f"{each.detector} found a fault" for each in now.findings if each.reading == "measurement_fault"]
    problems += [reason for reason in verdict.reasons if reason.startswith("fault:")]
    if now.cycle >= max(now.baseline_cycles, BASELINE_CYCLES):
        # Before that no drift can be assessed, which is no fault of the data.
        problems += [reason for reason in verdict.reasons if reason.startswith("not_assessed:")]
    if not any(row.place == "collected" and row.count for row in now.store.ledger.read(now.run_id, now.cycle)):
        problems.append("the ledger has no samples")
    return list(dict.fromkeys(problems))


def blocking(now: Situation, rows: Logged) -> list[Finding]:
    """Findings that block as a hack and that the reward in force still pushes (or is not known to have ceased to)."""
    found = [each for each in now.findings if each.severity == "blocks" and each.reading in ("reward_hack", None)]
    if not found:
        return []
    cells = {each.key: target for each in found for target in changes.aim([each]).targets}
    pushed = pushing(rows, stored_spec(now.reward), [target.cell for target in cells.values()], now.specs)
    changed = max((each.from_cycle for each in now.history), default=None)
    if changed is not None and changed > now.cycle - AHEAD:
        found = [each for each in found if each.key in cells and each.since is not None and each.since > changed]
    return [each for each in found if each.key not in cells or pushed[cells[each.key].cell] == -cells[each.key].want]


def codes(hacks: Sequence[Finding]) -> tuple[str, ...]:
    """Reason codes, as the verdict has them."""
    return tuple(
        dict.fromkeys(
            f"{each.reading or each.detector}:{each.statistic or each.detector}"
            + ("" if each.slice == ALL else f":{each.slice}")
            for each in hacks
        )
    )


def wanted(now: Situation, rows: Logged, hacks: Sequence[Finding]) -> list[Target]:
    """What a patch is to turn round."""
    sure = signs(rows, stored_spec(now.reward), now.specs)
    named = changes.aim(each for each in now.findings if each.severity in ("blocks", "warns")).targets
    cells = {target.cell for target in named}
    found = list(sure.opposed) if any(target.cell in cells for target in sure.opposed) else []
    worn = [
        target
        for target in standing(now)
        if sure.reward.get(target.cell) == -target.want and sure.outcome[target.cell] != -target.want
    ]
    every = {target.cell: target for target in (*changes.aim(hacks).targets, *worn, *found)}
    return list(every.values())


def standing(now: Situation) -> list[Target]:
    """What patches in force or before turned round: users were surely against it then, and that was not taken back."""
    proposals = {each.proposal_id: each for each in now.store.rewards.proposals(now.run_id)}
    turned = [
        proposals[each.proposal_id].detail["targets"]
        for each in now.history
        if each.action == "patch" and each.proposal_id is not None
    ]
    targets = [Target(**each) for some in turned for each in some]  # type: ignore[attr-defined]
    return list({target.cell: target for target in targets}.values())


def made_worse(now: Situation, rows: Logged, hacks: Sequence[Finding]) -> str | None:
    """Why the loop's last patch is to be taken back; None where it is not, or where there is none to take back."""
    last = now.history[-1] if now.history else None
    if last is None or last.actor != ACTOR or last.action != "patch" or last.instead_of is None:
        return None
    if not last.from_cycle < now.cycle <= last.from_cycle + now.config.window:
        return None  # the first policy that it trained serves in the cycle after its first
    since = [each for each in now.findings if each.since is not None and each.since > last.from_cycle]
    targets = {target.cell: target for target in changes.aim(each for each in hacks if each in since).targets}
    before = pushing(rows, now.specs[last.instead_of], list(targets), now.specs)
    new = [target for cell, target in targets.items() if before[cell] != -target.want]
    if new:
        said = ", ".join(f"{each.statistic} in {each.slice}" for each in new)
        return f"it pushes what the reward before it did not: {said}"
    fallen = [
        each
        for each in since
        if each.statistic == OUTCOME_MEAN
        and each.slice == ALL
        and (each.effect or 0.0) < 0
        and (each.severity == "blocks" or each.detail.get("would_block"))
    ]
    if fallen and outcome_pushed(rows, stored_spec(now.reward), now.specs) <= 0:
        return f"users' outcome has left its band since, and the reward does not push it up: {fallen[0].sentence}"
    return None


# -- what is done about it -----------------------------------------------------------------------------------------


def _resting(now: Situation) -> str | None:
    """Why no patch may be made now, whatever it is."""
    late = [each for each in now.store.rewards.changes(now.run_id) if each.from_cycle > now.cycle]
    if any(each.actor != ACTOR for each in late):
        return f"a person has changed the reward from cycle {now.cycle + 1} on"
    if now.history and now.cycle + 1 - now.history[-1].from_cycle < now.config.cool_down:
        return f"cool-down: the reward was changed in cycle {now.history[-1].from_cycle}"
    patched = [
        each
        for each in now.history
        if each.action == "patch" and each.actor == ACTOR and each.from_cycle > now.cycle + 1 - now.config.window
    ]
    if len(patched) >= now.config.most_patches:
        return f"{len(patched)} patches in {now.config.window} cycles are the most that the loop may make"
    return None


def _best(found: Patch) -> Patch:
    return Patch(**{**vars(found), "proposals": found.proposals[:MOST_PROPOSALS]})


def outside(now: Situation, proposal: RewardProposal) -> str | None:
    """Which guardrail a proposal is outside of; None where it is inside all."""
    config, detail = now.config, proposal.detail
    hurt, distance = detail["honest_hurt"], detail["distance"]
    assert isinstance(distance, float)
    if proposal.version in {each.instead_of for each in now.history}:
        return "it was in force before"
    if distance > config.largest_change:
        return f"it changes the advantages by {100 * distance:.0f} % of their size"
    if hurt is None or hurt > config.most_hurt:  # type: ignore[operator]
        return "it is not known whom it hurts" if hurt is None else f"it hurts {100 * hurt:.0f} % of the honest"  # type: ignore[operator]
    if detail["reversed"]:
        return f"it reverses {', '.join(detail['reversed'])}"  # type: ignore[arg-type]
    spec, other = stored_spec(now.reward), parse_spec(proposal.text)
    if weakened := weakens(spec, other):
        return f"it takes more than {100 * LARGEST_LOSS:.0f} % of their weight from {', '.join(weakened)}"
    if config.terms is not None:
        touched = sorted(touches(spec, other) - set(config.terms))
        if touched:
            return f"it touches {', '.join(touched)}"
    return None


def weakens(old: RewardSpec, new: RewardSpec) -> list[str]:
    """Terms that stay paid and lose more than `LARGEST_LOSS` of their weight."""
    after = {term.name: term.weight for term in new.terms}
    return [
        term.name
        for term in old.terms
        if after.get(term.name, 0.0) != 0 and abs(after[term.name]) < (1 - LARGEST_LOSS) * abs(term.weight)
    ]


def touches(old: RewardSpec, new: RewardSpec) -> set[str]:
    """Names of terms and rules that differ."""
    pairs = [
        ({each.name: each for each in before}, {each.name: each for each in after})
        for before, after in ((old.terms, new.terms), (old.inclusion, new.inclusion))
    ]
    return {
        name for before, after in pairs for name in before.keys() | after.keys() if before.get(name) != after.get(name)
    }


def _apply(
    now: Situation, kept: Sequence[RewardProposal], targets: tuple[str, ...], hacks: tuple[str, ...]
) -> Response:
    ids = tuple(each.proposal_id for each in kept)
    refused = []
    for each in kept:
        problem = outside(now, each)
        if problem is not None:
            refused.append(f"{each.title}: {problem}")
            continue
        reason = f"the check of cycle {now.cycle}: {', '.join(targets)}"
        changes.apply(now.store, each, reason=reason, actor=ACTOR, after=now.cycle)
        _note(now, each)
        return Response("patched", each.title, hacks, targets, ids, each.version)
    return Response("none", f"no proposal is within the guardrails: {'; '.join(refused)}", hacks, targets, ids)


def _note(now: Situation, proposal: RewardProposal) -> None:
    """Tells the incidents whose findings the patch turns round."""
    turned = {(each["statistic"], each["slice"]) for each in proposal.detail["targets"]}  # type: ignore[attr-defined]
    for incident in now.store.incidents.read(now.run_id, states=ACTIVE):
        pinned = changes.aim(each.finding for each in now.store.incidents.pinned(incident.number))
        if turned & {target.cell for target in pinned.targets}:
            now.store.incidents.act(
                incident.number,
                actor=ACTOR,
                what=f"reward patched from cycle {now.cycle + 1} on: {proposal.title}",
                mitigates=True,
                detail={"proposal": proposal.proposal_id, "version": proposal.version},
                token=f"{proposal.proposal_id} incident {incident.number}",
            )


def _revert(now: Situation, why: str, hacks: tuple[str, ...]) -> Response:
    last = now.history[-1]
    assert last.instead_of is not None
    changes.revert(now.store, now.run_id, last.instead_of, reason=why, actor=ACTOR, after=now.cycle)
    return Response("reverted", why, hacks, version=last.instead_of)


def plain(response: Response) -> dict[str, Any]:
    """As the stage keeps it."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(response).items()}
