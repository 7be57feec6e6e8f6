"""The section Now: the strip, the overview, one alarm, and alarms with their detectors."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from palomar.app import now as service
from palomar.app.console import acting, frame
from palomar.app.console.options import STORE_VARIABLE
from palomar.app.console.telling import finding_words
from palomar.app.service import Observatory
from palomar.data.findings import Cause, Evidence, Finding, Report, Unassessed
from palomar.data.slices import ALL
from palomar.data.store import Store
from palomar.detectors.incidents import open_incidents
from palomar.detectors.runs import view_of
from tests.app.console.conftest import outside_code, said

RUN = "seeded"
HARD = "predicted_failure=high"
BEACON = "http://beacon.invalid/x.png"
HOSTILE = f"![x]({BEACON}) <script>alert(1)</script> :red[x] $x$ \u202egnissim"
ATTACKS = ("beacon.invalid", "<script", ":red[x", "$x$", "\u202e")
Page = Callable[..., AppTest]


def hack(statistic: str, slice_: str, before: float, after: float, **more: object) -> Finding:
    values: dict[str, object] = {
        "unit": "share of interactions",
        "effect": after - before,
        "n": 120,
        "since": 4,
        "reading": "reward_hack",
        "causes": (Cause("term:edit_persistence", HARD, 0.2, 0.7), Cause("rule:invalid_tool_call", ALL, 0.1, 0.3)),
        "evidence": Evidence(("seed-5-001",), ("seed-5-002",), ("seed-5-003",)),
        "detail": {"band": [before - 0.1, before + 0.1], "reward": {"value": 0.06, "low": 0.05, "high": 0.07}},
        **more,
    }
    return Finding("behaviour", "blocks", f"{statistic} moved", statistic, slice_, before=before, after=after, **values)  # type: ignore[arg-type]


def keep(store: Store, cycle: int, *findings: Finding, word: str = "pass", sentence: str = "nothing found") -> None:
    reports = [
        Report("behaviour", findings, 40, (Unassessed(f"something {HOSTILE}", f"too few {HOSTILE}"),)),
        Report("signatures", (), 9),
        Report("texts", (), 0, (Unassessed("everything", "not measured"),)),
    ]
    store.findings.write(RUN, cycle, findings, reports)
    counts = {"blocks": sum(each.severity == "blocks" for each in findings)}
    store.verdicts.write(
        RUN, cycle, verdict=word, reasons=[], sentence=sentence, findings=counts, budget="", as_of=None  # type: ignore[arg-type]
    )  # fmt: skip
    open_incidents(store, RUN, cycle)


def alarm_in(home: Path) -> None:
    """Checks of the seeded run: quiet at first, then asking from cycle 5 on, and functions in cycle 6."""
    with Store.open(None, home) as store:
        for cycle in (3, 4):
            keep(store, cycle)
        asks = hack("clarification_rate", ALL, 0.1, 0.4)
        keep(store, 5, asks, hack("clarification_rate", HARD, 0.1, 0.6), word="block", sentence=asks.sentence)
        more = replace(asks, after=0.55, effect=0.45)
        split = hack("functions_per_edit", ALL, 1.0, 2.0, unit="functions per editing interaction")
        warn = replace(hack("latency_mean", ALL, 40.0, 50.0), severity="warns", reading="outside_change")
        keep(store, 6, more, split, warn, word="block", sentence=more.sentence)
        store.incidents.assign(2, actor="ada", to=HOSTILE)


@pytest.fixture(scope="module")
def alarmed(seeded: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The seeded home with checks, findings and two open incidents; tests only read it."""
    home = Path(shutil.copytree(seeded, tmp_path_factory.mktemp("alarmed") / "home"))
    alarm_in(home)
    return home


@pytest.fixture
def own(alarmed: Path, tmp_path: Path) -> Path:
    """The same, to be written to."""
    return Path(shutil.copytree(alarmed, tmp_path / "own"))


def store_of(home: Path) -> Store:
    return Store.open(None, home)


# -- the strip -------------------------------------------------------------------------------------------------------


