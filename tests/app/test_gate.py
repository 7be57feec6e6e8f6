"""`palomar gate` as a pipeline meets it: one decision, its exit code, and what other programs read of it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import junitparser
import pytest
from sarif_pydantic import Sarif
from typer.testing import CliRunner

from palomar.app import gate_exports, gating
from palomar.app.cli import app
from palomar.app.service import Observatory
from palomar.data.errors import StoreError
from palomar.data.findings import Finding, Report
from palomar.data.store import Store
from palomar.data.store.records import Decision, LedgerRow
from palomar.detectors.incidents import open_incidents
from palomar.trainer.evaluation import Evaluation, TaskResult
from palomar.trainer.gate import Evidence
from palomar.trainer.gate_policy import read_policy
from palomar.trainer.promotion_gate import PromotionGate

SUITE = "held-out-tasks"


def evaluation(name: str, solved: float, tasks: int = 400) -> Evaluation:
    results = tuple(
        TaskResult(
            f"t{index:03d}",
            f"family{index % 20}",
            {
                "solved": float((index * 7919) % tasks < solved * tasks),
                "tests_pass": None,
                "invalid_call": 0.0,
                "asked_on_clear": 0.0,
                # Some spread: of a mean that never differs no error is known.
                "functions_per_edit": 2.0 + (index % 3 if name != "base" else (index + 1) % 3),
            },
        )
        for index in range(tasks)
    )
    return Evaluation(SUITE, name, 0, results)


def checkpoint(home: Path, store: Store, name: str, parent: str | None, cycle: int | None, *, solved: float) -> None:
    folder = home / "checkpoints" / name
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_text(name)
    manifest = json.dumps({"files": {"model.safetensors": hashlib.sha256(name.encode()).hexdigest()}})
    (folder / "manifest.json").write_text(manifest)
    sha256 = hashlib.sha256(manifest.encode()).hexdigest()
    store.checkpoints.add("demo", name, cycle=cycle, parent_id=parent, path=name, sha256=sha256)
    kept = home / "evaluations" / name
    kept.mkdir(parents=True)
    (kept / f"{SUITE}.json").write_text(evaluation(name, solved).to_json(), encoding="utf-8")


def checked(store: Store, candidate: str | None, *findings: Finding, cycle: int = 9, verdict: Any = "pass") -> None:
    report = Report("behaviour", tuple(findings), assessed=40)
    store.findings.write("demo", cycle, findings, (report,), candidate=candidate)
    store.verdicts.write(
        "demo",
        cycle,
        verdict=verdict,
        reasons=[],
        sentence="nothing found",
        findings={},
        budget="",
        as_of=None,
        candidate=candidate,
    )


def make(home: Path, *, solved: float = 0.5, check: bool = True) -> Path:
    """A run whose base serves, and a candidate of cycle 9 that solves so many."""
    with Store.open(None, home) as store:
        store.runs.add("demo", name="demo", seed=0, config={})
        checkpoint(home, store, "base", None, None, solved=0.5)
        store.checkpoints.promote("demo", "base", replacing=None, since_cycle=0, reason="the base")
        store.cycles.start("demo", 9, checkpoint_id="base")
        detail = {"offered": 100, "not_trained": {"reward_waiting": 4}, "policy_lag": {"0": 90, "1": 6}}
        store.cycles.finish_stage("demo", 9, "train", elapsed_s=1.0, detail=detail)
        rows = [("collected", "", 100), ("trained", "", 96), ("waiting", "", 4)]
        store.ledger.write("demo", [LedgerRow(9, "all", place, why, n) for place, why, n in rows])  # type: ignore[arg-type]
        checkpoint(home, store, "new", "base", 9, solved=solved)
        if check:
            checked(store, None)
            checked(store, "new")
    return home


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return make(tmp_path / "home")


def run(home: Path, *arguments: str | Path, code: int) -> str:
    done = CliRunner().invoke(app, ["gate", *map(str, arguments), "--home", str(home)])
    assert done.exit_code == code, done.output + repr(done.exception)
    return done.stdout


def decisions(home: Path) -> list[Decision]:
    with Store.open(None, home) as store:
        return store.decisions.history("demo", "new")


# -- the answers ---------------------------------------------------------------------------------------------------


def test_an_equal_candidate_is_promoted_with_0(home: Path) -> None:
    said = run(home, "new", code=0)
    assert said.startswith("new: PROMOTE (neutral)\n")
    assert "decision demo:1 by" in said
    assert "decided now" in said


def test_a_worse_candidate_is_blocked_with_1_and_says_the_numbers(tmp_path: Path) -> None:
    said = run(make(tmp_path, solved=0.3), "new", code=1)
    assert said.startswith("new: BLOCK\nsolved 50.0 % of the champion -> 30.0 % on the same 400 tasks (-20.0 points)")


def test_a_home_without_a_check_is_held_with_3_and_says_what_to_do(tmp_path: Path) -> None:
    said = run(make(tmp_path, check=False), "new", code=3)
    assert said.startswith("new: HOLD\ncycle 9, which trained it, was not checked")
    assert "- palomar gate new --check" in said
    assert "until" in said


def test_a_finding_that_blocks_blocks(home: Path) -> None:
    with Store.open(None, home) as store:
        hack = Finding("behaviour", "blocks", "edits fell", "edit_rate", reading="reward_hack")
        checked(store, None, hack, verdict="block")
    told = json.loads(run(home, "new", "--json", code=1))
    assert told["reasons"] == ["finding:reward_hack:edit_rate"]
    assert told["sentence"] == "in cycle 9: edits fell"
    (check,) = [each for each in told["checks"] if each["part"] == "block" and each["result"] == "fail"]
    with Store.open(None, home) as store:
        assert store.findings.get(check["evidence"][0]) is not None


def test_an_open_incident_holds_until_something_was_done(home: Path) -> None:
    with Store.open(None, home) as store:
        hack = Finding("behaviour", "blocks", "edits fell", "edit_rate", reading="reward_hack")
        checked(store, None, hack, verdict="block")
        (opened,) = open_incidents(store, "demo", 9)
        checked(store, None)
    told = json.loads(run(home, "new", "--json", code=3))
    assert told["reasons"] == ["incidents"]
    assert told["needed"] == [f"an end of incident:{opened.number}, or an action on it"]
    with Store.open(None, home) as store:
        store.incidents.resolve(opened.number, "false_alarm", actor="ada", reason="the log was wrong", cycle=9)
    run(home, "new", "--again", code=0)


def test_json_has_the_arithmetic_the_policy_and_what_is_needed(tmp_path: Path) -> None:
    told = json.loads(run(make(tmp_path, check=False), "new", "--json", code=3))
    assert (told["verdict"], told["sequence"], told["policy"]) == ("hold", 1, read_policy("demo").policy.version)
    assert told["needed"] == ["palomar gate new --check"]
    assert told["arithmetic"].endswith("-> hold")
    assert told["expires_at"] > told["decided_at"]
    assert told["risks"]["block though nothing is worse"] == 0.002


@pytest.mark.parametrize(
    "damage",
    [
        lambda home: (home / "checkpoints" / "new" / "model.safetensors").write_text("other weights"),
        lambda home: (home / "checkpoints" / "new" / "manifest.json").write_text('{"files": {}}'),
        lambda home: (home / "checkpoints" / "new" / "model.safetensors").unlink(),
    ],
)
def test_a_checkpoint_that_is_not_what_was_registered_is_held(home: Path, damage: Callable[[Path], object]) -> None:
    damage(home)
    assert json.loads(run(home, "new", "--json", code=3))["reasons"][0] == "invalid:digests"


def test_a_ledger_that_does_not_add_up_holds(home: Path) -> None:
    with Store.open(None, home) as store:
        store.ledger.write("demo", [LedgerRow(9, "all", "collected", "", 100), LedgerRow(9, "all", "trained", "", 96)])
    told = json.loads(run(home, "new", "--json", code=3))
    assert told["sentence"] == "cycle 9, all: 100 samples were collected, and 96 are accounted for"


# -- errors --------------------------------------------------------------------------------------------------------


def palomar(home: Path, *arguments: str, code: int) -> str:
    """In a process of its own, as a pipeline runs it; its standard error."""
    done = subprocess.run(
        [sys.executable, "-c", "from palomar.app.cli import main; main()", "gate", *arguments],
        env={**os.environ, "PALOMAR_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stderr


def test_errors_exit_with_2_and_never_read_as_a_pass(home: Path, tmp_path: Path) -> None:
    assert "has no checkpoint 'nobody'" in palomar(home, "nobody", code=2)
    assert "there is no run" in palomar(tmp_path / "empty", "new", code=2)
    assert "no such policy comes with Palomar" in palomar(home, "new", "--policy", "strict", code=2)
    wrong = tmp_path / "p.yaml"
    wrong.write_text("name: x\nneutral: 2\n")
    assert "p.yaml:2: neutral: unknown key" in palomar(home, "new", "--policy", str(wrong), code=2)
    assert "2" not in decisions(home)
    gone = "postgresql://nobody@127.0.0.1:1/none"
    assert "error:" in palomar(home, "new", "--store", gone, code=2)
    (home / "palomar.db").write_bytes(b"not a database at all, but long enough to be one" * 100)
    assert "error:" in palomar(home, "new", code=2)


def test_the_gate_loads_no_torch(home: Path) -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from palomar.app.cli import app; "
        f"done = CliRunner().invoke(app, ['gate', 'new', '--home', {str(home)!r}]); assert done.exit_code == 0, done; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'streamlit')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# -- one decision --------------------------------------------------------------------------------------------------


def test_a_decision_stands_until_it_is_asked_again(home: Path) -> None:
    run(home, "new", code=0)
    worse = evaluation("new", 0.3)
    (home / "evaluations" / "new" / f"{SUITE}.json").write_text(worse.to_json(), encoding="utf-8")
    assert "stands since" in run(home, "new", code=0)
    assert run(home, "new", "--again", code=1).startswith("new: BLOCK")
    assert [each.verdict for each in decisions(home)] == ["promote", "block"]
    assert decisions(home)[1].supersedes == "demo:1"


def test_asked_again_with_nothing_new_writes_nothing(home: Path) -> None:
    run(home, "new", code=0)
    assert "nothing new is known" in run(home, "new", "--again", code=0)
    assert len(decisions(home)) == 1


def test_an_expired_hold_is_decided_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = make(tmp_path, check=False)
    run(home, "new", code=3)
    with Store.open(None, home) as store:
        checked(store, None)
        checked(store, "new")
    assert "stands since" in run(home, "new", code=3)

    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.now(tz) + timedelta(hours=6)

    monkeypatch.setattr(gating, "datetime", Later)
    assert run(home, "new", code=0).startswith("new: PROMOTE")


def test_a_promotion_against_a_champion_that_serves_no_more_is_decided_anew(home: Path) -> None:
    run(home, "new", code=0)
    with Store.open(None, home) as store:
        checkpoint(home, store, "better", "base", 9, solved=0.9)
        store.checkpoints.promote("demo", "better", replacing="base", since_cycle=10, reason="it is better")
    assert run(home, "new", code=1).startswith("new: BLOCK")


def test_a_retired_candidate_is_held_and_a_dry_run_says_what_would_have_been(home: Path) -> None:
    with Store.open(None, home) as store:
        store.checkpoints.supersede("demo", "new", "held for too long")
    assert json.loads(run(home, "new", "--json", code=3))["reasons"][0] == "invalid:retired"
    before = decisions(home)
    assert run(home, "new", "--dry-run", code=0).startswith("new: the rule would say PROMOTE (neutral)")
    assert decisions(home) == before
    assert CliRunner().invoke(app, ["gate", "new", "--dry-run", "--wait"]).exit_code == 2


def test_two_that_ask_at_once_get_one_decision(home: Path) -> None:
    """In processes of their own, that gather and decide at the same time."""
    code = (
        "import sys; from pathlib import Path; from palomar.app import gating; "
        "from palomar.app.service import Observatory; from palomar.trainer.gate_policy import read_policy; "
        "print('ready', flush=True); sys.stdin.readline(); "
        "said = gating.ask(Observatory(Path(sys.argv[1])), gating.Question('new', read_policy('demo'), sys.argv[2])); "
        "print(said.decision.decision_id, said.decision.actor)"
    )
    asking = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(home), actor], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for actor in ("ada", "bob")
    ]
    for each in asking:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    for each in asking:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    said = [each.communicate(timeout=60)[0] for each in asking]
    assert said[0] == said[1]
    (made,) = decisions(home)
    assert said[0] == f"{made.decision_id} {made.actor}\n"


def test_who_decided_meanwhile_comes_first(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between looking at the evidence and writing, another has decided."""
    real = gating.decide

    def slow(evidence: Any, policy: Any) -> Any:
        monkeypatch.setattr(gating, "decide", real)
        run(home, "new", "--actor", "bob", code=0)
        return real(evidence, policy)

    monkeypatch.setattr(gating, "decide", slow)
    said = run(home, "new", "--actor", "ada", code=0)
    assert "by bob" in said
    assert "decided at the same time by another" in said
    assert len(decisions(home)) == 1


