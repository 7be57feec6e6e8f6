"""Cases that the terms on measured functions share."""

from __future__ import annotations

import numpy as np

from palomar.reward.rows import Floats, Rows
from palomar.reward.term import INVALID, NOT_APPLICABLE, Case


def unmeasured(rows: Rows, *measures: Floats) -> tuple[Case, Case]:
    """Not applicable without an edit, invalid where one of the `measures` that the term needs is not known."""
    unknown = np.asarray(np.isnan(np.stack(measures)).any(axis=0), dtype=np.bool_)
    return (
        (~rows.true("edited"), NOT_APPLICABLE, "no edit was applied"),
        (unknown, INVALID, "the functions of the edited files were not measured"),
    )


def ratio(part: Floats, whole: Floats) -> Floats:
    """part / whole; NaN where `whole` is 0."""
    return np.divide(part, whole, out=np.full_like(part, np.nan), where=whole > 0)
