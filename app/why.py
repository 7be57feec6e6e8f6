"""Why a figure moved: in which slices, through which reward terms, and what it did to the mean reward.

What the alarm's page, ``/why`` and ``palomar why`` ask. Nothing is computed here: the splits are those of
`palomar.detectors`, the pressures those of `palomar.detectors.pressure`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from palomar.app.kept import Kept, Pending, state
from palomar.app.service import Observatory, definition
from palomar.data.clock import HORIZONS
from palomar.data.findings import Finding
from palomar.data.slices import ALL, BANDS
from palomar.data.store.records import PinnedFinding
from palomar.detectors.detector import View
from palomar.detectors.excess import REQUESTS, Excess, excess
from palomar.detectors.pressure import combined, cycle_pressures
from palomar.detectors.reward_change import RewardChange, reward_change
from palomar.detectors.runs import baseline_of, specs_of
from palomar.detectors.slice_changes import SliceChange, slice_changes
from palomar.detectors.survival import Step, curve
from palomar.reward.charges import OUTCOME, REWARD

AHEAD = 8
"""Cycles whose pressures are pooled, as the check does for what is to come."""

HEAT_CYCLES, HEAT_SLICES = 24, 30
"""Most columns and rows of a heat map."""

_EXCESS, _POOLED, _REWARD, _LASTING = Kept(64), Kept(8), Kept(32), Kept(32)


# -- what it is about ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """What an alarm is about."""

    name: str
    """``incident 3``, ``finding 4fe1...``."""
    finding: Finding
    """Of an incident: the newest finding of what leads it."""
    cycle: int
    """In which it was found."""


def subject_of(observatory: Observatory, run_id: str, alarm: str) -> Subject | None:
    """An alarm of the run by the number of its incident, or by (the start of) a finding's id; None where none is."""
    store = observatory.store
    if alarm.isascii() and alarm.isdigit() and len(alarm) < 9:
        incident = store.incidents.get(int(alarm))
        if incident is not None and incident.run_id == run_id:
            pinned: list[PinnedFinding] = store.incidents.pinned(incident.number)
            lead = _lead(pinned)
            if lead is not None:
                latest = store.findings.read(run_id, key=lead.key, newest=1)
                known = latest[0] if latest else lead
                return Subject(f"incident {incident.number}", known.finding, known.cycle)
    found = store.findings.get(alarm)
    if found is None and len(alarm) >= SHORTEST_ID:
        found = next(
            (each for each in store.findings.read(run_id, newest=LOOKED_THROUGH) if each.finding_id.startswith(alarm)),
            None,
        )
    if found is None or found.run_id != run_id:
        return None
    return Subject(f"finding {found.finding_id}", found.finding, found.cycle)


SHORTEST_ID = 6
"""Characters of a finding's id that are taken for its start."""
LOOKED_THROUGH = 2_000
"""Newest findings among which such a start is looked for."""


def _lead(pinned: Sequence[PinnedFinding]) -> PinnedFinding | None:
    """The first that is about a statistic which is measured by slice, else the first."""
    measured = (each for each in pinned if definition(each.finding.statistic or "") is not None)
    return next(measured, pinned[0] if pinned else None)


# -- slices ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SlicesOf:
    """Slices of a statistic's change by their share of it."""

    statistic: str
    cycle: int
    reference: tuple[int, ...]
    """Cycles that it is compared with."""
    excess: Excess | None
    """None: see ``why``."""
    why: str = ""
    """Why there is no split; empty where there is one."""


def slices_of(
    observatory: Observatory,
    run_id: str,
    statistic: str,
    cycle: int,
    *,
    by: Sequence[str] = REQUESTS,
    reference: Sequence[int] = (),
) -> SlicesOf:
    """Slices ranked by their share of a statistic's change from a reference to a cycle.

    ``by``: dimensions whose values make the slices. ``reference``: cycles to compare with; without any, the baseline
    that is in force for the cycle. The same question on an unchanged lake is answered from memory.
    """
    view = _view(observatory, run_id, cycle, reference)
    compared = tuple(each for each in view.reference if each != cycle)
    if not compared or cycle not in view.history:
        why = f"cycle {cycle} is not in the lake" if cycle not in view.history else "there is nothing to compare with"
        return SlicesOf(statistic, cycle, compared, None, why)
    key = (state(observatory.lake, ("observations", (*compared, cycle))), statistic, cycle, compared, tuple(by))
    try:
        found = _EXCESS.ask(key, lambda: excess(view, statistic, by), wait_s=None)
    except ValueError as exc:
        return SlicesOf(statistic, cycle, compared, None, str(exc))
    assert not isinstance(found, Pending)
    why = "" if found is not None else "no row counts for it before, or in the cycle"
    return SlicesOf(statistic, cycle, compared, found, why)


@dataclass(frozen=True)
class Heat:
    """A statistic's change in every slice over some cycles."""

    statistic: str
    cycles: tuple[int, ...]
    reference: tuple[int, ...]
    slices: tuple[str, ...]
    """``all`` first, then those that changed most in the last cycle."""
    cells: tuple[SliceChange, ...]
    """By slice and cycle; a pair that is not there had no rows."""
    more: int
    """Slices that were left out, those that changed least."""


