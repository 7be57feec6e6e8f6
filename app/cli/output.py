"""How commands print: Rich tables for people, one JSON object for programs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from palomar.app.plain import plain_json

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Home = Annotated[
    Path | None,
    typer.Option(
        "--home",
        envvar="PALOMAR_HOME",
        help="Folder of the lake, the store and checkpoints.",
        show_default="./.palomar",
    ),
]
StoreUrl = Annotated[
    str | None,
    typer.Option("--store", envvar="PALOMAR_STORE", help="Database URL; without: SQLite in the home."),
]

people = Console(highlight=False, markup=False, emoji=False)
"""Standard output. Markup is off: what we print may hold text that an agent wrote."""

notes = Console(stderr=True, highlight=False, markup=False, emoji=False)
"""Standard error: progress and remarks, so that standard output stays parseable."""


def print_json(value: Any) -> None:
    """One JSON object, as `plain_json` writes it."""
    typer.echo(plain_json(value).decode())


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str | None = None) -> Table:
    """A table whose numeric columns stand right and whose cells are text, never markup."""
    grid = Table(
        title=Text(title) if title else None, title_justify="left", box=None, pad_edge=False, header_style="bold"
    )
    body = [[cell(value) for value in row] for row in rows]
    for index, name in enumerate(columns):
        numeric = all(_is_number(row[index]) for row in body if row[index] != "-") and bool(body)
        grid.add_column(Text(name), justify="right" if numeric else "left", no_wrap=True)
    for row in body:
        grid.add_row(*(Text(value) for value in row))
    return grid


def print_table(grid: Table) -> None:
    """Prints a table at its full width: a narrow terminal wraps its lines, but no number is cut."""
    natural = Measurement.get(people, people.options.update(width=10_000), grid).maximum
    Console(width=max(people.width, natural), highlight=False, markup=False, emoji=False).print(grid)


def cell(value: Any) -> str:
    """One value in a table: ``-`` for not known, four significant digits for a float."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e6 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def _is_number(text: str) -> bool:
    return text.replace(",", "").replace(".", "").lstrip("-+").replace("e-", "").rstrip("%").isdigit()
