"""One cycle of real-time RL, as it is told in DESIGN: collect, distil, train, check, respond, evaluate, decide, deploy.

`run_cycle` is the whole of it. Each stage reads what earlier stages left in the lake and the store, writes its own
outputs, and is recorded in the store last; a stage that is recorded is not done again. Outputs are idempotent and every
stage is a function of its inputs and of (seed, cycle, stage), so that a run killed at any moment and resumed decides
what an uninterrupted one would have.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from palomar.data.errors import PalomarError, StoreError
from palomar.data.facts import facts
from palomar.data.lake import Lake
from palomar.data.schema import content_id
from palomar.data.serving import Agent
from palomar.data.store import Store
from palomar.data.store import records as stored
from palomar.data.store.decisions import THE_LOOP
from palomar.data.store.records import StageName
from palomar.detectors.check import check
from palomar.detectors.detector import detectors
from palomar.detectors.incidents import open_incidents
from palomar.detectors.measure import measure
from palomar.detectors.runs import follow, foresee, keep, view_of
from palomar.reward import versions
from palomar.reward.ledger import SAMPLE_COLUMNS, ledger
from palomar.reward.scoring import score
from palomar.reward.spec import parse_spec
from palomar.trainer import response, rollback
from palomar.trainer.batch import build_batch, sampled_from
from palomar.trainer.config import AdvantageConfig, EvaluationConfig, PolicyConfig, ResponseConfig, UpdateConfig
from palomar.trainer.evaluation import Evaluation, evaluate
from palomar.trainer.gate import Evidence, Gate, GateDecision
from palomar.trainer.policy import Policy
from palomar.trainer.registry import CheckpointFolder, register
from palomar.trainer.update import update


@dataclass(frozen=True)
class Collected:
    """What a source put into the lake for one cycle."""

    received: int
    """Records that the source handed over: stored ones and quarantined ones."""
    quarantined: dict[str, int]
    """Records that could not be read, by kind."""
    detail: dict[str, Any]
    """Figures for the stage's record."""


class Source(Protocol):
    """Where a cycle's interactions come from."""

    def collect(self, lake: Lake, agent: Agent, cycle: int, seed: int) -> Collected:
        """Puts the cycle's interactions, and the feedback that came since, into the lake. Doing it again adds none."""
        ...

    def now(self, cycle: int) -> datetime:
        """The moment at which a cycle's data is distilled; nothing that users said later is known then."""
        ...


@dataclass(frozen=True)
class Moment:
    """A stage begins or is done; what a progress display hears."""

    cycle: int
    stage: StageName
    state: Literal["begins", "done"]
    elapsed_s: float = 0.0
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Loop:
    """A run with all that its cycles need."""

    run_id: str
    seed: int
    home: Path
    lake: Lake
    store: Store
    checkpoints: CheckpointFolder
    source: Source
    gate: Gate
    base: Policy
    policy: PolicyConfig
    advantage: AdvantageConfig
    update: UpdateConfig
    evaluation: EvaluationConfig
    response: ResponseConfig = field(default_factory=ResponseConfig)
    baseline_cycles: int = 0
    """Cycles at the beginning in which the base serves and is measured, and nothing is trained on."""
    checks: Literal["quick", "all", "none"] = "quick"
    """Which detectors look at each cycle: those that cost little, all, or none."""
    watch: Callable[[Moment], None] = lambda moment: None
    decided: Callable[[stored.Decision], None] = lambda decision: None
    """Hears of every decision once it is stored, and of the same one again where a cycle is taken up."""
    _loaded: Policy | None = None
    """The policy in memory: a candidate is evaluated, serves and is trained on without being read again."""

    def agent(self, checkpoint: str) -> Policy:
        """The policy of a checkpoint, to serve or be evaluated; read and verified unless it is the one in memory."""
        if self._loaded is None or self._loaded.checkpoint != checkpoint:
            self._loaded = None  # first: two large models may not fit
            self._loaded = self.checkpoints.load(checkpoint, self.policy)
        return self._loaded

    def pupil(self, checkpoint: str) -> Policy:
        """The policy of a checkpoint, to be trained: no longer in memory under its name, whatever comes of it."""
        policy = self.agent(checkpoint)
        self._loaded = None
        return policy

    def keep(self, policy: Policy) -> None:
        """Has a policy in memory under the name it was saved by."""
        self._loaded = policy

    def stage_seed(self, cycle: int, stage: str) -> int:
        """Seed of one stage of one cycle: independent of which stages ran before it in this process."""
        return int(content_id(str(self.seed), str(cycle), stage)[:8], 16)


