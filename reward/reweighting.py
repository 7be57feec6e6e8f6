"""The smallest change of weights that meets linear demands on them: the programme inside a patch.

Pressure is linear in the weights, so "pressure on this behaviour has that sign, by a margin of so many standard errors"
is the demand

    row . w  -  errors * sqrt(w' covariance w)  >=  at_least

which is a line without a covariance and a second-order cone with one: the standard error is that of the *new* weights.
Minimised is the size of the change, each coordinate in units of its scale (for a relative change: its old weight), as
a sum of squares, of sizes, or the largest. Quadratic, linear and cone programmes are solved alike, by Clarabel through
cvxpy: an interior-point method without randomness or threads, so the same demands give the same weights.

One alternative policy and no covariance is the case of policy teaching (Zhang, Parkes, Chen 2009): honest beats hack by
a margin. A local answer: the rows are measured under the current policy, and the optimiser moves.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Norm = Literal["l2", "l1", "linf"]

_SLACK = 1e-9
"""Share of its size by which a demand may fail and still count as met: rounding."""
_NUDGES = (0.0, 0.005, 0.01, 0.02, 0.05)
_DIGITS = (2, 3, 4, 6, 9)


@dataclass(frozen=True)
class Demand:
    """What the weights are to meet."""

    name: str
    row: Floats
    """(K,)"""
    at_least: float = 0.0
    covariance: Floats | None = None
    """Of the row's estimate: (K, K)."""
    errors: float = 0.0
    """Standard errors that the margin covers."""

    def margin(self, weights: Floats) -> float:
        """By how much the weights meet it; below 0 = not met."""
        error = 0.0
        if self.covariance is not None and self.errors:
            error = float(np.sqrt(max(float(weights @ self.covariance @ weights), 0.0)))
        return float(self.row @ weights) - self.errors * error - self.at_least

    def met(self, weights: Floats) -> bool:
        """Whether the weights meet it, up to rounding."""
        size = float(np.abs(self.row) @ np.abs(weights)) + abs(self.at_least)
        return self.margin(weights) >= -_SLACK * max(size, _SLACK)


@dataclass(frozen=True)
class Box:
    """Where the weights may lie; arrays of shape (K,), infinite where open."""

    low: Floats
    high: Floats

    @classmethod
    def open(cls, size: int) -> Box:
        """No bound at all."""
        return cls(np.full(size, -np.inf), np.full(size, np.inf))

    def holds(self, weights: Floats) -> bool:
        """Whether the weights lie in it."""
        return bool(((weights >= self.low - 1e-12) & (weights <= self.high + 1e-12)).all())


@dataclass(frozen=True)
class Reweighting:
    """What the programme found."""

    weights: Floats | None
    """None: no weights meet all demands."""
    change: float | None
    """Size of the change, in the norm asked for."""
    binding: tuple[str, ...] = ()
    """Demands that hold it back: met with nothing to spare."""
    conflict: tuple[str, ...] = ()
    """Where nothing is found: demands and bounds that cannot be met together, though they can without any one."""


def smallest_change(
    weights: Floats,
    demands: Sequence[Demand],
    *,
    names: Sequence[str],
    box: Box | None = None,
    scale: Floats | None = None,
    norm: Norm = "l2",
) -> Reweighting:
    """The weights nearest to `weights` that meet all demands within the box.

    `names` are those of the K weights, for telling which bound conflicts. The change of coordinate k counts as
    ``change / scale[k]`` (1 without a scale). Weights that meet everything already come back as they are.
    """
    box = Box.open(len(weights)) if box is None else box
    unit = np.ones(len(weights)) if scale is None else scale
    if box.holds(weights) and all(demand.met(weights) for demand in demands):
        return Reweighting(weights.copy(), 0.0)
    problem = _Problem(weights, unit, norm)
    found = problem.solve(demands, box)
    if found is None:
        return Reweighting(None, None, conflict=_conflict(problem, demands, box, names))
    found = np.clip(found, box.low, box.high)
    binding = tuple(each.name for each in demands if _relative(each, found) < 1e-6)
    return Reweighting(found, _size((found - weights) / unit, norm), binding=binding)


def best(demand: Demand, weights: Floats, box: Box) -> float:
    """The most that the demand's row can gain over `weights` within the box; infinite without bounds that matter."""
    ends = np.where(demand.row > 0, box.high, box.low)
    with np.errstate(invalid="ignore"):
        gain = np.where(demand.row != 0, demand.row * (ends - weights), 0.0)
    return float(gain.sum())


