"""Evidence for the gate, gathered from a home: store, evaluations and the checkpoint's folder. Nothing is computed anew
but the paired differences of the suites; what was never measured stays unknown.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from scipy import stats

from palomar.data.errors import StoreError
from palomar.data.findings import Finding
from palomar.data.schema import content_id
from palomar.data.store import Store
from palomar.data.store.records import Checkpoint, Decision, LedgerRow
from palomar.data.store.silences import in_force
from palomar.detectors.experiment import ExperimentReport
from palomar.trainer import rollback
from palomar.trainer.candidate import compare_suites, evaluations
from palomar.trainer.evaluation import Evaluation, load_suites, paired
from palomar.trainer.gate_policy import Against, Policy, SuitePolicy
from palomar.trainer.promotion import Case, CheckEvidence, CycleEvidence, Evidence, Paired, Told


@dataclass(frozen=True)
class Asked:
    """A candidate and those that it is compared with."""

    candidate: Checkpoint
    champion: Checkpoint | None
    anchor: Checkpoint | None
    milestone: Checkpoint | None
    newer: Checkpoint | None
    neutral_in_a_row: int


def gather(
    store: Store,
    home: Path,
    run_id: str,
    candidate: str,
    policy: Policy,
    *,
    experiment: ExperimentReport | None = None,
    as_if: bool = False,
    serving: int | None = None,
    blocked_by: Sequence[Told] = (),
    held_by: Sequence[str] = (),
) -> Evidence:
    """All that the rule looks at. Raises StoreError for a checkpoint that the run does not have.

    ``as_if``: what would be decided of a candidate that was retired, against the champion that it was trained from.
    ``serving``: of a champion, the cycle in which it served and that is looked at in place of the one that trained it.
    """
    asked = compared(store, run_id, candidate, policy, as_if=as_if)
    trained = asked.candidate.cycle
    cycle = trained if serving is None else serving
    match, why = _digests(home, asked.candidate)
    return Evidence(
        run_id=run_id,
        candidate=candidate,
        status="candidate" if as_if else asked.candidate.status,
        champion=_id(asked.champion),
        anchor=_id(asked.anchor),
        milestone=_id(asked.milestone),
        newer=_id(asked.newer),
        digests_match=match,
        digests_why=why,
        cycle=_cycle(store, run_id, cycle),
        cycle_check=_check(store, run_id, cycle, None, of_champion=serving is not None),
        candidate_check=_check(store, run_id, trained, candidate),
        incidents=(*_incidents(store, run_id), *_silenced(store, run_id, cycle)),
        suites=tuple(suite_evidence(home, asked, policy)),
        cases=tuple(_cases(home, candidate, policy)),
        experiment=experiment,
        neutral_in_a_row=asked.neutral_in_a_row,
        blocked_by=tuple(blocked_by),
        held_by=tuple(held_by),
        at=datetime.now(UTC),
    )


def digest(evidence: Evidence) -> str:
    """Content id of evidence, whenever it was gathered: the same where nothing new is known."""
    return content_id(evidence.model_dump_json(exclude={"at"}))


def compared(store: Store, run_id: str, candidate: str, policy: Policy, *, as_if: bool = False) -> Asked:
    """Whom the candidate is compared with, by the store's records."""
    known = {each.checkpoint_id: each for each in store.checkpoints.read(run_id)}
    if candidate not in known:
        near = ", ".join([each for each in known if each.startswith(candidate[:4])][:3])
        raise StoreError(
            run_id, f"has no checkpoint {candidate!r}" + (f"; there is {near}" if near and candidate else "")
        )
    chosen = known[candidate]
    champion = store.checkpoints.champion(run_id)
    # A champion asked about again is compared with the one it took the place of.
    before = as_if or chosen.status == "promoted" or champion is None
    serving = known.get(chosen.parent_id or "") if before else known[champion.checkpoint.checkpoint_id]  # type: ignore[union-attr]
    base = next((each for each in known.values() if each.cycle is None), None)
    own = _place(chosen)
    earlier = [
        decision
        for decision in sorted(store.decisions.latest(run_id, count=len(known) + 1), key=lambda each: each.sequence)
        if decision.verdict == "promote"
        and decision.candidate != candidate
        and _place(known[decision.candidate]) < own
        and known[decision.candidate].status != "rolled_back"
    ]
    improved = [number for number, decision in enumerate(earlier) if decision.kind == "improved"]
    milestone = known[earlier[improved[-1]].candidate] if improved else base
    since = earlier[improved[-1] + 1 :] if improved else earlier
    waiting = [each for each in known.values() if each.status == "candidate" and _place(each) > own]
    return Asked(
        candidate=chosen,
        champion=serving,
        anchor=base if policy.anchor == "base" else known.get(policy.anchor),
        milestone=milestone,
        newer=None if as_if or not waiting else max(waiting, key=_place),
        neutral_in_a_row=_neutral(since),
    )


def _neutral(decisions: Sequence[Decision]) -> int:
    return sum(decision.kind == "neutral" for decision in decisions)