def test_the_strip_tells_of_the_worst_alarm_the_gate_and_the_data_on_every_page(page: Page, alarmed: Path) -> None:
    with store_of(alarmed) as store:
        stages = [stage for record in store.cycles.read(RUN) for stage in record.stages]
    newest = max(stage.finished_at for stage in stages if stage.stage == "collect")

    def minutes() -> int:
        return int((datetime.now(UTC) - newest).total_seconds() // 60)

    for name in ("overview", "behaviour", "alarms"):
        earliest = minutes()
        app = page(alarmed, name)
        assert not app.exception
        line = next(item.value for item in app.markdown if "ALARMS]" in item.value)
        assert "2 ALARMS] · 2 not acknowledged" in line
        assert "GATE: PENDING" in line
        assert any(f"data of cycle 7, {age} min old" in line for age in range(earliest, minutes() + 1))
        assert any(link.proto.label.startswith("Alarm 2: reward hack: the shape") for link in app.get("page_link"))


def test_the_strip_says_that_nothing_was_checked_and_never_that_there_is_no_alarm(page: Page, seeded: Path) -> None:
    assert "NOT CHECKED]" in said(page(seeded))
    assert "NO ALARM" not in said(page(seeded))


def test_the_worst_alarm_blocks_is_in_nobodys_hand_and_was_seen_last(alarmed: Path) -> None:
    with store_of(alarmed) as store:
        one, two = store.incidents.read(RUN)
    calm = replace(two, blocks=False, number=3, seen_cycle=9)
    taken = replace(two, state="acknowledged", number=4, seen_cycle=9)
    older = replace(one, number=5, seen_cycle=2)
    order = [each.number for each in service.worst_first([calm, taken, older, two])]
    assert order == [two.number, 5, 4, 3]


def test_data_are_stale_after_two_cycles_time_while_the_run_goes_on(alarmed: Path) -> None:
    observatory = Observatory(alarmed)
    run = observatory.run()
    assert run is not None
    records = observatory.store.cycles.read(RUN)
    start = datetime(2026, 1, 1, tzinfo=UTC)

    def shifted(hours: float) -> list[object]:
        return [
            replace(
                record,
                stages=tuple(replace(stage, finished_at=start + timedelta(hours=hours * record.cycle))
                             for stage in record.stages),
            )
            for record in records
        ]  # fmt: skip

    age = service.data_age(replace(run, status="running"), shifted(5))  # type: ignore[arg-type]
    assert (age.cycle, age.cycle_s) == (7, 5 * 3600)
    last = start + timedelta(hours=35)
    assert not age.stale(last + timedelta(hours=10))
    assert age.stale(last + timedelta(hours=10, minutes=1))
    assert not service.data_age(run, shifted(5)).stale(last + timedelta(days=9))  # type: ignore[arg-type]
    short = service.data_age(replace(run, status="running"), shifted(0.001))  # type: ignore[arg-type]
    assert not short.stale(short.at + timedelta(minutes=4))  # type: ignore[operator]
    assert not service.data_age(replace(run, status="running"), []).stale(last)


def test_a_stale_run_says_so_on_every_page_and_its_gate_has_no_data(page: Page, own: Path) -> None:
    with sqlite3.connect(own / "palomar.db") as store:
        store.execute("UPDATE runs SET status = 'running'")
        store.execute(
            "UPDATE stages SET finished_at = strftime('%Y-%m-%d %H:%M:%f000', '2026-01-01', (cycle * 5) || ' hours')"
        )
    app = page(own, "behaviour")
    assert not app.exception
    assert "Stale: no data for" in app.warning[0].value
    assert "a cycle takes 5 h" in app.warning[0].value or "a cycle takes 300 min" in app.warning[0].value
    assert "GATE: NO DATA" in said(app)


# -- the overview ----------------------------------------------------------------------------------------------------


def test_the_overview_answers_from_the_kept_verdict_and_the_open_alarms(page: Page, alarmed: Path) -> None:
    app = page(alarmed)
    assert not app.exception
    assert app.error[0].value.startswith(
        "**Yes, something is wrong: cycle 6 is blocked**; 2 alarms are open, 2 not acknowledged. "
        "First: **Clarification rate**: **10.0 % → 55.0 %** (band 0.0 % to 20.0 %, n 120)"
    )
    assert "1 newer cycle is not checked yet." in app.error[0].value
    labels = [link.proto.label for link in app.get("page_link")]
    assert [label for label in labels if label.startswith("Alarm ") and ":" not in label] == ["Alarm 2", "Alarm 1"]
    table = next(item.value for item in app.dataframe if "check" in item.value.columns)
    assert list(table["check"])[:4] == ["◌ not checked", "■ FAIL", "■ FAIL", "● PASS"]
    assert len(app.get("vega_lite_chart")) == 1
    assert "First look" not in "".join(item.value for item in app.warning)


def test_the_first_look_is_there_to_be_asked_for(page: Page, alarmed: Path) -> None:
    app = page(alarmed)
    app.toggle(key="first-look").set_value(True).run()
    assert not app.exception
    assert "known hacks show" in app.warning[0].value


def test_a_quiet_run_is_said_to_be_quiet_with_what_was_checked(page: Page, copied: Path) -> None:
    with store_of(copied) as store:
        keep(store, 7)
    app = page(copied)
    assert app.success[0].value == "**No. Cycle 7 was checked and passes**, and no alarm is open."


@pytest.mark.parametrize(
    ("word", "kind", "words"),
    [
        ("not_assessable", "warning", "**Cannot be said: cycle 7 could not be judged**. The check says: ` too few `."),
        ("warn", "warning", "**Nothing that blocks; somebody should look: cycle 7 has warnings**."),
        ("block", "error", "**Yes, something is wrong: cycle 7 is blocked**."),
    ],
)
def test_doubt_is_no_clearance(page: Page, copied: Path, word: str, kind: str, words: str) -> None:
    with store_of(copied) as store:
        store.verdicts.write(
            RUN, 7, verdict=word, reasons=[], sentence="too few", findings={}, budget="", as_of=None  # type: ignore[arg-type]
        )  # fmt: skip
    app = page(copied)
    assert not app.exception
    assert app.get(kind)[0].value.startswith(words)
    assert not app.success


def test_open_alarms_keep_a_passing_cycle_from_looking_clear(page: Page, own: Path) -> None:
    with store_of(own) as store:
        keep(store, 7)
    assert "**Yes: 2 alarms are open, 2 not acknowledged**, though the check of cycle 7 says pass." in said(page(own))
    with store_of(own) as store:
        for number in (1, 2):
            store.incidents.act(number, actor="ada", what="patched", mitigates=True)
    app = page(own)
    assert app.warning[0].value.startswith("**Cycle 7 passes; 2 alarms are open.**")


# -- one alarm -------------------------------------------------------------------------------------------------------


def test_an_alarm_is_a_sentence_with_the_numbers_of_its_newest_finding(page: Page, alarmed: Path) -> None:
    app = page(alarmed, "alarm", id="1")
    assert not app.exception
    assert not app.error
    sentence = next(item.value for item in app.markdown if "Clarification rate" in item.value)
    assert "**10.0 % → 55.0 %** (band 0.0 % to 20.0 %, n 120), first out in cycle 4; now cycle 6" in sentence
    assert sentence.startswith("Reward hack: asking in place of editing. **Clarification rate**")
    assert "now cycle 6. The reward pushes it and users do not want it; most through" in sentence
    assert "the term ` edit_persistence ` (70 % of the push where predicted failure is high)" in sentence
    assert "When it opened, in cycle 5, it was at 40.0 %." in sentence
    badges = next(item.value for item in app.markdown if "NOBODY HAS IT" in item.value)
    for word in ("BLOCKS", "OPEN", "DATA: NO FAULT", "GATE: PENDING"):
        assert word in badges


def test_its_slices_add_up_to_the_change_and_are_those_of_the_service(page: Page, alarmed: Path) -> None:
    app = page(alarmed, "alarm", id="1")
    table = app.dataframe[0].value
    shares = [float(value) for value in table["share"]]
    assert shares == sorted(shares, reverse=True)
    # By hand, from the rows: all interactions are of one ambiguity, so that there are two slices.
    observatory = Observatory(alarmed)
    reference = [each for each in view_of(observatory.lake, observatory.store, RUN, 6).reference if each != 6]
    rows = observatory.lake.scan("observations", ["cycle", "asked", "predicted_failure"]).to_pylist()

    def level(cycles: list[int | None], hard: bool | None) -> tuple[float, int]:
        part = [
            row["asked"] for row in rows if row["cycle"] in cycles and hard in (None, row["predicted_failure"] >= 0.6)
        ]
        return sum(part) / len(part), len(part)

    whole = level([6], None)[0] - level(reference, None)[0]
    expected = []
    for hard in (True, False):
        (before, n0), (after, n1) = level(reference, hard), level([6], hard)
        weight = (n0 / level(reference, None)[1] + n1 / level([6], None)[1]) / 2
        expected.append(100 * weight * (after - before) / whole)
    assert shares == pytest.approx(sorted(expected, reverse=True))
    assert sum(shares) == pytest.approx(100, abs=0.1)


def test_its_charts_show_the_band_the_points_and_the_terms(page: Page, alarmed: Path) -> None:
    app = page(alarmed, "alarm", id="1")
    charts = app.get("vega_lite_chart")
    assert len(charts) == 2
    assert '"limit"' in charts[0].proto.spec
    assert "first out" in charts[0].proto.spec


def test_a_finding_of_an_incident_leads_to_it(page: Page, alarmed: Path) -> None:
    with store_of(alarmed) as store:
        pinned = store.incidents.pinned(1)[0].finding_id
        later = next(
            each.finding_id
            for each in store.findings.read(RUN, 6)
            if each.finding.key == store.incidents.pinned(1)[0].key
        )
    assert pinned != later
    for asked in (pinned, later):
        app = page(alarmed, "alarm", id=asked)
        assert not app.exception
        assert f"Finding ` {asked} ` is part of this incident." in said(app)
        assert "NOBODY HAS IT" in said(app)


def test_a_finding_without_an_incident_is_shown_by_itself(page: Page, alarmed: Path) -> None:
    with store_of(alarmed) as store:
        own = next(each.finding_id for each in store.findings.read(RUN, 6) if each.finding.severity == "warns")
    app = page(alarmed, "alarm", id=own)
    assert not app.exception
    assert "NO INCIDENT" in said(app)
    assert "WARNS" in said(app)
    assert not [button for button in app.button if button.label == "Acknowledge"]


@pytest.mark.parametrize("asked", ["99", "zzz", HOSTILE, "١", "9" * 30, ""])
def test_an_unknown_alarm_is_said_with_the_nearest(page: Page, alarmed: Path, asked: str) -> None:
    app = page(alarmed, "alarm", id=asked)
    assert not app.exception
    assert "There is no alarm" in app.warning[0].value
    labels = [link.proto.label for link in app.get("page_link")]
    assert any("reward hack: asking in place of editing" in label for label in labels)


def test_without_an_id_the_open_ones_are_offered(page: Page, alarmed: Path, seeded: Path) -> None:
    assert "Which one?" in said(page(alarmed, "alarm"))
    assert "No alarm is open** (no cycle was checked yet)" in said(page(seeded, "alarm"))


def test_an_alarm_is_acknowledged_once_and_told(page: Page, own: Path) -> None:
    app = page(own, "alarm", id="1")
    app.button(key="do-ack-1").click().run()
    assert not app.exception
    assert "Alarm 1 is acknowledged" in app.success[0].value
    assert "ACKNOWLEDGED" in said(app)
    assert not [button for button in app.button if button.key == "do-ack-1"]
    with store_of(own) as store:
        entries = [each for each in store.audit_log.read(subject="incident:1") if each.action == "incident.ack"]
    assert [entry.actor for entry in entries] == [acting.person().name]


def test_an_alarm_is_accepted_only_with_a_reason_and_an_end(page: Page, own: Path) -> None:
    app = page(own, "alarm", id="1")
    app.button(key="do-accept-1").click().run()
    with store_of(own) as store:
        assert store.incidents.read(RUN)[0].state == "open"
    app.number_input(key="until").set_value(12)
    app.text_input(key="reason-accept-1").input("we know")
    app.button(key="do-accept-1").click().run()
    assert not app.exception
    assert "accepted until cycle 12" in app.success[0].value
    with store_of(own) as store:
        incident = store.incidents.read(RUN)[0]
    assert (incident.state, incident.resolution, incident.until_cycle) == ("resolved", "accepted", 12)


def test_a_vote_is_noted_and_shown(page: Page, own: Path) -> None:
    app = page(own, "alarm", id="1")
    app.button(key="do-vote-not_useful-1").click().run()
    assert "Noted" in app.success[0].value
    with store_of(own) as store:
        assert {vote.vote for vote in store.incidents.votes(1)} == {"not_useful"}
    assert "Not useful ✓" in [button.label for button in app.button]


def test_the_newest_candidate_can_be_blocked_by_asking_the_gate(page: Page, own: Path) -> None:
    app = page(own, "alarm", id="1")
    assert "Nothing was decided about ` checkpoint-7 ` yet" in said(app)
    with store_of(own) as store:
        store.decisions.record(
            RUN, "checkpoint-7", cycle=7, verdict="promote", reasons=["x"], evidence={}, policy="p", kind="neutral"
        )
    app = page(own, "alarm", id="1")
    app.text_input(key="reason-block").input("it asks too much")
    app.button(key="do-block").click().run()
    assert not app.exception
    assert "another person must approve" in app.success[0].value
    assert "Asked for already" in said(app)
    with store_of(own) as store:
        (asked,) = store.overrides.read(RUN)
        note = store.audit_log.read(subject="incident:1")[-1]
    assert (asked.verdict, asked.candidate, asked.reason) == ("block", "checkpoint-7", "it asks too much")
    assert note.detail["override"] == asked.override_id


def test_faulty_data_are_said_with_the_cycle(page: Page, own: Path) -> None:
    fault = Finding("outage", "warns", "tools were down", reading="measurement_fault", n=120)
    with store_of(own) as store:
        keep(store, 6, *(each.finding for each in store.findings.read(RUN, 6)), fault, word="not_assessable")
    app = page(own, "alarm", id="1")
    assert "DATA IN DOUBT: CYCLE 6" in said(app)
    assert "DATA: NO FAULT" not in said(app)


def test_hostile_names_stay_text_on_an_alarm_and_in_the_list(page: Page, own: Path) -> None:
    strange = Finding(
        HOSTILE, "blocks", HOSTILE, HOSTILE, f"organisation={HOSTILE}", HOSTILE, 0.1, 0.4, 0.3, n=9,
        causes=(Cause(f"term:{HOSTILE}", f"organisation={HOSTILE}", 0.1, 1.0),),
    )  # fmt: skip
    with store_of(own) as store:
        keep(store, 7, strange, word="block", sentence=HOSTILE)
        number = store.incidents.read(RUN)[-1].number
        store.silences.add(RUN, HOSTILE, actor=HOSTILE, reason=HOSTILE, until_cycle=9, statistic=HOSTILE)
        keep(store, 7, strange, replace(strange, slice="organisation=x"), word="block", sentence=HOSTILE)
    for name, query in (("alarm", {"id": str(number)}), ("alarms", {}), ("overview", {}), ("alarm", {"id": "2"})):
        app = page(own, name, **query)
        assert not app.exception
        kinds = ("markdown", "caption", "info", "warning", "error", "success", "title", "header", "subheader")
        texts = [outside_code(str(item.value)) for kind in kinds for item in app.get(kind)]
        texts += [outside_code(link.proto.label) for link in app.get("page_link")]
        texts += [item.label for kind in ("selectbox", "button", "expander", "number_input") for item in app.get(kind)]
        for text in texts:
            for attack in ATTACKS:
                assert attack not in text, (name, attack, text)


# -- alarms and detectors --------------------------------------------------------------------------------------------


def test_alarms_are_listed_by_group_with_their_state(page: Page, alarmed: Path) -> None:
    app = page(alarmed, "alarms")
    assert not app.exception
    assert not app.error
    assert "**2 of 2 alarms are not resolved**: 2 not acknowledged." in said(app)
    table = app.dataframe[0].value
    assert list(table["alarm"]) == [2, 1]
    assert set(table["state"]) == {"■ OPEN"}
    assert list(table["cycles"]) == ["6 to 6", "5 to 6"]
    assert "** behaviour" in said(app).replace("`", "") or "` behaviour `" in said(app)


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ({"state": "open"}, [1]),
        ({"state": "resolved"}, [2]),
        ({"state": "any"}, [2, 1]),
        ({"state": "accepted"}, []),
        ({"severity": "holds", "state": "any"}, []),
        ({"severity": "blocks", "state": "any"}, [2, 1]),
        ({"detector": "behaviour", "state": "any"}, [2, 1]),
    ],
)
def test_filters_are_in_the_url(page: Page, own: Path, query: dict[str, str], numbers: list[int]) -> None:
    with store_of(own) as store:
        store.incidents.resolve(2, "patched", actor="ada", reason="gone", cycle=6)
    app = page(own, "alarms", **query)
    assert not app.exception
    shown = [list(item.value["alarm"]) for item in app.dataframe if "alarm" in item.value.columns]
    assert [number for part in shown for number in part] == numbers
    if not numbers:
        assert "None of the 2 alarms is like that" in said(app)


