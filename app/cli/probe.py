"""`palomar probe list|add`: the scripted policies that `palomar audit --probes` plays a reward by."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from palomar.app.cli.acting import who
from palomar.app.cli.output import Home, Json, StoreUrl, people, print_json, print_table, table
from palomar.app.probing import FOLDER, keep_probe
from palomar.app.service import Observatory
from palomar.app.settings import DEFAULT_HOME
from palomar.app.visible import visible
from palomar.detectors.detector import load
from palomar.reward.probes import library  # noqa: F401  (registers the probes)
from palomar.reward.probes.cases import read_probes
from palomar.reward.probes.probe import PROBES

commands = typer.Typer(help="Scripted policies that a reward is played by.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(commands, name="probe")


@commands.command("list")
def list_command(
    files: Annotated[list[Path] | None, typer.Option("--load", help="A Python file with probes of your own.")] = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """List the probes: those that come with Palomar, yours, and those that the home keeps of its incidents."""
    for path in files or ():
        load(path)
    kept = read_probes((home or DEFAULT_HOME) / FOLDER)
    every = [*((each, "code") for each in PROBES.values()), *((each, "home") for each in kept)]
    body = [(each.name, each.behaviour, visible(each.title), where) for each, where in every]
    if as_json:
        print_json({"probes": [dict(zip(("name", "behaviour", "title", "from"), row, strict=True)) for row in body]})
    else:
        print_table(table(("name", "behaviour", "it ...", "from"), body))


@commands.command("add")
def add(
    name: Annotated[str, typer.Argument(help="Name of the probe: small letters, digits and dashes.")],
    behaviour: Annotated[
        str, typer.Option(help="What it shows: broken call, question, split, ..., or a word of yours.")
    ],
    incident: Annotated[int | None, typer.Option(help="Take this incident's interactions.")] = None,
    ids: Annotated[list[str] | None, typer.Option("--id", help="Take this interaction; repeatable.")] = None,
    title: Annotated[str | None, typer.Option(help='What it does, after "it".')] = None,
    reason: Annotated[str, typer.Option(help="Why.")] = "",
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Keep logged interactions as a probe, so that no later reward pays for the same again."""
    if incident is None and not ids:
        raise typer.BadParameter("give --incident or --id")
    kept = keep_probe(
        Observatory(home or DEFAULT_HOME, store_url),
        name=name,
        behaviour=behaviour,
        title=title or (f"does what incident {incident} showed" if incident is not None else "does what was logged"),
        actor=who(None),
        reason=reason,
        incident=incident,
        ids=ids or (),
    )
    if as_json:
        print_json({**asdict(kept), "path": str(kept.path)})
    else:
        left = f"; {kept.unreadable} cannot be replayed" if kept.unreadable else ""
        people.print(f"{kept.cases} interactions kept in {kept.path}{left}")