# -- waiting -------------------------------------------------------------------------------------------------------


def question(home: Path) -> tuple[Observatory, gating.Question]:
    return Observatory(home), gating.Question("new", read_policy("demo"), "ada")


def test_waiting_ends_when_what_was_missing_comes(tmp_path: Path) -> None:
    home = make(tmp_path, check=False)

    def later() -> None:
        time.sleep(0.6)
        with Store.open(None, home) as store:
            checked(store, None)
            checked(store, "new")

    worker = threading.Thread(target=later)
    worker.start()
    answer = gating.wait(*question(home), timeout_s=30, every_s=0.2)
    worker.join()
    assert answer.decision.verdict == "promote"
    # A check was written, then the other: at most one hold more, and never one for each look.
    assert len(decisions(home)) <= 3


def test_waiting_in_vain_ends_with_the_hold(tmp_path: Path) -> None:
    home = make(tmp_path, check=False)
    began = time.monotonic()
    assert gating.wait(*question(home), timeout_s=0.8, every_s=0.2).decision.verdict == "hold"
    assert 0.7 < time.monotonic() - began < 10
    assert len(decisions(home)) == 1
    run(home, "new", "--wait", "--timeout", "0", code=3)


def test_a_retired_candidate_is_not_waited_for(home: Path) -> None:
    with Store.open(None, home) as store:
        store.checkpoints.block("demo", "new", "a person did")
    began = time.monotonic()
    assert gating.wait(*question(home), timeout_s=60).decision.verdict == "hold"
    assert time.monotonic() - began < 20


