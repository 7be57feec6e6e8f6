"""The audit log, on SQLite and on a real PostgreSQL: what is written stays, and who tampers past the store is found."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text

from palomar.data.errors import StoreError
from palomar.data.store import Store
from palomar.data.store.audit_log import GENESIS, append_entry, entry_hash, parse_head
from palomar.data.store.records import AuditEntry, AuditHead

ENTRIES = 6


def append(store: Store, number: int = 0, **said: Any) -> AuditEntry:
    given = {"actor": "ada", "action": "incident.comment", "subject": f"incident:{number}", "reason": "because", **said}
    return store.audit_log.append(**given)


@pytest.fixture
def log(store: Store) -> Store:
    for number in range(1, ENTRIES + 1):
        append(store, number, detail={"n": number})
    return store


def tamper(store: Store, *statements: str) -> None:
    """Past the store and past the triggers, as someone with the rights of the database's owner would."""

    def work(connection: Connection) -> None:
        if connection.dialect.name == "sqlite":
            for name in ("update", "delete", "replace"):
                connection.execute(text(f"DROP TRIGGER IF EXISTS audit_log_refuse_{name}"))
        else:
            connection.execute(text("DROP TRIGGER IF EXISTS audit_log_refuse_change ON audit_log"))
        for statement in statements:
            assert connection.execute(text(statement)).rowcount, "nothing was tampered with"

    store._database.write(work)


def rehash(store: Store, from_number: int, *, head: bool) -> None:
    """Writes all hashes from an entry on anew, as a forger who knows how they are made."""

    def work(connection: Connection) -> None:
        columns = "number, at, actor, action, subject, reason, CAST(detail AS TEXT) AS detail, token, previous, hash"
        rows = connection.execute(text(f"SELECT {columns} FROM audit_log ORDER BY number")).mappings().all()
        last = GENESIS
        for row in rows:
            if row["number"] >= from_number:
                new = {**row, "previous": last}
                new["hash"] = entry_hash(new)
                said = "UPDATE audit_log SET previous = :previous, hash = :hash WHERE number = :number"
                connection.execute(text(said), {name: new[name] for name in ("previous", "hash", "number")})
                last = new["hash"]
            else:
                last = row["hash"]
        if head:
            said = "UPDATE audit_log_head SET entries = :entries, hash = :hash"
            connection.execute(text(said), {"entries": len(rows), "hash": last})

    store._database.write(work)


def test_what_is_written_is_what_is_read(store: Store) -> None:
    strange = "wéil \x00 \ud800 \ufffe0041"
    written = append(store, 3, reason=strange, detail={"was": [1, 2.5, None], strange: {"deep": strange}})
    assert store.audit_log.read() == [written]
    assert written.reason == strange
    assert written.detail == {"was": [1, 2.5, None], strange: {"deep": strange}}
    assert abs(datetime.now(UTC) - datetime.fromisoformat(written.at)) < timedelta(minutes=1)
    assert store.audit_log.verify() == (AuditHead(1, written.hash), None)


def test_entries_are_read_by_subject_actor_action_and_newest(store: Store) -> None:
    append(store, 1)
    append(store, 2, actor="bob")
    append(store, 1, action="incident.resolve")
    append(store, 1, action="incidents_.x")
    append(store, 9, action="decision.override")

    def numbers(**asked: Any) -> list[int]:
        return [entry.number for entry in store.audit_log.read(**asked)]

    assert numbers() == [1, 2, 3, 4, 5]
    assert numbers(subject="incident:1") == [1, 3, 4]
    assert numbers(actor="bob") == [2]
    assert numbers(action="incident.resolve") == [3]
    assert numbers(action="incident.") == [1, 2, 3]
    assert numbers(newest=2) == [4, 5]
    assert numbers(subject="incident:1", newest=1) == [4]
    assert numbers(subject="nothing") == []


