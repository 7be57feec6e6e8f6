"""The signals whose pressure is asked for: the trainer's advantage, its parts, and the users' outcome.

For a sample with reward r = sum_k c_k (weight x value of each term), baseline b, scale s and weight w (0 where it was
left out), the trainer used A = w (r - b) / s. Of this

- **reward** is A itself;
- **term:k** is w (c_k - b_k) / s, with b_k the mean of c_k over the samples that share the baseline b. The means add up
  to b as the c_k add up to r, so **the terms add up to the reward**. What does not come from a term that is known (a
  declared ``nothing_applies``, a reward whose spec is not at hand) is **term:unattributed**, there only if it is not 0;
- **rule:q** is -(r - b) / s on the samples that reason q kept out of training, and 0 on all others: the reward's signal
  with them out, minus the signal with them in, at the same baseline and scale. So the reward's pressure minus that of a
  rule is what the pressure would be had the rule not dropped them. Where a dropped sample's reward is not known, nobody
  can say, and it counts as 0;
- **outcome** is the users' outcome (credited over the conversation), in standard deviations, where it is mature.

Where the trainer logged what it did, b and A are its own, s follows from r, b and A, and a sample that it dropped gets
the mean baseline of the trained ones in its group or, without any, in its batch. Else they are rebuilt as a trainer
with a batch baseline would have made them: b the mean and s the standard deviation of the rewards of a cycle's included
rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

REWARD, OUTCOME, UNATTRIBUTED = "reward", "outcome", "term:unattributed"
WAITING = "reward_waiting"
NOT_UPDATED = "not_updated"
"""Reason of samples that counted in a batch whose update was given up."""
BASELINE = "baseline"
"""Reason of samples of cycles that are only watched, before training begins: nobody has decided what they are worth."""
NO_REASON = "no_reason"
ROUNDING = 8 * float(np.finfo(np.float64).eps)
"""Rewards that differ by less than this share of their size are equal, as the trainer has it."""

COLUMNS = (
    "cycle", "group_id", "reward", "reward_status", "included", "exclusion", "outcome", "outcome_status",
)  # fmt: skip
"""Of observations."""
SAMPLE_COLUMNS = ("update_cycle", "paid", "baseline", "advantage", "weight", "trained", "reason")
"""Of the sample that decided about the row, all null where none did: the cycle it was offered to, and its reward as the
trainer saw it; the others as in ``palomar.data.observations.SAMPLES``."""


@dataclass(frozen=True)
class Signals:
    """S signals of N rows."""

    names: tuple[str, ...]
    values: Floats
    """(N, S), finite; 0 on rows that are not counted."""
    counted: Mask
    """(N,): rows about which something is known. The others (waiting, immature) belong in no mean."""

    def of(self, rows: Mask) -> Signals:
        """The same of some rows."""
        return Signals(self.names, self.values[rows], self.counted[rows])


def reward_signals(rows: pa.Table, contributions: Mapping[str, Floats]) -> Signals:
    """The trainer's advantage and its parts. `rows` have COLUMNS and SAMPLE_COLUMNS, and hold whole batches.

    `contributions` are those of `palomar.reward.scoring`, (N,) by term; NaN where not known.
    """
    update = _update(rows)
    parts = {REWARD: update.advantage}
    left = update.advantage
    for name, paid in contributions.items():
        usable = np.where(np.isfinite(paid), paid, 0.0)
        centred = usable - _group_means(usable, update.peers, update.weight)
        part = np.where(update.weight > 0, update.weight * centred / update.scale, 0.0)
        parts[f"term:{name}"] = part
        left = left - part
    if np.abs(left).max(initial=0.0) > 1e-9 * max(1.0, float(np.abs(update.advantage).max(initial=0.0))):
        parts[UNATTRIBUTED] = left
    forgone = np.nan_to_num((update.reward - update.baseline) / update.scale)
    for reason in sorted(pc.unique(update.dropped).drop_null().to_pylist()):
        parts[f"rule:{reason}"] = np.where(_is(update.dropped, reason), -forgone, 0.0)
    return Signals(tuple(parts), np.column_stack(list(parts.values())), update.decided)


def outcome_signal(rows: pa.Table) -> Signals:
    """The outcome of mature rows, in standard deviations from their mean."""
    outcome = _floats(rows["outcome"])
    mature = np.isfinite(outcome) & _is(rows["outcome_status"], "mature")
    known = outcome[mature]
    spread = float(known.std()) if len(known) else 0.0
    values = np.zeros(len(outcome))
    if spread > 0:
        values[mature] = (known - known.mean()) / spread
    return Signals((OUTCOME,), values[:, None], mature)


@dataclass(frozen=True)
class _Update:
    """What training made of each row; arrays of shape (N,)."""

    reward: Floats
    """NaN where not known."""
    baseline: Floats
    """NaN where no row of the batch was trained on."""
    scale: Floats
    """Infinite where the batch has nothing to learn from."""
    advantage: Floats
    """0 where it does not count."""
    weight: Floats
    peers: Ints
    """Rows of one batch with the same baseline."""
    dropped: pa.ChunkedArray
    """Why a row was left out; null where it was trained on or is not decided."""
    decided: Mask


def _update(rows: pa.Table) -> _Update:
    reward = np.where(_is(rows["reward_status"], "valid"), _floats(rows["reward"]), np.nan)
    logged = _logged(rows)
    trained = np.where(logged, _true(rows["trained"]), np.isfinite(reward) & ~_is(rows["included"], False))
    reward = np.where(logged & trained, _floats(rows["paid"]), reward)
    dropped = _dropped(rows, logged, trained)
    decided = trained | _true(pc.is_valid(dropped))
    # A batch is an update of the trainer, or a cycle of which no update is known.
    cycle = _codes(rows["cycle"])
    update = _codes(rows["update_cycle"])
    batch = _index(logged, np.where(logged & (update >= 0), update, cycle))

    weight = np.where(trained, np.where(logged, np.nan_to_num(_floats(rows["weight"])), 1.0), 0.0)
    baseline = np.where(logged & trained, _floats(rows["baseline"]), _group_means(reward, batch, trained))
    baseline = np.where(trained, baseline, _usual(baseline, trained, _codes(rows["group_id"]), batch))
    told = np.where(logged & trained, np.nan_to_num(_floats(rows["advantage"])), 0.0)
    scale = _scales(np.where(trained, reward - baseline, np.nan), reward, told, logged, batch)
    rebuilt = np.nan_to_num(reward - baseline) / scale
    advantage = np.where(trained, np.where(logged, told, rebuilt), 0.0) * weight
    return _Update(reward, baseline, scale, advantage, weight, _index(batch, baseline), dropped, decided)


def _logged(rows: pa.Table) -> Mask:
    """Rows of the cycles in which the trainer logged a decision about some row."""
    cycle = _codes(rows["cycle"])
    return np.isin(cycle, cycle[_true(pc.is_valid(rows["trained"]))])


def _dropped(rows: pa.Table, logged: Mask, trained: Mask) -> pa.ChunkedArray:
    """Why each row was left out of training, null where it was not: the trainer's word, else that of the rules."""
    offered = pa.array(logged & _true(pc.is_valid(rows["trained"])))
    said = pc.fill_null(rows["reason"], NOT_UPDATED)
    ruled = pc.if_else(
        pc.fill_null(pc.invert(rows["included"]), False), pc.fill_null(rows["exclusion"], NO_REASON), None
    )
    reason = pc.if_else(offered, pc.if_else(pc.equal(said, WAITING), None, said), ruled)
    return pc.if_else(pa.array(trained), pa.scalar(None, pa.string()), reason)