def _place(checkpoint: Checkpoint) -> int:
    return -1 if checkpoint.cycle is None else checkpoint.cycle


def _id(checkpoint: Checkpoint | None) -> str | None:
    return None if checkpoint is None else checkpoint.checkpoint_id


# -- suites --------------------------------------------------------------------------------------------------------


def suite_evidence(home: Path, asked: Asked, policy: Policy) -> list[Paired]:
    """Every comparison that the policy asks for."""
    own = evaluations(home, asked.candidate.checkpoint_id)
    found = []
    others: dict[Against, Checkpoint | None] = {
        "champion": asked.champion,
        "anchor": asked.anchor,
        "milestone": asked.milestone,
    }
    for suite, wanted in policy.suites.items():
        for against, other in others.items():
            metrics = _metrics(policy, suite, wanted, against)
            if other is None or not metrics:
                continue
            beside = evaluations(home, other.checkpoint_id).get(suite)
            found += compare_metrics(suite, metrics, against, other.checkpoint_id, before=beside, after=own.get(suite))
    return found


def _metrics(policy: Policy, suite: str, wanted: SuitePolicy, against: Against) -> list[str]:
    """Metrics of a suite that are to be compared with the champion, the anchor or the milestone."""
    named = [
        metric
        for group in (wanted.guardrails, wanted.two_way)
        for metric, margins in group.items()
        if against in dict(margins.items())
    ]
    named += [each.metric for each in policy.success if (each.suite, each.against) == (suite, against)]
    return list(dict.fromkeys(named))


def compare_metrics(
    suite: str,
    metrics: Sequence[str],
    against: Against,
    other: str,
    *,
    before: Evaluation | None,
    after: Evaluation | None,
) -> list[Paired]:
    """Some metrics of one suite on two checkpoints, paired by task and clustered by family.

    A share's error is at least that of a paired share with half a disagreement more on either side (Agresti and Min
    2005): of two that never disagree it is not known that they never would.
    """
    why = ""
    if before is None or after is None:
        why = f"the {'candidate' if after is None else against} was not run on it"
    elif [each.task_id for each in before.results] != [each.task_id for each in after.results]:
        why = "they were run on different tasks"
    elif suite not in load_suites():
        why = "no such suite is registered here"
    known = {} if suite not in load_suites() else {metric.name: metric for metric in load_suites()[suite].metrics}
    compared_ = {}
    if not why and before is not None and after is not None:
        compared_ = {each.statistic: each for each in compare_suites(before, after).differences}
    found = []
    for name in metrics:
        metric = known.get(name)
        blank = Paired(suite=suite, metric=name, against=against, other=other, better="none", kind="mean")
        if metric is None:
            found.append(blank.model_copy(update={"why": why or "the suite has no such metric"}))
            continue
        blank = blank.model_copy(update={"better": metric.better, "kind": metric.kind})
        if name not in compared_ or before is None or after is None:
            found.append(blank.model_copy(update={"why": why}))
            continue
        said = compared_[name]
        error = None
        if said.low is not None and said.high is not None:
            of = stats.norm.ppf(0.975) if said.method == "mcnemar_mid_p" else stats.t.ppf(0.975, said.clusters - 1)
            error = float((said.high - said.low) / 2 / of)
            if metric.kind == "share":
                error = max(error, _least_error(*paired(name, before, after)))
        found.append(
            blank.model_copy(
                update={
                    "tasks": said.n,
                    "clusters": said.clusters,
                    "candidate_value": said.candidate,
                    "other_value": said.champion,
                    "effect": said.effect,
                    "error": error,
                    "why": "no task counts on both sides" if said.status == "no_pairs" else "",
                }
            )
        )
    return found


def _least_error(old: Sequence[float], new: Sequence[float]) -> float:
    """Of a difference of paired shares, by the disagreements and half a one more on either side."""
    change = np.sign(np.subtract(new, old))
    plus, minus, size = (change > 0).sum() + 0.5, (change < 0).sum() + 0.5, len(change) + 2
    return float(np.sqrt(plus + minus - (plus - minus) ** 2 / size) / size)


def _cases(home: Path, candidate: str, policy: Policy) -> list[Case]:
    own = evaluations(home, candidate)
    found = []
    for suite, wanted in policy.suites.items():
        results = {each.task_id: each for each in own[suite].results} if suite in own else {}
        for metric, tasks in wanted.must_pass.items():
            for task in tasks:
                value = results[task].metrics.get(metric) if task in results else None
                found.append(Case(suite=suite, metric=metric, task=task, value=value))
    return found


# -- the cycle -----------------------------------------------------------------------------------------------------


