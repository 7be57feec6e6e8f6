"""`palomar alarms` and `palomar silence ...`: what was raised, how detectors fare, and what is not called about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from palomar.app.cli.acting import Actor, store_there, who
from palomar.app.cli.output import Home, Json, StoreUrl, people, print_json, print_table, table
from palomar.app.visible import visible
from palomar.data.errors import StoreError
from palomar.data.store import Store
from palomar.data.store.records import Silence
from palomar.detectors.incidents import end_of

if TYPE_CHECKING:
    from palomar.app.alarms import DetectorRow, Listed, SilenceView

NOTHING_THERE = 3
NO_RUN = "there is no run yet, and so no alarm"

State = Literal["not-resolved", "open", "acknowledged", "mitigated", "resolved", "accepted", "regressed", "any"]
Severity = Literal["any", "blocks", "holds"]
RunId = Annotated[str | None, typer.Option("--run", help="Id of the run; without: the newest.")]
Reason = Annotated[str, typer.Option(help="Why.")]

commands = typer.Typer(help="Silences: what opens no incident for a while. They always end.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("alarms")(alarms)
    app.add_typer(commands, name="silence")


def alarms(
    state: Annotated[State, typer.Option(help="Only in this state.")] = "not-resolved",
    severity: Annotated[Severity, typer.Option(help="Only those that block, or that hold a cycle back.")] = "any",
    detector: Annotated[str | None, typer.Option(help="Only those in which this detector spoke.")] = None,
    detectors: Annotated[bool, typer.Option("--detectors", help="Print how detectors fare instead.")] = False,
    run: RunId = None,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """List alarms by detector and slice family. Exits with 0 also when there are some, and with 3 without a run."""
    from palomar.app.alarms import ANY, alarm_list, current_silences, detector_table, narrowed

    store = store_there(home, store_url, as_json)
    run_id = _run(store, run, as_json)
    rows = narrowed(alarm_list(store, run_id), state.replace("-", " "), severity, detector or ANY)
    fares = detector_table(store, run_id)
    silent = current_silences(store, run_id)
    if as_json:
        print_json(
            {
                "run": run_id,
                "alarms": [asdict(row.incident) | {"detectors": row.detectors} for row in rows],
                "detectors": [asdict(row) for row in fares],
                "silences": [asdict(each) for each in silent],
            }
        )
        return
    if detectors:
        _print_detectors(fares)
    else:
        _print_alarms(rows, state)
    if silent:
        people.print()
        for each in silent:
            people.print(f"silence {each.number}: {visible(_said(each))}", soft_wrap=True)


@commands.command("list")
def list_command(
    every: Annotated[bool, typer.Option("--all", help="Those that are over too.")] = False,
    run: RunId = None,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """List silences in force, and how many findings opened no incident by each."""
    from palomar.app.alarms import silences

    store = store_there(home, store_url, as_json)
    found = [each for each in silences(store, _run(store, run, as_json)) if every or each.in_force]
    if as_json:
        said = [
            asdict(each.silence) | {"in_force": each.in_force, "held": [asdict(one) for one in each.held]}
            for each in found
        ]
        print_json({"silences": said})
    elif found:
        columns = ("", "detector", "statistic", "slice", "end", "by", "reason", "held back", "state")
        print_table(table(columns, [_row(each) for each in found]))
    else:
        people.print("no silence" if every else "nothing is silenced")


@commands.command("add")
def add(
    detector: Annotated[str, typer.Argument(help="Detector, as `palomar alarms --detectors` names it.")],
    reason: Reason,
    statistic: Annotated[str | None, typer.Option(help="Only its findings on this statistic.")] = None,
    slice_: Annotated[str | None, typer.Option("--slice", help="Only its findings in this slice.")] = None,
    until_cycle: Annotated[int | None, typer.Option(help="Last cycle that it covers.")] = None,
    until: Annotated[
        datetime | None,
        typer.Option(formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M"], help="Cycles that begin later are not covered. UTC."),
    ] = None,
    actor: Actor = None,
    run: RunId = None,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Silence a detector up to a cycle or a time. Its findings are kept, and the gate still sees what blocks."""
    from palomar.app.alarms import silence

    store = store_there(home, store_url, as_json)
    made = silence(
        store,
        _run(store, run, as_json),
        detector,
        actor=who(actor),
        reason=reason,
        statistic=statistic,
        slice_=slice_,
        until_cycle=until_cycle,
        until=None if until is None else until.replace(tzinfo=UTC),
    )
    if as_json:
        print_json(asdict(made))
    else:
        people.print(f"silence {made.number}: {visible(_said(made))}", soft_wrap=True)


