"""Makes the base policy again: behaviour cloning on the simulated production's demonstrations.

The weights in ``trainer/base/`` are what ``clone(seed=0)`` gives. Cross-entropy on the demonstrations' words, AdamW
with a linear warm-up and a cosine to zero; one thread, so that a second run on a machine gives the same bytes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from palomar.data.production.demonstrations import demonstration
from palomar.data.production.grammar import QUESTIONS, VOCABULARY, render
from palomar.data.production.requests import any_organisation, draw_request, second_request
from palomar.trainer.config import CloneConfig, PolicyConfig
from palomar.trainer.hf import torch
from palomar.trainer.policy import Policy
from palomar.trainer.tensors import log_softmax, micro_batches, target_logp, to_tensors

BASE = Path(__file__).with_name("base")
"""The shipped base policy."""

END = "<end>"


@dataclass(frozen=True)
class Demonstration:
    """A prompt and the words that the teacher answers it with."""

    ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    """0 where the teacher wrote the token, None in the prompt: what `palomar.trainer.tensors` masks by."""


def demonstrations(policy: Policy, count: int, seed: int) -> list[Demonstration]:
    """Demonstrations for requests of all organisations, first and second turns, never of a held-out bug."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        request = draw_request(rng, any_organisation())
        if rng.random() < SECOND_TURNS:
            request = second_request(request, rng.choice(QUESTIONS), rng)
        prompt = policy.encode(render(request.visible))
        words = tuple(policy.tokenizer(demonstration(request.visible, rng))["input_ids"])
        made.append(Demonstration(prompt + words, (None,) * len(prompt) + (0.0,) * len(words)))
    return made


SECOND_TURNS = 0.15
"""Share of demonstrations that answer a request whose question the user has answered."""


def clone(
    out: Path, *, seed: int, config: CloneConfig, progress: Callable[[int, int, float], None] | None = None
) -> Policy:
    """Trains a base policy and saves it in `out`; `progress` is told step, steps and loss (nats a token)."""
    policy = Policy.fresh(VOCABULARY, END, seed, PolicyConfig(device="cpu"))
    data = demonstrations(policy, config.demonstrations, seed)
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=config.learning_rate, betas=(0.9, 0.98))
    steps = config.epochs * math.ceil(len(data) / config.batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, steps))
    generator = torch.Generator().manual_seed(seed)
    policy.model.train()
    step = 0
    for _ in range(config.epochs):
        order = torch.randperm(len(data), generator=generator).tolist()
        for start in range(0, len(order), config.batch):
            batch = [data[index] for index in order[start : start + config.batch]]
            words = sum(logprob is not None for item in batch for logprob in item.logprobs)
            optimizer.zero_grad()
            total = 0.0
            for micro in micro_batches(batch, 64):
                tokens = to_tensors(micro, policy.pad_id, policy.device)
                loss = -(target_logp(log_softmax(policy.model, tokens), tokens) * tokens.mask).sum() / words
                loss.backward()  # type: ignore[no-untyped-call]
                total += loss.item()
            torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            step += 1
            if progress:
                progress(step, steps, total)
    policy.model.eval()
    out.mkdir(parents=True, exist_ok=True)
    policy.save(out)
    return policy


def _rate(step: int, steps: int) -> float:
    """Learning rate relative to its peak: up over the first 5 %, then along a cosine to 0."""
    warm = max(1, steps // 20)
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))
