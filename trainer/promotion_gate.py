"""The rule of `palomar.trainer.promotion` as the loop's gate.

In the loop (`palomar.app.loop`): ``gate=PromotionGate(read_policy("demo"), store, home, run_id)``. What is kept of a
decision beyond a gate's usual words is in `Promotion.kept`: ``store.decisions.record(..., **decision.kept)``.

The candidate is checked beside its champion and the anchor here, since the loop's check comes before there is one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from palomar.data.lake import Lake
from palomar.data.store import Store
from palomar.detectors.detector import View
from palomar.detectors.runs import storable, view_of
from palomar.trainer.candidate import CONTROL, candidate_report, others
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
        candidate = names.pop()
        if self.text.policy.check.candidate:
            self._check(candidate)
        hacks = [Told(id=f"loop:{code}", code=code, sentence=_said(code), blocks=True) for code in evidence.hacks]
        frozen = gather(
            self._store,
            self._home,
            self._run_id,
            candidate,
            self.text.policy,
            blocked_by=hacks,
            held_by=evidence.holds,
        )
        outcome = decide(frozen, self.text.policy)
        return Promotion(outcome.verdict, outcome.reasons, stored(outcome), kept(outcome, frozen, self.text))

    def _check(self, candidate: str) -> None:
        chosen, _ = others(self._store, self._run_id, candidate)
        lake = Lake(self._home / "lake")
        known = chosen.cycle is not None and chosen.cycle in lake.cycles("observations")
        view = view_of(lake, self._store, self._run_id, chosen.cycle) if known and chosen.cycle is not None else None
        check_candidate(self._store, self._home, self._run_id, candidate, view)


def check_candidate(store: Store, home: Path, run_id: str, candidate: str, view: View | None) -> None:
    """Checks a candidate beside its champion and the base, and keeps what was found under its id.

    ``view``: of the cycle that trained it; without, differences are told and not read. A base is not checked.
    """
    chosen, compared = others(store, run_id, candidate)
    if chosen.cycle is None:
        return
    report = candidate_report(view, home, chosen, compared)
    as_of = known_by(store, run_id, chosen.cycle)
    findings = [storable(each) for each in report.findings]
    store.findings.write(run_id, chosen.cycle, findings, (report,), candidate=candidate)
    blocking = [each for each in findings if each.severity == "blocks"]
    warning = [each for each in findings if each.severity == "warns"]
    told = [each.sentence for each in (*blocking, *warning)]
    unassessed = [item.why for item in report.unassessed]
    store.verdicts.write(
        run_id,
        chosen.cycle,
        verdict="block" if blocking else "not_assessable" if not report.assessed else "warn" if warning else "pass",
        reasons=[f"{each.reading or each.detector}:{each.statistic}:{each.slice}" for each in (*blocking, *warning)],
        sentence=next(
            iter(told or ["nothing found" if report.assessed else (unassessed or ["nothing to compare"])[0]])
        ),
        findings=Counter(each.severity for each in findings),
        budget=CONTROL,
        as_of=as_of,
        candidate=candidate,
    )


def known_by(store: Store, run_id: str, cycle: int) -> datetime | None:
    """The moment at which a cycle was distilled: what users said later was not known. None where no record says."""
    record = store.cycles.get(run_id, cycle)
    distilled = next((stage.detail for stage in record.stages if stage.stage == "distil"), {}) if record else {}
    said = distilled.get("as_of")
    return datetime.fromisoformat(said) if isinstance(said, str) else None


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
