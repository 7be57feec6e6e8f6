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

**Speed.** Slices that are unions of cells share what is left within contexts. Rows of a user that lie in the same
slices are a *lot*, and are summed once, apart for X and Y; each slice puts its lots together with its own R. Where
there are more than `GROUPS` users, groups of them, drawn at random, stand in the place of users: groups are independent
as users are, so the error is right on average, and itself known to about 1.6 %.

**Beware.** eta is not known here, so pressures compare with each other, not with rates. It is first order: a behaviour
near 0 or 1 cannot move further, whatever its pressure; read it beside the level. What is held fixed is what the context
has; a feature of the request that drives reward and behaviour, and is not in it, biases the estimate.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy import sparse, stats

from palomar.reward.contexts import Context, numbered

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

Status = Literal["ok", "no data", "no variation", "too few"]
"""``no data``: no row counts; ``no variation``: signal or statistic is the same in all rows of each context; ``too
few``: a value without interval, since fewer than `FEW` clusters, or rows that differ from the usual, are there."""

FEW = 10
"""Fewer clusters, or rows unlike the median row in the statistic or the signal, allow no interval: it would rest
on a handful of rows, and be too short."""

CONFIDENCE = 0.95

_ROUNDING = 1e-12
GROUPS = 2_048
"""Users, or groups of them, that standard errors are taken from at most."""
_PIECE = 8_192
"""Rows worked on at a time, so that what is made of them stays in the processor's cache."""
_PARTS = (2_000, 50_000)
"""Rows in which the unusual are looked for first; where there are enough, all others need no look."""


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

    def of(self, rows: Mask) -> Behaviours:
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
    error: Floats
    """Standard error; there also where too few leave no interval."""
    status: npt.NDArray[np.str_]
    """Each a `Status`."""
    level: Floats
    """R of each statistic: (K,)."""
    level_error: Floats
    """Its standard error: (K,)."""
    total: Floats
    """Sum of Y of each statistic: (K,). Estimates of parts pool with it as weight."""
    spread: Floats
    """Standard deviation of phi within contexts: (K,)."""
    signal_spread: Floats
    """Standard deviation of each signal within contexts: (S,)."""
    unusual: Ints
    """Rows unlike the median, of each statistic: (K,). Not all are counted where there are many."""
    signal_unusual: Ints
    """The same of each signal: (S,)."""
    n: Ints
    """Rows that count for each statistic: (K,)."""
    rows: int
    clusters: int


def pressure(signals: Floats, behaviours: Behaviours, context: Context, clusters: Ints) -> Pressures:
    """Pressure of each signal (a column of (N, S), finite) on each statistic, with `context` held fixed.

    `clusters` (N,) says which rows are of one user. All that is given has the same N rows. Takes O(N K S).
    Raises ValueError where a value is not finite.
    """
    everything = np.ones(len(signals), dtype=np.bool_)
    return pressure_in([everything], signals, behaviours, context, clusters)[0]


def pressure_in(
    slices: Sequence[Mask], signals: Floats, behaviours: Behaviours, context: Context, clusters: Ints
) -> list[Pressures]:
    """The same in each of several slices, given as masks (N,) of the rows.

    What is usual in a context is taken over all rows that the context holds, so that this is the pressure within a
    slice only where each of the context's cells lies wholly in it or outside.
    """
    for given in (signals, behaviours.numerator, behaviours.denominator):
        if not np.isfinite(given).all():
            raise ValueError("signals and statistics must be finite; what is not known belongs in no row")
    if not any(mask.any() for mask in slices):
        return [_none(behaviours, signals.shape[1]) for _ in slices]
    values = signals, behaviours.numerator, behaviours.denominator
    left = [context.fitted(each) for each in values]
    number = numbered(clusters[:, None])
    group = _groups(number)
    places = _Places.of(slices)
    order = np.argsort(group * len(places.within) + places.pattern, kind="stable")
    order = order[places.anywhere[order]]

    def lots(piece: Ints) -> _Lots:
        given = [each.take(piece, axis=0) for each in values]
        remains = [of(piece, each) for of, each in zip(left, given, strict=True)]
        return _lots(group[piece], places.pattern[piece], given, remains, len(places.within))

    with ThreadPoolExecutor(min(os.cpu_count() or 1, 2)) as pool:  # NumPy and SciPy let both run at once
        whole = _joined(list(pool.map(lots, _pieces(order, group[order]))))

        def found(index: int) -> Pressures:
            mask = slices[index]
            if not mask.any():
                return _none(behaviours, signals.shape[1])
            unusual = _unusual_in(behaviours.numerator, behaviours.denominator, mask)
            return _pressures(
                whole,
                places.within[:, index],
                unusual=unusual,
                signal_unusual=_unusual_in(signals, None, mask),
                clusters=int(np.count_nonzero(np.bincount(number[mask]))),
            )

        return list(pool.map(found, range(len(slices))))


def _groups(number: Ints) -> Ints:
    """Group of each row whose cluster has a number from 0: the cluster itself, where there are few."""
    num = int(number.max()) + 1
    if num <= GROUPS:
        return number
    # The same at every call. All groups have as many clusters.
    return np.asarray((np.random.default_rng(0).permutation(num) % GROUPS)[number], dtype=np.int64)


