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

**Speed.** With r() for what is left within contexts, D_u = sum over the rows of user u of r(A) r(phi), and p and q the
pressures on phi and on Y / E[Y], the influence of u sums to D_u - q Phi_u - p Y_u. Its square over users is made of six
sums, of which only that of D_u^2 needs a pass per signal. Slices that are unions of cells share what is left.

**Beware.** eta is not known here, so pressures compare with each other, not with rates. It is first order: a behaviour
near 0 or 1 cannot move further, whatever its pressure; read it beside the level. What is held fixed is what the context
has; a feature of the request that drives reward and behaviour, and is not in it, biases the estimate.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import sparse, stats
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from palomar.reward.contexts import Context

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
    chosen = np.logical_or.reduce(slices)
    order = np.argsort(clusters, kind="stable")
    order = order[chosen[order]]
    if not len(order):
        return [_none(behaviours, signals.shape[1]) for _ in slices]
    values = signals, behaviours.numerator, behaviours.denominator
    left = [context.fitted(each) for each in values]

    def sums(piece: Ints) -> list[_Sums | None]:
        given = [each.take(piece, axis=0) for each in values]
        rows = _Rows(clusters[piece], *given[1:], *(of(piece, each) for of, each in zip(left, given, strict=True)))
        return [
            _sums(rows, mask[piece], level) if level.rows else None for mask, level in zip(slices, levels, strict=True)
        ]

    # BLAS would take all cores for each of many small products. Two threads of ours do better.
    with _libraries().limit(limits=1, user_api="blas"), ThreadPoolExecutor(min(os.cpu_count() or 1, 2)) as pool:
        levels = _levels(slices, *values)
        parts = list(pool.map(sums, _pieces(order, clusters[order])))
    return [
        _pressures(
            _added([part[g] for part in parts]),
            level,
            _unusual_in(behaviours.numerator, behaviours.denominator, mask),
            _unusual_in(signals, None, mask),
        )
        if level.rows
        else _none(behaviours, signals.shape[1])
        for g, (mask, level) in enumerate(zip(slices, levels, strict=True))
    ]


@cache
def _libraries() -> ThreadpoolController:
    """The BLAS in use; to look for it takes tens of milliseconds."""
    return ThreadpoolController()


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
class _Levels:
    """Levels of K statistics in one slice."""

    rows: int
    counts: Ints
    """Rows that count: (K,)."""
    total: Floats
    """Sum of Y: (K,)."""
    level: Floats
    """R: (K,); 0 where no row counts."""
    mean: Floats
    """E[Y]: (K,); 1 where no row counts."""
    square: Floats
    """Sum of X^2: (K,)."""
    signal_square: Floats
    """Sum of each signal's square: (S,)."""


def _levels(slices: Sequence[Mask], signals: Floats, numerator: Floats, denominator: Floats) -> list[_Levels]:
    """Of each slice."""
    num = numerator.shape[1]
    sums: Floats | float = 0.0
    for start in range(0, len(signals), _PIECE):
        rows = slice(start, start + _PIECE)
        x, y, signal = numerator[rows], denominator[rows], signals[rows]
        values = np.concatenate([x, y, y > 0, x**2, signal**2], axis=1)
        sums = sums + np.stack([mask[rows] for mask in slices]).astype(np.float64) @ values
    found = []
    for mask, row in zip(slices, np.asarray(sums), strict=True):
        x, y, counted, square, signal_square = np.split(row, [num, 2 * num, 3 * num, 4 * num])
        rows_in = int(np.count_nonzero(mask))
        some_count = counted > 0
        level = np.divide(x, y, out=np.zeros(num), where=some_count)
        mean = np.where(some_count, y / max(rows_in, 1), 1.0)
        found.append(_Levels(rows_in, counted.astype(np.int64), y, level, mean, square, signal_square))
    return found


@dataclass(frozen=True)
class _Sums:
    """What a slice's estimates are made of; `_added` over pieces that share no cluster. a, f, g: what is left within
    contexts of signal, phi and Y; Phi, Y, D: sums over a cluster of phi, Y / E[Y] and a f."""

    clusters: Floats
    cross: Floats
    """Of a f: (S, K)."""
    share_cross: Floats
    """Of a g / E[Y]: (S, K)."""
    square: Floats
    """Of D^2 over clusters: (S, K)."""
    with_phi: Floats
    """Of D Phi."""
    with_share: Floats
    """Of D Y."""
    phi_phi: Floats
    """Of Phi^2: (K,)."""
    phi_share: Floats
    share_share: Floats
    left: Floats
    """Of f^2: (K,)."""
    signal_left: Floats
    """Of a^2: (S,)."""


def _added(parts: Sequence[_Sums | None]) -> _Sums:
    known = [part for part in parts if part is not None]
    return _Sums(*(np.sum([getattr(part, name) for part in known], axis=0) for name in _Sums.__dataclass_fields__))


