"""Seconds that the user waited; give it a negative weight."""

from __future__ import annotations

import numpy as np

from palomar.reward.rows import Rows
from palomar.reward.term import INVALID, Positive, SpecPart, Term, TermScores, by_case, term


class LatencyParams(SpecPart):
    """How much waiting can cost."""

    cap_s: Positive = 600.0
    """Seconds beyond this cost no more, so that one stuck run does not outweigh a batch."""


@term("latency")
class Latency(Term[LatencyParams]):
    """Seconds that the user waited for the agent, capped.

    Range: 0 to ``cap_s``; higher is worse, so the weight is negative.
    Invalid: the log has no latency, or a negative one. Always applies.
    Gamed by: doing less (skipping reads and tests), empty answers, ending early.
    """

    Params = LatencyParams

    def score(self, rows: Rows) -> TermScores:
        """See the class."""
        latency_s = rows.number("latency_s")
        return by_case(
            np.minimum(latency_s, self.params.cap_s),
            (~(latency_s >= 0), INVALID, "the latency is not known"),
        )
