"""Replay: what would another reward have paid for the same interactions?

Both rewards are put on the same logged rows. A term whose kind, parameters, bounds and condition are those of the spec
that a row was scored by keeps its *stored* score, which is what was paid; any other is *recomputed* from the stored
facts by `palomar.reward.scoring`. `Replay.coverage` says how many rows each way served, and how many have no value.

What training would make of either reward is rebuilt in the same way for both: advantage = (reward - mean) / standard
deviation over the included rows of a cycle, 0 for a row that is left out. So old and new differ by the spec alone, and
adding a constant to every reward changes nothing. A trainer's own logged advantages are what `palomar pressure` reads.

**Beware.** The rows were sampled by the policy of their cycle. A replay says which way the next step would push from
there, and not where many steps lead: the policy moves, and does things that the log does not show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from palomar.data.lake import Lake
from palomar.data.slices import ALL, SLICES
from palomar.reward.behaviours import BEHAVIOURS, Ints, Logged, cells, context, measured
from palomar.reward.charges import OUTCOME, ROUNDING, outcome_signal
from palomar.reward.contexts import numbered
from palomar.reward.pressure import pressure
from palomar.reward.rows import Floats, Mask
from palomar.reward.scoring import paid, term_scores
from palomar.reward.spec import RewardSpec, TermSpec, version
from palomar.reward.term import INVALID, NOT_APPLICABLE, STATUSES, VALID, WAITING, TermScores

ANY = "any"
"""The behaviour that every row shows."""
PARTNERS = 8
"""Rows of the same context that each row is compared with for ranking flips: all of them in a context of up to 9."""
FLIP_PAIRS = 2_000_000
"""As many pairs of one context are enough: with more rows each is compared with fewer, which were drawn before."""
PRESSURE_ROWS = 100_000
"""More rows than this, and pressures are taken on the rows of every n-th user only."""
EXAMPLES = 5

_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Pay:
    """What one spec pays N rows, and what training would make of it. Arrays have shape (N,)."""

    spec: RewardSpec
    reward: Floats
    """NaN where it is not valid."""
    status: pa.Array
    included: Mask
    """Trained on."""
    decided: Mask
    """Trained on or left out; the others wait."""
    exclusion: pa.Array
    """Why a row is left out."""
    advantage: Floats
    """0 where it is left out or waits."""
    contributions: Mapping[str, Floats]
    """weight x value of each term; 0 where it does not apply, NaN where it is not known."""
    coverage: tuple[Coverage, ...]


@dataclass(frozen=True)
class Coverage:
    """Where the scores of a term come from, in rows."""

    term: str
    stored: int
    """Kept as they were scored: the term is the same."""
    recomputed: int
    """Scored anew from facts."""
    valid: int
    not_applicable: int
    waiting: int
    invalid: int
    why: str | None
    """Reason of most invalid rows."""


@dataclass(frozen=True)
class Change:
    """Means over the rows of a slice that show a behaviour and have a valid reward under both specs."""

    slice: str
    behaviour: str
    n: int
    old: float
    """Mean reward."""
    new: float
    old_advantage: float
    """Mean advantage: a row with a valid reward is trained on or left out, and does not wait."""
    new_advantage: float
    old_pushed: float
    """Share of rows with an advantage above 0."""
    new_pushed: float


@dataclass(frozen=True)
class TermChange:
    """Mean contribution of a term in a `Change`'s rows; 0 for a spec that does not have it."""

    term: str
    slice: str
    behaviour: str
    n: int
    old: float
    new: float


@dataclass(frozen=True)
class Flips:
    """Pairs of rows of one context (their group where the log has groups), and how the new reward orders them."""

    within: str
    """``group`` or ``context``."""
    pairs: int
    flipped: float
    """Share whose order is turned round."""
    tied: float
    """Share that the old reward tells apart and the new one does not."""
    parted: float
    """Share that the new reward tells apart and the old one did not."""
    tau: float | None
    """Kendall's tau-b of the two orders over these pairs; None where one of them orders nothing."""


@dataclass(frozen=True)
class Inclusion:
    """Rows that go from one place to another."""

    before: str
    """``trained``, ``waiting``, or the reason of the exclusion."""
    after: str
    n: int
    reward: float | None
    """Mean reward under the new spec, of those that have one."""
    advantage: float | None
    """Mean advantage under the new spec; None where it is left out or waits."""


