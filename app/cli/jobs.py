"""`palomar jobs list|show|work`: long work that was asked for, and doing it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from palomar.app import jobs as doing
from palomar.app.cli.acting import NOTHING_THERE, store_there
from palomar.app.cli.output import Home, Json, StoreUrl, notes, people, print_json, print_table, table
from palomar.app.service import Observatory
from palomar.app.settings import DEFAULT_HOME
from palomar.app.visible import visible
from palomar.data.errors import StoreError
from palomar.data.store.records import Job

jobs = typer.Typer(help="Long work that was asked for: replays, searches for a patch.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(jobs, name="jobs")


@jobs.command("list")
def list_(
    newest: Annotated[int, typer.Option(min=1, help="How many, the newest.")] = 40,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """List jobs, the newest first. Exits with 3 when there are none."""
    found = store_there(home, store_url, as_json).jobs.read(newest=newest)[::-1]
    if as_json:
        print_json({"jobs": [{name: value for name, value in asdict(each).items() if name != "result"}
                             for each in found]})  # fmt: skip
    elif found:
        body = [
            (each.job_id, each.kind, each.state, f"{each.progress:.0%}", f"{each.asked_at:%Y-%m-%d %H:%M:%S}",
             visible(each.actor), visible((each.error or each.step)[:80]))
            for each in found
        ]  # fmt: skip
        print_table(table(("job", "kind", "state", "done", "asked (UTC)", "by", "now"), body))
    else:
        people.print("no jobs")
    if not found:
        raise typer.Exit(NOTHING_THERE)


@jobs.command("show")
def show(
    job: Annotated[str, typer.Argument(help="The job's id, or its start.")],
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Say how far a job is, and with --json what came of it. Exits with 1 where it failed, 3 where it is under way."""
    store = store_there(home, store_url, as_json)
    matching = [each.job_id for each in store.jobs.read() if each.job_id.startswith(job)]
    found = store.jobs.get(matching[0]) if len(matching) == 1 else None
    if found is None:
        raise StoreError(f"job {job!r}", "several begin so" if matching else "there is none")
    if as_json:
        print_json(asdict(found))
    else:
        _print(found)
    if found.state != "done":
        raise typer.Exit(1 if found.state == "failed" else NOTHING_THERE)


def _print(job: Job) -> None:
    people.print(f"{job.job_id}  {job.kind}  {job.state}  {job.progress:.0%}  {visible(job.step)}")
    people.print(f"asked by {visible(job.actor)} at {job.asked_at:%Y-%m-%d %H:%M:%S} UTC")
    if job.finished_at is not None and job.started_at is not None:
        people.print(f"took {(job.finished_at - job.started_at).total_seconds():.1f} s")
    if job.error is not None:
        people.print(f"failed: {visible(job.error)}", soft_wrap=True)
    if job.result is not None:
        people.print("what came of it: --json")


@jobs.command("work")
def work(
    idle: Annotated[float | None, typer.Option(min=0, help="End when none came for so many seconds.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Do those that wait now, and end.")] = False,
    home: Home = None,
    store_url: StoreUrl = None,
) -> None:
    """Do jobs until interrupted. The console starts a worker of its own; this is for one more, or without a console."""
    count = doing.work(Observatory(home or DEFAULT_HOME, store_url), idle_s=idle, once=once)
    notes.print(f"{count} job{'' if count == 1 else 's'} done")
