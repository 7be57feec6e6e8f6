"""What the two follow-up terms share: whether a reply of one label came before the horizon."""

from __future__ import annotations

from typing import Literal

import numpy as np

from palomar.data.facts import UNCLASSIFIED
from palomar.reward.rows import Rows
from palomar.reward.term import INVALID, NOT_APPLICABLE, WAITING, Minutes, SpecPart, TermScores, by_case


class FollowUpParams(SpecPart):
    """When a reply counts."""

    horizon_minutes: Minutes = 90.0
    """A reply that comes later than this counts as none."""
    only_after: Literal["edit", "anything"] = "anything"
    """``edit``: not applicable to interactions without an applied edit."""


def reply_of(rows: Rows, params: FollowUpParams, label: str) -> TermScores:
    """1 where the first reply within the horizon has `label`, 0 where it has another one or none came."""
    horizon_s = params.horizon_minutes * 60
    replied_s, watched_s = rows.number("follow_up_s"), rows.number("watched_s")
    # A reply without a time did come; only a known later time puts it beyond the horizon.
    replied = rows.known("follow_up") & ~(replied_s > horizon_s)
    skipped = ~rows.true("edited") if params.only_after == "edit" else np.zeros(len(rows), dtype=np.bool_)
    return by_case(
        (replied & rows.among("follow_up", [label])).astype(np.float64),
        (skipped, NOT_APPLICABLE, "no edit was applied"),
        (replied & rows.among("follow_up", ["unclear"]), INVALID, "the reply could not be classed"),
        (replied & rows.among("follow_up", [UNCLASSIFIED]), INVALID, "the reply has not been classed yet"),
        (~replied & np.isnan(watched_s), INVALID, "the log has no times, so its horizon cannot be judged"),
        (~replied & (watched_s < horizon_s), WAITING, "no reply so far, and the horizon has not passed"),
    )
