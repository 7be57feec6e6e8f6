"""1 for an interaction with an invalid tool call; give it a negative weight."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from palomar.data.schema import Invalidity
from palomar.reward.rows import Rows
from palomar.reward.term import SpecPart, Term, TermScores, by_case, term


class InvalidToolCallParams(SpecPart):
    """Which calls count."""

    kinds: Annotated[tuple[Invalidity, ...], Field(min_length=1)] = (
        "malformed",
        "unparsed",
        "unknown_tool",
        "schema",
        "rejected",
    )
    """Kinds of invalidity that count."""


@term("invalid_tool_call")
class InvalidToolCall(Term[InvalidToolCallParams]):
    """Whether at least one tool call was invalid; once per interaction, however many there were.

    Range: 0 or 1; 1 is worse, so the weight is negative. Always applies, always valid.
    Gamed by: making no tool calls at all, and by guessing in place of reading.
    """

    Params = InvalidToolCallParams

    def score(self, rows: Rows) -> TermScores:
        """See the class."""
        count = np.sum([rows.number(f"invalid_{kind}") for kind in self.params.kinds], axis=0)
        return by_case((count > 0).astype(np.float64))