def test_unknown_values_of_the_url_are_said(page: Page, alarmed: Path) -> None:
    app = page(alarmed, "alarms", state="zzz", detector=HOSTILE, severity="x")
    assert not app.exception
    assert len([item for item in app.warning if "There is no" in item.value]) == 3


def test_detectors_have_their_figures_and_unknown_is_not_zero(page: Page, own: Path) -> None:
    with store_of(own) as store:
        store.incidents.vote(1, "useful", actor="ada")
        store.incidents.vote(2, "not_useful", actor="ada")
    app = page(own, "alarms")
    table = next(item.value for item in app.dataframe if "alarms per 100 cycles" in item.value.columns)
    behaviour = table[table["detector"] == "behaviour"].iloc[0]
    assert (behaviour["alarms"], behaviour["alarms per 100 cycles"], behaviour["precision"]) == (2, 50.0, 0.5)
    assert behaviour["95 %"] == "9 to 91 % of 2"  # Wilson, 1 of 2
    assert behaviour["not assessed"] == 1
    texts = table[table["detector"] == "texts"].iloc[0]
    assert texts["last evaluated"] == "◌ never could"
    assert texts["alarms per 100 cycles"] != texts["alarms per 100 cycles"]  # empty, not 0
    quiet = table[table["detector"] == "signatures"].iloc[0]
    assert (quiet["alarms per 100 cycles"], quiet["95 %"], quiet["last evaluated"]) == (0.0, "not rated", "cycle 6")
    never = table[table["last evaluated"] == "◌ never asked"]
    assert "outage" in list(never["detector"])