@dataclass(frozen=True)
class Flagged:
    """What becomes of the rows that the caller flagged as hacks, and of all others."""

    n: int
    gained: int
    """Flagged rows that the old reward pushed (advantage above 0)."""
    lost: float | None
    """Share of them that the new one does not push."""
    honest_gained: int
    honest_hurt: float | None
    """Share of the other pushed rows that the new one does not push."""


@dataclass(frozen=True)
class Mover:
    """A row whose advantage changes most."""

    interaction_id: str
    behaviours: tuple[str, ...]
    old: float
    """Advantage."""
    new: float


@dataclass(frozen=True)
class PressureRow:
    """One cell of the pressure matrix; values are None where the status leaves none."""

    statistic: str
    slice: str
    kind: str
    """``old``, ``new`` or ``outcome``."""
    value: float | None
    low: float | None
    high: float | None
    z: float | None
    status: str
    level: float | None
    n: int


@dataclass(frozen=True)
class Replay:
    """All that a replay tells."""

    old: str
    """Version."""
    new: str
    cycles: tuple[int | None, ...]
    num_rows: int
    compared: int
    """Rows with a valid reward under both."""
    coverage: tuple[Coverage, ...]
    """Of the new spec's terms."""
    old_coverage: tuple[Coverage, ...]
    changes: tuple[Change, ...]
    terms: tuple[TermChange, ...]
    flips: Flips | None
    """None where no two rows can be compared."""
    inclusion: tuple[Inclusion, ...]
    distance: float
    """How much the training signal changes: root mean square of the change of advantage over that of the old one."""
    gainers: tuple[Mover, ...]
    losers: tuple[Mover, ...]
    flagged: Flagged | None
    pressures: tuple[PressureRow, ...]
    pressure_rows: int
    """Rows that the pressures rest on."""
    spec_changes: tuple[str, ...] = field(default=())
    """What differs between the specs, in words."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def replay(
    lake: Lake,
    cycles: Sequence[int | None],
    old: RewardSpec,
    new: RewardSpec,
    *,
    known: Mapping[str, RewardSpec] | None = None,
    flagged: Sequence[str] = (),
    pressures: bool = True,
) -> Replay:
    """What `new` would have paid in place of `old`. `known` are further specs by version, by which rows were scored.

    `flagged` are ids of interactions that someone holds to be hacks. Raises LakeError where there are no rows.
    """
    return compare(Logged.read(lake, cycles), old, new, known=known, flagged=flagged, pressures=pressures)


def compare(
    logged: Logged,
    old: RewardSpec,
    new: RewardSpec,
    *,
    known: Mapping[str, RewardSpec] | None = None,
    flagged: Sequence[str] = (),
    pressures: bool = True,
) -> Replay:
    """`replay` of rows that were read already."""
    specs = {**(known or {}), version(old): old, version(new): new}
    rows, chosen = _pressure_rows(logged)
    # Two at a time: nearly all of it is NumPy and Arrow on long columns, which let other threads run meanwhile.
    with ThreadPoolExecutor(2) as pool:
        before, after = pool.map(lambda spec: pay(logged, spec, specs), (old, new))
        signals = {"old": before.advantage[chosen], "new": after.advantage[chosen]}
        decided = before.decided[chosen] & after.decided[chosen]
        matrix = pool.submit(_matrix, rows, signals, decided) if pressures else None
        flipped = pool.submit(flips, logged, before.reward, after.reward)
        both = np.isfinite(before.reward) & np.isfinite(after.reward)
        shown = {each.name: each.shows(logged.rows) for each in BEHAVIOURS}
        groups = _Groups(logged, shown)
        moved = after.advantage - before.advantage
        size = float(np.sqrt((before.advantage**2).mean())) if len(logged) else 0.0
        return Replay(
            old=version(old),
            new=version(new),
            cycles=tuple(None if cycle < 0 else int(cycle) for cycle in np.unique(logged.cycle)),
            num_rows=len(logged),
            compared=int(both.sum()),
            coverage=after.coverage,
            old_coverage=before.coverage,
            changes=_changes(groups, before, after, both),
            terms=_term_changes(groups, before, after, both),
            inclusion=_moves(before, after),
            distance=float(np.sqrt((moved**2).mean())) / size if size else 0.0,
            gainers=_movers(logged, shown, before, after, moved),
            losers=_movers(logged, shown, before, after, -moved),
            flagged=_flagged(logged, before, after, flagged) if flagged else None,
            flips=flipped.result(),
            pressures=matrix.result() if matrix is not None else (),
            pressure_rows=int(chosen.sum()) if pressures else 0,
            spec_changes=spec_changes(old, new),
        )


# -- what one spec pays --------------------------------------------------------------------------------------------


def pay(logged: Logged, spec: RewardSpec, known: Mapping[str, RewardSpec] | None = None) -> Pay:
    """What a spec pays the rows."""
    by_version = {**(known or {}), version(spec): spec}
    scores, coverage = {}, []
    for term in spec.terms:
        scores[term.name], stored = _scores(logged, term, by_version)
        coverage.append(_coverage(term.name, scores[term.name], stored))
    columns = paid(logged.rows, spec, scores)
    reward = np.asarray(pc.fill_null(columns["reward"], float("nan")), dtype=np.float64)
    included = np.asarray(pc.fill_null(columns["included"], False), dtype=np.bool_)
    contributions = {
        term.name: term.weight * np.where(scores[term.name].status == NOT_APPLICABLE, 0.0, scores[term.name].value)
        for term in spec.terms
    }
    return Pay(
        spec=spec,
        reward=reward,
        status=columns["reward_status"],
        included=included,
        decided=np.asarray(pc.is_valid(columns["included"]), dtype=np.bool_),
        exclusion=columns["exclusion"],
        advantage=batch_advantage(reward, included, logged.cycle),
        contributions=contributions,
        coverage=tuple(coverage),
    )


def batch_advantage(reward: Floats, included: Mask, cycle: Ints) -> Floats:
    """(reward - mean) / standard deviation over the included rows of each cycle, 0 for all others.

    What `palomar.reward.charges` rebuilds where the trainer logged nothing. 0 also in a cycle whose rewards are equal.
    """
    return batch_part(reward, reward, included, cycle)


def batch_part(part: Floats, reward: Floats, included: Mask, cycle: Ints) -> Floats:
    """The part of the advantage that comes from a part of the reward: parts that add up to it give parts that do."""
    used = np.flatnonzero(included & np.isfinite(reward))
    batch = numbered(cycle[used][:, None])
    counts = np.bincount(batch)
    centred_reward = _centred(reward[used], batch, counts)
    spread = np.sqrt(np.bincount(batch, weights=centred_reward**2, minlength=len(counts)) / counts)
    largest = np.zeros(len(counts))
    np.maximum.at(largest, batch, np.abs(reward[used]))
    spread = np.where(spread > ROUNDING * largest, spread, np.inf)
    advantage = np.zeros(len(reward))
    advantage[used] = _centred(part[used], batch, counts) / spread[batch]
    return advantage


def _centred(values: Floats, batch: Ints, counts: Ints) -> Floats:
    if not len(values):
        return values
    apart = values - values[0]  # relative to one value first, so that a large constant in all of them costs no digits
    return np.asarray(apart - (np.bincount(batch, weights=apart) / counts)[batch], dtype=np.float64)


def same_term(one: TermSpec, other: TermSpec) -> bool:
    """Whether two terms give every row the same value, whatever their names and weights."""
    return (one.kind, one.params, one.bounds, one.when) == (other.kind, other.params, other.bounds, other.when)


def _scores(logged: Logged, term: TermSpec, specs: Mapping[str, RewardSpec]) -> tuple[TermScores, Mask]:
    """Value and status of every row, and which rows kept their stored ones."""
    table = logged.table
    versions, code = logged.versions
    stored = np.zeros(len(logged), dtype=np.bool_)
    value, status = np.full(len(logged), np.nan), np.full(len(logged), INVALID, dtype=np.uint8)
    for index, name in enumerate(versions):
        spec = specs.get(name)
        twin = None if spec is None else next((each for each in spec.terms if same_term(each, term)), None)
        if twin is None or f"status:{twin.name}" not in table.column_names:
            continue
        codes = np.asarray(
            pc.fill_null(pc.index_in(table[f"status:{twin.name}"], pa.array(STATUSES)), -1), dtype=np.int64
        )
        here = (code == index) & (codes >= 0)
        stored |= here
        status[here] = codes[here].astype(np.uint8)
        value[here] = np.asarray(pc.fill_null(table[f"term:{twin.name}"], float("nan")))[here]
    if stored.all():
        return TermScores(value, status, pa.nulls(len(logged), pa.string())), stored
    if not stored.any():
        return term_scores(logged.rows, term), stored
    # Scored together with the others, then put aside: a few rows of another version are not worth a second table.
    anew = term_scores(logged.rows, term)
    reason = pc.if_else(pa.array(stored), pa.scalar(None, pa.string()), anew.reason)
    return TermScores(np.where(stored, value, anew.value), np.where(stored, status, anew.status), reason), stored


def _coverage(name: str, scores: TermScores, stored: Mask) -> Coverage:
    counts = np.bincount(scores.status, minlength=len(STATUSES))
    reasons = pc.value_counts(scores.reason.filter(pa.array(scores.status == INVALID)).drop_null())
    most = max(reasons.to_pylist(), key=lambda each: (each["counts"], each["values"]), default=None)
    return Coverage(
        term=name,
        stored=int(stored.sum()),
        recomputed=int((~stored).sum()),
        valid=int(counts[VALID]),
        not_applicable=int(counts[NOT_APPLICABLE]),
        waiting=int(counts[WAITING]),
        invalid=int(counts[INVALID]),
        why=None if most is None else str(most["values"]),
    )


# -- what changes --------------------------------------------------------------------------------------------------


class _Groups:
    """The rows of each slice that show each behaviour; sums over all of them at once."""

    def __init__(self, logged: Logged, shown: Mapping[str, Mask]) -> None:
        self._cell, self._members = cells(logged.rows)
        self._rows = {ANY: np.arange(len(logged)), **{name: np.flatnonzero(mask) for name, mask in shown.items()}}

    def totals(self, values: Floats | Mask) -> dict[tuple[str, str], float]:
        """Sum of (N,) values by slice and behaviour."""
        size = len(self._members[ALL])
        sums = {
            name: np.bincount(self._cell[rows], weights=values[rows], minlength=size)
            for name, rows in self._rows.items()
        }
        return {
            (slice_, name): float(total[inside].sum())
            for slice_, inside in self._members.items()
            for name, total in sums.items()
        }


def _changes(groups: _Groups, before: Pay, after: Pay, both: Mask) -> tuple[Change, ...]:
    counts = groups.totals(both)
    sums = {
        "old": groups.totals(np.where(both, before.reward, 0.0)),
        "new": groups.totals(np.where(both, after.reward, 0.0)),
        "old_advantage": groups.totals(np.where(both, before.advantage, 0.0)),
        "new_advantage": groups.totals(np.where(both, after.advantage, 0.0)),
        "old_pushed": groups.totals(both & (before.advantage > 0)),
        "new_pushed": groups.totals(both & (after.advantage > 0)),
    }
    return tuple(
        Change(
            slice=slice_,
            behaviour=behaviour,
            n=int(count),
            **{name: total[slice_, behaviour] / count for name, total in sums.items()},
        )
        for (slice_, behaviour), count in counts.items()
        if count
    )


def _term_changes(groups: _Groups, before: Pay, after: Pay, both: Mask) -> tuple[TermChange, ...]:
    counts = groups.totals(both)
    found = []
    for name in dict.fromkeys([*before.contributions, *after.contributions]):
        old, new = (
            groups.totals(np.where(both, np.nan_to_num(each.contributions[name]), 0.0))
            if name in each.contributions
            else dict.fromkeys(counts, 0.0)
            for each in (before, after)
        )
        found += [
            TermChange(name, *group, n=int(n), old=old[group] / n, new=new[group] / n)
            for group, n in counts.items()
            if n
        ]
    return tuple(found)


def flips(logged: Logged, old: Floats, new: Floats) -> Flips | None:
    """How the order of rows of one context changes.

    Each row is compared with up to `PARTNERS` others of its group, or of its context where the log has no groups of
    several rows: the next ones in a fixed random order, taken round. In a context of up to 9 rows these are all pairs,
    unless there are so many rows that `FLIP_PAIRS` would be passed.
    """
    known = np.flatnonzero(np.isfinite(old) & np.isfinite(new))
    place, word = _peers(logged)
    order = known[np.random.default_rng(0).permutation(len(known))]
    # By number, in as few bytes as they need: sorting 16 of them is a matter of counting.
    place = numbered(place[order][:, None])
    place = place.astype(np.min_scalar_type(int(place.max(initial=0))))
    arranged = np.argsort(place, kind="stable")
    order, place = order[arranged], place[arranged]
    starts = np.flatnonzero(np.r_[True, place[1:] != place[:-1]]) if len(place) else np.zeros(0, dtype=np.int64)
    sizes = np.diff(np.r_[starts, len(place)])
    start, size = np.repeat(starts, sizes), np.repeat(sizes, sizes)
    position = np.arange(len(order)) - start
    counts = np.zeros(5)  # flipped, tied, parted, agreeing, tied in both
    for shift in range(1, max(1, min(PARTNERS, FLIP_PAIRS // max(len(order), 1))) + 1):
        paired = size > shift
        partner = order[(start + (position + shift) % np.maximum(size, 1))[paired]]
        row = order[paired]
        first, second = _sign(old[row] - old[partner], old[row]), _sign(new[row] - new[partner], new[row])
        counts += [
            np.count_nonzero(first * second < 0),
            np.count_nonzero((first != 0) & (second == 0)),
            np.count_nonzero((first == 0) & (second != 0)),
            np.count_nonzero(first * second > 0),
            np.count_nonzero((first == 0) & (second == 0)),
        ]
    total = int(counts.sum())
    if not total:
        return None
    flipped, tied, parted, agreeing, _ = counts
    ordered = np.sqrt((flipped + tied + agreeing) * (flipped + parted + agreeing))
    return Flips(
        within=word,
        pairs=total,
        flipped=float(flipped / total),
        tied=float(tied / total),
        parted=float(parted / total),
        tau=float((agreeing - flipped) / ordered) if ordered else None,
    )


def _peers(logged: Logged) -> tuple[Ints, str]:
    """Number of the group or the cell of each row."""
    group = logged.table["group_id"].combine_chunks().dictionary_encode()
    code = np.asarray(pc.fill_null(group.indices, -1), dtype=np.int64)
    # A group is sampled in one cycle.
    if len(code) and (code >= 0).all() and len(group.dictionary) <= len(code) / 2:
        return code * (int(logged.cycle.max()) + 2) + logged.cycle + 1, "group"
    cell, members = cells(logged.rows)
    turn = np.minimum(np.nan_to_num(logged.rows.number("turn")), 1).astype(np.int64)
    return ((logged.cycle + 1) * len(members[ALL]) + cell) * 2 + turn, "context"


def _sign(difference: Floats, scale: Floats) -> Floats:
    """Sign of a difference, 0 where it is rounding."""
    return np.where(np.abs(difference) <= _TOLERANCE * np.maximum(1.0, np.abs(scale)), 0.0, np.sign(difference))


def _moves(before: Pay, after: Pay) -> tuple[Inclusion, ...]:
    names, codes = zip(*(_places(each) for each in (before, after)), strict=True)
    found = []
    for old in range(len(names[0])):
        for new in range(len(names[1])):
            here = (codes[0] == old) & (codes[1] == new)
            if not here.any():
                continue
            rewards = after.reward[here & np.isfinite(after.reward)]
            found.append(
                Inclusion(
                    before=names[0][old],
                    after=names[1][new],
                    n=int(here.sum()),
                    reward=float(rewards.mean()) if len(rewards) else None,
                    advantage=float(after.advantage[here].mean()) if names[1][new] == "trained" else None,
                )
            )
    return tuple(found)


def _places(each: Pay) -> tuple[list[str], Ints]:
    """Where each row ends: names, and the number of each row's."""
    reason = each.exclusion.dictionary_encode()
    code = np.asarray(pc.fill_null(reason.indices, -1), dtype=np.int64) + 2
    code[each.included] = 0
    code[~each.decided] = 1
    return ["trained", "waiting", *reason.dictionary.to_pylist()], code


