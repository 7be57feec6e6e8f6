"""1 for a reply that is dissatisfied; give it a negative weight."""

from __future__ import annotations

from palomar.reward.rows import Rows
from palomar.reward.term import Term, TermScores, term
from palomar.reward.terms._follow_up import FollowUpParams, reply_of


@term("dissatisfied_follow_up")
class DissatisfiedFollowUp(Term[FollowUpParams]):
    """Whether the person's first reply within the horizon is dissatisfied.

    Range: 0 or 1; 1 is worse, so the weight is negative.
    Not applicable: with ``only_after: edit``, where no edit was applied. Waiting: no reply so far, horizon not passed.
    Invalid: a reply that was not classed or could not be, or neither reply nor times.
    Gamed by: a closing phrase that discourages replies; with ``only_after: edit``, by not editing.
    """

    Params = FollowUpParams

    def score(self, rows: Rows) -> TermScores:
        """See the class."""
        return reply_of(rows, self.params, "dissatisfied")
