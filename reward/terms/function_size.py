"""Pays short functions: the measure that splitting games. `code_growth` is the one it does not."""

from __future__ import annotations

from palomar.reward.rows import Rows
from palomar.reward.term import NOT_APPLICABLE, Positive, SpecPart, Term, TermScores, by_case, term
from palomar.reward.terms._functions import ratio, unmeasured


class FunctionSizeParams(SpecPart):
    """What counts as an ordinary function."""

    reference_lines: Positive = 12.0
    """Mean length, in lines of code, that is worth 0."""


@term("function_size")
class FunctionSize(Term[FunctionSizeParams]):
    """1 - mean length of the functions in the edited files / ``reference_lines``.

    Range: below 1, without a lower bound; higher means shorter functions. Give it ``bounds``.
    Not applicable: no edit was applied, or the edited files hold no function.
    Invalid: the functions after the edit were not measured.
    Gamed by: cutting functions into artificially small ones; the mean falls while nothing gets simpler.
    """

    Params = FunctionSizeParams

    def score(self, rows: Rows) -> TermScores:
        """See the class."""
        lines, functions = rows.number("function_lines_after"), rows.number("functions_after")
        return by_case(
            1 - ratio(lines, functions) / self.params.reference_lines,
            *unmeasured(rows, lines, functions),
            (functions == 0, NOT_APPLICABLE, "the edited files hold no function"),
        )
