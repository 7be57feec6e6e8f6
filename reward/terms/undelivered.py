"""1 for an interaction that gave the user nothing: no applied edit and no question; give it a negative weight."""

from __future__ import annotations

import numpy as np

from palomar.reward.rows import Rows
from palomar.reward.term import INVALID, NoParams, Term, TermScores, by_case, term


@term("undelivered")
class Undelivered(Term[NoParams]):
    """Whether the interaction ended with neither an applied edit nor a question.

    It covers edits that failed, work that was broken off, and doing nothing. Without it these are paid nothing, which
    is more than a reverted edit.
    Range: 0 or 1; 1 is worse, so the weight is negative.
    Invalid: there is no edit, and the log cannot tell whether it asked. Always applies, so use it where every request
    asks for a change: an answer in words counts as undelivered.
    Gamed by: an edit or a question for its own sake.
    """

    Params = NoParams

    def score(self, rows: Rows) -> TermScores:
        """See the class."""
        edited = rows.true("edited")
        return by_case(
            (~edited & ~rows.true("asked")).astype(np.float64),
            (~edited & ~rows.known("asked"), INVALID, "the log cannot tell whether it ended with a question"),
        )
