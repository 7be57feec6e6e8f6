"""What each interaction is paid, term by term, and what its user got: facts in, observations out.

    reward = sum over terms of  weight x value        over the terms that apply

A reward exists only where every needed term (weight not 0) is valid or not applicable. Else it is null, with a status
and the name of the term: *invalid* where a value is missing that should be there, *waiting* where it will come. One
invalid term makes the reward invalid even if others wait, since waiting will not mend it.

Inclusion: ``included`` is False with a reason where an inclusion rule holds, at once, even if the reward still waits;
False with ``reward_invalid`` where the reward is invalid; null where it waits (neither trained on nor excluded); else
True. An excluded sample keeps its reward, so that one can ask what the exclusion does.

Everything is vectorised; no Python loop runs over rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from palomar.data.errors import LakeError
from palomar.data.observations import FACTS, REWARD
from palomar.reward.conditions import CONDITIONS
from palomar.reward.rows import Floats, Mask, Rows
from palomar.reward.spec import REWARD_INVALID, InclusionRule, RewardSpec, TermSpec, When, version
from palomar.reward.term import (
    INVALID,
    NOT_APPLICABLE,
    STATUSES,
    TERMS,
    VALID,
    WAITING,
    TermScores,
)

OUTCOME_STATUSES = ("mature", "immature", "invalid")


@dataclass(frozen=True)
class _Total:
    """A weighted sum of terms over rows; all of shape (rows,)."""

    value: Floats
    """NaN where the status is not VALID."""
    status: NDArray[np.uint8]
    """VALID, WAITING or INVALID; NOT_APPLICABLE where no term applies."""
    reason: pa.Array


def score(facts: pa.Table, spec: RewardSpec, as_of: datetime | None = None) -> pa.Table:
    """Observations: the facts, the reward columns, and ``term:<name>`` and ``status:<name>`` for each term.

    `facts` needs the columns of FACTS (others are dropped, so observations can be scored again) and should hold whole
    conversations, since an outcome is credited over the turns that are there. `as_of`, where given, is when the caller
    believes that reactions were looked up; LakeError where the facts say otherwise.
    """
    if as_of is not None:
        _check_as_of(facts, as_of)
    rows = Rows(facts)
    scores = {term.name: term_scores(rows, term) for term in spec.terms}
    outcome, outcome_status = _outcome(rows, spec)
    columns = {
        "reward_version": _constant(version(spec), len(rows)),
        **paid(rows, spec, scores),
        "outcome": outcome,
        "outcome_status": outcome_status,
    }
    table = _with_reward(facts, columns)
    for name, term in scores.items():
        table = table.append_column(f"term:{name}", _numbers(term.value))
        table = table.append_column(f"status:{name}", _words(STATUSES, term.status))
    return table


def paid(rows: Rows, spec: RewardSpec, scores: dict[str, TermScores]) -> dict[str, pa.Array]:
    """The columns of the reward and of the inclusion, from what each term of the spec says about the rows."""
    reward = _nothing_applies(_total(spec.terms, scores), spec.nothing_applies)
    included, exclusion = _inclusion(rows, spec.inclusion, reward.status)
    return {
        "reward": _numbers(reward.value),
        "reward_status": _words(STATUSES, reward.status),
        "reward_reason": reward.reason,
        "included": included,
        "exclusion": exclusion,
    }


def score_logged(facts: pa.Table) -> pa.Table:
    """Observations of logs that come without a spec: the reward is the one the log holds.

    ``reward_status`` is null where the log had no reward at all. ``included`` is null: nobody said what was trained on.
    """
    rows = Rows(facts)
    reward = rows.number("logged_reward")
    valid = np.isfinite(reward)
    why = rows.column("logged_reward_invalid").combine_chunks()
    reason = pc.if_else(pa.array(valid | ~rows.known("logged_reward")), why, "the logged reward is not a finite number")
    had_one = pa.array(valid | rows.known("logged_reward") | rows.known("logged_reward_invalid"))
    status = pc.if_else(had_one, _words(STATUSES, np.where(valid, VALID, INVALID)), pa.scalar(None, pa.string()))
    columns = {field.name: pa.nulls(len(rows), field.type) for field in REWARD}
    columns |= {
        "reward": _numbers(np.where(valid, reward, np.nan)),
        "reward_status": status,
        "reward_reason": pc.if_else(pa.array(valid), pa.scalar(None, pa.string()), reason),
    }
    return _with_reward(facts, columns)


def contributions(observations: pa.Table, spec: RewardSpec) -> dict[str, Floats]:
    """What each term adds to the reward, by name: weight x value, 0 where it does not apply, NaN where it is not known.

    Where the reward is valid they add up to it (to ``nothing_applies`` no term adds). Linear in the weights: with other
    weights only the factors change.
    """
    result: dict[str, Floats] = {}
    for term in spec.terms:
        value = _floats(observations[f"term:{term.name}"])
        skipped = np.asarray(pc.equal(observations[f"status:{term.name}"], STATUSES[NOT_APPLICABLE]))
        result[term.name] = term.weight * np.where(skipped, 0.0, value)
    return result


def term_scores(rows: Rows, term: TermSpec) -> TermScores:
    """Value (clipped to the bounds, not weighted) and status of one term, its condition applied."""
    kind = TERMS[term.kind]
    scores = kind(term.params).score(rows)
    value, status, reason = scores.value, scores.status, scores.reason
    if term.bounds is not None:
        value = np.clip(value, *term.bounds)
    if term.when is not None:
        holds, decidable, why = _when(rows, term.when)
        applies = status != NOT_APPLICABLE
        outside, unsure = applies & decidable & ~holds, applies & ~decidable
        status = np.where(outside, NOT_APPLICABLE, np.where(unsure, INVALID, status)).astype(np.uint8)
        value = np.where(outside | unsure, np.nan, value)
        reason = pc.if_else(pa.array(unsure), why, pc.if_else(pa.array(outside), "its condition does not hold", reason))
    return TermScores(value, status, reason)


def _when(rows: Rows, when: When) -> tuple[Mask, Mask, str]:
    """Where a condition holds, where that can be decided, and what is missing where it cannot.

    One part that fails decides it, whatever else is not known.
    """
    holds = np.ones(len(rows), dtype=np.bool_)
    failed = np.zeros(len(rows), dtype=np.bool_)
    needed = []
    for name in When.model_fields:
        part = getattr(when, name)
        if part is None:
            continue
        needed.append(name)
        if isinstance(part, tuple):
            known, here = rows.known(name), rows.among(name, part)
        else:
            value = rows.number(name)
            known = ~np.isnan(value)
            here = known.copy()
            if part.min is not None:
                here &= value >= part.min
            if part.max is not None:
                here &= value < part.max
        holds &= here
        failed |= known & ~here
    return holds, holds | failed, f"its condition needs {' and '.join(needed)}, which the log does not have"


def _total(terms: Sequence[TermSpec], scores: dict[str, TermScores]) -> _Total:
    """The weighted sum over the needed terms. Summed by name, so that the order in the spec changes no bit of it."""
    needed = sorted((term for term in terms if term.weight != 0), key=lambda term: term.name)
    size = len(next(iter(scores.values())).value)
    value = np.zeros(size)
    applies = np.zeros(size, dtype=np.bool_)
    # Position of the first term that is invalid, that waits; -1 = none.
    first_invalid, first_waiting = np.full(size, -1), np.full(size, -1)
    for position, term in enumerate(needed):
        one = scores[term.name]
        value += np.where(one.status == VALID, term.weight * one.value, 0.0)
        applies |= one.status != NOT_APPLICABLE
        first_invalid[(one.status == INVALID) & (first_invalid < 0)] = position
        first_waiting[(one.status == WAITING) & (first_waiting < 0)] = position
    invalid, waiting = first_invalid >= 0, first_waiting >= 0
    overflow = ~np.isfinite(value) & ~invalid
    status = np.select([invalid | overflow, waiting, ~applies], [INVALID, WAITING, NOT_APPLICABLE], VALID)
    reason = _reasons(needed, scores, np.where(invalid, first_invalid, first_waiting))
    reason = pc.if_else(pa.array(overflow), "the sum is not finite", reason)
    return _Total(np.where(status == VALID, value, np.nan), status.astype(np.uint8), reason)


def _reasons(terms: Sequence[TermSpec], scores: dict[str, TermScores], blamed: NDArray[np.int64]) -> pa.Array:
    """The blamed term's name and reason for each row, null where none is; texts are made for those rows only."""
    texts = [pa.nulls(1, pa.string())]
    place = np.zeros(len(blamed), dtype=np.int64)
    for position, term in enumerate(terms):
        rows = np.flatnonzero(blamed == position)
        place[rows] = sum(map(len, texts)) + np.arange(len(rows))
        texts.append(pc.binary_join_element_wise(term.name, scores[term.name].reason.take(pa.array(rows)), ": "))
    return pa.concat_arrays(texts).take(pa.array(place))


