"""`palomar pressure`: what the reward pushes and what users want, per behaviour, slice, reward term and rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import typer

from palomar.app.cli.output import Home, Json, StoreUrl, people, print_json, print_table, table
from palomar.app.service import Observatory
from palomar.app.settings import DEFAULT_HOME, reward_spec
from palomar.data.slices import SLICES
from palomar.detectors.forecast import forecasts, scores
from palomar.detectors.pressure import MARGIN, PRESSURE, combined, cycle_pressures, pressures
from palomar.reward.spec import RewardSpec, version
from palomar.reward.versions import stored_spec

NOTHING_TO_SHOW = 3
EXPORTS = {".csv": pacsv.write_csv, ".parquet": pq.write_table}
MARKS = {"along_up": "*", "along_down": "*", "none": "=", "unclear": " "}
Row = Mapping[str, Any]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("pressure")(pressure)


def pressure(
    cycle: Annotated[
        list[int] | None, typer.Option("--cycle", help="This cycle; several are pooled. Without: the newest.")
    ] = None,
    last: Annotated[
        int,
        typer.Option("--last", min=1, help="Pool so many cycles up to this one, each with its own, as the check does."),
    ] = 1,
    slice_: Annotated[list[str] | None, typer.Option("--slice", help="Only this slice; may be given again.")] = None,
    reward: Annotated[
        str | None, typer.Option(help="The spec (name or file) that logs were scored by; a run's own are known.")
    ] = None,
    forecast: Annotated[
        bool,
        typer.Option("--forecast", help="What the next cycle is expected to be like, and how good that was so far."),
    ] = False,
    export: Annotated[
        Path | None, typer.Option("--export", help="Write the rows to this file as well: .csv or .parquet.")
    ] = None,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Print the pressure matrix: behaviours x reward, outcome, terms and rules. Exits with 3 when there is none."""
    if export is not None and export.suffix not in EXPORTS:
        raise typer.BadParameter(f"{export}: its name must end with {' or '.join(EXPORTS)}", param_hint="--export")
    if forecast and cycle and len(set(cycle)) > 1:
        raise typer.BadParameter("a forecast is made in one cycle", param_hint="--cycle")
    if last > 1 and (forecast or (cycle and len(set(cycle)) > 1)):
        raise typer.BadParameter("it goes back from one cycle, and a forecast is made in one", param_hint="--last")
    observatory = Observatory(home or DEFAULT_HOME, store_url)
    there = observatory.lake.cycles("observations")
    cycles = _back(list(dict.fromkeys(cycle)) if cycle else _newest(there), there, last)
    specs = _specs(observatory, reward)
    if forecast:
        every = _forecasts(observatory, cycles, there, specs)
        found = every.filter(pc.is_in(every["made_in"], value_set=pa.array(cycles, pa.int32())))
    else:
        found = _pressures(observatory, cycles, there, specs, each=last > 1)
    shown = found if slice_ is None else found.filter(pc.is_in(found["slice"], value_set=pa.array(slice_)))
    rows = shown.to_pylist()
    if export is not None and rows:
        EXPORTS[export.suffix](shown, export)
    if forecast and rows:
        past = scores(every.filter(pc.less_equal(every["for_cycle"], rows[0]["made_in"]))).to_pylist()[0]
    if as_json:
        print_json({"cycles": cycles, "rows": rows, **({"past": past} if forecast and rows else {})})
    elif not rows:
        people.print(f"nothing to show: {_why(found.num_rows > 0, cycles, there, observatory.home)}")
    elif forecast:
        _print_forecast(rows, past)
    else:
        _print(rows, cycles)
    if not rows:
        raise typer.Exit(NOTHING_TO_SHOW)


def _pressures(
    observatory: Observatory,
    cycles: Sequence[int | None],
    there: Sequence[int | None],
    specs: Mapping[str, RewardSpec],
    *,
    each: bool,
) -> pa.Table:
    """``each``: every cycle's own pressures, then put together."""
    known = [cycle for cycle in cycles if cycle in there]
    if each and known:
        return combined([cycle_pressures(observatory.lake, cycle, specs) for cycle in known])
    if len(known) == 1:
        return cycle_pressures(observatory.lake, known[0], specs)
    return pressures(observatory.lake, known, specs) if known else PRESSURE.empty_table()


def _forecasts(
    observatory: Observatory,
    cycles: Sequence[int | None],
    there: Sequence[int | None],
    specs: Mapping[str, RewardSpec],
) -> pa.Table:
    """Made in each cycle up to the one asked for; logs from outside a loop have no next cycle."""
    last = cycles[0] if cycles else None
    known = [cycle for cycle in there if cycle is not None and last is not None and cycle <= last]
    return forecasts(observatory.lake, known, specs)


def _newest(cycles: Sequence[int | None]) -> list[int | None]:
    numbered = [cycle for cycle in cycles if cycle is not None]
    return [numbered[-1]] if numbered else list(cycles)


