"""`palomar stats`: behaviour statistics per cycle and slice, measured from the lake."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from palomar.app.cli.output import Home, Json, people, print_json, table
from palomar.app.settings import DEFAULT_HOME
from palomar.data.lake import Lake
from palomar.data.store.records import Statistic
from palomar.detectors.measure import measure
from palomar.detectors.statistics import STATISTICS

NOTHING_TO_SHOW = 3


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("stats")(stats)


def stats(
    statistic: Annotated[list[str] | None, typer.Option("--stat", help="Only this one; may be given again.")] = None,
    slice_: Annotated[list[str] | None, typer.Option("--slice", help="Only this slice; may be given again.")] = None,
    every_slice: Annotated[bool, typer.Option("--slices", help="All slices, not only `all`.")] = False,
    cycle: Annotated[list[int] | None, typer.Option("--cycle", help="Only this cycle; may be given again.")] = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Print behaviour statistics with their 95 % intervals. Exits with 3 when there is nothing to measure."""
    lake = Lake((home or DEFAULT_HOME) / "lake")
    cycles = lake.cycles("observations") if not cycle else list(cycle)
    points = [
        point
        for point in (measure(lake, cycles=cycles) if cycles else [])
        if statistic is None or point.statistic in statistic
    ]
    known = {point.slice for point in points}
    wanted = sorted(known) if every_slice else (slice_ or ["all"])
    chosen = [point for point in points if point.slice in wanted]
    if as_json:
        print_json([vars(point) for point in chosen])
    elif chosen:
        print_measured(chosen, slices=wanted)
    if not chosen:
        if not as_json:
            people.print("nothing to show: " + _why(points, wanted, known, home or DEFAULT_HOME))
        raise typer.Exit(NOTHING_TO_SHOW)


def _why(points: Sequence[Statistic], wanted: Sequence[str], known: set[str], home: object) -> str:
    if not points:
        return f"no such statistic or cycle in {home}, or nothing was ingested yet"
    return f"no slice {', '.join(wanted)}; there are: {', '.join(sorted(known))}"


def print_measured(points: Sequence[Statistic], *, slices: Sequence[str]) -> None:
    """One table per slice: statistics down, cycles across if there are several."""
    for slice_ in slices:
        here = [point for point in points if point.slice == slice_]
        if not here:
            continue
        cycles = sorted({point.cycle for point in here}, key=lambda cycle: (cycle is None, cycle))
        names = list(dict.fromkeys(point.statistic for point in here))
        at = {(point.statistic, point.cycle): point for point in here}
        if len(cycles) == 1:
            rows = [
                (name, _unit(name), point.value, point.low, point.high, point.n, point.status, point.maturity)
                for name in names
                if (point := at.get((name, cycles[0]))) is not None
            ]
            columns: tuple[str, ...] = ("statistic", "unit", "value", "95 % from", "to", "n", "status", "mature")
            title = f"{slice_}, {'outside a loop' if cycles[0] is None else f'cycle {cycles[0]}'}"
        else:
            rows = [(name, _unit(name), *(_value(at.get((name, cycle))) for cycle in cycles)) for name in names]
            columns = ("statistic", "unit", *("none" if cycle is None else str(cycle) for cycle in cycles))
            title = f"{slice_}, by cycle"
        people.print()
        people.print(table(columns, rows, title=title))


def _value(point: Statistic | None) -> float | None:
    return None if point is None else point.value


def _unit(name: str) -> str:
    return STATISTICS[name].unit if name in STATISTICS else ""
