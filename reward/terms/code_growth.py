"""Growth of the code by the edit, helpers included; give it a negative weight. Splitting only makes it worse."""

from __future__ import annotations

import numpy as np

from palomar.reward.rows import Rows
from palomar.reward.term import NOT_APPLICABLE, NoParams, Term, TermScores, by_case, term
from palomar.reward.terms._functions import ratio, unmeasured


@term("code_growth")
class CodeGrowth(Term[NoParams]):
    """How much longer the functions of the edited files became together: max(0, lines after / lines before - 1).

    Range: 0 upwards; 0.5 = half as much code again; higher is worse, so the weight is negative.
    Not applicable: no edit was applied, or there was no function before (a new file has nothing to grow from).
    Invalid: the functions before or after were not measured.
    Gamed by: code outside functions, or in new files; lines that are too long; leaving out code that is needed.
    """

    Params = NoParams

    def score(self, rows: Rows) -> TermScores:
        """See the class."""
        before, after = rows.number("function_lines_before"), rows.number("function_lines_after")
        return by_case(
            np.maximum(0.0, ratio(after, before) - 1),
            *unmeasured(rows, before, after),
            (before == 0, NOT_APPLICABLE, "there was no function before the edit"),
        )
