"""The TRL hook in real GRPO trainings: it stops, saves and reweights, and two processes do the same."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from palomar.trainer.hooks.decisions import DecisionFile
from palomar.trainer.hooks.watching import Actions, Watch
from palomar.trainer.hooks.weights import Weights, WeightsFile, placed

trl = pytest.importorskip("trl")
pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("tiny_grpo", HERE / "tiny.py")
assert _spec is not None
assert _spec.loader is not None
tiny = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tiny)


def write_decision(path: Path, verdict: str = "block", candidate: str = "c12", sequence: int = 1) -> None:
    said = {
        "format": "palomar-decision/1", "sequence": sequence, "decision_id": f"demo:{sequence}", "run_id": "demo",
        "candidate": candidate, "verdict": verdict, "sentence": "asks more", "expires_at": None,
        "decided_at": datetime.now(UTC).isoformat(),
    }  # fmt: skip
    path.write_text(json.dumps(said))


def write_weights(path: Path, weights: dict[str, Any], version: str = "v2", from_cycle: int = 7, **more: Any) -> None:
    said = {"format": "palomar-weights/1", "run_id": "demo", "from_cycle": from_cycle, "reward_version": version,
            "weights": weights, **more}  # fmt: skip
    path.write_text(json.dumps(said))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "decision.json"


def hook_on(path: Path, actions: Actions | None = None, **more: Any) -> Any:
    from palomar.trainer.hooks.trl import PalomarCallback

    return PalomarCallback(Watch([DecisionFile(path, "demo")], ["c12"], actions), **more)


def test_a_block_stops_the_training_after_the_step_in_which_it_comes(tmp_path: Path, path: Path) -> None:
    hook = hook_on(path)
    trainer = tiny.tiny_trainer(tmp_path / "out", [tiny.at_step(2, lambda: write_decision(path)), hook])
    trainer.train()
    assert trainer.state.global_step == 2
    assert hook.stopped.sentence == "asks more"
    assert tiny.saved(tmp_path / "out") == []


def test_doubt_and_a_promote_train_to_the_end(tmp_path: Path, path: Path) -> None:
    path.write_text('{"verdict": "block"')
    hook = hook_on(path)
    at = tiny.at_step(3, lambda: write_decision(path, "promote"))
    trainer = tiny.tiny_trainer(tmp_path / "out", [at, hook], max_steps=4)
    trainer.train()
    assert trainer.state.global_step == 4
    assert hook.stopped is None


def test_save_and_stop_saves_what_is_there_and_goes_on_from_it(tmp_path: Path, path: Path) -> None:
    hook = hook_on(path, Actions(on_hold="save_and_stop"))
    write_decision(path, "promote")
    at = tiny.at_step(3, lambda: write_decision(path, "hold", sequence=2))
    trainer = tiny.tiny_trainer(tmp_path / "out", [at, hook])
    trainer.train()
    assert trainer.state.global_step == 3
    assert tiny.saved(tmp_path / "out") == ["checkpoint-3"]
    # It was decided anew meanwhile: the training goes on from what was saved.
    write_decision(path, "promote", sequence=3)
    again = hook_on(path)
    trainer = tiny.tiny_trainer(tmp_path / "out", [again])
    trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-3"))
    assert trainer.state.global_step == 6
    assert again.stopped is None


def test_save_alone_saves_once_for_each_decision(tmp_path: Path, path: Path) -> None:
    write_decision(path, "hold")
    hook = hook_on(path, Actions(on_hold="save"))
    at = tiny.at_step(3, lambda: write_decision(path, "hold", sequence=2))
    trainer = tiny.tiny_trainer(tmp_path / "out", [at, hook], max_steps=5)
    trainer.train()
    assert tiny.saved(tmp_path / "out") == ["checkpoint-3"]
    assert trainer.state.global_step == 5


def test_a_block_of_a_checkpoint_that_the_training_saved_stops_it(tmp_path: Path, path: Path) -> None:
    hook = hook_on(path, name_of=lambda step: f"c12-{step}")
    at = tiny.at_step(4, lambda: write_decision(path, candidate="c12-2"))
    trainer = tiny.tiny_trainer(tmp_path / "out", [at, hook], save_strategy="steps", save_steps=2)
    trainer.train()
    assert trainer.state.global_step == 4
    assert hook.stopped.candidate == "c12-2"


def test_weights_change_what_the_next_generations_are_paid(tmp_path: Path, path: Path) -> None:
    file = tmp_path / "weights.json"
    hook = hook_on(path, weights=WeightsFile(file, "demo"), called={"brevity": "short"})
    at = tiny.at_step(2, lambda: write_weights(file, {"brevity": 2.0, "even": 0.0, "only_measured": 0.0}))
    trainer = tiny.tiny_trainer(tmp_path / "out", [at, hook], max_steps=4)
    hook.attach(trainer)
    trainer.train()
    assert trainer.reward_weights.tolist() == [0.0, 2.0]
    assert hook.reward_version == "v2"
    logged = [each for each in trainer.state.log_history if "reward" in each]
    for number, each in enumerate(logged):
        first, second = each["rewards/even/mean"], each["rewards/short/mean"]
        paid = first + 0.5 * second if number < 2 else 2.0 * second
        assert each["reward"] == pytest.approx(paid, abs=1e-5), number


def test_a_later_cycles_weights_wait_for_it(tmp_path: Path, path: Path) -> None:
    file = tmp_path / "weights.json"
    write_weights(file, {"even": 3.0}, from_cycle=2)
    hook = hook_on(path, weights=WeightsFile(file, "demo"), cycle_of=lambda step: step // 2)
    seen: list[float] = []
    trainer = tiny.tiny_trainer(
        tmp_path / "out",
        [hook, *(tiny.at_step(n, lambda: seen.append(trainer.reward_weights[0].item())) for n in range(1, 7))],
    )
    hook.attach(trainer)
    trainer.train()
    assert seen == [1.0, 1.0, 1.0, 3.0, 3.0, 3.0]


def test_weights_that_do_not_fit_change_nothing(tmp_path: Path, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "weights.json"
    write_weights(file, {"even": 5.0, "unheard_of": 1.0})
    hook = hook_on(path, weights=WeightsFile(file, "demo"))
    trainer = tiny.tiny_trainer(tmp_path / "out", [hook], max_steps=3)
    with pytest.raises(ValueError, match="attach"):
        trainer.train()
    hook.attach(trainer)
    trainer.train()
    assert trainer.reward_weights.tolist() == [1.0, 0.5]
    assert hook.reward_version is None
    assert caplog.text.count("no reward function 'unheard_of'") == 1  # said once, not at each step


def test_a_trainer_without_weights_is_refused(path: Path) -> None:
    with pytest.raises(ValueError, match="reward_weights"):
        hook_on(path).attach(object())


def test_two_processes_stop_save_and_reweight_alike_though_one_has_no_file(tmp_path: Path) -> None:
    for rank in (0, 1):
        (tmp_path / f"node{rank}").mkdir()
    write_decision(tmp_path / "node0" / "decision.later")
    write_weights(tmp_path / "node0" / "weights.later", {"even": 0.25, "short": 4.0})
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port = trial.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, str(HERE / "tiny.py"), str(tmp_path)],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        output = [each.communicate(timeout=400)[0] for each in running]
    finally:  # one that goes on alone waits for the other
        for each in running:
            each.kill()
    assert [each.returncode for each in running] == [0, 0], "\n".join(output)[-4000:]
    first, second = (json.loads((tmp_path / f"said{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    assert first == {
        "step": 3,
        "stopped": ["block", "asks more"],
        "weights": [0.25, 4.0],
        "version": "v2",
        "saved": ["checkpoint-3"],
        "world": 2,
    }


# -- the weights file ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "more"),
    [
        ({"even": True}, {}),
        ({"even": "1"}, {}),
        ({"even": None}, {}),
        ({"even": float("nan")}, {}),
        ({"even": float("inf")}, {}),
        ({}, {}),
        ({"even": 1.0}, {"run_id": "other"}),
        ({"even": 1.0}, {"format": "palomar-weights/2"}),
        ({"even": 1.0}, {"from_cycle": None}),
        ({"even": 1.0}, {"reward_version": 7}),
    ],
)
def test_a_weights_file_in_doubt_gives_none(tmp_path: Path, weights: dict[str, Any], more: dict[str, Any]) -> None:
    file = tmp_path / "weights.json"
    source = WeightsFile(file, "demo")
    assert isinstance(source.read(), str)
    write_weights(file, {"even": 1})
    assert source.read() == Weights("v2", 7, {"even": 1.0})
    write_weights(file, weights, **more)
    assert isinstance(source.read(), str)
    write_weights(file, {"even": 1}, from_cycle=6)  # an older file was put back
    assert isinstance(source.read(), str)


def test_weights_are_placed_by_name_or_not_at_all() -> None:
    found = Weights("v", 0, {"a": 2.0, "b": 3.0})
    assert placed(found, ["b", "x", "a"], [1.0, 9.0, 1.0], {}) == [3.0, 9.0, 2.0]
    assert placed(found, ["b", "a2"], [1.0, 1.0], {"a": "a2"}) == [3.0, 2.0]
    for names, called in ((["a"], {}), (["a", "b", "b"], {}), (["a", "c"], {"b": "a"}), (["x"], {})):
        assert isinstance(placed(found, names, [1.0] * len(names), called), str)
    assert isinstance(placed(Weights("v", 0, {"z": 0.0}), ["a"], [1.0], {}), str)