def test_hash_is_what_the_docs_say(store: Store) -> None:
    """The recipe of docs/incidents.md, word for word: anyone can check an exported log without Palomar."""
    import hashlib

    first, second = append(store, 1, detail={"b": 1, "a": "é"}), append(store, 2)
    assert (first.previous, second.previous) == (GENESIS, first.hash)
    for entry in (first, second):
        content = {name: value for name, value in vars(entry).items() if name != "hash"}
        content["detail"] = json.dumps(entry.detail, ensure_ascii=False, sort_keys=True)
        said = json.dumps(content, sort_keys=True, separators=(",", ":"))
        assert entry.hash == hashlib.sha256(said.encode()).hexdigest()


@pytest.mark.parametrize("said", [{"actor": " "}, {"action": ""}, {"detail": {"x": float("nan")}}])
def test_entry_that_says_nothing_is_refused_and_leaves_no_trace(log: Store, said: dict[str, Any]) -> None:
    with pytest.raises(StoreError):
        append(log, **said)
    head, problem = log.audit_log.verify()
    assert (head.entries, problem) == (ENTRIES, None)


def test_request_that_is_sent_twice_leaves_one_entry(store: Store) -> None:
    first = append(store, 1, token="r1", detail={"x": (1, 2)})
    append(store, 2)
    assert append(store, 1, token="r1", detail={"x": [1, 2]}) == first
    assert store.audit_log.head().entries == 2
    with pytest.raises(StoreError, match=r"token 'r1' was used for incident.comment of incident:1"):
        append(store, 2, token="r1", detail={"x": [1, 2]})
    assert store.audit_log.verify()[1] is None


def test_entry_falls_with_the_transaction_that_it_belongs_to(log: Store) -> None:
    def work(connection: Connection) -> None:
        append_entry(connection, log._database, actor="ada", action="a.b", subject="s", reason="")
        raise log._database.refuse("no")

    with pytest.raises(StoreError, match="no"):
        log._database.write(work)
    assert log.audit_log.verify() == (log.audit_log.head(), None)
    assert log.audit_log.head().entries == ENTRIES


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit_log SET actor = 'eve' WHERE number = 2",
        "DELETE FROM audit_log WHERE number = 2",
        "DELETE FROM audit_log",
    ],
)
def test_database_itself_refuses_changes(log: Store, statement: str) -> None:
    with pytest.raises(StoreError, match="rows of audit_log are never changed"):
        log._database.write(lambda connection: connection.execute(text(statement)))
    assert log.audit_log.verify()[1] is None


def test_database_itself_refuses_to_put_an_entry_in_the_place_of_another(log: Store) -> None:
    names = "number, at, actor, action, subject, reason, detail, token, previous, hash"
    values = "2, '2026', 'eve', 'a', 's', 'r', '{}', 't', 'p', 'h'"
    sqlite = log._database.file is not None
    statement = f"INSERT INTO audit_log ({names}) VALUES ({values})"
    statement = statement.replace("INSERT", "INSERT OR REPLACE") if sqlite else statement
    statement += "" if sqlite else " ON CONFLICT (number) DO UPDATE SET actor = 'eve'"
    with pytest.raises(StoreError, match="rows of audit_log are never changed"):
        log._database.write(lambda connection: connection.execute(text(statement)))
    assert log.audit_log.verify()[1] is None


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("at", "'2020-01-01T00:00:00.000000+00:00'"),
        ("actor", "'eve'"),
        ("action", "'incident.resolve'"),
        ("subject", "'incident:77'"),
        ("reason", "''"),
        ("detail", """'{"n": 7}'"""),
        ("detail", """'{"n":  4}'"""),  # the same value, other text
        ("token", "'another'"),
        ("previous", f"'{GENESIS}'"),
        ("hash", f"'{GENESIS}'"),
    ],
)
def test_changed_entry_is_found(log: Store, column: str, value: str) -> None:
    tamper(log, f"UPDATE audit_log SET {column} = {value} WHERE number = 4")
    head, problem = log.audit_log.verify()
    assert problem is not None
    assert (head.entries, problem.number, problem.kind) == (3, 4, "changed")


