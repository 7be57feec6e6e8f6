"""Selection pressure: what the next policy will do more of, from the samples that train it.

A step of size eta on samples weighted by their advantage A moves the mean of any statistic phi of the behaviour, in
context x, by

    d E[phi | x] = eta Cov(A, phi | x)

exactly to first order for mirror descent and natural policy gradient (Price 1970 for replicators; Kakade 2001). So

    pressure(A, phi) = E_x[ Cov(A, phi | x) ]

is the expected change per unit step, in units of phi, of a statistic averaged over the contexts as they come. A is the
advantage that the trainer really used, with 0 for samples that it left out: they take no part in A, and they do in the
mean of phi, which is how leaving samples out selects behaviour. Any other *signal* can stand in the place of A: a part
of it (`palomar.reward.charges`), or the users' outcome. Pressure is linear in the signal.

**Statistics that are ratios.** Most are means over some rows only (functions per edit) or ratios of sums (invalid calls
per turn): R = E[X] / E[Y], with Y = X = 0 on rows that do not count. Their derivative is the pressure on

    phi = (X - R Y) / E[Y]

with the one R of all rows. So no row is dropped, and a change in *which contexts* get an edit moves "functions per
edit" as it would in the chart. A plain rate or mean has Y = 1.

**Intervals** are 95 %, of Student's t with (clusters - 1) degrees of freedom, from the sums over each cluster (a user)
of the estimate's influence function; what estimating R and E[Y] adds is in it. The advantages are taken as given: noise
in the trainer's baseline moved the policy as well.

**Beware.** eta is not known here, so pressures compare with each other, not with rates. It is first order: a behaviour
near 0 or 1 cannot move further, whatever its pressure; read it beside the level. What is held fixed is what the context
has; a feature of the request that drives reward and behaviour, and is not in it, biases the estimate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import stats

from palomar.reward.contexts import Context

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

Status = Literal["ok", "no data", "no variation", "too few"]
"""``no data``: no row counts; ``no variation``: signal or statistic is the same in all rows of each context; ``too
few``: a value without interval, since fewer than `FEW` clusters, or rows that differ from the usual, are there."""

FEW = 10
"""Fewer clusters, or rows unlike the median row in the statistic or the signal, allow no interval: it would rest
on a handful of rows, and be too short."""

_ROUNDING = 1e-12


@dataclass(frozen=True)
class Behaviours:
    """Statistics of N rows, K of them: R = mean of X / mean of Y."""

    names: tuple[str, ...]
    numerator: Floats
    """X: (N, K), 0 where the denominator is 0."""
    denominator: Floats
    """Y: (N, K), at least 0; 0 where the row does not count or nothing is known."""

    def __post_init__(self) -> None:
        if not self.numerator.shape == self.denominator.shape == (len(self.numerator), len(self.names)):
            raise ValueError(
                f"{len(self.names)} names for shapes {self.numerator.shape} and {self.denominator.shape}, not (N, K)"
            )

    def of(self, rows: npt.NDArray[np.bool_]) -> Behaviours:
        """The same of some rows."""
        return Behaviours(self.names, self.numerator[rows], self.denominator[rows])


@dataclass(frozen=True)
class Pressures:
    """Pressure of S signals on K statistics, NaN where the status leaves no value. Arrays have shape (K, S)."""

    value: Floats
    """In units of the statistic, per unit of the signal and of the step."""
    low: Floats
    """Of the 95 % interval."""
    high: Floats
    z: Floats
    """Value over its standard error."""
    status: npt.NDArray[np.str_]
    """Each a `Status`."""
    level: Floats
    """R of each statistic: (K,)."""
    n: Ints
    """Rows that count for each statistic: (K,)."""
    clusters: int


def pressure(signals: Floats, behaviours: Behaviours, context: Context, clusters: Ints) -> Pressures:
    """Pressure of each signal (a column of (N, S), finite) on each statistic, with `context` held fixed.

    `clusters` (N,) says which rows are of one user. All that is given has the same N rows. Takes O(N K S).
    Raises ValueError where a value is not finite.
    """
    for given in (signals, behaviours.numerator, behaviours.denominator):
        if not np.isfinite(given).all():
            raise ValueError("signals and statistics must be finite; what is not known belongs in no row")
    num_rows, num_signals = signals.shape
    shape = (len(behaviours.names), num_signals)
    counts = np.count_nonzero(behaviours.denominator, axis=0)
    _, cluster, sizes = np.unique(clusters, return_inverse=True, return_counts=True)
    value, error = np.full(shape, np.nan), np.full(shape, np.nan)
    status = np.full(shape, "no data", dtype="<U12")
    level = np.full(len(counts), np.nan)
    signal_left = context.residuals(signals) if num_rows else signals
    signal_support = _unusual(signals)
    signal_varies = _varies(signal_left, signals)
    for k in np.flatnonzero(counts):
        x, y = behaviours.numerator[:, k], behaviours.denominator[:, k]
        level[k] = x.mean() / y.mean()
        phi = (x - level[k] * y) / y.mean()
        phi_left, share_left = context.residuals(np.column_stack([phi, y / y.mean()])).T
        support = min(_unusual(x[y > 0, None])[0], counts[k])
        if not _varies(phi_left[:, None], phi[:, None])[0]:
            status[k] = "no variation"
            continue
        for s in range(num_signals):
            if not signal_varies[s]:
                status[k, s] = "no variation"
                continue
            products = signal_left[:, s] * phi_left
            value[k, s] = products.mean()
            share_pressure = (signal_left[:, s] * share_left).mean()
            influence = products - share_pressure * phi - value[k, s] * (y / y.mean())
            sums = np.bincount(cluster, weights=influence)
            error[k, s] = np.sqrt(_correction(len(sizes)) * (sums**2).sum()) / num_rows
            enough = min(len(sizes), support, signal_support[s]) >= FEW and error[k, s] > 0
            status[k, s] = "ok" if enough else "too few"
    reach = stats.t.ppf(0.975, max(len(sizes) - 1, 1)) * np.where(status == "ok", error, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where(status == "ok", value / error, np.nan)
    return Pressures(value, value - reach, value + reach, z, status, level, counts.astype(np.int64), len(sizes))


def _correction(num_clusters: int) -> float:
    """For the degree of freedom that the mean takes."""
    return num_clusters / max(num_clusters - 1, 1)


def _unusual(values: Floats) -> Ints:
    """Rows of each column that differ from its median: those that carry a rare event, about half of any others."""
    if not len(values):
        return np.zeros(values.shape[1], dtype=np.int64)
    return np.asarray(np.count_nonzero(values != np.median(values, axis=0), axis=0), dtype=np.int64)


def _varies(left: Floats, values: Floats) -> npt.NDArray[np.bool_]:
    """Whether what is left of each column within contexts is more than rounding."""
    if not len(values):
        return np.zeros(values.shape[1], dtype=np.bool_)
    return np.asarray(np.abs(left).max(axis=0) > _ROUNDING * np.abs(values).max(axis=0), dtype=np.bool_)
