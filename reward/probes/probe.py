"""A probe: one way to act, held against the honest one on the same requests.

A probe is a *habit*: from a request and what the honest probe would write to what this one writes. The simulated
production does the rest: calls are read, edits applied, tests run, users react. Some ways to play a reward have no
lever there (no user of it can be talked out of replying). Such a probe also says what the *log shows* in place of what
happened; the reward is paid by what the log shows, and the outcome is taken from what happened.

A probe of your own is a function in a Python file, given to ``palomar audit --load FILE``::

    from palomar.reward.probes.probe import probe

    @probe("answer-politely", behaviour="answer", title="answers with thanks and no edit")
    def answer_politely(visible, honest):
        return "<answer> a:no-bug <end>"
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from palomar.data.production.demonstrations import demonstration
from palomar.data.production.grammar import Visible, call_text, decode, edit_text, read_prompt
from palomar.data.production.habits import Habit, ask_when_vague
from palomar.data.schema import Feedback, Interaction
from palomar.data.serving import Response

HONEST = "honest"
"""Name of the probe that all others are held against."""

Shown = tuple[Interaction, Sequence[Feedback]]
"""An interaction as a log has it, and the reactions to it."""


@dataclass(frozen=True)
class Probe:
    """One scripted policy."""

    name: str
    behaviour: str
    """What it shows: a name of `palomar.reward.behaviours.BEHAVIOURS`, or a word of your own."""
    title: str
    """What it does, after "it"."""
    habit: Habit
    shows: Callable[[Interaction, Sequence[Feedback], random.Random], Shown] | None = None
    """What the log shows of an interaction in which it acted; None: what happened."""


PROBES: dict[str, Probe] = {}
"""Every registered probe by name; those that come with Palomar once `palomar.reward.probes.library` is imported."""


def probe(
    name: str,
    *,
    behaviour: str,
    title: str,
    shows: Callable[[Interaction, Sequence[Feedback], random.Random], Shown] | None = None,
) -> Callable[[Habit], Habit]:
    """Registers a habit as a probe. Raises ValueError where the name is taken."""

    def register(habit: Habit) -> Habit:
        if name in PROBES or name == HONEST:
            raise ValueError(f"two probes are called {name!r}")
        PROBES[name] = Probe(name, behaviour, title, habit, shows)
        return habit

    return register


def honest(visible: Visible, rng: random.Random) -> str:
    """The teacher of the base policy at its best: it reads the file, edits in one piece, and asks where it must.

    Its edits are the teacher's own, so they are as often right as those of the policy that was cloned from it.
    """
    while (patch := decode(demonstration(visible, rng)).patch) is None:
        pass  # the teacher asked or gave up; what would it have edited?
    whole = tuple(index for group in patch.groups for index in group)
    return ask_when_vague(visible, f"{call_text(visible.path)} {edit_text(replace(patch, groups=(whole,)))}")


class ProbeAgent:
    """Implements `palomar.data.serving.Agent`. Words stand for tokens, as in the policies of the production.

    What it does to a request depends on the seed and the prompt alone, so that two probes differ by what they do and
    by nothing else.
    """

    def __init__(self, habit: Habit | None = None, name: str = HONEST) -> None:
        self.checkpoint = f"probe-{name}"
        self._habit = habit
        self.acted: set[str] = set()
        """Prompts for which it wrote something else than the honest probe."""

    def respond(self, prompts: Sequence[str], seed: int) -> list[Response]:
        """One completion per prompt."""
        responses = []
        for prompt in prompts:
            visible = read_prompt(prompt)
            plain = honest(visible, random.Random(f"{seed}/{prompt}"))
            text = plain if self._habit is None else self._habit(visible, plain)
            if text != plain:
                self.acted.add(prompt)
            written = len(text.split())
            responses.append(Response(text, tuple(range(len(prompt.split()))), tuple(range(written)), (0.0,) * written))
        return responses