def _movers(logged: Logged, shown: Mapping[str, Mask], before: Pay, after: Pay, by: Floats) -> tuple[Mover, ...]:
    """The rows with the largest values above 0, of equal ones the first."""
    found = np.flatnonzero(by >= np.partition(by, -EXAMPLES)[-EXAMPLES]) if len(by) > EXAMPLES else np.arange(len(by))
    ids = logged.table["interaction_id"]
    return tuple(
        Mover(
            interaction_id=ids[int(row)].as_py(),
            behaviours=tuple(name for name, mask in shown.items() if mask[row]),
            old=float(before.advantage[row]),
            new=float(after.advantage[row]),
        )
        for row in found[np.argsort(-by[found], kind="stable")][:EXAMPLES]
        if by[row] > 0
    )


def _flagged(logged: Logged, before: Pay, after: Pay, ids: Sequence[str]) -> Flagged:
    hack = np.asarray(pc.is_in(logged.table["interaction_id"], value_set=pa.array(ids, pa.string())), dtype=np.bool_)
    pushed, still = before.advantage > 0, after.advantage > 0

    def lost(rows: Mask) -> float | None:
        return float((~still[rows]).mean()) if rows.any() else None

    return Flagged(
        n=int(hack.sum()),
        gained=int((hack & pushed).sum()),
        lost=lost(hack & pushed),
        honest_gained=int((~hack & pushed).sum()),
        honest_hurt=lost(~hack & pushed),
    )


