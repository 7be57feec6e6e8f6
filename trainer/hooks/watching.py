"""What a trainer shall do about what the gate decided, the same on every rank.

watch = Watch([DecisionFile("decision.json", run_id="demo")], candidates=["c12"])
for step in range(steps):
    train_one_step()
    deed = watch.look(step)
    if deed.save:
        save()
    if deed.stop:
        break
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal, get_args

from palomar.trainer.hooks.decisions import Reading, Source
from palomar.trainer.hooks.ranks import agreed

_LOG = logging.getLogger("palomar.hooks")

Action = Literal["go_on", "save", "stop", "save_and_stop"]


@dataclass(frozen=True)
class Actions:
    """What to do about each verdict. Unknown is done as hold: it is never done as promote."""

    on_block: Action = "stop"
    on_hold: Action = "go_on"
    on_promote: Action = "go_on"

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) not in get_args(Action):
                raise ValueError(f"{field.name}: expected one of {', '.join(get_args(Action))}")

    def of(self, reading: Reading) -> Action:
        """What to do."""
        by_word: Mapping[str, Action] = {"block": self.on_block, "promote": self.on_promote}
        return by_word.get(reading.word, self.on_hold)


@dataclass(frozen=True)
class Deed:
    """What to do now."""

    stop: bool
    save: bool
    """Once for each thing that was read anew."""
    reading: Reading


class Watch:
    """Looks for decisions about what is trained here.

    ``sources`` are asked in turn until one knows something. ``candidates``: ids of the checkpoints that this training
    has in hand: the one that it started from, and each that it saved (`also`). A block of any of them is a block, since
    what is trained goes back to it; else the last one counts.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        candidates: Sequence[str],
        actions: Actions | None = None,
        *,
        every_steps: int = 1,
    ) -> None:
        if not sources or not candidates:
            raise ValueError("a watch needs a source and the candidate that is trained")
        if every_steps < 1:
            raise ValueError(f"every_steps: expected 1 or more, got {every_steps}")
        self._sources = tuple(sources)
        self._candidates = list(candidates)
        self._actions = actions or Actions()
        self._every_steps = every_steps
        self._done: tuple[object, ...] | None = None
        self.last: Reading | None = None
        """What was read last."""

    def also(self, candidate: str) -> None:
        """A checkpoint that this training saved."""
        if candidate not in self._candidates:
            self._candidates.append(candidate)

    def look(self, step: int) -> Deed:
        """What to do after this step, on every rank the same; all ranks must call it, with the same step."""
        if step % self._every_steps and self.last is not None:
            return Deed(stop=False, save=False, reading=self.last)
        deed = agreed(self._look)
        self.last = deed.reading
        return deed

    def wait(self, candidate: str, *, timeout_s: float, poll_s: float = 10.0) -> Reading:
        """Waits until something is known of the candidate, on every rank; then or at the end what is known of it.

        A hold is waited out too: it may become something else until the time is over.
        """
        return agreed(lambda: self._waited(candidate, timeout_s, poll_s))

    def _waited(self, candidate: str, timeout_s: float, poll_s: float) -> Reading:
        until = time.monotonic() + timeout_s
        while True:
            found = self._of(candidate)
            left = until - time.monotonic()
            if found.word in ("promote", "block") or left <= 0:
                return found
            time.sleep(min(poll_s, left))

    def _look(self) -> Deed:
        found = [self._of(candidate) for candidate in self._candidates]
        reading = next((each for each in found if each.word == "block"), found[-1])
        action = self._actions.of(reading)
        told = (reading.word, reading.why, reading.candidate, reading.decision_id)
        new, self._done = told != self._done, told
        if new:
            _LOG.log(
                logging.INFO if action == "go_on" else logging.WARNING,
                "gate: %s of %s%s -> %s: %s",
                reading.word,
                reading.candidate,
                f" ({reading.why})" if reading.why else "",
                action,
                reading.sentence,
            )
        return Deed(stop=action in ("stop", "save_and_stop"), save=new and action.startswith("save"), reading=reading)

    def _of(self, candidate: str) -> Reading:
        found: Reading | None = None
        for source in self._sources:
            said = source.read(candidate)
            if said.word != "unknown":
                return said
            found = found or said
        assert found is not None
        return found
