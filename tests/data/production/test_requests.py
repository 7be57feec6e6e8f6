"""Requests: the mixes they are drawn from, and what they let one expect."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from statistics import mean

import pytest

from palomar.data.production.config import USUAL_SHARES
from palomar.data.production.demonstrations import demonstration
from palomar.data.production.expectation import ambiguity, predicted_failure
from palomar.data.production.grammar import MODULES, ORGANISATIONS, WORK_KINDS, decode
from palomar.data.production.requests import (
    ORGANISATION,
    WORK,
    any_organisation,
    draw_request,
    held_out,
    second_request,
)


@pytest.fixture(scope="module")
def many():
    rng = random.Random(5)
    return [draw_request(rng, USUAL_SHARES) for _ in range(10_000)]


def test_difficulties_come_in_the_mix_that_the_trial_needed(many):
    shares = Counter(request.hidden.difficulty for request in many)
    assert [shares[level] / len(many) for level in range(3)] == pytest.approx([0.29, 0.32, 0.39], abs=0.02)


def test_organisations_differ_in_work_modules_and_users(many):
    assert set(ORGANISATION) == set(ORGANISATIONS)
    assert set(WORK) == set(WORK_KINDS)
    hard, modules_of, users = defaultdict(list), defaultdict(Counter), defaultdict(set)
    for request in many:
        organisation = request.visible.organisation
        hard[organisation].append(request.hidden.difficulty == 2)
        modules_of[organisation][request.visible.module] += 1
        users[organisation].add(request.user_id)
    assert len(hard) == 4
    assert mean(hard["quill"]) - mean(hard["harbor"]) > 0.08
    assert all(set(counts) == set(MODULES) for counts in modules_of.values())
    assert len({max(counts, key=counts.get) for counts in modules_of.values()}) == 4
    assert 40 <= sum(map(len, users.values())) <= 200
    assert not set.intersection(*users.values())


def test_bugs_of_the_evaluation_suite_never_come_up_elsewhere(many):
    def key(request):
        return request.visible.module, request.hidden.site, request.hidden.bug

    assert not {key(request) for request in many} & held_out()
    rng = random.Random(6)
    suite = {key(draw_request(rng, any_organisation(), evaluation=True)) for _ in range(2000)}
    assert suite == held_out()


def test_predicted_failure_and_ambiguity_are_calibrated(many):
    failure, vague = defaultdict(list), defaultdict(list)
    for request in many:
        visible, hidden = request.visible, request.hidden
        site = max(range(3), key=visible.symptoms.count)
        failed = (site, visible.intent or 0) != (hidden.site, hidden.intent)
        failure[int(predicted_failure(visible) * 8)].append((predicted_failure(visible), failed))
        vague[int(ambiguity(visible) * 8)].append((ambiguity(visible), hidden.ambiguous))
    for bins in (failure, vague):
        assert len(bins) >= 5
        for pairs in bins.values():
            if len(pairs) >= 300:
                assert mean(p for p, _ in pairs) == pytest.approx(mean(truth for _, truth in pairs), abs=0.06)


def test_an_edit_is_a_losing_bet_on_over_half_of_the_requests(many):
    """Kept +1, reverted -1.5, as the trial paid: else no reward could make deferral pay."""
    losing = 0
    for request in many:
        right = 1 - predicted_failure(request.visible)
        losing += right * (0.95 - 0.05 * 1.5) + (1 - right) * (0.15 - 0.85 * 1.5) < 0
    assert 0.5 < losing / len(many) < 0.75


def test_the_teacher_is_as_good_as_the_trials_base(many):
    rng = random.Random(7)
    right, asked, broken, functions = defaultdict(list), defaultdict(list), [], []
    for request in many:
        hidden = request.hidden
        completion = decode(demonstration(request.visible, rng))
        asked[hidden.difficulty].append(completion.act == "ask")
        broken.append(completion.broken_calls > 0)
        if completion.patch is not None:
            right[hidden.difficulty].append(
                (completion.patch.site, completion.patch.choice) == (hidden.site, hidden.intent)
            )
            functions.append(1 + completion.patch.helpers)
    assert [mean(right[level]) for level in range(3)] == pytest.approx([0.82, 0.53, 0.29], abs=0.04)
    assert [mean(asked[level]) for level in range(3)] == pytest.approx([0.11, 0.12, 0.25], abs=0.03)
    # More often than the trial's (.025), so that every seed has some to learn from.
    assert mean(broken) == pytest.approx(0.04, abs=0.008)
    assert mean(functions) == pytest.approx(1.6, abs=0.1)


def test_an_answer_makes_the_second_request_easier(many):
    rng = random.Random(8)
    unsaid = [request for request in many if request.visible.intent is None]
    told = [second_request(request, "q:meaning", rng) for request in unsaid]
    assert all(request.visible.intent == request.hidden.intent and request.visible.turn == 1 for request in told)
    hard = [request for request in many if request.hidden.difficulty == 2]
    shown = [second_request(request, "q:place", rng) for request in hard]

    def pointing(requests):
        return mean(request.visible.symptoms.count(request.hidden.site) / 3 for request in requests)

    assert pointing(shown) - pointing(hard) > 0.15
