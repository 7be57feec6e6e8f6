"""`palomar pressure`: what the reward pushes and what users want, per behaviour, slice, reward term and rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from palomar.app.cli.output import Home, Json, StoreUrl, people, print_json, print_table, table
from palomar.app.service import Observatory
from palomar.app.settings import DEFAULT_HOME, reward_spec
from palomar.detectors.pressure import SLICES, pressures
from palomar.reward.spec import RewardSpec, version
from palomar.reward.versions import stored_spec

NOTHING_TO_SHOW = 3
Row = Mapping[str, Any]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("pressure")(pressure)


def pressure(
    cycle: Annotated[
        list[int] | None, typer.Option("--cycle", help="This cycle; several are pooled. Without: the newest.")
    ] = None,
    slice_: Annotated[list[str] | None, typer.Option("--slice", help="Only this slice; may be given again.")] = None,
    reward: Annotated[
        str | None, typer.Option(help="The spec (name or file) that logs were scored by; a run's own are known.")
    ] = None,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Print the pressure matrix: behaviours x reward, outcome, terms and rules. Exits with 3 when there is none."""
    observatory = Observatory(home or DEFAULT_HOME, store_url)
    there = observatory.lake.cycles("observations")
    cycles = list(dict.fromkeys(cycle)) if cycle else _newest(there)
    found = pressures(observatory.lake, cycles, _specs(observatory, reward)).to_pylist() if cycles else []
    rows = [row for row in found if slice_ is None or row["slice"] in slice_]
    if as_json:
        print_json({"cycles": cycles, "rows": rows})
    elif rows:
        _print(rows, cycles)
    else:
        people.print(f"nothing to show: {_why(found, cycles, there, observatory.home)}")
    if not rows:
        raise typer.Exit(NOTHING_TO_SHOW)


def _newest(cycles: Sequence[int | None]) -> list[int | None]:
    numbered = [cycle for cycle in cycles if cycle is not None]
    return [numbered[-1]] if numbered else list(cycles)


def _specs(observatory: Observatory, reward: str | None) -> dict[str, RewardSpec]:
    stored = observatory.store.rewards.read() if observatory.has_store else []
    specs = {record.version: stored_spec(record) for record in stored}
    if reward is not None:
        spec = reward_spec(reward)
        specs[version(spec)] = spec
    return specs


def _why(found: Sequence[Row], cycles: Sequence[int | None], there: Sequence[int | None], home: Path) -> str:
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
        columns = ("statistic", "level", "n", "reward", "z", "outcome", "z", *parts)
        body = [_line(name, here, parts) for name in shown]
        users = max(row["clusters"] for row in here.values())
        print_table(table(columns, body, title=f"{slice_}, cycle {pooled}, {users:,} users"))
        silent = [name for name in names if name not in shown]
        if silent:
            people.print(f"no data, or no variation: {', '.join(silent)}")
    people.print(
        "\n* the 95 % interval excludes 0; ? too few to tell. Change per unit step, in the statistic's own unit."
    )


def _line(name: str, here: Mapping[tuple[str, str], Row], parts: Sequence[str]) -> tuple[object, ...]:
    reward, outcome = here.get((name, "reward")), here.get((name, "outcome"))
    about = reward or outcome or {}
    return (
        name,
        about.get("level"),
        about.get("n"),
        *(text for row in (reward, outcome) for text in (_value(row), _z(row))),
        *(_value(here.get((name, part))) for part in parts),
    )


def _has_value(row: Row | None) -> bool:
    return row is not None and row["value"] is not None


def _value(row: Row | None) -> str | None:
    if row is None or row["value"] is None:
        return None
    mark = "?" if row["low"] is None else "*" if row["low"] > 0 or row["high"] < 0 else " "
    return f"{row['value']:+.4f}{mark}"


def _z(row: Row | None) -> str | None:
    return None if row is None or row["z"] is None else f"{row['z']:+.1f}"
