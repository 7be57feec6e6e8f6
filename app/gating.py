"""Asking the gate: what stands, deciding once, waiting, deciding again from what was frozen, overriding.

A decision is computed once and stored; whoever asks again is shown that one. It is computed anew only where it was
asked for (``again``), where a hold has expired, and where the champion it was compared with serves no more.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime

from palomar.app.experiments import report_of
from palomar.app.incidents import keep_check
from palomar.app.service import Observatory
from palomar.data.errors import StoreError
from palomar.data.store import Store
from palomar.data.store.records import Decision, Override, Run, Verdict
from palomar.detectors.check import check
from palomar.detectors.experiment import ExperimentReport, Plan
from palomar.trainer.candidate import others
from palomar.trainer.gate_evidence import digest, gather
from palomar.trainer.gate_policy import PolicyText
from palomar.trainer.promotion import Evidence, Outcome, decide
from palomar.trainer.promotion_gate import check_candidate, known_by, said

LOOK_EVERY_S = 5.0


@dataclass(frozen=True)
class Answer:
    """What the gate says."""

    decision: Decision
    outcome: Outcome | None
    """The checks; None for a decision of another gate, which kept none."""
    state: str
    """Why it is this decision: decided now, or standing."""
    rule_said: Decision | None = None
    """Of an override: the decision that it took the place of."""


@dataclass(frozen=True)
class Question:
    """What is asked of the gate."""

    candidate: str
    policy: PolicyText
    actor: str
    again: bool = False
    """Decide anew though a decision stands."""
    check: bool = False
    """Check the candidate and its cycle first."""
    plan: Plan | None = None
    """Of an experiment that the policy asks for; None: there is none."""


def ask(observatory: Observatory, question: Question) -> Answer:
    """The decision that stands, made now where there is none. Raises StoreError for an unknown candidate."""
    run = _run(observatory, question.candidate)
    store = observatory.store
    if question.check:
        run_checks(observatory, run, question.candidate, question.actor)
    before = store.decisions.get(run.run_id, question.candidate)
    why = None if before is None else stands(store, before)
    if before is not None and why is not None and not question.again:
        other = (
            ""
            if before.policy == question.policy.policy.version
            else (f"; by the policy {before.policy}, not {question.policy.policy.version} (--again asks that one)")
        )
        return answer_of(store, before, f"{why}{other}")
    highest = store.decisions.highest(run.run_id, question.candidate)
    evidence = gather(
        store,
        observatory.home,
        run.run_id,
        question.candidate,
        question.policy.policy,
        experiment=_report(observatory, question),
    )
    if before is not None and why is not None and _same(before, evidence, question.policy):
        return answer_of(store, before, "stands: nothing new is known")
    outcome = decide(evidence, question.policy.policy)
    decision = store.decisions.take(
        run.run_id,
        question.candidate,
        after=highest,
        cycle=evidence.cycle.cycle or 0,
        policy=question.policy.policy.version,
        actor=question.actor,
        **vars(said(outcome, evidence, question.policy)),
    )
    ours = decision.sequence > highest and decision.inputs == evidence.model_dump(mode="json")
    return answer_of(store, decision, "decided now" if ours else "stands: it was decided at the same time by another")


def would_say(observatory: Observatory, question: Question) -> Outcome:
    """What the rule says of a candidate, against the champion that it was trained from. Stores no decision."""
    run = _run(observatory, question.candidate)
    if question.check:
        run_checks(observatory, run, question.candidate, question.actor)
    policy = question.policy.policy
    evidence = gather(
        observatory.store,
        observatory.home,
        run.run_id,
        question.candidate,
        policy,
        experiment=_report(observatory, question),
        as_if=True,
    )
    return decide(evidence, policy)


def wait(observatory: Observatory, question: Question, timeout_s: float, every_s: float = LOOK_EVERY_S) -> Answer:
    """The decision once it is no hold, or the hold that stands when the time is over.

    Looks again and again; what is new is decided on, and what is the same is not written again. A hold that can end no
    more (the candidate was retired, or a newer one waits) is not waited for.
    """
    ends = time.monotonic() + timeout_s
    answer = ask(observatory, question)
    again = Question(question.candidate, question.policy, question.actor, again=True, plan=question.plan)
    while answer.decision.verdict == "hold" and not _final(answer.decision):
        left = ends - time.monotonic()
        if left <= 0:
            break
        time.sleep(min(every_s, left))
        answer = ask(observatory, again)
    return answer


def run_checks(observatory: Observatory, run: Run, candidate: str, actor: str) -> None:
    """Checks the cycle that trained the candidate, and the candidate beside its champion; keeps all that it finds."""
    store = observatory.store
    chosen, _ = others(store, run.run_id, candidate)
    if chosen.cycle is None:
        raise StoreError(run.run_id, f"{candidate} was trained in no cycle, so that there is none to check")
    view = observatory.view(chosen.cycle)
    if view is None:
        raise StoreError(
            str(observatory.home), f"has no interactions of cycle {chosen.cycle}, which trained {candidate}"
        )
    keep_check(store, run.run_id, check(view), known_by(store, run.run_id, chosen.cycle), actor=actor)
    check_candidate(store, observatory.home, run.run_id, candidate, view)


def answer_of(store: Store, decision: Decision, state: str) -> Answer:
    """A stored decision with its checks."""
    said = decision.evidence.get("outcome")
    outcome = None
    if isinstance(said, dict):
        outcome = Outcome.model_validate({**said, "expires_at": decision.expires_at})
    of = store.decisions.find(decision.supersedes) if decision.kind == "override" and decision.supersedes else None
    return Answer(decision, outcome, state, of)


# -- replay --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Replayed:
    """A decision, and what the rule says of what was frozen with it."""

    decision: Decision
    outcome: Outcome
    differences: tuple[str, ...]
    """What came out otherwise; empty where all is the same."""


def replay(store: Store, decision_id: str) -> Replayed | str:
    """The rule asked again, from the frozen evidence and the kept policy text; or why it cannot be.

    Raises StoreError for an unknown decision.
    """
    decision = store.decisions.find(decision_id)
    if decision is None:
        raise StoreError(store.where, f"there is no decision {decision_id!r}")
    if decision.kind == "override":
        return f"{decision_id} is an override, made by people; what the rule said is {decision.supersedes}"
    before = answer_of(store, decision, "").outcome
    if decision.inputs is None or decision.policy_text is None or before is None:
        return f"{decision_id} was decided by {decision.policy}, which kept no evidence to ask again"
    text = PolicyText(decision.policy_text, f"policy of {decision_id}")
    outcome = decide(Evidence.model_validate(decision.inputs), text.policy)
    return Replayed(decision, outcome, tuple(_differences(decision, before, outcome, text)))


def _differences(decision: Decision, before: Outcome, now: Outcome, text: PolicyText) -> list[str]:
    found = []
    if text.policy.version != decision.policy:
        found.append(f"policy: {decision.policy}, now {text.policy.version}")
    written = (decision.verdict, decision.kind, decision.reasons, decision.sentence)
    for name, old, new in zip(
        ("verdict", "kind", "reasons", "sentence"),
        written,
        (now.verdict, now.kind, now.reasons, now.sentence),
        strict=True,
    ):
        if old != new:
            found.append(f"{name}: {old}, now {new}")
    checks = {one.code: one for one in now.checks}
    for one in before.checks:
        again = checks.pop(one.code, None)
        if again != one:
            now_it = (
                "not asked" if again is None else again.result if again.result != one.result else "with other numbers"
            )
            found.append(f"{one.code}: {one.result}, now {now_it}")
    found += [f"{code}: not asked, now {one.result}" for code, one in checks.items()]
    if (before.expires_at, before.needed, before.risks) != (now.expires_at, now.needed, now.risks):
        found.append("expiry, needs or risks")
    return found


# -- overrides -----------------------------------------------------------------------------------------------------


def request_override(
    observatory: Observatory, candidate: str, *, verdict_: Verdict, reason: str, hours: float, actor: str
) -> Override:
    """A request to decide otherwise. Raises StoreError, also where it would stand for longer than the policy allows."""
    run = _run(observatory, candidate)
    store = observatory.store
    standing = store.decisions.get(run.run_id, candidate)
    if standing is not None and standing.policy_text is not None:
        longest = PolicyText(standing.policy_text, f"policy of {standing.decision_id}").policy.override_hours
        if hours > longest:
            raise StoreError(
                run.run_id, f"an override may stand for {longest:g} hours by {standing.policy}, not {hours:g}"
            )
    return store.overrides.request(run.run_id, candidate, verdict=verdict_, reason=reason, hours=hours, actor=actor)


def approve_override(observatory: Observatory, override_id: str, *, reason: str, actor: str) -> Answer:
    """The decision that comes of a request that another person approves. Raises StoreError."""
    decision = observatory.store.overrides.approve(override_id, actor=actor, approval=reason)
    return answer_of(observatory.store, decision, "decided now")


# -- what stands ---------------------------------------------------------------------------------------------------


def _run(observatory: Observatory, candidate: str) -> Run:
    run = observatory.run()
    if run is None:
        raise StoreError(str(observatory.home), f"there is no run, and so no candidate {candidate!r}")
    others(observatory.store, run.run_id, candidate)
    return run


def _report(observatory: Observatory, question: Question) -> ExperimentReport | None:
    return None if question.plan is None else report_of(observatory.home, question.plan)


def stands(store: Store, decision: Decision) -> str | None:
    """Why the decision stands, in words; None where it does no more, so that the gate must be asked anew."""
    if decision.verdict == "hold" and decision.expires_at is not None and decision.expires_at <= datetime.now(UTC):
        return None
    if decision.verdict == "promote" and decision.inputs is not None:
        candidate = store.checkpoints.get(decision.run_id, decision.candidate)
        champion = store.checkpoints.champion(decision.run_id)
        serving = champion and champion.checkpoint.checkpoint_id
        if candidate is not None and candidate.status == "candidate" and decision.inputs.get("champion") != serving:
            return None
    return f"stands since {decision.created_at:%F %R} UTC"


def _same(before: Decision, evidence: Evidence, policy: PolicyText) -> bool:
    if before.inputs is None or before.policy != policy.policy.version:
        return False
    return digest(Evidence.model_validate(before.inputs)) == digest(evidence)


def _final(decision: Decision) -> bool:
    return bool({"superseded", "invalid:retired"} & set(decision.reasons))
