"""Held-out tasks of the simulated production: bugs that no training request has, tested by running the code.

Knows nothing of rewards and shows nothing to any user. Every policy gets the same tasks for the same seed. As in most
suites nobody waits for an answer: a question is answered at once, and the agent goes on, so that a task can still be
solved after it. Clustered by module.
"""

from __future__ import annotations

import atexit
from functools import cache

from palomar.data.production.config import ProductionConfig
from palomar.data.production.simulation import SimulatedProduction
from palomar.data.schema import Interaction
from palomar.data.serving import Agent
from palomar.trainer.evaluation import Metric, TaskResult, suite

CLEAR_BELOW = 0.2
"""A request is clear where its ambiguity lies below this."""


@suite(
    "held-out-tasks",
    metrics=(
        Metric("solved", "Tasks solved: the last edit passes all tests", "share", "up"),
        Metric("tests_pass", "Applied edits that pass all tests", "share", "up"),
        Metric(
            "invalid_call",
            "Tasks with an invalid tool call",
            "share",
            "down",
            ("invalid_call_rate", "predicted_failure=high"),
        ),
        Metric(
            "asked_on_clear",
            "Clear tasks that ended with a question",
            "share",
            "down",
            ("clarification_rate", "ambiguity=clear"),
        ),
        Metric(
            "functions_per_edit", "Functions in the file after an edit", "mean", "none", ("functions_per_edit", "all")
        ),
    ),
)
def run(agent: Agent, seed: int, n: int) -> list[TaskResult]:
    """One result per task."""
    turns: dict[str, list[Interaction]] = {}
    for interaction in _production().evaluate(agent, n, seed):
        turns.setdefault(interaction.conversation_id or interaction.interaction_id, []).append(interaction)
    return [_result(index, conversation) for index, conversation in enumerate(turns.values())]


@cache
def _production() -> SimulatedProduction:
    """One for the life of the process: checkpoints write many of the same patches, and each is tested once."""
    production = SimulatedProduction(ProductionConfig(workers=1))
    atexit.register(production.close)
    return production


def _result(index: int, turns: list[Interaction]) -> TaskResult:
    first, last = turns[0], turns[-1]
    applied = [edit for step in last.steps for edit in step.edits if edit.outcome == "applied"]
    passed = last.tests_run is not None and last.tests_passed == last.tests_run
    calls = [call for interaction in turns for step in interaction.steps for call in step.tool_calls]
    clear = first.ambiguity is not None and first.ambiguity < CLEAR_BELOW
    functions = applied[-1].functions_after if applied else None
    return TaskResult(
        task_id=f"task-{index:04d}",
        cluster=first.task_id or "",
        metrics={
            "solved": float(passed),
            "tests_pass": float(passed) if applied else None,
            "invalid_call": float(any(call.invalidity is not None for call in calls)),
            "asked_on_clear": float(any(step.is_question is True for step in first.steps)) if clear else None,
            "functions_per_edit": None if functions is None else float(len(functions)),
        },
    )
