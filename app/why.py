"""Why a figure moved: in which slices, through which reward terms, and what it did to the mean reward.

What the alarm's page, ``/why`` and ``palomar why`` ask. Nothing is computed here: the splits are those of
`palomar.detectors`, the pressures those of `palomar.detectors.pressure`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from palomar.app.kept import Kept, Pending, state
from palomar.app.service import Observatory
from palomar.data.slices import ALL
from palomar.detectors.detector import View
from palomar.detectors.excess import REQUESTS, Excess, excess
from palomar.detectors.pressure import combined, cycle_pressures
from palomar.detectors.runs import specs_of, view_of
from palomar.reward.charges import OUTCOME, REWARD

AHEAD = 8
"""Cycles whose pressures are pooled, as the check does for what is to come."""

_EXCESS, _POOLED = Kept(64), Kept(8)


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
    there = [each for each in observatory.lake.cycles("observations") if each is not None]
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


def _push(kind: str, row: Mapping[str, Any]) -> TermPush:
    return TermPush(kind, *(row[name] for name in ("value", "low", "high", "status", "verdict", "needed_n")))


def _view(observatory: Observatory, run_id: str, cycle: int, reference: Sequence[int]) -> View:
    if reference:
        return View.of(observatory.lake, cycle, reference=reference)
    return view_of(observatory.lake, observatory.store, run_id, cycle)