def _none(behaviours: Behaviours, num_signals: int) -> Pressures:
    """Of no rows at all."""
    num = len(behaviours.names)
    nothing, zeros = np.full((num, num_signals), np.nan), np.zeros(num, dtype=np.int64)
    status = np.full((num, num_signals), "no data", dtype="<U12")
    per_signal = np.zeros(num_signals, dtype=np.int64)
    unknown = np.full(num, np.nan)
    return Pressures(
        nothing, nothing, nothing, nothing, nothing, status, unknown, unknown, np.zeros(num), unknown,
        np.full(num_signals, np.nan), zeros, per_signal, zeros, 0, 0,
    )  # fmt: skip


@dataclass(frozen=True)
class _Places:
    """Which of G slices N rows lie in: P patterns of slices, as different rows have them."""

    pattern: Ints
    """Number of each row's pattern: (N,)."""
    within: Mask
    """Whether the rows of a pattern lie in a slice: (P, G)."""
    anywhere: Mask
    """Rows that lie in a slice: (N,)."""

    @classmethod
    def of(cls, slices: Sequence[Mask]) -> _Places:
        pattern = numbered(np.column_stack([mask.astype(np.int64) for mask in slices]))
        within = np.zeros((int(pattern.max()) + 1, len(slices)), dtype=np.bool_)
        for g, mask in enumerate(slices):
            within[pattern, g] = mask
        return cls(pattern, within, np.asarray(within.any(axis=1), dtype=np.bool_)[pattern])


@dataclass(frozen=True)
class _Lots:
    """Sums over L lots, the rows of a group that lie in the same slices, and over the P patterns of slices. a, f, g:
    what is left within contexts of signal, X and Y."""

    group: Ints
    """(L,), ascending."""
    pattern: Ints
    numerator: Floats
    """Of X: (L, K)."""
    denominator: Floats
    numerator_cross: Floats
    """Of a f: (S, L, K)."""
    denominator_cross: Floats
    """Of a g: (S, L, K)."""
    rows: Ints
    """Rows of each pattern: (P,)."""
    counts: Floats
    """Of rows that count, of X^2, f^2, f g and g^2: (P, 5, K)."""
    signal_counts: Floats
    """Of the signal's square and a^2: (P, 2, S)."""


def _lots(group: Ints, pattern: Ints, given: Sequence[Floats], remains: Sequence[Floats], patterns: int) -> _Lots:
    """Of rows sorted by group and pattern: signal, X and Y, as given and what is left of them within contexts."""
    signal, x, y = given
    a, f, g = remains
    starts = np.flatnonzero(np.r_[True, (group[1:] != group[:-1]) | (pattern[1:] != pattern[:-1])])
    members = _sparse(np.arange(len(group)), np.r_[starts, len(group)], len(group))
    numerator, denominator = members @ x, members @ y
    cross = np.empty((2, a.shape[1], *numerator.shape))
    for s, weight in enumerate(np.ascontiguousarray(a.T)):
        members.data = weight
        cross[0, s], cross[1, s] = members @ f, members @ g
    squares = np.concatenate([y > 0, x * x, f * f, f * g, g * g, signal * signal, a * a], axis=1)
    of_pattern = sparse.csr_matrix((np.ones(len(group)), (pattern, np.arange(len(group)))), (patterns, len(group)))
    sums = np.split(of_pattern @ squares, [5 * x.shape[1]], axis=1)
    return _Lots(
        group=group[starts],
        pattern=pattern[starts],
        numerator=numerator,
        denominator=denominator,
        numerator_cross=cross[0],
        denominator_cross=cross[1],
        rows=np.bincount(pattern, minlength=patterns),
        counts=sums[0].reshape(patterns, 5, -1),
        signal_counts=sums[1].reshape(patterns, 2, -1),
    )


def _joined(parts: Sequence[_Lots]) -> _Lots:
    """Of all rows, from parts that share no group."""

    def over_lots(name: str, axis: int = 0) -> Any:
        return np.concatenate([getattr(part, name) for part in parts], axis=axis)

    def over_patterns(name: str) -> Any:
        return np.sum([getattr(part, name) for part in parts], axis=0)

    return _Lots(
        group=over_lots("group"),
        pattern=over_lots("pattern"),
        numerator=over_lots("numerator"),
        denominator=over_lots("denominator"),
        numerator_cross=over_lots("numerator_cross", axis=1),
        denominator_cross=over_lots("denominator_cross", axis=1),
        rows=over_patterns("rows"),
        counts=over_patterns("counts"),
        signal_counts=over_patterns("signal_counts"),
    )


def _sparse(places: Ints, bounds: Ints, width: int) -> sparse.csr_matrix:
    """Rows of ones at the places from one bound to the next.

    Its product makes sums over groups, many times as fast as `np.add.reduceat`.
    """
    parts = np.ones(len(places)), places.astype(np.int32), bounds.astype(np.int32)
    return sparse.csr_matrix(parts, shape=(len(bounds) - 1, width))


