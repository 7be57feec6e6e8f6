"""What is held fixed when a signal is compared with a behaviour: the context in which the agent acted.

The policy chooses what it does, never what it is asked. A covariance over all requests mixes both: hard requests get
both lower rewards and more invalid calls, whatever the policy would be taught. So both sides are taken relative to what
is usual in their context, and only what is left is multiplied. Two ways, the same to who calls them:

- `Strata`: relative to the mean of the rows in the same cell. Nothing is assumed of the shape.
- `Regressors`: relative to a ridge regression on splines of the context and their products, fitted on other users'
  rows (cross-fitting, Chernozhukov et al. 2018), where contexts are too fine for cells. An error in the regression of
  one side does no harm where that of the other is right.

Both are linear in what they are given, so that parts of a signal still add up to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy import sparse

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

THIN = 10
"""Rows below which a cell is merged with its neighbours."""
FOLDS = 5
PENALTY = 1.0
"""Ridge penalty, on features of about unit size."""
_COUNTED = 1 << 20
"""Largest number up to which counting all of them beats sorting."""


Left = Callable[[Ints, Floats], Floats]
"""What is left of some rows' values: their numbers (n,) and values (n, M) in, (n, M) out."""
OUTSIDE = -1
"""Cell of a row that takes part in nothing."""


class Context(Protocol):
    """What is held fixed, of N rows."""

    def fitted(self, values: Floats) -> Left:
        """What is left of each column of (N, M) values; the mean of the product of two is their covariance within.

        By pieces, since all of it at once takes as much memory as the values.
        """
        ...


@dataclass(frozen=True)
class Strata:
    """Cells within which rows are compared."""

    codes: Ints
    """Cell of each row, from 0: (N,). `OUTSIDE` for rows that are in no mean, and must not be asked for."""

    def fitted(self, values: Floats) -> Left:
        """Distance from the mean of the cell, times sqrt(n / (n - 1)), so that covariances of small cells are unbiased.

        0 in a cell of a single row, which has nothing to be compared with.
        """
        inside = np.flatnonzero(self.codes >= 0)
        codes = self.codes[inside]
        sizes = np.bincount(codes)
        members = sparse.csr_matrix((np.ones(len(codes)), (codes, inside)), shape=(len(sizes), len(values)))
        means = (members @ values) / np.maximum(sizes, 1)[:, None]
        stretch = np.sqrt(sizes / np.maximum(sizes - 1, 1))

        def left(rows: Ints, of_rows: Floats) -> Floats:
            cell = self.codes[rows]
            found: Floats = of_rows - means.take(cell, axis=0)
            found *= stretch[cell, None]
            return found

        return left


@dataclass(frozen=True)
class Regressors:
    """Numbers on which both sides are regressed."""

    features: Floats
    """(N, D), finite."""
    clusters: Ints
    """(N,): rows of one user are never fitted and predicted at once. At least FOLDS of them."""

    def fitted(self, values: Floats) -> Left:
        """Distance from what the other folds' regression predicts."""
        # Here, not above: loading it takes a second, which a command that needs none of it should not pay.
        from sklearn.linear_model import Ridge
        from sklearn.model_selection import GroupKFold
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import PolynomialFeatures, SplineTransformer, StandardScaler

        smooth = [column for column in range(self.features.shape[1]) if len(np.unique(self.features[:, column])) > 2]
        steps = [] if not smooth else [_columns(SplineTransformer(n_knots=4), smooth)]
        left = np.empty(values.shape)
        for fit, predict in GroupKFold(FOLDS).split(self.features, groups=self.clusters):
            model = make_pipeline(
                *steps,
                PolynomialFeatures(2, interaction_only=True, include_bias=False),
                StandardScaler(),
                Ridge(PENALTY),
            )
            model.fit(self.features[fit], values[fit])
            left[predict] = values[predict] - model.predict(self.features[predict]).reshape(len(predict), -1)
        return lambda rows, _: np.asarray(left[rows], dtype=np.float64)


def _columns(transformer: object, columns: list[int]) -> object:
    """The transformer on some columns; the others pass as they are."""
    from sklearn.compose import ColumnTransformer

    return ColumnTransformer([("smooth", transformer, columns)], remainder="passthrough")


def merged(levels: Ints, thin: int = THIN, within: int = 0) -> Ints:
    """A cell for each row such that no cell has fewer than `thin` rows, unless all rows together are fewer.

    Or unless all rows with the same first `within` levels are, over which no cell reaches.

    `levels` (N, D) are bins of the context, the most important column first. The finest cells are all its distinct
    rows. From the last column to the first, cells that differ in that column only are looked at together: thin ones are
    put into one, and if that is thin still, into the smallest other. So what is given up first is the last column.
    """
    num_rows, depth = levels.shape
    cells = numbered(levels) if depth else np.zeros(num_rows, dtype=np.int64)
    for column in reversed(range(within, depth)):
        parents = numbered(levels[:, :column]) if column else np.zeros(num_rows, dtype=np.int64)
        # A cell that earlier steps made lies within one parent, or it would not have been looked at yet.
        sizes = np.bincount(cells)
        parent_of = np.zeros(len(sizes), dtype=np.int64)
        parent_of[cells] = parents
        into = np.arange(len(sizes))
        thin_cells = np.flatnonzero(sizes < thin)
        for parent in np.unique(parent_of[thin_cells]):
            few = thin_cells[parent_of[thin_cells] == parent]
            into[few] = few[0]
            if sizes[few].sum() < thin:
                others = np.setdiff1d(np.flatnonzero(parent_of == parent), few)
                if len(others):
                    into[few] = others[np.argmin(sizes[others])]
        cells = numbered(into[cells][:, None])
    return cells


def numbered(rows: Ints) -> Ints:
    """Number of each distinct row, in their order."""
    index = np.zeros(len(rows), dtype=np.int64)
    for column in range(rows.shape[1]):
        values = rows[:, column] - rows[:, column].min(initial=0)
        index = _ranks(index * (int(values.max(initial=0)) + 1) + values)
    return index


def _ranks(values: Ints) -> Ints:
    """Number of each distinct value, at least 0, in their order."""
    if values.max(initial=0) <= max(_COUNTED, len(values)):
        there = np.bincount(values) > 0
        return np.asarray((np.cumsum(there) - 1)[values], dtype=np.int64)
    return np.asarray(np.unique(values, return_inverse=True)[1], dtype=np.int64)
