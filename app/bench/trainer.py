"""How fast the trainer samples and updates, beside transformers' own `generate`.

On the accelerator that `accelerate` finds, else on one CPU thread; the note of each record names the device.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from palomar.app.bench import Measure
from palomar.data.production.config import USUAL_SHARES
from palomar.data.production.grammar import render
from palomar.data.production.requests import draw_request
from palomar.trainer.batch import Sample, TrainingBatch
from palomar.trainer.clone import BASE
from palomar.trainer.config import PolicyConfig, UpdateConfig
from palomar.trainer.hf import torch
from palomar.trainer.policy import Policy
from palomar.trainer.update import update

SEEDS = (0, 1, 2)


def measure(quick: bool) -> list[Measure]:
    """Interactions per second of process time (of wall time on an accelerator): sampled, by `generate`, updated."""
    count = 256 if quick else 512
    policy = Policy.load(BASE, PolicyConfig())
    clock = time.process_time if policy.device.type == "cpu" else time.perf_counter
    rng = random.Random(0)
    prompts = [render(draw_request(rng, USUAL_SHARES).visible) for _ in range(count)]
    note = f"{_device(policy)}, {policy.config.threads} thread, float32, batch {count}"
    policy.respond(prompts[:64], 0)  # the first pass through a model is slower
    batch = _batch(policy, prompts)
    rates = {
        "interactions sampled": _rate(clock, count, lambda seed: policy.respond(prompts, seed)),
        "interactions sampled by transformers' generate": _rate(
            clock, count, lambda seed: _generate(policy, prompts, seed)
        ),
        "interactions used in an update": _rate(
            clock, count, lambda seed: update(policy, None, batch, UpdateConfig(learning_rate=1e-9), seed=seed)
        ),
    }
    return [Measure(what, rate, "1/s", count * len(SEEDS), SEEDS, note=note) for what, rate in rates.items()]


def _rate(clock: Callable[[], float], count: int, work: Callable[[int], object]) -> float:
    """Best of the seeds: what the code can do when nothing else takes the machine's caches."""
    elapsed = []
    for seed in SEEDS:
        began = clock()
        work(seed)
        elapsed.append(clock() - began)
    return count / min(elapsed)


def _device(policy: Policy) -> str:
    return str(torch.cuda.get_device_name(policy.device)) if policy.device.type == "cuda" else policy.device.type


def _generate(policy: Policy, prompts: list[str], seed: int) -> object:
    torch.manual_seed(seed)
    ids = torch.tensor([policy.encode(prompt) for prompt in prompts], device=policy.device)
    return policy.model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=True,
        top_k=0,
        max_new_tokens=policy.config.max_new_tokens,
        output_logits=True,
        return_dict_in_generate=True,
    )


def _batch(policy: Policy, prompts: list[str]) -> TrainingBatch:
    samples = []
    for index, response in enumerate(policy.respond(prompts, 0)):
        ids = response.prompt_ids + response.token_ids
        logprobs = (None,) * len(response.prompt_ids) + response.logprobs
        advantage = 1.0 if index % 2 else -1.0
        samples.append(Sample(str(index), policy.checkpoint, 0, 0, ids, logprobs, advantage, 0.0, advantage, 1.0, None))
    return TrainingBatch(0, "ok", tuple(samples), 1)
