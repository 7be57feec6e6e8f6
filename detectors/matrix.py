"""The pressure matrix as it is read: outcome, reward, terms and rules against behaviours; what stands out, and why.

A cell's *size* is its pressure in standard deviations of the statistic (within contexts) per unit step, so that rows
can be compared with each other; the terms of a row add up to its reward as the pressures do. Over all cells of a slice
false discoveries are held at `DISCOVERY` (Benjamini and Hochberg 1995, scipy, on Student's t by users).

A row's *reading* is that of DESIGN.md's table (`palomar.detectors.reading`): where the check of the cycle found a drift
it is the check's; else it is a forewarning, or what a drift along the reward's push would be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from palomar.data.findings import Finding, Reading
from palomar.detectors.checks.behaviour import NONE
from palomar.detectors.pressure import MARGIN
from palomar.detectors.reading import Direction, Push, read
from palomar.reward.charges import OUTCOME, REWARD

DISCOVERY = 0.05
"""Share of the cells said to be there that may be none."""

USERS = "outcome_mean"
"""The statistic that is what users want; its line says what the reward does to it."""

Row = Mapping[str, Any]
"""Of a PRESSURE table."""


@dataclass(frozen=True)
class Cell:
    """What one signal pushes one statistic. None is "not known", with the reason in ``status``."""

    kind: str
    """``reward``, ``outcome``, ``term:<name>``, ``rule:<name>``."""
    value: float | None
    """Per unit step, in the statistic's unit."""
    low: float | None
    """Of the 95 % interval."""
    high: float | None
    z: float | None
    size: float | None
    """The value in standard deviations of the statistic."""
    size_low: float | None
    size_high: float | None
    status: str
    verdict: str
    needed_n: int | None
    survives: bool
    """Whether it is there at the false discovery rate of all cells of the slice."""

    @property
    def there(self) -> bool:
        """Whether its own 95 % interval excludes 0."""
        return self.verdict in ("along_up", "along_down")


@dataclass(frozen=True)
class Line:
    """A statistic and all that pushes it."""

    statistic: str
    level: float | None
    n: int
    cells: Mapping[str, Cell]
    """By kind."""
    direction: Direction | None
    """The reward's way; None where it is not known to push."""
    reading: Reading | None
    """None: nothing to say; the reward is shown not to push it, or nothing is known of it."""
    why: str
    drifted: bool
    """Whether the check found that it had left its band: then the reading is the check's."""


@dataclass(frozen=True)
class Matrix:
    """All lines of a slice: what the reward does to users' outcome, then those to look at first."""

    slice: str
    kinds: tuple[str, ...]
    """Columns: outcome, reward, terms, then rules; those that push most first."""
    lines: tuple[Line, ...]
    rows: int
    """Interactions."""
    users: int
    tested: int
    """Cells that were tested."""


_ON_USERS: Mapping[Direction | None, tuple[Reading | None, str]] = {
    1: ("honest_learning", "the reward pushes users' outcome up"),
    -1: ("forewarning", "the reward pushes users' outcome down"),
    None: (None, "the reward is not shown to push users' outcome either way"),
}
_ORDER: Mapping[Reading | None, int] = {
    "reward_hack": 0,
    "forewarning": 1,
    "honest_learning": 2,
    "not_assessable": 3,
    "measurement_fault": 3,
    "outside_change": 4,
}


