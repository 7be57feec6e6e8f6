"""`palomar compact`: merge the small files that small batches leave in the lake."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from palomar.app.cli.output import Home, Json, people, print_json, print_table, table
from palomar.app.settings import DEFAULT_HOME
from palomar.app.visible import visible


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("compact")(compact_command)


def compact_command(
    at_least: Annotated[int, typer.Option(min=2, help="Merge where a partition has so many small files.")] = 2,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Merge small files of the lake; nothing that is read changes. Exits with 1 where a partition was left as it is."""
    from palomar.data.compaction import compact
    from palomar.data.lake import Lake

    done = compact(Lake((home or DEFAULT_HOME) / "lake"), at_least=at_least)
    if as_json:
        print_json({"tables": [asdict(each) for each in done]})
    else:
        columns = ("table", "partitions merged", "files before", "after", "rows written anew")
        rows = [(each.table, each.partitions, each.files_before, each.files_after, each.rows) for each in done]
        print_table(table(columns, rows))
        for problem in (problem for each in done for problem in each.problems):
            people.print(f"left as it is: {visible(problem)}")
    if any(each.problems for each in done):
        raise typer.Exit(1)
