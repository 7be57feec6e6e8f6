"""What lasts: the share of edits that outlive a horizon, as a figure per user, and what ended the others.

An edit that was watched too short a time says as much as it was watched: to leave it out or to count it as kept is
biased. `palomar.data.clock` has the estimate of one group with its interval; here is what a comparison of users needs
besides: how much each row moves the estimate, so that rows of one user can be taken together.

All of it assumes that how long a row was watched says nothing about whether it lasts (within a stratum, for `ipcw`).
Users who leave because the edit was bad break that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Lasting:
    """Kaplan-Meier share at a horizon."""

    share: float
    influence: Floats
    """How much each row moves it, (rows,), adding up to 0: the sum of squares is its variance where rows are
    independent, that of sums over users where rows of one user are alike."""
    at_risk: int
    """Rows still there just before the horizon."""


def lasting(durations: Floats, lost: Mask, horizon: float) -> Lasting | None:
    """Kaplan-Meier at ``horizon`` with the influence of each row; None where no row was watched that long.

    ``durations``: until the loss, or else until when it was watched. Influence of row i on S(h) is
    -S(h) (N_i(h) / Y - sum of dN / Y^2 up to its end), Y the number at risk (Reid 1981); without censoring the sum of
    squares is exactly S (1 - S) / n.
    """
    at_risk = int((durations >= horizon).sum())
    steps = _steps(durations, lost, horizon)
    share = float(steps.survival[-1])
    if not at_risk and share > 0:
        return None
    # Jumps with d = Y lose everything: the share is 0 whatever one row does.
    with np.errstate(divide="ignore", invalid="ignore"):
        hazard = np.where(steps.at_risk > steps.lost, steps.lost / (steps.at_risk * (steps.at_risk - steps.lost)), 0.0)
        own = np.where(steps.at_risk > steps.lost, 1 / (steps.at_risk - steps.lost), 0.0)
    paid = np.concatenate([[0.0], np.cumsum(hazard)])
    reached = np.searchsorted(steps.times, np.minimum(durations, horizon), side="right")
    influence = share * paid[reached]
    fell = lost & (durations <= horizon)
    influence[fell] -= share * own[reached[fell] - 1]
    return Lasting(share, influence, at_risk)


@dataclass(frozen=True)
class Step:
    """Kaplan-Meier share from one time on."""

    at: float
    """In the unit of the durations."""
    share: float
    low: float | None
    """Of the 95 % interval; None where nothing or everything is lost, or fewer than two users were watched."""
    high: float | None
    at_risk: int
    """Rows still there just before."""


def curve(durations: Floats, lost: Mask, users: Ints, times: Sequence[float]) -> tuple[Step, ...]:
    """The share at some times, ascending, with intervals in which rows of one user count as one.

    On the log-log scale, so that they stay within 0 and 1. It ends where nobody was watched any longer.
    """
    _, user = np.unique(users, return_inverse=True)
    count = int(user.max(initial=-1)) + 1
    found = []
    for time in times:
        at = lasting(durations, lost, time)
        if at is None:
            break
        sums = np.bincount(user, weights=at.influence, minlength=count)
        error = float(np.sqrt(count / max(count - 1, 1) * (sums**2).sum()))
        low = high = None
        if count > 1 and 0 < at.share < 1 and error > 0:
            reach = float(stats.norm.ppf(0.975)) * error / (at.share * abs(np.log(at.share)))
            low, high = float(at.share ** np.exp(reach)), float(at.share ** np.exp(-reach))
        found.append(Step(float(time), at.share, low, high, at.at_risk))
    return tuple(found)


def mean_lasting(durations: Floats, lost: Mask, horizon: float) -> tuple[float, float]:
    """Restricted mean time to the loss up to ``horizon``, with its standard error.

    The area under Kaplan-Meier's curve; se sqrt(sum A_j^2 d_j / (Y_j (Y_j - d_j))), A_j the area from event j on.
    Says something where two curves cross. (lifelines' variance here is that of the time, not of its mean.)
    """
    steps = _steps(durations, lost, horizon)
    ends = np.append(steps.times, horizon)
    widths = np.diff(np.concatenate([[0.0], ends]))
    pieces = widths * steps.survival
    after = np.cumsum(pieces[::-1])[::-1][1:]
    spread = steps.at_risk * (steps.at_risk - steps.lost)
    terms = np.divide(after**2 * steps.lost, spread, out=np.zeros_like(after), where=spread > 0)
    return float(pieces.sum()), float(np.sqrt(terms.sum()))


def ipcw(durations: Floats, lost: Mask, horizon: float, strata: Ints | None = None) -> float:
    """Share that outlives ``horizon``: losses weighted by the inverse chance to have been watched until then.

    That chance is Kaplan-Meier's of the watching, per stratum; with one stratum it is exactly `lasting`'s share (Satten
    and Datta 2001), with more it allows that some kinds of rows are watched longer and last longer.
    """
    groups = np.zeros(len(durations), np.int64) if strata is None else strata
    weights = np.zeros(len(durations))
    for group in np.unique(groups):
        rows = groups == group
        weights[rows] = _inverse_watched(durations[rows], lost[rows])
    return float(1 - (weights * (lost & (durations <= horizon))).mean())


def _inverse_watched(durations: Floats, lost: Mask) -> Floats:
    """1 / G(T-), G the Kaplan-Meier curve of being watched; at a tie the loss comes before the end of the watching."""
    times, place = np.unique(durations, return_inverse=True)
    ended = np.bincount(place, weights=~lost, minlength=len(times))
    fell = np.bincount(place, weights=lost, minlength=len(times))
    at_risk = np.cumsum((ended + fell)[::-1])[::-1] - fell
    kept = np.divide(at_risk - ended, at_risk, out=np.ones_like(at_risk), where=at_risk > 0)
    before = np.concatenate([[1.0], np.cumprod(kept)[:-1]])[place]
    inverse: Floats = np.divide(1.0, before, out=np.zeros_like(before), where=before > 0)
    return inverse


def by_cause(durations: Floats, cause: Ints, horizon: float) -> dict[int, float]:
    """Share lost to each cause (1, 2, ...; 0 = not lost while watched) up to ``horizon``: Aalen and Johansen's.

    One less Kaplan-Meier per cause would count rows that another cause took as still to come.
    """
    # statsmodels takes a second to import, and few ask.
    from statsmodels.duration.survfunc import CumIncidenceRight  # type: ignore[import-untyped]

    fitted = CumIncidenceRight(durations, cause)
    last = int(np.searchsorted(fitted.times, horizon, side="right")) - 1
    return {number + 1: float(curve[last]) if last >= 0 else 0.0 for number, curve in enumerate(fitted.cinc)}


@dataclass(frozen=True)
class _Steps:
    """Kaplan-Meier's steps up to a horizon."""

    times: Floats
    """Of losses, (steps,)."""
    lost: Floats
    at_risk: Floats
    survival: Floats
    """(steps + 1,): before the first one, and after each."""


def _steps(durations: Floats, lost: Mask, horizon: float) -> _Steps:
    times, counts = np.unique(durations[lost & (durations <= horizon)], return_counts=True)
    at_risk = len(durations) - np.searchsorted(np.sort(durations), times, side="left").astype(np.float64)
    survival = np.concatenate([[1.0], np.cumprod(1 - counts / at_risk)])
    return _Steps(times, counts.astype(np.float64), at_risk, survival)