def run_cycle(loop: Loop, cycle: int) -> stored.Cycle:
    """One turn of the loop, or the rest of one that was interrupted. Raises LedgerError where samples do not add up."""
    begun = _begun(loop, cycle)
    champion = begun.checkpoint_id
    assert champion is not None, "a cycle of the loop is served by a checkpoint"
    stages = _Stages(loop, cycle, done={stage.stage: stage.detail for stage in begun.stages})
    try:
        stages.run("collect", lambda: collect(loop, cycle, champion))
        stages.run("distil", lambda: distil(loop, cycle))
        trained = stages.run("train", lambda: train(loop, cycle, champion))
        candidate = trained["candidate"]
        stages.run("check", lambda: check_cycle(loop, cycle))
        responded = stages.run("respond", lambda: respond_to(loop, cycle))
        stages.run("evaluate", lambda: evaluate_candidate(loop, candidate, champion))
        decided = stages.run("decide", lambda: decide(loop, cycle, candidate, champion, responded))
        stages.run("deploy", lambda: deploy(loop, cycle, candidate, champion, decided))
    except PalomarError as exc:
        loop.store.cycles.stop(loop.run_id, cycle, str(exc))
        raise
    loop.store.cycles.complete(loop.run_id, cycle)
    finished = loop.store.cycles.get(loop.run_id, cycle)
    assert finished is not None
    return finished


def begin(loop: Loop, *, name: str, config: Mapping[str, Any], spec_text: str, spec_source: str) -> None:
    """Writes the run, its first reward and its base as the first champion; doing it again changes nothing."""
    loop.store.runs.add(loop.run_id, name=name, seed=loop.seed, config=config)
    reward = versions.register(
        loop.store,
        parse_spec(spec_text, source=spec_source),
        text=spec_text,
        reason="the run's first reward",
        actor="palomar run",
    )
    if loop.store.rewards.effective(loop.run_id, 0) is None:
        loop.store.rewards.schedule(loop.run_id, reward.version, from_cycle=0)
    if loop.store.checkpoints.champion(loop.run_id) is None:
        saved = loop.checkpoints.save(loop.base, parent=None, cycle=None)
        register(loop.store, loop.run_id, saved, parent=None, cycle=None)
        loop.store.checkpoints.promote(
            loop.run_id, saved.checkpoint_id, replacing=None, since_cycle=0, reason="the run's base"
        )


def collect(loop: Loop, cycle: int, champion: str) -> dict[str, Any]:
    """The champion serves users; what they did with it goes into the lake."""
    collected = loop.source.collect(loop.lake, loop.agent(champion), cycle, loop.stage_seed(cycle, "collect"))
    return {"received": collected.received, "quarantined": collected.quarantined, **collected.detail}


def distil(loop: Loop, cycle: int) -> dict[str, Any]:
    """User responses become rewards, of this cycle and of earlier ones whose feedback was not all in."""
    as_of = loop.source.now(cycle)
    opened = [*_unsettled(loop, cycle - 1), cycle]
    unsettled = []
    for each in opened:
        spec = versions.effective(loop.store, loop.run_id, each)
        observations = score(facts(loop.lake, each, as_of), spec, as_of)
        loop.lake.write_observations(observations, each)
        if _waits(observations):
            unsettled.append(each)
    loop.store.statistics.write(loop.run_id, measure(loop.lake, cycles=opened))
    return {"as_of": as_of.isoformat(), "distilled": opened, "unsettled": unsettled}


def train(loop: Loop, cycle: int, champion: str) -> dict[str, Any]:
    """All weights are updated on this cycle and on what late feedback settled; every sample is accounted for."""
    offered = _offered(loop, cycle)
    ids, cycles = offered["interaction_id"].to_pylist(), offered["cycle"].unique().to_pylist()
    batch = build_batch(sampled_from(loop.lake, ids, cycles), offered, cycle, loop.advantage, loop.baseline_cycles)
    policy = loop.pupil(champion)
    updated = update(
        policy,
        loop.base,
        batch,
        loop.update,
        seed=loop.stage_seed(cycle, "train"),
        optimizer_state=loop.checkpoints.optimizer_state(champion),
    )
    loop.lake.append_samples(updated.samples, cycle)
    account(loop, cycle)
    candidate = None
    if updated.report.status == "updated":
        saved = loop.checkpoints.save(policy, updated.optimizer_state, parent=champion, cycle=cycle)
        register(loop.store, loop.run_id, saved, parent=champion, cycle=cycle)
        candidate = saved.checkpoint_id
        loop.keep(policy)
    return {"candidate": candidate, **updated.report.as_dict()}