def _back(cycles: list[int | None], there: Sequence[int | None], last: int) -> list[int | None]:
    """A cycle and those before it, so many in all."""
    end = cycles[0] if cycles else None
    if last == 1 or end is None or end not in there:
        return cycles
    before: list[int | None] = [each for each in there if each is not None and each <= end]
    return before[-last:]


def _specs(observatory: Observatory, reward: str | None) -> dict[str, RewardSpec]:
    stored = observatory.store.rewards.read() if observatory.has_store else []
    specs = {record.version: stored_spec(record) for record in stored}
    if reward is not None:
        spec = reward_spec(reward)
        specs[version(spec)] = spec
    return specs


def _why(found: bool, cycles: Sequence[int | None], there: Sequence[int | None], home: Path) -> str:
    if found:
        return f"no such slice; there are: {'; '.join(SLICES)}"
    if there:
        asked, known = (", ".join("none" if each is None else str(each) for each in some) for some in (cycles, there))
        return f"no interactions in cycle {asked} that were decided on; in {home} there are cycles {known}"
    return f"nothing was ingested into {home} yet"


def _print(rows: Sequence[Row], cycles: Sequence[int | None]) -> None:
    """One table per slice: statistics down; the reward and the outcome across, then what the reward is made of."""
    pooled = ", ".join("outside a loop" if cycle is None else str(cycle) for cycle in cycles)
    for slice_ in dict.fromkeys(row["slice"] for row in rows):
        here = {(row["statistic"], row["kind"]): row for row in rows if row["slice"] == slice_}
        names = list(dict.fromkeys(statistic for statistic, _ in here))
        kinds = list(dict.fromkeys(kind for _, kind in here))
        parts = [kind for kind in kinds if kind not in ("reward", "outcome")]
        shown = [name for name in names if any(_has_value(here.get((name, kind))) for kind in kinds)]
        people.print()
        columns = ("statistic", "level", "n", "reward", "z", "needs", "outcome", "z", "needs", *parts)
        body = [_line(name, here, parts) for name in shown]
        users = max(row["clusters"] for row in here.values())
        print_table(table(columns, body, title=f"{slice_}, cycle {pooled}, {users:,} users"))
        silent = [name for name in names if name not in shown]
        if silent:
            people.print(f"no data, or no variation: {', '.join(silent)}")
    people.print(
        f"\n* the 95 % interval excludes 0; = shown to be none, a correlation within {MARGIN:g}; ? too few to tell. "
        "needs: rows that would tell.\nChange per unit step, in the statistic's own unit."
    )


def _print_forecast(rows: Sequence[Row], past: Row) -> None:
    """One table per slice, of the statistics that can be told."""
    made_in = rows[0]["made_in"]
    for slice_ in dict.fromkeys(row["slice"] for row in rows):
        here = [row for row in rows if row["slice"] == slice_]
        body = [
            (row["statistic"], row["level"], row["value"], row["low"], row["high"], row["change"], row["step"])
            for row in here
            if row["value"] is not None
        ]
        people.print()
        if body:
            columns = ("statistic", "level", "expected", "low", "high", "change", "step")
            title = f"{slice_}, made in cycle {made_in} for cycle {made_in + 1}"
            print_table(table(columns, body, title=title))
        statuses = dict.fromkeys(row["status"] for row in here if row["value"] is None)
        for status in statuses:
            silent = [row["statistic"] for row in here if row["value"] is None and row["status"] == status]
            people.print(f"{status}: {', '.join(silent)}")
    people.print("\nlow and high: of the 90 % interval of the level that will be measured.")
    if past["n"]:
        people.print(
            f"Forecasts so far: {past['n']:,}; what came lay in the interval of {100 * past['coverage']:.1f} %; "
            f"mean error {past['signed_error']:+.2f} standard errors; "
            f"{100 * past['skill']:+.1f} % of the squared error of 'no change' saved."
        )


def _line(name: str, here: Mapping[tuple[str, str], Row], parts: Sequence[str]) -> tuple[object, ...]:
    reward, outcome = here.get((name, "reward")), here.get((name, "outcome"))
    about = reward or outcome or {}
    return (
        name,
        about.get("level"),
        about.get("n"),
        *(
            text
            for row in (reward, outcome)
            for text in (_value(row), _z(row), None if row is None else row["needed_n"])
        ),
        *(_value(here.get((name, part))) for part in parts),
    )


def _has_value(row: Row | None) -> bool:
    return row is not None and row["value"] is not None


def _value(row: Row | None) -> str | None:
    if row is None or row["value"] is None:
        return None
    mark = "?" if row["low"] is None else MARKS[row["verdict"]]
    return f"{row['value']:+.4f}{mark}"


def _z(row: Row | None) -> str | None:
    return None if row is None or row["z"] is None else f"{row['z']:+.1f}"
