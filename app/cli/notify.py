"""`palomar notify`: what other systems were told, and what still waits."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from palomar.app.cli.output import Home, Json, StoreUrl, notes, people, print_json, print_table, table
from palomar.app.settings import DEFAULT_HOME, Settings, read_settings
from palomar.app.visible import visible
from palomar.data.errors import ConfigError, StoreError
from palomar.data.store import Store

if TYPE_CHECKING:
    from palomar.app.notify.sending import Delivered

SENT, GIVEN_UP, WAITING = 0, 1, 3
LOOK_EVERY_S = 5.0

notify = typer.Typer(help="Tell other systems of decisions and incidents (docs/notify.md).", no_args_is_help=True)
Config = Annotated[Path, typer.Option("--config", help="Settings, with the key notify.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(notify, name="notify")


@notify.command("send")
def send(
    config: Config = Path("palomar.yaml"),
    wait: Annotated[float, typer.Option(min=0, help="Seconds to go on while something waits.")] = 0.0,
    follow: Annotated[bool, typer.Option("--follow", help="Go on for ever: for a home that no run tells of.")] = False,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Send what is due. A run does it itself; this is for what people and the API do while none goes on.

    Exits with 3 where something still waits, with 1 where something was given up.
    """
    from palomar.app.notify import sending

    settings = read_settings(config)
    place = home or DEFAULT_HOME
    chosen = sending.ways(settings.notify, place)
    if not chosen:
        raise ConfigError(str(config), None, None, "has no channel under notify")
    with _store(settings, place, store_url) as store:
        ends = time.monotonic() + wait
        sending.begin(store, settings.name, chosen)
        while True:
            done = sending.deliver(store, settings.name, chosen)
            if not follow and (not done.waiting or time.monotonic() >= ends):
                break
            time.sleep(LOOK_EVERY_S if follow else min(1.0, max(0.0, ends - time.monotonic())))
        given_up = len(store.messages.read(settings.name, state="given_up"))
    _say(done, given_up, as_json)
    raise typer.Exit(WAITING if done.waiting else GIVEN_UP if given_up else SENT)


@notify.command("list")
def list_(
    newest: Annotated[int, typer.Option(min=1, help="Only the newest so many.")] = 50,
    home: Home = None,
    store_url: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """List messages: what arrived, what waits for which attempt, what was given up and why."""
    place = home or DEFAULT_HOME
    with _store(None, place, store_url) as store:
        found = [each for run in store.runs.read() for each in store.messages.read(run.run_id, newest=newest)]
    if as_json:
        print_json([{**vars(each), "body": each.body} for each in found])
        return
    rows: list[tuple[Any, ...]] = [
        (
            f"{each.run_id}/{each.number}",
            each.channel,
            each.event,
            each.state.replace("_", " "),
            each.attempts,
            f"{each.ended_at or each.next_at:%F %T} UTC",
            visible(each.problem or ""),
        )
        for each in found
    ]
    if rows:
        columns = ("message", "channel", "event", "state", "attempts", "ended, or next attempt", "problem")
        print_table(table(columns, rows))
    else:
        people.print("no message was made")


@notify.command("again")
def again(
    channel: Annotated[str | None, typer.Argument(help="Only of this channel.")] = None,
    home: Home = None,
    store_url: StoreUrl = None,
) -> None:
    """Have what was given up tried again, by the run or by `palomar notify send`."""
    with _store(None, home or DEFAULT_HOME, store_url) as store:
        number = sum(store.messages.again(run.run_id, channel) for run in store.runs.read())
    people.print(f"{number} messages will be tried again")


def _store(settings: Settings | None, place: Path, store_url: str | None) -> Store:
    url = store_url or (None if settings is None else settings.store)
    if url is None and not (place / "palomar.db").exists():
        raise StoreError(str(place), "there is no store here")
    return Store.open(url, place)


def _say(done: Delivered, given_up: int, as_json: bool) -> None:
    if as_json:
        print_json({"sent": done.sent, "waiting": done.waiting, "given_up": given_up})
        return
    people.print(f"{done.sent} sent, {done.waiting} waiting, {given_up} given up")
    if given_up:
        notes.print("palomar notify list says why; palomar notify again has them tried again")