# -- replay and overrides ------------------------------------------------------------------------------------------


def test_a_decision_is_replayed_from_what_was_frozen(home: Path) -> None:
    run(home, "new", code=0)
    for path in (home / "evaluations").rglob("*.json"):
        path.unlink()
    assert "demo:1: PROMOTE, the same as then" in run(home, "replay", "demo:1", code=0)
    assert json.loads(run(home, "replay", "demo:1", "--json", code=0))["same"] is True


@pytest.mark.parametrize(
    ("effect", "word", "difference"),
    [
        (-0.3, "BLOCK", "verdict: promote, now block"),
        (0.001, "PROMOTE", "not_worse:held-out-tasks:solved:champion: pass, now with other numbers"),
    ],
)
def test_a_decision_that_was_not_the_rules_is_told_by_its_replay(
    home: Path, effect: float, word: str, difference: str
) -> None:
    run(home, "new", code=0)
    (made,) = decisions(home)
    assert made.inputs is not None
    inputs = json.loads(json.dumps(made.inputs))
    inputs["suites"][0]["effect"] = effect
    forged = {**vars(made), "inputs": inputs}
    for name in ("run_id", "candidate", "decision_id", "sequence", "created_at", "supersedes"):
        forged.pop(name)
    with Store.open(None, home) as store:
        store.decisions.take("demo", "new", after=1, **forged)
    said = run(home, "replay", "demo:2", code=1)
    assert f"{word}, not as it was decided then" in said
    assert difference in said


