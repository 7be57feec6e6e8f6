"""Share of the tests that pass after the edit."""

from __future__ import annotations

import numpy as np

from palomar.reward.rows import Rows
from palomar.reward.term import INVALID, NOT_APPLICABLE, NoParams, Term, TermScores, by_case, term
from palomar.reward.terms._functions import ratio


@term("tests")
class Tests(Term[NoParams]):
    """Share of the tests that pass after the edit.

    Range: 0 to 1; higher is better. 0 means that tests ran and none passed, and nothing else.
    Not applicable: no edit was applied, and no tests were run.
    Invalid: an edit without a test result, no test to run, or more passed than run. No tests are neither 0 nor 1.
    Gamed by: editing the tests, special-casing their inputs, early exit; and by not editing.
    """

    __test__ = False  # tell pytest that this is no test class
    Params = NoParams

    def score(self, rows: Rows) -> TermScores:
        """See the class."""
        passed, run = rows.number("tests_passed"), rows.number("tests_run")
        return by_case(
            ratio(passed, run),
            (np.isnan(run) & ~rows.true("edited"), NOT_APPLICABLE, "no edit was applied and no test was run"),
            (np.isnan(run) | np.isnan(passed), INVALID, "there is no test result"),
            (run == 0, INVALID, "there was no test to run"),
            (passed > run, INVALID, "more tests passed than were run"),
        )
