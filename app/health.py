"""Whether a cycle's data can be believed: where samples went, how late feedback is, faults, and what was unreadable.

Everything is read from what the loop and the checks kept; only when a cycle's feedback will be in is asked of the lake,
for the cycles of which it is not.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import Any, Literal

import pyarrow.compute as pc

from palomar.app.service import Observatory
from palomar.data.slices import ALL
from palomar.data.store import Store
from palomar.data.store.records import Cycle, LedgerRow, Place, QuarantineEntry, StoredFinding
from palomar.reward.spec import parse_spec

USUAL_CYCLES = 20
"""Cycles before the one in question whose shares are what is usual."""
FEW = 5
"""With fewer of them, nothing is called usual."""
NEWEST_RECORDS = 20
"""Quarantined records that are shown."""
FAULTS = 200
"""Faults of measurement that are looked back at, the newest."""
LOOKED_UP = 3
"""Cycles whose feedback is not in, of which it is said when it will be: the newest."""

PLACES: tuple[Place, ...] = ("trained", "excluded", "quarantined", "waiting")
"""Where a sample that was received can go."""
Word = Literal["pass", "fail", "no_data"]


@dataclass(frozen=True)
class Loss:
    """Samples of a cycle that went to one place for one reason, and how many usually do."""

    place: Place
    reason: str
    """Empty where the place needs none."""
    count: int
    share: float
    """Of all that were received."""
    usual: float | None
    """Median share over the cycles before; None with fewer than `FEW` of them."""
    low: float | None
    """Smallest and largest share in these cycles."""
    high: float | None

    @property
    def unusual(self) -> bool:
        """Whether the share is outside all that was seen in the cycles before."""
        return self.low is not None and self.high is not None and not self.low <= self.share <= self.high


@dataclass(frozen=True)
class Stratum:
    """The ledger of one stratum, or of all."""

    name: str
    received: int
    counts: Mapping[Place, int]
    """Where they went."""

    @property
    def off(self) -> int:
        """Samples that are accounted for and were never received; negative: received and accounted for nowhere."""
        return sum(self.counts.values()) - self.received


@dataclass(frozen=True)
class Sums:
    """Whether one cycle's ledger adds up."""

    whole: Stratum
    strata: tuple[Stratum, ...]

    @property
    def off(self) -> tuple[Stratum, ...]:
        """Those that do not add up; of all, and of each stratum."""
        return tuple(each for each in (self.whole, *self.strata) if each.off)


@dataclass(frozen=True)
class Ripeness:
    """How much of a cycle's feedback is in."""

    cycle: int
    share: float | None
    """Of the interactions, those whose outcome was watched long enough; None = no outcome is measured."""
    n: int
    """Interactions whose outcome is known."""
    ready_at: datetime | None
    """When all of it was, or will be, watched long enough, by the log's clock; None = it is in, or not known."""


@dataclass(frozen=True)
class Lag:
    """How old a cycle's samples were when they were trained on, and what it waited for."""

    by_age: Mapping[int, int]
    """Samples by the number of cycles from sampling to the update."""
    offered: int | None
    waiting: int | None
    """Of those offered, the ones whose reward was not known yet."""
    as_of: datetime | None
    """What users had said by then was known to the cycle, by the log's clock."""


@dataclass(frozen=True)
class DataHealth:
    """What there is to say on one cycle's data."""

    run_id: str
    cycle: int
    cycles: tuple[int, ...]
    """All that the run has, ascending."""
    sums: Sums | None
    """None = the cycle has no ledger yet."""
    losses: tuple[Loss, ...]
    """What was not trained on, the largest share first; reasons of earlier cycles that did not occur too."""
    compared: int
    """Cycles before it that its shares are compared with, at most `USUAL_CYCLES`: those that trained, if it did."""
    lag: Lag | None
    """None = it was not trained on, or the trainer did not say."""
    ripeness: tuple[Ripeness, ...]
    """Of every cycle, ascending."""
    faults: tuple[StoredFinding, ...]
    """Faults of measurement that were found in the cycle."""
    faulty: Mapping[int, int]
    """By cycle: how many were found; the newest `FAULTS`."""
    checked: bool
    """Whether the cycle was checked at all: without, no fault is no clearance."""
    quarantined: Mapping[str, int]
    """Records that could not be read, by kind of problem; of all cycles, since their ingestions are of no cycle."""
    records: tuple[QuarantineEntry, ...]
    """The newest of them."""

    @property
    def word(self) -> Word:
        """``fail``: the ledger does not add up, or a fault was found; ``no_data``: one of both is not known."""
        if self.faults or (self.sums is not None and self.sums.off):
            return "fail"
        return "no_data" if self.sums is None or not self.checked else "pass"


