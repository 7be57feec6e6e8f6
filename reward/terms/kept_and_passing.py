"""1 for an edit that is still there at a horizon and passes its tests: what an outcome is made of."""

from __future__ import annotations

import numpy as np

from palomar.reward.rows import Rows
from palomar.reward.term import INVALID, NOT_APPLICABLE, WAITING, Minutes, SpecPart, Term, TermScores, by_case, term
from palomar.reward.terms.edit_persistence import EditPersistence, EditPersistenceParams


class KeptAndPassingParams(SpecPart):
    """When an edit has stayed."""

    horizon_minutes: Minutes = 1440.0
    """An edit reverted later than this counts as kept."""


@term("kept_and_passing")
class KeptAndPassing(Term[KeptAndPassingParams]):
    """Whether the edit stayed until the horizon and all its tests pass.

    Range: 0 to 1 (the share of its lines that is still there, where the log has that); higher is better.
    Not applicable, waiting: as `edit_persistence`; an edit whose tests fail is 0 at once.
    Invalid: as `edit_persistence`, or no test result (none run is no pass).
    Gamed by: as `edit_persistence`, and by editing the tests.
    """

    Params = KeptAndPassingParams

    def score(self, rows: Rows) -> TermScores:
        """See the class."""
        params = EditPersistenceParams(horizon_minutes=self.params.horizon_minutes, kept=1.0, reverted=0.0)
        kept = EditPersistence(params).score(rows)
        passed, run = rows.number("tests_passed"), rows.number("tests_run")
        edited, tested = kept.status != NOT_APPLICABLE, (run > 0) & np.isfinite(passed)
        failing = tested & (passed < run)
        return by_case(
            np.where(failing, 0.0, kept.value),
            (~edited, NOT_APPLICABLE, "no edit was applied"),
            (~tested, INVALID, "there is no test result"),
            (~failing & (kept.status == WAITING), WAITING, "the edit has not been watched up to the horizon"),
            (~failing & (kept.status == INVALID), INVALID, "the log has no times, so its horizon cannot be judged"),
        )