def test_what_kept_nothing_cannot_be_replayed(home: Path) -> None:
    with Store.open(None, home) as store:
        store.decisions.record(
            "demo", "new", cycle=9, verdict="hold", reasons=["x"], evidence={}, policy="evaluation-1"
        )
    assert "kept no evidence" in run(home, "replay", "demo:1", code=3)
    done = CliRunner().invoke(app, ["gate", "replay", "demo:7", "--home", str(home)])
    assert isinstance(done.exception, StoreError)


def test_an_override_takes_two_people_and_ends(tmp_path: Path) -> None:
    home = make(tmp_path, solved=0.3)
    run(home, "new", "--actor", "pipeline", code=1)
    said = run(
        home, "override", "request", "new", "--to", "promote", "--reason", "graders broke", "--actor", "ada", code=0
    )
    asked = "demo:new:override-1"
    assert said.startswith(f"{asked}: ada asks for promote in place of demo:1"), "printed as it is, no emoji"
    same = CliRunner().invoke(
        app, ["gate", "override", "approve", asked, "--reason", "ok", "--actor", "Ada", "--home", str(home)]
    )
    assert isinstance(same.exception, StoreError)
    file = tmp_path / "decision.json"
    said = run(
        home, "override", "approve", asked, "--reason", "saw it", "--actor", "bob", "--decision-file", file, code=0
    )
    assert "new: PROMOTE (override)" in said
    assert "the rule said block (demo:1)" in said
    kept = json.loads(file.read_text())
    assert (kept["verdict"], kept["kind"], kept["sequence"]) == ("promote", "override", 2)
    assert kept["expires_at"] is not None
    assert "made by people" in run(home, "replay", "demo:2", code=3)
    assert run(home, "history", "new", code=0).count("demo") >= 2


