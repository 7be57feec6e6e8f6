"""What commands share that act on a store: who acts, and the store that is there."""

from __future__ import annotations

import getpass
from typing import Annotated

import typer

from palomar.app.cli.output import Home, Json, StoreUrl, people, print_json
from palomar.app.service import Observatory
from palomar.app.settings import DEFAULT_HOME
from palomar.data.store import Store

NOTHING_THERE = 3
"""Exit code where there is no store to ask."""

Actor = Annotated[str | None, typer.Option(help="Who does it; without: the user's name here.")]


def who(actor: str | None) -> str:
    """The name given, else the user's name here."""
    return actor or getpass.getuser()


def store_there(home: Home, store_url: StoreUrl, as_json: Json) -> Store:
    """The store of a home: none is made only to be asked. Exits with `NOTHING_THERE`, saying so, without one."""
    observatory = Observatory(home or DEFAULT_HOME, store_url)
    if not observatory.has_store:
        why = f"no store in {observatory.home}"
        if as_json:
            print_json({"why": why})
        else:
            people.print(why, soft_wrap=True)
        raise typer.Exit(NOTHING_THERE)
    return observatory.store
