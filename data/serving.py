"""Who answers users, and where users come from: the two sides of a cycle's collect stage.

An *agent* writes text for prompts (`palomar.trainer.policy` is one); a *production* has users, gives their requests to
an agent and returns what happened (`palomar.data.production` simulates one). The cycle knows only these protocols.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from palomar.data.schema import Feedback, Interaction


@dataclass(frozen=True)
class Response:
    """What an agent wrote for one prompt, with what the trainer needs of it."""

    text: str
    """The completion, without the prompt."""
    prompt_ids: tuple[int, ...]
    """Tokens the agent read."""
    token_ids: tuple[int, ...]
    """Tokens it wrote; as many as `logprobs`."""
    logprobs: tuple[float, ...]
    """Log-probability of each written token under the policy that sampled it, natural log."""


class Agent(Protocol):
    """Anything that answers prompts."""

    checkpoint: str
    """Identifier of the policy, recorded on every interaction."""

    def respond(self, prompts: Sequence[str], seed: int) -> list[Response]:
        """One response per prompt, in order; equal arguments give equal responses."""
        ...


@dataclass(frozen=True)
class Served:
    """What a production returns for one cycle."""

    interactions: list[Interaction]
    """In order of their start, `feedback` still empty."""
    feedback: list[tuple[str, Feedback]]
    """(interaction_id, reaction) with its true time, by time. Some lie after the cycle's end: whoever reads them
    must ask what was known at a moment (`as_of`), so that nothing is learnt before a user would have said it."""


class Production(Protocol):
    """Anything that has users."""

    def serve(
        self, agent: Agent, cycle: int, count: int, seed: int, users: Callable[[str], bool] | None = None
    ) -> Served:
        """Gives `count` first requests of a cycle, and what follows from them, to the agent.

        ``users``: of these requests, only those of users of whom this is true.
        """
        ...
