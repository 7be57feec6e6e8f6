"""Alarms, detectors and silences as the service and the command line tell of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy import stats
from typer.testing import CliRunner

from palomar.app import alarms
from palomar.app.alarms import Alarm, Unknown
from palomar.app.cli import app
from palomar.app.now import standing, timeline
from palomar.data.errors import StoreError
from palomar.data.findings import Finding, Report, Unassessed
from palomar.data.slices import ALL
from palomar.data.store import Store
from palomar.detectors.incidents import open_incidents

HARD, NORTH = "predicted_failure=high", "organisation=north"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Ten cycles: quiet up to 3; asking in 4 to 7, and where it is hard in 5; calls of the north alone in 6."""
    with Store.open(None, tmp_path) as store:
        store.runs.add("r", name="r", seed=0, config={})
        store.runs.add("other", name="other", seed=1, config={})
        store.cycles.start("other", 0)
        store.rewards.add("v1", text="a", parent=None, reason="first", actor="ada")
        store.rewards.add("v2", text="b", parent="v1", reason="patched", actor="ada")
        store.checkpoints.add("r", "base", cycle=None, parent_id=None, path="base", sha256="")
        store.checkpoints.promote("r", "base", replacing=None, since_cycle=0, reason="x")
        for cycle in range(10):
            store.cycles.start("r", cycle, checkpoint_id="base", reward_version="v1" if cycle < 6 else "v2")
        found: dict[int, list[Finding]] = {
            4: [hack(after=0.4)],
            5: [hack(after=0.5), hack(slice=HARD)],
            6: [hack(after=0.6), hack("invalid_call_rate", NORTH, detector="signatures")],
            7: [hack(after=0.7), hack("latency_mean", severity="warns", reading="outside_change")],
        }
        for cycle in range(2, 8):
            check(store, cycle, *found.get(cycle, []))
    return tmp_path


@pytest.fixture
def store(home: Path) -> Iterator[Store]:
    with Store.open(None, home) as opened:
        yield opened


def hack(statistic: str = "clarification_rate", slice: str = ALL, **more: Any) -> Finding:
    said: dict[str, Any] = {"detector": "behaviour", "severity": "blocks", "reading": "reward_hack", "effect": 0.3}
    return Finding(sentence=f"{statistic} in {slice}", statistic=statistic, slice=slice, **{**said, **more})


def check(store: Store, cycle: int, *found: Finding) -> None:
    reports = [
        Report("behaviour", assessed=40 if cycle > 2 else 0),
        Report("signatures", assessed=9, unassessed=(Unassessed("x", "no code"), Unassessed("y", "no shell"))),
    ]
    store.findings.write("r", cycle, found, reports)
    word = "block" if any(each.severity == "blocks" for each in found) else "pass"
    sentence = found[0].sentence if found else "nothing found"
    store.verdicts.write(
        "r", cycle, verdict=word, reasons=[], sentence=sentence, findings={}, budget="", as_of=None  # type: ignore[arg-type]
    )  # fmt: skip
    open_incidents(store, "r", cycle)


def the(store: Store, asked: str) -> Alarm:
    found = alarms.alarm(store, "r", asked)
    assert isinstance(found, Alarm)
    return found


# -- one alarm -------------------------------------------------------------------------------------------------------


def test_alarm_says_what_was_found_first_and_what_is_known_last(store: Store) -> None:
    one = the(store, "1")
    assert (one.id, one.cycle, one.finding.after) == ("1", 4, 0.4)
    assert (one.shown[0], one.shown[1].after) == (7, 0.7)
    assert (one.good, one.checked, one.trust, one.detectors) == (3, 7, "trusted", ("behaviour",))
    assert [(line.cycle, line.version) for line in one.versions] == [(6, "v2")]
    assert (one.candidate, one.decision, one.silence, one.held) == (None, None, None, False)


def test_finding_leads_to_the_incident_that_it_is_part_of(store: Store) -> None:
    for cycle in (4, 5, 6, 7):
        finding = store.findings.read("r", cycle)[0]
        assert the(store, finding.finding_id).id == "1"
    warning = store.findings.read("r", 7)[1]
    alone = the(store, warning.finding_id)
    assert (alone.id, alone.incident, alone.cycle) == (warning.finding_id, None, 7)
    # A finding of the same thing from before the incident is none of its.
    check(store, 3, hack(severity="notes", reading=None))
    assert the(store, store.findings.read("r", 3)[0].finding_id).incident is None