def _nothing_applies(total: _Total, value: float | None) -> _Total:
    """The total with the spec's word on rows where no term applies: a declared value, or invalid. No silent 0."""
    empty = total.status == NOT_APPLICABLE
    if value is not None:
        return _Total(
            np.where(empty, value, total.value), np.where(empty, VALID, total.status).astype(np.uint8), total.reason
        )
    status = np.where(empty, INVALID, total.status).astype(np.uint8)
    return _Total(total.value, status, pc.if_else(pa.array(empty), "no term applies", total.reason))


def _inclusion(rows: Rows, rules: Sequence[InclusionRule], status: NDArray[np.uint8]) -> tuple[pa.Array, pa.Array]:
    """The columns ``included`` and ``exclusion``: of several rules the first in the spec names the reason."""
    reasons = [*(rule.name for rule in rules), REWARD_INVALID]
    masks = [*(_drops(rows, rule) for rule in rules), status == INVALID]
    which = np.select(masks, range(1, len(masks) + 1), default=0)
    exclusion = pa.array([None, *reasons], pa.string()).take(pa.array(which))
    included = pc.if_else(
        pa.array((which == 0) & (status == WAITING)), pa.scalar(None, pa.bool_()), pa.array(which == 0)
    )
    return included, exclusion


def _drops(rows: Rows, rule: InclusionRule) -> Mask:
    found = CONDITIONS[rule.condition](rows)
    if rule.when is not None:
        holds, _, _ = _when(rows, rule.when)
        found = found & holds
    return found