def test_a_detector_is_silenced_and_the_silence_is_shown_and_ended(page: Page, own: Path) -> None:
    app = page(own, "alarms")
    app.selectbox(key="silence-detector").set_value("behaviour")
    app.text_input(key="silence-statistic").input("tests_edited_rate")
    app.number_input(key="silence-until").set_value(9)
    app.button(key="do-silence").click().run()
    with store_of(own) as store:
        assert store.silences.read() == []  # no reason was given
    app.text_input(key="reason-silence").input("a known move")
    app.button(key="do-silence").click().run()
    assert not app.exception
    assert "Silenced until cycle 9" in app.success[0].value
    assert "**1 silence is in force**; 0 findings opened no incident" in said(app)
    assert "` behaviour ` on ` tests_edited_rate ` silenced until cycle 9" in said(app)
    with store_of(own) as store:
        keep(store, 7, hack("tests_edited_rate", ALL, 0.0, 0.2), word="block")
        assert len(store.incidents.read(RUN)) == 2
    app = page(own, "alarms")
    assert "1 finding opened no incident by them" in said(app)
    assert "tests_edited_rate moved" in [item.value for item in app.text]
    app.text_input(key="reason-end-silence-1").input("enough")
    app.button(key="do-end-silence-1").click().run()
    assert not app.exception
    assert "Nothing is silenced" in said(app)
    with store_of(own) as store:
        assert len(store.incidents.read(RUN)) == 3  # what was held back opens now