def _cycle(store: Store, run_id: str, cycle: int | None) -> CycleEvidence:
    record = None if cycle is None else store.cycles.get(run_id, cycle)
    if cycle is None or record is None:
        return CycleEvidence(cycle=cycle)
    adds_up, why = _adds_up(store.ledger.read(run_id, cycle), cycle)
    detail = next((stage.detail for stage in record.stages if stage.stage == "train"), {})
    offered, left, lags = detail.get("offered"), detail.get("not_trained"), detail.get("policy_lag")
    reasons = left if isinstance(left, dict) else None
    return CycleEvidence(
        cycle=cycle,
        ledger_adds_up=adds_up,
        ledger_why=why,
        offered=offered if isinstance(offered, int) else None,
        reward_invalid=None if reasons is None else reasons.get("reward_invalid", 0),
        reward_waiting=None if reasons is None else reasons.get("reward_waiting", 0),
        largest_lag=max(map(int, lags)) if isinstance(lags, dict) and lags else None,
    )


def _adds_up(rows: Sequence[LedgerRow], cycle: int) -> tuple[bool | None, str]:
    if not rows:
        return None, f"cycle {cycle} has no ledger"
    for stratum in sorted({row.stratum for row in rows}):
        parts = sum(row.count for row in rows if row.stratum == stratum and row.place != "collected")
        whole = sum(row.count for row in rows if row.stratum == stratum and row.place == "collected")
        if parts != whole:
            return False, f"cycle {cycle}, {stratum}: {whole} samples were collected, and {parts} are accounted for"
    return True, ""


def _check(
    store: Store, run_id: str, cycle: int | None, candidate: str | None, *, of_champion: bool = False
) -> CheckEvidence:
    said = None if cycle is None else store.verdicts.get(run_id, cycle, candidate=candidate)
    if cycle is None or said is None:
        return CheckEvidence(verdict=None)
    findings = store.findings.read(run_id, cycle, candidate=candidate)
    if of_champion:
        counts = rollback.speaks_against(store, run_id, cycle)
        findings = [each for each in findings if each.finding.severity != "blocks" or counts(each.finding)]
    reports = store.findings.reports(run_id, cycle, candidate=candidate)
    return CheckEvidence(
        verdict=said.verdict,
        sentence=_whole(said.sentence),
        findings=tuple(
            Told(
                id=each.finding_id,
                code=_whole(_code(each.finding)),
                sentence=_whole(each.finding.sentence),
                blocks=each.finding.severity == "blocks",
                fault=each.finding.reading == "measurement_fault",
                since=each.finding.since,
            )
            for each in findings
            if each.finding.severity == "blocks" or each.finding.reading == "measurement_fault"
        ),
        assessed=sum(report.assessed for report in reports) if reports else None,
    )


def _whole(text: str) -> str:
    """Text that any JSON can hold: what a broken tool logged may have half a character (a lone surrogate)."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _code(finding: Finding) -> str:
    about = finding.statistic or finding.detector
    where = "" if finding.slice == "all" else f":{finding.slice}"
    return f"{finding.reading or finding.detector}:{about}{where}"


def _incidents(store: Store, run_id: str) -> tuple[Told, ...]:
    """Those that block and that nobody has done anything about yet: a mitigated one is watched, and blocks no cure."""
    found = store.incidents.read(run_id, states=("open", "acknowledged"))
    return tuple(
        Told(id=f"incident:{each.number}", code=f"incident:{each.number}", sentence=_whole(each.title), blocks=True)
        for each in found
        if each.blocks
    )


def _silenced(store: Store, run_id: str, cycle: int | None) -> tuple[Told, ...]:
    """What blocks and opened no incident, since somebody wanted not to be called: to the gate it is as good as one.

    Of silences in force whatever they held back; of those that are over what they held back in the candidate's cycle
    and later ones. Only what is still among the findings: a cycle that was checked again may not have it any more.
    """
    silences = {each.number: each for each in store.silences.read(run_id)}
    if not silences:
        return ()
    begun = store.cycles.read(run_id, newest=1)
    newest = begun[0].cycle if begun else None
    now = datetime.now(UTC)
    found: dict[int, str] = {}
    for each in store.silences.silenced(list(silences)):
        own = cycle is not None and each.cycle >= cycle
        if not each.blocks or each.silence in found or not (own or in_force(silences[each.silence], newest, now)):
            continue
        kept = store.findings.get(each.finding_id)
        if kept is not None and kept.finding.severity == "blocks":
            found[each.silence] = kept.finding.sentence
    return tuple(
        Told(id=f"silence:{number}", code=f"silence:{number}", sentence=_whole(sentence), blocks=True)
        for number, sentence in found.items()
    )


# -- the checkpoint ------------------------------------------------------------------------------------------------


def _digests(home: Path, checkpoint: Checkpoint) -> tuple[bool | None, str]:
    """Whether the folder holds what was registered. None: there is nothing to compare with."""
    folder = home / "checkpoints" / checkpoint.path
    try:
        content = (folder / "manifest.json").read_bytes()
        if hashlib.sha256(content).hexdigest() != checkpoint.sha256:
            return False, f"{folder}: its manifest is not the one that was registered"
        for name, wanted in sorted(json.loads(content)["files"].items()):
            with (folder / name).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != wanted:
                    return False, f"{folder / name}: its hash is not the one in the manifest"
    except (OSError, ValueError, KeyError, TypeError) as exc:
        return None, f"{folder} cannot be verified: {exc}"
    return True, ""