def _usual(baseline: Floats, trained: Mask, group: Ints, batch: Ints) -> Floats:
    """Mean baseline of the trained rows in each row's group, else of its batch; NaN where there are none."""
    known = np.nan_to_num(baseline)
    of_group = np.where(group >= 0, _group_means(known, _index(batch, group), trained), np.nan)
    return np.where(np.isfinite(of_group), of_group, _group_means(known, batch, trained))


def _scales(centred: Floats, reward: Floats, told: Floats, logged: Mask, batch: Ints) -> Floats:
    """What the centred rewards of each batch were divided by; infinite where there is nothing to learn from."""
    scales = np.full(int(batch.max(initial=-1)) + 1, np.inf)
    for each in np.unique(batch):
        here = (batch == each) & np.isfinite(centred)
        if (here & logged).any():
            largest = np.flatnonzero(here)[np.argmax(np.abs(told[here]))]  # where rounding matters least
            if told[largest] != 0:
                scales[each] = centred[largest] / told[largest]
        elif here.any():
            spread = float(np.sqrt((centred[here] ** 2).mean()))
            if spread > ROUNDING * float(np.abs(reward[here]).max()):
                scales[each] = spread
    return np.asarray(scales[batch], dtype=np.float64)


def _group_means(values: Floats, groups: Ints, weight: npt.NDArray[np.generic]) -> Floats:
    """Weighted mean over each row's group; NaN where its weights are all 0."""
    counts = np.asarray(weight, dtype=np.float64)
    size = int(groups.max(initial=-1)) + 1
    used = counts > 0
    # Relative to one value first, so that a large constant in all of them costs no digits.
    origin = float(values[used][0]) if used.any() else 0.0
    totals = np.bincount(groups, weights=np.where(used, (values - origin) * counts, 0.0), minlength=size)
    weights = np.bincount(groups, weights=counts, minlength=size)
    means = np.divide(totals, weights, out=np.full(size, np.nan), where=weights > 0)
    return np.asarray(origin + means[groups], dtype=np.float64)


def _floats(column: pa.ChunkedArray) -> Floats:
    return np.asarray(pc.fill_null(column.cast(pa.float64()), float("nan")).to_numpy(), dtype=np.float64)


def _is(column: pa.ChunkedArray, value: object) -> Mask:
    return _true(pc.equal(column, value))


def _true(column: pa.ChunkedArray) -> Mask:
    return np.asarray(pc.fill_null(column, False).to_numpy(), dtype=np.bool_)


def _codes(column: pa.ChunkedArray) -> Ints:
    """Whole numbers from 0 as they are, words by number; -1 for null."""
    if pa.types.is_string(column.type):
        words = column.combine_chunks().dictionary_encode().indices
        column = pa.chunked_array([words])
    return np.asarray(pc.fill_null(column.cast(pa.int64()), -1).to_numpy(), dtype=np.int64)


def _index(*columns: npt.NDArray[np.generic]) -> Ints:
    """Number of each row's distinct combination of values; NaN is one value."""
    index = _numbers(columns[0])
    for column in columns[1:]:
        numbers = _numbers(column)
        index = _numbers(index * (int(numbers.max(initial=0)) + 1) + numbers)
    return index


def _numbers(values: npt.NDArray[np.generic]) -> Ints:
    """Number of each distinct value, in the order of appearance: by hashing, since sorting millions takes seconds."""
    return np.asarray(pa.array(values).dictionary_encode().indices, dtype=np.int64)
