"""The gate as a page shows it: what stands about a candidate, what decided, all that was decided, and overrides.

Reading only: nothing is decided by looking. Asking, replaying and overriding are `palomar.app.gating`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from palomar.app.gating import Answer, answer_of, stands
from palomar.data.store import Store
from palomar.data.store.records import Checkpoint, Decision, Override
from palomar.trainer.gate_policy import Policy, PolicyText
from palomar.trainer.promotion import Check, Outcome


@dataclass(frozen=True)
class Choice:
    """A decision that may be looked at, without its checks."""

    decision_id: str
    standing: bool


@dataclass(frozen=True)
class GateView:
    """All that the gate has on one candidate."""

    checkpoint: Checkpoint
    answer: Answer | None
    """The decision that is looked at: the one that was named, else the one that stands; None = none was taken."""
    standing: Decision | None
    """The one that stands; None = none was taken."""
    stands: str | None
    """Why it stands, in words; None where there is none, or where it stands no more and the gate must be asked anew."""
    rule: Outcome | None
    """What the rule found: of an override, of the decision that it took the place of. None = it kept no checks."""
    checks: tuple[Check, ...]
    """Of ``rule``, as a person reads them: see `ordered`."""
    history: tuple[Decision, ...]
    """Newest first."""
    overrides: tuple[Override, ...]
    """Requests about the candidate, newest first."""
    longest_override_h: float
    """How long an override may stand by the policy of the decision that stands."""

    @property
    def over(self) -> bool:
        """Whether the decision that is looked at has expired."""
        until = None if self.answer is None else self.answer.decision.expires_at
        return until is not None and until <= datetime.now(UTC)


def candidates(store: Store, run_id: str) -> list[Checkpoint]:
    """What the gate may be asked about: the run's checkpoints that were trained in it, the newest first."""
    trained = [each for each in store.checkpoints.read(run_id) if each.cycle is not None]
    return sorted(trained, key=lambda each: (each.cycle or 0, each.created_at), reverse=True)


def view(store: Store, run_id: str, checkpoint: Checkpoint, decision_id: str | None = None) -> GateView:
    """What the gate has on a candidate; ``decision_id``: an earlier decision about it, which is looked at instead.

    A decision that is not about this candidate is not found: the one that stands is shown.
    """
    history = store.decisions.history(run_id, checkpoint.checkpoint_id)
    standing = store.decisions.get(run_id, checkpoint.checkpoint_id) if history else None
    named = next((each for each in history if each.decision_id == decision_id), None)
    shown = named or standing
    why = None if standing is None else stands(store, standing)
    state = "" if shown is None else (why or "stands no more: ask again") if shown == standing else "stands no more"
    answer = None if shown is None else answer_of(store, shown, state)
    rule = None
    if answer is not None:
        rule = answer.outcome if answer.rule_said is None else answer_of(store, answer.rule_said, "").outcome
    asked = [each for each in store.overrides.read(run_id) if each.candidate == checkpoint.checkpoint_id]
    return GateView(
        checkpoint=checkpoint,
        answer=answer,
        standing=standing,
        stands=why,
        rule=rule,
        checks=() if rule is None else ordered(rule),
        history=tuple(reversed(history)),
        overrides=tuple(reversed(asked)),
        longest_override_h=longest_override(standing),
    )


def longest_override(standing: Decision | None) -> float:
    """Hours that an override of a decision may stand: by its own policy, else by what a policy says unless told."""
    if standing is None or standing.policy_text is None:
        return float(Policy.model_fields["override_hours"].default)
    return _override_hours(standing.policy_text)


@functools.lru_cache(maxsize=64)
def _override_hours(text: str) -> float:
    """Remembered, since reading the policy takes longer than all else about a decision."""
    return PolicyText(text, "policy of the decision").policy.override_hours


def ordered(outcome: Outcome) -> tuple[Check, ...]:
    """The checks as a person reads them: what decided, in the order of the reasons, then failed, unknown, passed."""
    codes = [code.removeprefix("invalid:").removeprefix("improved:") for code in outcome.reasons]
    rank = {code: place for place, code in reversed(list(enumerate(codes)))}
    results: Sequence[str] = ("fail", "unknown", "pass")
    parts: Sequence[str] = ("validity", "block", "require", "success")

    def place(check: Check) -> tuple[int, int, int]:
        # A code may be in two parts; the one that did not pass counts.
        decided = check.code in rank and (check.result != "pass" or outcome.verdict == "promote")
        # What is not shown to be better is no fault: it comes behind all that must pass.
        weight = results.index(check.result) if check.part != "success" or check.result == "pass" else len(results)
        return (rank[check.code] if decided else len(rank), weight, parts.index(check.part))

    return tuple(sorted(outcome.checks, key=place))


def decided_by(found: GateView) -> Check | None:
    """The check that decided; None where none did alone (a neutral promotion), or none was kept."""
    if found.rule is None or not found.checks:
        return None
    first = found.rule.reasons[1] if found.rule.reasons[0] == "rollback" else found.rule.reasons[0]
    code = first.removeprefix("invalid:").removeprefix("improved:")
    return found.checks[0] if found.checks[0].code == code else None