# -- pressures -----------------------------------------------------------------------------------------------------


def _pressure_rows(logged: Logged) -> tuple[Logged, Mask]:
    """The rows that pressures are taken on, and which these are."""
    every = -(-len(logged) // PRESSURE_ROWS)
    if every <= 1:
        return logged, np.ones(len(logged), dtype=np.bool_)
    chosen = logged.clusters % every == 0
    return logged.of_rows(chosen), chosen


def _matrix(logged: Logged, signals: Mapping[str, Floats], decided: Mask) -> tuple[PressureRow, ...]:
    outcome = outcome_signal(logged.table)
    found: list[PressureRow] = []
    for names, values, counted in (
        (tuple(signals), np.column_stack(list(signals.values())), decided),
        ((OUTCOME,), outcome.values, outcome.counted),
    ):
        found += pressure_rows(logged, names, values, counted)
    return tuple(found)


def pressure_rows(
    logged: Logged,
    names: Sequence[str],
    signals: Floats,
    counted: Mask,
    *,
    statistics: Sequence[str] | None = None,
    slices: Sequence[str] = tuple(SLICES),
) -> list[PressureRow]:
    """Pressure of signals (N, S) on the measured statistics in each slice, over the counted rows."""
    behaviours = measured(logged.rows, statistics)
    cell, members = cells(logged.rows)
    found = []
    for slice_ in slices:
        chosen = counted & members[slice_][cell]
        if not chosen.any():
            continue
        held = context(logged, chosen)
        result = pressure(signals[chosen], behaviours.of(chosen), held, logged.clusters[chosen])
        for k, statistic in enumerate(behaviours.names):
            for s, kind in enumerate(names):
                found.append(
                    PressureRow(
                        statistic=statistic,
                        slice=slice_,
                        kind=kind,
                        **{each: _known(getattr(result, each)[k, s]) for each in ("value", "low", "high", "z")},
                        status=str(result.status[k, s]),
                        level=_known(result.level[k]),
                        n=int(result.n[k]),
                    )
                )
    return found


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


# -- specs ---------------------------------------------------------------------------------------------------------


def spec_changes(old: RewardSpec, new: RewardSpec) -> tuple[str, ...]:
    """What differs between two specs, a sentence each; comments and order do not count."""
    said = []
    for where, one, other in (
        ("term", old.terms, new.terms),
        ("outcome term", old.outcome.terms if old.outcome else (), new.outcome.terms if new.outcome else ()),
        ("rule", old.inclusion, new.inclusion),
    ):
        first = {part.name: part.model_dump(mode="json", exclude_none=True) for part in one}
        second = {part.name: part.model_dump(mode="json", exclude_none=True) for part in other}
        said += [f"{where} {name} is gone" for name in first if name not in second]
        said += [f"{where} {name} is new: {_words(second[name])}" for name in second if name not in first]
        for name, was in first.items():
            now = second.get(name, was)
            keys = [key for key in {**was, **now} if was.get(key) != now.get(key)]
            if keys:
                parts = [f"{key} {_plain(was.get(key))} -> {_plain(now.get(key))}" for key in keys]
                said.append(f"{where} {name}: {', '.join(parts)}")
    if [rule.name for rule in old.inclusion] != [rule.name for rule in new.inclusion] and {
        rule.name for rule in old.inclusion
    } == {rule.name for rule in new.inclusion}:
        said.append("the order of the rules")
    if old.nothing_applies != new.nothing_applies:
        said.append(f"nothing_applies {_plain(old.nothing_applies)} -> {_plain(new.nothing_applies)}")
    said += [f"{key} {getattr(old, key)!r} -> {getattr(new, key)!r}" for key in ("name", "description")
             if getattr(old, key) != getattr(new, key)]  # fmt: skip
    return tuple(said)


def _words(part: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {_plain(value)}" for key, value in part.items() if key != "name" and value not in ({}, ()))


def _plain(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_plain(each)}" for key, each in value.items()) + "}"
    return f"{value:g}" if isinstance(value, float) else str(value)
