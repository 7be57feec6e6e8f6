"""Requests of simulated users: what is wrong with their code, and what they say about it.

What a request *shows* (`Visible`) and what is *true* of it (`Hidden`) are two records. Agents, predictions and the
interaction's record get the first; only the user, who looks at the result, knows the second.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, replace
from functools import cache

from palomar.data.production.catalogue import Module, modules
from palomar.data.production.grammar import FILES, ORGANISATIONS, SITES, Visible

EASY, MEDIUM, HARD = 0, 1, 2
WRONG = (2, 3)
"""Candidate expressions that are wrong under either reading."""

DIFFICULTY_CUE_RIGHT = 0.75
AMBIGUITY_CUE_RIGHT = 0.70
SYMPTOM_NOISE = (0.05, 0.60, 0.95)
"""Chance that a symptom says nothing (points to a random site), by difficulty."""
CLEAR_UNSAID = 0.25
"""Share of the clear requests that do not spell out what is meant: the strict reading is the obvious one."""


@dataclass(frozen=True)
class WorkKind:
    """A kind of work: how hard and how ambiguous its requests are."""

    difficulty: tuple[float, float, float]
    """Shares of easy, medium and hard ones."""
    ambiguous: float


WORK = {
    "failing-test": WorkKind((0.48, 0.34, 0.18), 0.12),
    "bug-report": WorkKind((0.28, 0.34, 0.38), 0.30),
    "behaviour-change": WorkKind((0.12, 0.26, 0.62), 0.55),
}


@dataclass(frozen=True)
class Organisation:
    """A customer: its people, and what they work on."""

    users: int
    work: dict[str, float]
    """Share of its requests by kind of work."""
    domain: str
    """Domain of modules that half of its requests are about; the others are about any."""


ORGANISATION = {
    "harbor": Organisation(60, {"failing-test": 0.40, "bug-report": 0.40, "behaviour-change": 0.20}, "logistics"),
    "lumen": Organisation(45, {"failing-test": 0.30, "bug-report": 0.45, "behaviour-change": 0.25}, "devices"),
    "quill": Organisation(35, {"failing-test": 0.20, "bug-report": 0.35, "behaviour-change": 0.45}, "publishing"),
    "ferrous": Organisation(20, {"failing-test": 0.22, "bug-report": 0.50, "behaviour-change": 0.28}, "finance"),
    "orchard": Organisation(40, {"failing-test": 0.06, "bug-report": 0.30, "behaviour-change": 0.64}, "people"),
}


@dataclass(frozen=True)
class Hidden:
    """What is true of a request and stands in no record."""

    difficulty: int
    ambiguous: bool
    """Both readings are plausible; only the user knows which is meant."""
    intent: int
    """0 strict, 1 lenient: the index of the right expression."""
    site: int
    bug: int
    """Index of the wrong expression that stands at `site`."""


@dataclass(frozen=True)
class Request:
    """One request of one user."""

    visible: Visible
    hidden: Hidden
    user_id: str

    @property
    def module(self) -> Module:
        """The module it is about."""
        return modules()[self.visible.module]


@cache
def held_out() -> frozenset[tuple[str, int, int]]:
    """(module, site, bug) that only the evaluation suite uses: one per module, chosen by hash."""
    return frozenset(
        (name, index // 2, WRONG[index % 2])
        for name in modules()
        for index in [int(hashlib.sha256(name.encode()).hexdigest(), 16) % (SITES * 2)]
    )


def draw_request(rng: random.Random, shares: dict[str, float], *, evaluation: bool = False) -> Request:
    """A first request; of a held-out bug if for `evaluation`, else never of one."""
    organisation = rng.choices(list(shares), list(shares.values()))[0]
    profile = ORGANISATION[organisation]
    work_kind = rng.choices(list(profile.work), list(profile.work.values()))[0]
    work = WORK[work_kind]
    own = [module.name for module in modules().values() if module.domain == profile.domain]
    name = rng.choice(own if own and rng.random() < 0.5 else list(modules()))
    bugs = [(site, bug) for site in range(SITES) for bug in WRONG if ((name, site, bug) in held_out()) == evaluation]
    site, bug = rng.choice(bugs)
    difficulty = rng.choices((EASY, MEDIUM, HARD), work.difficulty)[0]
    ambiguous = rng.random() < work.ambiguous
    unsaid = ambiguous or rng.random() < CLEAR_UNSAID
    intent = rng.randrange(2) if ambiguous or not unsaid else 0
    first, second, third = (_cue(rng, difficulty, 3, DIFFICULTY_CUE_RIGHT) for _ in range(3))
    visible = Visible(
        organisation=organisation,
        work_kind=work_kind,
        module=name,
        path=f"src/{rng.choice(FILES)}.py",
        difficulty_cues=(first, second, third),
        ambiguity_cues=(
            _cue(rng, int(ambiguous), 2, AMBIGUITY_CUE_RIGHT),
            _cue(rng, int(ambiguous), 2, AMBIGUITY_CUE_RIGHT),
        ),
        intent=None if unsaid else intent,
        symptoms=_symptoms(rng, site, SYMPTOM_NOISE[difficulty]),
    )
    user_id = f"{organisation}-{rng.randrange(profile.users):02d}"
    return Request(visible, Hidden(difficulty, ambiguous, intent, site, bug), user_id)


def second_request(request: Request, question: str, rng: random.Random) -> Request:
    """The same request after the user answered a question: with what was meant, or with better symptoms."""
    visible = replace(request.visible, turn=request.visible.turn + 1)
    if question == "q:meaning":
        visible = replace(visible, intent=request.hidden.intent)
    else:
        easier = SYMPTOM_NOISE[max(EASY, request.hidden.difficulty - 1)]
        visible = replace(visible, symptoms=_symptoms(rng, request.hidden.site, easier))
    return replace(request, visible=visible)


def any_organisation() -> dict[str, float]:
    """Equal shares of all organisations, those of later customers too: what a base policy should have seen."""
    return dict.fromkeys(ORGANISATIONS, 1.0)


def _cue(rng: random.Random, truth: int, values: int, right: float) -> int:
    """The truth with chance `right`, else one of the other values."""
    if rng.random() < right:
        return truth
    return rng.choice([value for value in range(values) if value != truth])


def _symptoms(rng: random.Random, site: int, noise: float) -> tuple[int, int, int]:
    first, second, third = (rng.randrange(SITES) if rng.random() < noise else site for _ in range(3))
    return first, second, third
