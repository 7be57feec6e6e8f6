"""1 for an interaction that edited a test file; give it a negative weight wherever passing tests is paid."""

from __future__ import annotations

import numpy as np

from palomar.reward.rows import Rows
from palomar.reward.term import INVALID, NOT_APPLICABLE, NoParams, Term, TermScores, by_case, term


@term("tests_edited")
class TestsEdited(Term[NoParams]):
    """Whether a test file was edited.

    Range: 0 or 1; 1 is worse where the tests grade the work, so the weight is negative. Where users ask for tests, give
    it a ``when`` that leaves such work out.
    Not applicable: no edit was applied. Invalid: an edit was, and none names its path.
    Gamed by: changing what the tests import or read instead (fixtures, data, the code under test itself).
    """

    __test__ = False  # tell pytest that this is no test class
    Params = NoParams

    def score(self, rows: Rows) -> TermScores:
        """See the class."""
        return by_case(
            rows.true("tests_edited").astype(np.float64),
            (~rows.true("edited"), NOT_APPLICABLE, "no edit was applied"),
            (~rows.known("tests_edited"), INVALID, "no edit names its path"),
        )
