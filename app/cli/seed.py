"""`palomar seed`: make a home of any size, to see how the console does with it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from palomar.app.cli.output import Home, Json, notes, people, print_json
from palomar.app.settings import DEFAULT_HOME

Source = Annotated[
    Path | None,
    typer.Option(
        "--from", help="Home of a finished, checked run to draw from; without: one is made, which takes minutes."
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("seed")(seed_command)


def seed_command(
    interactions: Annotated[int, typer.Option(min=100, help="Interactions in all.")] = 1_000_000,
    cycles: Annotated[int, typer.Option(min=1)] = 200,
    incidents: Annotated[int, typer.Option(min=1, help="Incidents, open and closed, at most.")] = 50,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    source: Source = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Fill a home of its own with a run drawn from a short real one: as many interactions and cycles as you like."""
    from palomar.app.seeding import RUN, SeedConfig, seed_home
    from palomar.app.service import Observatory

    place = home or DEFAULT_HOME / "seeded"
    config = SeedConfig(interactions, cycles, incidents, seed)
    began = time.perf_counter()
    seed_home(place, config, source=source, said=lambda words: notes.print(words, soft_wrap=True))
    elapsed_s = time.perf_counter() - began
    held = len(Observatory(place).store.incidents.read(RUN))
    if as_json:
        print_json({"run": RUN, "home": place, **vars(config), "incidents": held, "elapsed_s": elapsed_s})
        return
    people.print(
        f"{interactions:,} interactions in {cycles} cycles, {held} incidents, in {elapsed_s:.0f} s"
        f"\nlook at it: palomar console --home {place}",
        soft_wrap=True,
    )
