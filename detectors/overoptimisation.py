"""Where pushing a proxy further stops to pay: the shape of reward and outcome over the distance from the base policy.

Gao, Schulman and Hilton (arXiv 2210.10760) found, with d = sqrt(KL(policy || base)), that what is really wanted follows
R = d (a - b d) for best-of-n sampling and R = d (a - b ln d) for RL, while the proxy goes on rising. Both are linear in
a and b, so they are fitted by weighted least squares; whether the peak is passed is the sign of the slope at today's
distance, which is linear in a and b too and so has an exact interval.

Their coefficients do not carry over to another policy, and nor does the form: only the shape is used, "has it turned
down?". Blind to: a turn that still lies ahead of every distance seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import linalg, stats

Floats = npt.NDArray[np.float64]
Form = Literal["rl", "best-of-n"]
"""d (a - b ln d), and d (a - b d)."""

Status = Literal["rising", "past_peak", "unclear"]

FEWEST = 6
"""Cycles away from the base below which no shape is fitted."""
_FURTHEST = 4.0  # times the largest distance seen, up to which a peak's interval is looked for
_STEPS = 4000


def peak(form: Form, a: float, b: float) -> tuple[float, float]:
    """Distance d at which R is largest, and R there. Raises ValueError where there is none (a rise for ever)."""
    if b <= 0 or (form == "best-of-n" and a <= 0):
        raise ValueError(f"{form} with a={a:g}, b={b:g} has no peak")
    if form == "best-of-n":
        return a / (2 * b), a * a / (4 * b)
    top = float(np.exp(a / b - 1))
    return top, b * top


def best_of_n_kl(n: int) -> float:
    """KL of taking the best of n samples from the base, ln n - (n - 1) / n; an upper bound where samples can tie."""
    return float(np.log(n) - (n - 1) / n)


@dataclass(frozen=True)
class Shape:
    """A curve over the distance, fitted to cycles."""

    form: Form
    status: Status
    """At the last cycle's distance: slope surely above 0, surely below, or neither, at ``level``."""
    a: float
    b: float
    now: float
    """The last cycle's distance, sqrt(nats)."""
    slope: float
    """There; unit of the values per unit of distance. ``low`` and ``high`` are its interval."""
    low: float
    high: float
    peak: float | None
    """Distance from which it falls, 0 for the base; None where it rises still."""
    peak_low: float | None
    """Of the peak's interval: distances whose slope cannot be told from 0; None where there are none."""
    peak_high: float | None
    """None, too, where it is open."""
    level: float
    n: int
    """Cycles away from the base that it rests on."""


def fit(kl: Floats, value: Floats, error: Floats, form: Form = "rl", level: float = 0.95) -> Shape | None:
    """The shape of values over the policy's distance from the base; all (cycles,), oldest first.

    ``value`` is measured from the base's level (cycles at KL 0 say how well that is known), ``error`` its standard
    error. Errors are scaled up, never down, by how far the values scatter about the curve. None where fewer than
    `FEWEST` cycles are away from the base, or all at one distance. Raises ValueError for a negative KL.
    """
    if (kl < 0).any():
        raise ValueError("a KL divergence is not negative")
    d = np.sqrt(kl)
    known = np.isfinite(d) & np.isfinite(value) & (error > 0)
    d, value, error = d[known], value[known], error[known]
    away = d > 0
    if int(away.sum()) < FEWEST or np.unique(d[away]).size < 3:
        return None
    # The base's own level is a column of its own: with cycles at distance 0 it is known, without them it is 0.
    base = np.ones((len(d), 1)) if (~away).any() else np.zeros((len(d), 0))
    design = np.column_stack([base, _terms(form, d)]) / error[:, None]
    freedom = len(d) - design.shape[1]
    inverse = linalg.inv(design.T @ design)
    coefficients = inverse @ design.T @ (value / error)
    left = value / error - design @ coefficients
    covariance = inverse[-2:, -2:] * max(1.0, float(left @ left) / freedom)
    a, b = (float(each) for each in coefficients[-2:])
    size = float(stats.t.isf((1 - level) / 2, freedom))

    now = float(d[-1]) if d[-1] > 0 else float(d[away][-1])
    slope, low, high = (float(each[0]) for each in _slope(form, np.array([now]), (a, b), covariance, size))
    far = np.linspace(d[away].min() / 4, _FURTHEST * d.max(), _STEPS)
    middle, lowest, highest = _slope(form, far, (a, b), covariance, size)
    # What still rises has no peak yet: where such a curve is level at a smaller distance, that is a trough.
    status: Status = "past_peak" if high < 0 else "rising" if low > 0 else "unclear"
    top = None if status == "rising" or (middle > 0).all() else int(np.argmax(middle <= 0))
    turn = np.flatnonzero((lowest <= 0) & (highest >= 0)) if top is not None else np.array([], dtype=np.int64)
    return Shape(
        form=form,
        status=status,
        a=a,
        b=b,
        now=now,
        slope=slope,
        low=low,
        high=high,
        # Before the first distance seen the curve is a guess: what falls from there on has its peak at the base.
        peak=None if top is None else 0.0 if top == 0 else float(far[top]),
        peak_low=None if not len(turn) else 0.0 if turn[0] == 0 else float(far[turn[0]]),
        peak_high=None if not len(turn) or turn[-1] == _STEPS - 1 else float(far[turn[-1]]),
        level=level,
        n=int(away.sum()),
    )


def _terms(form: Form, d: Floats) -> Floats:
    """Columns for a and b; (cycles, 2)."""
    curved = d * d if form == "best-of-n" else d * np.log(np.where(d > 0, d, 1.0))
    return np.column_stack([d, -curved])


def _slope(
    form: Form, d: Floats, ab: tuple[float, float], covariance: Floats, size: float
) -> tuple[Floats, Floats, Floats]:
    """dR/dd and its interval at distances above 0."""
    terms = np.column_stack([np.ones_like(d), -2 * d if form == "best-of-n" else -(np.log(d) + 1)])
    middle = terms @ np.array(ab)
    half = size * np.sqrt(np.einsum("di,ij,dj->d", terms, covariance, terms))
    return middle, middle - half, middle + half
