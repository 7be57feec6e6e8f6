"""`palomar patch`, and what `palomar reward` shows of it, on a log with three holes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from palomar.app.cli import app
from palomar.data.errors import StoreError
from palomar.data.findings import Finding
from palomar.data.lake import Lake
from palomar.data.store import Store
from palomar.reward.spec import bundled, bundled_text, parse_spec, version
from palomar.reward.versions import register

NAIVE = version(bundled("naive"))
NEWEST = 3


@pytest.fixture
def home(tmp_path: Path, lake_with_holes: Lake) -> Path:
    """A run whose four cycles have begun, and whose newest was checked: questions are forewarned, a column warns."""
    shutil.copytree(lake_with_holes.root, tmp_path / "lake")
    with Store.open(None, tmp_path) as store:
        naive = register(store, bundled("naive"), text=bundled_text("naive"), reason="first", actor="ann")
        store.runs.add("run", name="run", seed=0, config={})
        store.rewards.schedule("run", naive.version, from_cycle=0)
        for cycle in range(NEWEST + 1):
            store.cycles.start("run", cycle, reward_version=naive.version)
        findings = [
            Finding("behaviour", "warns", "questions", statistic="clarification_rate", reading="forewarning",
                    detail={"direction": 1}),
            Finding("idle-paid", "warns", "idleness", statistic="reward", reading="forewarning"),
            Finding("drift", "warns", "latency", statistic="latency_mean", reading="outside_change"),
        ]  # fmt: skip
        store.findings.write("run", NEWEST, findings)
        store.verdicts.write("run", NEWEST, verdict="warn", reasons=[], sentence="", findings={}, budget="", as_of=None)
    return tmp_path


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def answer(*arguments: str | Path, code: int = 0) -> Any:
    done = run(*arguments, "--json")
    assert done.exit_code == code, (done.output, done.exception)
    return json.loads(done.stdout)


def test_what_the_newest_check_forewarns_is_turned_round_with_all_that_a_person_weighs(home: Path) -> None:
    found = answer("patch", "--home", home, code=1)
    assert (found["status"], found["base"], found["asked_by"]) == ("proposed", NAIVE, f"the check of cycle {NEWEST}")
    assert found["targets"] == [{"statistic": "clarification_rate", "slice": "all", "want": -1}]
    assert found["unaimed"] == ["reward in all"]  # which is no behaviour of the policy
    best = found["proposals"][0]
    assert best["number"] == 1
    assert version(parse_spec(best["spec"])) == best["version"]
    assert best["diff"].startswith("--- old")
    (row,) = best["pressures"]
    assert row["old"]["low"] > 0 > row["new"]["high"]
    assert row["outcome"]["high"] < 0
    assert 0 <= best["honest_hurt"] < 1
    old, new = best["next_cycle"]
    assert (old["reward"], old["way"], new["reward"], new["way"]) == ("old", 1, "new", -1)
    shown = run("patch", "--home", home)
    assert shown.exit_code == 1
    assert "with a good outcome are pushed no more" in shown.stdout
    assert "not on the bench, and so not patched: reward in all" in shown.stdout


def test_the_next_cycle_is_told_in_numbers_once_steps_were_seen_and_else_by_its_way(home: Path) -> None:
    best = answer("patch", "--home", home, code=1)["proposals"][0]  # the log has no samples: all cycles were trained on
    old, new = best["next_cycle"]
    assert (old["status"], new["status"], old["level"]) == ("ok", "ok", new["level"])
    assert old["low"] < old["value"] < old["high"]
    (row,) = best["pressures"]
    # One step size, two pressures.
    assert new["change"] / old["change"] == pytest.approx(row["new"]["value"] / row["old"]["value"])
    # Two cycles are one step, of which no size is learnt.
    old, new = answer("patch", "--cycles", "0..1", "--home", home, code=1)["proposals"][0]["next_cycle"]
    assert (old["way"], old["status"], old["value"]) == (1, "no step size", None)
    assert (new["way"], new["status"], new["value"]) == (-1, "no step size", None)
    shown = run("patch", "--cycles", "0..1", "--home", home).stdout
    assert "by how much is not known: no step of training was seen yet" in shown


def test_a_patch_is_put_in_force_once_with_reason_actor_and_proposal(home: Path) -> None:
    assert run("patch", "--apply", "1", "--home", home).exit_code == 2  # for no reason
    answer("patch", "--statistic", "functions_per_edit", "--home", home, code=1)  # proposals that nobody takes
    done = answer("patch", "--apply", "1", "--reason", "questions cost users", "--actor", "ann", "--home", home)
    change = done["change"]
    assert (change["from_cycle"], change["instead_of"], change["action"]) == (NEWEST + 1, NAIVE, "patch")
    with Store.open(None, home) as store:
        assert store.rewards.effective("run", NEWEST).version == NAIVE  # type: ignore[union-attr]
        record = store.rewards.effective("run", NEWEST + 1)
        assert record is not None
        assert (record.version, record.parent, record.reason, record.actor) == (
            change["version"], NAIVE, "questions cost users", "ann",
        )  # fmt: skip
        (entry,) = store.audit_log.read(action="reward.")
        assert (entry.actor, entry.reason) == ("ann", "questions cost users")
        others = [each for each in store.rewards.proposals("run") if each.version != record.version]
    # Again: the same proposal changes nothing, anew there is nothing to patch, and others are stale.
    again = answer("patch", "--apply", change["proposal_id"], "--reason", "again", "--home", home)
    assert again["changed"] is False
    found = answer("patch", "--home", home, code=0)
    assert (found["status"], found["proposals"]) == ("nothing", [])
    assert run("patch", "--apply", "1", "--reason", "again", "--home", home).exit_code == 0
    stale = run("patch", "--apply", others[0].proposal_id, "--reason", "other", "--home", home)
    assert isinstance(stale.exception, StoreError)
    assert "is stale" in str(stale.exception)
    with Store.open(None, home) as store:
        assert len(store.rewards.changes("run")) == 1
    log = answer("reward", "log", "--home", home)
    assert [(each["action"], each["reason"]) for each in log["changes"]] == [("patch", "questions cost users")]
    assert "questions cost users" in run("reward", "log", "--home", home).stdout
    back = answer("reward", "revert", NAIVE[:10], "--reason", "too dear", "--actor", "bob", "--home", home)
    assert (back["changed"], back["change"]["actor"], back["change"]["reason"]) == (True, "bob", "too dear")
    log = answer("reward", "log", "--home", home)
    assert [each["action"] for each in log["changes"]] == ["patch", "revert"]


def test_a_finding_or_a_statistic_can_be_named(home: Path) -> None:
    with Store.open(None, home) as store:
        keys = {each.finding.statistic: each.finding.key for each in store.findings.read("run")}
    found = answer("patch", "--finding", keys["clarification_rate"][:8], "--home", home, code=1)
    assert found["asked_by"] == f"the finding {keys['clarification_rate']} of cycle {NEWEST}"
    refused = run("patch", "--finding", keys["latency_mean"], "--home", home)
    assert "is nothing that a patch answers (outside change)" in str(refused.exception)
    assert "has none whose key" in str(run("patch", "--finding", "zzz", "--home", home).exception)
    named = answer("patch", "--statistic", "functions_per_edit", "--slice", "ambiguity=clear", "--home", home, code=1)
    assert named["targets"] == [{"statistic": "functions_per_edit", "slice": "ambiguity=clear", "want": -1}]
    unsure = run("patch", "--statistic", "truncated_rate", "--home", home)
    assert "say --less or --more" in str(unsure.exception)


def test_what_cannot_be_done_is_said_with_the_conflict_and_exits_with_3(home: Path) -> None:
    # Fewer edits where they are right, and hardly anything may move: no weight does it, and no remedy.
    where = ("--statistic", "edit_rate", "--slice", "predicted_failure=low", "--less", "--largest", "0.001")
    found = answer("patch", *where, "--home", home, code=3)
    assert found["status"] == "infeasible"
    refused = next(each for each in found["refused"] if each["change"] == "other weights")
    assert refused["conflict"][0] == "less edit_rate in predicted_failure=low"
    # The rule that drops broken calls could go, were it not for questions on easy requests: that is said.
    told = answer("patch", "--statistic", "invalid_call_rate", "--slice", "predicted_failure=high", "--home", home,
                  code=3)  # fmt: skip
    refused = next(each for each in told["refused"] if each["change"] == "no rule invalid_tool_call")
    assert "clarification_rate in predicted_failure=low keeps its sign" in refused["conflict"]
    shown = run("patch", *where, "--home", home)
    assert "infeasible" in shown.stdout
    assert "together with:" in shown.stdout
    assert answer("patch", "--cycles", "9", "--home", home, code=3)["status"] == "not_assessable"


def test_logs_without_a_run_are_patched_for_a_named_reward_and_nothing_is_kept(
    tmp_path: Path, lake_with_holes: Lake
) -> None:
    shutil.copytree(lake_with_holes.root, tmp_path / "lake")
    assert "--reward names one" in str(run("patch", "--home", tmp_path).exception)
    found = answer("patch", "--reward", "naive", "--home", tmp_path, code=1)
    assert (found["run"], found["proposals"][0]["id"]) == (None, None)
    assert not (tmp_path / "palomar.db").exists()
