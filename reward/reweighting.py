"""The smallest change of weights that meets linear demands on them: the programme inside a patch.

Pressure is linear in the weights, so "pressure on this behaviour has that sign, by a margin of so many standard errors"
is the demand

    row . w  -  errors * sqrt(w' covariance w)  >=  at_least

which is a line without a covariance and a second-order cone with one: the standard error is that of the *new* weights.
Minimised is the size of the change, each coordinate in units of its scale (for a relative change: its old weight), as
a sum of squares, of sizes, or the largest. Quadratic, linear and cone programmes are solved alike, by Clarabel: an
interior-point method without randomness or threads, so the same demands give the same weights.

One alternative policy and no covariance is the case of policy teaching (Zhang, Parkes, Chen 2009): honest beats hack by
a margin. A local answer: the rows are measured under the current policy, and the optimiser moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy import sparse

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
    explain: bool = True,
) -> Reweighting:
    """The weights nearest to `weights` that meet all demands within the box.

    `names` are those of the K weights, for telling which bound conflicts. The change of coordinate k counts as
    ``change / scale[k]`` (1 without a scale). Weights that meet everything already come back as they are. Without
    `explain` no conflict is looked for, which takes a programme for each demand and bound.
    """
    box = Box.open(len(weights)) if box is None else box
    unit = np.ones(len(weights)) if scale is None else scale
    if box.holds(weights) and all(demand.met(weights) for demand in demands):
        return Reweighting(weights.copy(), 0.0)
    problem = _Problem(weights, unit, norm)
    found = problem.solve(demands, box)
    if found is None:
        return Reweighting(None, None, conflict=_conflict(problem, demands, box, names) if explain else ())
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
            tried = np.where(np.abs(moved) <= 1e-6 * np.abs(before), 0.0, tried)
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
    """The programme, in coordinates of one unit of scale each: the variables are the K changes, then those that bound
    their sizes (K for ``l1``, one for ``linf``)."""

    weights: Floats
    scale: Floats
    norm: Norm

    def solve(self, demands: Sequence[Demand], box: Box) -> Floats | None:
        """The weights, or None where no weights meet all.

        Clarabel's form: least x'Px / 2 + q'x with b - Ax in a product of cones.
        """
        # Here, not above: only a patch needs it.
        clarabel: Any = import_module("clarabel")

        size = len(self.weights)
        extra = {"l2": 0, "l1": size, "linf": 1}[self.norm]
        quadratic = sparse.diags_array([2.0] * size + [0.0] * extra).tocsc() if self.norm == "l2" else sparse.csc_array(
            (size + extra, size + extra))  # fmt: skip
        linear = np.r_[np.zeros(size), np.ones(extra)]
        flat = [self._bounds(box), self._sizes(extra)]
        cones = []
        for demand in demands:
            above, constant, spread, spread_constant = self._rows(demand)
            if len(spread):
                cones.append((np.vstack([above, spread]), np.r_[constant, spread_constant]))
            else:
                flat.append((above, np.array([constant])))
        rows = [np.pad(given, ((0, 0), (0, size + extra - given.shape[1]))) for given, _ in [*flat, *cones]]
        offsets = [constant for _, constant in [*flat, *cones]]
        num_flat = sum(len(constant) for _, constant in flat)
        kinds = [clarabel.NonnegativeConeT(num_flat)] if num_flat else []
        kinds += [clarabel.SecondOrderConeT(len(constant)) for _, constant in cones]
        options = clarabel.DefaultSettings()
        options.verbose = False
        options.max_threads = 1
        options.tol_gap_abs = options.tol_gap_rel = options.tol_feas = 1e-10
        solver = clarabel.DefaultSolver(
            quadratic, linear, sparse.csc_array(-np.vstack(rows)), np.concatenate(offsets), kinds, options
        )
        answer = solver.solve()
        if answer.status not in (clarabel.SolverStatus.Solved, clarabel.SolverStatus.AlmostSolved):
            return None
        found = self.weights + np.asarray(answer.x[:size], dtype=np.float64) * self.scale
        # What an interior-point method calls solved may miss a demand by its tolerance, and that is no rounding.
        missed = [each for each in demands if each.margin(found) < -1e-6 * max(float(np.abs(each.row).sum()), 1e-12)]
        return None if missed else found

    def _bounds(self, box: Box) -> tuple[Floats, Floats]:
        """Rows and constants that are at least 0 within the box."""
        identity = np.eye(len(self.weights))
        low, high = (box.low - self.weights) / self.scale, (box.high - self.weights) / self.scale
        below, above = np.isfinite(low), np.isfinite(high)
        return np.vstack([identity[below], -identity[above]]), np.r_[-low[below], high[above]]

    def _sizes(self, extra: int) -> tuple[Floats, Floats]:
        """Rows that hold each change within the variable that bounds its size."""
        identity = np.eye(len(self.weights))
        if not extra:
            return identity[:0], np.zeros(0)
        bound = identity if self.norm == "l1" else np.ones((len(self.weights), 1))
        return np.vstack([np.hstack([identity, bound]), np.hstack([-identity, bound])]), np.zeros(2 * len(identity))

    def _rows(self, demand: Demand) -> tuple[Floats, float, Floats, Floats]:
        """The demand on the change: above + its constant is at least the length of spread + its constants.

        In numbers of about unit size.
        """
        row = demand.row * self.scale
        unit = float(np.abs(row).max(initial=0.0)) or 1.0
        above, constant = row[None, :] / unit, (float(demand.row @ self.weights) - demand.at_least) / unit
        none = np.zeros((0, len(row))), np.zeros(0)
        if demand.covariance is None or not demand.errors:
            return above, constant, *none
        values, vectors = np.linalg.eigh((demand.covariance + demand.covariance.T) / 2)
        root = demand.errors / unit * (vectors * np.sqrt(np.clip(values, 0.0, None))).T
        root = root[np.abs(root).max(axis=1) > 0]
        return (above, constant, root * self.scale, root @ self.weights) if len(root) else (above, constant, *none)


def _conflict(problem: _Problem, demands: Sequence[Demand], box: Box, names: Sequence[str]) -> tuple[str, ...]:
    """Demands and bounds of which none can be spared: an irreducible set, by leaving out one after the other.

    What can be spared goes in this order: all demands but the last, as given, then bounds, then the last demand; so put
    what is to be told last. A coordinate that is fixed counts as given, not as a bound.
    """
    fixed = box.low == box.high
    bounded = [k for k in range(len(names)) if not fixed[k] and np.isfinite([box.low[k], box.high[k]]).any()]

    def impossible(some: Sequence[Demand], bounds: Sequence[int]) -> bool:
        held = fixed.copy()
        held[list(bounds)] = True
        freed = Box(np.where(held, box.low, -np.inf), np.where(held, box.high, np.inf))
        return problem.solve(some, freed) is None

    kept = list(demands)
    for demand in demands[:-1]:
        fewer = [each for each in kept if each is not demand]
        if impossible(fewer, bounded):
            kept = fewer
    for k in list(bounded):
        looser = [each for each in bounded if each != k]
        if impossible(kept, looser):
            bounded = looser
    if len(kept) > 1 and impossible(kept[:-1], bounded):
        kept = kept[:-1]
    return (*(each.name for each in kept), *(f"the bounds of {names[k]}" for k in bounded))
