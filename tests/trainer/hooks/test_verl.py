"""The verl hook. With verl installed it runs in verl's own loop; else against its interface as verl 0.9.1 has it.

verl asks for transformers < 5.11, so it does not go into the environment of this project: CI runs the second only.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import time
import types
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

VERL = importlib.util.find_spec("verl") is not None
HOOK = "palomar.trainer.hooks.verl"


class CheckpointCallback:
    """As verl.trainer.ppo.checkpoint_callback of verl 0.9.1 has it."""

    def __init__(self, config: Any = None) -> None:
        self.config = config

    def on_save(
        self, trainer: Any, global_step: int, checkpoint_dir: str, async_save: bool = False, **kwargs: Any
    ) -> None: ...


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, with verl's base class or one of the same form."""
    if not VERL:
        for name in ("verl", "verl.trainer", "verl.trainer.ppo"):
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        leaf = types.ModuleType("verl.trainer.ppo.checkpoint_callback")
        leaf.CheckpointCallback = CheckpointCallback  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, leaf.__name__, leaf)
        monkeypatch.delitem(sys.modules, HOOK, raising=False)
    yield importlib.import_module(HOOK)
    if not VERL:
        sys.modules.pop(HOOK, None)


class Trainer:
    """What of verl's trainer is used: its loop goes on while global_steps <= total_training_steps."""

    def __init__(self, callback: Any, steps: int = 6, save_freq: int = 2) -> None:
        self.callback, self.save_freq, self.total_training_steps, self.global_steps = callback, save_freq, steps, 0
        self.saved: list[int] = []

    def fit(self, at: dict[int, Any] | None = None) -> None:
        self.global_steps = 1
        while self.global_steps <= self.total_training_steps:
            is_last_step = self.global_steps >= self.total_training_steps
            if at and self.global_steps in at:
                at[self.global_steps]()
            if is_last_step or self.global_steps % self.save_freq == 0:
                self.saved.append(self.global_steps)
                self.callback.on_save(
                    trainer=self, global_step=self.global_steps, checkpoint_dir="x", async_save=False, later="more"
                )
            self.global_steps += 1
            if is_last_step:
                return


def decide(path: Path, verdict: str, candidate: str = "c12", sequence: int = 1) -> None:
    said = {
        "format": "palomar-decision/1", "sequence": sequence, "decision_id": f"demo:{sequence}", "run_id": "demo",
        "candidate": candidate, "verdict": verdict, "sentence": "asks more", "expires_at": None,
        "decided_at": datetime.now(UTC).isoformat(),
    }  # fmt: skip
    path.write_text(json.dumps(said))


