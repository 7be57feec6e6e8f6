"""The next cycle under another reward: what a statistic would be, were this spec trained on instead.

The forecast of `palomar.detectors.forecast` with other pressures: those that the bench finds for a spec on logged rows,
pooled over some cycles, in place of what the last cycle's training would push. The step size is the one that was
learnt from the changes that came, whatever reward they came under. Where none was seen yet, only the way is known, and
that is said: `Expected.status` is ``no step size``.

Blind to: what `palomar.detectors.forecast` is blind to, and a policy that does what the logged one hardly did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from palomar.detectors.forecast import forecast
from palomar.reward.replay import PressureRow

Cell = tuple[str, str]
"""Statistic and slice."""
_TWO_SIDED_95 = 1.96


@dataclass(frozen=True)
class Expected:
    """A statistic in the cycle after the last. None is "not known"."""

    statistic: str
    slice: str
    reward: str
    """Whose pressure it rests on: ``old`` or ``new``."""
    status: str
    """``ok``; ``no step size``: only the way is known; else why nothing is, as `forecast.FORECAST` has it."""
    way: int
    """1: it will rise, -1: it will fall, 0: not sure; by the pressure's 95 % interval."""
    level: float | None
    """In the last cycle."""
    value: float | None
    """Expected in the next."""
    low: float | None
    """Of the 90 % interval of what will be measured."""
    high: float | None
    change: float | None


def next_cycle(
    past: pa.Table, old: Mapping[Cell, PressureRow], new: Mapping[Cell, PressureRow]
) -> tuple[Expected, ...]:
    """What is expected after the last cycle of a HISTORY, per cell of `new`, under the old pressures and the new."""
    cells = list(new)
    made = {name: forecast(_with(past, rows)).to_pylist() for name, rows in (("old", old), ("new", new))}
    found = {(name, row["statistic"], row["slice"]): row for name, rows in made.items() for row in rows}
    return tuple(
        _expected(name, cell, rows.get(cell), found.get((name, *cell)))
        for cell in cells
        for name, rows in (("old", old), ("new", new))
    )


def _with(past: pa.Table, pressures: Mapping[Cell, PressureRow]) -> pa.Table:
    """The history, as if the last cycle's training would push this way; other statistics as they are."""
    last = pc.max(past["cycle"]).as_py()
    columns = {name: past[name].to_pylist() for name in ("cycle", "statistic", "slice")}
    value, error, trained = (past[name].to_pylist() for name in ("pressure", "pressure_error", "trained"))
    for index, (cycle, *cell) in enumerate(zip(*columns.values(), strict=True)):
        if cycle != last:
            continue
        trained[index] = True  # if it were trained on
        row = pressures.get((cell[0], cell[1]))
        if row is not None and row.value is not None and row.low is not None and row.high is not None:
            value[index], error[index] = row.value, (row.high - row.low) / 2 / _TWO_SIDED_95
    for name, given in (("pressure", value), ("pressure_error", error), ("trained", trained)):
        place = past.schema.get_field_index(name)
        past = past.set_column(place, past.schema.field(name), pa.array(given, past.schema.field(name).type))
    return past


def _expected(reward: str, cell: Cell, pressure: PressureRow | None, row: Mapping[str, Any] | None) -> Expected:
    way = 0
    if pressure is not None and pressure.low is not None and pressure.high is not None:
        way = 1 if pressure.low > 0 else -1 if pressure.high < 0 else 0
    if row is None:
        return Expected(*cell, reward, "no level", way, None, None, None, None, None)
    known = {name: row[name] for name in ("level", "value", "low", "high", "change")}
    return Expected(*cell, reward, str(row["status"]), way, **known)


def plain(expected: Sequence[Expected]) -> list[dict[str, object]]:
    """As JSON."""
    return [dict(vars(each)) for each in expected]
