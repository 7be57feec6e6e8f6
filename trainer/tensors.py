"""Sequences of tokens, some of them sampled by the policy, as tensors, and what the model says of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from palomar.trainer.hf import torch

Tensor = torch.Tensor


class Tokenised(Protocol):
    """A sequence with the log-probability of each token that the policy sampled, None for all others."""

    @property
    def ids(self) -> Sequence[int]: ...  # noqa: D102

    @property
    def logprobs(self) -> Sequence[float | None]: ...  # noqa: D102


Item = TypeVar("Item", bound=Tokenised)


def micro_batches(items: Sequence[Item], size: int) -> Iterator[list[Item]]:
    """Items of like length together, so that little of a micro-batch is padding."""
    by_length = sorted(items, key=lambda item: len(item.ids))
    for start in range(0, len(by_length), size):
        yield by_length[start : start + size]


@dataclass(frozen=True)
class Tokens:
    """A micro-batch as tensors. N sequences, L tokens of the longest, K places from the first sampled one on."""

    ids: Tensor  # (N, L), padded on the right: causal attention never looks there
    targets: Tensor  # (N, K): the token that each of the last K places predicts
    sampler_logp: Tensor  # (N, K): its log-probability when it was sampled, 0 elsewhere
    mask: Tensor  # (N, K): 1 where the policy sampled it


def to_tensors(items: Sequence[Tokenised], pad_id: int, device: Any) -> Tokens:
    """A micro-batch on `device`. Each sequence needs a sampled token, and one before it."""
    longest = max(len(item.ids) for item in items)
    ids = torch.full((len(items), longest), pad_id)
    logp = torch.full((len(items), longest), math.nan)
    for row, item in enumerate(items):
        ids[row, : len(item.ids)] = torch.tensor(item.ids)
        logp[row, : len(item.ids)] = torch.tensor(
            [math.nan if value is None else value for value in item.logprobs], dtype=torch.float32
        )
    mask = ~logp.isnan()
    # Only from the token before the first sampled one on is a prediction needed: for a real model's vocabulary the
    # logits of the prompt would be most of the memory.
    first = int(mask.any(0).nonzero()[0])
    ids, logp, mask = ids.to(device), logp.nan_to_num(0.0).to(device), mask.to(device)
    return Tokens(ids, ids[:, first:], logp[:, first:], mask[:, first:].float())


def log_softmax(model: Any, tokens: Tokens) -> Tensor:
    """Log-probabilities of every word at the K places: (N, K, V)."""
    keep = tokens.targets.shape[1] + 1
    logits = model(input_ids=tokens.ids, use_cache=False, logits_to_keep=keep).logits
    return torch.log_softmax(logits[:, :-1].float(), dim=-1)


def target_logp(logp: Tensor, tokens: Tokens) -> Tensor:
    """Log-probability of the K target tokens: (N, K)."""
    return logp.gather(2, tokens.targets[..., None])[..., 0]
