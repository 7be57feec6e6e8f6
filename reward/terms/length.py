"""Tokens that the agent wrote; give it a negative weight."""

from __future__ import annotations

import numpy as np

from palomar.reward.rows import Rows
from palomar.reward.term import INVALID, Positive, SpecPart, Term, TermScores, by_case, term


class LengthParams(SpecPart):
    """How much length can cost."""

    cap_tokens: Positive = 32_000.0
    """Tokens beyond this cost no more."""


@term("length")
class Length(Term[LengthParams]):
    """Thousands of tokens that the agent wrote, capped.

    Range: 0 to ``cap_tokens`` / 1000; higher is worse, so the weight is negative: paid, it is earned by padding.
    Invalid: the log does not count tokens. Always applies.
    Gamed by: doing less (skipping reads, leaving work out); with a positive weight, by padding.
    """

    Params = LengthParams

    def score(self, rows: Rows) -> TermScores:
        """See the class."""
        tokens = rows.number("tokens_out")
        return by_case(
            np.minimum(tokens, self.params.cap_tokens) / 1000,
            (~(tokens >= 0), INVALID, "the number of tokens is not known"),
        )
