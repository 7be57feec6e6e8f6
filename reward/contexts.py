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

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

THIN = 10
"""Rows below which a cell is merged with its neighbours."""
FOLDS = 5
PENALTY = 1.0
"""Ridge penalty, on features of about unit size."""


class Context(Protocol):
    """What is held fixed, of N rows."""

    def residuals(self, values: Floats) -> Floats:
        """What is left of each column of (N, M) values; the mean of the product of two is their covariance within."""
        ...


@dataclass(frozen=True)
class Strata:
    """Cells within which rows are compared."""

    codes: Ints
    """Cell of each row: (N,)."""

    def residuals(self, values: Floats) -> Floats:
        """Distance from the mean of the cell, times sqrt(n / (n - 1)), so that covariances of small cells are unbiased.

        0 in a cell of a single row, which has nothing to be compared with.
        """
        _, index, sizes = np.unique(self.codes, return_inverse=True, return_counts=True)
        stretch = np.sqrt(sizes / np.maximum(sizes - 1, 1))
        left = np.empty(values.shape)
        for column in range(values.shape[1]):
            means = np.bincount(index, weights=values[:, column], minlength=len(sizes)) / sizes
            left[:, column] = (values[:, column] - means[index]) * stretch[index]
        return left


@dataclass(frozen=True)
class Regressors:
    """Numbers on which both sides are regressed."""

    features: Floats
    """(N, D), finite."""
    clusters: Ints
    """(N,): rows of one user are never fitted and predicted at once. At least FOLDS of them."""

    def residuals(self, values: Floats) -> Floats:
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
        return left


def _columns(transformer: object, columns: list[int]) -> object:
    """The transformer on some columns; the others pass as they are."""
    from sklearn.compose import ColumnTransformer

    return ColumnTransformer([("smooth", transformer, columns)], remainder="passthrough")


def merged(levels: Ints, thin: int = THIN) -> Ints:
    """A cell for each row such that no cell has fewer than `thin` rows, unless all rows together are fewer.

    `levels` (N, D) are bins of the context, the most important column first. The finest cells are all its distinct
    rows. From the last column to the first, cells that differ in that column only are looked at together: thin ones are
    put into one, and if that is thin still, into the smallest other. So what is given up first is the last column.
    """
    num_rows, depth = levels.shape
    cells = _index(levels) if depth else np.zeros(num_rows, dtype=np.int64)
    for column in reversed(range(depth)):
        parents = _index(levels[:, :column]) if column else np.zeros(num_rows, dtype=np.int64)
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
        cells = _index(into[cells][:, None])
    return cells


def _index(rows: Ints) -> Ints:
    """Number of each distinct row, in their order."""
    _, index = np.unique(rows, axis=0, return_inverse=True)
    return np.asarray(index, dtype=np.int64).reshape(-1)
