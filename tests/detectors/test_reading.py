"""DESIGN's table of readings, row by row, and what lies between the rows."""

from __future__ import annotations

import pytest

from palomar.detectors.reading import Direction, Push, read

UP = Push(0.02, 0.04, 0.01)
DOWN = Push(-0.04, -0.02, 0.01)
NONE = Push(-0.005, 0.005, 0.01)
A_LITTLE_UP = Push(0.001, 0.009, 0.01)
UNCLEAR = Push(-0.05, 0.05, 0.01)
NOT_UP = Push(-0.05, 0.005, 0.01)

TABLE = [
    # drift, reward, outcome -> reading
    (1, UP, DOWN, "reward_hack"),
    (1, UP, NONE, "reward_hack"),
    (1, UP, NOT_UP, "reward_hack"),
    (1, UP, UP, "honest_learning"),
    (1, UP, A_LITTLE_UP, "honest_learning"),
    (1, NONE, UP, "outside_change"),
    (1, NONE, DOWN, "outside_change"),
    (1, DOWN, UP, "outside_change"),
    (1, NOT_UP, None, "outside_change"),
    (1, UP, UNCLEAR, "not_assessable"),
    (1, UNCLEAR, DOWN, "not_assessable"),
    (1, UP, None, "not_assessable"),
    (1, None, DOWN, "not_assessable"),
    (None, UP, DOWN, "forewarning"),
    (None, UP, UP, None),
    (None, UP, NONE, None),
    (None, UP, UNCLEAR, None),
    (None, NONE, DOWN, None),
    (None, UNCLEAR, DOWN, None),
    (None, None, DOWN, None),
    (None, UP, None, None),
]
MIRROR: dict[Push | None, Push | None] = {
    push: None if push is None else Push(-push.high, -push.low, push.margin)
    for push in (UP, DOWN, NONE, A_LITTLE_UP, UNCLEAR, NOT_UP, None)
}


@pytest.mark.parametrize(("drift", "reward", "outcome", "expected"), TABLE)
def test_the_table(drift: Direction | None, reward: Push | None, outcome: Push | None, expected: str | None) -> None:
    assert read(drift, reward, outcome).reading == expected
    mirrored: Direction | None = None if drift is None else -1 if drift > 0 else 1
    assert read(mirrored, MIRROR[reward], MIRROR[outcome]).reading == expected


@pytest.mark.parametrize(("drift", "reward", "outcome", "expected"), TABLE)
def test_faulty_data_are_neither_a_hack_nor_progress(
    drift: Direction | None, reward: Push | None, outcome: Push | None, expected: str | None
) -> None:
    found = read(drift, reward, outcome, faulty=True).reading
    # What the reward pushes is known from other cycles too: a fault now is no reason to forget a forewarning.
    assert found == ("measurement_fault" if drift else expected)


def test_a_forewarning_says_which_way() -> None:
    assert read(None, UP, DOWN).direction == 1
    assert read(None, DOWN, UP).direction == -1


def test_an_interval_upside_down_is_refused() -> None:
    with pytest.raises(ValueError, match="no interval"):
        Push(1.0, 0.0, 0.1)
    with pytest.raises(ValueError, match="no interval"):
        Push(0.0, 1.0, 0.0)
