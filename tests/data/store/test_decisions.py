"""Decisions that are taken again and overrides that two people make, on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from palomar.data.errors import StoreError
from palomar.data.store import Store, decisions, migrate
from palomar.data.store.records import Decision


def candidate(store: Store, name: str = "c1") -> None:
    store.checkpoints.add("demo", name, cycle=1, parent_id="base", path=name, sha256=name)


def take(store: Store, *, after: int = 0, name: str = "c1", **change: Any) -> Decision:
    given: dict[str, Any] = {
        "cycle": 1,
        "verdict": "hold",
        "kind": None,
        "reasons": ["not_shown:solved"],
        "sentence": "not shown",
        "evidence": {"checks": []},
        "inputs": {"candidate": name},
        "policy": "demo-1",
        "policy_text": "name: demo",
        "expires_at": datetime.now(UTC) + timedelta(hours=5),
    }
    return store.decisions.take("demo", name, after=after, **{**given, **change})


def test_a_decision_is_kept_whole_and_logged(store: Store) -> None:
    candidate(store)
    made = take(store, actor="ada")
    assert (made.decision_id, made.sequence, made.supersedes) == ("demo:1", 1, None)
    assert store.decisions.get("demo", "c1") == store.decisions.find("demo:1") == made
    assert made.inputs == {"candidate": "c1"}
    (entry,) = store.audit_log.read(subject="candidate:c1")
    assert (entry.actor, entry.action, entry.reason) == ("ada", "gate.hold", "not_shown:solved")


def test_of_two_that_decide_at_once_the_first_stands(store: Store) -> None:
    candidate(store)
    seen = store.decisions.highest("demo", "c1")
    first = take(store, after=seen)
    assert take(store, after=seen, verdict="promote", kind="neutral") == first
    assert store.decisions.history("demo", "c1") == [first]
    assert len(store.audit_log.read(subject="candidate:c1")) == 1


def test_taken_again_the_later_stands_and_names_the_earlier(store: Store) -> None:
    candidate(store)
    candidate(store, "c2")
    first, other = take(store), take(store, name="c2")
    second = take(store, after=first.sequence, verdict="block")
    assert (second.sequence, second.supersedes) == (3, first.decision_id)
    assert store.decisions.get("demo", "c1") == second
    assert store.decisions.history("demo", "c1") == [first, second]
    assert {made.decision_id for made in store.decisions.latest("demo", count=9)} == {"demo:3", other.decision_id}


def test_the_loop_finds_what_it_recorded_before_it_died(store: Store) -> None:
    candidate(store)
    given: dict[str, Any] = {"cycle": 1, "verdict": "promote", "reasons": ["x"], "evidence": {}, "policy": "p"}
    assert store.decisions.record("demo", "c1", **given) == store.decisions.record("demo", "c1", **given)
    assert len(store.decisions.history("demo", "c1")) == 1


def ask(store: Store, **change: Any) -> Any:
    given: dict[str, Any] = {"verdict": "promote", "reason": "the suite was broken", "hours": 24.0, "actor": "ada"}
    return store.overrides.request("demo", "c1", **{**given, **change})


def test_an_override_is_a_decision_of_two_people_that_ends(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    candidate(store)
    held = take(store)
    asked = ask(store)
    assert ask(store) == asked
    assert store.decisions.get("demo", "c1") == held
    made = store.overrides.approve(asked.override_id, actor="bob", approval="seen the log")
    assert (made.verdict, made.kind, made.supersedes) == ("promote", "override", held.decision_id)
    assert store.decisions.get("demo", "c1") == made
    assert store.overrides.approve(asked.override_id, actor="bob", approval="seen the log") == made
    (kept,) = store.overrides.read("demo")
    assert (kept.approved_by, kept.made) == ("bob", made.decision_id)
    said = [entry.action for entry in store.audit_log.read(subject="candidate:c1")]
    assert said == ["gate.hold", "gate.override.request", "gate.promote", "gate.override.approve"]

    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.now(tz) + timedelta(hours=25)

    monkeypatch.setattr(decisions, "datetime", Later)
    assert store.decisions.get("demo", "c1") == held
    assert store.decisions.latest("demo", count=9) == [held]


@pytest.mark.parametrize("actor", ["ada", " Ada ", "ADA", "  "])
def test_nobody_approves_what_they_asked_for(store: Store, actor: str) -> None:
    candidate(store)
    held = take(store)
    asked = ask(store)
    with pytest.raises(StoreError, match="another person must approve"):
        store.overrides.approve(asked.override_id, actor=actor, approval="fine")
    assert store.decisions.get("demo", "c1") == held


def test_an_override_of_what_stands_no_more_is_refused(store: Store) -> None:
    candidate(store)
    held = take(store)
    asked = ask(store)
    blocked = take(store, after=held.sequence, verdict="block")
    with pytest.raises(StoreError, match="demo:2 stands by now; ask again"):
        store.overrides.approve(asked.override_id, actor="bob", approval="fine")
    assert store.decisions.get("demo", "c1") == blocked


def test_an_override_needs_a_reason_and_something_to_override(store: Store) -> None:
    candidate(store)
    with pytest.raises(StoreError, match="nothing was decided"):
        ask(store)
    take(store)
    with pytest.raises(StoreError, match="needs a reason"):
        ask(store, reason=" ")
    with pytest.raises(StoreError, match="says hold already"):
        ask(store, verdict="hold")
    with pytest.raises(StoreError, match="no override 'nothing'"):
        store.overrides.approve("nothing", actor="bob", approval="x")


def test_decisions_of_before_are_numbered_in_their_order(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        scripts = tmp_path / "earlier"
        newer = shutil.ignore_patterns("__pycache__", "r000[4-9]*", "r00[1-9][0-9]*")
        shutil.copytree(migrate.MIGRATIONS, scripts, ignore=newer)
        earlier.setattr(migrate, "MIGRATIONS", scripts)
        earlier.setattr(migrate, "HEAD", "0003")
        with Store.open(url, tmp_path) as old:
            old.runs.add("demo", name="demo", seed=7, config={})
            old.cycles.start("demo", 1)
            old.checkpoints.add("demo", "base", cycle=None, parent_id=None, path="base", sha256="00")
            for name in ("c1", "c2"):
                candidate(old, name)
            rows = (("c2", "block", "2026-01-02 00:00:00.000000"), ("c1", "promote", "2026-01-01 00:00:00.000000"))
            for name, verdict, at in rows:
                zone = "" if url.startswith("sqlite") else "+00"
                old._database.write(
                    lambda connection, name=name, verdict=verdict, at=f"{at}{zone}": connection.execute(
                        text(
                            "INSERT INTO decisions (run_id, candidate, cycle, verdict, reasons, evidence, policy, "
                            f"created_at) VALUES ('demo', '{name}', 1, '{verdict}', '[\"why\"]', '{{}}', 'p', '{at}')"
                        )
                    )
                )
    with Store.open(url, tmp_path) as store:
        (first,), (second,) = (store.decisions.history("demo", name) for name in ("c1", "c2"))
        assert (first.decision_id, first.verdict, first.reasons) == ("demo:1", "promote", ("why",))
        assert (second.decision_id, second.verdict, second.inputs) == ("demo:2", "block", None)
        assert first.created_at == datetime(2026, 1, 1, tzinfo=UTC)
        with pytest.raises(StoreError, match="rows of decisions are never changed"):
            store._database.write(lambda connection: connection.execute(text("DELETE FROM decisions")))
        assert take(store, after=first.sequence).decision_id == "demo:3"
