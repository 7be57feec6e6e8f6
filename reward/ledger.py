"""The sample ledger: where every collected sample went.

    collected = trained + excluded (reason) + quarantined (reason) + waiting

in every cycle, in all and in each stratum of predicted failure, since what leaves training by the stratum is how a hole
shows. The two sides are counted from different tables, so that a sample lost between them cannot go unseen: *collected*
from the raw interactions (and the records that could not be read), *where it went* from the observations and from what
the trainer recorded of each sample offered to it.

**A sample belongs to the ledger of the cycle in which it was collected, for good.** If it waits when that cycle trains
and is trained on in the next, then the ledger of its own cycle is written again: waiting falls by one, trained rises by
one. So the ledger of a cycle is final once nothing waits in it, and `ledger` is a function of the tables alone: taken
again, it says the same or less waiting. Where a sample went is decided by the first of:

1. the trainer trained on it, in whichever cycle: *trained*;
2. the trainer's last word on it is a reason other than ``reward_waiting`` (``stale``, ``reward_invalid``, the name of a
   rule, ...): *excluded* for that reason;
3. the trainer saw it waiting and has not been offered it since: *waiting*;
4. the trainer was never offered it: *excluded* where the observation says so, *waiting* where its reward waits. An
   observation that is included and was never offered is lost, and the ledger does not add up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from palomar.data.errors import LedgerError
from palomar.data.slices import ALL
from palomar.data.store.records import LedgerRow, Place

UNKNOWN = "predicted failure not known"
STRATUM_EDGES = (0.2, 0.4, 0.6, 0.8)
"""Inner edges of the strata of predicted failure; a stratum holds its lower edge."""
STRATA = (
    *(
        f"predicted failure {low:g}-{high:g}"
        for low, high in zip((0.0, *STRATUM_EDGES), (*STRATUM_EDGES, 1.0), strict=True)
    ),
    UNKNOWN,
)
REWARD_WAITING = "reward_waiting"
"""The trainer's reason for a sample that it leaves for the next cycle."""
NO_REASON = "no_reason"
"""Reason shown for a sample that somebody dropped without saying why."""

SAMPLE_COLUMNS = ("interaction_id", "cycle", "sampled_cycle", "trained", "reason")
"""What is read of the trainer's samples: the cycles that were offered it and that collected it, and what came of it."""


@dataclass(frozen=True)
class Ledger:
    """One cycle's ledger, as rows for the store; rows with a count of 0 are left out."""

    cycle: int
    rows: tuple[LedgerRow, ...]

    def count(self, place: Place, reason: str | None = None, stratum: str = ALL) -> int:
        """Samples in one place, for one reason where given, in one stratum or in all."""
        return sum(
            row.count
            for row in self.rows
            if row.stratum == stratum and row.place == place and reason in (None, row.reason)
        )

    def check(self) -> None:
        """Raises LedgerError for the first stratum in which the parts do not add up to what was collected."""
        for stratum in (*STRATA, ALL):
            parts = {
                f"{row.place}:{row.reason}" if row.reason else row.place: row.count
                for row in self.rows
                if row.stratum == stratum and row.place != "collected"
            }
            if sum(parts.values()) != (collected := self.count("collected", stratum=stratum)):
                raise LedgerError(self.cycle, stratum, collected, parts)


def ledger(
    cycle: int,
    collected: pa.Table,
    observations: pa.Table,
    samples: pa.Table,
    quarantined: Mapping[str, int],
    *,
    received: int | None = None,
) -> Ledger:
    """The ledger of one cycle, not checked yet.

    `collected` has ``interaction_id`` and ``predicted_failure`` of the cycle's raw interactions; `observations` are the
    cycle's, scored; `samples` hold SAMPLE_COLUMNS of every cycle that may have been offered them (others' samples are
    passed over); `quarantined` counts by reason the records of this cycle that could not be read, which are of no known
    stratum. `received` is the source's own count of what it handed over, where it has one; it then is what must add up.
    """
    found = _places(cycle, observations, samples)
    ids = pc.unique(collected["interaction_id"])
    first = pc.index_in(ids, value_set=collected["interaction_id"].combine_chunks())
    collected_in = np.bincount(
        _strata(collected["predicted_failure"].take(first)), minlength=len(STRATA)
    ) + _in_unknown(sum(quarantined.values()))
    counts: dict[tuple[str, Place, str], int] = {}
    for stratum, count in zip(STRATA, collected_in.tolist(), strict=True):
        counts[stratum, "collected", ""] = count
    counts[ALL, "collected", ""] = int(collected_in.sum()) if received is None else received
    for stratum_code, place, reason, count in found:
        for stratum in (STRATA[stratum_code], ALL):
            counts[stratum, place, reason] = counts.get((stratum, place, reason), 0) + count
    for reason, count in quarantined.items():
        for stratum in (UNKNOWN, ALL):
            counts[stratum, "quarantined", reason] = count
    rows = (LedgerRow(cycle, stratum, place, reason, count) for (stratum, place, reason), count in counts.items())
    return Ledger(cycle, tuple(row for row in rows if row.count))


