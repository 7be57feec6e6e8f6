"""`palomar settings`: what a run and this installation were told, and where things lie."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from palomar.app import configuration
from palomar.app.cli.output import Home, Json, StoreUrl, people, print_json, print_table, table
from palomar.app.service import Observatory
from palomar.app.settings import DEFAULT_HOME
from palomar.app.visible import visible

NO_RUN = 3


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("settings")(settings)


def settings(
    changed: Annotated[
        bool, typer.Option("--changed", help="Of the settings, only those that are no default.")
    ] = False,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Print settings as read, versions, detectors where things lie; secrets are masked. Exits with 3 without a run."""
    observatory = Observatory(home or DEFAULT_HOME, store_url)
    run = observatory.run()
    found = configuration.configuration(observatory, run)
    if as_json:
        print_json(asdict(found))
    else:
        shown = [each for each in found.settings if not (changed and each.default)]
        words = {True: "default", False: "SET", None: ""}
        print_table(table(("setting", "value", ""), [(e.name, visible(e.value), words[e.default]) for e in shown]))
        people.print()
        rewards = [(e.version[:12], e.from_cycle, visible(e.actor), visible(e.reason)) for e in found.rewards]
        print_table(table(("reward", "from cycle", "by", "reason"), rewards))
        people.print()
        policies = [(e.name, e.version, "newest decision" if e.used else "") for e in found.policies]
        print_table(table(("gate's policy", "version", ""), policies))
        people.print()
        detectors = [(e.name, visible(e.source), visible(e.errors or "does not say")) for e in found.detectors]
        print_table(table(("detector", "from", "errors"), detectors))
        for each in found.unreadable:
            people.print(f"cannot be read: {visible(each)}", soft_wrap=True)
        people.print()
        print_table(table(("what", "where", "bytes"), [(e.what, visible(e.where), e.size) for e in found.places]))
        people.print()
        print_table(table(("library", "version"), list(found.libraries.items())))
        people.print(f"schema of the store: {found.schema or 'not known'}")
    if run is None:
        raise typer.Exit(NO_RUN)