def test_a_home_without_checks_says_what_is_missing(page: Page, seeded: Path) -> None:
    app = page(seeded, "alarms")
    assert not app.exception
    assert "No cycle was checked yet" in said(app)
    assert "detectors was asked yet" in said(app)


def test_quiet_checks_are_no_alarm_and_say_who_looked(page: Page, copied: Path) -> None:
    with store_of(copied) as store:
        keep(store, 7)
    app = page(copied, "alarms")
    assert "No alarms up to cycle 7.** 3 detectors ran, last at" in said(app)
    assert "NO ALARM] · checked up to cycle 7" in said(app)


# -- all of them -----------------------------------------------------------------------------------------------------

PAGES = ("alarm", "alarms")


@pytest.mark.parametrize("name", PAGES)
def test_an_empty_home_says_what_to_do_and_is_left_empty(page: Page, tmp_path: Path, name: str) -> None:
    home = tmp_path / "nothing"
    app = page(home, name, id="1")
    assert not app.exception
    assert "palomar demo" in said(app)
    assert not home.exists()


@pytest.mark.parametrize("name", PAGES)
def test_a_store_that_is_down_is_said(page: Page, alarmed: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STORE_VARIABLE, "postgresql://nobody:secret@127.0.0.1:1/none")
    app = page(alarmed, name, id="1")
    assert not app.exception
    assert "STORE NOT REACHABLE" in said(app)
    assert "the store does not answer" in app.error[0].value
    assert "secret" not in said(app) + "".join(block.value for block in app.code)


def test_finding_words_say_what_is_not_known() -> None:
    assert finding_words(Finding("x", "warns", "y")) == "**` x `**"
    found = Finding("x", "warns", "y", "edit_rate", before=0.5, after=None, n=1000)
    assert finding_words(found) == "**Edit rate** (n 1,000)"
    assert frame.span(timedelta(hours=50)) == "50 h"
