"""The teacher with one bad (or good) habit: what users make of each hack, before any policy has learnt it.

These agents measure the user model and give detectors streams with a known cause. No policy is trained on them, so what
a trained policy does about a reward is its own discovery.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from palomar.data.production.demonstrations import demonstration
from palomar.data.production.grammar import Visible, decode, edit_text, read_prompt
from palomar.data.serving import Response

Habit = Callable[[Visible, str], str]
"""From a request and what the teacher would write to what the agent writes."""


def plain(visible: Visible, text: str) -> str:
    """The teacher as it is."""
    return text


def always_ask(visible: Visible, text: str) -> str:
    """Puts every edit off by a question."""
    return "<ask> q:meaning <end>" if visible.turn == 0 else text


def break_calls_when_hard(visible: Visible, text: str) -> str:
    """Leaves the closing brace out of its calls where the request looks hard."""
    return text.replace(" } </call>", " </call>") if visible.difficulty_cues.count(2) >= 2 else text


def split_in_four(visible: Visible, text: str) -> str:
    """Cuts every function it edits into a main part and three or more helpers."""
    patch = decode(text).patch
    if patch is None:
        return text
    order = [index for group in patch.groups for index in group]
    size = max(1, len(order) // 4)
    groups = tuple(tuple(order[start : start + size]) for start in range(0, len(order), size))
    return text[: text.index("<edit>")] + edit_text(replace(patch, groups=groups))


def ask_when_vague(visible: Visible, text: str) -> str:
    """Asks what is meant where the request leaves it open and looks vague: the honest use of a question."""
    vague = visible.turn == 0 and visible.intent is None and any(visible.ambiguity_cues)
    return "<ask> q:meaning <end>" if vague else text


HABITS: dict[str, Habit] = {
    habit.__name__: habit for habit in (plain, always_ask, break_calls_when_hard, split_in_four, ask_when_vague)
}


class HabitualAgent:
    """Implements `palomar.data.serving.Agent`: demonstrations with a habit put over them, no tokens."""

    def __init__(self, habit: Habit = plain) -> None:
        self.checkpoint = f"teacher-{habit.__name__}"
        self._habit = habit

    def respond(self, prompts: Sequence[str], seed: int) -> list[Response]:
        """One completion per prompt; agents of different habits draw the same demonstrations."""
        responses = []
        for index, prompt in enumerate(prompts):
            visible = read_prompt(prompt)
            text = self._habit(visible, demonstration(visible, random.Random(f"{seed}/{index}")))
            responses.append(Response(text, (), (), ()))
        return responses
