"""Incentive curves: estimates against known truth, coverage by simulation, and what is flagged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from palomar.reward.behaviours import Logged
from palomar.reward.incentives import COMPARED, Estimate, Incentives, doubly_robust, effective_pay, incentives
from palomar.reward.replay import pay
from palomar.reward.scoring import score
from palomar.reward.spec import bundled, bundled_text, parse_spec


def confounded(seed: int, rows: int = 700) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float]:
    """Value, who shows it, features, users, and the true mean difference: it is shown where the value is low anyway."""
    rng = np.random.default_rng(seed)
    user = rng.integers(0, 140, rows)
    x = rng.random(rows)
    shown = rng.random(rows) < 0.1 + 0.6 * x
    gain = 0.5 - x
    value = -3 * x**2 + gain * shown + rng.normal(size=140)[user] * 0.3 + rng.normal(size=rows) * 0.5
    return value, shown, np.column_stack([x, np.zeros(rows)]), user, 0.0  # E[gain] over x uniform


def interval(influence: np.ndarray, user: np.ndarray) -> tuple[float, float]:
    count = len(np.unique(user))
    sums = np.bincount(user, weights=influence - influence.mean())
    error = np.sqrt(count / (count - 1) * (sums**2).sum()) / len(influence)
    reach = stats.t.ppf(0.975, count - 1) * error
    return influence.mean() - reach, influence.mean() + reach


@pytest.mark.slow
def test_intervals_hold_the_truth_where_the_plain_difference_does_not() -> None:
    held, naive = [], []
    for seed in range(120):
        value, shown, features, user, truth = confounded(seed)
        low, high = interval(doubly_robust(value, shown, features, user), user)
        held.append(low <= truth <= high)
        naive.append(value[shown].mean() - value[~shown].mean())
    # 95 % of 120 is 114 +- 2.4.
    assert 107 <= sum(held) <= 120
    assert np.mean(naive) < -0.5


def test_a_known_difference_is_found_and_twice_the_value_is_twice_the_incentive() -> None:
    value, shown, features, user, truth = confounded(1, 4000)
    influence = doubly_robust(value, shown, features, user)
    assert influence.mean() == pytest.approx(truth, abs=0.06)
    assert doubly_robust(2 * value + 1, shown, features, user) == pytest.approx(2 * influence, abs=1e-6)
    upper = features[:, 0] > 0.5
    assert influence[upper].mean() == pytest.approx(-0.25, abs=0.08)
    assert influence[~upper].mean() == pytest.approx(0.25, abs=0.08)


def world(facts: Callable[..., pa.Table], name: str, seed: int = 3, rows: int = 4000) -> Incentives:
    """Requests of 500 users, half hard, under one of the bundled rewards: 12 % broken calls, 20 % questions, a third of
    the edits split."""
    rng = np.random.default_rng(seed)
    listed = []
    for _ in range(rows):
        hard, vague, draw = rng.random() < 0.5, rng.random() < 0.5, rng.random()
        row: dict[str, Any] = {
            "user_id": f"u{rng.integers(500)}",
            "predicted_failure": float(np.clip((0.8 if hard else 0.2) + rng.normal() * 0.05, 0, 1)),
            "ambiguity": float(np.clip((0.8 if vague else 0.2) + rng.normal() * 0.05, 0, 1)),
            "latency_s": 10.0,
        }
        annoyed = 0.4
        if draw < 0.12:
            row |= {"invalid_malformed": 1}
            annoyed = 0.7
        elif draw < 0.32:
            row |= {"asked": True}
            annoyed = 0.0 if vague else 0.7
        else:
            right, split = rng.random() < (0.3 if hard else 0.8), rng.random() < 1 / 3
            row |= {
                "edits": 1, "edited": True, "functions_before": 1, "functions_after": 3 if split else 1,
                "function_lines_before": 12, "function_lines_after": 15 if split else 12, "complexity_before": 4,
                "complexity_after": 6 if split else 4, "lines_added": 2, "lines_removed": 1, "tests_run": 5,
                "tests_passed": 5 if right else 2, "edit_lost_s": None if right else 300.0,
            }  # fmt: skip
            annoyed = 0.05 + 0.25 * split + 0.3 * (not right)
        if rng.random() < annoyed:
            row |= {"follow_up": "dissatisfied", "follow_up_s": 100.0}
        listed.append(row)
    spec = bundled(name)
    return incentives(Logged.of(score(facts(*listed), spec)), spec)


def at(found: Incentives, behaviour: str, failure: str, ambiguity: str) -> Estimate:
    return next(
        each
        for each in found.estimates
        if (each.behaviour, each.predicted_failure, each.ambiguity) == (behaviour, failure, ambiguity)
    )


def test_the_naive_reward_is_flagged_for_all_three_holes(facts: Callable[..., pa.Table]) -> None:
    found = world(facts, "naive")
    # In this world whoever breaks a call does not edit, so it shows as an answer too.
    assert {flag.behaviour for flag in found.flags} == {"question", "broken call", "split", "answer"}
    assert {flag.check for flag in found.flags} == {"against users", "never flips", "selective rule"}
    # A broken call escapes: 0 against an edit that is mostly reverted.
    broken = at(found, "broken call", "high", "clear")
    assert broken.reward_low is not None
    assert broken.reward_low > 0
    easy = at(found, "broken call", "low", "clear")
    assert easy.reward_high is not None
    assert easy.reward_high < 0


def test_the_sound_reward_on_the_same_rows_is_not(facts: Callable[..., pa.Table]) -> None:
    found = world(facts, "sound")
    assert found.flags == ()
    question = at(found, "question", "high", "vague")
    assert question.reward is not None
    assert question.reward > 0  # honest: where the request is vague asking is worth it
    clear = at(found, "question", "high", "clear")
    assert clear.reward is not None
    assert clear.reward < 0


def test_what_hardly_occurs_is_not_assessed_and_nothing_is_zero(facts: Callable[..., pa.Table]) -> None:
    found = world(facts, "sound", rows=600)
    assert dict(found.unassessed)["timed out"].startswith("0 rows show it")
    assert {each.behaviour for each in found.estimates} == set(COMPARED)
    thin = [each for each in found.estimates if each.status != "ok"]
    assert thin
    assert all(each.reward is None and each.reward_z is None for each in thin)
    empty = incentives(Logged.of(score(facts(), bundled("sound"))), bundled("sound"))
    assert (empty.assessed, empty.flags, len(empty.unassessed)) == (0, (), len(COMPARED))


def test_a_dropped_row_is_paid_the_mean(facts: Callable[..., pa.Table]) -> None:
    text = bundled_text("naive")
    rows = [{"latency_s": 10.0}, {"latency_s": 50.0}, {"latency_s": 30.0, "invalid_malformed": 1}]
    logged = Logged.of(score(facts(*rows), parse_spec(text)))
    found = effective_pay(pay(logged, parse_spec(text)), logged.cycle)
    assert found == pytest.approx([0.2, -0.2, 0.0])
