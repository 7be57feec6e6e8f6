"""`palomar report`: what is too slow for every check: Evidently's report on a cycle, and the drift of its texts."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from palomar.app.cli.output import Home, Json, StoreUrl, notes, people, print_json, print_table, table
from palomar.app.service import Observatory
from palomar.app.settings import DEFAULT_HOME
from palomar.app.visible import visible
from palomar.data.findings import Report
from palomar.detectors.checks.texts import measure
from palomar.detectors.checks.texts import texts as judge_texts
from palomar.detectors.evidently_report import FOLDER, EvidentlyReport
from palomar.detectors.evidently_report import report as make_report

NOTHING_TO_REPORT = 3


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report")(report)


def report(
    cycle: Annotated[int | None, typer.Option("--cycle", help="Without: the newest.")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Also write Evidently's page here.")] = None,
    texts: Annotated[bool, typer.Option(help="Embed the replies too; takes some seconds a cycle.")] = True,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Compare a cycle with its reference in Evidently's way, and its texts; checks then read what came out.

    Exits with 3 when there is nothing to compare.
    """
    observatory = Observatory(home or DEFAULT_HOME, store_url)
    view = observatory.view(cycle)
    try:
        if view is None:
            raise ValueError(f"no interactions of {'any cycle' if cycle is None else f'cycle {cycle}'} there")
        made = make_report(view, observatory.home / FOLDER)
        said = None
        if texts:
            notes.print("embedding the replies ...")
            measure(view)
            said = judge_texts(view)
    except ValueError as exc:
        if as_json:
            print_json({"cycle": cycle, "why": str(exc)})
        else:
            people.print(f"nothing to report: {exc}", soft_wrap=True)
        raise typer.Exit(NOTHING_TO_REPORT) from exc
    if html is not None:
        shutil.copyfile(made.html, html)
    if as_json:
        print_json(_plain(made, said, view.cycle))
    else:
        _print(made, said)


def _plain(made: EvidentlyReport, said: Report | None, cycle: int | None) -> dict[str, object]:
    return {"cycle": cycle, "evidently": asdict(made), "texts": None if said is None else asdict(said)}


def _print(made: EvidentlyReport, said: Report | None) -> None:
    rows = [
        (visible(column.name), column.method, column.value, column.threshold, column.drifted, column.n)
        for column in made.columns
        if column.value is not None
    ]
    title = f"Evidently, {made.n:,} interactions against {made.reference_n:,} of the reference"
    print_table(table(("column", "method", "value", "threshold", "drifted", "n"), rows, title=title))
    silent = [visible(column.name) for column in made.columns if column.value is None]
    if silent:
        people.print(f"not compared, too few values: {', '.join(silent)}", soft_wrap=True)
    people.print(f"a second opinion: its thresholds have no stated error rate. Page: {made.html}", soft_wrap=True)
    if said is not None:
        lines = [finding.sentence for finding in said.findings] or [item.why for item in said.unassessed]
        for line in lines or [f"nothing new in the replies; {said.power}"]:
            people.print(f"texts: {visible(line)}", soft_wrap=True)
