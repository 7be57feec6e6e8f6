"""A run tells of its decisions as it makes them, and of what happened while it stood still, each once."""

from __future__ import annotations

from pathlib import Path

import pytest

from palomar.app.loop import open_loop, run_to
from palomar.app.settings import Settings, SimulatedSource
from palomar.data.production.config import ProductionConfig
from palomar.trainer.config import EvaluationConfig, GateConfig
from tests.app.notify.conftest import Receiver


@pytest.mark.slow
def test_a_run_tells_of_each_decision_once_whatever_the_receiver_does(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_URL", receiver.url)
    settings = Settings(
        name="told",
        seed=5,
        baseline_cycles=0,
        source=SimulatedSource(kind="simulated", requests=48, production=ProductionConfig(workers=1)),
        evaluation=EvaluationConfig(tasks=32),
        gate=GateConfig(min_tasks=5, alpha=1e-9),
        checks="none",
    )
    channel = {"kind": "webhook", "name": "hook", "url_env": "HOOK_URL"}
    telling = Settings.model_validate({**settings.model_dump(), "notify": [channel]})
    with open_loop(settings, tmp_path) as loop:
        run_to(loop, 1)  # nobody is told yet
    receiver.answers = [404, 200]
    with open_loop(telling, tmp_path) as loop:
        run_to(loop, 3)  # the first message is given up, and costs the run nothing
        assert [each.state for each in loop.store.messages.read("told")] == ["given_up", "sent"]
        candidates = [each.candidate for each in loop.store.decisions.latest("told", count=9)]
    assert [body["decision"]["candidate"] for body in receiver.bodies()] == candidates[1::-1]
    with open_loop(telling, tmp_path) as loop:
        champion = loop.store.checkpoints.champion("told")
        before = loop.store.checkpoints.read("told")[-2].checkpoint_id
        assert champion is not None
        name = champion.checkpoint.checkpoint_id
        loop.store.checkpoints.roll_back("told", name, to=before, since_cycle=3, reason="by hand", actor="ada")
    assert len(receiver.got) == 2
    with open_loop(telling, tmp_path):
        pass
    assert [body["event"] for body in receiver.bodies()[2:]] == ["rollback"]
