"""Messages to other systems: nothing is lost, nothing is made twice, and one process sends at a time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import update

from palomar.data.store import Store, models


def note(store: Store, what: str) -> int:
    return store.audit_log.append(actor="ada", action=what, subject="run:demo", reason="").number


def test_a_channel_begins_at_the_end_of_the_log_and_stays_there(store: Store) -> None:
    note(store, "old")
    first = store.messages.channel("demo", "pager")
    assert first.read_to == store.audit_log.head().entries
    note(store, "new")
    assert store.messages.channel("demo", "pager") == first
    assert store.messages.channel("demo", "other").read_to == first.read_to + 1


def test_two_that_read_the_same_entries_make_each_message_once(store: Store) -> None:
    channel = store.messages.channel("demo", "pager")
    number = note(store, "gate.block")
    assert store.messages.queue(channel, number, [(number, "block", "{}")])
    # Another process had read the same entries before that.
    assert not store.messages.queue(channel, number, [(number, "block", "{}")])
    assert [(each.number, each.state, each.attempts) for each in store.messages.read("demo")] == [
        (number, "waiting", 0)
    ]
    assert store.messages.channel("demo", "pager").read_to == number


def test_a_message_is_taken_by_one_and_comes_back_when_its_time_is_over(store: Store) -> None:
    channel = store.messages.channel("demo", "pager")
    store.messages.queue(channel, channel.read_to + 9, [(5, "hold", "a"), (7, "block", "b")])
    taken = store.messages.take("demo", "pager", for_s=30)
    assert taken is not None
    assert (taken.number, taken.attempts, taken.body) == (5, 1, "a")
    # The first one is being sent: neither it nor what comes after it is anybody else's.
    assert store.messages.take("demo", "pager", for_s=30) is None
    store._database.write(
        lambda connection: connection.execute(
            update(models.Message).values(next_at=datetime.now(UTC) - timedelta(seconds=1))
        )
    )
    again = store.messages.take("demo", "pager", for_s=30)
    assert again is not None
    assert (again.number, again.attempts) == (5, 2)
    store.messages.failed(taken, "late news of the one that died", again_in_s=1e6)
    store.messages.sent(again)
    following = store.messages.take("demo", "pager", for_s=30)
    assert following is not None
    assert following.number == 7
    store.messages.sent(following)
    assert [(each.state, each.problem) for each in store.messages.read("demo")] == [("sent", None)] * 2
    assert store.messages.take("demo", "pager", for_s=30) is None


@pytest.mark.parametrize("again_in_s", [None, 60.0])
def test_what_failed_waits_or_is_given_up_and_can_be_tried_again(store: Store, again_in_s: float | None) -> None:
    channel = store.messages.channel("demo", "pager")
    store.messages.queue(channel, 9, [(8, "block", "{}")])
    taken = store.messages.take("demo", "pager", for_s=30)
    assert taken is not None
    store.messages.failed(taken, "status 404", again_in_s=again_in_s)
    (now,) = store.messages.read("demo")
    assert now.problem == "status 404"
    assert (now.state, now.ended_at is None) == (("given_up", False) if again_in_s is None else ("waiting", True))
    assert store.messages.take("demo", "pager", for_s=30) is None
    assert store.messages.again("demo", "pager") == (again_in_s is None)
    assert (store.messages.take("demo", "pager", for_s=30) is not None) == (again_in_s is None)


def test_what_arrived_is_not_unsaid(store: Store) -> None:
    channel = store.messages.channel("demo", "pager")
    store.messages.queue(channel, 9, [(8, "block", "{}")])
    taken = store.messages.take("demo", "pager", for_s=30)
    assert taken is not None
    store.messages.sent(taken)
    store.messages.failed(taken, "no", again_in_s=None)
    assert [(each.state, each.problem) for each in store.messages.read("demo")] == [("sent", None)]
