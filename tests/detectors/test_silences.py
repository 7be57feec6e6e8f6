"""A silence spares a call: what it covers opens and reopens nothing, and nothing else changes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from palomar.data.findings import Finding
from palomar.data.slices import ALL
from palomar.data.store import Store
from palomar.data.store.records import Incident
from palomar.detectors.incidents import open_incidents

HARD = "predicted_failure=high"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(None, tmp_path) as opened:
        opened.runs.add("demo", name="demo", seed=7, config={})
        for cycle in range(6):
            opened.cycles.start("demo", cycle)
        yield opened


def hack(statistic: str = "clarification_rate", slice: str = ALL, **more: Any) -> Finding:
    said: dict[str, Any] = {"detector": "behaviour", "severity": "blocks", "reading": "reward_hack", **more}
    return Finding(sentence=f"{statistic} in {slice}", statistic=statistic, slice=slice, effect=0.3, **said)


def check(store: Store, cycle: int, *findings: Finding) -> list[Incident]:
    store.findings.write("demo", cycle, findings)
    return open_incidents(store, "demo", cycle)


def silence(store: Store, detector: str = "behaviour", **more: Any) -> None:
    said: dict[str, Any] = {"actor": "ada", "reason": "a known move", **more}
    if "until" not in said:
        said.setdefault("until_cycle", 8)
    store.silences.add("demo", detector, **said)


def held(store: Store) -> list[tuple[int, str]]:
    return [(each.cycle, each.sentence) for each in store.silences.silenced([1, 2])]


def test_silenced_findings_open_nothing_and_are_noted_once(store: Store) -> None:
    silence(store)
    for _ in range(2):
        assert check(store, 3, hack(), hack(slice=HARD)) == []
    assert len(held(store)) == 2
    assert len(store.findings.read("demo", 3)) == 2
    reasons = [entry.reason for entry in store.audit_log.read(subject="silence:1")]
    assert reasons[1:] == ["2 findings opened no incident, silenced until cycle 8: clarification_rate in all"]


@pytest.mark.parametrize(
    ("what", "opens"),
    [
        ({}, False),
        ({"detector": "signatures"}, True),
        ({"statistic": "clarification_rate"}, False),
        ({"statistic": "edit_rate"}, True),
        ({"slice_": HARD}, False),
        ({"slice_": ALL}, True),
        ({"statistic": "clarification_rate", "slice_": HARD}, False),
        ({"statistic": "clarification_rate", "slice_": ALL}, True),
    ],
)
def test_silence_covers_what_it_names_and_nothing_else(store: Store, what: dict[str, str], opens: bool) -> None:
    silence(store, **what)
    assert bool(check(store, 3, hack(slice=HARD))) == opens
    assert bool(held(store)) != opens


def test_another_detector_that_sees_it_still_calls(store: Store) -> None:
    silence(store)
    (incident,) = check(store, 3, hack(), hack(detector="drift"))
    assert incident.state == "open"
    # What is silenced is part of the evidence all the same.
    assert {pin.finding.detector for pin in store.incidents.pinned(1)} == {"behaviour", "drift"}
    assert held(store) == []


def test_another_hack_beside_it_opens_its_own(store: Store) -> None:
    silence(store, statistic="clarification_rate")
    (incident,) = check(store, 3, hack(), hack("function_growth"))
    assert incident.strands == ("code",)
    assert held(store) == [(3, "clarification_rate in all")]


def test_silence_ends_with_its_cycle(store: Store) -> None:
    silence(store, until_cycle=5)
    assert check(store, 5, hack()) == []
    (incident,) = check(store, 6, hack()) if store.cycles.start("demo", 6) else ()
    assert incident.opened_cycle == 6
    # The cycle that was silenced stays so, however late it is checked again; it joins what is there now.
    check(store, 5, hack())
    assert store.incidents.read()[-1].number == 1


def test_end_in_time_goes_by_when_the_cycle_began(store: Store) -> None:
    end = datetime.now(UTC) + timedelta(days=1)
    silence(store, until=end)
    said = text("UPDATE cycles SET started_at = :at WHERE cycle = 4")
    values = {"at": f"{end + timedelta(minutes=1):%Y-%m-%d %H:%M:%S.%f}"}
    store._database.write(lambda connection: connection.execute(said, values))
    assert check(store, 3, hack()) == []
    assert check(store, 4, hack()) != []


def test_silence_that_was_ended_covers_nothing(store: Store) -> None:
    silence(store)
    assert check(store, 3, hack()) == []
    store.silences.end(1, actor="bob", reason="enough")
    (incident,) = check(store, 3, hack())
    assert (incident.opened_cycle, incident.state) == (3, "open")


def test_open_incident_goes_on_under_a_silence(store: Store) -> None:
    check(store, 2, hack())
    silence(store)
    (incident,) = check(store, 3, hack(), hack(slice=HARD))
    assert (incident.state, incident.seen_cycle) == ("open", 3)
    assert len(store.incidents.pinned(1)) == 2
    assert held(store) == []


def test_resolved_incident_is_not_reopened_by_what_is_silenced(store: Store) -> None:
    check(store, 2, hack())
    store.incidents.resolve(1, "patched", actor="ada", reason="gone", cycle=2)
    silence(store)
    check(store, 3, hack())
    assert [each.state for each in store.incidents.read()] == ["resolved"]
    assert held(store) == [(3, "clarification_rate in all")]
    check(store, 4, hack(), hack(detector="signatures"))
    assert [each.state for each in store.incidents.read()] == ["open"]
    assert "clarification_rate" in store.audit_log.read(subject="incident:1")[-1].reason


def test_what_is_accepted_is_accepted_and_not_silenced(store: Store) -> None:
    check(store, 2, hack())
    store.incidents.resolve(1, "accepted", actor="ada", reason="fine", cycle=2, until_cycle=9)
    silence(store)
    check(store, 3, hack())
    assert held(store) == []


def test_warning_is_no_alarm_and_so_not_noted(store: Store) -> None:
    silence(store)
    assert check(store, 3, hack(severity="warns")) == []
    assert held(store) == []
