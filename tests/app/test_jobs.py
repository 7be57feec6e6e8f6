"""Jobs done by a real worker process: what comes of them, and what is said when it dies."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from palomar.app import jobs
from palomar.app.cli import app
from palomar.app.service import Observatory
from palomar.data.errors import StoreError
from palomar.data.lake import Lake
from palomar.data.store import Store
from palomar.data.store.records import Job
from palomar.reward.replay import replay
from palomar.reward.spec import bundled, bundled_text, version
from palomar.reward.versions import register

PATIENCE_S = 120
NAIVE, SOUND = bundled_text("naive"), bundled_text("sound")


@pytest.fixture
def home(tmp_path: Path, lake_with_holes: Lake) -> Path:
    shutil.copytree(lake_with_holes.root, tmp_path / "lake")
    with Store.open(None, tmp_path) as store:
        naive = register(store, bundled("naive"), text=NAIVE, reason="first", actor="ann")
        store.runs.add("run", name="run", seed=0, config={})
        store.rewards.schedule("run", naive.version, from_cycle=0)
        for cycle in range(4):
            store.cycles.start("run", cycle, reward_version=naive.version)
    return tmp_path


@pytest.fixture
def runner(home: Path) -> Iterator[jobs.Runner]:
    made = jobs.Runner(home)
    yield made
    made.close()


def wait_for(store: Store, job: Job, runner: jobs.Runner, *states: str) -> Job:
    until = time.monotonic() + PATIENCE_S
    while True:
        runner.look(store)
        found = store.jobs.get(job.job_id)
        assert found is not None
        if found.state in states:
            return found
        assert time.monotonic() < until, found
        time.sleep(0.2)


def ask_replay(store: Store, **more: Any) -> Job:
    return store.jobs.ask("replay", {"old": NAIVE, "new": SOUND, "cycles": [2, 3], **more}, actor="ann")


@pytest.mark.slow
def test_a_replay_by_a_worker_is_the_replay_itself(home: Path, runner: jobs.Runner) -> None:
    with Store.open(None, home) as store:
        assert runner.pid is None
        done = wait_for(store, ask_replay(store), runner, "done", "failed")
        assert done.error is None
        assert done.worker == jobs.name_here(runner.pid)
        direct = replay(Lake(home / "lake"), [2, 3], bundled("naive"), bundled("sound"))
        expected = json.loads(json.dumps(direct.to_dict()))
        assert done.result == expected
        assert expected["num_rows"] > 100
        # The next one goes to the same process.
        again = wait_for(store, ask_replay(store), runner, "done", "failed")
        assert again.worker == done.worker


@pytest.mark.slow
def test_a_killed_worker_is_told_at_the_next_look_and_another_does_what_waits(home: Path, runner: jobs.Runner) -> None:
    with Store.open(None, home) as store:
        # A hundred times the same rows: long enough to be killed in the middle.
        first = store.jobs.ask("patch", {"run": "run", "cycles": [0, 1, 2, 3]}, actor="ann")
        second = ask_replay(store)
        running = wait_for(store, first, runner, "running", "done")
        assert running.state == "running"
        pid = runner.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        lost = wait_for(store, first, runner, "failed")
        assert "lost: its worker died" in (lost.error or "")
        assert "killed by signal SIGKILL" in (lost.error or "")
        done = wait_for(store, second, runner, "done", "failed")
        assert done.state == "done"
        assert done.worker != lost.worker
        assert store.jobs.get(first.job_id).state == "failed"  # type: ignore[union-attr]


@pytest.mark.slow
def test_a_worker_does_not_outlive_its_console_and_says_so(home: Path) -> None:
    """A parent that is killed cannot tell its child."""
    code = (
        "import sys, time; from pathlib import Path; from palomar.app.jobs import Runner; "
        "from palomar.data.store import Store\n"
        "home = Path(sys.argv[1]); store = Store.open(None, home); runner = Runner(home)\n"
        "while True: runner.look(store); print(runner.pid, flush=True); time.sleep(0.1)\n"
    )
    with Store.open(None, home) as store:
        job = store.jobs.ask("patch", {"run": "run", "cycles": [0, 1, 2, 3]}, actor="ann")
        console = subprocess.Popen([sys.executable, "-c", code, str(home)], stdout=subprocess.PIPE, text=True)
        assert console.stdout is not None
        pid = int(console.stdout.readline())
        until = time.monotonic() + PATIENCE_S
        while store.jobs.get(job.job_id).state == "queued":  # type: ignore[union-attr]
            assert time.monotonic() < until
            time.sleep(0.05)
        console.kill()
        console.communicate()
        while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
            time.sleep(0.1)
        assert not Path(f"/proc/{pid}").exists()
        found = store.jobs.get(job.job_id)
        assert found is not None
        assert (found.state, found.error) == ("failed", "the console was closed while it was being done")


def test_where_no_worker_can_start_what_waits_is_given_up(
    home: Path, runner: jobs.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with Store.open(None, home) as store:
        failed = wait_for(store, ask_replay(store), runner, "failed")
        assert failed.error == "no worker can be started (ended with code 1); the console's log says why"
        assert failed.worker is None


def test_what_cannot_be_done_says_why_and_a_bug_does_not_show_its_message(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    observatory = Observatory(home)
    store = observatory.store

    def bug(*_: object) -> dict[str, Any]:
        raise RuntimeError("secret in a message")

    monkeypatch.setattr(jobs, "KINDS", {**jobs.KINDS, "bug": bug})
    asked = [
        store.jobs.ask("replay", {"old": NAIVE, "new": "terms: 3", "cycles": [2]}, actor="ann"),
        ask_replay(store, cycles=[77]),
        store.jobs.ask("patch", {"run": "run", "incident": 9, "cycles": [3]}, actor="ann"),
        store.jobs.ask("gate", {"run": "run", "candidate": "nobody"}, actor="ann"),
        store.jobs.ask("patch", {"run": "run", "cycles": [3], "base": "another"}, actor="ann"),
        store.jobs.ask("of a newer version", {}, actor="ann"),
        store.jobs.ask("bug", {}, actor="ann"),
    ]
    assert jobs.work(observatory, once=True) == len(asked)
    errors = [store.jobs.get(each.job_id).error or "" for each in asked]  # type: ignore[union-attr]
    for error, said in zip(
        errors,
        (
            "the new reward",
            "no interactions in these cycles",
            "no such incident",
            "has no checkpoint 'nobody'",
            "is in force no more",
            "is unknown here",
            "RuntimeError",
        ),
        strict=True,
    ):
        assert said in error
    assert "secret" not in errors[-1]
    assert "secret in a message" in capsys.readouterr().err


def test_a_patch_job_keeps_its_proposals_and_tells_what_the_command_tells(home: Path) -> None:
    observatory = Observatory(home)
    asked = {"run": "run", "cycles": [0, 1, 2, 3], "statistic": "functions_per_edit"}
    job = observatory.store.jobs.ask("patch", asked, actor="ann")
    jobs.work(observatory, once=True)
    done = observatory.store.jobs.get(job.job_id)
    assert done is not None
    assert done.result is not None, done.error
    kept = observatory.store.rewards.proposals("run")
    assert kept
    assert done.result["proposals"] == [each.proposal_id for each in kept]
    assert {each.actor for each in kept} == {"ann"}
    command = ["patch", "--statistic", "functions_per_edit", "--cycles", "0..3", "--home", str(home), "--json"]
    told = json.loads(CliRunner().invoke(app, command).stdout)
    assert {**told, "proposals": [each["id"] for each in told["proposals"]]} == done.result


def test_jobs_are_told_on_the_command_line(home: Path) -> None:
    def run(*words: str) -> Any:
        return CliRunner().invoke(app, ["jobs", *words, "--home", str(home)])

    assert run("list").exit_code == 3
    with Store.open(None, home) as store:
        job = ask_replay(store)
        assert run("show", job.job_id[:6]).exit_code == 3
        assert run("work", "--once").exit_code == 0
        assert run("show", "nothing").exit_code != 0
        shown = run("show", job.job_id[:6], "--json")
        assert (shown.exit_code, json.loads(shown.stdout)["result"]["new"]) == (0, version(bundled("sound")))
        store.jobs.ask("no such kind", {}, actor="ann")
        run("work", "--once")
        listed = json.loads(run("list", "--json").stdout)["jobs"]
        assert [(each["kind"], each["state"]) for each in listed] == [("no such kind", "failed"), ("replay", "done")]
        assert run("show", listed[0]["job_id"]).exit_code == 1
        assert "100%" in run("list").stdout


def test_own_proposals_are_versions_with_parent_and_reason_once_they_are_applied(home: Path) -> None:
    from palomar.app import patching

    observatory = Observatory(home)
    store, run = observatory.store, observatory.run()
    assert run is not None
    spec, text = patching.edited(NAIVE, {"function_size": 0.1}, ["invalid_tool_call"], why="by hand")
    assert {term.name: term.weight for term in spec.terms}["function_size"] == 0.1
    assert spec.inclusion == ()
    assert "# They are not planted anywhere else" in text  # comments stay
    kept = patching.propose_own(store, run, text, title="half", actor="bo")
    assert (kept.kind, kept.base, kept.cycle, kept.actor) == ("own", version(bundled("naive")), 3, "bo")
    assert kept.detail["changes"]
    assert patching.propose_own(store, run, text, title="again", actor="cy") == kept  # the first stands
    change = patching.apply_stored(store, run, kept.proposal_id, reason="questions", actor="bo")
    assert change is not None
    record = store.rewards.get(change.version)
    assert record is not None
    assert (record.parent, record.reason, record.actor, record.text) == (kept.base, "questions", "bo", text)
    for refused in (
        lambda: patching.propose_own(store, run, text, title="", actor="bo"),  # in force by now
        lambda: patching.propose_own(store, run, NAIVE, title="", actor=" "),
        lambda: patching.edited(NAIVE, {"no_such": 1.0}, [], why="by hand"),
    ):
        with pytest.raises(StoreError):
            refused()
