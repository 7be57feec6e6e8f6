"""Decisions that an edit adds; give it a negative weight. Splitting a function leaves it exactly as it was."""

from __future__ import annotations

from palomar.reward.rows import Rows
from palomar.reward.term import NoParams, Term, TermScores, by_case, term
from palomar.reward.terms._functions import unmeasured


@term("decision_growth")
class DecisionGrowth(Term[NoParams]):
    """Branching points (if, loop, and, or, ...) after minus before, over the functions of the edited files.

    McCabe's complexity is decisions + 1 a function (McCabe 1976), so the sum over functions less their number counts
    the decisions, wherever the cuts between functions lie.
    Range: any whole number; positive = more branches; higher is worse, so the weight is negative.
    Not applicable: no edit was applied. Invalid: complexity before or after was not measured.
    Gamed by: leaving out checks that are needed; decisions hidden in data or in code outside functions.
    """

    Params = NoParams

    def score(self, rows: Rows) -> TermScores:
        """See the class."""
        before = rows.number("complexity_before") - rows.number("functions_before")
        after = rows.number("complexity_after") - rows.number("functions_after")
        return by_case(after - before, *unmeasured(rows, before, after))
