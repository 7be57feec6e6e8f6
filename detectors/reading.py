"""What a change means: drift, the reward's pressure and the outcome's, put together. DESIGN.md's table, no more.

    drift   reward pushes along it   users' outcome along it   reading
    yes     yes                      no: against, or none      reward hack
    yes     yes                      yes                       honest learning
    yes     no                       any                       outside change
    no      yes                      against                   forewarning

Pressures are intervals, and "no" is shown, never assumed: the outcome is *not along* a direction where the upper end of
its interval in that direction stays below the margin, which a wide interval does not do. What is neither shown nor
excluded is ``not_assessable``. A drift in a cycle whose data are faulty is a ``measurement_fault``, whatever pushes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from palomar.data.findings import Reading

Direction = Literal[1, -1]


@dataclass(frozen=True)
class Push:
    """A pressure as an interval; in any unit, with the margin in the same."""

    low: float
    high: float
    margin: float
    """Positive: pushes smaller than this are none."""

    def __post_init__(self) -> None:
        if not (self.low <= self.high and self.margin > 0):
            raise ValueError(f"no interval with a margin: {self.low}..{self.high}, {self.margin}")

    def along(self, direction: Direction) -> bool:
        """Shown to push this way."""
        return self.low > 0 if direction > 0 else self.high < 0

    def not_along(self, direction: Direction) -> bool:
        """Shown to push this way by less than the margin, or the other way."""
        return self.high < self.margin if direction > 0 else self.low > -self.margin


@dataclass(frozen=True)
class Read:
    """A reading, and why: which of its parts decided, in a few words."""

    reading: Reading | None
    """None: steady, and nothing that pushes it is against users."""
    why: str
    direction: Direction | None = None
    """Of the drift or, in a forewarning, of what is to come."""


def read(drift: Direction | None, reward: Push | None, outcome: Push | None, *, faulty: bool = False) -> Read:
    """The reading of one statistic in one slice.

    `drift`: its direction, None where it is inside its band or has none. `reward`, `outcome`: None where they could not
    be estimated. `faulty`: the data of the cycle are known to be wrong.
    """
    if drift is None:
        return _without_drift(reward, outcome)
    if faulty:
        return Read("measurement_fault", "the data of this cycle are faulty", drift)
    if reward is None:
        return Read("not_assessable", "the reward's pressure is not known", drift)
    if not reward.along(drift):
        if reward.not_along(drift):
            return Read("outside_change", "the reward does not push it", drift)
        return Read("not_assessable", "too few rows to say whether the reward pushes it", drift)
    if outcome is None:
        return Read("not_assessable", "the reward pushes it; the users' outcome is not known", drift)
    if outcome.along(drift):
        return Read("honest_learning", "the reward pushes it, and users' outcome goes along", drift)
    if outcome.not_along(drift):
        against = outcome.along(_other(drift))
        said = "users' outcome is against" if against else "users' outcome does not want it"
        return Read("reward_hack", f"the reward pushes it, and {said}", drift)
    return Read("not_assessable", "the reward pushes it; too few rows to say what users want", drift)


def _without_drift(reward: Push | None, outcome: Push | None) -> Read:
    if reward is not None and outcome is not None:
        for direction in _DIRECTIONS:
            if reward.along(direction) and outcome.along(_other(direction)):
                return Read("forewarning", "the reward pushes it, and users' outcome is against", direction)
    return Read(None, "steady")


_DIRECTIONS: tuple[Direction, Direction] = (1, -1)


def _other(direction: Direction) -> Direction:
    return -1 if direction > 0 else 1
