"""`palomar ingest`: real logs into the lake; and `palomar formats`, what can be read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from palomar.app.cli.output import Home, Json, StoreUrl, notes, people, print_json, print_table, table
from palomar.app.cli.stats import print_measured
from palomar.app.ingesting import derive, note_refused
from palomar.app.settings import DEFAULT_HOME, reward_spec
from palomar.app.visible import visible
from palomar.data.followups import FollowUpClassifier
from palomar.data.ingest import IngestReport, ingest
from palomar.data.lake import Lake
from palomar.data.sources import sources
from palomar.data.store import Store
from palomar.detectors.measure import measure

QUARANTINED = 1
NOTHING_READ = 3
SHOWN = 10


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("ingest")(ingest_command)
    app.command("formats")(formats)


def formats(as_json: Json = False) -> None:
    """List the log formats that can be read."""
    known = {name: reader.title for name, reader in sources().items()}
    if as_json:
        print_json(known)
    else:
        print_table(table(("format", "what it is"), known.items()))


def ingest_command(
    paths: Annotated[list[str], typer.Argument(help="Files, folders or globs.")],
    format: Annotated[str, typer.Option(help="A format of `palomar formats`; auto: recognised by content.")] = "auto",
    cycle: Annotated[int | None, typer.Option(min=0, help="Cycle of interactions whose log names none.")] = None,
    reward: Annotated[
        str | None, typer.Option(help="Score by this spec (name or file); without: the rewards in the logs.")
    ] = None,
    classify: Annotated[bool, typer.Option(help="Class follow-up messages that have no label.")] = True,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Read logs into the lake. Exits with 1 when something went to quarantine, 3 when nothing could be read."""
    place = home or DEFAULT_HOME
    spec = None if reward is None else reward_spec(reward)
    lake = Lake(place / "lake")
    began = datetime.now(UTC)
    classifier = FollowUpClassifier() if classify else None
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=notes, transient=True
    ) as progress:
        task = progress.add_task("reading", total=None)

        def tell(origin: str, report: IngestReport) -> None:
            progress.update(task, description=f"{report.files} files, {report.interactions:,} interactions: {origin}")

        report = ingest(paths, lake, format=format, cycle=cycle, classify=classifier, progress=tell)
        progress.update(task, description="deriving facts and statistics")
        with Store.open(store_url, place) as store:
            note_refused(store, report.entries, at=began)
            derived = derive(lake, store, at=began, spec=spec)
        measured = measure(lake, cycles=derived) if report.interactions else []
    if as_json:
        print_json(
            {
                **report.to_dict(),
                "statistics": [vars(point) for point in measured if point.slice == "all"],
            }
        )
    else:
        _print(report)
        print_measured(measured, slices=["all"])
        notes.print("\nnext: palomar stats, palomar show ID, palomar console")
    if report.records_kept == 0:
        raise typer.Exit(NOTHING_READ)
    if report.quarantined:
        raise typer.Exit(QUARANTINED)


def _print(report: IngestReport) -> None:
    rows = [(name, *vars(count).values()) for name, count in sorted(report.formats.items())]
    print_table(table(("format", "files", "records", "interactions", "quarantined"), rows))
    people.print(
        f"\n{report.files:,} files, {report.bytes / 1e6:,.1f} MB, {report.records:,} records -> "
        f"{report.interactions:,} interactions in {report.conversations:,} conversations "
        f"({report.new:,} new, {report.known:,} known) in {report.seconds:.1f} s"
    )
    if report.quarantined:
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in report.quarantined.items())
        people.print(f"\nquarantined: {kinds}")
        for entry in report.entries[:SHOWN]:
            people.print(f"  {entry.kind}: {visible(str(entry))}", soft_wrap=True)
        if len(report.entries) > SHOWN:
            people.print(f"  ... all of them: {report.quarantine_file}")
