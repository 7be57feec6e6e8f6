"""Makes the base policy again: behaviour cloning on the simulated production's demonstrations.

The weights in ``trainer/base/`` are what ``clone(seed=0)`` gives. Cross-entropy on the demonstrations' words, AdamW
with a linear warm-up and a cosine to zero; one thread, so that a second run on a machine gives the same bytes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from palomar.data.production.demonstrations import demonstration
from palomar.data.production.grammar import DIFFICULTIES, QUESTIONS, VOCABULARY, Completion, decode, render
from palomar.data.production.requests import Request, any_organisation, draw_request, second_request
from palomar.data.production.workbench import Work, Workbench
from palomar.trainer.config import CloneConfig, PolicyConfig
from palomar.trainer.hf import torch
from palomar.trainer.policy import Policy
from palomar.trainer.tensors import log_softmax, micro_batches, target_logp, to_tensors

BASE = Path(__file__).with_name("base")
"""The shipped base policy."""

END = "<end>"
SECOND_TURNS = 0.15
"""Share of demonstrations that answer a request whose question the user has answered."""
REPORT_REQUESTS = 3000
MICRO_BATCH = 64


@dataclass(frozen=True)
class Behaviour:
    """What a policy does on first requests of one difficulty, held-out bugs only. Shares lie in 0..1."""

    difficulty: str
    """``easy``, ``medium`` or ``hard``, as only the simulation knows it."""
    requests: int
    asked: float
    """Share of requests that it answered with a question."""
    broken_call: float
    """Share with an invalid tool call."""
    edited: float
    """Share with an applied edit."""
    right: float | None
    """Share of applied edits that pass all tests; None without any."""
    functions_per_edit: float | None
    """Functions in the file after an applied edit, mean."""


@dataclass(frozen=True)
class CloneReport:
    """What came of cloning."""

    demonstrations: int
    steps: int
    loss: float
    """Of the last step, nats a token."""
    behaviour: tuple[Behaviour, ...]


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


def clone(
    out: Path,
    *,
    seed: int,
    config: CloneConfig | None = None,
    progress: Callable[[int, int, float], None] | None = None,
) -> CloneReport:
    """Trains a base policy and saves it in `out`; `progress` is told step, steps and loss (nats a token)."""
    config = config or CloneConfig()
    policy = Policy.fresh(VOCABULARY, END, seed, PolicyConfig(device="cpu"))
    data = demonstrations(policy, config.demonstrations, seed)
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=config.learning_rate, betas=(0.9, 0.98))
    steps = config.epochs * math.ceil(len(data) / config.batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, steps))
    generator = torch.Generator().manual_seed(seed)
    policy.model.train()
    step, loss = 0, math.inf
    for _ in range(config.epochs):
        order = torch.randperm(len(data), generator=generator).tolist()
        for start in range(0, len(order), config.batch):
            optimizer.zero_grad()
            loss = _accumulate(policy, [data[index] for index in order[start : start + config.batch]])
            torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            step += 1
            if progress:
                progress(step, steps, loss)
    policy.model.eval()
    out.mkdir(parents=True, exist_ok=True)
    policy.save(out)
    return CloneReport(len(data), steps, loss, behaviour(policy, REPORT_REQUESTS, seed))


def behaviour(policy: Policy, count: int, seed: int) -> tuple[Behaviour, ...]:
    """What a policy does on `count` first requests with held-out bugs, by difficulty."""
    rng = random.Random(seed)
    requests = [draw_request(rng, any_organisation(), evaluation=True) for _ in range(count)]
    completions = [decode(response.text) for response in policy.respond([render(r.visible) for r in requests], seed)]
    with closing(Workbench(workers=1)) as bench:
        works = bench.do([(request, done, False) for request, done in zip(requests, completions, strict=True)])
    rows = list(zip(requests, completions, works, strict=True))
    return tuple(
        _behaviour(name, [row for row in rows if row[0].hidden.difficulty == index])
        for index, name in enumerate(DIFFICULTIES)
    )


def _behaviour(difficulty: str, rows: Sequence[tuple[Request, Completion, Work]]) -> Behaviour:
    applied = [work for _, _, work in rows if work.edit is not None and work.edit.outcome == "applied"]
    functions = [len(work.edit.functions_after) for work in applied if work.edit and work.edit.functions_after]
    return Behaviour(
        difficulty=difficulty,
        requests=len(rows),
        asked=sum(done.act == "ask" for _, done, _ in rows) / len(rows),
        broken_call=sum(any(call.invalidity for call in work.calls) for _, _, work in rows) / len(rows),
        edited=len(applied) / len(rows),
        right=sum(work.right for work in applied) / len(applied) if applied else None,
        functions_per_edit=sum(functions) / len(functions) if functions else None,
    )


def _accumulate(policy: Policy, batch: Sequence[Demonstration]) -> float:
    """Adds the gradient of the mean loss over a batch's words; the loss, in nats a token."""
    words = sum(logprob is not None for item in batch for logprob in item.logprobs)
    total = 0.0
    for micro in micro_batches(batch, MICRO_BATCH):
        tokens = to_tensors(micro, policy.pad_id, policy.device)
        loss = -(target_logp(log_softmax(policy.model, tokens), tokens) * tokens.mask).sum() / words
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    return total


def _rate(step: int, steps: int) -> float:
    """Learning rate relative to its peak: up over the first 5 %, then along a cosine to 0."""
    warm = max(1, steps // 20)
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))