def account(loop: Loop, cycle: int) -> None:
    """Checks and writes the ledgers of this cycle and of those it took waiting samples from. Raises LedgerError."""
    rows: list[stored.LedgerRow] = []
    for each in range(max(0, cycle - loop.advantage.max_lag - 1), cycle + 1):
        collected = loop.store.cycles.get(loop.run_id, each)
        assert collected is not None
        intake = next(stage.detail for stage in collected.stages if stage.stage == "collect")
        book = ledger(
            each,
            loop.lake.scan("interactions", ["interaction_id", "predicted_failure"], cycles=[each]),
            loop.lake.scan("observations", OFFERED_COLUMNS, cycles=[each]),
            loop.lake.scan("samples", SAMPLE_COLUMNS, cycles=range(each, cycle + 1)),
            intake["quarantined"],  # type: ignore[arg-type]
            received=intake["received"],  # type: ignore[arg-type]
        )
        book.check()
        rows += book.rows
    loop.store.ledger.write(loop.run_id, rows)


def check_cycle(loop: Loop, cycle: int) -> dict[str, Any]:
    """What changed in this cycle and what it means, with what the update was given: findings, and a verdict."""
    if loop.checks == "none":
        return {"verdict": None}
    chosen = [name for name, detector in detectors().items() if loop.checks == "all" or not detector.costly]
    seen = view_of(loop.lake, loop.store, loop.run_id, cycle)
    checked = check(seen, chosen)
    keep(loop.store, loop.run_id, checked, loop.source.now(cycle))
    foresee(loop.store, loop.run_id, seen)
    open_incidents(loop.store, loop.run_id, cycle)
    follow(loop.store, loop.run_id, cycle)
    said = checked.verdict
    return {"verdict": said.word, "reasons": list(said.reasons), "findings": said.counts}


def respond_to(loop: Loop, cycle: int) -> dict[str, Any]:
    """What the loop does about the reward itself, as far as the run lets it; from the next cycle on."""
    if loop.response.mode == "observe":
        return {"action": "none"}
    now = response.Situation.of(
        loop.store, loop.lake, loop.run_id, cycle, config=loop.response, baseline_cycles=loop.baseline_cycles
    )
    return response.plain(response.respond(now))


def evaluate_candidate(loop: Loop, candidate: str | None, champion: str) -> dict[str, Any]:
    """Suites of held-out tasks, on the candidate and (where that was not done yet) on the champion."""
    if candidate is None:
        return {}
    summaries = {}
    for checkpoint in (champion, candidate):
        rows = [
            stored.Evaluation(checkpoint, name, item.metric, item.value, item.low, item.high, item.n)
            for name, evaluation in _evaluations(loop, checkpoint).items()
            for item in evaluation.summaries()
        ]
        loop.store.evaluations.write(loop.run_id, rows)
        summaries[checkpoint] = {f"{row.suite}:{row.metric}": row.value for row in rows}
    return {"candidate": summaries[candidate], "champion": summaries[champion]}


def decide(
    loop: Loop, cycle: int, candidate: str | None, champion: str, responded: Mapping[str, Any]
) -> dict[str, Any]:
    """The gate's word on the candidate, which stands; and on the champion, where it is to be taken back."""
    back = watch(loop, cycle, champion)
    if candidate is None:
        reasons = ["baseline" if cycle < loop.baseline_cycles else "nothing_learnt"]
        return {"verdict": "hold", "reasons": reasons, **back}
    holds = ["reward_changed"] if responded["action"] in ("patched", "reverted") else []
    holds += ["champion_taken_back"] if back else []
    evidence = Evidence(
        _evaluations(loop, candidate),
        _evaluations(loop, champion),
        hacks=tuple(responded.get("hacks", ())),
        holds=tuple(holds),
    )
    decision = _decided(loop, cycle, candidate, evidence)
    verdict = "hold" if back and decision.verdict == "promote" else decision.verdict
    return {"verdict": verdict, "reasons": list(decision.reasons), **back}


