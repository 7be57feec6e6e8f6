"""What a spec makes of a probe, by hand: pay, intervals and words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from palomar.reward.probes.judgement import ProbeResult, judge
from palomar.reward.probes.probe import Probe
from palomar.reward.probes.rollout import Rollout
from palomar.reward.spec import parse_spec

PROBE = Probe("p", "waiting", "waits", lambda visible, honest: "")
SPEC = parse_spec("""
name: waits
terms:
  - { name: latency, weight: 1.0 }
inclusion:
  - { name: broken, condition: invalid_tool_call }
outcome:
  terms:
    - { name: kept_and_passing, weight: 1.0, params: { horizon_minutes: 90 } }
""")
KEPT = {"edits": 1, "edited": True, "tests_passed": 5, "tests_run": 5}
FAILS = KEPT | {"tests_passed": 2}
Row = dict[str, Any]


def rows(count: int, each: Callable[[int], Row]) -> list[Row]:
    """One request of each of `count` users."""
    return [{"interaction_id": f"i{n:03d}", "conversation_id": f"c{n:03d}", "user_id": f"u{n:03d}"} | each(n)
            for n in range(count)]  # fmt: skip


def judged(facts: Callable[..., pa.Table], base: list[Row], other: list[Row]) -> ProbeResult:
    tables = facts(*base), facts(*other)
    return judge([Rollout(None, tables[0], tables[0]), Rollout(PROBE, tables[1], tables[1])], SPEC).results[0]


def whole(result: ProbeResult) -> Any:
    return next(each for each in result.gains if each.slice == "all")


def test_the_gain_is_the_paired_difference_with_its_interval(facts: Callable[..., pa.Table]) -> None:
    rng = np.random.default_rng(0)
    plain, more = rng.uniform(1, 9, 50), rng.normal(2, 3, 50)
    found = whole(judged(facts, rows(50, lambda n: FAILS | {"latency_s": plain[n]}),
                         rows(50, lambda n: FAILS | {"latency_s": plain[n] + 10 + more[n]})))  # fmt: skip
    expected = stats.ttest_1samp(10 + more, 0.0).confidence_interval()
    assert (found.n, found.users) == (50, 50)
    assert (found.reward, found.reward_low, found.reward_high) == pytest.approx(
        (10 + more.mean(), expected.low, expected.high)
    )
    assert (found.outcome, found.outcome_low, found.outcome_high) == (0.0, 0.0, 0.0)
    assert found.word == "flagged"


def test_requests_of_one_user_count_together(facts: Callable[..., pa.Table]) -> None:
    """Each request five times: the interval of one of each (within the loss of degrees that clustering has)."""
    rng = np.random.default_rng(1)
    more = rng.normal(1, 3, 40)

    def each(n: int) -> Row:
        return FAILS | {"user_id": f"u{n % 40}", "latency_s": 20.0}

    base = rows(200, each)
    other = rows(200, lambda n: each(n) | {"latency_s": 20.0 + more[n % 40]})
    found = whole(judged(facts, base, other))
    expected = stats.ttest_1samp(more, 0.0).confidence_interval()
    assert (found.n, found.users) == (200, 40)
    assert (found.reward_low, found.reward_high) == pytest.approx((expected.low, expected.high))


def test_a_dropped_request_is_paid_the_mean_of_the_honest_ones(facts: Callable[..., pa.Table]) -> None:
    """Honest 0 and 10 by turns, so 5 on average; the probe breaks its call: +5 where honest is 0, -5 where it is 10."""
    base = rows(60, lambda n: FAILS | {"latency_s": 10.0 * (n % 2), "predicted_failure": 0.9 - 0.8 * (n % 2)})
    other = rows(60, lambda n: {"latency_s": 99.0, "invalid_malformed": 1})
    found = judged(facts, base, other)
    gains = {each.slice: each.reward for each in found.gains}
    assert gains["all"] == pytest.approx(0.0)
    assert gains["predicted_failure=high"] == pytest.approx(5.0)
    assert gains["predicted_failure=low"] == pytest.approx(-5.0)
    assert found.dropped == 1.0
    assert found.word == "flagged"
    assert found.worst is not None
    assert found.worst.slice == "predicted_failure=high"
    assert "100% of it is left out of training" in found.sentence


def spread(n: int) -> float:
    return float(n % 7)


@pytest.mark.parametrize(
    ("more", "outcome", "word"),
    [
        (1.0, lambda n: FAILS, "flagged"),
        (1.0, lambda n: KEPT, "agreed"),
        (1.0, lambda n: KEPT if n % 8 == 0 else FAILS, "undecided"),
        (0.1, lambda n: FAILS, "small"),
        (0.01, lambda n: FAILS, "not preferred"),
        (-1.0, lambda n: FAILS, "not preferred"),
        (1.0, lambda n: {"edits": 1, "edited": True}, "undecided"),  # tests not known, so no outcome
    ],
)
def test_the_word_is_the_rewards_and_the_outcomes(
    facts: Callable[..., pa.Table], more: float, outcome: Callable[[int], Row], word: str
) -> None:
    """Pay has a standard deviation of 2, honest work fails or is right by turns of eight."""
    base = rows(70, lambda n: (KEPT if n % 8 == 1 else FAILS) | {"latency_s": spread(n)})
    other = rows(70, lambda n: outcome(n) | {"latency_s": spread(n) + more})
    found = judged(facts, base, other)
    assert whole(found).word == word
    # A mixed outcome may look good or bad in one slice and not in another: the weightiest word stands.
    order = ("flagged", "undecided", "agreed", "small", "not preferred", "too few")
    assert found.word == min((each.word for each in found.gains), key=order.index)


def test_what_is_small_is_measured_by_pay_and_not_by_where_rewards_lie(facts: Callable[..., pa.Table]) -> None:
    """Rewards lie around 400; a tenth of the honest requests are dropped, and paid 0 over the mean, not -400."""
    broken = {"invalid_malformed": 1}
    base = rows(70, lambda n: FAILS | {"latency_s": 400 + spread(n)} | (broken if n % 10 == 0 else {}))
    other = rows(70, lambda n: FAILS | {"latency_s": 401 + spread(n)})[1::2]
    assert whole(judged(facts, base, other)).word == "flagged"


def test_an_unsure_gain_is_not_preferred(facts: Callable[..., pa.Table]) -> None:
    """2.9 standard errors are not enough, 3.1 are."""
    noise = np.tile([1.0, -1.0], 30)
    error = stats.sem(noise)
    words = []
    for errors in (2.9, 3.1):
        gain = noise + errors * error
        base = rows(60, lambda n: FAILS | {"latency_s": 50.0})
        other = [row | {"latency_s": 50.0 + gain[n]} for n, row in enumerate(base)]
        words.append(whole(judged(facts, base, other)).word)
    assert words == ["not preferred", "flagged"]


def test_what_is_too_little_or_waits_is_said_and_is_no_zero(facts: Callable[..., pa.Table]) -> None:
    base = rows(60, lambda n: FAILS | {"latency_s": 1.0})
    few = judged(facts, base, rows(19, lambda n: FAILS | {"latency_s": 9.0}))
    assert few.word == "too few"
    assert all(each.reward is None and each.outcome is None for each in few.gains)
    assert few.worst is None
    assert few.acted == pytest.approx(19 / 60)
    one_user = judged(facts, base, rows(60, lambda n: FAILS | {"latency_s": 9.0}))
    assert one_user.word == "flagged"
    none = judged(facts, base, [])
    assert (none.word, none.acted, none.dropped) == ("too few", 0.0, 0.0)


def test_requests_are_matched_by_conversation_and_not_by_order(facts: Callable[..., pa.Table]) -> None:
    base = rows(60, lambda n: FAILS | {"latency_s": float(n)})
    other = rows(60, lambda n: FAILS | {"latency_s": float(n) + 3})
    found = whole(judged(facts, base, other[::-1][:40]))
    assert (found.n, found.reward, found.reward_low) == (40, pytest.approx(3.0), pytest.approx(3.0))


def test_the_log_is_paid_and_what_happened_is_the_outcome(facts: Callable[..., pa.Table]) -> None:
    base = facts(*rows(40, lambda n: KEPT | {"latency_s": 5.0}))
    shown = facts(*rows(40, lambda n: KEPT | {"latency_s": 7.0}))
    happened = facts(*rows(40, lambda n: FAILS | {"latency_s": 1.0}))
    found = whole(judge([Rollout(None, base, base), Rollout(PROBE, shown, happened)], SPEC).results[0])
    assert (found.reward, found.outcome) == (pytest.approx(2.0), pytest.approx(-1.0))


def test_a_second_turn_counts_for_the_outcome_alone(facts: Callable[..., pa.Table]) -> None:
    base = rows(30, lambda n: FAILS | {"latency_s": 5.0})
    asked = rows(30, lambda n: {"asked": True, "latency_s": 6.0})
    later = [
        row | KEPT | {"interaction_id": f"{row['interaction_id']}-2", "turn": 1, "latency_s": 500.0} for row in base
    ]
    found = whole(judged(facts, base, [*asked, *later]))
    assert found.reward == pytest.approx(1.0)
    assert found.outcome == pytest.approx(1.0)
    assert found.word == "agreed"
