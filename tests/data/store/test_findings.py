"""Findings, reports, verdicts, baselines and forecasts, on SQLite and on a real PostgreSQL: each test runs on both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, event, text

from palomar.data.errors import StoreError
from palomar.data.findings import Cause, Evidence, Finding, Reading, Report, Severity, Unassessed
from palomar.data.schema import content_id
from palomar.data.slices import ALL
from palomar.data.store import Store
from palomar.data.store.records import CycleVerdict, Forecast

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
HARD = "predicted_failure=high"


def finding(statistic: str | None = "clarification_rate", slice: str = ALL, **more: Any) -> Finding:
    return Finding("drift", "blocks", "asks more", statistic, slice, **more)


def kept(store: Store, cycle: int | None = None, **asked: Any) -> list[Finding]:
    return [stored.finding for stored in store.findings.read("demo", cycle, **asked)]


def forecast(made_in: int, *, for_cycle: int | None = None, slice: str = ALL, **more: Any) -> Forecast:
    later = made_in + 1 if for_cycle is None else for_cycle
    said = {"value": 0.5, "change": -0.1, "low": 0.4, "high": 0.6, "step": 0.2, **more}
    return Forecast(made_in, later, "edit_rate", slice=slice, **said)


# --- findings


def test_finding_is_found_under_its_run_cycle_and_id(store: Store) -> None:
    store.findings.write("demo", 1, [finding()])
    (stored,) = store.findings.read("demo", 1)
    assert (stored.run_id, stored.cycle, stored.candidate) == ("demo", 1, None)
    assert stored.finding_id == content_id("demo", "1", finding().key)
    assert abs(datetime.now(UTC) - stored.recorded_at) < timedelta(minutes=1)
    assert store.findings.get(stored.finding_id) == stored
    assert store.findings.get("nothing") is None


def test_checking_a_cycle_again_leaves_nothing_of_the_first_time(store: Store) -> None:
    store.findings.write("demo", 1, [finding(), finding("edit_rate")], [Report("drift", assessed=9)])
    store.findings.write("demo", 2, [finding()], [Report("drift", assessed=9)])
    store.runs.add("second", name="second", seed=1, config={})
    store.cycles.start("second", 1)
    store.findings.write("second", 1, [finding()], [Report("drift", assessed=9)])
    store.findings.write("demo", 1, [finding("edit_rate", n=7)], [Report("selection", assessed=2)])
    assert kept(store) == [finding("edit_rate", n=7), finding()]
    assert store.findings.reports("demo", 1) == [Report("selection", assessed=2)]
    assert [report.detector for report in store.findings.reports("demo", 2)] == ["drift"]
    assert len(store.findings.read("second")) == 1
    store.findings.write("demo", 1, [])
    assert store.findings.read("demo", 1) == []
    assert store.findings.reports("demo", 1) == []


def test_same_thing_found_twice_keeps_its_id_when_checked_again(store: Store) -> None:
    store.findings.write("demo", 1, [finding()])
    first = store.findings.read("demo", 1)[0].finding_id
    store.findings.write("demo", 1, [finding("edit_rate"), finding(n=5)])
    store.findings.write("demo", 2, [finding()])
    ids = [stored.finding_id for stored in store.findings.read("demo", key=finding().key)]
    assert ids[0] == first
    assert len({*ids}) == 2


def test_findings_with_one_key_are_all_kept(store: Store) -> None:
    found = [finding(detail={"term": name}) for name in ("a", "b", "c")]
    store.findings.write("demo", 0, found)
    stored = store.findings.read("demo", 0)
    assert [each.finding for each in stored] == found
    assert len({each.finding_id for each in stored}) == 3
    assert [store.findings.get(each.finding_id) for each in stored] == stored


def test_findings_are_read_by_cycle_key_and_reading_oldest_first(store: Store) -> None:
    hack, plain = finding(reading="reward_hack"), finding("edit_rate", HARD)
    for cycle in (2, 0, 1):
        store.findings.write("demo", cycle, [hack, plain] if cycle else [plain])
    cycles = [(stored.cycle, stored.finding.statistic) for stored in store.findings.read("demo")]
    assert cycles == [
        (0, "edit_rate"),
        (1, "clarification_rate"),
        (1, "edit_rate"),
        (2, "clarification_rate"),
        (2, "edit_rate"),
    ]
    assert kept(store, 1, key=plain.key) == [plain]
    assert [stored.cycle for stored in store.findings.read("demo", key=plain.key)] == [0, 1, 2]
    assert [stored.cycle for stored in store.findings.read("demo", reading="reward_hack")] == [1, 2]
    assert kept(store, reading="forewarning") == []
    assert kept(store, 3) == []
    newest = store.findings.read("demo", newest=3)
    assert [(stored.cycle, stored.finding) for stored in newest] == [(1, hack), (2, hack), (2, plain)]
    assert [stored.cycle for stored in store.findings.read("demo", key=plain.key, newest=2)] == [1, 2]


def test_findings_about_a_candidate_are_kept_apart_from_those_about_its_cycle(store: Store) -> None:
    store.findings.write("demo", 1, [finding()], [Report("drift", assessed=9)])
    store.findings.write("demo", 1, [finding(n=3)], [Report("paired", assessed=4)], candidate="c1")
    store.findings.write("demo", 1, [finding(n=1)], [Report("drift", assessed=9)])
    assert kept(store, 1) == kept(store) == [finding(n=1)]
    assert kept(store, 1, candidate="c1") == kept(store, candidate="c1") == [finding(n=3)]
    assert store.findings.reports("demo", 1, candidate="c1") == [Report("paired", assessed=4)]
    (stored,) = store.findings.read("demo", candidate="c1")
    assert stored.candidate == "c1"
    assert stored.finding_id != store.findings.read("demo", 1)[0].finding_id


def test_what_could_not_be_assessed_is_kept_beside_what_was(store: Store) -> None:
    reports = [
        Report("drift", (finding(),), 212, (Unassessed("latency_mean, all", "no rows: it takes 30"),), "sees 2 points"),
        Report("selection", (), 0, (Unassessed("everything", "no samples"), Unassessed("a", "b")), ""),
    ]
    store.findings.write("demo", 1, [finding()], reports)
    assert store.findings.reports("demo", 1) == reports
    assert store.findings.reports("demo", 2) == []


def test_report_comes_back_with_the_findings_as_they_were_read(store: Store) -> None:
    read = finding(reading="reward_hack")
    store.findings.write("demo", 1, [read], [Report("drift", (finding(),), 5)])
    assert store.findings.reports("demo", 1) == [Report("drift", (read,), 5)]


def test_findings_of_a_cycle_that_was_never_begun_are_refused(store: Store) -> None:
    for write in (
        lambda: store.findings.write("demo", 99, [finding()]),
        lambda: store.findings.write("demo", 99, [], [Report("drift")]),
        lambda: verdict(store, 99),
        lambda: store.forecasts.write("demo", 99, [forecast(99)]),
    ):
        with pytest.raises(StoreError, match=r"(?i)refers to a run|foreign key"):
            write()
    with pytest.raises(StoreError, match="no run 'nobody'"):
        store.findings.write("nobody", 0, [])


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (finding(effect=float("nan")), "nan is not a number"),
        (finding(detail={"e": float("inf")}), "not JSON compliant"),
        (finding(causes=(Cause("term:a", ALL, float("nan"), 1.0),)), "not JSON compliant"),
        (finding(reading="hack"), "'hack' is not one of reward_hack, "),
        (replace(finding(), severity="kills"), "'kills' is not one of blocks, "),  # type: ignore[arg-type]
    ],
)
def test_finding_that_cannot_be_kept_is_refused_and_the_old_ones_stay(store: Store, bad: Finding, problem: str) -> None:
    store.findings.write("demo", 1, [finding()])
    with pytest.raises(StoreError, match=problem):
        store.findings.write("demo", 1, [finding("edit_rate"), bad])
    assert kept(store) == [finding()]


# --- what is stored is what is read

TEXTS = st.one_of(st.text(max_size=30), st.text(st.sampled_from("\x00\ud800\udfff\ufffe0AF'"), max_size=12))
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
"""A key is a hash of UTF-8, so the names that it is made of hold no lone surrogates."""
NUMBERS = st.none() | st.floats(allow_nan=False, allow_infinity=False)
WHOLES = st.integers(-(2**63), 2**63 - 1)
IDS = st.lists(TEXTS, max_size=3).map(tuple)
CAUSES = st.builds(Cause, TEXTS, TEXTS, *[st.floats(allow_nan=False, allow_infinity=False)] * 2)
FINDINGS = st.builds(
    Finding,
    detector=NAMES,
    severity=st.sampled_from(get_args(Severity)),
    sentence=TEXTS,
    statistic=st.none() | NAMES,
    slice=NAMES,
    unit=st.none() | TEXTS,
    **dict.fromkeys(("before", "after", "effect", "low", "high", "test", "threshold", "maturity", "smallest"), NUMBERS),
    error_control=TEXTS,
    n=WHOLES,
    since=st.none() | WHOLES,
    reading=st.none() | st.sampled_from(get_args(Reading)),
    causes=st.lists(CAUSES, max_size=3).map(tuple),
    evidence=st.builds(Evidence, IDS, IDS, IDS),
    detail=st.dictionaries(
        TEXTS,
        st.recursive(
            NUMBERS | st.booleans() | st.integers() | TEXTS,
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
            max_leaves=6,
        ),
        max_size=3,
    ),
)
REPORTS = st.builds(
    Report,
    detector=TEXTS,
    assessed=WHOLES,
    unassessed=st.lists(st.builds(Unassessed, TEXTS, TEXTS), max_size=3).map(tuple),
    power=TEXTS,
)
ON_ONE_STORE = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@ON_ONE_STORE
@given(found=st.lists(FINDINGS, max_size=4))
def test_findings_come_back_as_written(store: Store, found: list[Finding]) -> None:
    store.findings.write("demo", 0, found)
    stored = store.findings.read("demo", 0)
    assert [each.finding for each in stored] == found
    assert [each.finding.key for each in stored] == [each.key for each in found]
    assert len({each.finding_id for each in stored}) == len(found)
    for each in stored:
        assert each in store.findings.read("demo", key=each.finding.key)
        if each.finding.reading is not None:
            assert each in store.findings.read("demo", reading=each.finding.reading)


@ON_ONE_STORE
@given(reports=st.lists(REPORTS, max_size=4, unique_by=lambda report: report.detector))
def test_reports_come_back_as_written(store: Store, reports: list[Report]) -> None:
    store.findings.write("demo", 0, [], reports)
    by_detector = {report.detector: report for report in store.findings.reports("demo", 0)}
    assert by_detector == {report.detector: report for report in reports}


@ON_ONE_STORE
@given(
    word=st.sampled_from(get_args(CycleVerdict)),
    reasons=st.lists(TEXTS, max_size=3),
    sentence=TEXTS,
    about=st.tuples(
        st.dictionaries(st.sampled_from(get_args(Severity)), st.integers(0, 99)),
        st.none() | st.datetimes(timezones=st.just(UTC)),
    ),
)
def test_verdicts_come_back_as_written(
    store: Store, word: Any, reasons: list[str], sentence: str, about: tuple[Any, datetime | None]
) -> None:
    counts, as_of = about
    given_ = {"verdict": word, "reasons": reasons, "sentence": sentence, "findings": counts, "budget": sentence}
    written = store.verdicts.write("demo", 0, **given_, as_of=as_of)
    assert (written.verdict, list(written.reasons), written.sentence) == (word, reasons, sentence)
    assert (written.findings, written.budget, written.as_of) == (counts, sentence, as_of)
    assert store.verdicts.get("demo", 0) == written


@ON_ONE_STORE
@given(numbers=st.lists(NUMBERS, min_size=3, max_size=3), value=NUMBERS.filter(lambda x: x is not None), name=TEXTS)
def test_forecasts_come_back_as_written(store: Store, numbers: list[float | None], value: float, name: str) -> None:
    row = Forecast(0, 1, name, value, value, name, *numbers)
    store.forecasts.write("demo", 0, [row])
    assert store.forecasts.read("demo", statistic=name, slice=name) == [row]


# --- verdicts


def verdict(store: Store, cycle: int, **change: Any) -> Any:
    given_ = {"verdict": "block", "reasons": ["reward_hack"], "sentence": "asks more", "findings": {"blocks": 1}}
    return store.verdicts.write("demo", cycle, **{**given_, "budget": "5 per 1000 cycles", "as_of": NOW, **change})


def test_verdict_is_replaced_when_the_cycle_is_checked_again(store: Store) -> None:
    first = verdict(store, 1)
    second = verdict(store, 1, verdict="pass", reasons=[], findings={}, as_of=None)
    assert (second.verdict, second.reasons, second.findings, second.as_of) == ("pass", (), {}, None)
    assert second.checked_at >= first.checked_at
    assert store.verdicts.read("demo") == [second]
    assert store.verdicts.get("demo", 2) is None


def test_verdict_on_a_candidate_is_another_than_that_on_its_cycle(store: Store) -> None:
    of_cycle = verdict(store, 1)
    of_candidate = verdict(store, 1, verdict="warn", candidate="c1")
    assert (of_cycle.candidate, of_candidate.candidate) == (None, "c1")
    assert store.verdicts.get("demo", 1) == of_cycle
    assert store.verdicts.get("demo", 1, candidate="c1") == of_candidate
    assert store.verdicts.read("demo") == [of_cycle]


def test_verdicts_are_listed_oldest_first_and_may_be_cut_to_the_newest(store: Store) -> None:
    for cycle in (2, 0, 3, 1):
        verdict(store, cycle)
    assert [checked.cycle for checked in store.verdicts.read("demo")] == [0, 1, 2, 3]
    assert [checked.cycle for checked in store.verdicts.read("demo", newest=2)] == [2, 3]


def test_word_that_is_no_verdict_is_refused(store: Store) -> None:
    with pytest.raises(StoreError, match="'promote' is not one of pass, warn, block, not_assessable"):
        verdict(store, 1, verdict="promote")


# --- baselines


def move(store: Store, from_cycle: int, cycles: Sequence[int], reason: str = "first cycles") -> Any:
    return store.baselines.move("demo", from_cycle=from_cycle, cycles=cycles, reason=reason, actor="palomar")


def test_cycle_is_judged_by_the_baseline_that_was_current_for_it(store: Store) -> None:
    first = move(store, 8, range(8))
    moved = move(store, 21, range(12, 21), "honest learning was promoted")
    found = [store.baselines.current("demo", cycle) for cycle in (7, 8, 20, 21, 99)]
    assert found == [None, first, first, moved, moved]
    assert (first.number, moved.number) == (0, 1)
    assert moved.cycles == tuple(range(12, 21))
    assert (moved.reason, moved.actor) == ("honest learning was promoted", "palomar")
    assert store.baselines.current("nobody", 9) is None


def test_history_of_baselines_only_grows(store: Store) -> None:
    first = move(store, 8, range(8))
    moved = move(store, 21, range(12, 21), "honest learning was promoted")
    back = move(store, 21, range(8), "it was no honest learning after all")
    earlier = move(store, 9, [8, 3, 3], "cycles 0-7 were a launch")
    assert store.baselines.read("demo") == [first, moved, back, earlier]
    assert earlier.cycles == (3, 8)
    assert [store.baselines.current("demo", cycle) for cycle in (8, 9, 20, 21)] == [first, earlier, earlier, back]


def test_moving_a_baseline_to_where_it_is_changes_nothing(store: Store) -> None:
    first = move(store, 8, range(8))
    assert move(store, 8, reversed(range(8))) == first  # type: ignore[arg-type]
    assert store.baselines.read("demo") == [first]
    later = move(store, 9, range(8))  # another statement: it holds whatever is said of cycle 8
    assert store.baselines.read("demo") == [first, later]


@pytest.mark.parametrize(
    ("cycles", "problem"),
    [([], "needs at least one cycle"), ([6, 7, 8], "cycle 8 cannot be in the baseline of run 'demo' from cycle 8 on")],
)
def test_baseline_that_could_not_be_compared_with_is_refused(store: Store, cycles: list[int], problem: str) -> None:
    with pytest.raises(StoreError, match=problem):
        move(store, 8, cycles)
    assert store.baselines.read("demo") == []


@pytest.mark.parametrize("change", ["UPDATE baselines SET from_cycle = 3", "DELETE FROM baselines"])
def test_database_itself_never_changes_a_baseline(store: Store, change: str) -> None:
    first = move(store, 8, range(8))
    with pytest.raises(StoreError, match="rows of baselines are never changed"):
        store._database.write(lambda connection: connection.execute(text(change)))
    assert store.baselines.read("demo") == [first]


# --- forecasts


def test_forecast_is_scored_when_its_cycle_comes(store: Store) -> None:
    held, missed, unknown = (forecast(1, slice=name) for name in ("a", "b", "c"))
    store.forecasts.write("demo", 1, [held, missed, unknown])
    store.forecasts.write("demo", 2, [forecast(2, slice="a")])
    levels = {("edit_rate", "a"): 0.4, ("edit_rate", "b"): 0.61, ("edit_rate", "other"): 0.5}
    scored = store.forecasts.score("demo", 2, levels)
    assert scored == [replace(held, came=0.4), replace(missed, came=0.61), unknown]
    assert [row.inside for row in scored] == [True, False, None]
    assert store.forecasts.read("demo", for_cycle=2) == scored
    assert [row.came for row in store.forecasts.read("demo", for_cycle=3)] == [None]
    assert store.forecasts.score("demo", 2, levels) == scored


def test_forecast_without_an_interval_is_neither_held_nor_missed() -> None:
    assert forecast(0, low=None, high=None, came=0.5).inside is None
    assert forecast(0, came=0.6).inside is True


def test_level_that_cannot_be_measured_any_more_is_taken_back(store: Store) -> None:
    store.forecasts.write("demo", 1, [forecast(1)])
    store.forecasts.score("demo", 2, {("edit_rate", ALL): 0.5})
    assert [row.came for row in store.forecasts.score("demo", 2, {("edit_rate", ALL): None})] == [None]
    assert [row.came for row in store.forecasts.score("demo", 2, {})] == [None]


def test_forecasting_again_replaces_what_was_forecast_and_keeps_what_came(store: Store) -> None:
    store.forecasts.write("demo", 1, [forecast(1), forecast(1, slice="gone"), forecast(1, for_cycle=3)])
    store.forecasts.write("demo", 0, [forecast(0)])
    store.forecasts.score("demo", 2, {("edit_rate", ALL): 0.55})
    store.forecasts.write("demo", 1, [forecast(1, value=0.7, low=0.6, high=0.8), forecast(1, slice="new")])
    assert store.forecasts.read("demo") == [
        forecast(0),
        forecast(1, value=0.7, low=0.6, high=0.8, came=0.55),
        forecast(1, slice="new"),
    ]
    store.forecasts.write("demo", 1, [])
    assert store.forecasts.read("demo") == [forecast(0)]


def test_forecast_of_another_cycle_is_refused(store: Store) -> None:
    with pytest.raises(StoreError, match="made in cycle 2 is not one of cycle 1"):
        store.forecasts.write("demo", 1, [forecast(2)])


def test_forecasts_are_cut_to_what_is_asked(store: Store) -> None:
    for cycle in (2, 0, 1):
        store.forecasts.write("demo", cycle, [forecast(cycle, slice=name) for name in ("a", "b")])
    read = store.forecasts.read
    assert [(row.for_cycle, row.slice) for row in read("demo", newest=3)] == [(2, "b"), (3, "a"), (3, "b")]
    assert [row.for_cycle for row in read("demo", statistic="edit_rate", slice="b", newest=2)] == [2, 3]
    assert read("demo", statistic="reward_mean") == []


def test_several_findings_are_read_at_once_as_one_by_one(store: Store) -> None:
    store.findings.write("demo", 0, [finding(), finding(statistic="edit_rate")])
    store.findings.write("demo", 2, [finding(before=0.5), finding(before=0.6)])
    store.findings.write("demo", 1, [finding(before=0.4)], candidate="c9")
    every = [each for cycle in (0, 2) for each in store.findings.read("demo", cycle)]
    ids = [each.finding_id for each in every]
    assert store.findings.several([*ids, "gone"]) == {name: store.findings.get(name) for name in ids}
    newest = store.findings.newest_of("demo", {each.finding.key for each in every} | {"none"})
    assert newest == {key: store.findings.read("demo", key=key, newest=1)[0] for key in newest}
    assert newest[finding().key].finding.before == 0.5  # of two in one cycle the first, as it was told first
    assert len(newest) == 2
    assert store.findings.several([]) == store.findings.newest_of("demo", []) == {}


# --- runs of thousands of cycles

WHOLE_RUN = "run_id=? AND candidate=?"
"""In the order of the answer, so that the limit ends it."""
READS = {
    "findings of a cycle": ("run_id=? AND candidate=? AND cycle=?", lambda s: s.findings.read("demo", 7)),
    "newest findings": (WHOLE_RUN, lambda s: s.findings.read("demo", newest=20)),
    "newest of a key": ("run_id=? AND key=?", lambda s: s.findings.read("demo", key=finding().key, newest=20)),
    "newest of a reading": (
        "run_id=? AND reading=?",
        lambda s: s.findings.read("demo", reading="reward_hack", newest=9),
    ),
    "several by their ids": ("finding_id=?", lambda s: s.findings.several(["x", "y"])),
    "newest of several keys": ("run_id=? AND key=?", lambda s: s.findings.newest_of("demo", ["x", "y"])),
    "finding by its id": ("finding_id=?", lambda s: s.findings.get("x")),
    "reports": ("run_id=? AND candidate=? AND cycle=?", lambda s: s.findings.reports("demo", 7)),
    "verdict": ("run_id=? AND candidate=? AND cycle=?", lambda s: s.verdicts.get("demo", 7)),
    "newest verdicts": (WHOLE_RUN, lambda s: s.verdicts.read("demo", newest=20)),
    "baseline": ("run_id=? AND from_cycle<?", lambda s: s.baselines.current("demo", 7)),
    "forecasts for a cycle": ("run_id=? AND for_cycle=?", lambda s: s.forecasts.read("demo", for_cycle=7)),
    "newest of a series": (
        "run_id=? AND statistic=? AND slice=?",
        lambda s: s.forecasts.read("demo", statistic="edit_rate", slice=ALL, newest=20),
    ),
    "newest forecasts": ("run_id=?", lambda s: s.forecasts.read("demo", newest=20)),
    "findings written again": (
        "run_id=? AND candidate=? AND cycle=?",
        lambda s: s.findings.write("demo", 0, [finding()], [Report("drift")]),
    ),
    "forecasts written again": ("run_id=? AND made_in=?", lambda s: s.forecasts.write("demo", 0, [])),
    "scoring": (
        "run_id=? AND statistic=? AND slice=? AND for_cycle=?",
        lambda s: s.forecasts.score("demo", 1, {("edit_rate", ALL): 0.5}),
    ),
}


@pytest.mark.parametrize("name", READS)
def test_no_read_walks_through_a_table(name: str, tmp_path: Path) -> None:
    """By SQLite's own plan: every statement seeks by the key that narrows it most, and none sorts more than a cycle."""
    seeks, read = READS[name]
    with Store.open(None, tmp_path) as store:
        store.runs.add("demo", name="demo", seed=7, config={})
        store.cycles.start("demo", 0)
        plans: list[str] = []

        @event.listens_for(Engine, "before_cursor_execute")
        def explain(_c: object, cursor: Any, statement: str, parameters: Any, _x: object, many: bool) -> None:
            if statement.startswith(("SELECT", "UPDATE", "DELETE")):
                values = parameters[0] if many else parameters
                plan = cursor.connection.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall()
                plans.extend(step for *_, step in plan)

        try:
            read(store)
        finally:
            event.remove(Engine, "before_cursor_execute", explain)
    assert any(f"({seeks})" in step for step in plans), plans
    assert not [step for step in plans if step.startswith("SCAN")], plans
    # A sort of the few rows within one cycle is fine, one of all rows is not.
    assert not [step for step in plans if step == "USE TEMP B-TREE FOR ORDER BY"], plans