@pytest.mark.parametrize(
    ("gone", "first"), [("= 1", 1), ("= 3", 3), ("IN (3, 4)", 3), (f"= {ENTRIES}", ENTRIES), ("> 2", 3), ("> 0", 1)]
)
def test_removed_entries_are_found(log: Store, gone: str, first: int) -> None:
    tamper(log, f"DELETE FROM audit_log WHERE number {gone}")
    _, problem = log.audit_log.verify()
    assert problem is not None
    assert (problem.number, problem.kind) == (first, "missing")


def test_gap_that_was_closed_up_is_found(log: Store) -> None:
    moved = [f"UPDATE audit_log SET number = {n - 1} WHERE number = {n}" for n in range(4, ENTRIES + 1)]
    tamper(log, "DELETE FROM audit_log WHERE number = 3", *moved)
    _, problem = log.audit_log.verify()
    assert problem is not None
    assert (problem.number, problem.kind) == (3, "changed")


def test_entries_that_changed_places_are_found(log: Store) -> None:
    swap = [f"UPDATE audit_log SET number = {b} WHERE number = {a}" for a, b in ((2, -1), (5, 2), (-1, 5))]
    tamper(log, *swap)
    _, problem = log.audit_log.verify()
    assert problem is not None
    assert (problem.number, problem.kind) == (2, "changed")


def test_changed_entry_with_a_right_hash_does_not_fit_its_follower(log: Store) -> None:
    tamper(log, "UPDATE audit_log SET actor = 'eve' WHERE number = 4")

    def give_hash(connection: Connection) -> None:
        columns = "number, at, actor, action, subject, reason, CAST(detail AS TEXT) AS detail, token, previous"
        row = connection.execute(text(f"SELECT {columns} FROM audit_log WHERE number = 4")).mappings().one()
        said = text("UPDATE audit_log SET hash = :hash WHERE number = 4")
        connection.execute(said, {"hash": entry_hash(row)})

    log._database.write(give_hash)
    _, problem = log.audit_log.verify()
    assert problem is not None
    assert (problem.number, problem.kind) == (5, "moved")


def test_log_that_was_rewritten_to_its_end_disagrees_with_its_head(log: Store) -> None:
    tamper(log, "UPDATE audit_log SET actor = 'eve' WHERE number = 4")
    rehash(log, 4, head=False)
    _, problem = log.audit_log.verify()
    assert problem is not None
    assert (problem.number, problem.kind) == (ENTRIES, "head")


def test_entry_that_was_added_past_the_head_is_found(log: Store) -> None:
    copied = "SELECT 7, at, actor, action, subject, reason, detail, 'other', hash, 'x' FROM audit_log WHERE number = 6"
    tamper(log, f"INSERT INTO audit_log {copied}")
    rehash(log, 7, head=False)
    _, problem = log.audit_log.verify()
    assert problem is not None
    assert (problem.number, problem.kind) == (7, "head")


@pytest.mark.parametrize("change", ["UPDATE audit_log_head SET hash = 'x'", "DELETE FROM audit_log_head"])
def test_damaged_head_is_found(log: Store, change: str) -> None:
    tamper(log, change)
    _, problem = log.audit_log.verify()
    assert problem is not None
    assert problem.kind == "head"


def test_log_without_head_takes_no_entries(log: Store) -> None:
    tamper(log, "DELETE FROM audit_log_head")
    for call in (lambda: append(log), log.audit_log.head):
        with pytest.raises(StoreError, match="head of the audit log is gone"):
            call()


