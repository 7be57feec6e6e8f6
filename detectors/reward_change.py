"""Why the mean reward changed between two ends of a run: which terms, what was left out, which requests came.

The mean T of what was trained on is the mean M over all valid rewards plus what leaving samples out adds, and M is a
sum over terms. With requests put in cells (predicted failure x ambiguity), Kitagawa's split of every term over the same
cells has one mix shift in common, so that

    T_after - T_before = mix + sum over terms of within_k + sum over reasons q of left_out_q

exactly: within_k is what term k paid otherwise inside the cells, and left_out_q = (n_q / N) (T - m_q), after less
before, with m_q the mean reward of the n_q rows that reason q left out of N. What no known term explains is
``unattributed``, and there only where it is not 0.

Descriptive: no interval, since both means are over all rows there are; their own intervals stand beside them. A term
whose weight or rule was changed between the ends moves by that as well as by behaviour, and says so (`TermPart.note`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from palomar.data.errors import LakeError
from palomar.data.lake import Lake
from palomar.detectors.decomposition import kitagawa, segment_sql
from palomar.detectors.excess import REQUESTS
from palomar.reward.replay import same_term
from palomar.reward.scoring import contributions
from palomar.reward.spec import RewardSpec, TermSpec

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

UNATTRIBUTED = "unattributed"
NO_REASON = "no_reason"
_ROUNDING = 1e-9


@dataclass(frozen=True)
class TermPart:
    """A reward term."""

    name: str
    part: float
    """What it makes of the change, in units of the reward."""
    before: float
    """Mean of weight x value over all valid rewards; 0 where the reward has no such term."""
    after: float
    note: str
    """How the reward treats it at the end: ``new``, ``gone``, ``weight 0.5 -> 0.2``, ``changed``; empty: as before."""


@dataclass(frozen=True)
class LeftOut:
    """A reason for which samples are not trained on."""

    reason: str
    part: float
    n_before: int
    n_after: int


@dataclass(frozen=True)
class RewardChange:
    """A change of the mean reward of what is trained on; ``mix``, the terms' and the reasons' parts add up to it."""

    before: float
    after: float
    n_before: int
    """Rows trained on."""
    n_after: int
    mix: float
    terms: tuple[TermPart, ...]
    """The largest part first."""
    left_out: tuple[LeftOut, ...]
    waiting_before: int
    """Rows whose reward is still to come: they are in no mean."""
    waiting_after: int

    @property
    def total(self) -> float:
        """After less before."""
        return self.after - self.before


@dataclass(frozen=True)
class _End:
    """Rows with a valid reward, (N,)."""

    reward: Floats
    trained: Mask
    left_out: Mapping[str, Mask]
    """By reason."""
    cell: tuple[list[str], Ints]
    """Names, and the number of each row's."""
    paid: Mapping[str, Floats]
    """By term; with what is unattributed they add up to the reward."""
    waiting: int
    specs: tuple[RewardSpec, ...]
    """By which rows were paid, the last one last."""


def reward_change(
    lake: Lake, before: Sequence[int], after: Sequence[int], specs: Mapping[str, RewardSpec]
) -> RewardChange | None:
    """The split between some cycles and some others; None where an end has no sample with a valid reward.

    ``specs``: by version. Raises LakeError where the lake has no rewards at all.
    """
    ends = [_end(lake, cycles, specs) for cycles in (before, after)]
    if not all(end.trained.any() for end in ends):
        return None
    names = list(dict.fromkeys([*ends[0].paid, *ends[1].paid]))
    cells = sorted({*ends[0].cell[0], *ends[1].cell[0]})
    places = [np.array([cells.index(name) for name in end.cell[0]])[end.cell[1]] for end in ends]
    amounts = [np.bincount(place, minlength=len(cells)).astype(np.float64) for place in places]

    def levels(number: int, values: Floats) -> Floats:
        totals = np.bincount(places[number], weights=values, minlength=len(cells))
        return np.divide(totals, amounts[number], out=np.zeros(len(cells)), where=amounts[number] > 0)

    terms, mix = [], 0.0
    for name in names:
        values = [end.paid.get(name, np.zeros(len(end.reward))) for end in ends]
        at = [(amounts[number], levels(number, values[number])) for number in (0, 1)]
        split = kitagawa(cells, at[0], at[1])
        mix += split.mix
        if name == UNATTRIBUTED and max(np.abs(each).max(initial=0.0) for each in values) < _ROUNDING:
            continue
        note = _note(*([term for spec in end.specs for term in spec.terms if term.name == name] for end in ends))
        terms.append(TermPart(name, split.within, float(values[0].mean()), float(values[1].mean()), note))
    means = [float(end.reward[end.trained].mean()) for end in ends]
    nobody = [np.zeros(len(end.reward), dtype=np.bool_) for end in ends]
    left_out = []
    for reason in sorted({*ends[0].left_out, *ends[1].left_out}):
        out = [end.left_out.get(reason, none) for end, none in zip(ends, nobody, strict=True)]
        added = [
            # By how much the mean of what was trained on is higher because these rows were left out.
            float((mean - end.reward[rows]).sum()) / len(end.reward)
            for end, mean, rows in zip(ends, means, out, strict=True)
        ]
        left_out.append(LeftOut(reason, added[1] - added[0], *(int(rows.sum()) for rows in out)))
    return RewardChange(
        before=means[0],
        after=means[1],
        n_before=int(ends[0].trained.sum()),
        n_after=int(ends[1].trained.sum()),
        mix=mix,
        terms=tuple(sorted(terms, key=lambda item: (-abs(item.part), item.name))),
        left_out=tuple(sorted(left_out, key=lambda item: (-abs(item.part), item.reason))),
        waiting_before=ends[0].waiting,
        waiting_after=ends[1].waiting,
    )