def heat_of(
    observatory: Observatory, run_id: str, statistic: str, cycle: int, *, reference: Sequence[int] = ()
) -> Heat:
    """The heat map of `HEAT_CYCLES` cycles up to one, against the baseline in force (or other cycles)."""
    view = _view(observatory, run_id, cycle, reference)
    cycles = view.history[-HEAT_CYCLES:]
    if not cycles:
        return Heat(statistic, (), view.reference, (), (), 0)
    read, points = observatory.store.statistics.series, {}
    for span in (range(cycles[0], cycle + 1), *(_spans(view.reference))):
        points.update({(each.slice, each.cycle): each for each in read(run_id, statistics=[statistic], cycles=span)})
    found = slice_changes(list(points.values()), view.reference, cycles)
    last = {item.slice: abs(item.change or 0.0) for item in found if item.cycle == cycle and item.status != "few"}
    names = sorted({item.slice for item in found}, key=lambda name: (name != ALL, -last.get(name, -1.0), name))
    kept = set(names[:HEAT_SLICES])
    cells = tuple(item for item in found if item.slice in kept)
    return Heat(statistic, cycles, view.reference, tuple(names[:HEAT_SLICES]), cells, len(names) - len(kept))


def _spans(cycles: Sequence[int]) -> list[range]:
    """The same cycles as ranges."""
    spans: list[range] = []
    for each in sorted(cycles):
        if spans and spans[-1].stop == each:
            spans[-1] = range(spans[-1].start, each + 1)
        else:
            spans.append(range(each, each + 1))
    return spans


# -- terms -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TermPush:
    """What pushes a statistic in a slice, per unit step, in the statistic's unit."""

    name: str
    """``term:<name>``, ``rule:<name>``, ``reward`` (all of it) or ``outcome`` (the users')."""
    value: float | None
    """None: see ``status``."""
    low: float | None
    """Of the 95 % interval; None where too few rows allow none."""
    high: float | None
    status: str
    """``ok``, ``too few``, ``no variation``, ``no data``."""
    verdict: str
    """``along_up``, ``along_down``, ``none`` (shown to be none), ``unclear``."""
    needed_n: int | None
    """Rows that would tell, where it is unclear."""


@dataclass(frozen=True)
class TermsOf:
    """Pressures on a statistic in a slice, pooled over some cycles."""

    statistic: str
    slice: str
    cycles: tuple[int, ...]
    reward: TermPush | None
    """None: nothing is known; see ``why``. The terms add up to it."""
    outcome: TermPush | None
    terms: tuple[TermPush, ...]
    """The strongest first."""
    rules: tuple[TermPush, ...]
    """What leaving samples out adds. Part of ``reward`` already."""
    n: int
    why: str = ""


def terms_of(
    observatory: Observatory,
    run_id: str,
    statistic: str,
    slice_: str = ALL,
    cycle: int | None = None,
    *,
    wait_s: float | None = None,
) -> TermsOf | Pending:
    """What pushes a statistic in a slice: reward, outcome, each term and rule, over `AHEAD` cycles up to ``cycle``.

    ``wait_s``: how long to wait for pressures that are not there yet; None: until they are. Without ``cycle`` the
    newest.
    """
    there = observatory.lake.numbered("observations")
    cycles = tuple(each for each in there if cycle is None or each <= cycle)[-AHEAD:]
    if not cycles:
        return TermsOf(statistic, slice_, (), None, None, (), (), 0, "no cycle of it is in the lake")
    found = pooled(observatory, cycles, wait_s=wait_s)
    if isinstance(found, Pending):
        return found
    of = found.get((statistic, slice_), {})
    pushes = {kind: _push(kind, row) for kind, row in of.items()}
    if REWARD not in pushes:
        why = "its pressure is not taken: it is made of what users or scorers said, or is no mean over rows"
        return TermsOf(statistic, slice_, cycles, None, pushes.get(OUTCOME), (), (), 0, why)
    strongest = sorted(pushes.values(), key=lambda push: -abs(push.value or 0.0))
    return TermsOf(
        statistic,
        slice_,
        cycles,
        pushes[REWARD],
        pushes.get(OUTCOME),
        tuple(push for push in strongest if push.name.startswith("term:")),
        tuple(push for push in strongest if push.name.startswith("rule:")),
        int(of[REWARD]["n"]),
    )


Cells = Mapping[tuple[str, str], Mapping[str, Mapping[str, Any]]]
"""Rows of PRESSURE by statistic and slice, then by kind."""


def pooled(observatory: Observatory, cycles: Sequence[int], *, wait_s: float | None = None) -> Cells | Pending:
    """Pressures of some cycles as one table; see `palomar.detectors.pressure.combined`."""
    lake = observatory.lake
    specs = specs_of(observatory.store) if observatory.has_store else {}
    # A reward that came late was trained on by a later update, so all samples count.
    parts: list[tuple[Literal["observations", "samples"], Sequence[int] | None]]
    parts = [("observations", cycles), ("samples", None)]
    key = (state(lake, *parts), tuple(cycles), tuple(sorted(specs)))

    def make() -> Cells:
        tables = [cycle_pressures(lake, cycle, specs) for cycle in cycles]
        table = tables[0] if len(tables) == 1 else combined(tables)
        cells: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
        for row in table.to_pylist():
            cells.setdefault((row["statistic"], row["slice"]), {})[row["kind"]] = row
        return cells

    return _POOLED.ask(key, make, wait_s=wait_s)


