"""The columns of facts as NumPy arrays, for terms and conditions.

Only facts can be read here. The reward, the outcome and anything a detector found are not facts, so no term can be
paid by them: training against a monitor teaches hiding, and an outcome that is trained on no longer referees.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from palomar.data.errors import LakeError
from palomar.data.observations import FACTS

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


class Rows:
    """A table of facts, column by column; arrays have shape (rows,)."""

    def __init__(self, facts: pa.Table) -> None:
        """Raises LakeError where a column of FACTS is missing: a column that vanished is not a column of nulls."""
        missing = [name for name in FACTS.names if name not in facts.column_names]
        if missing:
            raise LakeError(f"facts lack the column{'s' if len(missing) > 1 else ''} {', '.join(missing)}")
        self._facts = facts.select(FACTS.names)

    def __len__(self) -> int:
        return int(self._facts.num_rows)

    def column(self, name: str) -> pa.ChunkedArray:
        """The Arrow column. Raises KeyError for a name that is not one of FACTS."""
        if name not in FACTS.names:
            raise KeyError(f"{name!r} is no fact; terms and conditions read facts only")
        return self._facts[name]

    def number(self, name: str) -> Floats:
        """Values as float64, NaN where not known (or where the log itself has NaN)."""
        column = self.column(name).cast(pa.float64())
        return np.asarray(pc.fill_null(column, float("nan")).to_numpy(), dtype=np.float64)

    def known(self, name: str) -> Mask:
        """True where the column is not null."""
        return _mask(pc.is_valid(self.column(name)))

    def true(self, name: str) -> Mask:
        """True where a boolean column is known to be true."""
        return _mask(pc.fill_null(self.column(name), False))

    def among(self, name: str, words: Iterable[str]) -> Mask:
        """True where a text column is known to be one of `words`."""
        return _mask(pc.is_in(self.column(name), value_set=pa.array(list(words), pa.string()), skip_nulls=True))


def _mask(column: pa.ChunkedArray) -> Mask:
    return np.asarray(column.to_numpy(), dtype=np.bool_)