def _end(lake: Lake, cycles: Sequence[int], specs: Mapping[str, RewardSpec]) -> _End:
    rows = _rows(lake, cycles)
    waiting = int(pc.sum(pc.equal(rows["reward_status"], "waiting")).as_py() or 0)
    rows = rows.filter(pc.and_(pc.equal(rows["reward_status"], "valid"), pc.is_valid(rows["reward"])))
    reward = np.asarray(rows["reward"].to_numpy(), dtype=np.float64)
    paid: dict[str, Floats] = {}
    versions = [each for each in pc.unique(rows["reward_version"]).drop_null().to_pylist() if each in specs]
    for version in versions:
        here = np.asarray(pc.fill_null(pc.equal(rows["reward_version"], version), False).to_numpy(), dtype=np.bool_)
        for name, values in contributions(rows.filter(pa.array(here)), specs[version]).items():
            paid.setdefault(name, np.zeros(len(reward)))[here] = np.nan_to_num(values)
    paid[UNATTRIBUTED] = reward - sum(paid.values(), np.zeros(len(reward)))
    # As `training_reward_mean` has it: what nobody left out counts.
    trained = np.asarray(pc.fill_null(rows["included"], True).to_numpy(), dtype=np.bool_)
    why = pc.fill_null(rows["exclusion"], NO_REASON)
    left_out = {
        str(reason): ~trained & np.asarray(pc.equal(why, reason).to_numpy(), dtype=np.bool_)
        for reason in pc.unique(why.filter(pa.array(~trained))).to_pylist()
    }
    cell = rows["cell"].combine_chunks().dictionary_encode()
    cells = (cell.dictionary.to_pylist(), np.asarray(cell.indices.to_numpy(), dtype=np.int64))
    return _End(reward, trained, left_out, cells, paid, waiting, tuple(specs[each] for each in versions))


def _rows(lake: Lake, cycles: Sequence[int]) -> pa.Table:
    wanted = "reward, reward_status, reward_version, included, exclusion"
    with lake.connect(["observations"], list(cycles)) as connection:
        try:
            names = [name for name, *_ in connection.execute("SELECT * FROM observations LIMIT 0").description or ()]
            terms = [
                f'"{name.replace(chr(34), chr(34) * 2)}"' for name in names if name.startswith(("term:", "status:"))
            ]
            listed = ", ".join([wanted, *terms])
            return connection.execute(
                f"SELECT {listed}, {segment_sql(REQUESTS)} AS cell FROM observations ORDER BY cycle"
            ).to_arrow_table()
        except duckdb.Error as exc:
            raise LakeError(f"the lake cannot say what was paid in cycles {list(cycles)}: {exc}") from exc


def _note(before: Sequence[TermSpec], after: Sequence[TermSpec]) -> str:
    """How the reward treats a term otherwise at the end."""
    if not before or not after:
        return "" if not before and not after else "new" if not before else "gone"
    old, new = before[-1], after[-1]
    if old.weight != new.weight:
        return f"weight {old.weight:g} -> {new.weight:g}"
    return "" if same_term(old, new) else "changed"
