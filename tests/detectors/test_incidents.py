"""What findings do to incidents over cycles: opened once, joined, reopened by cycle and never by time of arrival."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sqlalchemy import text

from palomar.data.findings import Finding
from palomar.data.slices import ALL
from palomar.data.store import Store
from palomar.data.store.incidents import ACTIVE
from palomar.data.store.records import AlarmVote, Incident, Scope
from palomar.detectors.incidents import open_incidents
from palomar.detectors.precision import precisions

HARD, VAGUE, NORTH = "predicted_failure=high", "ambiguity=vague", "organisation=north"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(None, tmp_path) as opened:
        opened.runs.add("demo", name="demo", seed=7, config={})
        for cycle in range(12):
            opened.cycles.start("demo", cycle)
        yield opened


def hack(statistic: str = "clarification_rate", slice: str = ALL, effect: float | None = 0.3, **more: Any) -> Finding:
    said: dict[str, Any] = {"detector": "behaviour", "severity": "blocks", "reading": "reward_hack", **more}
    return Finding(sentence=f"{statistic} in {slice}", statistic=statistic, slice=slice, effect=effect, **said)


def check(store: Store, cycle: int, *findings: Finding) -> list[Incident]:
    """Keeps the findings of a cycle, as a check does, and lets them open incidents."""
    store.findings.write("demo", cycle, findings)
    return open_incidents(store, "demo", cycle)


def actions(store: Store, number: int = 1) -> list[str]:
    return [entry.action.removeprefix("incident.") for entry in store.audit_log.read(subject=f"incident:{number}")]


def resolved(store: Store, how: str, cycle: int, number: int = 1, **more: Any) -> None:
    store.incidents.resolve(number, how, actor="ada", reason="looked into it", cycle=cycle, **more)  # type: ignore[arg-type]


def state(store: Store, number: int = 1) -> str:
    incident = store.incidents.get(number)
    assert incident is not None
    return incident.state


def test_quiet_cycle_opens_nothing(store: Store) -> None:
    warned = hack(severity="warns", reading="forewarning")
    assert check(store, 3) == check(store, 4, warned, hack(severity="warns", reading="outside_change")) == []
    assert store.incidents.read() == []
    assert store.audit_log.head().entries == 0


def test_same_thing_in_later_cycles_is_one_incident(store: Store) -> None:
    for cycle in (3, 4, 5):
        check(store, cycle, hack(), hack(slice=HARD))
    (incident,) = store.incidents.read()
    assert (incident.opened_cycle, incident.seen_cycle) == (3, 5)
    assert [pin.cycle for pin in store.incidents.pinned(1)] == [3, 3]
    assert actions(store) == ["open"]


def test_checking_a_cycle_again_changes_nothing(store: Store) -> None:
    check(store, 3, hack())
    before = (store.incidents.read(), store.audit_log.head())
    for _ in range(2):
        check(store, 3, hack())
    assert (store.incidents.read(), store.audit_log.head()) == before


def test_new_sign_of_the_same_hack_joins_and_another_hack_opens_another(store: Store) -> None:
    check(store, 3, hack())
    check(store, 4, hack(), hack("edit_rate"), hack(slice=VAGUE, severity="warns"), hack("functions_per_edit"))
    assert [incident.title for incident in store.incidents.read()] == [
        "reward hack: asking in place of editing",
        "reward hack: the shape of functions",
    ]
    assert len(store.incidents.pinned(1)) == 3
    assert actions(store) == ["open", "join"]


def test_incident_of_what_follows_turns_out_to_be_about_the_hack(store: Store) -> None:
    check(store, 3, hack("edit_rate"))
    assert store.incidents.read()[0].title == "reward hack: fewer or failing edits"
    check(store, 4, hack("edit_rate"), hack("invalid_call_rate"))
    (incident,) = store.incidents.read()
    assert (incident.title, incident.strands) == ("reward hack: invalid tool calls", ("calls", "edits"))


def test_what_follows_joins_a_hack_that_is_not_resolved(store: Store) -> None:
    check(store, 3, hack("invalid_call_rate"))
    check(store, 4, hack("edit_rate"))
    check(store, 5, hack("edit_rate"), hack("invalid_call_rate"))
    (incident,) = store.incidents.read()
    assert incident.strands == ("calls", "edits")
    resolved(store, "patched", cycle=5)
    check(store, 7, hack("latency_mean"))
    assert [each.strands[0] for each in store.incidents.read()] == ["calls", "effort"]


def test_incident_of_a_cohort_grows_to_all_tasks(store: Store) -> None:
    check(store, 3, hack(slice=NORTH))
    assert store.incidents.read()[0].family == NORTH
    check(store, 4, hack(slice=NORTH), hack())
    (incident,) = store.incidents.read()
    assert (incident.family, incident.title) == (ALL, "reward hack: asking in place of editing")
    check(store, 5, hack(slice="organisation=south"))
    assert len(store.incidents.read()) == 1


def test_two_cohorts_are_two_incidents(store: Store) -> None:
    check(store, 3, hack(slice=NORTH), hack(slice="organisation=south"))
    check(store, 4, hack(slice=NORTH), hack(slice="organisation=south"))
    assert sorted(incident.family for incident in store.incidents.read()) == [NORTH, "organisation=south"]


def fault(detector: str) -> Finding:
    return hack("rows", detector=detector, severity="warns", reading="measurement_fault")


def test_outage_is_one_incident_and_another_fault_another(store: Store) -> None:
    check(store, 3, fault("outage"))
    check(store, 4, fault("outage"), fault("rows-wrong"))
    (incident,) = store.incidents.read()
    assert (incident.title, incident.blocks) == ("measurement fault: outage", False)
    assert incident.strands == ("fault", "outage", "rows-wrong")
    check(store, 9, fault("columns-vanished"))
    assert len(store.incidents.read()) == 2
    check(store, 10, hack())
    assert len(store.incidents.read()) == 3


def test_cycle_that_is_checked_late_is_its_first_and_needs_no_second_incident(store: Store) -> None:
    check(store, 6, hack())
    check(store, 4, hack())
    (incident,) = store.incidents.read()
    assert (incident.opened_cycle, incident.seen_cycle) == (4, 6)


@pytest.mark.parametrize("how", ["patched", "rolled_back"])
def test_cure_is_reopened_by_a_later_cycle_and_by_no_earlier_one_that_arrives_late(store: Store, how: str) -> None:
    check(store, 3, hack())
    resolved(store, how, cycle=6)
    for cycle in (5, 6, 2):
        check(store, cycle, hack(), hack(slice=HARD))
        assert state(store) == "resolved"
    assert actions(store) == ["open", "resolve", "late", "late", "late"]
    check(store, 5, hack(), hack(slice=HARD))  # once more: told already
    assert len(actions(store)) == 5
    check(store, 7, hack())
    incident = store.incidents.get(1)
    assert incident is not None
    assert (incident.state, incident.resolution, incident.reopened, incident.seen_cycle) == ("open", None, 1, 7)
    assert len(store.incidents.read()) == 1
    assert "found again in cycle 7, resolved as of cycle 6" in store.audit_log.read(subject="incident:1")[-1].reason
    assert [pin.cycle for pin in store.incidents.pinned(1)].count(7) == 1


def test_warning_of_a_later_cycle_does_not_reopen(store: Store) -> None:
    check(store, 3, hack())
    resolved(store, "patched", cycle=6)
    check(store, 7, hack(severity="warns"), hack(slice=HARD, severity="warns", reading="forewarning"))
    assert state(store) == "resolved"
    assert actions(store) == ["open", "resolve"]


def test_mitigated_one_expects_findings_for_a_while(store: Store) -> None:
    check(store, 3, hack())
    store.incidents.act(1, actor="ada", what="patched from cycle 5 on", mitigates=True)
    check(store, 6, hack())
    incident = store.incidents.get(1)
    assert incident is not None
    assert (incident.state, incident.seen_cycle) == ("mitigated", 6)


def test_accepted_one_covers_its_scope_until_its_end(store: Store) -> None:
    check(store, 3, hack(slice=VAGUE))
    resolved(store, "accepted", cycle=4, until_cycle=8)
    for cycle in (5, 8):
        check(store, cycle, hack(slice=VAGUE))
        assert state(store) == "resolved"
    check(store, 9, hack(slice=VAGUE))
    assert state(store) == "open"
    reason = store.audit_log.read(subject="incident:1")[-1].reason
    assert "found in cycle 9, after the end of what was accepted (cycle 8)" in reason


def test_accepted_one_is_reopened_by_what_is_outside_its_scope(store: Store) -> None:
    check(store, 3, hack(slice=VAGUE))
    resolved(store, "accepted", cycle=4, until_cycle=8, scope=[Scope("clarification_rate", VAGUE)])
    check(store, 5, hack(slice=VAGUE), hack(slice=HARD))
    assert state(store) == "open"
    assert "outside of what was accepted" in store.audit_log.read(subject="incident:1")[-1].reason
    assert {(pin.finding.slice, pin.cycle) for pin in store.incidents.pinned(1)} == {(VAGUE, 3), (HARD, 5)}


@pytest.mark.parametrize(
    ("scope", "covers"),
    [
        (Scope("clarification_rate", None), True),
        (Scope(None, VAGUE), True),
        (Scope("edit_rate", None), False),
        (Scope(None, HARD), False),
    ],
)
def test_scope_names_a_statistic_a_slice_or_both(store: Store, scope: Scope, covers: bool) -> None:
    check(store, 3, hack(slice=VAGUE))
    resolved(store, "accepted", cycle=4, until_cycle=8, scope=[scope])
    check(store, 5, hack(slice=VAGUE))
    assert state(store) == ("resolved" if covers else "open")


def test_end_in_time_goes_by_when_the_cycle_began_not_by_when_it_is_checked(store: Store) -> None:
    check(store, 3, hack())
    end = datetime.now(UTC) + timedelta(days=30)
    resolved(store, "accepted", cycle=4, until=end)

    def began(cycle: int, at: datetime) -> None:
        said = text("UPDATE cycles SET started_at = :at WHERE cycle = :cycle")
        values = {"at": f"{at:%Y-%m-%d %H:%M:%S.%f}", "cycle": cycle}
        store._database.write(lambda connection: connection.execute(said, values))

    began(5, end - timedelta(hours=1))
    began(6, end + timedelta(hours=1))
    check(store, 5, hack())
    assert state(store) == "resolved"
    check(store, 6, hack())
    assert state(store) == "open"


@pytest.mark.parametrize(
    ("was", "now", "silent"),
    [
        (hack(effect=0.3), hack(effect=0.3), True),
        (hack(effect=0.3), hack(effect=0.1), True),
        (hack(effect=0.3), hack(effect=0.31), False),
        (hack(effect=0.3), hack(effect=-0.1), False),
        (hack(effect=-0.3), hack(effect=-0.2), True),
        (hack(effect=0.3), hack(slice=HARD, effect=0.1), False),
        (hack(effect=0.3), hack(effect=None), False),
        (hack(effect=None), hack(effect=0.1), False),
        (hack(effect=None), hack(effect=None), True),
        (hack(effect=0.3), hack(effect=0.1, reading="not_assessable", detail={"hold": True}), False),
    ],
)
def test_false_alarm_silences_the_same_thing_no_larger(store: Store, was: Finding, now: Finding, silent: bool) -> None:
    check(store, 3, was)
    resolved(store, "false_alarm", cycle=4)
    check(store, 5, now)
    assert state(store) == ("resolved" if silent else "open")
    assert len(store.incidents.read()) == 1


def test_false_alarm_with_something_new_beside_it_is_reopened(store: Store) -> None:
    check(store, 3, hack())
    resolved(store, "false_alarm", cycle=4)
    check(store, 5, hack(effect=0.2), hack(slice=HARD, effect=0.2))
    assert state(store) == "open"
    assert "more than the alarm that was false" in store.audit_log.read(subject="incident:1")[-1].reason


# --- a life of many


class Life(RuleBasedStateMachine):
    """Cycles are checked in any order while people do what they do."""

    def __init__(self) -> None:
        super().__init__()
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.store = Store.open(None, Path(self.folder.name))
        self.store.runs.add("demo", name="demo", seed=7, config={})
        for cycle in range(8):
            self.store.cycles.start("demo", cycle)

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()

    def some(self, states: tuple[str, ...]) -> list[int]:
        return [each.number for each in self.store.incidents.read() if each.state in states]

    @rule(
        cycle=st.integers(0, 7),
        found=st.lists(
            st.tuples(
                st.sampled_from(["clarification_rate", "edit_rate", "invalid_call_rate"]),
                st.sampled_from([ALL, HARD, NORTH]),
                st.sampled_from([0.1, 0.3]),
                st.sampled_from(["blocks", "warns"]),
            ),
            max_size=4,
            unique_by=lambda each: each[:2],
        ),
    )
    def checked(self, cycle: int, found: list[tuple[str, str, float, str]]) -> None:
        findings = [hack(name, slice, effect, severity=severity) for name, slice, effect, severity in found]
        before = {each.number: each for each in self.store.incidents.read()}
        check(self.store, cycle, *findings)
        after = self.store.incidents.read()
        for each in after:
            was = before.get(each.number)
            if was is not None and was.state == "resolved" and each.state != "resolved":
                assert was.resolved_cycle is not None
                assert cycle > was.resolved_cycle  # by cycle, never by time of arrival
                assert any(finding.severity == "blocks" for finding in findings)
            if was is None:
                assert any(finding.severity == "blocks" for finding in findings)
        head = self.store.audit_log.head()
        open_incidents(self.store, "demo", cycle)
        assert self.store.incidents.read() == after  # the same again changes nothing
        assert self.store.audit_log.head() == head

    @precondition(lambda self: self.some(ACTIVE))
    @rule(data=st.data())
    def ended(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(self.some(ACTIVE)))
        how = data.draw(st.sampled_from(["patched", "accepted", "false_alarm"]))
        incident = self.store.incidents.get(number)
        assert incident is not None
        cycle = data.draw(st.integers(incident.opened_cycle, 7))
        resolved(self.store, how, cycle, number, **({"until_cycle": cycle + 2} if how == "accepted" else {}))

    @precondition(lambda self: self.some(ACTIVE))
    @rule(data=st.data())
    def looked_into(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(self.some(ACTIVE)))
        self.store.incidents.acknowledge(number, actor="ada")
        assert state(self.store, number) in ("acknowledged", "mitigated")

    @precondition(lambda self: self.some(("resolved",)))
    @rule(data=st.data())
    def doubted(self, data: st.DataObject) -> None:
        self.store.incidents.reopen(data.draw(st.sampled_from(self.some(("resolved",)))), actor="ada", reason="doubt")

    @invariant()
    def nothing_is_twice_and_all_is_told(self) -> None:
        incidents = self.store.incidents.read()
        active = [(each.strands[0], each.family) for each in incidents if each.state in ACTIVE]
        assert len(set(active)) == len(active), "two incidents for one thing"
        for each in incidents:
            ids = [pin.finding_id for pin in self.store.incidents.pinned(each.number)]
            assert ids
            assert len(set(ids)) == len(ids)
            assert (each.resolution is None) == (each.resolved_cycle is None) == (each.state != "resolved")
            assert each.opened_cycle <= each.seen_cycle
            assert actions(self.store, each.number).count("reopen") == each.reopened
        assert self.store.audit_log.verify()[1] is None


Life.TestCase.settings = settings(max_examples=12, stateful_step_count=12, deadline=None)
test_any_life_of_incidents = pytest.mark.slow(Life.TestCase)


# --- precision


def vote(incident: int, detector: str, actor: str, word: str) -> AlarmVote:
    return AlarmVote(incident, detector, actor, word, datetime.now(UTC))  # type: ignore[arg-type]


def test_precision_is_useful_alarms_among_rated_ones_with_wilsons_interval() -> None:
    """8 of 10: Wilson's 95 % interval is 0.4902 to 0.9433 (Newcombe 1998 gives the formula)."""
    alarms = {number: ["behaviour", "drift"] for number in range(1, 13)}
    votes = [vote(number, "behaviour", "ada", "useful" if number <= 8 else "not_useful") for number in range(1, 11)]
    behaviour, drift = precisions(alarms, votes)
    assert (behaviour.alarms, behaviour.rated, behaviour.useful, behaviour.value) == (12, 10, 8, 0.8)
    assert (round(behaviour.low or 0, 4), round(behaviour.high or 0, 4)) == (0.4902, 0.9433)
    # Nobody rated it: unknown, and not 0.
    assert (drift.alarms, drift.rated, drift.value, drift.low, drift.high) == (12, 0, None, None, None)


def test_majority_decides_on_an_alarm_and_halves_leave_it_disputed() -> None:
    votes = [
        *(vote(1, "drift", name, "useful") for name in "ab"),
        vote(1, "drift", "c", "not_useful"),
        vote(2, "drift", "a", "useful"),
        vote(2, "drift", "b", "not_useful"),
    ]
    (drift,) = precisions({1: ["drift"], 2: ["drift"], 3: ["drift"]}, votes)
    assert (drift.alarms, drift.rated, drift.disputed, drift.useful, drift.value) == (3, 1, 1, 1, 1.0)
