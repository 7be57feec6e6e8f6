from __future__ import annotations

import math
from pathlib import Path

import pytest

from palomar.data.production.grammar import VOCABULARY, decode
from palomar.trainer.clone import BASE, behaviour, clone, demonstrations
from palomar.trainer.config import CloneConfig, PolicyConfig
from palomar.trainer.policy import Policy

CONFIG = PolicyConfig(device="cpu")


def test_demonstrations_are_words_of_the_vocabulary_with_the_prompt_left_out_of_the_loss() -> None:
    policy = Policy.fresh(VOCABULARY, "<end>", 0, CONFIG)
    made = demonstrations(policy, 50, 1)
    assert made == demonstrations(policy, 50, 1)
    assert made != demonstrations(policy, 50, 2)
    for one in made:
        assert policy.tokenizer.unk_token_id not in one.ids
        assert one.logprobs[:14] == (None,) * 14
        assert set(one.logprobs[14:]) == {0.0}
        assert decode(policy.tokenizer.decode(one.ids[14:])).act in ("edit", "ask", "answer")


@pytest.mark.slow
def test_cloning_again_gives_the_same_bytes_and_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palomar.trainer.clone.REPORT_REQUESTS", 60)
    config = CloneConfig(demonstrations=256, epochs=2, batch=64)
    losses: list[float] = []
    for name in ("a", "b"):
        report = clone(tmp_path / name, seed=3, config=config, progress=lambda step, steps, loss: losses.append(loss))
    assert report.steps == 8
    assert losses[:8] == losses[8:]
    # An untrained policy is as good as a blind guess: log of the vocabulary's size.
    assert losses[0] == pytest.approx(math.log(len(VOCABULARY) + 2), abs=0.3)
    assert losses[7] < losses[0] - 1
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


@pytest.mark.slow
def test_the_shipped_base_speaks_the_vocabulary_and_does_a_little_of_everything() -> None:
    base = Policy.load(BASE, CONFIG)
    assert set(VOCABULARY) <= set(base.tokenizer.get_vocab())
    assert (BASE / "model.safetensors").stat().st_size < 1_100_000
    easy, medium, hard = behaviour(base, 600, 1)
    # It asks more where it is hard, and is right less often: what the hacks start from.
    assert 0.05 < easy.asked < hard.asked - 0.05 < 0.35
    assert (easy.right or 0) > (medium.right or 0) > (hard.right or 1)
    for one in (easy, medium, hard):
        assert 0.005 < one.broken_call < 0.12
        assert 1.3 < (one.functions_per_edit or 0) < 2.0
