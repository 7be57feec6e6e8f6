"""The reward that the log itself holds, for teams whose trainer computes it elsewhere."""

from __future__ import annotations

import numpy as np

from palomar.reward.rows import Rows
from palomar.reward.term import INVALID, NoParams, Term, TermScores, by_case, term, with_reason


@term("logged_reward")
class LoggedReward(Term[NoParams]):
    """Weighted sum of the log's own training rewards.

    Range: the log's; higher is better.
    Invalid: one of the rewards has no value (a scorer that failed or timed out, an empty or unreadable score), with
    the log's reason; or there is no reward at all. Always applies.
    Gamed by: whatever those rewards can be gamed by.
    """

    Params = NoParams

    def score(self, rows: Rows) -> TermScores:
        """See the class."""
        reward = rows.number("logged_reward")
        unknown = ~np.isfinite(reward)
        scores = by_case(reward, (unknown, INVALID, "the log has no reward"))
        return with_reason(scores, unknown, rows.column("logged_reward_invalid"))
