"""Tokens of the API: what is kept of them, whose they are, and when they end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from palomar.data.errors import StoreError
from palomar.data.store import Store
from palomar.data.store.tokens import problem_of


def test_a_token_is_known_by_its_secret_alone_and_only_its_hash_is_kept(store: Store) -> None:
    made, secret = store.tokens.create("ci", ["read", "ingest"], days=1, actor="ada", reason="pipeline")
    assert (made.name, made.roles, made.created_by, made.revoked_at) == ("ci", ("ingest", "read"), "ada", None)
    assert store.tokens.of(secret) == made
    assert store.tokens.read() == [made]
    assert problem_of(made) is None
    for wrong in (
        "",
        "pal_",
        secret[:-1] + ("A" if secret[-1] != "A" else "B"),
        secret + "x",
        f"pal_{'0' * 12}_{secret[-43:]}",
    ):
        assert store.tokens.of(wrong) is None
    rows = store._database.read(lambda connection: str(connection.execute(text("SELECT * FROM api_tokens")).all()))
    entry = store.audit_log.read(subject="token:ci")[-1]
    assert (entry.actor, entry.action, entry.reason) == ("ada", "token.create", "pipeline")
    assert secret not in rows + str(entry)
    assert secret[-43:] not in rows + str(entry)


def test_two_tokens_never_share_a_name_not_even_a_revoked_one(store: Store) -> None:
    store.tokens.create("ci", ["read"], days=1, actor="ada")
    store.tokens.revoke("ci", actor="ada")
    with pytest.raises(StoreError, match="take another name"):
        store.tokens.create("ci", ["admin"], days=1, actor="eve")
    assert [each.roles for each in store.tokens.read()] == [("read",)]


@pytest.mark.parametrize(
    ("name", "roles", "days"),
    [("", ["read"], 1), ("a b", ["read"], 1), ("a/../b", ["read"], 1), ("x\n", ["read"], 1), ("a" * 65, ["read"], 1),
     ("ok", [], 1), ("ok", ["root"], 1), ("ok", ["read", "root"], 1), ("ok", ["read"], 0), ("ok", ["read"], -1),
     ("ok", ["read"], 4000), ("ok", ["read"], float("nan"))],
)  # fmt: skip
def test_what_is_no_token_is_refused(store: Store, name: str, roles: list[str], days: float) -> None:
    with pytest.raises(StoreError):
        store.tokens.create(name, roles, days=days, actor="ada")
    assert store.tokens.read() == []
    assert store.audit_log.read(action="token.create") == []


def test_a_token_ends_when_it_is_revoked_or_its_time_is_over(store: Store) -> None:
    made, secret = store.tokens.create("ci", ["read"], days=2, actor="ada")
    now = datetime.now(UTC)
    assert problem_of(made, now + timedelta(days=2, seconds=-60)) is None
    assert problem_of(made, now + timedelta(days=2, seconds=1)) == "expired"
    first = store.tokens.revoke("ci", actor="bob", reason="leaked")
    again = store.tokens.revoke("ci", actor="eve")
    assert first == again == store.tokens.of(secret)
    assert (problem_of(again), again.revoked_by) == ("revoked", "bob")
    assert [entry.actor for entry in store.audit_log.read(action="token.revoke")] == ["bob"]
    with pytest.raises(StoreError, match="no token"):
        store.tokens.revoke("nobody", actor="ada")
