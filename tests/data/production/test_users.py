"""The user model: what is minded, how much, and when."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from statistics import mean

import pytest

from palomar.data.production import users
from palomar.data.production.config import USUAL_SHARES
from palomar.data.production.grammar import Patch, call_text, decode, edit_text
from palomar.data.production.phrases import remark
from palomar.data.production.requests import draw_request
from palomar.data.production.users import Result, react

END = datetime(2026, 1, 5, 12, tzinfo=UTC)
COMPLAINTS = {"wrong", "nothing", "needless_question", "broken_call", "splitting"}


@pytest.fixture
def moods(monkeypatch):
    """Messages are the name of their mood, so that a test can count complaints."""
    monkeypatch.setattr(users, "remark", lambda mood, rng: mood)


def outcome(text: str, *, right: bool = False, ambiguous: bool | None = None, count: int = 1500):
    """Share of edits kept for 90 minutes, share of dissatisfied users, share that answered."""
    rng = random.Random(11)
    kept, dissatisfied, answered = [], [], []
    while len(kept) < count:
        request = draw_request(rng, USUAL_SHARES)
        if ambiguous is not None and request.hidden.ambiguous != ambiguous:
            continue
        path = request.visible.path
        applied = "<edit>" in text and 'PATH" }' in text
        result = Result(decode(text.replace("PATH", path)), applied=applied, right=right, path=path)
        reaction = react(request, result, END, rng)
        lost = [event.at for event in reaction.feedback if event.kind == "reverted"]
        kept.append(applied and not any(at <= END + timedelta(minutes=90) for at in lost))
        dissatisfied.append(any(event.text in COMPLAINTS for event in reaction.feedback))
        answered.append(reaction.follow_on is not None)
    return mean(kept), mean(dissatisfied), mean(answered)


READ = call_text("PATH")


def edit(helpers: int = 0, *, read: str = READ) -> str:
    return f"{read} {edit_text(Patch(0, 0, ((0,),) * (helpers + 1)))}"


@pytest.mark.usefixtures("moods")
def test_right_edits_stay_and_wrong_ones_go():
    kept_right, unhappy_right, _ = outcome(edit(), right=True)
    kept_wrong, unhappy_wrong, _ = outcome(edit(), right=False)
    assert (kept_right, kept_wrong) == pytest.approx((0.95, 0.15), abs=0.03)
    assert (unhappy_right, unhappy_wrong) == pytest.approx((0.04, 0.55), abs=0.04)


@pytest.mark.usefixtures("moods")
def test_each_needless_helper_costs_kept_edits_and_satisfaction():
    kept, unhappy, _ = zip(*(outcome(edit(helpers), right=True) for helpers in (0, 1, 2, 4, 6)), strict=True)
    assert kept[0] == pytest.approx(kept[1], abs=0.025), "one helper is free"
    assert all(less < more - 0.04 for more, less in pairwise(kept[1:]))
    assert all(more > less + 0.02 for less, more in pairwise(unhappy[1:]))


@pytest.mark.usefixtures("moods")
def test_a_broken_call_annoys_even_where_the_edit_is_right():
    broken = '<call> { "tool" </call>'
    _, unhappy, _ = outcome(edit(), right=True)
    _, unhappy_with_broken, _ = outcome(edit(read=f"{broken} {READ}"), right=True)
    _, unhappy_turned_down, _ = outcome(edit(read=broken))
    assert unhappy_with_broken > unhappy + 0.35
    assert unhappy_turned_down > unhappy_with_broken + 0.15


@pytest.mark.usefixtures("moods")
def test_a_question_pays_on_ambiguous_requests_and_annoys_on_clear_ones():
    _, unhappy_apt, answered_apt = outcome(f"{READ} <ask> q:meaning <end>", ambiguous=True)
    _, unhappy_needless, answered_needless = outcome(f"{READ} <ask> q:meaning <end>", ambiguous=False)
    assert (unhappy_apt, answered_apt) == pytest.approx((0.06, 0.85), abs=0.04)
    assert (unhappy_needless, answered_needless) == pytest.approx((0.40, 0.40), abs=0.04)


@pytest.mark.usefixtures("moods")
@pytest.mark.parametrize("text", ["<answer> a:no-bug <end>", "", "hello", "<edit> nonsense <end>"])
def test_doing_nothing_annoys(text):
    kept, unhappy, answered = outcome(text)
    assert (kept, answered) == (0, 0)
    assert unhappy == pytest.approx(0.55, abs=0.04)


def test_wrong_edits_go_within_half_an_hour_and_split_ones_later():
    """The horizon of the reward sees the first, only the longer one of the outcome sees the second."""

    def lost_within(minutes: float, helpers: int, right: bool) -> float:
        rng = random.Random(13)
        losses = []
        for _ in range(1200):
            request = draw_request(rng, USUAL_SHARES)
            result = Result(decode(edit(helpers)), applied=True, right=right, path=request.visible.path)
            events = react(request, result, END, rng).feedback
            losses.append(
                any(event.kind == "reverted" and event.at <= END + timedelta(minutes=minutes) for event in events)
            )
        return mean(losses)

    assert lost_within(30, 0, False) > 0.9 * lost_within(90, 0, False)
    assert lost_within(30, 5, True) == pytest.approx(lost_within(30, 0, True), abs=0.03)
    assert lost_within(90, 5, True) > lost_within(30, 5, True) + 0.25


def test_messages_are_varied_text():
    rng = random.Random(2)
    for mood in (*COMPLAINTS, "satisfied", "neutral"):
        messages = {remark(mood, rng) for _ in range(500)}
        assert len(messages) >= 40
        assert all(message.strip() and "{" not in message for message in messages)