def _pieces(order: Ints, owner: Ints) -> list[Ints]:
    """Rows by owner, cut between owners into pieces of about `_PIECE` rows."""
    starts = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]])
    places = np.searchsorted(starts, np.arange(_PIECE, len(order), _PIECE))
    cuts = np.unique(starts[places[places < len(starts)]])
    return np.split(order, cuts)


def _pressures(lots: _Lots, within: Mask, *, unusual: Ints, signal_unusual: Ints, clusters: int) -> Pressures:
    """In the slice whose rows have the patterns that are `within`."""
    rows = int(lots.rows[within].sum())
    counted, square, left, left_both, denominator_left = lots.counts[within].sum(axis=0)
    signal_square, signal_left = lots.signal_counts[within].sum(axis=0)
    inside = np.flatnonzero(within[lots.pattern])
    group = lots.group[inside]
    starts = np.flatnonzero(np.r_[True, group[1:] != group[:-1]])
    members = _sparse(inside, np.r_[starts, len(inside)], len(lots.group))
    x, y = members @ lots.numerator, members @ lots.denominator
    some, total = counted > 0, y.sum(axis=0)
    level = np.divide(x.sum(axis=0), total, out=np.zeros(len(total)), where=some)
    mean = np.where(some, total / rows, 1.0)
    phi, share = (x - level * y) / mean, y / mean  # sums over each group

    shape = (len(signal_left), len(level))
    value, error = np.empty(shape), np.empty(shape)
    correction = len(starts) / max(len(starts) - 1, 1)  # for the degree of freedom that the mean takes
    for s in range(len(signal_left)):
        share_products = members @ lots.denominator_cross[s] / mean
        products = members @ lots.numerator_cross[s] / mean - level * share_products
        value[s] = products.sum(axis=0) / rows
        influence = products - share_products.sum(axis=0) / rows * phi - value[s] * share
        error[s] = np.sqrt(correction * np.einsum("uk,uk->k", influence, influence)) / rows

    # Is all that is left rounding?
    parts = left + level**2 * denominator_left
    phi_left = parts - 2 * level * left_both
    varies = (phi_left > _ROUNDING * parts) & (parts > _ROUNDING**2 * square)
    varies = varies & (signal_left > _ROUNDING**2 * signal_square)[:, None]
    enough = (np.minimum(np.minimum(unusual, signal_unusual[:, None]), clusters) >= FEW) & (error > 0)
    status = np.where(~some, "no data", np.where(~varies, "no variation", np.where(enough, "ok", "too few")))
    known = (status == "ok") | (status == "too few")
    value, error = np.where(known, value, np.nan), np.where(known, error, np.nan)
    sure = np.where(status == "ok", error, np.nan)
    reach = quantile(len(starts)) * sure
    return Pressures(
        value=value.T,
        low=(value - reach).T,
        high=(value + reach).T,
        z=(value / sure).T,
        error=error.T,
        status=status.T,
        level=np.where(some, level, np.nan),
        level_error=np.where(some, np.sqrt(correction * np.einsum("uk,uk->k", phi, phi)) / rows, np.nan),
        total=total,
        spread=np.where(some, np.sqrt(np.maximum(phi_left, 0.0) / rows) / mean, np.nan),
        signal_spread=np.sqrt(signal_left / rows),
        unusual=unusual,
        signal_unusual=signal_unusual,
        n=counted.astype(np.int64),
        rows=rows,
        clusters=clusters,
    )


def quantile(clusters: int | Ints, confidence: float = CONFIDENCE) -> Floats:
    """Standard errors that an interval reaches to either side."""
    return np.asarray(stats.t.ppf((1 + confidence) / 2, np.maximum(np.asarray(clusters) - 1, 1)), dtype=np.float64)


def _unusual_in(values: Floats, denominator: Floats | None, mask: Mask) -> Ints:
    """Rows of a slice that count and differ from the median, for each column of (N, M) values.

    Where a part of the rows holds enough, only those of the part are counted.
    """
    rows = np.flatnonzero(mask)
    found = np.zeros(values.shape[1], dtype=np.int64)
    still = np.arange(len(found))
    for part in (*_PARTS, len(rows)):
        some = rows[:: max(len(rows) // part, 1)]
        sure = np.zeros(len(still), dtype=np.bool_)
        for index, column in enumerate(still):
            lot = values[some, column]
            if denominator is not None:
                lot = lot[denominator[some, column] > 0]
            found[column], sure[index] = _unusual(lot)
        if len(some) == len(rows):
            break
        still = still[~sure]
    return found


def _unusual(values: Floats) -> tuple[int, bool]:
    """Values that differ from their median: those that carry a rare event, about half of any others.

    And whether at least `FEW` would be found in any lot that holds these, whatever its median: where so many lie on
    each side of a value, none can be the value of all others.
    """
    if not len(values):
        return 0, False
    middle = np.median(values)
    below, above = np.count_nonzero(values < middle), np.count_nonzero(values > middle)
    sure = max(min(below, len(values) - below), min(above, len(values) - above)) >= FEW
    return int(below + above), bool(sure)