def _outcome(rows: Rows, spec: RewardSpec) -> tuple[pa.Array, pa.Array]:
    """The columns ``outcome`` and ``outcome_status``; both null where the spec names no outcome.

    An interaction is credited with its own outcome and that of every later turn of its conversation: a question is
    worth what came of it. It is mature once all of these were watched up to the longest horizon, even where the outcome
    is known before: bad news comes sooner than good, so the mean of what is known early lies below the truth. It is
    invalid as soon as one of them is.
    """
    if spec.outcome is None:
        return pa.nulls(len(rows), pa.float64()), pa.nulls(len(rows), pa.string())
    terms = spec.outcome.terms
    # Where nothing applies the user got nothing: a measured 0, unlike a reward nobody thought of.
    own = _nothing_applies(_total(terms, {term.name: term_scores(rows, term) for term in terms}), 0.0)
    later = _later_turns(rows)
    horizon_s = 60 * max(getattr(term.params, "horizon_minutes", 0.0) for term in terms)
    unripe = (own.status == WAITING) | (rows.number("watched_s") < horizon_s)
    immature, invalid = later.total(unripe) > 0, later.total(own.status == INVALID) > 0
    value = later.total(np.where(own.status == VALID, own.value, 0.0))
    status = np.select([invalid, immature], [2, 1], default=0)
    return _numbers(np.where(status == 0, value, np.nan)), _words(OUTCOME_STATUSES, status)


class _LaterTurns:
    """Sums over a row and all later turns of its conversation; rows without a conversation stand alone."""

    def __init__(self, conversation: NDArray[np.int64], turn: Floats) -> None:
        # Last turn first within each conversation, so that a running sum is a sum over later turns.
        self._order = np.lexsort((-turn, conversation))
        ordered = conversation[self._order]
        self._starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else ordered
        self._sizes = np.diff(np.r_[self._starts, len(ordered)])

    def total(self, value: NDArray[np.generic]) -> Floats:
        """The sum for each row, in the order of the rows."""
        ordered = value[self._order].astype(np.float64)
        running = np.cumsum(ordered)
        before = np.repeat((running - ordered)[self._starts], self._sizes)
        result = np.empty(len(ordered))
        result[self._order] = running - before
        return result


def _later_turns(rows: Rows) -> _LaterTurns:
    ids = rows.column("conversation_id").combine_chunks().dictionary_encode()
    codes = np.asarray(pc.fill_null(ids.indices, -1).to_numpy(zero_copy_only=False), dtype=np.int64)
    alone = codes < 0
    codes[alone] = -1 - np.flatnonzero(alone)
    return _LaterTurns(codes, rows.number("turn"))


def _check_as_of(facts: pa.Table, as_of: datetime) -> None:
    known = pc.unique(facts["as_of"]).to_pylist()
    if any(moment != as_of for moment in known):
        raise LakeError(f"facts were looked up as of {', '.join(map(str, known))}, not as of {as_of}")


def _with_reward(facts: pa.Table, columns: dict[str, pa.Array]) -> pa.Table:
    table = facts.select(FACTS.names)
    for field in REWARD:
        table = table.append_column(field, columns[field.name].cast(field.type))
    return table


def _numbers(value: Floats) -> pa.Array:
    """NaN, which stands for "not known" inside this package only, becomes null."""
    return pa.array(value, pa.float64(), from_pandas=True)


def _floats(column: pa.ChunkedArray) -> Floats:
    return np.asarray(pc.fill_null(column, float("nan")).to_numpy(), dtype=np.float64)


def _words(words: Sequence[str], code: NDArray[np.generic]) -> pa.Array:
    return pa.array(words, pa.string()).take(pa.array(code))


def _constant(word: str, size: int) -> pa.Array:
    return pa.array([word], pa.string()).take(pa.array(np.zeros(size, dtype=np.int64)))