def health(observatory: Observatory, run_id: str, cycle: int | None = None) -> DataHealth | None:
    """What there is to say on a cycle's data, without a number on the newest with a ledger; None where there is none.

    A cycle that the run does not have gives None too.
    """
    store = observatory.store
    ripe = store.statistics.series(run_id, statistics=["outcome_mean"], slices=[ALL])
    ledgers = _by_cycle(store.ledger.read(run_id, stratum=ALL))
    known = sorted(
        {
            *ledgers,
            *(point.cycle for point in ripe),
            *(each.cycle for each in store.cycles.read(run_id, newest=1, with_stages=False)),
        }
    )
    if not known or (cycle is not None and cycle not in known):
        return None
    chosen = cycle if cycle is not None else max(ledgers, default=known[-1])
    # Like with like: in the baseline cycles nothing is trained on, and every sample is left out for that.
    trains = _trains(ledgers.get(chosen, []))
    before = [ledgers[each] for each in sorted(ledgers) if each < chosen and _trains(ledgers[each]) == trains]
    before = before[-USUAL_CYCLES:]
    faults = store.findings.read(run_id, reading="measurement_fault", newest=FAULTS)
    faulty: defaultdict[int, int] = defaultdict(int)
    for each in faults:
        faulty[each.cycle] += 1
    return DataHealth(
        run_id=run_id,
        cycle=chosen,
        cycles=tuple(known),
        sums=_sums(store.ledger.read(run_id, chosen)),
        losses=tuple(_losses(ledgers.get(chosen, []), before)),
        compared=len(before),
        lag=_lag(store.cycles.get(run_id, chosen)),
        ripeness=tuple(_ripeness(observatory, run_id, [(point.cycle, point.maturity, point.n) for point in ripe])),
        faults=tuple(store.findings.read(run_id, chosen, reading="measurement_fault")),
        faulty=dict(faulty),
        checked=store.verdicts.get(run_id, chosen) is not None,
        quarantined=store.quarantine.by_kind(),
        records=tuple(store.quarantine.latest(count=NEWEST_RECORDS)),
    )


def plain(found: DataHealth) -> dict[str, Any]:
    """The same as JSON prints it."""
    values = asdict(found)
    if found.sums is not None:
        values["sums"] |= {"adds_up": not found.sums.off, "off": {each.name: each.off for each in found.sums.off}}
    for loss, said in zip(found.losses, values["losses"], strict=True):
        said["unusual"] = loss.unusual
    return values | {"state": found.word}


def _by_cycle(rows: Sequence[LedgerRow]) -> dict[int, list[LedgerRow]]:
    found: dict[int, list[LedgerRow]] = {}
    for row in rows:
        found.setdefault(row.cycle, []).append(row)
    return found


def _trains(rows: Sequence[LedgerRow]) -> bool:
    return any(row.place == "trained" for row in rows)


def _sums(rows: Sequence[LedgerRow]) -> Sums | None:
    if not rows:
        return None
    strata = {}
    for name in dict.fromkeys((ALL, *(row.stratum for row in rows))):
        of = [row for row in rows if row.stratum == name]
        counts: defaultdict[Place, int] = defaultdict(int)
        for row in of:
            if row.place != "collected":
                counts[row.place] += row.count
        strata[name] = Stratum(name, sum(row.count for row in of if row.place == "collected"), dict(counts))
    whole = strata.pop(ALL)
    return Sums(whole, tuple(strata.values()))


def _shares(rows: Sequence[LedgerRow]) -> dict[tuple[Place, str], float]:
    """Share of what was received, by place and reason; empty where nothing was received."""
    received = sum(row.count for row in rows if row.place == "collected")
    lost = [row for row in rows if row.place not in ("collected", "trained")]
    return {(row.place, row.reason): row.count / received for row in lost} if received else {}


