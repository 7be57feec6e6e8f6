"""Held-out tasks of the simulated production: bugs that no training request has, tested by running the code.

Knows nothing of rewards and shows nothing to any user. Every policy gets the same tasks for the same seed; a task is
the agent's first turn. Clustered by module.
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
        Metric("solved", "Tasks solved: the edit passes all tests", "share", "up"),
        Metric("tests_pass", "Applied edits that pass all tests", "share", "up"),
        Metric("invalid_call", "Tasks with an invalid tool call", "share", "down"),
        Metric("asked_on_clear", "Clear tasks that ended with a question", "share", "down"),
        Metric("functions_per_edit", "Functions in the file after an edit", "mean", "none"),
    ),
)
def run(agent: Agent, seed: int, n: int) -> list[TaskResult]:
    """One result per task."""
    interactions = _production().evaluate(agent, n, seed)
    return [_result(index, interaction) for index, interaction in enumerate(interactions)]


@cache
def _production() -> SimulatedProduction:
    """One for the life of the process: checkpoints write many of the same patches, and each is tested once."""
    production = SimulatedProduction(ProductionConfig(workers=1))
    atexit.register(production.close)
    return production


def _result(index: int, interaction: Interaction) -> TaskResult:
    steps = [step for step in interaction.steps if step.author == "agent"]
    applied = [edit for step in steps for edit in step.edits if edit.outcome == "applied"]
    passed = interaction.tests_run is not None and interaction.tests_passed == interaction.tests_run
    asked = any(step.is_question for step in steps)
    clear = interaction.ambiguity is not None and interaction.ambiguity < CLEAR_BELOW
    functions = applied[-1].functions_after if applied else None
    return TaskResult(
        task_id=f"task-{index:04d}",
        cluster=interaction.task_id or "",
        metrics={
            "solved": float(passed),
            "tests_pass": float(passed) if applied else None,
            "invalid_call": float(any(call.invalidity for step in steps for call in step.tool_calls)),
            "asked_on_clear": float(asked) if clear else None,
            "functions_per_edit": None if functions is None else float(len(functions)),
        },
    )