def test_an_override_cannot_stand_longer_than_the_policy_allows(home: Path) -> None:
    run(home, "new", code=0)
    arguments = ["gate", "override", "request", "new", "--to", "block", "--reason", "x", "--hours", "25"]
    done = CliRunner().invoke(app, [*arguments, "--home", str(home)])
    assert isinstance(done.exception, StoreError)
    assert "24 hours" in str(done.exception)


# -- exports -------------------------------------------------------------------------------------------------------


def exported(home: Path, folder: Path, code: int) -> tuple[Path, Path]:
    run(home, "new", "--junit", folder / "j.xml", "--sarif", folder / "s.sarif", code=code)
    return folder / "j.xml", folder / "s.sarif"


@pytest.mark.parametrize(("solved", "check", "code"), [(0.5, True, 0), (0.3, True, 1), (0.5, False, 3)])
def test_junit_keeps_failed_and_not_evaluated_apart(tmp_path: Path, solved: float, check: bool, code: int) -> None:
    home = make(tmp_path / "home", solved=solved, check=check)
    path, _ = exported(home, tmp_path, code)
    (suite,) = junitparser.JUnitXml.fromfile(str(path))
    fates: dict[str, str] = {case.name: type(case.result[0]).__name__ if case.result else "" for case in suite}
    assert suite.tests == len(fates)
    assert suite.failures == sum(fate == "Failure" for fate in fates.values())
    assert suite.errors == sum(fate == "Error" for fate in fates.values())
    assert suite.skipped == sum(fate == "Skipped" for fate in fates.values())
    if code == 0:
        assert suite.failures == suite.errors == 0
        assert fates["promote"] == ""
    if code == 1:
        assert fates["worse:held-out-tasks:solved:champion"] == fates["block"] == "Failure"
    if code == 3:
        assert fates["check:cycle"] == fates["hold"] == "Error"
        assert suite.failures == 0
    properties = {each.name: each.value for each in suite.properties()}
    assert properties["decision_id"] == "demo:1"


