"""What a cycle is to be compared with: how far each reference cycle lies from the rest of the reference.

Cycles differ by more than their rows do, so a test on rows alarms on every cycle once there are enough of them. Here
one number is taken of the cycle in question against the reference, and the same number of each reference cycle against
the others; these are the null. With k of them the next one lies beyond ``mean + t * sd * sqrt(1 + 1 / k)`` at the rate
of Student's t with k - 1 degrees of freedom (a prediction limit; exact for independent normal numbers, and the honest
price of a short reference). Counts of rare things have a limit of their own (`too_many`).

Not exact: the reference cycles' own numbers share rows. docs/distribution.md has the rates that came out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from palomar.detectors.detector import View

SHORTEST = 4
"""Reference cycles below which nothing is tested: with 3 the limit is 16 standard deviations out at 5 in 1000."""


@dataclass(frozen=True)
class Beyond:
    """One number and its null; higher is stranger."""

    value: float
    usual: float
    """Mean of the reference cycles."""
    limit: float
    """Above it the number is out."""
    t: float
    threshold: float
    """Of ``t``."""

    @property
    def out(self) -> bool:
        """Whether it is stranger than the reference allows."""
        return self.t > self.threshold


def beyond(value: float, others: Sequence[float], rate: float) -> Beyond:
    """The number of a cycle against those of the reference cycles, at a one-sided rate a cycle.

    Raises ValueError for fewer than `SHORTEST` others: nothing could be told.
    """
    if len(others) < SHORTEST:
        raise ValueError(f"{len(others)} reference cycles; {SHORTEST} are needed")
    usual = float(np.mean(others))
    # Equal numbers leave no scale; a millionth of the level keeps the division defined and the finding exact.
    spread = max(float(np.std(others, ddof=1)), 1e-6 * abs(usual), 1e-12) * math.sqrt(1 + 1 / len(others))
    threshold = float(stats.t.isf(rate, len(others) - 1))
    return Beyond(value, usual, usual + threshold * spread, (value - usual) / spread, threshold)


@dataclass(frozen=True)
class TooMany:
    """How many rows of a cycle do what the reference's hardly did."""

    count: int
    n: int
    expected: float
    p: float
    """Chance of at least as many where cycles scatter as Poisson's."""
    smallest: int
    """Smallest count that is out."""

    @property
    def out(self) -> bool:
        """Whether there are more than the reference allows."""
        return self.count >= self.smallest


def too_many(count: int, n: int, counts: Sequence[int], sizes: Sequence[int], rate: float) -> TooMany:
    """``count`` of ``n`` rows against the reference cycles' ``counts`` of ``sizes``, at a one-sided rate a cycle.

    Two limits, of which the higher holds. Where cycles scatter as Poisson's, their rate has a Gamma posterior
    (Jeffreys' prior) and the next count is negative binomial. Where they scatter more, the square roots of the rates
    have a prediction limit like `beyond`'s.
    """
    if len(counts) < SHORTEST:
        raise ValueError(f"{len(counts)} reference cycles; {SHORTEST} are needed")
    seen, rows = np.asarray(counts, dtype=np.float64), np.asarray(sizes, dtype=np.float64)
    shape, share = seen.sum() + 0.5, rows.sum() / (rows.sum() + n)
    rare = int(stats.nbinom.isf(rate, shape, share))
    roots = np.sqrt((seen + 3 / 8) / rows)  # Anscombe's, whose spread does not depend on the level
    spread = float(roots.std(ddof=1)) * math.sqrt(1 + 1 / len(seen))
    scattered = n * (float(roots.mean()) + float(stats.t.isf(rate, len(seen) - 1)) * spread) ** 2
    return TooMany(
        count=count,
        n=n,
        expected=float(seen.sum() / rows.sum() * n),
        p=float(stats.nbinom.sf(count - 1, shape, share)),
        smallest=max(rare, math.floor(scattered)) + 1,
    )


def unready(view: View) -> str:
    """Why the cycle of a view cannot be compared with its reference, and what it would take; empty: it can."""
    if view.cycle is None:
        return "logs from outside a loop have no cycles to compare"
    if view.cycle in view.reference:
        return f"cycle {view.cycle} is itself part of the reference"
    if len(view.reference) < SHORTEST:
        return f"{len(view.reference)} reference cycles; {SHORTEST} are needed"
    return ""
