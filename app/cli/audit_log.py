"""`palomar audit-log show|verify|head`: who did what, and whether the log of it is whole."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from palomar.app.cli.acting import store_there
from palomar.app.cli.output import Home, Json, StoreUrl, people, print_json, print_table, table
from palomar.app.visible import visible
from palomar.data.store.audit_log import parse_head
from palomar.data.store.records import AuditEntry

BROKEN = 1
NOTHING_TO_SHOW = 3
NEWEST = 50

commands = typer.Typer(help="The log of who did what and why; entries are only added.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(commands, name="audit-log")


@commands.command("show")
def show(
    subject: Annotated[str | None, typer.Option(help="Only about this, as incident:12.")] = None,
    actor: Annotated[str | None, typer.Option(help="Only by this person or program.")] = None,
    action: Annotated[
        str | None, typer.Option(help="Only this action, as incident.resolve; incident. for all that begin so.")
    ] = None,
    newest: Annotated[int, typer.Option(min=1, help="At most so many, the newest.")] = NEWEST,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Print the entries of the log, oldest first. Does not verify it. Exits with 3 where there is no store."""
    store = store_there(home, store_url, as_json)
    entries = store.audit_log.read(subject=subject, actor=actor, action=action, newest=newest)
    if as_json:
        print_json({"head": str(store.audit_log.head()), "entries": [asdict(entry) for entry in entries]})
    elif entries:
        print_table(table(("entry", "at (UTC)", "by", "action", "of", "reason"), [_row(entry) for entry in entries]))
    else:
        people.print("no entries")


@commands.command("verify")
def verify(
    head: Annotated[
        str | None, typer.Option(help="A head kept from before, ENTRIES:HASH: the log must lead through it.")
    ] = None,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Check that no entry was changed, removed or moved. Exits with 1 where one was, 3 where there is no store."""
    pinned = None if head is None else parse_head(head)
    if head is not None and pinned is None:
        raise typer.BadParameter(f"{head!r} is not of the form ENTRIES:HASH, as `palomar audit-log head` prints it")
    whole, problem = store_there(home, store_url, as_json).audit_log.verify(pinned)
    if as_json:
        print_json(
            {
                "whole": problem is None,
                "entries": whole.entries,
                "head": str(whole),
                "pinned": None if pinned is None else str(pinned),
                "problem": None if problem is None else asdict(problem),
            }
        )
    elif problem is None:
        through = "" if pinned is None else f", and it leads through the head after entry {pinned.entries}"
        people.print(f"whole: {whole.entries} entries, each follows the one before{through}", soft_wrap=True)
        people.print(f"head: {whole}", soft_wrap=True)
    else:
        about = "the log" if problem.number is None else f"entry {problem.number}"
        people.print(f"BROKEN: {about} ({problem.kind}): {problem.why}", soft_wrap=True)
        people.print(f"the first {whole.entries} entries follow each other", soft_wrap=True)
    if problem is not None:
        raise typer.Exit(BROKEN)


@commands.command("head")
def head_command(home: Home = None, store_url: StoreUrl = None, as_json: Json = False) -> None:
    """Print the log's head, ENTRIES:HASH. Kept elsewhere, `verify --head` shows whether what it covers still stands."""
    found = store_there(home, store_url, as_json).audit_log.head()
    if as_json:
        print_json(asdict(found) | {"head": str(found)})
    else:
        typer.echo(str(found))


def _row(entry: AuditEntry) -> tuple[object, ...]:
    return (
        entry.number,
        visible(entry.at[:19].replace("T", " ")),
        *(visible(" ".join(words.split())) for words in (entry.actor, entry.action, entry.subject, entry.reason)),
    )
