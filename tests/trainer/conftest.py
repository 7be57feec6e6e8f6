"""A tiny policy over a dozen words, and interactions that it served."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest

from palomar.data.observations import OBSERVATIONS
from palomar.data.schema import Interaction, Step
from palomar.trainer.config import PolicyConfig
from palomar.trainer.policy import Policy

WORDS = ("go", "left", "right", "up", "down", "stay", "please", "<end>")
CONFIG = PolicyConfig(max_new_tokens=6, device="cpu", sampling_batch=64)


@pytest.fixture
def policy() -> Policy:
    return Policy.fresh(WORDS, "<end>", 0, CONFIG)


@pytest.fixture
def serve() -> Callable[..., list[Interaction]]:
    """Has a policy answer prompts, and records it as a production would."""
    return _serve


def _serve(policy: Policy, prompts: Sequence[str], *, seed: int = 0, cycle: int = 0) -> list[Interaction]:
    responses = policy.respond(prompts, seed)
    return [
        Interaction(
            interaction_id=f"c{cycle}-{index}",
            source="production",
            origin="test",
            checkpoint=policy.checkpoint,
            cycle=cycle,
            steps=(
                Step(author="person", role="user", text=prompt, token_ids=response.prompt_ids),
                Step(
                    author="agent",
                    role="assistant",
                    text=response.text,
                    token_ids=response.token_ids,
                    logprobs=response.logprobs,
                ),
            ),
        )
        for index, (prompt, response) in enumerate(zip(prompts, responses, strict=True))
    ]


@pytest.fixture
def score() -> Callable[..., pa.Table]:
    """Observations of interactions, with just the columns that the trainer reads."""
    return _score


def _score(interactions: Sequence[Interaction], reward: Callable[[Interaction], float | None]) -> pa.Table:
    rewards = [reward(interaction) for interaction in interactions]
    values = {
        "interaction_id": [interaction.interaction_id for interaction in interactions],
        "reward": rewards,
        "reward_status": ["waiting" if value is None else "valid" for value in rewards],
        "included": [None if value is None else True for value in rewards],
        "exclusion": [None] * len(rewards),
        "group_id": [None] * len(rewards),
        "predicted_failure": [None] * len(rewards),
        "ambiguity": [None] * len(rewards),
    }
    return pa.table({name: pa.array(value, OBSERVATIONS.field(name).type) for name, value in values.items()})