def test_what_came_again_as_another_incident_is_not_told_of_the_first(store: Store) -> None:
    store.incidents.resolve(1, "accepted", actor="ada", reason="fine", cycle=7, until_cycle=20)
    check(store, 9, hack(after=0.9))
    one = the(store, "1")
    assert one.incident is not None
    assert one.incident.seen_cycle == 7
    assert (one.shown[0], one.shown[1].after) == (7, 0.7)
    # What has faded to a warning since is what is known of it now.
    check(store, 9, hack(after=0.2, severity="warns"))
    assert (the(store, "1").shown[0], the(store, "1").shown[1].after) == (9, 0.2)


def test_unknown_alarm_names_the_nearest_of_this_run_only(store: Store) -> None:
    store.incidents.arrive("other", 0, lambda *_: [])
    for asked in ("7", "x", "", "12345678901234567890"):
        found = alarms.alarm(store, "r", asked)
        assert isinstance(found, Unknown)
        assert {each.run_id for each in found.incidents} == {"r"}
    assert isinstance(alarms.alarm(store, "other", "1"), Unknown)
    near = store.findings.read("r", 7)[0].finding_id
    found = alarms.alarm(store, "r", near[:-2])
    assert isinstance(found, Unknown)
    assert near in found.findings


def test_fault_of_measurement_puts_the_numbers_in_doubt(store: Store) -> None:
    found = [each.finding for each in store.findings.read("r", 6)]
    fault = Finding("outage", "warns", "tools were down", reading="measurement_fault")
    store.findings.write("r", 6, [*found, fault])
    assert (the(store, "1").trust, the(store, "1").faults) == ("in_doubt", (6,))
    warned = next(each.finding_id for each in store.findings.read("r", 7) if each.finding.severity == "warns")
    assert the(store, warned).trust == "trusted"


# -- lists -----------------------------------------------------------------------------------------------------------


def test_alarms_are_grouped_by_detector_and_family_what_is_open_first(store: Store) -> None:
    rows = alarms.alarm_list(store, "r")
    assert [(row.incident.number, row.detectors) for row in rows] == [(2, ("signatures",)), (1, ("behaviour",))]
    store.incidents.resolve(1, "patched", actor="ada", reason="gone", cycle=7)
    groups = alarms.grouped(alarms.alarm_list(store, "r"))
    assert [(each.detector, each.family, len(each.members)) for each in groups] == [
        ("signatures", NORTH, 1),
        ("behaviour", ALL, 1),
    ]
    rows = alarms.alarm_list(store, "r")

    def numbers(**asked: str) -> list[int]:
        return [row.incident.number for row in alarms.narrowed(rows, **asked)]

    assert numbers() == [2, 1]
    assert (numbers(state="not resolved"), numbers(state="resolved"), numbers(state="open")) == ([2], [1], [2])
    assert (numbers(detector="behaviour"), numbers(detector="drift")) == ([1], [])
    assert (numbers(severity="blocks"), numbers(severity="holds")) == ([2, 1], [])
    store.incidents.reopen(1, actor="ada", reason="back")
    rows = alarms.alarm_list(store, "r")
    assert (numbers(state="regressed"), numbers(state="accepted")) == ([1], [])
    store.incidents.resolve(2, "accepted", actor="ada", reason="fine", until_cycle=20)
    rows = alarms.alarm_list(store, "r")
    assert numbers(state="accepted") == [2]


def test_detectors_have_alarms_per_hundred_assessed_cycles_and_precision_by_votes(store: Store) -> None:
    store.incidents.vote(1, "useful", actor="ada")
    store.incidents.vote(2, "not_useful", actor="ada")
    rows = {row.detector: row for row in alarms.detector_table(store, "r")}
    behaviour, signatures, drift = rows["behaviour"], rows["signatures"], rows["drift"]
    # Asked in the six cycles 2 to 7; behaviour could assess five of them.
    assert (behaviour.checks, behaviour.alarms, behaviour.per_hundred, behaviour.evaluated) == (6, 1, 20.0, 7)
    assert signatures.per_hundred == pytest.approx(100 / 6)
    assert [each.what for each in signatures.unassessed] == ["x", "y"]
    assert (drift.checks, drift.per_hundred, drift.precision, drift.evaluated) == (0, None, None, None)
    assert behaviour.precision is not None
    wilson = stats.binomtest(1, 1).proportion_ci(method="wilson")
    assert (behaviour.precision.value, behaviour.precision.low) == (1.0, pytest.approx(wilson.low))
    # Another run's incidents are no alarms of this one.
    assert {row.alarms for row in alarms.detector_table(store, "other")} == {0}


