"""`palomar stats`: behaviour statistics per cycle and slice, measured from the lake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from palomar.app.cli.output import Home, Json, people, print_json, print_table, table
from palomar.app.settings import DEFAULT_HOME
from palomar.data.config import read_config
from palomar.data.lake import Lake
from palomar.data.series import SeriesMapping, read_series
from palomar.data.store.records import Statistic
from palomar.detectors.measure import measure
from palomar.detectors.statistics import STATISTICS

NOTHING_TO_SHOW = 3
NO_DATA = "no data"
"""Status of a statistic that had nothing to count."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("stats")(stats)


def stats(
    statistic: Annotated[list[str] | None, typer.Option("--stat", help="Only this one; may be given again.")] = None,
    slice_: Annotated[list[str] | None, typer.Option("--slice", help="Only this slice; may be given again.")] = None,
    every_slice: Annotated[bool, typer.Option("--slices", help="All slices, not only `all`.")] = False,
    cycle: Annotated[list[int] | None, typer.Option("--cycle", help="Only this cycle; may be given again.")] = None,
    series: Annotated[
        Path | None, typer.Option(help="Print this table of aggregated figures instead (docs/series.md).")
    ] = None,
    mapping: Annotated[Path | None, typer.Option(help="With --series: the mapping of a JSON of another shape.")] = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Print behaviour statistics with their 95 % intervals. Exits with 3 when there is nothing to measure."""
    if series is not None:
        _print_series(series, mapping, as_json)
        return
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


def _print_series(path: Path, mapping: Path | None, as_json: bool) -> None:
    """A team's own aggregated figures, checked and in one shape: a share or a mean per cycle, slice and metric."""
    rows = read_series(path, None if mapping is None else read_config(mapping, SeriesMapping)).to_pylist()
    if as_json:
        print_json(rows)
        return
    for metric in dict.fromkeys(row["metric"] for row in rows):
        here = [row for row in rows if row["metric"] == metric]
        cycles = sorted({row["cycle"] for row in here})
        at = {(row["slice"], row["cycle"]): row for row in here}
        shown = [
            (slice_, *(_figure(at.get((slice_, cycle))) for cycle in cycles))
            for slice_ in dict.fromkeys(row["slice"] for row in here)
        ]
        people.print()
        print_table(table(("slice", *map(str, cycles)), shown, title=f"{metric}, by cycle"))


def _figure(row: Mapping[str, Any] | None) -> float | None:
    """The share or mean of a row; None where the series has no such row, or a share of nothing."""
    if row is None:
        return None
    if row["mean"] is not None:
        return float(row["mean"])
    return row["count"] / row["total"] if row["total"] else None


def _why(points: Sequence[Statistic], wanted: Sequence[str], known: set[str], home: object) -> str:
    if not points:
        return f"no such statistic or cycle in {home}, or nothing was ingested yet"
    return f"no slice {', '.join(wanted)}; there are: {', '.join(sorted(known))}"


def print_measured(points: Sequence[Statistic], *, slices: Sequence[str]) -> None:
    """One table per slice: statistics down, cycles across if there are several. Those without data are named below."""
    for slice_ in slices:
        here = [point for point in points if point.slice == slice_]
        if not here:
            continue
        cycles = sorted({point.cycle for point in here}, key=lambda cycle: (cycle is None, cycle))
        at = {(point.statistic, point.cycle): point for point in here}
        names = list(dict.fromkeys(point.statistic for point in here))
        empty = [name for name in names if all(_status(at.get((name, cycle))) == NO_DATA for cycle in cycles)]
        shown = [name for name in names if name not in empty]
        columns: tuple[str, ...]
        if len(cycles) == 1:
            rows = [_row(name, at[name, cycles[0]]) for name in shown]
            columns = ("statistic", "value", "95 % from", "to", "n", "mature", "status", "unit")
            title = f"{slice_}, {'outside a loop' if cycles[0] is None else f'cycle {cycles[0]}'}"
        else:
            rows = [(name, *(_value(at.get((name, cycle))) for cycle in cycles), _unit(name)) for name in shown]
            columns = ("statistic", *("none" if cycle is None else str(cycle) for cycle in cycles), "unit")
            title = f"{slice_}, by cycle"
        people.print()
        print_table(table(columns, rows, title=title))
        if empty:
            people.print(f"\nno data: {', '.join(empty)}")


def _row(name: str, point: Statistic) -> tuple[object, ...]:
    status = None if point.status == "ok" else point.status
    return name, point.value, point.low, point.high, point.n, point.maturity, status, _unit(name)


def _status(point: Statistic | None) -> str:
    return NO_DATA if point is None else point.status


def _value(point: Statistic | None) -> float | None:
    return None if point is None else point.value


def _unit(name: str) -> str:
    return STATISTICS[name].unit if name in STATISTICS else ""
