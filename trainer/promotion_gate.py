"""The rule of `palomar.trainer.promotion` as the loop's gate: what `palomar gate` would say.

The candidate is checked beside its champion and the anchor here, since the loop's check comes before there is one.

After a promotion the same tests go on (`PromotionGate.watch`): of the champion, with what was found in the cycle in
which it served. Block then means: take it back (`palomar.trainer.rollback`).
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from pathlib import Path

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


class PromotionGate:
    """Decides by evidence from the store and the home, and by what the loop adds to it."""

    def __init__(self, text: PolicyText, store: Store, home: Path, run_id: str) -> None:
        self.text = text
        self.policy = text.policy.version
        self._store = store
        self._home = home
        self._run_id = run_id

    def decide(self, evidence: Evidence) -> GateDecision:
        """The rule's answer. A candidate that no suite was run on has no name here: it is held."""
        names = {each.checkpoint for each in evidence.candidate.values()}
        if len(names) != 1:
            return GateDecision("hold", ("evaluation_missing",), {})
        candidate = names.pop()
        if self.text.policy.check.candidate:
            self._check(candidate)
        hacks = [Told(id=f"loop:{code}", code=code, sentence=_pushed(code), blocks=True) for code in evidence.hacks]
        frozen = gather(
            self._store,
            self._home,
            self._run_id,
            candidate,
            self.text.policy,
            blocked_by=hacks,
            held_by=evidence.holds,
        )
        return said(decide(frozen, self.text.policy), frozen, self.text)

    def watch(self, champion: str, cycle: int) -> GateDecision | None:
        """Block, where the rule blocks the champion by what was found while it served; a base is never taken back."""
        served = self._store.checkpoints.get(self._run_id, champion)
        if served is None or served.cycle is None:
            return None
        frozen = gather(self._store, self._home, self._run_id, champion, self.text.policy, serving=cycle)
        outcome = decide(frozen, self.text.policy)
        return said(outcome, frozen, self.text) if outcome.verdict == "block" else None

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
    as_of = distilled.get("as_of")
    return datetime.fromisoformat(as_of) if isinstance(as_of, str) else None


def said(outcome: Outcome, evidence: Frozen, text: PolicyText) -> GateDecision:
    """The answer as a decision that can be kept, with all that is needed to ask the rule again."""
    return GateDecision(
        verdict=outcome.verdict,
        reasons=outcome.reasons,
        evidence={"outcome": outcome.model_dump(mode="json", exclude={"expires_at"}), "arithmetic": outcome.arithmetic},
        kind=outcome.kind,
        sentence=outcome.sentence,
        inputs=evidence.model_dump(mode="json"),
        policy_text=text.text,
        expires_at=outcome.expires_at,
    )


def _pushed(code: str) -> str:
    return f"the reward still pushes it: {code.replace('_', ' ')}"
