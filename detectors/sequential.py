"""E-values and e-detectors: evidence that may be looked at after every observation.

A *likelihood-like factor* ``L`` of one observation has mean at most 1 while nothing has changed. Multiplied up they are
an e-process (Ville: it reaches 1/alpha with probability at most alpha, however often one looks); restarted at every
moment they are an e-detector (Shin, Ramdas and Rinaldo, arXiv 2203.03532): an alarm at 1/alpha comes on average no
sooner than after 1/alpha observations, whatever the dependence. Everything is kept in logs.

Not valid where the level before the change was estimated from the same data (``m`` must be a bound that is known),
where the level moves with the hour or the mix of users (use residuals, or a concurrent champion), or with a bound on
the spread that the data break.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import optimize

Floats = npt.NDArray[np.float64]


def log_bernoulli(x: Floats, m: float, lambdas: Floats) -> Floats:
    """Log factors against "mean at most m" (lambda > 0; at least m where lambda < 0) for x in [0, 1].

    ``x`` is (times,), the result (times, lambdas): lambda x - log(1 - m + m e^lambda).
    """
    if not 0 < m < 1:
        raise ValueError(f"mean {m} is not between 0 and 1")
    return np.multiply.outer(x, lambdas) - np.log1p(m * np.expm1(lambdas))


def log_bounded(x: Floats, m: float, lambdas: Floats) -> Floats:
    """Log factors against "mean at most m" for x of at least 0: log(1 + lambda (x/m - 1)), a bet of lambda in [0, 1).

    (times,) in, (times, lambdas) out. Adapts to a small variance, where `log_bernoulli` assumes the largest.
    """
    if np.any((lambdas < 0) | (lambdas >= 1)):
        raise ValueError("bets lie in [0, 1): a larger one could lose more than it has")
    return np.log1p(np.multiply.outer(x / m - 1, lambdas))


def log_normal(x: Floats, lambdas: Floats, sd: float = 1.0) -> Floats:
    """Log factors against "mean at most 0" for sub-Gaussian x: lambda x - (lambda sd)^2 / 2; (times, lambdas).

    ``sd`` must be known; one estimated from few cycles makes false alarms at any level.
    """
    return np.multiply.outer(x, lambdas) - (lambdas * sd) ** 2 / 2


def log_e_process(log_factors: Floats, weights: Floats) -> Floats:
    """Log of the mixture of products, for one test of "never changed": (times, lambdas), (lambdas,) -> (times,)."""
    return _mixed(np.cumsum(log_factors, axis=0), weights)


def log_e_detector(log_factors: Floats, weights: Floats, kind: Literal["SR", "CUSUM"]) -> Floats:
    """Log of the mixture of e-detectors: (times, lambdas), (lambdas,) -> (times,).

    Shiryaev-Roberts M = (1 + M) L adds up all possible starts, CUSUM M = max(1, M) L takes the best one. CUSUM never
    exceeds SR, so 1/alpha bounds the mean time to a false alarm for both.
    """
    path = np.empty_like(log_factors)
    before = np.full(log_factors.shape[1], -np.inf)
    for time, step in enumerate(log_factors):
        before = (np.logaddexp(0.0, before) if kind == "SR" else np.maximum(0.0, before)) + step
        path[time] = before
    return _mixed(path, weights)


def first_at(log_path: Floats, log_threshold: float) -> int | None:
    """1-based time at which a path first reaches a threshold; None if never."""
    reached = np.flatnonzero(log_path >= log_threshold)
    return int(reached[0]) + 1 if len(reached) else None


@dataclass(frozen=True)
class Mixture:
    """Lambdas that cover a range of changes, and their weights."""

    lambdas: Floats
    """From the largest change to the smallest."""
    weights: Floats
    """They add up to 1."""
    g: float
    """Log of the threshold that one test with the true lambda would need to be as late; at least log(1/alpha)."""


def mixture_bernoulli(alpha: float, m: float, smallest: float, largest: float) -> Mixture:
    """Lambdas and weights against changes of a mean from m to m + smallest ... m + largest, for `log_bernoulli`."""

    def information(delta: Floats) -> Floats:
        after = m + delta
        return after * np.log(after / m) + (1 - after) * np.log((1 - after) / (1 - m))

    wanted, weights, g = _ladder(alpha, *information(np.array([smallest, largest])))
    ends = (smallest * (1 - 1e-9), largest * (1 + 1e-9))  # the two ends are roots themselves
    deltas = np.array(
        [optimize.brentq(lambda d, value=value: information(d) - value, *ends, xtol=1e-14) for value in wanted]
    )
    return Mixture(np.log((m + deltas) / m * (1 - m) / (1 - m - deltas)), weights, g)


def mixture_normal(alpha: float, smallest: float, largest: float) -> Mixture:
    """The same for `log_normal` with sd 1, changes in sd: lambda is the change itself, its information delta^2 / 2."""
    information, weights, g = _ladder(alpha, smallest**2 / 2, largest**2 / 2)
    return Mixture(np.sqrt(2 * information), weights, g)


def _ladder(alpha: float, smallest: float, largest: float) -> tuple[Floats, Floats, float]:
    """Information per observation of each lambda, from the largest down by equal factors; weights; g.

    With k steps of eta = (largest / smallest)^(1/k), the mixture is never later than one test with threshold g of the
    log, where e^-g + k e^(-g/eta) = alpha; k makes g smallest (Shin et al., section 4). Where the largest change tells
    more than g in one observation, it needs no lambda of its own, and e^-g falls away.
    """
    counts = np.arange(1, 201)
    eta = (largest / smallest) ** (1 / counts)

    def excess(g: float, own: bool) -> float:
        return float(own * np.exp(-g) + (counts * np.exp(-g / eta)).min() - alpha)

    own = excess(largest, own=False) > 0
    most = float((eta * np.log(2 * counts / alpha)).max())
    g = float(optimize.brentq(excess, np.log(1 / alpha), most, args=(own,), xtol=1e-13))
    best = int((counts * np.exp(-g / eta)).argmin())
    steps = np.arange(0 if own else 1, counts[best] + 1)
    weights = np.exp(-g / np.where(steps == 0, 1.0, eta[best]))
    return largest * eta[best] ** -steps.astype(float), weights / weights.sum(), g


def _mixed(log_values: Floats, weights: Floats) -> Floats:
    mixed: Floats = np.logaddexp.reduce(log_values + np.log(weights), axis=-1)
    return mixed