def matrix(slice_: str, rows: Sequence[Row], findings: Sequence[Finding] = ()) -> Matrix:
    """From rows of a PRESSURE table of one slice, and what the check of the cycle found in it."""
    drifted = {
        item.statistic: item
        for item in findings
        if item.slice == slice_ and item.reading not in (None, "forewarning") and item.detector == "behaviour"
    }
    there = _survivors(rows)
    by_statistic: dict[str, dict[str, Cell]] = {}
    about: dict[str, dict[str, Row]] = {}
    for index, row in enumerate(rows):
        by_statistic.setdefault(row["statistic"], {})[row["kind"]] = _cell(row, index in there)
        about.setdefault(row["statistic"], {})[row["kind"]] = row
    lines = [_line(name, cells, about[name], drifted.get(name)) for name, cells in by_statistic.items()]
    lines.sort(
        key=lambda line: (
            line.statistic != USERS,
            not line.drifted,
            _ORDER.get(line.reading, 5),
            -_size(line),
            line.statistic,
        )
    )
    pushed = {
        kind: sum(abs(cells[kind].size or 0.0) for cells in by_statistic.values() if kind in cells)
        for kind in {row["kind"] for row in rows}
    }
    kinds = sorted(pushed, key=lambda kind: (_place(kind), -pushed[kind], kind))
    return Matrix(
        slice_,
        tuple(kinds),
        tuple(lines),
        rows=max((row["rows"] for row in rows if row["kind"] == REWARD), default=0),
        users=max((row["clusters"] for row in rows), default=0),
        tested=sum(_tested(row) for row in rows),
    )


def _survivors(rows: Sequence[Row]) -> set[int]:
    tested = [index for index, row in enumerate(rows) if _tested(row)]
    if not tested:
        return set()
    z = np.array([rows[index]["z"] for index in tested], dtype=np.float64)
    freedom = np.maximum(np.array([rows[index]["clusters"] for index in tested], dtype=np.float64) - 1, 1)
    adjusted = stats.false_discovery_control(2 * stats.t.sf(np.abs(z), freedom), method="bh")
    return {index for index, p in zip(tested, adjusted, strict=True) if p <= DISCOVERY}


def _tested(row: Row) -> bool:
    return row["z"] is not None and math.isfinite(row["z"])


def _cell(row: Row, survives: bool) -> Cell:
    spread = row["spread"] or 0.0

    def size(name: str) -> float | None:
        return float(row[name] / spread) if row[name] is not None and spread > 0 else None

    return Cell(
        kind=row["kind"],
        value=row["value"],
        low=row["low"],
        high=row["high"],
        z=row["z"],
        size=size("value"),
        size_low=size("low"),
        size_high=size("high"),
        status=row["status"],
        verdict=row["verdict"],
        needed_n=row["needed_n"],
        survives=survives,
    )


def _line(name: str, cells: Mapping[str, Cell], about: Mapping[str, Row], found: Finding | None) -> Line:
    known = about.get(REWARD) or about.get(OUTCOME) or next(iter(about.values()))
    reward, outcome = (_push(about.get(kind), kind) for kind in (REWARD, OUTCOME))
    direction: Direction | None = None
    if reward is not None:
        direction = 1 if reward.along(1) else -1 if reward.along(-1) else None
    reading: Reading | None
    if name == USERS:
        # Nothing to compare it with: it is what users want.
        reading, why = _ON_USERS[direction]
    elif found is not None:
        reading, why = found.reading, str(found.detail.get("why") or found.sentence)
    elif (ahead := read(None, reward, outcome)).reading is not None:
        reading, why = ahead.reading, ahead.why
    elif direction is not None:
        would = read(direction, reward, outcome)
        reading, why = would.reading, would.why
    elif reward is not None and reward.not_along(1) and reward.not_along(-1):
        reading, why = None, "the reward is shown not to push it"
    else:
        reading, why = None, "too few rows to say whether the reward pushes it"
    return Line(name, known["level"], known["n"], cells, direction, reading, why, found is not None)


def _push(row: Row | None, kind: str) -> Push | None:
    """As the check has it (`palomar.detectors.checks.behaviour`)."""
    if row is None or row["low"] is None:
        return None
    margin = NONE if kind == OUTCOME else MARGIN
    return Push(row["low"], row["high"], max(margin * row["spread"] * row["signal_spread"], 1e-300))


def _size(line: Line) -> float:
    cell = line.cells.get(REWARD)
    return abs(cell.z or 0.0) if cell is not None else 0.0


def _place(kind: str) -> int:
    return {OUTCOME: 0, REWARD: 1}.get(kind, 2 if kind.startswith("term:") else 3)
