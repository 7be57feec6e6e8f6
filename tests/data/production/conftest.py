"""Agents and patches that the tests of the simulated production share."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import pytest

from palomar.data.production.catalogue import Module
from palomar.data.production.demonstrations import demonstration
from palomar.data.production.grammar import Patch, Visible, read_prompt
from palomar.data.production.sandbox import Sandbox
from palomar.data.production.simulation import SimulatedProduction
from palomar.data.serving import Response

Habit = Callable[[Visible, str], str]


class ScriptedAgent:
    """The teacher, with a habit put over what it writes."""

    def __init__(self, habit: Habit = lambda visible, text: text, checkpoint: str = "scripted") -> None:
        self.habit = habit
        self.checkpoint = checkpoint

    def respond(self, prompts: Sequence[str], seed: int) -> list[Response]:
        responses = []
        for index, prompt in enumerate(prompts):
            visible = read_prompt(prompt)
            text = self.habit(visible, demonstration(visible, random.Random(f"{seed}/{index}")))
            count = len(text.split())
            responses.append(Response(text, tuple(range(14)), tuple(range(count)), (-0.5,) * count))
        return responses


@pytest.fixture(scope="session")
def scripted() -> type[ScriptedAgent]:
    return ScriptedAgent


@pytest.fixture(scope="session")
def production() -> Iterator[SimulatedProduction]:
    with SimulatedProduction() as served:
        yield served


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(workers=2) as pool:
        yield pool


def grouped(module: Module, cuts: int, *, empty_first: bool = False) -> Patch:
    """A patch that changes nothing but the grouping: bit i of `cuts` starts a helper before statement i + 1."""
    groups: list[tuple[int, ...]] = [()] if empty_first else []
    groups.append((0,))
    for index in range(1, len(module.statements)):
        if cuts >> (index - 1) & 1:
            groups.append((index,))
        else:
            groups[-1] = (*groups[-1], index)
    return Patch(0, 0, tuple(groups))


@pytest.fixture(scope="session")
def regroup() -> Callable[..., Patch]:
    return grouped
