"""How long edits stay, compared: two groups, several ways to end, and what is still to come.

`palomar.data.clock` says how much survives one horizon. Here is what is asked beside it:

- `log_rank`: do two groups differ at any time? Weighs late times like early ones; where the curves cross, see the next;
- `restricted_mean`: how long edits stay on average, up to a time, with a standard error;
- `inverse_weighted`: survival as a weighted mean over rows, which is Kaplan and Meier's as long as nobody's watching
  ends for a reason; the form to start from where it does;
- `incidence`: of several ways to end (rewritten, deleted with its file), the share that has ended in each;
- `delayed_feedback`: how many will ever end and how fast, from what has (Chapelle 2014); for forecasts of maturity, not
  for verdicts, since its exponential tail is assumed.

All take durations (rows,) until the end, or else until when it was watched, in any unit of time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import optimize

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class LogRank:
    """Test of equal survival in two groups."""

    chi2: float
    """With one degree of freedom."""
    p: float


def log_rank(durations: tuple[Floats, Floats], ended: tuple[Mask, Mask]) -> LogRank:
    """Of two groups; lifelines'."""
    from lifelines.statistics import logrank_test

    found = logrank_test(*durations, *ended)
    return LogRank(float(found.test_statistic), float(found.p_value))


@dataclass(frozen=True)
class RestrictedMean:
    """Mean time until the end, where all that stay longer than ``until`` count as ``until``."""

    mean: float
    error: float
    """Standard error of the mean (lifelines returns the variance of the times themselves)."""
    until: float


def restricted_mean(durations: Floats, ended: Mask, until: float) -> RestrictedMean:
    """Area under Kaplan and Meier's curve up to a time, with Greenwood's error.

    Raises ValueError where nobody was watched that long and not all had ended: the curve is not known there.
    """
    times, losses, at_risk = _table(durations, ended)
    survival = np.cumprod(1 - losses / at_risk)
    if durations.max() < until and survival[-1] > 0:
        raise ValueError(f"nobody was watched up to {until:g}")
    inside = times < until
    edges = np.concatenate([[0.0], times[inside], [until]])
    steps = np.concatenate([[1.0], survival[inside]]) * np.diff(edges)
    area_after = np.cumsum(steps[::-1])[::-1][1:]
    d, y = losses[inside], at_risk[inside]
    # The last one to be lost leaves no area, so its term is 0 and not 0/0.
    terms = np.divide(area_after**2 * d, y * (y - d), out=np.zeros_like(y), where=y > d)
    return RestrictedMean(float(steps.sum()), float(np.sqrt(terms.sum())), until)


def inverse_weighted(durations: Floats, ended: Mask, horizon: float) -> float:
    """Share that outlives a horizon: one less the ended, each weighted by one over its chance of being watched so long.

    Ends come before the end of watching where both are at one time.
    """
    times, censored, at_risk = _table(durations, ~ended)
    gone = np.array([(ended & (durations == time)).sum() for time in times])
    watched = np.concatenate([[1.0], np.cumprod(1 - censored / (at_risk - gone))])
    by_then = ended & (durations <= horizon)
    before = watched[np.searchsorted(times, durations[by_then], side="left")]
    return float(1 - (1 / before).sum() / len(durations))


def incidence(durations: Floats, causes: npt.NDArray[np.int64], at: Sequence[float]) -> Floats:
    """Share still there, and share ended by each cause: (times, 1 + causes). Cause 0 is "not ended while watched".

    Aalen and Johansen's estimate. Ties are kept; lifelines moves them apart at random (0.1750 for 0.1759).
    """
    num_causes = int(causes.max(initial=0))
    times, losses, at_risk = _table(durations, causes > 0)
    staying = np.cumprod(1 - losses / at_risk)
    before = np.concatenate([[1.0], staying[:-1]])
    ended = np.array([[((causes == k + 1) & (durations == t)).sum() for k in range(num_causes)] for t in times])
    shares = np.cumsum(before[:, None] * ended.reshape(len(times), num_causes) / at_risk[:, None], axis=0)
    path = np.vstack([np.eye(1, 1 + num_causes), np.column_stack([staying, shares])])
    found: Floats = path[np.searchsorted(times, np.asarray(at, dtype=np.float64), side="right")]
    return found


def _table(durations: Floats, ended: Mask) -> tuple[Floats, Floats, Floats]:
    """Distinct times of an end, ends at each, and rows still there just before."""
    times, losses = np.unique(durations[ended], return_counts=True)
    at_risk = len(durations) - np.searchsorted(np.sort(durations), times, side="left")
    return times, losses.astype(np.float64), at_risk.astype(np.float64)


@dataclass(frozen=True)
class DelayedFeedback:
    """A share that ends at all, after an exponential delay."""

    share: float
    rate: float
    """Per unit of time: the mean delay is one over it."""
    log_likelihood: float

    def still_to_come(self, elapsed: Floats) -> Floats:
        """Chance that something will come where none has after ``elapsed``."""
        waiting = self.share * np.exp(-self.rate * elapsed)
        chance: Floats = waiting / (1 - self.share + waiting)
        return chance


def delayed_feedback(delays: Floats, elapsed: Floats) -> DelayedFeedback:
    """Fitted to the delays of what came, and to the times that the others have waited so far.

    Raises ValueError where nothing has come: then nothing is known of the delay.
    """
    if not len(delays) or not (delays > 0).all():
        raise ValueError("needs delays above 0 of something that came")
    scale = float(delays.mean())

    def loss(point: Floats) -> float:
        return -_log_likelihood(1 / (1 + np.exp(-point[0])), np.exp(point[1]) / scale, delays, elapsed)

    naive = len(delays) / (len(delays) + len(elapsed) + 1)
    start = np.array([np.log(naive / (1 - naive)), 0.0])
    found = optimize.minimize(loss, start, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12})
    share, rate = float(1 / (1 + np.exp(-found.x[0]))), float(np.exp(found.x[1]) / scale)
    return DelayedFeedback(share, rate, -float(found.fun))


def _log_likelihood(share: float, rate: float, delays: Floats, elapsed: Floats) -> float:
    came = np.log(share) + np.log(rate) - rate * delays
    not_yet = np.log(1 - share + share * np.exp(-rate * elapsed))
    return float(came.sum() + not_yet.sum())