def test_sarif_is_read_by_others_and_names_the_line_of_the_policy(tmp_path: Path) -> None:
    home = make(tmp_path / "home", solved=0.3, check=False)
    _, path = exported(home, tmp_path, 1)
    text = path.read_text(encoding="utf-8")
    Sarif.model_validate_json(text)
    (ran,) = json.loads(text)["runs"]
    results = {each["ruleId"]: each for each in ran["results"]}
    assert len(results) == len(ran["results"])
    assert {rule["id"] for rule in ran["tool"]["driver"]["rules"]} == set(results)
    worse = results["worse:held-out-tasks:solved:champion"]
    assert (worse["level"], results["check:cycle"]["level"]) == ("error", "warning")
    (place,) = worse["locations"]
    line = place["physicalLocation"]["region"]["startLine"]
    assert "solved:" in read_policy("demo").text.splitlines()[line - 1]
    assert all(each["partialFingerprints"] for each in results.values())


def test_a_promoted_candidate_has_no_sarif_results(home: Path, tmp_path: Path) -> None:
    _, path = exported(home, tmp_path, 0)
    assert json.loads(path.read_text())["runs"][0]["results"] == []


def test_text_of_agents_breaks_neither_export(home: Path, tmp_path: Path) -> None:
    nasty = 'edits <b>fell</b> & "quoted" ]]> \x00\x1b[31m \ud800 <!channel>'
    with Store.open(None, home) as store:
        checked(store, None, Finding("mine", "blocks", nasty, "x&<y>"), verdict="block")
    junit, sarif = exported(home, tmp_path, 1)
    root = ET.parse(junit).getroot()
    assert "<b>fell</b>" in "".join(root.itertext())
    Sarif.model_validate_json(sarif.read_text(encoding="utf-8"))


