"""Demonstrations for cloning a base policy: a plain, fallible engineer who reads the request and nothing else.

It follows the symptoms and the stated meaning, asks now and then (more where a request looks hard or vague), at times
moves part of the function into helpers, and seldom writes a broken call. Every behaviour that a reward could push is
there in a small amount, so that the policy has something to explore from; none depends on the reward.
"""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

from palomar.data.production.catalogue import modules
from palomar.data.production.grammar import FILES, SITES, Patch, Visible, call_text, edit_text

ASK_BASE = 0.035
ASK_PER_HARD_CUE = 0.07
ASK_UNSAID = 0.05
ASK_UNSAID_PER_VAGUE_CUE = 0.06
BROKEN_CALL = 0.035
BROKEN_CALL_HARD = 0.05
"""Added where at least two cues look hard."""
SECOND_READ = 0.02
ANSWER = 0.01
SLIP_SITE = 0.02
SLIP_CHOICE = 0.03
SLIP_STATEMENTS = 0.01
HELPERS = (0.58, 0.27, 0.10, 0.035, 0.015)
"""Chance of 0, 1, 2, ... helper functions in an edit."""


def demonstration(visible: Visible, rng: random.Random) -> str:
    """One completion for a request."""
    hard_cues = visible.difficulty_cues.count(2)
    looks_hard = hard_cues >= 2
    words = []
    if rng.random() < BROKEN_CALL + BROKEN_CALL_HARD * looks_hard:
        words.append(_broken_call(visible.path, rng))
        if rng.random() < 0.5:
            words.append(call_text(visible.path))
    else:
        words.append(call_text(visible.path))
        if rng.random() < SECOND_READ:
            words.append(call_text(visible.path))
    ask = ASK_BASE + ASK_PER_HARD_CUE * hard_cues
    if visible.intent is None:
        ask += ASK_UNSAID + ASK_UNSAID_PER_VAGUE_CUE * sum(visible.ambiguity_cues)
    if visible.turn == 0 and rng.random() < ask:
        return " ".join(([] if rng.random() < 0.5 else words) + [_question(visible, rng)])
    if rng.random() < ANSWER:
        return " ".join([*words, "<answer> a:unsure <end>" if looks_hard else "<answer> a:no-bug <end>"])
    return " ".join([*words, edit_text(_patch(visible, rng))])


def _question(visible: Visible, rng: random.Random) -> str:
    meaning = rng.random() < (0.85 if visible.intent is None else 0.35)
    return f"<ask> {'q:meaning' if meaning else 'q:place'} <end>"


def _patch(visible: Visible, rng: random.Random) -> Patch:
    votes = Counter(visible.symptoms)
    best = max(votes.values())
    site = rng.choice([site for site, count in sorted(votes.items()) if count == best])
    if rng.random() < SLIP_SITE:
        site = rng.randrange(SITES)
    choice = visible.intent
    if choice is None:
        # Unsaid and plainly worded: the obvious reading. Vague: a toss.
        choice = int(rng.random() < 0.2 + 0.15 * sum(visible.ambiguity_cues))
    if rng.random() < SLIP_CHOICE:
        choice = rng.randrange(4)
    count = len(modules()[visible.module].statements)
    order = list(range(count))
    if rng.random() < SLIP_STATEMENTS:
        order.pop(rng.randrange(count))
    helpers = rng.choices(range(len(HELPERS)), HELPERS)[0]
    cuts = [0, *sorted(rng.sample(range(1, len(order)), helpers)), len(order)]
    groups = tuple(tuple(order[start:end]) for start, end in pairwise(cuts))
    return Patch(site, choice, groups)


def _broken_call(path: str, rng: random.Random) -> str:
    words = call_text(path).split()
    kind = rng.random()
    if kind < 0.55:  # a word is lost, most often giving malformed JSON or a call without its end
        del words[rng.randrange(1, len(words))]
    elif kind < 0.70:  # a word is doubled
        at = rng.randrange(1, len(words))
        words.insert(at, words[at])
    elif kind < 0.85:
        words[words.index('"read"')] = '"open"'
    else:
        words[words.index(f'"{path}"')] = f'"src/{rng.choice([name for name in FILES if name not in path])}.py"'
    return " ".join(words)