def watch(loop: Loop, cycle: int, champion: str) -> dict[str, Any]:
    """What serves in place of the champion, where the gate blocks it by what was found while it served; else empty.

    So it does where somebody asked the gate about the champion (by an experiment, say) and was told to block it, and
    where two people decided that. While an override lets it serve, it serves.
    """
    decisions = loop.store.decisions
    highest = decisions.highest(loop.run_id, champion)
    decision = decisions.get(loop.run_id, champion)
    if decision is None or (decision.verdict != "block" and decision.kind != "override"):
        said = loop.gate.watch(champion, cycle)
        decision = None if said is None else _take(loop, cycle, champion, said, highest)
    if decision is None or decision.verdict != "block":
        return {}
    loop.decided(decision)
    to = rollback.target(loop.store, loop.run_id, decision)
    return {} if to is None else {"taken_back": {"checkpoint": champion, "to": to, "decision": decision.decision_id}}


def deploy(loop: Loop, cycle: int, candidate: str | None, champion: str, decided: Mapping[str, Any]) -> dict[str, Any]:
    """The candidate goes into production, or the champion stays; the next cycle measures whoever serves."""
    reason = ", ".join(decided["reasons"]) or "the gate let it pass"
    serving = _take_back(loop, cycle, champion, decided)
    if candidate is None:
        return {"serving": serving}
    match decided["verdict"]:
        case "promote":
            loop.store.checkpoints.promote(
                loop.run_id, candidate, replacing=champion, since_cycle=cycle + 1, reason=reason
            )
            return {"serving": candidate}
        case "block":
            loop.store.checkpoints.block(loop.run_id, candidate, reason)
        case _:
            # A held candidate is not waited for: the next cycle trains from the champion on fresher data.
            loop.store.checkpoints.supersede(loop.run_id, candidate, f"held: {reason}")
    return {"serving": serving}


OFFERED_COLUMNS = (
    "interaction_id",
    "cycle",
    "group_id",
    "predicted_failure",
    "ambiguity",
    "reward",
    "reward_status",
    "included",
    "exclusion",
)
"""Columns of observations that say what a sample is worth and whether it counts."""


@dataclass
class _Stages:
    """Runs stages that are not recorded yet, and records them."""

    loop: Loop
    cycle: int
    done: dict[StageName, Mapping[str, Any]]

    def run(self, stage: StageName, work: Callable[[], dict[str, Any]]) -> Mapping[str, Any]:
        """The stage's detail, from now or from before."""
        if stage in self.done:
            return self.done[stage]
        self.loop.watch(Moment(self.cycle, stage, "begins"))
        began = time.perf_counter()
        detail = work()
        elapsed = time.perf_counter() - began
        record = self.loop.store.cycles.finish_stage(
            self.loop.run_id, self.cycle, stage, elapsed_s=elapsed, detail=detail
        )
        self.loop.watch(Moment(self.cycle, stage, "done", elapsed, record.detail))
        return record.detail


def _begun(loop: Loop, cycle: int) -> stored.Cycle:
    """The cycle, begun with the champion and the reward in force, or taken up with those that it was begun with."""
    before = loop.store.cycles.get(loop.run_id, cycle)
    champion = (before and before.checkpoint_id) or _champion(loop)
    while True:
        reward = loop.store.rewards.effective(loop.run_id, cycle)
        assert reward is not None, "`begin` scheduled the first reward"
        try:
            return loop.store.cycles.start(loop.run_id, cycle, checkpoint_id=champion, reward_version=reward.version)
        except StoreError:
            # A person may have changed the reward just now; it is in force from this cycle on.
            if loop.store.rewards.effective(loop.run_id, cycle) == reward:
                raise


def _decided(loop: Loop, cycle: int, candidate: str, evidence: Evidence) -> stored.Decision:
    """The loop's decision on a candidate, made once, or the override that took its place.

    What others asked of the gate meanwhile does not bind the loop: it knows more (`Evidence.hacks` and ``holds``).
    """
    decisions = loop.store.decisions
    while True:
        highest = decisions.highest(loop.run_id, candidate)
        decision = decisions.get(loop.run_id, candidate)
        if decision is None or (decision.actor != THE_LOOP and decision.kind != "override"):
            decision = _take(loop, cycle, candidate, loop.gate.decide(evidence), highest)
        if decision.actor == THE_LOOP or decision.kind == "override":
            loop.decided(decision)
            return decision


