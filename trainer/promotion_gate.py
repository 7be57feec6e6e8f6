"""The rule of `palomar.trainer.promotion` as the loop's gate.

In the loop (`palomar.app.loop`): ``gate=PromotionGate(read_policy("demo"), store, home, run_id)``. What is kept of a
decision beyond a gate's usual words is in `Promotion.kept`: ``store.decisions.record(..., **decision.kept)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from palomar.data.store import Store
from palomar.trainer.gate import Evidence, GateDecision
from palomar.trainer.gate_evidence import gather
from palomar.trainer.gate_policy import PolicyText
from palomar.trainer.promotion import Evidence as Frozen
from palomar.trainer.promotion import Outcome, Told, decide


@dataclass(frozen=True)
class Promotion(GateDecision):
    """A decision by the rule."""

    kept: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of `palomar.data.store.decisions.Decisions.record`."""


class PromotionGate:
    """Decides by evidence from the store and the home, and by what the loop adds to it."""

    def __init__(self, text: PolicyText, store: Store, home: Path, run_id: str) -> None:
        self.text = text
        self.policy = text.policy.version
        self._store = store
        self._home = home
        self._run_id = run_id

    def decide(self, evidence: Evidence) -> Promotion:
        """The rule's answer. A candidate that no suite was run on has no name here: it is held."""
        names = {each.checkpoint for each in evidence.candidate.values()}
        if len(names) != 1:
            return Promotion("hold", ("evaluation_missing",), {})
        hacks = [Told(id=f"loop:{code}", code=code, sentence=_said(code), blocks=True) for code in evidence.hacks]
        frozen = gather(
            self._store,
            self._home,
            self._run_id,
            names.pop(),
            self.text.policy,
            blocked_by=hacks,
            held_by=evidence.holds,
        )
        outcome = decide(frozen, self.text.policy)
        return Promotion(outcome.verdict, outcome.reasons, stored(outcome), kept(outcome, frozen, self.text))


def stored(outcome: Outcome) -> dict[str, Any]:
    """The evidence column of a decision: all checks, what is needed, and the risks."""
    return {"outcome": outcome.model_dump(mode="json", exclude={"expires_at"}), "arithmetic": outcome.arithmetic}


def kept(outcome: Outcome, evidence: Frozen, text: PolicyText) -> dict[str, Any]:
    """The further columns of a decision."""
    return {
        "kind": outcome.kind,
        "sentence": outcome.sentence,
        "inputs": evidence.model_dump(mode="json"),
        "policy_text": text.text,
        "expires_at": outcome.expires_at,
    }


def _said(code: str) -> str:
    return f"the reward still pushes it: {code.replace('_', ' ')}"
