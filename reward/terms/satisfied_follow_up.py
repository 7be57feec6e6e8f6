"""1 for a reply that is satisfied."""

from __future__ import annotations

from palomar.reward.rows import Rows
from palomar.reward.term import Term, TermScores, term
from palomar.reward.terms._follow_up import FollowUpParams, reply_of


@term("satisfied_follow_up")
class SatisfiedFollowUp(Term[FollowUpParams]):
    """Whether the person's first reply within the horizon is satisfied.

    Range: 0 or 1; higher is better.
    Not applicable: with ``only_after: edit``, where no edit was applied. Waiting: no reply so far, horizon not passed.
    Invalid: a reply that was not classed or could not be, or neither reply nor times.
    Gamed by: fishing for thanks, and by favouring small talk and easy work over what was asked.
    """

    Params = FollowUpParams

    def score(self, rows: Rows) -> TermScores:
        """See the class."""
        return reply_of(rows, self.params, "satisfied")