def _take(loop: Loop, cycle: int, checkpoint: str, said: GateDecision, after: int) -> stored.Decision:
    return loop.store.decisions.take(
        loop.run_id, checkpoint, after=after, cycle=cycle, policy=loop.gate.policy, **vars(said)
    )


def _take_back(loop: Loop, cycle: int, champion: str, decided: Mapping[str, Any]) -> str:
    """Takes the champion back where that was decided; who serves from the next cycle on."""
    back = decided.get("taken_back")
    if back is None:
        return champion
    decision = loop.store.decisions.find(back["decision"])
    assert decision is not None, "decisions are never deleted"
    reason = f"{decision.decision_id}: {', '.join(decision.reasons)}"
    to: str = back["to"]
    loop.store.checkpoints.roll_back(loop.run_id, champion, to=to, since_cycle=cycle + 1, reason=reason)
    rollback.tell_incidents(loop.store, loop.run_id, decision, to=to, cycle=cycle, actor=THE_LOOP)
    return to


def _champion(loop: Loop) -> str:
    champion = loop.store.checkpoints.champion(loop.run_id)
    assert champion is not None, "`begin` promoted the base"
    return champion.checkpoint.checkpoint_id


def _unsettled(loop: Loop, cycle: int) -> list[int]:
    """Cycles in which something still waited after the distillation of `cycle`, by the record of that stage.

    Not by the observations: those are rewritten, and a stage that died half-way would find them settled already.
    """
    record = loop.store.cycles.get(loop.run_id, cycle) if cycle >= 0 else None
    stages = record.stages if record else ()
    return next((list(stage.detail["unsettled"]) for stage in stages if stage.stage == "distil"), [])  # type: ignore[call-overload]


def _waits(observations: pa.Table) -> bool:
    """Whether a reward or an outcome will be known later that is not known yet."""
    reward = pc.equal(observations["reward_status"], "waiting")
    outcome = pc.equal(observations["outcome_status"], "immature")
    return bool(pc.any(pc.or_kleene(reward, outcome)).as_py())


def _offered(loop: Loop, cycle: int) -> pa.Table:
    """Observations offered to this cycle's update: all of this cycle, and earlier ones that were waiting until now.

    One cycle beyond the lag is looked at too, so that what has become too old is refused by name and not forgotten.
    """
    first = max(0, cycle - loop.advantage.max_lag - 1)
    observations = loop.lake.scan("observations", OFFERED_COLUMNS, cycles=range(first, cycle + 1))
    offered = loop.lake.scan("samples", ["interaction_id", "cycle", "reason"], cycles=range(first, cycle))
    return loop.lake.query(
        """
        WITH last AS (SELECT interaction_id, arg_max_null(reason, cycle) AS reason FROM offered GROUP BY ALL)
        SELECT observations.* FROM observations LEFT JOIN last USING (interaction_id)
        WHERE observations.cycle = ? OR last.reason = 'reward_waiting'
        ORDER BY observations.cycle, interaction_id
        """,
        [cycle],
        observations=observations,
        offered=offered,
    )


def _evaluations(loop: Loop, checkpoint: str) -> dict[str, Evaluation]:
    """A checkpoint's evaluations, run once and kept beside the checkpoints; the same tasks for all of a run."""
    folder = loop.home / "evaluations" / checkpoint
    paths = {name: folder / f"{name}.json" for name in loop.evaluation.suites}
    found = {name: Evaluation.from_json(path.read_text("utf-8")) for name, path in paths.items() if path.exists()}
    missing = [name for name in paths if name not in found]
    if missing:
        agent = loop.agent(checkpoint)
        folder.mkdir(parents=True, exist_ok=True)
        ran = evaluate(agent, missing, seed=loop.stage_seed(0, "evaluate"), n=loop.evaluation.tasks)
        for name, evaluation in ran.items():
            temporary = folder / f".{name}.tmp"
            with temporary.open("w", encoding="utf-8") as file:
                file.write(evaluation.to_json())
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(paths[name])
        found |= ran
    return found
