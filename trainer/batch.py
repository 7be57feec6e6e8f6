"""What one update trains on: the sampled tokens of interactions, joined with the advantages of their observations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from palomar.data.lake import Lake
from palomar.data.schema import Interaction
from palomar.reward.charges import BASELINE
from palomar.trainer.advantages import Status, advantages
from palomar.trainer.config import AdvantageConfig


@dataclass(frozen=True)
class Sampled:
    """What a policy sampled in one interaction; nothing else of it is needed to train."""

    interaction_id: str
    checkpoint: str | None
    cycle: int | None
    ids: tuple[int, ...]
    """All its tokens, prompt and answers, in order."""
    logprobs: tuple[float | None, ...]
    """Of each of ``ids``; None = not sampled by the policy."""


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
    sampled: Sequence[Sampled],
    observations: pa.Table,
    cycle: int,
    config: AdvantageConfig,
    baseline_cycles: int = 0,
) -> TrainingBatch:
    """Joins by ``interaction_id``: one sample per observation. `cycle` is the one that trains now.

    Observations may reach back (samples that waited for feedback); those older than ``config.max_lag`` are barred as
    ``stale`` before any baseline is taken, and those of the first ``baseline_cycles``, which are only watched, as
    ``baseline``. Raises KeyError where an observation has no interaction.
    """
    by_id = {item.interaction_id: item for item in sampled}
    ordered = [by_id[interaction_id] for interaction_id in observations["interaction_id"].to_pylist()]
    barred = {
        item.interaction_id: reason
        for item in ordered
        if (reason := _bar(item, cycle, config.max_lag, baseline_cycles)) is not None
    }
    result = advantages(observations, config, barred=barred)
    samples = tuple(
        Sample(
            interaction_id=item.interaction_id,
            checkpoint=item.checkpoint,
            sampled_cycle=item.cycle,
            policy_lag=None if item.cycle is None else cycle - item.cycle,
            ids=item.ids,
            logprobs=item.logprobs,
            reward=reward,
            baseline=result.baseline[row],
            advantage=result.value[row],
            weight=result.weight[row],
            reason=result.reason[row],
        )
        for row, (item, reward) in enumerate(zip(ordered, observations["reward"].to_pylist(), strict=True))
    )
    return TrainingBatch(cycle=cycle, status=result.status, samples=samples, max_lag=config.max_lag)


def sampled_in(interactions: Sequence[Interaction]) -> list[Sampled]:
    """What the policy sampled in each interaction: the tokens of all steps, in order."""
    found = []
    for item in interactions:
        steps = [step for step in item.steps if step.token_ids is not None]
        ids = tuple(token for step in steps for token in step.token_ids or ())
        logprobs = tuple(logprob for step in steps for logprob in step.logprobs or (None,) * len(step.token_ids or ()))
        found.append(Sampled(item.interaction_id, item.checkpoint, item.cycle, ids, logprobs))
    return found


_TOKENS = """
    SELECT interaction_id, checkpoint, cycle,
        flatten(list_transform(said, s -> s.token_ids)) AS ids,
        flatten(list_transform(said, s -> coalesce(s.logprobs, list_transform(s.token_ids, t -> NULL::DOUBLE))))
            AS logprobs
    FROM (
        SELECT interaction_id, checkpoint, cycle, list_filter(steps, s -> s.token_ids IS NOT NULL) AS said
        FROM stored
    ) SEMI JOIN wanted USING (interaction_id)
"""


def sampled_from(lake: Lake, interaction_ids: Sequence[str], cycles: Sequence[int]) -> list[Sampled]:
    """The same of interactions in the lake, without reading their transcripts; those of other cycles are left out."""
    rows = lake.query(
        _TOKENS,
        stored=lake.scan("interactions", ["interaction_id", "checkpoint", "cycle", "steps"], cycles=cycles),
        wanted=pa.table({"interaction_id": pa.array(interaction_ids, pa.string())}),
    )
    return [
        Sampled(row["interaction_id"], row["checkpoint"], row["cycle"], tuple(row["ids"]), tuple(row["logprobs"]))
        for row in rows.to_pylist()
    ]


def _bar(item: Sampled, cycle: int, max_lag: int, baseline_cycles: int) -> str | None:
    """Why a sample cannot be trained on, whatever its reward."""
    if item.cycle is None:
        return "unknown_policy"
    if item.cycle < baseline_cycles:
        return BASELINE
    if cycle - item.cycle > max_lag:
        return "stale"
    if all(logprob is None for logprob in item.logprobs):
        return "no_logprobs"
    # The first token has nothing before it, so that the model cannot say how likely it was.
    return "no_prompt_tokens" if item.logprobs[0] is not None else None