# -- the mean reward -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RewardBetween:
    """Why the mean reward of what is trained on changed between some cycles and one."""

    before: tuple[int, ...]
    after: int
    change: RewardChange | None
    """None: see ``why``."""
    why: str = ""


def reward_between(observatory: Observatory, run_id: str, before: Sequence[int], after: int) -> RewardBetween:
    """The waterfall's numbers; see `palomar.detectors.reward_change`."""
    there = observatory.lake.cycles("observations")
    known = tuple(each for each in before if each in there and each != after)
    if not known or after not in there:
        return RewardBetween(known, after, None, "one of the two ends is not in the lake")
    specs = specs_of(observatory.store) if observatory.has_store else {}
    key = (state(observatory.lake, ("observations", (*known, after))), known, after, tuple(sorted(specs)))
    found = _REWARD.ask(key, lambda: reward_change(observatory.lake, known, [after], specs), wait_s=None)
    assert not isinstance(found, Pending)
    why = "" if found is not None else "one of the two ends has no sample with a valid reward"
    return RewardBetween(known, after, found, why)


# -- what lasts ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Persistence:
    """How long the edits of some cycles stay."""

    cycles: tuple[int, ...]
    edits: int
    """Interactions with an edit that was watched."""
    steps: tuple[Step, ...]
    """Kaplan-Meier's share over seconds; empty where no edit was watched."""


def persistence_of(observatory: Observatory, cycles: Sequence[int], slice_: str = ALL) -> Persistence:
    """How long edits stay, in one slice; by time from a minute to the longest that any was watched."""
    there = set(observatory.lake.cycles("observations"))
    known = tuple(each for each in cycles if each in there)
    if not known:
        return Persistence((), 0, ())
    key = (state(observatory.lake, ("observations", known)), known, slice_)
    found = _LASTING.ask(key, lambda: _persistence(observatory, known, slice_), wait_s=None)
    assert not isinstance(found, Pending)
    return found


def _persistence(observatory: Observatory, cycles: tuple[int, ...], slice_: str) -> Persistence:
    columns = ("edit_lost_s", "watched_s", "user_id", "conversation_id", *BANDS)
    where = f"edited AND coalesce(edit_lost_s, watched_s) IS NOT NULL AND {_condition(slice_)}"
    rows = observatory.lake.query(
        "SELECT coalesce(edit_lost_s, watched_s) AS until, edit_lost_s IS NOT NULL AS lost, "
        "dense_rank() OVER (ORDER BY coalesce(user_id, conversation_id)) AS owner FROM edits",
        edits=observatory.lake.scan("observations", columns, where=where, cycles=list(cycles)),
    )
    if not rows.num_rows:
        return Persistence(cycles, 0, ())
    until = np.asarray(rows["until"].to_numpy(), dtype=np.float64)
    lost = np.asarray(rows["lost"].to_numpy(zero_copy_only=False), dtype=np.bool_)
    owner = np.asarray(rows["owner"].to_numpy(), dtype=np.int64)
    last = min(float(until.max()), HORIZONS[-1].seconds)
    grid = np.geomspace(60.0, max(last, 61.0), STEPS)
    times = sorted({0.0, *grid.tolist(), *(each.seconds for each in HORIZONS if each.seconds <= last)})
    return Persistence(cycles, rows.num_rows, curve(until, lost, owner, times))


STEPS = 24
"""Times of a curve, evenly on a log scale."""


def _condition(slice_: str) -> str:
    """SQL of a slice of bands; everything for ``all``. Raises ValueError for another."""
    conditions = []
    for part in slice_.split(",") if slice_ != ALL else []:
        dimension, _, band = part.partition("=")
        if dimension not in BANDS or band not in BANDS[dimension][1]:
            raise ValueError(f"{slice_!r} is no slice of bands")
        edges, names = BANDS[dimension]
        place = names.index(band)
        conditions += [f"{dimension} >= {edges[place - 1]}"] if place else [f"{dimension} IS NOT NULL"]
        conditions += [f"{dimension} < {edges[place]}"] if place < len(edges) else []
    return " AND ".join(conditions) or "true"


# -- inside ----------------------------------------------------------------------------------------------------------


def _push(kind: str, row: Mapping[str, Any]) -> TermPush:
    return TermPush(kind, *(row[name] for name in ("value", "low", "high", "status", "verdict", "needed_n")))


def _view(observatory: Observatory, run_id: str, cycle: int, reference: Sequence[int]) -> View:
    """Without what the trainer reported of each update, which no split needs and which is slow to read."""
    chosen = reference or baseline_of(observatory.store, run_id, cycle)
    return View.of(observatory.lake, cycle, reference=chosen)
