"""A series that leaves its first level is dated to the cycle; one that does not is left alone."""

from __future__ import annotations

import numpy as np
import pytest

from palomar.data.store.records import Statistic
from palomar.detectors.departure import departures


def series(values: list[float | None], half_width: float = 0.02) -> list[Statistic]:
    return [
        Statistic(
            cycle=cycle,
            slice="all",
            statistic="edit_rate",
            value=value,
            low=None if value is None else value - half_width,
            high=None if value is None else value + half_width,
            n=500 if value is not None else 0,
            status="ok" if value is not None else "no_data",
            maturity=None,
        )
        for cycle, value in enumerate(values)
    ]


def test_a_fall_is_dated_to_its_first_cycle() -> None:
    (found,) = departures(series([0.8, 0.8, 0.8, 0.79, 0.7, 0.6, 0.5]))
    assert (found.since_cycle, found.direction) == (4, "down")
    assert found.base == pytest.approx(0.8)
    assert found.latest == 0.5


def test_one_cycle_away_is_not_a_departure_and_two_in_a_row_are() -> None:
    assert departures(series([0.8, 0.8, 0.9, 0.8, 0.9, 0.8])) == []
    (found,) = departures(series([0.8, 0.8, 0.8, 0.9, 0.9, 0.8]))
    assert (found.since_cycle, found.direction) == (3, "up")


def test_two_cycles_away_on_opposite_sides_are_not_a_departure() -> None:
    assert departures(series([0.8, 0.8, 0.9, 0.7, 0.9, 0.7])) == []


def test_cycles_without_a_value_are_passed_over_not_read_as_zero() -> None:
    assert departures(series([0.8, 0.8, None, None, 0.8, 0.8])) == []
    assert departures(series([None, None, None, None])) == []


def test_an_unchanged_series_with_sampling_noise_stays_quiet() -> None:
    rng = np.random.default_rng(7)
    n = 500
    loud = 0
    for _ in range(200):
        rates = rng.binomial(n, 0.3, size=30) / n
        half = 1.96 * float(np.sqrt(0.3 * 0.7 / n))
        loud += bool(departures(series([float(rate) for rate in rates], half)))
    # Two in a row beyond 4 sigma: of 200 unchanged runs none is expected.
    assert loud == 0


def test_series_are_kept_apart() -> None:
    steady = series([0.8] * 6)
    falling = [Statistic(**{**vars(point), "slice": "hard"}) for point in series([0.8, 0.8, 0.5, 0.5, 0.5, 0.5])]
    assert [found.slice for found in departures([*steady, *falling])] == ["hard"]