def test_the_decision_file_is_whole_at_every_moment_and_only_goes_on(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "out" / "decision.json"
    run(home, "new", "--decision-file", path, code=0)
    with Store.open(None, home) as store:
        made = decisions(home)[0]
        later = [
            store.decisions.take(
                "demo",
                "new",
                after=number,
                **{
                    name: value
                    for name, value in vars(made).items()
                    if name not in ("run_id", "candidate", "decision_id", "sequence", "created_at", "supersedes")
                },
            )
            for number in range(1, 40)
        ]
    with path.open(encoding="utf-8") as opened_before:
        gate_exports.write_decision_file(path, later[0])
        # Who has opened it reads the decision that it was, whole.
        assert json.load(opened_before)["sequence"] == 1
    seen: list[int] = []
    broken: list[str] = []
    stop = threading.Event()

    def poll() -> None:
        while not stop.is_set():
            text = path.read_text(encoding="utf-8")
            try:
                seen.append(json.loads(text)["sequence"])
            except ValueError:
                broken.append(text)

    poller = threading.Thread(target=poll)
    poller.start()
    writers = [
        threading.Thread(target=lambda part=part: [gate_exports.write_decision_file(path, each) for each in part])
        for part in (later, later[::-1], later[::2])
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    stop.set()
    poller.join()
    assert broken == []
    assert seen == sorted(seen)
    assert json.loads(path.read_text())["sequence"] == 40
    assert not gate_exports.write_decision_file(path, later[3])
    assert sorted(each.name for each in path.parent.iterdir()) == [".decision.json.lock", "decision.json"]


def test_the_file_that_the_loop_keeps_in_its_home_is_brought_up_to_date_by_whoever_decides(home: Path) -> None:
    run(home, "new", code=0)
    kept = home / gate_exports.DECISION_FILE
    assert not kept.exists()  # no loop keeps one here
    gate_exports.write_decision_file(kept, decisions(home)[0])
    run(home, "override", "request", "new", "--to", "block", "--reason", "saw it", "--actor", "ann", code=0)
    asked = "demo:new:override-1"
    run(home, "override", "approve", asked, "--reason", "so did I", "--actor", "bob", code=1)
    said = json.loads(kept.read_text(encoding="utf-8"))
    assert (said["sequence"], said["verdict"], said["kind"]) == (2, "block", "override")


def test_a_file_that_is_something_else_is_left_alone(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "decision.json"
    path.write_text("my notes")
    done = CliRunner().invoke(app, ["gate", "new", "--home", str(home), "--decision-file", str(path)])
    assert isinstance(done.exception, StoreError)
    assert path.read_text() == "my notes"
    path.write_text(json.dumps({"format": "palomar-decision/1", "sequence": 1, "run_id": "other"}))
    done = CliRunner().invoke(app, ["gate", "new", "--home", str(home), "--decision-file", str(path)])
    assert "another" in str(done.exception) or "'other'" in str(done.exception)


# -- the loop ------------------------------------------------------------------------------------------------------


def test_the_loops_gate_gives_the_same_answer_and_can_be_replayed(tmp_path: Path) -> None:
    for solved, hacks, verdict in (
        (0.5, (), "promote"),
        (0.3, (), "block"),
        (0.5, ("reward_hack:edit_rate",), "block"),
    ):
        home = make(tmp_path / f"{solved}{len(hacks)}", solved=solved)
        with Store.open(None, home) as store:
            gate = PromotionGate(read_policy("demo"), store, home, "demo")
            found = Evidence({SUITE: evaluation("new", solved)}, {SUITE: evaluation("base", 0.5)}, hacks=hacks)
            said = gate.decide(found)
            assert said.verdict == verdict
            for _ in range(2):  # a loop that died after it wrote decides again
                said = gate.decide(found)
                store.decisions.record("demo", "new", cycle=9, policy=gate.policy, **vars(said))
        assert len(decisions(home)) == 1
        run(home, "replay", "demo:1", code=0)
        run(home, "new", code={"promote": 0, "block": 1}[verdict])


def test_the_loops_gate_holds_what_it_does_not_know() -> None:
    gate = PromotionGate(read_policy("demo"), None, Path(), "demo")  # type: ignore[arg-type]
    assert gate.decide(Evidence({}, {})).verdict == "hold"


def test_now_is_in_utc(home: Path) -> None:
    run(home, "new", code=0)
    made = gate_exports.plain_decision(decisions(home)[0])["decided_at"]
    assert datetime.fromisoformat(made).tzinfo == UTC


def test_the_loops_gate_checks_the_candidate_itself(tmp_path: Path) -> None:
    home = make(tmp_path, solved=0.5, check=False)
    with Store.open(None, home) as store:
        checked(store, None)
        gate = PromotionGate(read_policy("demo"), store, home, "demo")
        said = gate.decide(Evidence({SUITE: evaluation("new", 0.5)}, {SUITE: evaluation("base", 0.5)}))
        assert said.verdict == "promote"
        kept = store.verdicts.get("demo", 9, candidate="new")
        assert kept is not None
        assert (kept.verdict, kept.sentence) == ("pass", "nothing found")
        (report,) = store.findings.reports("demo", 9, candidate="new")
        assert report.assessed > 0


def test_the_list_names_what_stands_of_each_checkpoint_newest_first(home: Path, tmp_path: Path) -> None:
    assert [line.split()[:5] for line in run(home, "list", code=0).splitlines()[1:]] == [
        ["new", "9", "candidate", "not", "decided"],
        ["base", "-", "promoted", "not", "decided"],
    ]
    run(home, "new", code=0)
    newest, base = json.loads(run(home, "list", "--json", code=0))
    assert (newest["checkpoint"], newest["gate"]) == ("new", "promote")
    assert base["gate"] == "not decided"
    assert [each["checkpoint"] for each in json.loads(run(home, "list", "--last", "1", "--json", code=0))] == ["new"]
    assert "no checkpoint" in run(tmp_path / "nothing", "list", code=3)


def test_asking_in_a_home_without_a_run_makes_no_store(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["gate", "new", "--home", str(tmp_path / "nothing")])
    assert isinstance(done.exception, StoreError)
    assert not (tmp_path / "nothing").exists()
