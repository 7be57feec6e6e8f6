"""How simulated users react: what they keep, what they say, what they answer, and when.

The only simulated part of the production. A user sees the result of the work, not the agent's reward, and minds what a
real one would mind: wrong edits, work not done, questions whose answer was in the request, broken tool calls, and code
cut into pieces. The last is noticed late, by whoever reads the code next, after the half hour in which most reverts of
wrong edits come. Numbers are chances unless a unit is given; docs/production.md lists them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime, timedelta

from palomar.data.production.grammar import Completion
from palomar.data.production.phrases import Mood, answer, remark
from palomar.data.production.requests import Request, second_request
from palomar.data.schema import Feedback

KEEP_RIGHT = 0.95
KEEP_WRONG = 0.15
REVERT_MEAN_MIN = 12.0
FREE_HELPERS = 1
"""Helper functions nobody minds."""
LOSS_PER_HELPER = 0.10
"""Chance per further helper that a kept edit is taken out again when someone reads it."""
LOSS_BY_HELPERS_MAX = 0.70
LATE_AFTER_MIN, LATE_MEAN_MIN = 32.0, 22.0
"""Reactions to the shape of the code: none before, then exponential."""

DISSATISFIED_RIGHT = 0.04
DISSATISFIED_WRONG = 0.55
DISSATISFIED_NOTHING = 0.55
DISSATISFIED_NEEDLESS_QUESTION = 0.40
DISSATISFIED_APT_QUESTION = 0.06
DISSATISFIED_BROKEN_CALL = 0.50
"""Comes on top of the others, independently."""
DISSATISFIED_PER_HELPER = 0.07
"""Per helper beyond the free ones, late."""
SATISFIED_RIGHT = 0.30
SATISFIED_OTHER = 0.02
NEUTRAL = 0.10
REMARK_MEAN_MIN = 7.0
ANSWER_APT = 0.85
ANSWER_NEEDLESS = 0.40
ANSWER_MEAN_MIN = 5.0
LOOKS_MIN = (30.0, 90.0)
"""When the version control is asked whether the edit is still there."""
TEMPERS = (0.7, 1.0, 1.3)
"""Users differ: their readiness to complain is multiplied by one of these, by who they are."""


@dataclass(frozen=True)
class Result:
    """What the user finds when the agent is done."""

    completion: Completion
    applied: bool
    """An edit went in."""
    right: bool
    """It passes every test of what the user meant."""
    path: str


@dataclass(frozen=True)
class Reaction:
    """All that one user will do about one interaction."""

    feedback: tuple[Feedback, ...]
    """With true times, in no order."""
    follow_on: tuple[Request, datetime] | None = None
    """The next request of the conversation and its time, where a question was answered."""


def react(request: Request, result: Result, ended: datetime, rng: random.Random) -> Reaction:
    """The user's reactions to a result they got at `ended`."""
    feedback: list[Feedback] = []
    needless = max(0, (result.completion.patch.helpers if result.completion.patch else 0) - FREE_HELPERS)
    lost = None
    if result.applied:
        lost = _lost_after(result.right, needless, rng)
        feedback += _looks(result.path, ended, lost)
    feedback += _remarks(request, result, needless, ended, rng)
    if result.completion.act != "ask" or request.visible.turn > 0:
        return Reaction(tuple(feedback))
    question = _question(result.completion)
    apt = is_apt(request, question)
    if rng.random() >= (ANSWER_APT if apt else ANSWER_NEEDLESS):
        return Reaction(tuple(feedback))
    at = ended + timedelta(minutes=0.2 + rng.expovariate(1 / ANSWER_MEAN_MIN))
    following = second_request(request, question, rng)
    value = request.hidden.intent if question == "q:meaning" else following.visible.symptoms[0]
    feedback.append(Feedback(kind="answer", at=at, text=answer(question, value, rng)))
    return Reaction(tuple(feedback), (following, at))


