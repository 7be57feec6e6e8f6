"""`palomar rebuild`: make the weights that come with Palomar again, by the code and texts that come with it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from palomar.app.cli.output import Json, notes, print_json


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="Make the weights that come with Palomar again.", no_args_is_help=True)
    group.command("base")(base)
    group.command("follow-ups")(follow_ups)
    app.add_typer(group, name="rebuild")


def base(
    out: Annotated[Path | None, typer.Option(help="Folder; without: over the one that comes with Palomar.")] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    as_json: Json = False,
) -> None:
    """Clone the tiny base policy from demonstrations; about two minutes."""
    from palomar.trainer.clone import BASE, clone

    report = clone(out or BASE, seed=seed)
    notes.print(f"written to {out or BASE}")
    print_json(asdict(report)) if as_json else notes.print(str(report))


def follow_ups(
    out: Annotated[Path | None, typer.Option(help="File; without: over the one that comes with Palomar.")] = None,
    as_json: Json = False,
) -> None:
    """Train the head that classes follow-up messages; under a minute."""
    from palomar.data.followups import train_head
    from palomar.data.followups.head import DEFAULT_HEAD

    report = train_head(out or DEFAULT_HEAD)
    notes.print(f"written to {out or DEFAULT_HEAD}")
    print_json(asdict(report)) if as_json else notes.print(str(report))
