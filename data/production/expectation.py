"""What a request lets one expect before the agent acts, from what it shows and nothing else.

Both numbers are posteriors under the usual mix of requests, so that they are calibrated there: of requests with a
predicted failure of 0.7, the best possible edit fails in seven of ten. In production their part is played by a model
trained on past requests; what is true of this very request does not enter.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod

from palomar.data.production.grammar import SITES, Visible
from palomar.data.production.requests import (
    AMBIGUITY_CUE_RIGHT,
    CLEAR_UNSAID,
    DIFFICULTY_CUE_RIGHT,
    EASY,
    SYMPTOM_NOISE,
    WORK,
)


def ambiguity(visible: Visible) -> float:
    """Chance that the request cannot be met without asking what is meant."""
    if visible.intent is not None:
        return 0.0
    return _ambiguity(visible.work_kind, visible.ambiguity_cues)


def predicted_failure(visible: Visible) -> float:
    """Chance that an edit fails which follows the likeliest site and reading."""
    # A second turn without a stated meaning came of a question about the place, whose answer has better symptoms.
    better = visible.turn > 0 and visible.intent is None
    site = _likeliest_site(visible.work_kind, visible.difficulty_cues, visible.symptoms, better)
    return 1.0 - site * (1.0 - ambiguity(visible) / 2)


@cache
def _ambiguity(work_kind: str, cues: tuple[int, int]) -> float:
    prior = WORK[work_kind].ambiguous
    vague = sum(cues)
    plain = len(cues) - vague
    right, wrong = AMBIGUITY_CUE_RIGHT, 1 - AMBIGUITY_CUE_RIGHT
    ambiguous = prior * right**vague * wrong**plain
    clear = (1 - prior) * CLEAR_UNSAID * wrong**vague * right**plain
    return ambiguous / (ambiguous + clear)


@cache
def _likeliest_site(work_kind: str, cues: Sequence[int], symptoms: Sequence[int], better: bool) -> float:
    """Posterior of the likeliest site; sites are equally likely before."""
    wrong = (1 - DIFFICULTY_CUE_RIGHT) / 2
    joint = [0.0] * SITES
    for difficulty, prior in enumerate(WORK[work_kind].difficulty):
        weight = prior * prod(DIFFICULTY_CUE_RIGHT if cue == difficulty else wrong for cue in cues)
        noise = SYMPTOM_NOISE[max(EASY, difficulty - better)]
        for site in range(SITES):
            joint[site] += weight * prod((1 - noise) * (symptom == site) + noise / SITES for symptom in symptoms)
    return max(joint) / sum(joint)
