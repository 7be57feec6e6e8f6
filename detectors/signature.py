"""Signatures: known hacks, recognised in one interaction by what the agent wrote and called.

A signature is one file in ``detectors/signatures`` that registers a function with its examples::

    @signature("early-exit", examples=EXAMPLES)
    def early_exit(item: Interaction) -> Verdict: ...

Nothing else needs an edit: the folder is walked, `assess` runs it, the shared suite in ``tests/detectors/signatures``
runs its examples and checks that it is pure and that no text makes it raise. A signature reads code and calls, never
what the agent says about them: comments, docstrings, prose and notes decide nothing.

A verdict is about one interaction and is no proof. How often each is wrong is measured (docs/signatures.md).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from palomar.data.schema import Interaction

Status = Literal["flagged", "clear", "not_assessed"]

FLAG_FROM = 0.5
"""Scores from here on are flagged."""

EXCERPT = 200
"""Characters of an excerpt."""

MAX_EVIDENCE = 10
"""Places kept per verdict, the first in the interaction's order."""


@dataclass(frozen=True)
class Evidence:
    """One place in the interaction that speaks for the verdict."""

    step: int
    """Index into ``Interaction.steps``."""
    path: str | None
    """File that was written; None where the log names none, or for a call."""
    line: int | None
    """1-based line in the text that was logged (of the hunk where only that is known); None for a call."""
    excerpt: str
    """The text itself, cut. As an agent wrote it: show it as text."""


@dataclass(frozen=True)
class Verdict:
    """What one signature says of one interaction."""

    status: Status
    score: float = 0.0
    """From 0 (nothing) to 1 (plain as day); higher is worse. An order, no probability. 0 where not assessed."""
    evidence: tuple[Evidence, ...] = ()
    reason: str = ""
    """Why, in a sentence; for ``not_assessed`` what was missing."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.score <= 1.0:
            raise ValueError(f"score {self.score} is not within 0..1")
        if (self.status == "flagged") != (self.score >= FLAG_FROM):
            raise ValueError(f"{self.status} with score {self.score}")


Judge = Callable[[Interaction], Verdict]
Example = tuple[Interaction, Status]


@dataclass(frozen=True)
class Signature:
    """A registered signature."""

    name: str
    judge: Judge
    examples: tuple[Example, ...]
    """At least one of each status."""
    about: str
    """Its module's docstring: what it flags, the evidence, what it is blind to, the source."""


@dataclass(frozen=True)
class Assessment:
    """One signature's verdict on one interaction."""

    interaction_id: str
    signature: str
    verdict: Verdict


_REGISTRY: dict[str, Signature] = {}


def signature(name: str, *, examples: Sequence[Example]) -> Callable[[Judge], Judge]:
    """Decorator that registers a signature. Raises ValueError for a name that is taken."""

    def register(judge: Judge) -> Judge:
        if name in _REGISTRY:
            raise ValueError(f"two signatures are called {name!r}")
        about = importlib.import_module(judge.__module__).__doc__ or ""
        _REGISTRY[name] = Signature(name, judge, tuple(examples), about)
        return judge

    return register


@cache
def signatures() -> dict[str, Signature]:
    """All signatures by name, in alphabetical order."""
    package = importlib.import_module("palomar.detectors.signatures")
    for module in pkgutil.iter_modules(package.__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"{package.__name__}.{module.name}")
    return dict(sorted(_REGISTRY.items()))


def assess(item: Interaction, names: Iterable[str] | None = None) -> list[Assessment]:
    """Verdicts of all signatures (or of those named) on one interaction. Raises KeyError for an unknown name."""
    known = signatures()
    chosen = list(known) if names is None else list(names)
    return [Assessment(item.interaction_id, name, known[name].judge(item)) for name in chosen]


def found(evidence: Sequence[Evidence], score: float, reason: str, clear: str) -> Verdict:
    """Flagged with `reason` where there is evidence (and the score reaches the bar), else clear with `clear`.

    Evidence below the bar is kept, so that a person sees what was weighed.
    """
    kept = tuple(evidence[:MAX_EVIDENCE])
    if not kept:
        return Verdict("clear", reason=clear)
    return Verdict("flagged" if score >= FLAG_FROM else "clear", score, kept, reason)


def not_assessed(reason: str) -> Verdict:
    """No verdict, and why."""
    return Verdict("not_assessed", reason=reason)


def excerpt(text: str) -> str:
    """One line of at most `EXCERPT` characters."""
    line = " ".join(text[: 4 * EXCERPT].split())
    return line if len(line) <= EXCERPT else line[: EXCERPT - 1] + "…"
