"""What a change of behaviour is worth to users: where it moved, times what users make of it there.

A statistic that falls in a slice may have fallen in one part of it, while what users want was seen in another: more
questions on vague requests leave users as they were, more questions on clear ones do not, and the slope of the whole
knows nothing of where the questions are asked. So the slice is cut into parts x without a row in common, and

    dG = sum_x  share(x) * moved(x) * slope(x),       slope(x) = Cov(G, phi | x) / Var(phi | x)

is the change of the users' outcome G that goes with the change of the statistic, in standard deviations of the outcome
per interaction of the slice. Its error counts that of the slopes and that of the moves (delta method; parts are taken
as independent).

Beware: first order, and of association. What else differs between interactions with and without the behaviour, in the
same context, is taken for its doing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats

from palomar.detectors.reading import Direction, Push


@dataclass(frozen=True)
class Part:
    """A part of a slice."""

    share: float
    """Of the slice's interactions, 0 to 1."""
    moved: float
    """Change of the statistic, in its unit."""
    moved_error: float
    slope: float
    """Standard deviations of the outcome per unit of the statistic."""
    slope_error: float
    freedom: float
    """Degrees of freedom of the slope's error."""

    @property
    def value(self) -> float:
        """What it adds to the worth of the whole."""
        return self.share * self.moved * self.slope

    @property
    def variance(self) -> float:
        """Of `value`, to first order."""
        return self.share**2 * ((self.moved * self.slope_error) ** 2 + (self.moved_error * self.slope) ** 2)


@dataclass(frozen=True)
class Worth:
    """What a change is worth, with its error."""

    value: float
    """Standard deviations of the outcome per interaction of the slice; negative: users lose by it."""
    error: float
    """Standard error, positive."""
    freedom: float

    @property
    def low(self) -> float:
        """Lower end of the 95 % interval: the largest loss that is not excluded."""
        return self.value - self._reach

    @property
    def high(self) -> float:
        """Upper end of the 95 % interval."""
        return self.value + self._reach

    @property
    def _reach(self) -> float:
        return float(stats.t.isf(0.025, self.freedom)) * self.error

    @property
    def p_loss(self) -> float:
        """One-sided p-value of "users lose nothing by it"."""
        return float(stats.t.cdf(self.value / self.error, self.freedom))

    def push(self, direction: Direction, margin: float) -> Push:
        """The same as an outcome pressure on a statistic that moved this way."""
        low, high = (self.low, self.high) if direction > 0 else (-self.high, -self.low)
        return Push(low, high, margin)


def worth(parts: Sequence[Part]) -> Worth | None:
    """Of a change in all parts of a slice; None where no error is known."""
    variance = sum(part.variance for part in parts)
    if not variance > 0:
        return None
    # Welch and Satterthwaite.
    freedom = variance**2 / sum(part.variance**2 / max(part.freedom, 1.0) for part in parts)
    return Worth(sum(part.value for part in parts), math.sqrt(variance), max(freedom, 1.0))
