"""`palomar baseline`: which cycles others are compared with, and moving it by a person's word."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from palomar.app.cli.acting import Actor, who
from palomar.app.cli.output import Home, Json, StoreUrl, people, print_json, print_table, table
from palomar.app.service import Observatory
from palomar.app.settings import DEFAULT_HOME
from palomar.app.visible import visible
from palomar.data.errors import StoreError
from palomar.detectors.detector import BASELINE_CYCLES

NOTHING_TO_SHOW = 3


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("baseline")(baseline)


def baseline(
    cycles: Annotated[str | None, typer.Option(help="Move it to these cycles: A..B.")] = None,
    reason: Annotated[str | None, typer.Option(help="Why; needed with --cycles.")] = None,
    from_cycle: Annotated[
        int | None, typer.Option(help="First cycle judged by it; without: the one after the newest.")
    ] = None,
    actor: Actor = None,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Show the baseline and how it moved, or move it. Exits with 3 where there is no run."""
    observatory = Observatory(home or DEFAULT_HOME, store_url)
    run = observatory.run()
    if run is None:
        people.print(f"no run in {observatory.home}", soft_wrap=True)
        raise typer.Exit(NOTHING_TO_SHOW)
    if cycles is not None:
        chosen = _span(cycles)
        if not reason:
            raise typer.BadParameter("a baseline is moved for a reason: --reason")
        known = {record.cycle for record in observatory.store.cycles.read(run.run_id)}
        if missing := [cycle for cycle in chosen if cycle not in known]:
            raise StoreError(str(observatory.home), f"run {run.run_id!r} has no cycle {missing[0]}")
        observatory.store.baselines.move(
            run.run_id,
            from_cycle=max(known) + 1 if from_cycle is None else from_cycle,
            cycles=chosen,
            reason=reason,
            actor=who(actor),
        )
    moves = observatory.store.baselines.read(run.run_id)
    if as_json:
        print_json([vars(move) for move in moves])
    elif moves:
        columns = ("from cycle", "compared with", "reason", "by", "at")
        rows = [
            (move.from_cycle, _told(move.cycles), visible(move.reason), visible(move.actor), f"{move.set_at:%F %R} UTC")
            for move in moves
        ]
        print_table(table(columns, rows, title=f"baseline of {run.run_id}"))
    else:
        people.print(f"the first cycles of {run.run_id}; it was never moved")


def _span(text: str) -> range:
    found = re.fullmatch(r"(\d+)\.\.(\d+)", text.strip())
    if found is None or int(found[1]) > int(found[2]):
        raise typer.BadParameter(f"{text!r} is not of the form A..B, as 12..19")
    chosen = range(int(found[1]), int(found[2]) + 1)
    if len(chosen) < BASELINE_CYCLES:
        raise typer.BadParameter(f"{text} are {len(chosen)} cycles; a baseline needs {BASELINE_CYCLES}")
    return chosen


def _told(cycles: tuple[int, ...]) -> str:
    whole = cycles == tuple(range(cycles[0], cycles[-1] + 1))
    return f"{cycles[0]}..{cycles[-1]}" if whole else ", ".join(map(str, cycles))
