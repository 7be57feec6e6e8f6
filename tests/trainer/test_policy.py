from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from palomar.data.errors import CheckpointError
from palomar.trainer.config import PolicyConfig
from palomar.trainer.hf import torch, transformers
from palomar.trainer.policy import Policy

CONFIG = PolicyConfig(max_new_tokens=6, device="cpu", sampling_batch=64)
PROMPTS = ["go left please", "stay", "up up down please go", "right"] * 5


def test_equal_prompts_and_seed_give_equal_answers_and_another_seed_others(policy: Policy) -> None:
    assert policy.respond(PROMPTS, 3) == policy.respond(PROMPTS, 3)
    assert policy.respond(PROMPTS, 3) != policy.respond(PROMPTS, 4)


def test_sampling_leaves_the_global_random_state_alone(policy: Policy) -> None:
    before = torch.random.get_rng_state()
    policy.respond(PROMPTS, 3)
    assert torch.equal(before, torch.random.get_rng_state())


def with_learned_positions(policy: Policy) -> Policy:
    """The same words in a GPT-2, where a token's place matters and not only the distance between two."""
    end = policy.tokenizer.convert_tokens_to_ids("<end>")
    shape = transformers.GPT2Config(
        vocab_size=len(policy.tokenizer), n_positions=32, n_embd=16, n_layer=2, n_head=2, eos_token_id=end,
        initializer_range=0.5, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return replace(policy, model=transformers.GPT2LMHeadModel(shape).eval())


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_stored_logprobs_are_those_of_the_model_on_the_whole_sequence(policy: Policy, kind: str) -> None:
    policy = policy if kind == "llama" else with_learned_positions(policy)
    # Prompts of different lengths share a batch, and answers end at different times: padding must not show.
    for response in policy.respond(PROMPTS, 0):
        ids = torch.tensor([[*response.prompt_ids, *response.token_ids]])
        with torch.no_grad():
            logp = torch.log_softmax(policy.model(input_ids=ids).logits[0], dim=-1)
        start = len(response.prompt_ids)
        expected = [float(logp[start + place - 1, token]) for place, token in enumerate(response.token_ids)]
        assert response.logprobs == pytest.approx(expected, abs=2e-5)


def test_answers_are_drawn_from_the_models_own_distribution(policy: Policy) -> None:
    n = 4000
    first = Counter(response.token_ids[0] for response in policy.respond(["go left"] * n, 0))
    ids = torch.tensor([policy.encode("go left")])
    with torch.no_grad():
        expected = torch.softmax(policy.model(input_ids=ids).logits[0, -1], dim=-1).tolist()
    for token, share in enumerate(expected):
        assert first[token] / n == pytest.approx(share, abs=5 * math.sqrt(share / n))


def test_an_answer_ends_with_the_end_word_or_at_the_limit(policy: Policy) -> None:
    end = policy.tokenizer.convert_tokens_to_ids("<end>")
    lengths = set()
    for response in policy.respond(PROMPTS * 10, 1):
        assert end not in response.token_ids[:-1]
        assert len(response.token_ids) == CONFIG.max_new_tokens or response.token_ids[-1] == end
        assert len(response.logprobs) == len(response.token_ids)
        lengths.add(len(response.token_ids))
    assert len(lengths) > 2


def test_text_holds_the_words_of_the_tokens_with_the_end_word(policy: Policy) -> None:
    # Padding and unknown words have no text.
    answers = (r for r in policy.respond(PROMPTS * 10, 1) if min(r.token_ids) > 1)
    response = next(r for r in answers if r.text.endswith("<end>"))
    assert policy.tokenizer(response.text)["input_ids"] == list(response.token_ids)
    assert policy.encode("go left") == tuple(policy.tokenizer.convert_tokens_to_ids(["go", "left"]))


def test_a_saved_policy_answers_the_same(policy: Policy, tmp_path: Path) -> None:
    policy.save(tmp_path)
    again = Policy.load(tmp_path, CONFIG)
    assert again.respond(PROMPTS, 5) == policy.respond(PROMPTS, 5)
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".safetensors"}


def test_a_fresh_policy_is_the_documented_size_and_follows_its_seed() -> None:
    words = [f"w{index}" for index in range(107)]
    policy = Policy.fresh([*words, "<end>"], "<end>", 1, CONFIG)
    assert sum(parameter.numel() for parameter in policy.model.parameters()) == pytest.approx(230_000, rel=0.05)
    other = Policy.fresh([*words, "<end>"], "<end>", 2, CONFIG)
    assert not torch.equal(policy.model.lm_head.weight, other.model.lm_head.weight)


def test_a_chat_template_is_used_where_the_tokenizer_has_one(policy: Policy) -> None:
    policy.tokenizer.chat_template = "please {{ messages[0]['content'] }}{% if add_generation_prompt %} go{% endif %}"
    assert policy.encode("left") == tuple(policy.tokenizer.convert_tokens_to_ids(["please", "left", "go"]))


def test_pickled_weights_are_refused(policy: Policy, tmp_path: Path) -> None:
    policy.save(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(policy.model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="never loaded"):
        Policy.load(tmp_path, CONFIG)


def test_damaged_weights_are_a_checkpoint_error(policy: Policy, tmp_path: Path) -> None:
    policy.save(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        Policy.load(tmp_path, CONFIG)


@pytest.mark.parametrize("path", ["nowhere", "package:no_such_package", "package:json", "model.gguf"])
def test_a_model_that_is_not_there_is_named(path: str) -> None:
    with pytest.raises(CheckpointError, match=path):
        Policy.load(path, CONFIG)


def test_code_that_comes_with_a_model_is_not_run(policy: Policy, tmp_path: Path) -> None:
    policy.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine", "AutoModelForCausalLM": "mine.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(CheckpointError):
        Policy.load(tmp_path, CONFIG)
    assert not (tmp_path / "ran").exists()


def test_a_prompt_that_does_not_fit_is_refused(policy: Policy) -> None:
    with pytest.raises(ValueError, match="exceed 256"):
        policy.respond(["go " * 251], 0)


def test_the_end_word_must_be_a_word() -> None:
    with pytest.raises(ValueError, match="not one of the words"):
        Policy.fresh(["go"], "<end>", 0, CONFIG)


def test_settings_out_of_range_or_unknown_are_refused() -> None:
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        PolicyConfig(threads=0)
    with pytest.raises(ValueError, match="unexpected_keyword"):
        PolicyConfig(temperature=0.5)  # type: ignore[call-arg]


@pytest.mark.slow
def test_the_trainer_sets_the_offline_switch_before_transformers_is_imported_and_its_settings_need_neither() -> None:
    code = (
        "import sys, palomar.trainer.config as c;"
        "assert not {'torch', 'transformers'} & set(sys.modules);"
        "from palomar.trainer.hf import transformers;"
        "from huggingface_hub import constants; assert constants.HF_HUB_OFFLINE"
    )
    environment = {key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
