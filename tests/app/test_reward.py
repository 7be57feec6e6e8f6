"""`palomar replay`, `palomar audit` and `palomar reward` on small homes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from palomar.app.cli import app
from palomar.data.errors import ConfigError, StoreError
from palomar.data.lake import Lake
from palomar.data.observations import FACTS
from palomar.data.store import Store
from palomar.reward.scoring import score
from palomar.reward.spec import bundled, bundled_text, version
from palomar.reward.versions import register
from palomar.trainer.hooks.weights import Weights, WeightsFile


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Cycles 3 and 4 of a log: 20 edits that stay, 20 that are reverted, 20 questions each."""
    lake = Lake(tmp_path / "lake")
    for cycle in (3, 4):
        rows = []
        for index in range(60):
            edit = index % 3 > 0
            row: dict[str, Any] = {field.name: 0 for field in FACTS if field.type == pa.int32() and not field.nullable}
            row |= {
                "interaction_id": f"c{cycle}i{index}", "user_id": f"u{index}", "cycle": cycle, "source": "test",
                "traffic": "production", "predicted_failure": 0.5, "ambiguity": 0.2, "agent_turns": 1, "edited": edit,
                "edits": int(edit), "asked": not edit, "latency_s": 10.0, "undone": False, "answered": False,
                "watched_s": 1e6, "edit_lost_s": 60.0 if index % 3 == 1 else None, "tests_run": 1, "tests_passed": 1,
                "functions_before": 1, "functions_after": 1, "function_lines_before": 8, "function_lines_after": 8,
            }  # fmt: skip
            rows.append(row)
        lake.write_observations(score(pa.Table.from_pylist(rows, schema=FACTS), bundled("naive")), cycle)
    return tmp_path


@pytest.fixture
def run_home(home: Path) -> Path:
    """The same with a run: the naive reward from cycle 0, the sound one from cycle 2 on, and cycle 4 has begun."""
    store = Store.open(None, home)
    naive = register(store, bundled("naive"), text=bundled_text("naive"), reason="first", actor="ann")
    sound = register(store, bundled("sound"), reason="holes", actor="bob", parent=naive.version)
    store.runs.add("run", name="run", seed=0, config={})
    store.rewards.schedule("run", naive.version, from_cycle=0)
    store.rewards.schedule("run", sound.version, from_cycle=2)
    store.cycles.start("run", 4, reward_version=sound.version)
    store.close()
    return home


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def answer(*arguments: str | Path, code: int = 0) -> Any:
    done = run(*arguments, "--json")
    assert done.exit_code == code, (done.output, done.exception)
    return json.loads(done.stdout)


def test_a_replay_tells_what_would_have_been_paid(home: Path) -> None:
    found = answer("replay", "--from", "naive", "--to", "sound", "--cycles", "4", "--home", home)
    assert (found["cycles"], found["num_rows"], found["compared"]) == ([4], 60, 60)
    question = next(each for each in found["changes"] if (each["slice"], each["behaviour"]) == ("all", "question"))
    # -0.01 a second; and the sound reward: 0.8 x -1.4 + 0.2 x 0.1.
    assert (question["n"], question["old"], question["new"]) == (20, pytest.approx(-0.1), pytest.approx(-1.2))
    assert answer("replay", "--from", "naive", "--to", "sound", "--home", home)["num_rows"] == 120
    shown = run("replay", "--from", "naive", "--to", "sound", "--cycles", "3..4", "--home", home)
    assert shown.exit_code == 0
    assert "120 interactions, 120 with a reward under both" in shown.stdout
    assert "rule invalid_tool_call is gone" in shown.stdout


def test_a_replay_of_nothing_exits_with_3_and_of_no_reward_with_an_error(home: Path, tmp_path: Path) -> None:
    assert (
        answer("replay", "--from", "naive", "--to", "sound", "--cycles", "9", "--home", home, code=3)["num_rows"] == 0
    )
    empty = run("replay", "--from", "naive", "--to", "sound", "--home", tmp_path / "none")
    assert (empty.exit_code, "nothing was ingested" in empty.stdout) == (3, True)
    there = run("replay", "--from", "naive", "--to", "sound", "--cycles", "9", "--home", home)
    assert "no interactions in cycles 9; there are cycles 3 to 4" in there.stdout
    assert isinstance(run("replay", "--from", "naive", "--to", "nicer", "--home", home).exception, ConfigError)
    for span in ("x", "4..3", "-1"):
        assert run("replay", "--from", "naive", "--to", "sound", f"--cycles={span}", "--home", home).exit_code == 2


def test_the_audit_of_a_spec_is_for_ci(tmp_path: Path) -> None:
    assert answer("audit", "sound", code=0)["incentives"] is None
    found = answer("audit", "naive", code=1)["static"]["flaws"]
    assert {each["check"] for each in found if each["severity"] == "flags"} == {
        "selective rule",
        "needless questions free",
        "splitting paid",
    }
    mine = tmp_path / "mine.yaml"
    mine.write_text(bundled_text("naive"), encoding="utf-8")
    shown = run("audit", mine)
    assert shown.exit_code == 1
    assert "inclusion[invalid_tool_call]" in shown.stdout
    mine.write_text("name: mine\nterms: 3\n", encoding="utf-8")
    assert isinstance(run("audit", mine).exception, ConfigError)