@commands.command("end")
def end(
    number: Annotated[int, typer.Argument(help="Number of the silence.")],
    reason: Reason,
    actor: Actor = None,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """End a silence now. What the newest check found and it held back opens incidents at once."""
    from palomar.app.alarms import end_silence

    store = store_there(home, store_url, as_json)
    ended, opened = end_silence(store, number, actor=who(actor), reason=reason)
    if as_json:
        print_json({"silence": asdict(ended), "incidents": [asdict(each) for each in opened]})
        return
    people.print(f"silence {number} is over, ended by {visible(ended.ended_by or '')}", soft_wrap=True)
    for each in opened:
        people.print(f"incident {each.number}: {each.state}, {visible(each.title)}", soft_wrap=True)


def _run(store: Store, run: str | None, as_json: bool) -> str:
    """The run that is asked about. Exits with `NOTHING_THERE` where there is none; StoreError for an unknown one."""
    runs = store.runs.read()
    if run is not None:
        if run not in {each.run_id for each in runs}:
            raise StoreError(store.where, f"there is no run {run!r}")
        return run
    if not runs:
        if as_json:
            print_json({"why": NO_RUN})
        else:
            people.print(NO_RUN)
        raise typer.Exit(NOTHING_THERE)
    return runs[0].run_id


def _print_alarms(listed: Sequence[Listed], state: str) -> None:
    from palomar.app.alarms import grouped

    if not listed:
        people.print(f"no alarm ({state})")
        return
    for group in grouped(listed):
        about = "all kinds of tasks" if group.family == "all" else group.family
        title = visible(f"{group.detector}, {about}")
        columns = ("", "state", "severity", "what", "cycles", "owner", "seen by")
        body = [
            (
                each.incident.number,
                each.incident.resolution or each.incident.state,
                "blocks" if each.incident.blocks else "holds",
                visible(each.incident.title),
                f"{each.incident.opened_cycle}..{each.incident.seen_cycle}",
                each.incident.assignee and visible(each.incident.assignee),
                visible(", ".join(each.detectors)),
            )
            for each in group.members
        ]
        print_table(table(columns, body, title=title))


def _print_detectors(fares: Sequence[DetectorRow]) -> None:
    columns = ("detector", "alarms", "per 100 cycles", "precision", "from", "to", "rated", "last evaluated",
               "not assessed", "silenced")  # fmt: skip
    body = [
        (
            visible(row.detector),
            row.alarms,
            row.per_hundred,
            *_interval(row),
            0 if row.precision is None else row.precision.rated,
            f"cycle {row.evaluated}" if row.evaluated is not None else "never could" if row.checks else "never asked",
            len(row.unassessed),
            "yes" if row.silences else "",
        )
        for row in fares
    ]
    print_table(table(columns, body))


def _interval(row: DetectorRow) -> tuple[float | None, float | None, float | None]:
    told = row.precision
    return (None, None, None) if told is None else (told.value, told.low, told.high)


def _said(silence: Silence) -> str:
    what = "".join(f" {word} {name}" for word, name in (("on", silence.statistic), ("in", silence.slice)) if name)
    return f"{silence.detector}{what}, {end_of(silence)}, by {silence.actor}: {' '.join(silence.reason.split())}"


def _row(each: SilenceView) -> tuple[object, ...]:
    silence = each.silence
    state = "in force" if each.in_force else "over" if silence.ended_by is None else f"ended by {silence.ended_by}"
    words = (silence.detector, silence.statistic or "any", silence.slice or "any")
    return (
        silence.number,
        *map(visible, words),
        end_of(silence).removeprefix("until "),
        visible(silence.actor),
        visible(" ".join(silence.reason.split())),
        len(each.held),
        visible(state),
    )
