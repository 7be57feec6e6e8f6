"""A champion that is found bad after its promotion is taken back: when, to whom, and what stays behind."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from palomar.data.findings import Finding, Report
from palomar.data.store import Store
from palomar.data.store.records import LedgerRow
from palomar.detectors.incidents import open_incidents
from palomar.trainer.config import AdvantageConfig, EvaluationConfig, GateConfig, PolicyConfig, UpdateConfig
from palomar.trainer.cycle import Loop, decide, deploy
from palomar.trainer.evaluation import Evaluation, TaskResult
from palomar.trainer.gate import EvaluationGate, Gate
from palomar.trainer.gate_policy import PolicyText, read_policy
from palomar.trainer.promotion_gate import PromotionGate
from palomar.trainer.rollback import speaks_against

SUITE = "held-out-tasks"
RESPONDED = {"action": "none"}
TEXT = read_policy("demo").text.replace("candidate: true", "candidate: false")
POLICY = PolicyText(TEXT, "policy")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """The base serves cycles 0 to 3, c3 cycle 4, c4 cycles 5 and 6, c6 cycles 7 and 8; all checks of them pass."""
    with Store.open(None, tmp_path) as opened:
        opened.runs.add("r", name="r", seed=0, config={})
        checkpoint(tmp_path, opened, "base", None, None)
        opened.checkpoints.promote("r", "base", replacing=None, since_cycle=0, reason="the base")
        serving = "base"
        for cycle in range(9):
            begun(opened, cycle, serving)
            if cycle in (3, 4, 6):
                checkpoint(tmp_path, opened, f"c{cycle}", serving, cycle)
                promoted(opened, f"c{cycle}", cycle)
                opened.checkpoints.promote("r", f"c{cycle}", replacing=serving, since_cycle=cycle + 1, reason="good")
                serving = f"c{cycle}"
        yield opened


def promoted(store: Store, name: str, cycle: int) -> None:
    said: dict[str, Any] = {"verdict": "promote", "reasons": ["neutral"], "evidence": {}, "policy": "p"}
    store.decisions.record("r", name, cycle=cycle, kind="neutral", **said)


def checkpoint(home: Path, store: Store, name: str, parent: str | None, cycle: int | None) -> None:
    folder = home / "checkpoints" / name
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_text(name)
    files = {"model.safetensors": hashlib.sha256(name.encode()).hexdigest()}
    manifest = json.dumps({"files": files})
    (folder / "manifest.json").write_text(manifest)
    sha256 = hashlib.sha256(manifest.encode()).hexdigest()
    store.checkpoints.add("r", name, cycle=cycle, parent_id=parent, path=name, sha256=sha256)
    results = tuple(
        TaskResult(
            f"t{index:03d}",
            f"family{index % 20}",
            {
                "solved": float(index % 2),
                "tests_pass": None,
                "invalid_call": 0.0,
                "asked_on_clear": 0.0,
                "functions_per_edit": 2.0 + (index + (cycle or 0)) % 3,
            },
        )
        for index in range(400)
    )
    kept = home / "evaluations" / name
    kept.mkdir(parents=True)
    (kept / f"{SUITE}.json").write_text(Evaluation(SUITE, name, 0, results).to_json(), encoding="utf-8")


def begun(store: Store, cycle: int, serving: str, *findings: Finding) -> None:
    """A cycle that was collected, trained on and checked."""
    store.cycles.start("r", cycle, checkpoint_id=serving)
    detail = {"offered": 100, "not_trained": {}, "policy_lag": {"0": 100}}
    store.cycles.finish_stage("r", cycle, "train", elapsed_s=1.0, detail=detail)
    store.ledger.write("r", [LedgerRow(cycle, "all", "collected", "", 9), LedgerRow(cycle, "all", "trained", "", 9)])
    checked(store, cycle, *findings)


def checked(store: Store, cycle: int, *findings: Finding) -> None:
    store.findings.write("r", cycle, findings, (Report("behaviour", findings, assessed=40),))
    word: Any = "block" if any(each.severity == "blocks" for each in findings) else "pass"
    said: dict[str, Any] = {"reasons": [], "sentence": "as found", "findings": {}, "budget": "", "as_of": None}
    store.verdicts.write("r", cycle, verdict=word, **said)
    open_incidents(store, "r", cycle)


def hack(since: int | None, statistic: str = "clarification_rate", **more: Any) -> Finding:
    said = {"reading": "reward_hack", "sentence": f"{statistic} rises", "n": 500, "effect": 0.3, **more}
    return Finding("behaviour", "blocks", statistic=statistic, since=since, **said)


FAULT = Finding("outage", "warns", "tools were down", reading="measurement_fault")


def loop(store: Store, home: Path, gate: Gate | None = None) -> Loop:
    """A loop whose last two stages can run: all else is not needed there."""
    nothing: Any = None
    return Loop(
        run_id="r",
        seed=0,
        home=home,
        lake=nothing,
        store=store,
        checkpoints=nothing,
        source=nothing,
        gate=gate or PromotionGate(POLICY, store, home, "r"),
        base=nothing,
        policy=PolicyConfig(),
        advantage=AdvantageConfig(),
        update=UpdateConfig(),
        evaluation=EvaluationConfig(),
    )


def ended(store: Store, home: Path, cycle: int, candidate: str | None = None, **more: Any) -> tuple[str, Any]:
    """Who serves after the last stages of a cycle, and what was decided; the stages run twice, as in a resumed run."""
    running = loop(store, home, **more)
    champion = store.cycles.served("r")[cycle]
    assert champion is not None
    decided = decide(running, cycle, candidate, champion, RESPONDED)
    assert decide(running, cycle, candidate, champion, RESPONDED) == decided
    deployed = deploy(running, cycle, candidate, champion, decided)
    assert deploy(running, cycle, candidate, champion, decided) == deployed
    now = store.checkpoints.champion("r")
    assert now is not None
    assert now.checkpoint.checkpoint_id == deployed["serving"]
    return deployed["serving"], decided


def statuses(store: Store) -> dict[str, str]:
    return {each.checkpoint_id: each.status for each in store.checkpoints.read("r")}


def test_a_champion_without_fault_stays_and_nothing_is_written(store: Store, tmp_path: Path) -> None:
    before = store.audit_log.head()
    assert ended(store, tmp_path, 8) == ("c6", {"verdict": "hold", "reasons": ["nothing_learnt"]})
    assert store.audit_log.head() == before


@pytest.mark.parametrize(
    ("since", "to"),
    [(8, "c4"), (7, "c4"), (6, "c4"), (5, "c3"), (4, "base"), (2, "base"), (0, "base"), (None, "c4")],
)
def test_it_is_taken_back_to_the_last_that_served_before_it_showed(
    store: Store, tmp_path: Path, since: int | None, to: str
) -> None:
    checked(store, 8, hack(since))
    serving, decided = ended(store, tmp_path, 8)
    assert serving == to
    assert decided["taken_back"]["to"] == to
    assert statuses(store)["c6"] == "rolled_back"
    champion = store.checkpoints.champion("r")
    assert champion is not None
    assert champion.since_cycle == 9
    (entry,) = store.audit_log.read(action="checkpoint.roll_back")
    assert (entry.subject, entry.detail["to"]) == ("candidate:c6", to)
    assert "rollback, finding:reward_hack:clarification_rate" in entry.reason


def test_the_earliest_of_several_decides(store: Store, tmp_path: Path) -> None:
    checked(store, 8, hack(8), hack(5, "invalid_call_rate"))
    assert ended(store, tmp_path, 8)[0] == "c3"


def test_the_incident_of_the_finding_is_told_and_stays_open_and_holds_what_comes(store: Store, tmp_path: Path) -> None:
    checked(store, 8, hack(7))
    ended(store, tmp_path, 8)
    (incident,) = store.incidents.read("r")
    assert incident.state == "open"
    (act,) = store.audit_log.read(subject="incident:1", action="incident.action")
    assert act.reason == "c6 was taken back, c4 serves from cycle 9 on: in cycle 8: clarification_rate rises"
    begun(store, 9, "c4")
    checkpoint(tmp_path, store, "c9", "c4", 9)
    serving, decided = ended(store, tmp_path, 9, "c9")
    assert (serving, decided["verdict"], decided["reasons"]) == ("c4", "hold", ["incidents"])
    store.incidents.resolve(1, "rolled_back", actor="ada", reason="it is gone", cycle=9)
    begun(store, 11, "c4")
    checkpoint(tmp_path, store, "c11", "c4", 11)
    assert ended(store, tmp_path, 11, "c11")[0] == "c11"


def test_what_was_trained_from_it_is_not_promoted(store: Store, tmp_path: Path) -> None:
    # A policy that does not ask for the cycle's check lets the candidate pass; somebody has the champion blocked.
    checkpoint(tmp_path, store, "c8", "c6", 8)
    blocked(store, "c6", "ada")
    gate = PromotionGate(PolicyText(TEXT.replace("cycle: true", "cycle: false"), "p"), store, tmp_path, "r")
    serving, decided = ended(store, tmp_path, 8, "c8", gate=gate)
    assert serving == "c4"
    assert (decided["verdict"], decided["reasons"]) == ("hold", ["champion_taken_back"])
    assert statuses(store)["c8"] == "superseded"


def blocked(store: Store, name: str, actor: str) -> None:
    """As `palomar gate NAME` decides of a champion by an experiment."""
    given: dict[str, Any] = {"evidence": {}, "inputs": None, "policy": "ab", "policy_text": None, "expires_at": None}
    highest = store.decisions.highest("r", name)
    store.decisions.take(
        "r",
        name,
        after=highest,
        cycle=8,
        verdict="block",
        kind=None,
        reasons=["rollback", "deteriorated:edits"],
        sentence="users keep less",
        actor=actor,
        **given,
    )


def test_a_decision_of_others_is_acted_on_and_opens_an_incident_of_its_own_once(store: Store, tmp_path: Path) -> None:
    blocked(store, "c6", "ada")
    assert ended(store, tmp_path, 8)[0] == "c4"
    (incident,) = store.incidents.read("r")
    assert (incident.title, incident.state, incident.blocks) == ("champion taken back: c6", "open", True)
    (pin,) = store.incidents.pinned(incident.number)
    assert (pin.finding.detector, pin.finding.sentence) == ("gate", "users keep less")


def test_two_people_may_let_it_serve_until_their_time_is_over(store: Store, tmp_path: Path) -> None:
    checked(store, 8, hack(7))
    running = loop(store, tmp_path)
    said = running.gate.watch("c6", 8)
    assert said is not None
    assert said.verdict == "block"
    blocked(store, "c6", "palomar gate")
    asked = store.overrides.request("r", "c6", verdict="promote", reason="graders were down", hours=5, actor="ada")
    store.overrides.approve(asked.override_id, actor="bob", approval="saw it")
    assert ended(store, tmp_path, 8)[0] == "c6"


def test_a_faulty_cycle_takes_nobody_back(store: Store, tmp_path: Path) -> None:
    checked(store, 8, hack(7), FAULT)
    assert ended(store, tmp_path, 8)[0] == "c6"


def test_what_people_accepted_takes_nobody_back_until_its_end(store: Store, tmp_path: Path) -> None:
    checked(store, 7, hack(7))
    store.incidents.resolve(1, "accepted", actor="ada", reason="known", cycle=7, until_cycle=8)
    checked(store, 8, hack(7))
    assert ended(store, tmp_path, 8)[0] == "c6"
    begun(store, 9, "c6", hack(7))
    assert ended(store, tmp_path, 9)[0] == "c4"


def test_what_was_accepted_counts_after_its_end_though_nobody_opened_it_again(store: Store) -> None:
    checked(store, 7, hack(7))
    store.incidents.resolve(1, "accepted", actor="ada", reason="known", cycle=7, until_cycle=8)
    store.cycles.start("r", 9, checkpoint_id="c6")
    assert not speaks_against(store, "r", 8)(hack(7))
    assert speaks_against(store, "r", 8)(hack(8, "invalid_call_rate"))
    assert speaks_against(store, "r", 9)(hack(7))


def test_what_is_still_remembered_of_another_does_not_count_against_the_one_put_back(
    store: Store, tmp_path: Path
) -> None:
    checked(store, 8, hack(7))
    assert ended(store, tmp_path, 8)[0] == "c4"
    begun(store, 9, "c4", hack(7))  # an average over cycles still has it
    assert ended(store, tmp_path, 9)[0] == "c4"
    begun(store, 10, "c4", hack(7), hack(10, "invalid_call_rate"))  # and here is something new
    assert ended(store, tmp_path, 10)[0] == "c3"


def test_once_it_was_gone_it_counts_again(store: Store, tmp_path: Path) -> None:
    checked(store, 8, hack(7))
    ended(store, tmp_path, 8)
    begun(store, 9, "c4")
    assert ended(store, tmp_path, 9)[0] == "c4"
    begun(store, 10, "c4", hack(7))
    assert ended(store, tmp_path, 10)[0] == "c3"


def test_the_base_is_never_taken_back(store: Store, tmp_path: Path) -> None:
    checked(store, 2, hack(1))
    running = loop(store, tmp_path)
    assert running.gate.watch("base", 2) is None
    assert decide(running, 2, None, "base", RESPONDED) == {"verdict": "hold", "reasons": ["nothing_learnt"]}


def test_the_gate_of_suites_alone_takes_nobody_back_by_itself(store: Store, tmp_path: Path) -> None:
    checked(store, 8, hack(7))
    gate = EvaluationGate((SUITE,), GateConfig())
    assert ended(store, tmp_path, 8, gate=gate)[0] == "c6"
    blocked(store, "c6", "ada")
    assert ended(store, tmp_path, 8, gate=gate)[0] == "c4"
