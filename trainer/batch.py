"""What one update trains on: the sampled tokens of interactions, joined with the advantages of their observations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from palomar.data.schema import Interaction
from palomar.trainer.advantages import Status, advantages
from palomar.trainer.config import AdvantageConfig


@dataclass(frozen=True)
class Sample:
    """One interaction offered to the trainer. Not known is None; what does not count has weight 0 and a reason."""

    interaction_id: str
    checkpoint: str | None
    """Policy that sampled it."""
    sampled_cycle: int | None
    policy_lag: int | None
    """Cycles between the sampling and this update."""
    ids: tuple[int, ...]
    """All its tokens, prompt and answers, in order."""
    logprobs: tuple[float | None, ...]
    """Of each of ``ids`` when it was sampled; None = not sampled by the policy (prompt, tool output)."""
    reward: float | None
    baseline: float | None
    advantage: float | None
    weight: float
    reason: str | None

    @property
    def sampled_tokens(self) -> int:
        """How many of its tokens the policy sampled."""
        return sum(logprob is not None for logprob in self.logprobs)


@dataclass(frozen=True)
class TrainingBatch:
    """All samples offered in a cycle, trained on or not, in the order of the observations."""

    cycle: int
    status: Status
    """``ok``, or why there is nothing to train on."""
    samples: tuple[Sample, ...]
    max_lag: int

    @property
    def trained(self) -> list[Sample]:
        """The samples that count."""
        return [sample for sample in self.samples if sample.weight > 0]


def build_batch(
    interactions: Sequence[Interaction],
    observations: pa.Table,
    cycle: int,
    config: AdvantageConfig,
) -> TrainingBatch:
    """Joins by ``interaction_id``: one sample per observation. `cycle` is the one that trains now.

    Observations may reach back (samples that waited for feedback); those older than ``config.max_lag`` are barred as
    ``stale`` before any baseline is taken. Raises KeyError where an observation has no interaction.
    """
    by_id = {interaction.interaction_id: interaction for interaction in interactions}
    ordered = [by_id[interaction_id] for interaction_id in observations["interaction_id"].to_pylist()]
    tokens = [sampled_tokens(interaction) for interaction in ordered]
    barred = {
        interaction.interaction_id: reason
        for interaction, (_, logprobs) in zip(ordered, tokens, strict=True)
        if (reason := _bar(interaction, logprobs, cycle, config.max_lag)) is not None
    }
    result = advantages(observations, config, barred=barred)
    samples = tuple(
        Sample(
            interaction_id=interaction.interaction_id,
            checkpoint=interaction.checkpoint,
            sampled_cycle=interaction.cycle,
            policy_lag=None if interaction.cycle is None else cycle - interaction.cycle,
            ids=ids,
            logprobs=logprobs,
            reward=reward,
            baseline=result.baseline[row],
            advantage=result.value[row],
            weight=result.weight[row],
            reason=result.reason[row],
        )
        for row, (interaction, (ids, logprobs), reward) in enumerate(
            zip(ordered, tokens, observations["reward"].to_pylist(), strict=True)
        )
    )
    return TrainingBatch(cycle=cycle, status=result.status, samples=samples, max_lag=config.max_lag)


def sampled_tokens(interaction: Interaction) -> tuple[tuple[int, ...], tuple[float | None, ...]]:
    """Token ids of all steps in order, and the log-probability of each that the policy sampled (None for others)."""
    ids: list[int] = []
    logprobs: list[float | None] = []
    for step in interaction.steps:
        if step.token_ids is None:
            continue
        ids.extend(step.token_ids)
        logprobs.extend(step.logprobs if step.logprobs is not None else [None] * len(step.token_ids))
    return tuple(ids), tuple(logprobs)


def _bar(interaction: Interaction, logprobs: Sequence[float | None], cycle: int, max_lag: int) -> str | None:
    """Why a sample cannot be trained on, whatever its reward."""
    if interaction.cycle is None:
        return "unknown_policy"
    if cycle - interaction.cycle > max_lag:
        return "stale"
    if all(logprob is None for logprob in logprobs):
        return "no_logprobs"
    # The first token has nothing before it, so that the model cannot say how likely it was.
    return "no_prompt_tokens" if logprobs[0] is not None else None
