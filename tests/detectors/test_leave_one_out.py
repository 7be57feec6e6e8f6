"""Limits from reference cycles: known answers, and the rates that were promised."""

from __future__ import annotations

import numpy as np
import pytest

from palomar.detectors.leave_one_out import SHORTEST, beyond, too_many


def test_the_limit_is_the_textbook_prediction_limit() -> None:
    # Mean 10, sd 2 (n - 1), 9 numbers, t(8) at 0.05 = 1.8595: 10 + 1.8595 * 2 * sqrt(1 + 1 / 9) = 13.920.
    others = [10 + 2 * np.sqrt(8 / 6) * sign for sign in (-1, -1, -1, 0, 0, 0, 1, 1, 1)]
    result = beyond(12.0, others, 0.05)
    assert result.limit == pytest.approx(13.920, abs=1e-3)
    assert result.t == pytest.approx(2 / (2 * np.sqrt(10 / 9)))
    assert not result.out
    assert beyond(13.93, others, 0.05).out


def test_one_in_fifty_normal_numbers_is_out_at_that_rate() -> None:
    rng = np.random.default_rng(0)
    runs = rng.standard_normal((4000, 9))
    out = sum(beyond(run[8], run[:8].tolist(), 0.02).out for run in runs)
    assert 55 <= out <= 105  # 80 expected, sd 9


def test_equal_reference_numbers_leave_a_scale_and_no_division_by_zero() -> None:
    assert not beyond(1.0, [1.0] * 8, 0.005).out
    assert beyond(1.1, [1.0] * 8, 0.005).out


def test_counts_have_the_negative_binomial_limit_where_cycles_are_alike() -> None:
    # None in 8 x 500 rows, so Gamma(0.5, 4000); P(K >= 2) = 0.0041 and P(K >= 1) = 0.057 for 500 more.
    result = too_many(2, 500, [0] * 8, [500] * 8, 0.005)
    assert result.smallest == 2
    assert result.out
    assert result.p == pytest.approx(1 - (8 / 9) ** 0.5 * (1 + 0.5 / 9), rel=1e-9)


@pytest.mark.parametrize("spread", [0.0, 0.3])
def test_uneven_cycles_raise_the_limit_of_counts(spread: float) -> None:
    rng = np.random.default_rng(1)
    out = 0
    for _ in range(2000):
        counts = rng.poisson(30 * np.exp(spread * rng.standard_normal(9)))
        out += too_many(int(counts[8]), 500, counts[:8].tolist(), [500] * 8, 0.01).out
    assert out <= 38  # 20 promised; 0 and 27 came when this was written, Poisson's limit alone gives 224 of the latter


def test_more_of_the_same_is_never_less_strange() -> None:
    results = [too_many(count, 300, [1, 0, 2, 0, 1, 0, 0, 3], [300] * 8, 0.005) for count in range(30)]
    assert [result.out for result in results] == sorted(result.out for result in results)
    assert all(result.out == (result.count >= result.smallest) for result in results)


def test_too_short_a_reference_is_refused() -> None:
    with pytest.raises(ValueError, match=f"{SHORTEST} are needed"):
        beyond(1.0, [1.0] * (SHORTEST - 1), 0.005)
    with pytest.raises(ValueError, match=f"{SHORTEST} are needed"):
        too_many(1, 10, [1] * (SHORTEST - 1), [10] * (SHORTEST - 1), 0.005)
