"""`palomar scan`: signatures of known hacks over stored interactions."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from palomar.app.cli.output import Home, Json, people, print_json, print_table, table
from palomar.app.settings import DEFAULT_HOME
from palomar.app.visible import visible
from palomar.data.lake import Lake
from palomar.detectors.scan import Tally
from palomar.detectors.scan import scan as run
from palomar.detectors.signature import signatures

FLAGGED = 1
NOTHING_ASSESSED = 3


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("scan")(scan)


def scan(
    cycle: Annotated[list[int] | None, typer.Option("--cycle", help="Only this cycle; may be given again.")] = None,
    signature: Annotated[
        list[str] | None, typer.Option("--signature", help="Only this signature; may be given again.")
    ] = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Look for known hacks in stored interactions: exits with 1 when one is flagged, 3 when none can be assessed."""
    known = signatures()
    names = list(dict.fromkeys(signature)) if signature else list(known)
    if unknown := [name for name in names if name not in known]:
        raise typer.BadParameter(f"no signature {', '.join(unknown)}; there are: {', '.join(known)}")
    tallies = run(Lake((home or DEFAULT_HOME) / "lake"), names, cycle or None)
    if as_json:
        print_json({"signatures": [asdict(tally) for tally in tallies]})
    elif tallies:
        _print(tallies)
    else:
        people.print("nothing to scan: no interactions there")
    if any(tally.flagged for tally in tallies):
        raise typer.Exit(FLAGGED)
    if not any(tally.clear for tally in tallies):
        raise typer.Exit(NOTHING_ASSESSED)


def _print(tallies: list[Tally]) -> None:
    columns = ("signature", "flagged", "clear", "not assessed", "mostly because")
    print_table(table(columns, [(t.signature, t.flagged, t.clear, t.not_assessed, t.why_not) for t in tallies]))
    for tally in tallies:
        for one in tally.first:
            people.print(f"\n{tally.signature}  {visible(one.interaction_id)}  score {one.verdict.score:.2f}")
            people.print(f"  {one.verdict.reason}")
            for place in one.verdict.evidence[:3]:
                where = f"step {place.step}" + (f", {place.path}" if place.path else "")
                where += f":{place.line}" if place.line is not None else ""
                people.print(f"  {visible(where)}: {visible(place.excerpt)}")