def _places(cycle: int, observations: pa.Table, samples: pa.Table) -> list[tuple[int, Place, str, int]]:
    """(stratum code, place, reason, count) of all samples of the cycle."""
    ids = observations["interaction_id"].combine_chunks()
    row_of = pc.index_in(samples["interaction_id"], value_set=ids).combine_chunks()
    ours = pc.is_valid(row_of)
    trained = samples["trained"].combine_chunks()
    row = np.asarray(row_of.filter(ours).to_numpy(zero_copy_only=False), dtype=np.int64)
    times_trained = np.bincount(row, weights=_flags(trained.filter(ours)), minlength=len(ids)).astype(np.int64)
    words, said = _last_word(samples.filter(ours), row, len(ids))
    # Rows on ids that this cycle never observed, though the trainer says that it collected them.
    strangers = pc.and_(
        pc.invert(ours), pc.and_(trained, pc.fill_null(pc.equal(samples["sampled_cycle"], cycle), False))
    )

    open_still = _flags(pc.equal(words, REWARD_WAITING))
    dropped = _flags(pc.equal(observations["included"], False))
    waits = _flags(pc.equal(observations["reward_status"], "waiting"))
    decisions: list[tuple[NDArray[np.bool_], Place, pa.Array | str]] = [
        (times_trained > 0, "trained", ""),
        (said & ~open_still, "excluded", pc.fill_null(words, NO_REASON)),
        (said, "waiting", ""),
        (dropped, "excluded", pc.fill_null(observations["exclusion"].combine_chunks(), NO_REASON)),
        (waits, "waiting", ""),
    ]
    strata = _strata(observations["predicted_failure"])
    result: list[tuple[int, Place, str, int]] = []
    undecided = np.ones(len(ids), dtype=np.bool_)
    for mask, place, reason in decisions:
        here = mask & undecided
        undecided &= ~mask
        result.extend(_counted(strata, here, place, reason))
    # Trained twice, or never collected: more samples than there were.
    result.extend(_counted(np.repeat(strata, np.maximum(times_trained - 1, 0)), None, "trained", ""))
    result.extend(_counted(np.full(int(_flags(strangers).sum()), len(STRATA) - 1), None, "trained", ""))
    return result


def _last_word(samples: pa.Table, row: NDArray[np.int64], size: int) -> tuple[pa.Array, NDArray[np.bool_]]:
    """The reason in the row of the latest cycle that was offered each observation, and whether there is such a row."""
    order = np.argsort(np.asarray(samples["cycle"].to_numpy()), kind="stable")
    latest = np.full(size, -1, dtype=np.int64)
    latest[row[order]] = order  # of repeated rows the last assignment, the latest cycle, stays
    said = latest >= 0
    words = samples["reason"].combine_chunks().take(pa.array(np.where(said, latest, 0), mask=~said))
    return words, said


def _counted(
    strata: NDArray[np.int64], mask: NDArray[np.bool_] | None, place: Place, reason: pa.Array | str
) -> list[tuple[int, Place, str, int]]:
    reasons = (
        pa.array([reason]).take(pa.array(np.zeros(len(strata), dtype=np.int64))) if isinstance(reason, str) else reason
    )
    table = pa.table({"stratum": strata, "reason": reasons})
    if mask is not None:
        table = table.filter(pa.array(mask))
    grouped = table.group_by(["stratum", "reason"]).aggregate([([], "count_all")]).to_pylist()
    return [(group["stratum"], place, group["reason"], group["count_all"]) for group in grouped]


def _strata(predicted_failure: pa.ChunkedArray) -> NDArray[np.int64]:
    """Position in STRATA of each row."""
    value = np.asarray(pc.fill_null(predicted_failure.cast(pa.float64()), float("nan")).to_numpy(), dtype=np.float64)
    return np.where(np.isnan(value), len(STRATA) - 1, np.digitize(value, STRATUM_EDGES)).astype(np.int64)


def _in_unknown(count: int) -> NDArray[np.int64]:
    result = np.zeros(len(STRATA), dtype=np.int64)
    result[-1] = count
    return result


def _flags(column: pa.Array | pa.ChunkedArray) -> NDArray[np.bool_]:
    return np.asarray(pc.fill_null(column, False).to_numpy(zero_copy_only=False), dtype=np.bool_)
