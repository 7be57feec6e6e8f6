"""`palomar cohort`: interactions that share something, how many there are, and how they differ from others."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from palomar.app.cli.output import Home, Json, StoreUrl, people, print_json, print_table, table
from palomar.app.cohorts import Cohort, CohortError, beside, compared_cycles, over_time, parse
from palomar.app.kept import Pending
from palomar.app.service import Observatory
from palomar.app.settings import DEFAULT_HOME
from palomar.app.visible import visible

NOTHING_TO_SHOW = 3


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("cohort")(cohort)


def cohort(
    which: Annotated[
        str, typer.Argument(help='What they share: "organisation=acme|zeta; predicted_failure=0.6..; cycle=12..20".')
    ],
    other: Annotated[str | None, typer.Option("--with", help="Another cohort; without: the rest.")] = None,
    over: Annotated[bool, typer.Option("--sizes", help="Only how many there are, by cycle.")] = False,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Print a cohort's figures beside the rest's or another cohort's, with their differences.

    Exits with 3 where one of the two has no interaction.
    """
    observatory = Observatory(home or DEFAULT_HOME, store_url)
    own, beside_it = _parsed(which), None if other is None else _parsed(other)
    if over:
        _print_sizes(observatory, own, as_json)
        return
    cycles = compared_cycles(observatory, own)
    found = beside(observatory, own, beside_it, wait_s=None) if cycles else None
    assert not isinstance(found, Pending)
    if as_json:
        told = None if found is None else asdict(found)
        if found is not None and told is not None:
            for row, each in zip(told["differences"], found.differences, strict=True):
                row["clear"] = each.clear
        rest = None if beside_it is None else beside_it.id
        print_json({"cohort": own.id, "with": rest, "cycles": cycles, "comparison": told})
    elif found is not None and found.n and found.other_n:
        rows = [
            (
                visible(each.statistic),
                None if each.own is None else each.own.value,
                None if each.other is None else each.other.value,
                each.value,
                each.low,
                each.high,
                each.p,
                each.clear if each.p is not None else visible(each.why),
            )
            for each in found.differences
        ]
        title = f"{found.n:,} interactions beside {found.other_n:,}, cycles {', '.join(map(str, cycles))}"
        columns = ("statistic", "cohort", "other", "difference", "95 % from", "to", "p (Holm)", "told apart")
        print_table(table(columns, rows, title=title))
    if found is None or not found.n or not found.other_n:
        if not as_json:
            people.print("nothing to compare: one of the two has no interaction in these cycles")
        raise typer.Exit(NOTHING_TO_SHOW)


def _print_sizes(observatory: Observatory, own: Cohort, as_json: bool) -> None:
    found = over_time(observatory, own)
    while isinstance(found, Pending):
        found = over_time(observatory, own)
    if as_json:
        print_json({"cohort": own.id, "sizes": [asdict(each) for each in found]})
    elif found:
        rows = [(each.cycle, each.n, each.of, each.share, each.low, each.high) for each in found]
        print_table(table(("cycle", "cohort", "of", "share", "95 % from", "to"), rows))
    if not any(each.n for each in found):
        raise typer.Exit(NOTHING_TO_SHOW)


def _parsed(text: str) -> Cohort:
    try:
        return parse(text)
    except CohortError as exc:
        raise typer.BadParameter(str(exc)) from exc
