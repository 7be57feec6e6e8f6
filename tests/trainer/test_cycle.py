"""A cycle, end to end on the real parts: what it leaves, and that no kill at any moment changes what is decided."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from palomar.app.gating import replay
from palomar.app.loop import open_loop, run_to
from palomar.data.errors import LedgerError
from palomar.data.lake import Lake
from palomar.data.store import Store
from palomar.data.store.runs import STAGES
from palomar.detectors.pressure import pressures
from palomar.reward import versions
from palomar.reward.spec import version
from palomar.trainer import cycle as stages
from palomar.trainer.config import ResponseConfig
from palomar.trainer.gate_policy import read_policy

SCRIPT = Path(__file__).with_name("killed_runs.py")
SPEC = importlib.util.spec_from_file_location("killed_runs", SCRIPT)
assert SPEC is not None
assert SPEC.loader is not None
killed_runs = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(killed_runs)


def run(home: Path, kill: str, *more: str) -> int:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(home), kill, *more],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


def told(home: Path) -> dict[str, Any]:
    """All that a run leaves, without the times at which it was written."""
    lake = Lake(home / "lake")
    with Store.open(None, home) as store:
        return {
            "cycles": [
                (cycle.cycle, cycle.checkpoint_id, cycle.reward_version, cycle.status)
                for cycle in store.cycles.read("killed")
            ],
            "stages": [
                (cycle.cycle, stage.stage, dict(stage.detail))
                for cycle in store.cycles.read("killed")
                for stage in cycle.stages
            ],
            "checkpoints": [
                (item.checkpoint_id, item.status, item.parent_id, item.sha256)
                for item in store.checkpoints.read("killed")
            ],
            "decisions": [
                (item.sequence, item.cycle, item.candidate, item.verdict, item.kind, item.reasons, item.evidence)
                for item in store.decisions.latest("killed", count=9)
            ],
            "decision file": {
                key: value
                for key, value in json.loads((home / "decision.json").read_text("utf-8")).items()
                if not key.endswith("_at")
            },
            "incidents": [(each.number, each.title, each.state) for each in store.incidents.read("killed")],
            "acts": [
                (each.actor, each.action, each.subject, each.reason)
                for each in store.audit_log.read()
                if each.action.startswith(("incident.", "gate.", "checkpoint."))
            ],
            "rewards": [
                (item.version, item.parent, item.text, item.reason, item.actor) for item in store.rewards.read()
            ],
            "proposals": [(each.proposal_id, each.place, each.detail) for each in store.rewards.proposals("killed")],
            "changes": [
                (each.number, each.from_cycle, each.version, each.instead_of, each.action, each.reason, each.actor)
                for each in store.rewards.changes("killed")
            ],
            "logged": [
                (each.actor, each.action, each.subject, each.reason) for each in store.audit_log.read(action="reward.")
            ],
            "ledger": store.ledger.read("killed"),
            "statistics": store.statistics.series("killed"),
            "interactions": sorted(lake.scan("interactions", ["interaction_id"])["interaction_id"].to_pylist()),
            "observations": lake.scan("observations", ["interaction_id", "reward", "outcome"]).num_rows,
            "samples": sorted(map(repr, lake.scan("samples", ["interaction_id", "advantage", "reason"]).to_pylist())),
        }


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("uninterrupted")
    assert run(home, "never") == 0
    return told(home)


@pytest.mark.slow
@pytest.mark.xdist_group("cycle")
def test_a_run_leaves_complete_cycles_whose_samples_add_up(uninterrupted: dict[str, Any]) -> None:
    assert [status for *_, status in uninterrupted["cycles"]] == ["complete", "complete"]
    assert len(uninterrupted["stages"]) == 2 * len(STAGES)
    assert len(uninterrupted["interactions"]) == uninterrupted["observations"] > 2 * 48
    for cycle in (0, 1):
        rows = [row for row in uninterrupted["ledger"] if row.cycle == cycle and row.stratum == "all"]
        assert sum(row.count for row in rows if row.place == "collected") == sum(
            row.count for row in rows if row.place != "collected"
        )
        assert any(row.place == "trained" for row in rows)
    # What waited in cycle 0 was settled by cycle 1, and only the last cycle may still wait.
    assert not any(row.place == "waiting" for row in uninterrupted["ledger"] if row.cycle == 0)
    assert any(row.place == "waiting" for row in uninterrupted["ledger"] if row.cycle == 1)


@pytest.mark.slow
@pytest.mark.xdist_group("cycle")
def test_nothing_is_learnt_in_the_baseline_and_what_it_would_teach_is_known(tmp_path: Path) -> None:
    settings = killed_runs.SETTINGS.model_copy(update={"baseline_cycles": 1})
    with open_loop(settings, tmp_path) as loop:
        run_to(loop, 2)
        watched, learnt = loop.store.cycles.read("killed")
        offered = loop.lake.scan("samples", ["cycle", "sampled_cycle", "trained", "reason"]).to_pylist()
        spec = versions.effective(loop.store, "killed", 0)
        pushed = pressures(loop.lake, [0], {version(spec): spec}).to_pylist()
        verdicts = [decision.verdict for decision in loop.store.decisions.latest("killed", count=5)]
    assert watched.checkpoint_id == learnt.checkpoint_id
    assert [stage.detail["reasons"] for stage in watched.stages if stage.stage == "decide"] == [["baseline"]]
    assert len(verdicts) == 1  # on the candidate of cycle 1
    # Samples of the baseline that settle later are no samples of a policy in training either.
    assert {row["trained"] for row in offered if row["sampled_cycle"] == 0} == {False}
    assert "baseline" in {row["reason"] for row in offered if row["cycle"] == 1 and row["sampled_cycle"] == 0}
    assert any(row["trained"] for row in offered if row["sampled_cycle"] == 1)
    # Nobody trained on them, and still it is known what training would have made of them.
    assert any(row["kind"] == "reward" and row["value"] for row in pushed)


@pytest.mark.slow
@pytest.mark.xdist_group("cycle")
def test_a_sample_that_disappears_stops_the_cycle_until_it_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = stages.update

    def lossy(*arguments: Any, **options: Any) -> Any:
        done = trained(*arguments, **options)
        return replace(done, samples=done.samples.slice(1))

    with open_loop(killed_runs.SETTINGS, tmp_path) as loop:
        monkeypatch.setattr(stages, "update", lossy)
        with pytest.raises(LedgerError, match=r"cycle 0, .* samples were collected, but"):
            run_to(loop, 1)
        stopped = loop.store.cycles.get("killed", 0)
        assert stopped is not None
        assert stopped.status == "stopped"
        assert "were collected, but" in (stopped.problem or "")
        assert [stage.stage for stage in stopped.stages] == ["collect", "distil"]
        assert loop.store.ledger.read("killed") == []


@pytest.mark.slow
@pytest.mark.xdist_group("cycle")
@pytest.mark.parametrize("kill", ["stages", "writes"])
def test_a_run_that_is_killed_and_resumed_decides_the_same(
    kill: str, tmp_path: Path, uninterrupted: dict[str, Any]
) -> None:
    kills = run(tmp_path, kill)
    assert kills == 2 * len(STAGES) if kill == "stages" else kills > 5
    resumed = told(tmp_path)
    for part, expected in uninterrupted.items():
        assert resumed[part] == expected, part


@pytest.mark.slow
@pytest.mark.xdist_group("cycle")
def test_a_guarded_run_patches_before_it_trains_and_a_kill_at_any_moment_changes_nothing(tmp_path: Path) -> None:
    assert run(tmp_path / "whole", "never", "guarded") == 0
    whole = told(tmp_path / "whole")
    (change,) = whole["changes"]
    assert change[:2] == (0, 1)
    assert change[4:] == ("patch", change[5], "palomar loop")
    # Nothing was trained on under the first reward, and the next cycle is paid by the patched one.
    assert [version for _, _, version, _ in whole["cycles"]] == [change[3], change[2]]
    assert whole["logged"] == [("palomar loop", "reward.patch", f"reward:{change[2]}", change[5])]
    assert {item[1] for item in whole["rewards"]} == {None, change[3]}
    kills = run(tmp_path / "killed", "response", "guarded")
    assert kills == len(killed_runs.RESPONSE)
    for part, expected in told(tmp_path / "killed").items():
        assert expected == whole[part], part


@pytest.mark.slow
@pytest.mark.xdist_group("cycle")
def test_a_run_that_the_promotion_gate_decides_on_decides_the_same_whenever_it_is_killed(tmp_path: Path) -> None:
    assert run(tmp_path / "whole", "never", "gated") == 0
    whole = told(tmp_path / "whole")
    assert [item[3] for item in whole["decisions"]] == ["promote", "promote"]
    assert whole["decision file"]["sequence"] == 2
    with Store.open(None, tmp_path / "whole") as store:
        first, _ = sorted(store.decisions.latest("killed", count=9), key=lambda item: item.sequence)
        # All that the rule was given is kept, and asked again it says the same.
        again = replay(store, first.decision_id)
        assert not isinstance(again, str)
        assert again.differences == ()
        assert (first.kind, first.policy) == ("neutral", read_policy(str(killed_runs.POLICY)).policy.version)
    kills = run(tmp_path / "killed", "decision", "gated")
    assert kills == len(killed_runs.DECISION["gated"])
    for part, expected in told(tmp_path / "killed").items():
        assert expected == whole[part], part


@pytest.mark.slow
@pytest.mark.xdist_group("cycle")
def test_a_champion_that_is_blocked_while_it_serves_is_taken_back_once_whenever_the_run_is_killed(
    tmp_path: Path,
) -> None:
    assert run(tmp_path / "whole", "never", "fallen") == 0
    whole = told(tmp_path / "whole")
    base, first, second = whole["checkpoints"]
    assert (base[1], first[1], second[1]) == ("promoted", "rolled_back", "superseded")
    (incident,) = whole["incidents"]
    assert incident[1:] == (f"champion taken back: {first[0]}", "open")
    assert [act[:3] for act in whole["acts"][1:]] == [
        ("ada", "gate.block", f"candidate:{first[0]}"),
        ("palomar run", "gate.hold", f"candidate:{second[0]}"),
        ("palomar run", "checkpoint.roll_back", f"candidate:{first[0]}"),
        ("palomar", "incident.open", "incident:1"),
        ("palomar run", "incident.action", "incident:1"),
    ]
    assert whole["acts"][3][3] == "killed:2: rollback, deteriorated:edits"
    decided, deployed = [
        detail for cycle, stage, detail in whole["stages"] if cycle == 1 and stage in ("decide", "deploy")
    ]
    assert decided["reasons"] == ["champion_taken_back"]
    assert deployed == {"serving": base[0]}
    kills = run(tmp_path / "killed", "decision", "fallen")
    assert kills == len(killed_runs.DECISION["fallen"])
    for part, expected in told(tmp_path / "killed").items():
        assert expected == whole[part], part


@pytest.mark.slow
@pytest.mark.xdist_group("cycle")
def test_a_run_that_proposes_keeps_proposals_and_changes_no_reward(tmp_path: Path) -> None:
    settings = killed_runs.GUARDED.model_copy(update={"response": ResponseConfig(mode="propose")})
    with open_loop(settings, tmp_path) as loop:
        run_to(loop, 2)
        watched, learnt = loop.store.cycles.read("killed")
        proposals = loop.store.rewards.proposals("killed")
        responded = [stage.detail for cycle in (watched, learnt) for stage in cycle.stages if stage.stage == "respond"]
        assert loop.store.rewards.changes("killed") == []
        assert [each.parent for each in loop.store.rewards.read()] == [None]
        assert not loop.store.audit_log.read(action="reward.patch")
    # What the guarded run of the same settings patches at the end of its baseline waits here for a person.
    assert responded[0]["action"] == "proposed"
    assert responded[0]["proposals"] == [each.proposal_id for each in proposals if each.cycle == 0] != []
    assert {each.actor for each in proposals} == {"palomar loop"}
    assert watched.reward_version == learnt.reward_version
    assert responded[0]["version"] is None
