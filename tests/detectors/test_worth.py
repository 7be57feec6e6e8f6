"""What a change is worth to users: by parts, with its error, and as the reading takes it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from palomar.detectors.worth import Part, Worth, worth


def part(share: float, moved: float, slope: float, *, slope_error: float = 0.1, moved_error: float = 0.0) -> Part:
    return Part(share, moved, moved_error, slope, slope_error, freedom=50.0)


def test_only_parts_that_moved_count() -> None:
    """Questions cost users on clear requests and are worth something on vague ones; they rose on vague ones only."""
    found = worth([part(0.7, 0.0, -1.0), part(0.3, 0.5, 0.4)])
    assert found is not None
    assert found.value == pytest.approx(0.3 * 0.5 * 0.4)
    assert found.error == pytest.approx(0.3 * 0.5 * 0.1)


def test_error_of_the_move_counts_with_the_slope() -> None:
    found = worth([part(1.0, 0.5, 2.0, slope_error=0.3, moved_error=0.1)])
    assert found is not None
    assert found.error == pytest.approx(math.hypot(0.5 * 0.3, 0.1 * 2.0))


def test_interval_covers_and_the_test_keeps_its_level() -> None:
    """Slopes drawn about the truth, 4,000 times: 95 % of intervals hold it, 5 % of tests at 5 % reject a worth of 0."""
    rng = np.random.default_rng(0)
    drawn = rng.normal([1.0, -1.0], 0.5, (4000, 2))
    found = [worth([part(0.5, 0.4, one, slope_error=0.5), part(0.5, 0.4, two, slope_error=0.5)]) for one, two in drawn]
    known = [item for item in found if item is not None]
    covered = np.mean([item.low <= 0.0 <= item.high for item in known])
    assert covered == pytest.approx(0.95, abs=0.015)
    assert np.mean([item.p_loss < 0.05 for item in known]) == pytest.approx(0.05, abs=0.015)


def test_freedom_is_that_of_the_part_that_decides() -> None:
    few = Part(0.5, 1.0, 0.0, 1.0, 1.0, freedom=4.0)
    many = Part(0.5, 1.0, 0.0, 1.0, 0.01, freedom=500.0)
    found = worth([few, many])
    assert found is not None
    assert found.freedom == pytest.approx(4.0, rel=0.01)


@pytest.mark.parametrize(("direction", "along"), [(1, True), (-1, True)])
def test_a_gain_is_along_whichever_way_the_statistic_moved(direction: int, along: bool) -> None:
    gain = Worth(0.3, 0.1, 50.0)
    assert gain.push(1 if direction > 0 else -1, 0.01).along(1 if direction > 0 else -1) is along


def test_a_loss_is_along_no_move() -> None:
    loss = Worth(-0.3, 0.1, 50.0)
    assert not loss.push(1, 0.01).along(1)
    assert loss.push(1, 0.01).not_along(1)
    assert loss.push(-1, 0.01).not_along(-1)
    assert loss.p_loss == pytest.approx(float(stats.t.cdf(-3, 50)))


def test_without_an_error_nothing_is_known() -> None:
    assert worth([]) is None
    assert worth([part(0.0, 0.5, 1.0)]) is None