def _losses(rows: Sequence[LedgerRow], before: Sequence[Sequence[LedgerRow]]) -> list[Loss]:
    now, past = _shares(rows), [_shares(each) for each in before]
    counts = {(row.place, row.reason): row.count for row in rows}
    found = []
    if not any(row.place == "collected" for row in rows):
        return []
    for place, reason in dict.fromkeys((*now, *(key for shares in past for key in shares))):
        # A cycle with a ledger that has no such row had none of it: here 0 is a number.
        shares = [each.get((place, reason), 0.0) for each in past] if len(past) >= FEW else []
        found.append(
            Loss(
                place,
                reason,
                counts.get((place, reason), 0),
                now.get((place, reason), 0.0),
                usual=median(shares) if shares else None,
                low=min(shares, default=None),
                high=max(shares, default=None),
            )
        )
    return sorted(found, key=lambda each: (-each.share, -(each.usual or 0.0), each.place, each.reason))


def _lag(record: Cycle | None) -> Lag | None:
    if record is None:
        return None
    details = {stage.stage: stage.detail for stage in record.stages}
    trained, distilled = details.get("train", {}), details.get("distil", {})
    ages, left, as_of = trained.get("policy_lag"), trained.get("not_trained"), distilled.get("as_of")
    offered = trained.get("offered")
    if not isinstance(ages, Mapping) and not isinstance(as_of, str):
        return None
    return Lag(
        by_age={int(age): int(count) for age, count in sorted(ages.items(), key=lambda item: int(item[0]))}
        if isinstance(ages, Mapping)
        else {},
        offered=offered if isinstance(offered, int) else None,
        waiting=int(left.get("reward_waiting", 0)) if isinstance(left, Mapping) else None,
        as_of=datetime.fromisoformat(as_of) if isinstance(as_of, str) else None,
    )


def _ripeness(observatory: Observatory, run_id: str, points: Sequence[tuple[int, float | None, int]]) -> list[Ripeness]:
    open_still = [cycle for cycle, share, _ in points if share is not None and share < 1][-LOOKED_UP:]
    ready = {cycle: _ready_at(observatory, run_id, cycle) for cycle in open_still}
    return [Ripeness(cycle, share, n, ready.get(cycle)) for cycle, share, n in points]


def _ready_at(observatory: Observatory, run_id: str, cycle: int) -> datetime | None:
    """The end of the cycle's last interaction and the outcome's longest horizon after it; None where a part is not
    known. Asked of the lake anew only when the cycle's files have changed."""
    files = observatory.lake.files("observations", [cycle])
    if not files:
        return None
    horizon = _horizon(observatory.store, run_id, cycle)
    state = tuple((str(path), status.st_mtime_ns, status.st_size) for path in files for status in [path.stat()])
    with _lock:
        known = _ended.get(state)
    if known is None:
        rows = observatory.lake.scan("observations", ("as_of", "watched_s"), cycles=[cycle])
        shortest = pc.min(rows["watched_s"]).as_py() if rows.num_rows else None
        as_of = pc.max(rows["as_of"]).as_py() if rows.num_rows else None
        known = (None if shortest is None or as_of is None else as_of - timedelta(seconds=shortest),)
        with _lock:
            _ended[state] = known
            while len(_ended) > _KEPT:
                _ended.popitem(last=False)
    (last,) = known
    return None if last is None or horizon is None else last + timedelta(seconds=horizon)


_KEPT = 64
"""Cycles of which the end is remembered."""
_lock = threading.Lock()
_ended: OrderedDict[tuple[tuple[str, int, int], ...], tuple[datetime | None]] = OrderedDict()


def _horizon(store: Store, run_id: str, cycle: int) -> float | None:
    """Seconds after which the outcome of an interaction is known, by the reward of its cycle."""
    version = store.rewards.effective(run_id, cycle)
    return None if version is None else _horizon_of(version.text)


@functools.lru_cache(maxsize=64)
def _horizon_of(text: str) -> float | None:
    spec = parse_spec(text, source="the reward of the cycle")
    if spec.outcome is None:
        return None
    return 60 * max(float(getattr(term.params, "horizon_minutes", 0.0)) for term in spec.outcome.terms)