def config(path: Path, **more: Any) -> dict[str, Any]:
    return {"palomar": {"run_id": "demo", "candidate": "c12", "decision_file": str(path), **more}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "decision.json"


def test_a_block_makes_the_step_that_was_saved_the_last_one(hook: Any, path: Path) -> None:
    callback = hook.PalomarCheckpointCallback(config=config(path))
    trainer = Trainer(callback)
    trainer.fit({3: lambda: decide(path, "block")})
    assert trainer.saved == [2, 4]
    assert trainer.global_steps == 5
    assert callback.stopped.sentence == "asks more"


def test_doubt_and_hold_go_on_and_raise_is_raised(hook: Any, path: Path) -> None:
    path.write_text("{")
    trainer = Trainer(hook.PalomarCheckpointCallback(config=config(path)))
    trainer.fit({3: lambda: decide(path, "hold")})
    assert trainer.saved == [2, 4, 6]
    trainer = Trainer(hook.PalomarCheckpointCallback(config=config(path, on_hold="stop", end="raise")))
    with pytest.raises(hook.StoppedByGateError, match="hold of c12: asks more"):
        trainer.fit()


def test_it_waits_for_the_decision_about_what_was_saved(hook: Any, path: Path) -> None:
    options = config(path, candidate_format="c12-{step}", wait_s=0.3, poll_s=0.02)
    decide(path, "block", candidate="c12-2")
    trainer = Trainer(hook.PalomarCheckpointCallback(config=options))
    trainer.fit()
    assert trainer.saved == [2]
    path.unlink()
    callback = hook.PalomarCheckpointCallback(config=config(path, candidate_format="c12-{step}", wait_s=60))
    began = time.monotonic()
    callback.on_save(Trainer(callback), 2, "x", async_save=True)  # is not written yet: nothing to wait for
    assert callback.stopped is None
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    "more",
    [{"max_age": 5}, {"candidate": None, "api_url": "http://x"}, {"decision_file": None}, {"wait_s": 5},
     {"candidate_format": "c12"}, {"end": "now"}, {"on_block": "halt"}],
)  # fmt: skip
def test_a_wrong_config_ends_before_the_training_begins(
    hook: Any, path: Path, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(hook.TOKEN, raising=False)
    with pytest.raises(ValueError, match=r"palomar|on_block"):
        hook.PalomarCheckpointCallback(config=config(path, **more))
    for none in (None, {}, {"palomar": None}, {"palomar": {"run_id": "demo"}}):
        with pytest.raises(ValueError, match="palomar"):
            hook.PalomarCheckpointCallback(config=none)


@pytest.mark.skipif(not VERL, reason="verl asks for another transformers; see docs/hooks.md for how this is run")
def test_in_verls_own_loop(tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`PPOTrainer.fit` and `_save_checkpoint` are verl's; what would need GPUs and a rollout server is left out."""
    import verl.trainer.config
    from hydra import compose, initialize_config_dir
    from verl.trainer.ppo.checkpoint_callback import build_checkpoint_callback
    from verl.trainer.ppo.v1 import trainer_base

    with initialize_config_dir(str(Path(verl.trainer.config.__file__).parent), version_base=None):
        settings = compose(
            "ppo_trainer",
            [
                f"trainer.default_local_dir={tmp_path}/out", "trainer.save_freq=2", "trainer.test_freq=-1",
                "trainer.val_before_train=False", "trainer.total_epochs=1", "trainer.logger=[file]",
                f"trainer.checkpoint_callback_class={HOOK}.PalomarCheckpointCallback", "+palomar.run_id=demo",
                "+palomar.candidate=c12", f"+palomar.decision_file={path}",
            ],
        )  # fmt: skip
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "metrics.jsonl"))
    monkeypatch.setattr(trainer_base.tq, "kv_clear", lambda **_: None)
    monkeypatch.setattr(trainer_base.tq, "save_checkpoint", lambda *_, **__: None)

    class Workers:
        def save_checkpoint(self, place: str, *_: Any, **__: Any) -> None:
            Path(place).mkdir(parents=True)

    class Loader:
        def state_dict(self) -> dict[str, int]:
            return {}

    class Stepping(trainer_base.PPOTrainer):  # type: ignore[misc]
        def step(self, metrics: Any, timing_raw: Any) -> Any:
            if self.global_steps == 3:
                decide(path, "block")
            return trainer_base.KVBatchMeta(partition_id="train", keys=[], tags=[])

        def _nothing(self, *_: Any, **__: Any) -> dict[str, float]:
            return {}

        _compute_metrics = _reissue_inflight_prompts = _start_profiling = _stop_profiling = _nothing
        on_train_begin = on_train_end = on_step_begin = on_step_end = _consume_sync_metrics = _nothing
        _shutdown_dump_executor = _nothing

    Stepping.__abstractmethods__ = frozenset()
    trainer = Stepping.__new__(Stepping)
    trainer.config = settings
    trainer.checkpoint_callback = build_checkpoint_callback(settings)
    trainer.use_critic, trainer.trainer_mode = False, "sync"
    trainer.actor_rollout_wg, trainer.train_dataloader = Workers(), Loader()
    trainer.global_steps, trainer.steps_per_epoch, trainer.total_training_steps = 0, 100, 10
    trainer.fit(None)
    assert sorted(each.name for each in (tmp_path / "out").glob("global_step_*")) == ["global_step_2", "global_step_4"]
    assert trainer.global_steps == 5
    assert trainer.checkpoint_callback.stopped.sentence == "asks more"