# -- silences --------------------------------------------------------------------------------------------------------


def test_silence_is_told_where_it_matters_and_what_it_held_back_opens_when_it_is_ended(store: Store) -> None:
    made = alarms.silence(store, "r", "signatures", actor="ada", reason="known", until_cycle=12)
    check(store, 8, hack("tests_edited_rate", detector="signatures"))
    assert len(store.incidents.read("r")) == 2
    (seen,) = alarms.silences(store, "r")
    assert (seen.silence, seen.in_force, [each.cycle for each in seen.held]) == (made, True, [8])
    assert next(row for row in alarms.detector_table(store, "r") if row.detector == "signatures").silences == (made,)
    held = the(store, seen.held[0].finding_id)
    assert (held.incident, held.silence, held.held) == (None, made, True)
    assert standing(store, store.runs.get("r")).silences == (made,)  # type: ignore[arg-type]
    ended, opened = alarms.end_silence(store, made.number, actor="bob", reason="enough")
    assert ended.ended_by == "bob"
    assert [(each.number, each.opened_cycle) for each in opened] == [(3, 8)]
    assert not alarms.silences(store, "r")[0].in_force
    assert alarms.end_silence(store, made.number, actor="bob", reason="again")[1] == []


def test_silence_of_a_detector_that_there_is_not_is_refused_with_the_nearest(store: Store) -> None:
    with pytest.raises(StoreError, match="no detector 'behavior'; there is behaviour"):
        alarms.silence(store, "r", "behavior", actor="ada", reason="x", until_cycle=12)
    # One of a team's own, which spoke before, is known though it is not loaded here.
    store.findings.write("r", 9, [], [Report("our-own", assessed=1)])
    assert alarms.silence(store, "r", "our-own", actor="ada", reason="x", until_cycle=12).detector == "our-own"


# -- how it stands ---------------------------------------------------------------------------------------------------


def test_answer_is_by_the_newest_check_and_the_open_alarms(store: Store) -> None:
    def word(run: str = "r") -> str:
        found = store.runs.get(run)
        assert found is not None
        return standing(store, found).word

    assert word() == "wrong"
    assert word("other") == "unchecked"
    check(store, 8)
    assert word() == "wrong"  # the alarms are open still
    for number in (1, 2):
        store.incidents.act(number, actor="ada", what="patched", mitigates=True)
    assert word() == "look"
    for number in (1, 2):
        store.incidents.resolve(number, "patched", actor="ada", reason="gone")
    assert word() == "clear"
    store.verdicts.write(
        "r", 9, verdict="not_assessable", reasons=[], sentence="?", findings={}, budget="", as_of=None
    )  # fmt: skip
    assert word() == "doubt"
    store.verdicts.write("r", 9, verdict="warn", reasons=[], sentence="?", findings={}, budget="", as_of=None)
    assert word() == "look"


def test_lead_is_the_finding_that_the_verdict_speaks_of(store: Store) -> None:
    run = store.runs.get("r")
    assert run is not None
    found = standing(store, run)
    assert found.verdict is not None
    assert found.lead is not None
    assert (found.verdict.cycle, found.lead.cycle, found.lead.finding.after) == (7, 7, 0.7)