@pytest.mark.parametrize("forged", ["rewritten", "cut"])
def test_whole_log_rewritten_with_its_head_is_found_only_by_a_head_that_was_kept_outside(
    log: Store, forged: str
) -> None:
    kept = log.audit_log.head()
    assert log.audit_log.verify(kept)[1] is None
    if forged == "rewritten":
        tamper(log, "UPDATE audit_log SET actor = 'eve' WHERE number = 2")
        rehash(log, 1, head=True)
    else:
        tamper(log, f"DELETE FROM audit_log WHERE number = {ENTRIES}")
        rehash(log, ENTRIES, head=True)
    assert log.audit_log.verify()[1] is None  # what a chain alone cannot show
    _, problem = log.audit_log.verify(kept)
    assert problem is not None
    assert (problem.number, problem.kind) == (ENTRIES, "pinned")


def test_log_that_grew_leads_through_an_older_head(log: Store) -> None:
    kept = [AuditHead(0, GENESIS), log.audit_log.head()]
    append(log)
    assert [log.audit_log.verify(head)[1] for head in kept] == [None, None]
    for wrong in (AuditHead(0, "f" * 64), AuditHead(3, "f" * 64), AuditHead(99, "f" * 64)):
        _, problem = log.audit_log.verify(wrong)
        assert problem is not None, wrong
        assert problem.kind == "pinned"


def test_head_is_read_as_it_is_printed(log: Store) -> None:
    head = log.audit_log.head()
    assert parse_head(f" {head}\n") == head
    assert [parse_head(words) for words in ("", "3", "3:xyz", "-1:" + "0" * 64, "1:" + "0" * 63)] == [None] * 5


def test_value_that_is_no_text_is_found_and_not_stumbled_over(tmp_path: Path) -> None:
    with Store.open(None, tmp_path) as store:
        append(store)
        append(store)
        tamper(store, "UPDATE audit_log SET reason = x'00ff' WHERE number = 1")
        _, problem = store.audit_log.verify()
    assert problem is not None
    assert (problem.number, problem.kind) == (1, "changed")


def test_log_of_more_entries_than_are_read_at_once_is_verified_to_its_end(
    log: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("palomar.data.store.audit_log._BATCH", 2)
    assert log.audit_log.verify() == (log.audit_log.head(), None)
    tamper(log, f"UPDATE audit_log SET actor = 'eve' WHERE number = {ENTRIES}")
    assert log.audit_log.verify()[1] is not None


def test_processes_that_append_at_once_make_one_chain(
    store: Store, url: str, start_worker: Callable[..., subprocess.Popen[str]]
) -> None:
    workers = [start_worker("append_much", url, str(number), "20") for number in range(3)]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    for worker in workers:
        worker.communicate(timeout=120)
        assert worker.returncode == 0
    head, problem = store.audit_log.verify()
    assert (head.entries, problem) == (60 + 20, None)  # of its own, and the 20 requests that all of them send
    told = [(entry.actor, entry.reason) for entry in store.audit_log.read()]
    assert sorted(told) == sorted(
        [(f"w{w}", str(n)) for w in range(3) for n in range(20)] + [("all", str(n)) for n in range(20)]
    )


def test_a_page_of_entries_is_read_and_counted_by_the_same_filters(store: Store) -> None:
    for number in range(10):
        append(store, number % 3, actor=("ada", "bob")[number % 2], action=f"incident.{'ack' if number < 5 else 'act'}")
    append(store, action="incidents_are_another")
    read, count = store.audit_log.read, store.audit_log.count
    assert [entry.number for entry in read(newest=3, skip=2)] == [7, 8, 9]
    assert [entry.number for entry in read(actor="bob", newest=2, skip=1)] == [6, 8]
    assert read(skip=11) == []
    assert len(read(skip=1)) == 10
    for given in ({}, {"actor": "bob"}, {"action": "incident."}, {"action": "incident.ack"}, {"subject": "incident:1"}):
        assert count(**given) == len(read(**given))
    assert count(action="incident.") == 10
    assert store.audit_log.names() == (("ada", "bob"), ("incident.ack", "incident.act", "incidents_are_another"))
    assert store.audit_log.subjects("incident:", 2) == ["incident:0", "incident:1"]
    assert store.audit_log.subjects("incident:%", 2) == []
