"""Incidents, on SQLite and on a real PostgreSQL: what may be done to one when, and what is kept of it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from palomar.data.errors import StoreError
from palomar.data.findings import Cause, Evidence, Finding
from palomar.data.slices import ALL
from palomar.data.store import Store
from palomar.data.store.incidents import Arrival, evidence_hash
from palomar.data.store.records import Incident, Scope, StoredFinding

HARD = "predicted_failure=high"
STRANGE = "wéil \x00 \ud800 \ufffe0041"


def finding(statistic: str = "clarification_rate", slice: str = ALL, **more: Any) -> Finding:
    said = {"before": 0.1, "after": 0.4, "effect": 0.3, "low": 0.2, "high": 0.4, "n": 500, **more}
    causes = (Cause("term:function_size", HARD, 0.2, 0.7),)
    evidence = Evidence(("i1", STRANGE), ("i2",), ("i3",))
    return Finding("behaviour", "blocks", "asks more", statistic, slice, causes=causes, evidence=evidence, **said)


def arrival(found: Sequence[StoredFinding], what: str = "open", incident: int | None = None, **more: Any) -> Arrival:
    said: dict[str, Any] = {
        "title": "reward hack: asking",
        "reason": "it blocks",
        "strands": ("asking", "edits"),
        "family": ALL,
        "blocks": True,
        "keeps": True,
        **more,
    }
    return Arrival(incident=incident, what=what, findings=tuple((each, "because") for each in found), **said)


def opened(store: Store, cycle: int = 1, *findings: Finding) -> Incident:
    store.findings.write("demo", cycle, findings or [finding(), finding(slice=HARD)])
    found = store.findings.read("demo", cycle)
    (incident,) = store.incidents.arrive("demo", cycle, lambda *_: [arrival(found)])
    return incident


def log(store: Store, number: int) -> list[tuple[str, str, str]]:
    return [(each.actor, each.action, each.reason) for each in store.audit_log.read(subject=f"incident:{number}")]


def test_incident_is_read_as_it_was_opened(store: Store) -> None:
    incident = opened(store)
    assert store.incidents.get(1) == incident
    assert store.incidents.read() == store.incidents.read("demo", states=["open"]) == [incident]
    assert store.incidents.read("demo", states=["resolved"]) == store.incidents.read("other") == []
    assert (incident.state, incident.opened_cycle, incident.seen_cycle, incident.strands, incident.blocks) == (
        "open",
        1,
        1,
        ("asking", "edits"),
        True,
    )
    assert abs(datetime.now(UTC) - incident.opened_at) < timedelta(minutes=1)
    assert store.incidents.get(2) is None
    assert log(store, 1) == [("palomar", "incident.open", "it blocks")]


def test_pinned_finding_is_frozen_whatever_the_cycle_says_later(store: Store) -> None:
    opened(store)
    pins = store.incidents.pinned(1)
    assert [(pin.finding, pin.cycle, pin.why) for pin in pins] == [
        (finding(), 1, "because"),
        (finding(slice=HARD), 1, "because"),
    ]
    store.findings.write("demo", 1, [finding(after=0.9)])
    assert store.incidents.pinned(1) == pins
    with pytest.raises(StoreError, match="rows of incident_findings are never changed"):
        store._database.write(lambda connection: connection.execute(text("UPDATE incident_findings SET cycle = 9")))
    (entry,) = store.audit_log.read(subject="incident:1")
    assert entry.detail["findings"] == {pin.finding_id: evidence_hash(pin.finding) for pin in pins}
    assert evidence_hash(finding(after=0.9)) != evidence_hash(finding())


def test_incidents_of_all_runs_are_numbered_in_one_row(store: Store) -> None:
    opened(store)
    store.runs.add("second", name="second", seed=1, config={})
    store.cycles.start("second", 0)
    (other,) = store.incidents.arrive("second", 0, lambda *_: [arrival([])])
    assert (other.number, other.run_id) == (2, "second")
    assert [each.number for each in store.incidents.read()] == [1, 2]
    assert [each.number for each in store.incidents.read(newest=1)] == [2]
    assert [each.number for each in store.incidents.read("demo")] == [1]


def test_joining_widens_it_and_is_told_only_where_something_is_new(store: Store) -> None:
    opened(store)
    store.findings.write("demo", 2, [finding("edit_rate")])
    new = store.findings.read("demo", 2)
    join = arrival(new, "join", 1, strands=("asking", "edits", "effort"), reason="1 finding joined")
    (incident,) = store.incidents.arrive("demo", 2, lambda *_: [join])
    assert (incident.strands, incident.opened_cycle, incident.seen_cycle) == (("asking", "edits", "effort"), 1, 2)
    again = arrival([], "join", 1, strands=("asking", "edits", "effort"))
    for _ in range(2):
        assert store.incidents.arrive("demo", 2, lambda *_: [again]) == [incident]
    assert [action for _, action, _ in log(store, 1)] == ["incident.open", "incident.join"]
    assert len(store.incidents.pinned(1)) == 3
    # A cycle that was checked late is its first one, if it came before.
    (incident,) = store.incidents.arrive("demo", 0, lambda *_: [again])
    assert (incident.opened_cycle, incident.seen_cycle) == (0, 2)


def test_life_from_alarm_to_closed_is_its_timeline(store: Store) -> None:
    number = opened(store).number
    life = store.incidents
    assert life.acknowledge(number, actor="ada").state == "acknowledged"
    assert life.assign(number, actor="ada", to="bob", reason="he knows rewards").assignee == "bob"
    life.comment(number, actor="bob", words=STRANGE)
    cause = life.explain(
        number, actor="bob", words="small functions pay", term="term:function_size", reward="abc"
    ).cause
    assert cause == {"words": "small functions pay", "term": "term:function_size", "slice": None, "reward": "abc"}
    assert life.act(number, actor="bob", what="blocked c3").state == "acknowledged"
    assert life.act(number, actor="bob", what="patched", mitigates=True, detail={"version": "def"}).state == "mitigated"
    ended = life.resolve(number, "patched", actor="bob", reason="gone for two cycles")
    assert (ended.state, ended.resolution, ended.resolved_cycle, ended.scope) == ("resolved", "patched", 3, ())
    again = life.reopen(number, actor="ada", reason="it is back")
    assert (again.state, again.resolution, again.resolved_cycle, again.reopened) == ("open", None, None, 1)
    assert log(store, number) == [
        ("palomar", "incident.open", "it blocks"),
        ("ada", "incident.ack", ""),
        ("ada", "incident.assign", "he knows rewards"),
        ("bob", "incident.comment", STRANGE),
        ("bob", "incident.cause", "small functions pay"),
        ("bob", "incident.action", "blocked c3"),
        ("bob", "incident.action", "patched"),
        ("bob", "incident.resolve", "gone for two cycles"),
        ("ada", "incident.reopen", "it is back"),
    ]
    assert store.audit_log.verify()[1] is None


def test_saying_it_again_changes_nothing_and_leaves_no_entry(store: Store) -> None:
    number = opened(store).number
    first = store.incidents.acknowledge(number, actor="ada")
    assert store.incidents.acknowledge(number, actor="bob") == first
    first = store.incidents.assign(number, actor="ada", to="bob")
    assert store.incidents.assign(number, actor="eve", to="bob") == first
    assert len(log(store, number)) == 3


def test_request_that_is_sent_twice_is_done_once(store: Store) -> None:
    number = opened(store).number
    for _ in range(2):
        store.incidents.comment(number, actor="ada", words="look", token="r1")
        store.incidents.resolve(number, "patched", actor="ada", reason="gone", token="r2")
    assert [action for _, action, _ in log(store, number)][1:] == ["incident.comment", "incident.resolve"]
    with pytest.raises(StoreError, match=r"token 'r1' was used for incident\.comment"):
        store.incidents.reopen(number, actor="ada", reason="back", token="r1")


REFUSED: dict[str, tuple[Callable[[Store], object], str]] = {
    "unknown": (lambda s: s.incidents.acknowledge(9, actor="ada"), "there is no incident 9"),
    "no actor": (lambda s: s.incidents.acknowledge(1, actor=" "), "needs an actor"),
    "no words": (lambda s: s.incidents.comment(1, actor="ada", words=" "), "comment needs words"),
    "no cause": (lambda s: s.incidents.explain(1, actor="ada", words=""), "root cause needs words"),
    "no action": (lambda s: s.incidents.act(1, actor="ada", what=""), "action needs words"),
    "nobody": (lambda s: s.incidents.assign(1, actor="ada", to=""), "needs someone"),
    "no reason": (lambda s: s.incidents.resolve(1, "patched", actor="a", reason=""), "resolution needs a reason"),
    "not resolved": (lambda s: s.incidents.reopen(1, actor="ada", reason="x"), "open: there is nothing to reopen"),
    "no end": (lambda s: s.incidents.resolve(1, "accepted", actor="a", reason="x"), "needs an end"),
    "two ends": (
        lambda s: s.incidents.resolve(
            1, "accepted", actor="a", reason="x", until_cycle=9, until=datetime.now(UTC) + timedelta(1)
        ),
        "needs an end",
    ),
    "end of a patch": (
        lambda s: s.incidents.resolve(1, "patched", actor="a", reason="x", until_cycle=9),
        "only what is accepted has an end",
    ),
    "end that is over": (
        lambda s: s.incidents.resolve(1, "accepted", actor="a", reason="x", until=datetime(2026, 1, 1, tzinfo=UTC)),
        "2026-01-01 00:00 UTC is over already",
    ),
    "end that covers nothing": (
        lambda s: s.incidents.resolve(1, "accepted", actor="a", reason="x", until_cycle=3),
        "covers nothing after cycle 3",
    ),
    "everything": (
        lambda s: s.incidents.resolve(1, "accepted", actor="a", reason="x", until_cycle=9, scope=[Scope(None, None)]),
        "nobody can accept everything",
    ),
    "cycle to come": (
        lambda s: s.incidents.resolve(1, "patched", actor="a", reason="x", cycle=4),
        "as of cycle 4: it opened in cycle 1, and the newest one is 3",
    ),
    "cycle before it": (lambda s: s.incidents.resolve(1, "patched", actor="a", reason="x", cycle=0), "as of cycle 0"),
    "silent detector": (
        lambda s: s.incidents.vote(1, "useful", actor="a", detectors=["drift"]),
        "drift said nothing in incident 1; there are: behaviour",
    ),
    "no vote": (lambda s: s.incidents.vote(1, "so so", actor="a"), "'so so' is not one of useful, not_useful"),  # type: ignore[arg-type]
    "no resolution": (lambda s: s.incidents.resolve(1, "closed", actor="a", reason="x"), "'closed' is not one of"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused_and_leaves_no_trace(store: Store, name: str) -> None:
    attempt, problem = REFUSED[name]
    before = opened(store)
    with pytest.raises(StoreError, match=problem):
        attempt(store)
    assert store.incidents.read() == [before]
    assert store.audit_log.head().entries == 1
    assert store.incidents.votes() == []


def test_resolved_one_takes_words_votes_and_a_cause_and_nothing_else(store: Store) -> None:
    number = opened(store).number
    store.incidents.resolve(number, "rolled_back", actor="ada", reason="back to c1")
    for attempt in (
        lambda: store.incidents.acknowledge(number, actor="bob"),
        lambda: store.incidents.assign(number, actor="bob", to="eve"),
        lambda: store.incidents.act(number, actor="bob", what="x"),
        lambda: store.incidents.resolve(number, "patched", actor="bob", reason="x"),
    ):
        with pytest.raises(StoreError, match=r"incident 1 was resolved \(rolled_back\) at .*; reopen it first"):
            attempt()
    store.incidents.comment(number, actor="bob", words="learnt a lot")
    store.incidents.explain(number, actor="bob", words="now we know")
    store.incidents.vote(number, "useful", actor="bob")
    assert store.incidents.get(number).state == "resolved"  # type: ignore[union-attr]


def test_accepted_one_covers_what_is_pinned_unless_it_says_what(store: Store) -> None:
    number = opened(store).number
    pinned = store.incidents.resolve(number, "accepted", actor="a", reason="x", until_cycle=9)
    assert (pinned.scope, pinned.until_cycle, pinned.until) == (
        (Scope("clarification_rate", ALL), Scope("clarification_rate", HARD)),
        9,
        None,
    )
    store.incidents.reopen(number, actor="a", reason="x")
    end = datetime.now(UTC) + timedelta(days=30)
    said = store.incidents.resolve(number, "accepted", actor="a", reason="x", until=end, scope=[Scope(None, HARD)])
    assert (said.scope, said.until_cycle, said.until) == ((Scope(None, HARD),), None, end)


def test_last_vote_of_each_person_stands(store: Store) -> None:
    number = opened(store).number
    store.incidents.vote(number, "useful", actor="ada")
    store.incidents.vote(number, "not_useful", actor="ada", detectors=["behaviour"])
    store.incidents.vote(number, "useful", actor="bob")
    assert [(each.detector, each.actor, each.vote) for each in store.incidents.votes(number)] == [
        ("behaviour", "ada", "not_useful"),
        ("behaviour", "bob", "useful"),
    ]
    assert store.incidents.detectors() == {1: ("behaviour",)}
    assert len(log(store, number)) == 4


def test_nothing_is_written_where_one_of_several_arrivals_fails(store: Store) -> None:
    unknown = StoredFinding("demo", 1, "x" * 700, datetime.now(UTC), finding())
    with pytest.raises(StoreError, match="at most 600 bytes"):
        store.incidents.arrive("demo", 1, lambda *_: [arrival([]), arrival([unknown])])
    assert store.incidents.read() == []
    assert store.audit_log.verify() == (store.audit_log.head(), None)
    assert store.audit_log.head().entries == 0


def test_processes_that_check_the_same_cycles_at_once_open_each_incident_once(
    store: Store, url: str, start_worker: Callable[..., subprocess.Popen[str]]
) -> None:
    for cycle in range(4):
        hack = [finding(reading="reward_hack"), finding("edit_rate", HARD, reading="reward_hack")]
        more = [finding("invalid_call_rate", reading="reward_hack")] if cycle > 1 else []
        store.findings.write("demo", cycle, [*hack, *more])
    workers = [start_worker("open_incidents_much", url, "4") for _ in range(3)]
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
    found = store.incidents.read()
    assert sorted((each.title, each.seen_cycle) for each in found) == [
        ("reward hack: asking in place of editing", 3),
        ("reward hack: invalid tool calls", 3),
    ]
    for incident in found:
        pins = store.incidents.pinned(incident.number)
        assert len({pin.key for pin in pins}) == len(pins)
        assert [action for _, action, _ in log(store, incident.number)] == ["incident.open"]
    assert store.audit_log.verify()[1] is None