def test_timeline_says_what_happened_in_each_cycle_and_nothing_where_nothing_did(store: Store) -> None:
    store.checkpoints.add("r", "c5", cycle=5, parent_id="base", path="c5", sha256="")
    for verdict in ("hold", "block"):
        store.decisions.take(
            "r", "c5", after=store.decisions.highest("r", "c5"), cycle=5, verdict=verdict, kind=None, reasons=["x"],  # type: ignore[arg-type]
            sentence="", evidence={}, inputs={}, policy="p", policy_text="", expires_at=None,
        )  # fmt: skip
    moments = timeline(store, "r").moments
    assert [moment.cycle for moment in moments] == list(range(10))
    assert [moment.verdict for moment in moments] == [None] * 2 + ["pass"] * 2 + ["block"] * 4 + [None] * 2
    assert {moment.cycle: moment.opened for moment in moments if moment.opened} == {4: (1,), 6: (2,)}
    assert [moment.cycle for moment in moments if moment.changed] == [6]
    assert {moment.cycle: moment.gate for moment in moments if moment.gate != "pending"} == {5: "block"}


# -- the command line ------------------------------------------------------------------------------------------------


def run(home: Path, *words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, [*words, "--home", str(home)])
    assert result.exit_code == code, result.output
    return result.output


def test_commands_say_what_the_service_does(home: Path) -> None:
    said = json.loads(run(home, "alarms", "--run", "r", "--json"))
    assert [(each["number"], each["detectors"]) for each in said["alarms"]] == [(2, ["signatures"]), (1, ["behaviour"])]
    assert next(each for each in said["detectors"] if each["detector"] == "behaviour")["per_hundred"] == 20.0
    assert "asking in place of editing" in run(home, "alarms", "--run", "r")
    assert "no alarm (resolved)" in run(home, "alarms", "--run", "r", "--state", "resolved")
    assert "never asked" in run(home, "alarms", "--run", "r", "--detectors")


def test_silence_is_made_listed_and_ended_on_the_command_line(home: Path) -> None:
    assert "nothing is silenced" in run(home, "silence", "list", "--run", "r")
    words = ("silence", "add", "behaviour", "--reason", "known", "--run", "r", "--actor", "ada")
    made = json.loads(run(home, *words, "--until-cycle", "12", "--statistic", "edit_rate", "--json"))
    assert (made["number"], made["statistic"], made["until_cycle"], made["actor"]) == (1, "edit_rate", 12, "ada")
    assert "silence 1: behaviour on edit_rate, until cycle 12, by ada: known" in run(home, "alarms", "--run", "r")
    assert "in force" in run(home, "silence", "list", "--run", "r")
    assert "is over, ended by bob" in run(home, "silence", "end", "1", "--reason", "enough", "--actor", "bob")
    assert "nothing is silenced" in run(home, "silence", "list", "--run", "r")
    assert "ended by bob" in run(home, "silence", "list", "--run", "r", "--all")
    assert "until 2" in run(home, *words, "--until", f"{_soon():%Y-%m-%d}")


def _soon() -> Any:
    from datetime import UTC, datetime, timedelta

    return datetime.now(UTC) + timedelta(days=5)


def test_nothing_to_answer_from_is_exit_code_3_and_a_mistake_is_an_error(home: Path, tmp_path: Path) -> None:
    assert "no store" in run(tmp_path / "none", "alarms", code=3)
    (tmp_path / "empty").mkdir()
    Store.open(None, tmp_path / "empty").close()
    assert "no run yet" in run(tmp_path / "empty", "alarms", code=3)
    for words in (
        ("alarms", "--run", "zzz"),
        ("silence", "end", "7", "--reason", "x"),
        ("silence", "add", "behaviour", "--run", "r", "--reason", "x"),
        ("silence", "add", "behaviour", "--run", "r", "--reason", "", "--until-cycle", "12"),
        ("silence", "add", "nobody", "--run", "r", "--reason", "x", "--until-cycle", "12"),
    ):
        result = CliRunner().invoke(app, [*words, "--home", str(home)])
        assert isinstance(result.exception, StoreError), words


def test_hostile_names_are_printed_as_text(home: Path) -> None:
    strange = "\x1b[31mred\u202e"
    with Store.open(None, home) as store:
        found = hack(strange, f"organisation={strange}", detector=strange)
        store.findings.write("r", 8, [replace(found)], [Report(strange, assessed=1)])
        open_incidents(store, "r", 8)
        store.silences.add("r", strange, actor=strange, reason=strange, until_cycle=12)
    for words in (("alarms",), ("alarms", "--detectors"), ("silence", "list")):
        said = run(home, *words, "--run", "r")
        assert "\x1b" not in said
        assert "\u202e" not in said