def test_an_audit_on_logs_without_logs_could_not_assess(home: Path) -> None:
    assert answer("audit", "sound", "--on", "9", "--home", home, code=3)["incentives"] is None
    assert answer("audit", "naive", "--on", "9", "--home", home, code=1)["incentives"] is None
    found = answer("audit", "naive", "--on", "all", "--home", home, code=1)["incentives"]
    assert found["num_rows"] == 120
    question = next(
        each
        for each in found["estimates"]
        if (each["behaviour"], each["predicted_failure"], each["ambiguity"]) == ("question", "mid", "clear")
    )
    # Requests are all alike: the difference of the means, 0 against (1 - 1.5) / 2, and no function of one line less.
    assert question["reward"] == pytest.approx(0.25, abs=0.03)


def test_versions_are_listed_with_where_they_are_used(run_home: Path, tmp_path: Path) -> None:
    found = answer("reward", "log", "--home", run_home)
    assert found["run"] == "run"
    listed = [(each["version"], each["actor"], each["from_cycles"]) for each in found["versions"]]
    naive, sound = version(bundled("naive")), version(bundled("sound"))
    assert listed == [(sound, "bob", [2]), (naive, "ann", [0])]
    assert found["versions"][0]["parent"] == naive
    shown = run("reward", "log", "--home", run_home).stdout
    assert "holes" in shown
    assert answer("reward", "log", "--home", tmp_path / "none", code=3)["versions"] == []


def test_stored_versions_are_compared_and_replayed_by_the_start_of_their_hash(run_home: Path) -> None:
    naive, sound = version(bundled("naive")), version(bundled("sound"))
    found = answer("reward", "diff", naive[:8], sound[:8], "--home", run_home)
    assert (found["old"], found["new"]) == (naive, sound)
    assert "rule invalid_tool_call is gone" in found["changes"]
    assert "-  - name: function_size" in found["diff"]
    assert answer("replay", "--from", naive[:8], "--to", sound, "--home", run_home)["new"] == sound
    same = run("reward", "diff", "naive", naive[:8], "--home", run_home)
    assert same.stdout.strip() == "the same reward"


def test_reverting_schedules_the_older_version_from_the_next_cycle(run_home: Path) -> None:
    naive, sound = version(bundled("naive")), version(bundled("sound"))
    found = answer("reward", "revert", naive[:10], "--reason", "worse", "--actor", "ann", "--home", run_home)
    assert (found["version"], found["changed"]) == (naive, True)
    kept = {name: found["change"][name] for name in ("from_cycle", "instead_of", "action", "reason", "actor")}
    assert kept == {"from_cycle": 5, "instead_of": sound, "action": "revert", "reason": "worse", "actor": "ann"}
    store = Store.open(None, run_home)
    used = [store.rewards.effective("run", cycle) for cycle in (4, 5, 6)]
    assert [each.version if each else None for each in used] == [sound, naive, naive]
    assert len(store.rewards.read()) == 2  # nothing was written anew
    store.close()
    assert answer("reward", "revert", naive, "--reason", "again", "--home", run_home)["changed"] is False
    assert run("reward", "revert", sound, "--home", run_home).exit_code == 2  # for no reason


def test_the_weights_in_force_are_put_where_a_trainer_reads_them(run_home: Path, tmp_path: Path) -> None:
    file = tmp_path / "out" / "weights.json"
    hook = WeightsFile(file, "run")
    said = answer("reward", "weights", "--file", file, "--home", run_home)
    sound = {term.name: term.weight for term in bundled("sound").terms}
    assert (said["from_cycle"], said["reward_version"], said["weights"]) == (2, version(bundled("sound")), sound)
    assert hook.read() == Weights(version(bundled("sound")), 2, sound)
    answer("reward", "revert", version(bundled("naive")), "--reason", "worse", "--home", run_home)
    answer("reward", "weights", "--file", file, "--home", run_home)
    naive = {term.name: term.weight for term in bundled("naive").terms}
    assert hook.read() == Weights(version(bundled("naive")), 5, naive)
    assert isinstance(run("reward", "weights", "--home", tmp_path / "none").exception, StoreError)


def test_a_version_that_is_not_there_is_an_error(run_home: Path, tmp_path: Path) -> None:
    assert isinstance(run("reward", "revert", "abcdef", "--reason", "r", "--home", run_home).exception, StoreError)
    assert isinstance(run("reward", "revert", "", "--reason", "r", "--home", run_home).exception, StoreError)
    assert isinstance(
        run("reward", "revert", "abcdef", "--reason", "r", "--home", tmp_path / "none").exception, StoreError
    )