def answer_only(request: Request, completion: Completion, ended: datetime, rng: random.Random) -> Reaction:
    """What an evaluation does in the user's place: it answers a first question at once, and says nothing else."""
    if completion.act != "ask" or request.visible.turn > 0:
        return Reaction(())
    return Reaction((), (second_request(request, _question(completion), rng), ended))


def is_apt(request: Request, question: str) -> bool:
    """A question is apt where only the user can know: what is meant, of an ambiguous request."""
    return request.hidden.ambiguous and request.visible.intent is None and question == "q:meaning"


def temper(user_id: str) -> float:
    """Readiness of a user to complain, relative to the average."""
    return random.Random(user_id).choice(TEMPERS)


def _question(completion: Completion) -> str:
    """What was asked; a question in other words is taken as one about the meaning."""
    return "q:place" if "q:place" in (completion.act_text or "") else "q:meaning"


def _lost_after(right: bool, needless: int, rng: random.Random) -> float | None:
    """Minutes until the edit is taken out; None = it stays."""
    early = None
    if rng.random() >= (KEEP_RIGHT if right else KEEP_WRONG):
        early = 0.5 + rng.expovariate(1 / REVERT_MEAN_MIN)
    late = None
    if rng.random() < min(LOSS_BY_HELPERS_MAX, LOSS_PER_HELPER * needless):
        late = LATE_AFTER_MIN + rng.expovariate(1 / LATE_MEAN_MIN)
    return min((minutes for minutes in (early, late) if minutes is not None), default=None)


def _looks(path: str, ended: datetime, lost: float | None) -> list[Feedback]:
    looks = [
        Feedback(kind="kept", author="harness", at=ended + timedelta(minutes=minutes), value=1.0, path=path)
        for minutes in LOOKS_MIN
        if lost is None or minutes < lost
    ]
    if lost is None:
        return looks
    return [*looks, Feedback(kind="reverted", at=ended + timedelta(minutes=lost), path=path)]


def _remarks(request: Request, result: Result, needless: int, ended: datetime, rng: random.Random) -> list[Feedback]:
    """At most one follow-up message: the first complaint that comes up, else praise, else something neutral."""
    scale = temper(request.user_id)
    complaints: list[tuple[Mood, float, float, float]] = []  # mood, chance, earliest and mean further delay in minutes
    if result.completion.broken_calls:
        complaints.append(("broken_call", DISSATISFIED_BROKEN_CALL, 0.2, 3.0))
    if result.completion.act == "ask":
        apt = is_apt(request, _question(result.completion))
        chance = DISSATISFIED_APT_QUESTION if apt else DISSATISFIED_NEEDLESS_QUESTION
        complaints.append(("needless_question", chance, 0.2, 3.0))
    elif result.applied:
        complaints.append(("wrong", DISSATISFIED_RIGHT if result.right else DISSATISFIED_WRONG, 0.5, REMARK_MEAN_MIN))
        complaints.append(("splitting", DISSATISFIED_PER_HELPER * needless, LATE_AFTER_MIN, LATE_MEAN_MIN))
    else:
        complaints.append(("nothing", DISSATISFIED_NOTHING, 0.2, 3.0))
    said: tuple[Mood, float] | None = None
    for mood, chance, earliest, mean in complaints:
        draw, delay = rng.random(), earliest + rng.expovariate(1 / mean)
        if said is None and draw < min(0.95, chance * scale):
            said = mood, delay
    if said is None:
        draw, delay = rng.random(), 0.5 + rng.expovariate(1 / REMARK_MEAN_MIN)
        satisfied = SATISFIED_RIGHT if result.right else SATISFIED_OTHER
        if draw < satisfied + NEUTRAL:
            said = ("satisfied" if draw < satisfied else "neutral"), delay
    if said is None:
        return []
    text = remark(said[0], rng)
    return [Feedback(kind="follow_up", at=ended + timedelta(minutes=said[1]), text=text)]
