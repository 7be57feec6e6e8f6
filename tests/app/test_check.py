"""`palomar check` and `palomar baseline` as a pipeline meets them: words, JSON and exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from palomar.app.cli import app
from palomar.data.errors import ConfigError, StoreError
from palomar.data.store import Store
from palomar.detectors.checks._examples import rows, view
from palomar.detectors.checks.behaviour import EXAMPLES


def run(*arguments: str, code: int) -> str:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == code, done.output
    return done.stdout


def example(name: str, home: Path) -> Path:
    next(each for each in EXAMPLES if name in each.name).make(home / "lake")
    return home


@pytest.fixture(scope="module")
def hacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return example("the reward teaches", tmp_path_factory.mktemp("hacked"))


def test_a_hack_exits_with_1_and_says_what_where_and_why(hacked: Path) -> None:
    said = run("check", "--home", str(hacked), "--detector", "behaviour", code=1)
    assert said.startswith("cycle 11: BLOCK")
    assert "BLOCKS clarification rate" in said
    assert "users' outcome is against; reading: reward hack" in said
    assert "look at c11-" in said


def test_json_holds_what_a_program_needs(hacked: Path) -> None:
    told: dict[str, Any] = json.loads(run("check", "--home", str(hacked), "--detector", "behaviour", "--json", code=1))
    assert (told["cycle"], told["verdict"]) == (11, "block")
    assert "reward_hack:clarification_rate" in told["reasons"]
    worst = next(each for each in told["findings"] if each["statistic"] == "clarification_rate")
    assert worst["low"] < worst["effect"] < worst["high"]
    assert worst["evidence"]["carrying"]
    (detector,) = told["detectors"]
    assert (detector["detector"], detector["assessed"] > 50, detector["power"][:10]) == (
        "behaviour",
        True,
        "would have",
    )


def test_an_earlier_cycle_is_judged_by_what_was_known_then(hacked: Path) -> None:
    said = run("check", "--home", str(hacked), "--cycle", "7", "--detector", "behaviour", code=3)
    assert said.startswith("cycle 7: NOT ASSESSABLE")
    assert "will rise" in said
    assert "forewarning" in said


def test_nothing_found_is_a_pass(tmp_path: Path) -> None:
    home = example("nothing moves", tmp_path)
    assert "PASS" in run("check", "--home", str(home), "--detector", "behaviour", code=0)


def test_nothing_to_check_is_no_pass(tmp_path: Path, hacked: Path) -> None:
    assert "nothing to check" in run("check", "--home", str(tmp_path), code=3)
    assert json.loads(run("check", "--home", str(tmp_path), "--json", code=3))["verdict"] == "not_assessable"
    assert "no interactions of cycle 99" in run("check", "--home", str(hacked), "--cycle", "99", code=3)


def test_a_wrong_name_is_an_error(hacked: Path) -> None:
    done = CliRunner().invoke(app, ["check", "--home", str(hacked), "--detector", "drfit"])
    assert done.exit_code == 2
    done = CliRunner().invoke(app, ["check", "--home", str(hacked), "--extension", str(hacked / "none.py")])
    assert isinstance(done.exception, ConfigError)


def test_a_series_is_checked_without_interactions(tmp_path: Path) -> None:
    lines = ["cycle,slice,metric,count,total"]
    for cycle in range(24):
        lines += [f"{cycle},{name},hacking,{2 + cycle % 3 + (cycle if name == 'a' else 0)},64" for name in "abc"]
    path = tmp_path / "series.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    said = run("check", "--series", str(path), "--worse", "hacking=up", code=1)
    assert "BLOCKS hacking rises in a" in said
    assert "alarmed: a" in said
    assert CliRunner().invoke(app, ["check", "--series", str(path), "--worse", "hacking"]).exit_code == 2
    assert CliRunner().invoke(app, ["check", "--series", str(path), "--proxy", "reward"]).exit_code == 2


def test_a_baseline_is_moved_by_a_person_with_a_reason(tmp_path: Path) -> None:
    assert "no run" in run("baseline", "--home", str(tmp_path), code=3)
    with Store.open(None, tmp_path) as store:
        store.runs.add("r", name="r", seed=0, config={"baseline_cycles": 8})
        for cycle in range(20):
            store.cycles.start("r", cycle, checkpoint_id=None, reward_version=None)
    home = ("--home", str(tmp_path))
    assert "it was never moved" in run("baseline", *home, code=0)
    moved = run("baseline", *home, "--cycles", "10..19", "--reason", "better now", "--actor", "ann", code=0)
    assert "10..19" in moved
    assert "better now" in moved
    (stored,) = json.loads(run("baseline", *home, "--json", code=0))
    assert (stored["from_cycle"], stored["cycles"], stored["actor"]) == (20, list(range(10, 20)), "ann")
    for wrong in (
        ["--cycles", "10..19"],
        ["--cycles", "10-19", "--reason", "x"],
        ["--cycles", "10..12", "--reason", "x"],
    ):
        assert CliRunner().invoke(app, ["baseline", *home, *wrong]).exit_code == 2
    missing = CliRunner().invoke(app, ["baseline", *home, "--cycles", "15..25", "--reason", "x"])
    assert isinstance(missing.exception, StoreError)


def test_logs_outside_a_loop_have_no_drift(tmp_path: Path) -> None:
    view(tmp_path / "lake", {0: rows(0, 50)})
    assert "NOT ASSESSABLE" in run("check", "--home", str(tmp_path), "--detector", "behaviour", code=3)
