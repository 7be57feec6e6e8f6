"""Pays an edit that is still there at a horizon, and charges one that was reverted."""

from __future__ import annotations

import numpy as np

from palomar.reward.rows import Rows
from palomar.reward.term import (
    INVALID,
    NOT_APPLICABLE,
    WAITING,
    Minutes,
    Number,
    SpecPart,
    Term,
    TermScores,
    by_case,
    term,
)


class EditPersistenceParams(SpecPart):
    """What a kept and a reverted edit are worth."""

    horizon_minutes: Minutes = 90.0
    """An edit reverted later than this counts as kept."""
    kept: Number = 1.0
    reverted: Number = -1.5


@term("edit_persistence")
class EditPersistence(Term[EditPersistenceParams]):
    """Whether the edit stayed in the codebase until the horizon.

    Range: ``reverted`` to ``kept``; higher is better. Where the log says which share of the lines is still there, the
    value lies between the two in proportion.
    Not applicable: no edit was applied. Waiting: not reverted so far, and the horizon has not passed.
    Invalid: an edit without times and without a revert, so that nobody can say whether the horizon has passed.
    Gamed by: not editing where an edit would likely be reverted (asking, breaking a call, ending early), since "no
    edit" contributes 0 and a reverted edit less; and by edits too small to be worth reverting.
    """

    Params = EditPersistenceParams

    def score(self, rows: Rows) -> TermScores:
        """See the class."""
        horizon_s = self.params.horizon_minutes * 60
        lost_s, watched_s = rows.number("edit_lost_s"), rows.number("watched_s")
        reverted = (lost_s <= horizon_s) | (rows.true("undone") & np.isnan(lost_s))
        decided = reverted | (lost_s > horizon_s)
        kept_share = np.nan_to_num(rows.number("kept_share"), nan=1.0)
        kept = self.params.reverted + (self.params.kept - self.params.reverted) * kept_share
        return by_case(
            np.where(reverted, self.params.reverted, kept),
            (~rows.true("edited"), NOT_APPLICABLE, "no edit was applied"),
            (~decided & np.isnan(watched_s), INVALID, "the log has no times, so its horizon cannot be judged"),
            (~decided & (watched_s < horizon_s), WAITING, "the edit has not been watched up to the horizon"),
        )
