"""Pays a question on an ambiguous request and charges one on a clear request."""

from __future__ import annotations

import numpy as np

from palomar.reward.rows import Rows
from palomar.reward.term import INVALID, NOT_APPLICABLE, Number, Share, SpecPart, Term, TermScores, by_case, term


class ClarificationParams(SpecPart):
    """What a question is worth."""

    clear: Number = -1.4
    """Value of a question on a request that is surely clear (ambiguity 0)."""
    ambiguous: Number = 0.1
    """Value of a question on a request that cannot be met without asking (ambiguity 1)."""
    assumed_ambiguity: Share | None = None
    """Ambiguity taken for requests where none is known; without it the term is invalid there."""


@term("clarification")
class Clarification(Term[ClarificationParams]):
    """Value of ending with a question: ``clear`` (1 - a) + ``ambiguous`` a, with a the ambiguity of the request.

    Range: between ``clear`` and ``ambiguous``; higher is better. The incentive flips at
    a = -clear / (ambiguous - clear); where it never does, asking is always or never worth it.
    Not applicable: it did not end with a question.
    Invalid: the log cannot tell whether it asked; or it asked, and the ambiguity is not known nor assumed.
    Gamed by: questions on whatever looks ambiguous to the predictor of ambiguity.
    """

    Params = ClarificationParams

    def score(self, rows: Rows) -> TermScores:
        """See the class."""
        ambiguity = rows.number("ambiguity")
        if self.params.assumed_ambiguity is not None:
            ambiguity = np.nan_to_num(ambiguity, nan=self.params.assumed_ambiguity)
        return by_case(
            self.params.clear * (1 - ambiguity) + self.params.ambiguous * ambiguity,
            (~rows.known("asked"), INVALID, "the log cannot tell whether it ended with a question"),
            (~rows.true("asked"), NOT_APPLICABLE, "no question was asked"),
            (np.isnan(ambiguity), INVALID, "the ambiguity of the request is not known"),
        )
