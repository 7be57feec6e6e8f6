"""Silences, on SQLite and on a real PostgreSQL: always with a reason and an end, and told in the audit log."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from palomar.data.errors import StoreError
from palomar.data.findings import Finding
from palomar.data.store import Store
from palomar.data.store.incidents import Arrival
from palomar.data.store.records import Silence
from palomar.data.store.silences import MOST_CYCLES, MOST_DAYS, in_force

STRANGE = "wéil \x00 \ud800"
NOW = datetime.now(UTC)


def added(store: Store, detector: str = "drift", **more: Any) -> Silence:
    said: dict[str, Any] = {"actor": "ada", "reason": "a known move", "until_cycle": 5, **more}
    return store.silences.add("demo", detector, **said)


def log(store: Store, number: int) -> list[tuple[str, str, str]]:
    return [(each.actor, each.action, each.reason) for each in store.audit_log.read(subject=f"silence:{number}")]


def test_silence_is_read_as_it_was_made(store: Store) -> None:
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(days=2)
    one = added(store, STRANGE, statistic="edit_rate", slice_="language=go", reason=STRANGE)
    other = added(store, until_cycle=None, until=until)
    assert store.silences.read() == store.silences.read("demo") == [one, other]
    assert store.silences.read("else") == []
    assert (one.number, one.detector, one.statistic, one.slice, one.reason, one.until_cycle, one.until) == (
        1, STRANGE, "edit_rate", "language=go", STRANGE, 5, None,
    )  # fmt: skip
    assert (other.number, other.statistic, other.slice, other.until_cycle, other.until) == (2, None, None, None, until)
    assert log(store, 1) == [("ada", "silence.add", STRANGE)]
    assert store.audit_log.verify()[1] is None


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"reason": " "}, "needs a detector and a reason"),
        ({"detector": ""}, "needs a detector and a reason"),
        ({"until_cycle": None}, "needs an end"),
        ({"until": NOW + timedelta(days=1)}, "needs an end"),
        ({"until_cycle": 2}, "cycle 2 is over already"),
        ({"until_cycle": 4 + MOST_CYCLES}, "too far off"),
        ({"until_cycle": None, "until": NOW - timedelta(minutes=1)}, "over already"),
        ({"until_cycle": None, "until": NOW + timedelta(days=MOST_DAYS, hours=1)}, "too far off"),
    ],
)
def test_silence_without_reason_or_a_near_end_is_refused(store: Store, more: Mapping[str, Any], why: str) -> None:
    with pytest.raises(StoreError, match=why):
        added(store, **more)
    assert store.silences.read() == []
    assert store.audit_log.head().entries == 0


def test_the_farthest_end_that_is_allowed_is(store: Store) -> None:
    assert added(store, until_cycle=3 + MOST_CYCLES).until_cycle == 3 + MOST_CYCLES
    assert added(store, "other", until_cycle=3).until_cycle == 3


def test_run_that_is_not_there_is_refused(store: Store) -> None:
    with pytest.raises(StoreError):
        store.silences.add("nobody", "drift", actor="ada", reason="x", until_cycle=5)


def test_same_request_makes_one_and_the_same_silence_is_not_made_twice(store: Store) -> None:
    first = added(store, token="t1")
    assert added(store, token="t1") == first
    with pytest.raises(StoreError, match="silence 1 says so already"):
        added(store, until_cycle=9)
    assert added(store, statistic="edit_rate").number == 2
    with pytest.raises(StoreError, match=r"was used for silence\.add"):
        added(store, token="t1", actor="bob")
    store.silences.end(1, actor="ada", reason="no need")
    assert added(store, until_cycle=9).number == 3


def test_silence_is_ended_once_and_by_whom_is_told(store: Store) -> None:
    added(store)
    ended = store.silences.end(1, actor="bob", reason="seen enough")
    assert (ended.ended_by, ended.ended_reason) == ("bob", "seen enough")
    assert ended.ended_at is not None
    assert store.silences.end(1, actor="ada", reason="again") == ended
    assert log(store, 1) == [("ada", "silence.add", "a known move"), ("bob", "silence.end", "seen enough")]
    with pytest.raises(StoreError, match="there is no silence 7"):
        store.silences.end(7, actor="ada", reason="x")
    with pytest.raises(StoreError, match="needs a reason"):
        store.silences.end(1, actor="ada", reason="")


def test_silence_that_is_over_cannot_be_ended(store: Store) -> None:
    added(store, until_cycle=4)
    store.cycles.start("demo", 4, checkpoint_id="base")
    store.cycles.start("demo", 5, checkpoint_id="base")
    with pytest.raises(StoreError, match="is over already"):
        store.silences.end(1, actor="ada", reason="x")


def test_force_ends_with_its_cycle_or_its_time(store: Store) -> None:
    by_cycle = added(store, until_cycle=5)
    assert [in_force(by_cycle, newest, NOW) for newest in (None, 5, 6)] == [True, True, False]
    end = datetime.now(UTC) + timedelta(days=1)
    by_time = added(store, "other", until_cycle=None, until=end)
    assert [in_force(by_time, 99, at) for at in (end, end + timedelta(seconds=1))] == [True, False]


def test_what_is_held_back_is_noted_once_and_never_changed(store: Store) -> None:
    added(store)
    store.findings.write("demo", 2, [Finding("drift", "blocks", "asks more"), Finding("x", "warns", STRANGE)])
    found = store.findings.read("demo", 2)
    arrival = Arrival(None, "withhold", "2 findings", "t", ("asking",), "all", True, True,
                      tuple((each, "because") for each in found), silence=1)  # fmt: skip
    for _ in range(2):
        assert store.incidents.arrive("demo", 2, lambda *_: [arrival]) == []
    held = store.silences.silenced([1])
    assert {(each.finding_id, each.cycle, each.blocks, each.sentence) for each in held} == {
        (found[0].finding_id, 2, True, "asks more"),
        (found[1].finding_id, 2, False, STRANGE),
    }
    assert store.silences.silenced([]) == store.silences.silenced([2]) == []
    assert store.incidents.read() == []
    assert log(store, 1)[1:] == [("palomar", "silence.withhold", "2 findings")]
    with pytest.raises(StoreError, match="rows of silenced_findings are never changed"):
        store._database.write(lambda connection: connection.execute(text("DELETE FROM silenced_findings")))
