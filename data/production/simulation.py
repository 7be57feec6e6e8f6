"""The simulated production as a whole: requests in, the agent's work done, users' reactions out.

Everything is a function of the config, the seed, the cycle and what the agent wrote, so a cycle that died can be served
again and comes out the same. Ids are made of seed, cycle and position.

A record holds what a real log would: the prompt, the completion with its tokens, calls, edits, test results and,
through `Served.feedback`, what the user did. What is true of a request (`Hidden`) stays here. Reactions carry true
times, also those after the end of the cycle; `palomar.data.facts` counts only those up to its `as_of`, so an outcome
arrives when a user would have given it.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self

from palomar.data.production.config import ProductionConfig
from palomar.data.production.expectation import ambiguity, predicted_failure
from palomar.data.production.grammar import Completion, decode, render
from palomar.data.production.requests import Request, any_organisation, draw_request
from palomar.data.production.users import Reaction, Result, answer_only, react
from palomar.data.production.workbench import Work, Workbench
from palomar.data.schema import Cohort, Feedback, Interaction, Step, Traffic
from palomar.data.serving import Agent, Response, Served

LATENCY_BASE_S = 1.2
LATENCY_PER_WORD_S = 0.15
LATENCY_PER_CALL_S = 0.8
LATENCY_TESTS_S = 1.5
LATENCY_SPREAD = 0.2
"""Standard deviation of the logarithm of a factor on the whole."""


@dataclass(frozen=True)
class _Asked:
    """A request with its place in the cycle."""

    request: Request
    conversation: str
    started: datetime

    @property
    def interaction_id(self) -> str:
        return f"{self.conversation}-t{self.request.visible.turn}"

    def rng(self, purpose: str) -> random.Random:
        """Randomness of this interaction alone, so that no other agent output can shift it."""
        return random.Random(f"{self.interaction_id}/{purpose}")


class SimulatedProduction:
    """Implements `palomar.data.serving.Production`. Holds worker processes; `close` it, or use it in a `with`."""

    def __init__(self, config: ProductionConfig | None = None) -> None:
        self.config = ProductionConfig() if config is None else config
        self._workbench = Workbench(self.config.workers)

    def close(self) -> None:
        """Ends the worker processes."""
        self._workbench.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def serve(
        self,
        agent: Agent,
        cycle: int,
        count: int,
        seed: int,
        users: Callable[[str], bool] | None = None,
        *,
        only: Collection[int] | None = None,
    ) -> Served:
        """`count` requests of a cycle and the second turns they lead to, answered by the agent.

        ``users``: only requests of users of whom this is true, out of the same `count`: others are someone else's to
        answer (an arm of an experiment).
        ``only``: of the requests those at some positions, each as if all had been served.
        """
        start, length = self.cycle_start(cycle), timedelta(hours=self.config.cycle_hours)
        shares = self.config.shares(cycle)
        asked = []
        for index in range(count) if only is None else sorted(only):
            conversation = f"sim-{seed}-c{cycle:06d}-{index:05d}"
            request = draw_request(random.Random(f"{conversation}/request"), shares)
            if users is None or users(request.user_id):
                asked.append(_Asked(request, conversation, start + length * (index / count)))
        interactions: list[Interaction] = []
        feedback: list[tuple[str, Feedback]] = []
        turn = 0
        while asked:
            following = []
            answered = self._answer(agent, asked, cycle, seed=_batch_seed(seed, cycle, turn))
            for item, (interaction, reaction) in zip(asked, answered, strict=True):
                interactions.append(interaction)
                feedback += [(interaction.interaction_id, event) for event in reaction.feedback]
                if reaction.follow_on is not None:
                    request, at = reaction.follow_on
                    following.append(replace(item, request=request, started=at))
            asked = following
            turn += 1
        interactions.sort(key=lambda item: (item.started_at, item.interaction_id))
        feedback.sort(key=lambda pair: (pair[1].at, pair[0]))
        return Served(interactions, feedback)

    def evaluate(self, agent: Agent, count: int, seed: int) -> list[Interaction]:
        """`count` held-out requests, tested but shown to no user; organisations in equal shares.

        Nobody is there to wait for, so a question is answered at once and the agent goes on: first all first turns, in
        the requests' order, then the second ones.
        """
        asked = []
        for index in range(count):
            conversation = f"eval-{seed}-{agent.checkpoint}-{index:05d}"
            # Not of the checkpoint: every policy gets the same requests.
            rng = random.Random(f"eval-{seed}-{index}/request")
            asked.append(
                _Asked(draw_request(rng, any_organisation(), evaluation=True), conversation, self.config.start)
            )
        interactions: list[Interaction] = []
        turn = 0
        while asked:
            answered = self._answer(agent, asked, None, seed=_batch_seed(seed, -1, turn), traffic="evaluation")
            interactions += [interaction for interaction, _ in answered]
            asked = [
                replace(item, request=reaction.follow_on[0], started=reaction.follow_on[1])
                for item, (_, reaction) in zip(asked, answered, strict=True)
                if reaction.follow_on is not None
            ]
            turn += 1
        return interactions

    def cycle_start(self, cycle: int) -> datetime:
        """When a cycle starts on the simulated clock; it ends when the next one starts."""
        return self.config.start + timedelta(hours=self.config.cycle_hours) * cycle

    def _answer(
        self, agent: Agent, asked: Sequence[_Asked], cycle: int | None, *, seed: int, traffic: Traffic = "production"
    ) -> list[tuple[Interaction, Reaction]]:
        prompts = [render(item.request.visible) for item in asked]
        responses = agent.respond(prompts, seed)
        completions = [decode(response.text) for response in responses]
        tools_down = 0.0 if cycle is None else self.config.outage(cycle, "tools")
        tests_down = 0.0 if cycle is None else self.config.outage(cycle, "tests")
        works = self._workbench.do(
            [
                (item.request, completion, item.rng("tools").random() < tools_down)
                for item, completion in zip(asked, completions, strict=True)
            ]
        )
        answered = []
        for item, prompt, response, completion, work in zip(asked, prompts, responses, completions, works, strict=True):
            rng = item.rng("user")
            latency = _latency_s(response, completion, work, rng)
            ended = item.started + timedelta(seconds=latency)
            tested = work.tests_run is not None and item.rng("tests").random() >= tests_down
            interaction = Interaction(
                interaction_id=item.interaction_id,
                source="production",
                origin=f"seed {seed}" if cycle is None else item.conversation.rsplit("-", 2)[0],
                conversation_id=item.conversation,
                turn=item.request.visible.turn,
                task_id=item.request.visible.module,
                user_id=item.request.user_id,
                checkpoint=agent.checkpoint,
                cycle=cycle,
                cohort=Cohort(
                    organisation=item.request.visible.organisation,
                    work_kind=item.request.visible.work_kind,
                    language="python",
                ),
                traffic=traffic,
                predicted_failure=predicted_failure(item.request.visible),
                ambiguity=ambiguity(item.request.visible),
                started_at=item.started,
                ended_at=ended,
                latency_s=latency,
                tokens_in=len(response.prompt_ids) or None,
                tokens_out=len(response.token_ids) or None,
                stop_reason="length" if completion.truncated else completion.act,
                tests_passed=work.tests_passed if tested else None,
                tests_run=work.tests_run if tested else None,
                steps=_steps(item, prompt, response, completion, work, ended=ended, checkpoint=agent.checkpoint),
            )
            if traffic == "production":
                result = Result(completion, work.tests_run is not None, work.right, item.request.visible.path)
                reaction = react(item.request, result, ended, rng)
            else:
                reaction = answer_only(item.request, completion, ended, item.rng("answer"))
            answered.append((interaction, reaction))
        return answered


def _steps(
    item: _Asked,
    prompt: str,
    response: Response,
    completion: Completion,
    work: Work,
    *,
    ended: datetime,
    checkpoint: str,
) -> tuple[Step, ...]:
    steps = [
        Step(
            author="person",
            role="user",
            text=prompt,
            at=item.started,
            token_ids=response.prompt_ids or None,
        ),
        Step(
            author="agent",
            role="assistant",
            text=response.text,
            tool_calls=work.calls,
            edits=() if work.edit is None else (work.edit,),
            is_question=completion.act == "ask",
            at=ended,
            model=checkpoint,
            truncated=completion.truncated,
            tokens_in=len(response.prompt_ids) or None,
            tokens_out=len(response.token_ids) or None,
            token_ids=response.token_ids or None,
            logprobs=response.logprobs or None,
        ),
    ]
    if work.refusal is not None:
        steps.append(Step(author="harness", role="user", text=work.refusal, at=ended))
    return tuple(steps)


def _latency_s(response: Response, completion: Completion, work: Work, rng: random.Random) -> float:
    seconds = LATENCY_BASE_S + LATENCY_PER_WORD_S * len(response.text.split())
    seconds += LATENCY_PER_CALL_S * len(completion.calls) + LATENCY_TESTS_S * (work.tests_run is not None)
    return round(seconds * rng.lognormvariate(0.0, LATENCY_SPREAD), 3)


def _batch_seed(seed: int, cycle: int, turn: int) -> int:
    """Seed for the agent's sampling of one batch."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{cycle}/{turn}".encode()).digest()[:4])