def _pieces(order: Ints, owner: Ints) -> list[Ints]:
    """Rows by cluster, cut between clusters into pieces of about `_PIECE` rows."""
    starts = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]])
    places = np.searchsorted(starts, np.arange(_PIECE, len(order), _PIECE))
    cuts = np.unique(starts[places[places < len(starts)]])
    return np.split(order, cuts)


@dataclass(frozen=True)
class _Rows:
    """Some rows sorted by their owner, and what is left of them within contexts."""

    owner: Ints
    numerator: Floats
    denominator: Floats
    signal_left: Floats
    numerator_left: Floats
    denominator_left: Floats


def _sums(rows: _Rows, mask: Mask, level: _Levels) -> _Sums:
    """Of the rows of one slice, n of them. In small steps on arrays that lie in one piece: so it is several times
    faster."""
    chosen = np.flatnonzero(mask)
    num_rows, num = len(chosen), len(level.level)
    owner = rows.owner[chosen]
    starts = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]][:num_rows])
    bounds = np.r_[starts, num_rows].astype(np.int32)
    a = np.ascontiguousarray(rows.signal_left.take(chosen, axis=0).T)
    g = rows.denominator_left.take(chosen, axis=0)
    f = rows.numerator_left.take(chosen, axis=0)
    f *= np.tile(1 / level.mean, (num_rows, 1))
    f -= g * np.tile(level.level / level.mean, (num_rows, 1))
    # Weighted sums over each cluster are a sparse product; `np.add.reduceat` takes many times as long.
    shape = (len(starts), len(mask))
    members = sparse.csr_matrix((np.ones(num_rows), chosen.astype(np.int32), bounds), shape=shape)
    share_sum = members @ rows.denominator / level.mean
    phi_sum = members @ rows.numerator / level.mean - level.level * share_sum
    weighted = sparse.csr_matrix((a[0], np.arange(num_rows, dtype=np.int32), bounds), shape=(len(starts), num_rows))
    by_cluster = np.empty((3, len(a), num))
    for s, signal in enumerate(a):
        weighted.data = signal
        products = weighted @ f
        for which, other in enumerate((products, phi_sum, share_sum)):
            np.einsum("uk,uk->k", products, other, out=by_cluster[which, s])
    return _Sums(
        clusters=np.array(len(starts), dtype=np.float64),
        cross=a @ f,
        share_cross=a @ g / level.mean,
        square=by_cluster[0],
        with_phi=by_cluster[1],
        with_share=by_cluster[2],
        phi_phi=np.einsum("uk,uk->k", phi_sum, phi_sum),
        phi_share=np.einsum("uk,uk->k", phi_sum, share_sum),
        share_share=np.einsum("uk,uk->k", share_sum, share_sum),
        left=np.einsum("nk,nk->k", f, f),
        signal_left=np.einsum("sn,sn->s", a, a),
    )


def _pressures(sums: _Sums, level: _Levels, unusual: Ints, signal_unusual: Ints) -> Pressures:
    """From the sums of a slice."""
    clusters = int(sums.clusters)
    value, share = sums.cross / level.rows, sums.share_cross / level.rows
    squares = (
        sums.square
        - 2 * share * sums.with_phi
        - 2 * value * sums.with_share
        + share**2 * sums.phi_phi
        + 2 * share * value * sums.phi_share
        + value**2 * sums.share_share
    )
    correction = clusters / max(clusters - 1, 1)  # for the degree of freedom that the mean takes
    # What is left by the differences of large sums is no variance.
    error = np.sqrt(correction * np.where(squares > _ROUNDING * sums.square, squares, 0.0)) / level.rows
    # Or is all that is left rounding?
    varies = np.sqrt(sums.left) * level.mean > _ROUNDING * np.sqrt(level.square)
    varies = varies & (np.sqrt(sums.signal_left) > _ROUNDING * np.sqrt(level.signal_square))[:, None]
    enough = (np.minimum(np.minimum(unusual, signal_unusual[:, None]), clusters) >= FEW) & (error > 0)
    status = np.where(
        level.counts == 0, "no data", np.where(~varies, "no variation", np.where(enough, "ok", "too few"))
    )
    known = (status == "ok") | (status == "too few")
    value, error = np.where(known, value, np.nan), np.where(known, error, np.nan)
    sure = np.where(status == "ok", error, np.nan)
    reach = quantile(clusters) * sure
    some = level.counts > 0
    return Pressures(
        value=value.T,
        low=(value - reach).T,
        high=(value + reach).T,
        z=(value / sure).T,
        error=error.T,
        status=status.T,
        level=np.where(some, level.level, np.nan),
        level_error=np.where(some, np.sqrt(correction * sums.phi_phi) / level.rows, np.nan),
        total=level.total,
        spread=np.where(some, np.sqrt(sums.left / level.rows), np.nan),
        signal_spread=np.sqrt(sums.signal_left / level.rows),
        unusual=unusual,
        signal_unusual=signal_unusual,
        n=level.counts,
        rows=level.rows,
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
