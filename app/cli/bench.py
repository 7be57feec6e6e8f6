"""`palomar bench`: measure, print one record per measure, and say whether each aim is met."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from palomar.app.bench import Measure, load
from palomar.app.cli.output import Json, notes, print_json, print_table, table

PERFORMANCE = ("ingest", "scoring", "replay", "statistics", "pressure", "trainer", "overhead")
"""What ``palomar bench`` runs without a name: the benchmarks of speed, minutes in all."""

DOCUMENT = Path("docs/benchmarks.md")
ELSEWHERE = {"comparators": Path("docs/comparison.md")}
"""Benchmarks whose section stands in a page of their own."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench")(bench)


def bench(
    names: Annotated[list[str] | None, typer.Argument(help=f"Which ones; without: {', '.join(PERFORMANCE)}.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="The same with fewer seeds and rows, in minutes.")] = False,
    write: Annotated[
        bool, typer.Option("--write", help=f"Put the table into {DOCUMENT} (or the benchmark's own page).")
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure what Palomar promises. Exits with 1 when an aim is not met."""
    results: dict[str, list[Measure]] = {}
    for name in names or PERFORMANCE:
        try:
            measure = load(name)
        except KeyError as exc:
            raise typer.BadParameter(str(exc.args[0])) from exc
        notes.print(f"measuring {name} ...")
        results[name] = measure(quick)
    if as_json:
        print_json([{"benchmark": name, **item.to_dict()} for name, items in results.items() for item in items])
    else:
        for name, items in results.items():
            print_table(table(COLUMNS, [row(item) for item in items], title=f"{name}{' (quick)' if quick else ''}"))
    if write:
        for name, items in results.items():
            write_section(ELSEWHERE.get(name, DOCUMENT), name, items, quick=quick)
    if any(item.met is False for items in results.values() for item in items):
        raise typer.Exit(1)


COLUMNS = ("measure", "value", "unit", "n", "seeds", "aim", "met")


def row(item: Measure) -> tuple[object, ...]:
    """One measure as cells of the printed table."""
    sign = "<=" if item.better == "at_most" else ">="
    aim = None if item.aim is None else f"{sign} {item.aim:g}"
    name = f"{item.measure} ({item.note})" if item.note else item.measure
    return name, item.value, item.unit, item.n, len(item.seeds) or None, aim, item.met


def write_section(document: Path, name: str, items: list[Measure], *, quick: bool) -> None:
    """Replace (or append) the section of one benchmark in the document; the rest of it stays as it is."""
    start, end = f"<!-- bench:{name} -->", f"<!-- /bench:{name} -->"
    command = f"palomar bench {name}{' --quick' if quick else ''}"
    lines = [
        start,
        f"`{command}`, {datetime.now(UTC):%Y-%m-%d}",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
    ]
    lines += [
        "| " + " | ".join("-" if value is None else _markdown(value) for value in row(item)) + " |" for item in items
    ]
    section = "\n".join([*lines, end])
    text = document.read_text(encoding="utf-8") if document.exists() else "# Benchmarks\n"
    if start in text:
        before, rest = text.split(start, 1)
        text = before + section + rest.split(end, 1)[1]
    else:
        text += f"\n## {name}\n\n{section}\n"
    document.write_text(text, encoding="utf-8")


def _markdown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    text = f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
    return text.replace("|", "\\|")