def readable(before: Floats, found: Floats, demands: Sequence[Demand], box: Box) -> Floats:
    """The found weights in as few digits as still meet the demands; those that did not change stay as they are.

    A little further along the same way where rounding would fall short. The found ones themselves where nothing helps.
    """
    for digits in _DIGITS:
        for nudge in _NUDGES:
            moved = before + (found - before) * (1 + nudge)
            tried = np.array([float(f"{value:.{digits}g}") for value in moved])
            tried = np.where(np.abs(found - before) <= 1e-7 * np.maximum(np.abs(before), 1.0), before, tried)
            if box.holds(tried) and all(demand.met(tried) for demand in demands):
                return tried
    return found


def _relative(demand: Demand, weights: Floats) -> float:
    size = float(np.abs(demand.row) @ np.abs(weights)) + abs(demand.at_least)
    return abs(demand.margin(weights)) / size if size else 0.0


def _size(change: Floats, norm: Norm) -> float:
    order = {"l2": 2, "l1": 1, "linf": np.inf}[norm]
    return float(np.linalg.norm(change, ord=order))


@dataclass(frozen=True)
class _Problem:
    """The programme, in coordinates of one unit of scale each."""

    weights: Floats
    scale: Floats
    norm: Norm

    def solve(self, demands: Sequence[Demand], box: Box) -> Floats | None:
        """The weights, or None where no weights meet all."""
        # Here, not above: loading it takes a second, which only a patch should pay.
        cvxpy: Any = import_module("cvxpy")

        change = cvxpy.Variable(len(self.weights))
        limits = [_cone(cvxpy, demand, self.weights, self.scale, change) for demand in demands]
        low, high = (box.low - self.weights) / self.scale, (box.high - self.weights) / self.scale
        for bound, side in ((low, 1.0), (-high, -1.0)):
            closed = np.flatnonzero(np.isfinite(bound))
            if len(closed):
                limits.append(side * change[closed] >= bound[closed])
        aim = {
            "l2": lambda: cvxpy.sum_squares(change),
            "l1": lambda: cvxpy.norm1(change),
            "linf": lambda: cvxpy.norm_inf(change),
        }[self.norm]()
        problem = cvxpy.Problem(cvxpy.Minimize(aim), limits)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # an inaccurate answer is checked below
                problem.solve(solver=cvxpy.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
        except cvxpy.SolverError:
            return None
        if problem.status not in ("optimal", "optimal_inaccurate") or change.value is None:
            return None
        found = self.weights + np.asarray(change.value, dtype=np.float64) * self.scale
        # What an interior-point method calls optimal may miss a demand by its tolerance, and that is no rounding.
        missed = [each for each in demands if each.margin(found) < -1e-6 * max(float(np.abs(each.row).sum()), 1e-12)]
        return None if missed else found


def _cone(cvxpy: Any, demand: Demand, weights: Floats, scale: Floats, change: Any) -> Any:
    """The demand on the change, in numbers of about unit size."""
    row = demand.row * scale
    unit = float(np.abs(row).max(initial=0.0)) or 1.0
    left = row / unit @ change + (demand.row @ weights - demand.at_least) / unit
    if demand.covariance is None or not demand.errors:
        return left >= 0
    values, vectors = np.linalg.eigh((demand.covariance + demand.covariance.T) / 2)
    root = (vectors * np.sqrt(np.clip(values, 0.0, None))).T
    root = root[np.abs(root).max(axis=1) > 0] if np.abs(root).max(initial=0.0) > 0 else np.zeros((0, len(weights)))
    if not len(root):
        return left >= 0
    factor = demand.errors / unit
    return cvxpy.norm(factor * (root * scale) @ change + factor * root @ weights) <= left


def _conflict(problem: _Problem, demands: Sequence[Demand], box: Box, names: Sequence[str]) -> tuple[str, ...]:
    """Demands and bounds of which none can be spared: an irreducible set, by leaving out one after the other.

    The first that can be spared go first, so what stays names the last demands given: put the ones to be told last.
    """
    bounded = [index for index in range(len(names)) if np.isfinite([box.low[index], box.high[index]]).any()]
    kept_demands, kept_bounds = list(demands), list(bounded)

    def impossible(some: Sequence[Demand], bounds: Sequence[int]) -> bool:
        low, high = np.full(len(names), -np.inf), np.full(len(names), np.inf)
        low[list(bounds)], high[list(bounds)] = box.low[list(bounds)], box.high[list(bounds)]
        return problem.solve(some, Box(low, high)) is None

    for index in bounded:
        fewer = [each for each in kept_bounds if each != index]
        if impossible(kept_demands, fewer):
            kept_bounds = fewer
    for demand in demands:
        less = [each for each in kept_demands if each is not demand]
        if less and impossible(less, kept_bounds):
            kept_demands = less
    return (*(each.name for each in kept_demands), *(f"the bounds of {names[index]}" for index in kept_bounds))
