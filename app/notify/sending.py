"""From the audit log to other systems: makes the messages of each channel, and sends those that are due.

A channel that fails never stops what goes on here: its messages wait, longer after each attempt, and are given up after
`MOST_ATTEMPTS`, or at once where the receiver says that no other attempt would do.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from palomar.app.notify import events, web
from palomar.app.notify.config import Channel, MlflowChannel, SlackChannel, url_of, value_of
from palomar.app.notify.web import Failed
from palomar.data.store import Store
from palomar.data.store.records import Message

MOST_ATTEMPTS = 12
FIRST_WAIT_S = 5.0
LONGEST_WAIT_S = 3600.0
TAKEN_FOR_S = 120.0
"""How long a message is one process's own; far longer than an attempt may take."""
BUDGET_S = 15.0
"""Time after which no further message is begun in one go, so that a slow receiver costs a cycle seconds at most."""

_log = logging.getLogger(__name__)


class Sender(Protocol):
    """Brings one message to one other system."""

    def send(self, message: Message) -> None:
        """Returns once it has arrived. Raises Failed."""
        ...


@dataclass(frozen=True)
class Way:
    """A channel that can be used."""

    channel: Channel
    sender: Sender


@dataclass(frozen=True)
class Delivered:
    """What came of one go."""

    sent: int = 0
    waiting: int = 0
    given_up: int = 0
    """In this go."""


def ways(channels: Sequence[Channel], home: Path, environment: Mapping[str, str] | None = None) -> list[Way]:
    """The channels with what they need from the environment. Raises ConfigError where something is missing."""
    given = os.environ if environment is None else environment
    return [Way(each, _sender(each, home, given)) for each in channels]


def _sender(channel: Channel, home: Path, environment: Mapping[str, str]) -> Sender:
    if isinstance(channel, MlflowChannel):
        from palomar.app.notify.mlflow import Registry

        return Registry(channel, value_of(environment, channel, channel.uri_env), home)
    url = url_of(environment, channel, channel.url_env)
    if isinstance(channel, SlackChannel):
        return web.Slack(url)
    secret = None if channel.secret_env is None else value_of(environment, channel, channel.secret_env)
    return web.Webhook(url, secret)


def begin(store: Store, run_id: str, chosen: Sequence[Way]) -> None:
    """Has new channels begin here: what was before is not told."""
    for way in chosen:
        store.messages.channel(run_id, way.channel.name)


def deliver(store: Store, run_id: str, chosen: Sequence[Way], *, budget_s: float = BUDGET_S) -> Delivered:
    """Makes new messages and sends what is due. Calling it again, from anywhere, sends nothing that has arrived."""
    ends = time.monotonic() + budget_s
    sent = given_up = 0
    for way in chosen:
        _queue(store, run_id, way)
        while time.monotonic() < ends:
            message = store.messages.take(run_id, way.channel.name, for_s=TAKEN_FOR_S)
            if message is None:
                break
            outcome = _attempt(store, way, message)
            sent += outcome == "sent"
            given_up += outcome == "given_up"
            if outcome == "waits":
                break
    names = {way.channel.name for way in chosen}
    waiting = sum(each.channel in names for each in store.messages.read(run_id, state="waiting"))
    return Delivered(sent, waiting, given_up)


def _queue(store: Store, run_id: str, way: Way) -> None:
    while True:
        channel = store.messages.channel(run_id, way.channel.name)
        newest, happened = events.since(store, run_id, channel.read_to)
        if newest == channel.read_to:
            return
        made = [(each.number, each.event, each.body) for each in happened if each.event in way.channel.events]
        if store.messages.queue(channel, newest, made):
            return


def _attempt(store: Store, way: Way, message: Message) -> str:
    name = way.channel.name
    try:
        way.sender.send(message)
    except Failed as exc:
        last = not exc.worth_another or message.attempts >= MOST_ATTEMPTS
        wait = None if last else max(wait_s(message.attempts), exc.after_s or 0.0)
        store.messages.failed(message, exc.problem, again_in_s=wait)
        _log.warning(
            "notify.%s: message %s/%d, attempt %d: %s; %s",
            name,
            message.run_id,
            message.number,
            message.attempts,
            exc.problem,
            "given up" if wait is None else f"again in {wait:.0f} s",
        )
        return "given_up" if last else "waits"
    store.messages.sent(message)
    return "sent"


def wait_s(attempts: int) -> float:
    """Seconds until the next attempt, after so many."""
    return min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** (attempts - 1))
