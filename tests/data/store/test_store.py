"""What the store keeps, on SQLite and on a real PostgreSQL: each test runs on both."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from palomar.data.errors import StoreError
from palomar.data.store import Store
from palomar.data.store.records import Evaluation, LedgerRow, QuarantinedRow, Statistic
from palomar.data.store.runs import STAGES

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
ON_ONE_STORE = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
NO_ZONE = datetime(2026, 5, 1)  # noqa: DTZ001
HOSTILE = "a\x00b\ud800\ufffe0000'; DROP TABLE runs; --\u2028<script>"


def statistic(cycle: int, slice: str, value: float | None = 0.5, name: str = "edit_rate") -> Statistic:
    return Statistic(cycle, slice, name, value, 0.4, 0.6, 100, "valid", 1.0)


def candidate(store: Store, name: str, cycle: int = 0) -> None:
    store.checkpoints.add("demo", name, cycle=cycle, parent_id="base", path=name, sha256="01")


# --- runs, cycles, stages


def test_adding_a_run_twice_changes_nothing(store: Store) -> None:
    first = store.runs.get("demo")
    assert store.runs.add("demo", name="again", seed=7, config={"cycles": 12}) == first
    assert store.runs.read() == [first]


@pytest.mark.parametrize("change", [{"seed": 8}, {"config": {"cycles": 13}}])
def test_run_with_another_seed_or_config_is_refused(store: Store, change: dict[str, Any]) -> None:
    with pytest.raises(StoreError, match="'demo' is there already"):
        store.runs.add("demo", **{"name": "demo", "seed": 7, "config": {"cycles": 12}, **change})


def test_runs_are_listed_newest_first_with_their_status(store: Store) -> None:
    store.runs.add("second", name="second", seed=1, config={})
    store.runs.set_status("demo", "complete")
    assert [(run.run_id, run.status) for run in store.runs.read()] == [("second", "running"), ("demo", "complete")]
    with pytest.raises(StoreError, match="no run 'nobody'"):
        store.runs.set_status("nobody", "complete")


def test_cycle_lists_the_stages_that_are_done_in_their_order(store: Store) -> None:
    for stage in reversed(STAGES[:4]):
        store.cycles.finish_stage("demo", 2, stage, elapsed_s=1.5, detail={"n": 512})
    cycle = store.cycles.get("demo", 2)
    assert cycle is not None
    assert [stage.stage for stage in cycle.stages] == ["collect", "distil", "train", "check"]
    assert cycle.stages[0].detail == {"n": 512}
    assert cycle.stages[0].elapsed_s == 1.5


def test_stage_that_is_done_stays_as_it_was_when_done_again(store: Store) -> None:
    first = store.cycles.finish_stage("demo", 0, "train", elapsed_s=2.0, detail={"kl": 0.01})
    assert store.cycles.finish_stage("demo", 0, "train", elapsed_s=9.0, detail={"kl": 0.5}) == first


def test_stopped_cycle_is_taken_up_again_with_what_is_done(store: Store) -> None:
    store.cycles.finish_stage("demo", 1, "collect", elapsed_s=1.0, detail={})
    store.cycles.stop("demo", 1, "ledger does not add up")
    stopped = store.cycles.get("demo", 1)
    assert stopped is not None
    assert (stopped.status, stopped.problem) == ("stopped", "ledger does not add up")
    resumed = store.cycles.start("demo", 1, checkpoint_id="base")
    assert (resumed.status, resumed.problem, resumed.finished_at) == ("running", None, None)
    assert [stage.stage for stage in resumed.stages] == ["collect"]
    assert resumed.started_at == stopped.started_at


def test_complete_cycle_stays_complete(store: Store) -> None:
    store.cycles.complete("demo", 1)
    complete = store.cycles.get("demo", 1)
    store.cycles.complete("demo", 1)
    store.cycles.stop("demo", 1, "too late")
    assert store.cycles.start("demo", 1, checkpoint_id="base") == complete
    assert complete is not None
    assert complete.status == "complete"
    assert complete.finished_at is not None


def test_cycle_is_not_resumed_with_another_checkpoint(store: Store) -> None:
    candidate(store, "c0")
    with pytest.raises(StoreError, match="begun with checkpoint_id 'base', not 'c0'"):
        store.cycles.start("demo", 1, checkpoint_id="c0")


def test_cycles_are_listed_oldest_first_and_may_be_cut_to_the_newest(store: Store) -> None:
    store.cycles.finish_stage("demo", 3, "collect", elapsed_s=1.0, detail={})
    assert [cycle.cycle for cycle in store.cycles.read("demo")] == [0, 1, 2, 3]
    newest = store.cycles.read("demo", newest=2)
    assert [(cycle.cycle, len(cycle.stages)) for cycle in newest] == [(2, 0), (3, 1)]
    assert store.cycles.read("nobody") == []


def test_ending_a_cycle_that_was_never_begun_is_refused(store: Store) -> None:
    with pytest.raises(StoreError, match="cycle 9 of run 'demo' was never begun"):
        store.cycles.complete("demo", 9)


# --- checkpoints


def test_promotion_supersedes_the_champion(store: Store) -> None:
    candidate(store, "c0")
    champion = store.checkpoints.promote("demo", "c0", replacing="base", since_cycle=1, reason="improved")
    assert store.checkpoints.champion("demo") == champion
    assert (champion.checkpoint.checkpoint_id, champion.since_cycle) == ("c0", 1)
    assert [(c.checkpoint_id, c.status, c.served_from) for c in store.checkpoints.read("demo")] == [
        ("base", "superseded", 0),
        ("c0", "promoted", 1),
    ]


def test_promoting_the_champion_again_changes_nothing(store: Store) -> None:
    candidate(store, "c0")
    first = store.checkpoints.promote("demo", "c0", replacing="base", since_cycle=1, reason="improved")
    assert store.checkpoints.promote("demo", "c0", replacing="base", since_cycle=9, reason="again") == first
    assert store.checkpoints.champion("demo") == first


def test_candidate_measured_against_a_former_champion_is_not_promoted(store: Store) -> None:
    candidate(store, "c0")
    candidate(store, "c1")
    store.checkpoints.promote("demo", "c0", replacing="base", since_cycle=1, reason="improved")
    with pytest.raises(StoreError, match="'c1' was to replace 'base', but the champion of run 'demo' is 'c0' now"):
        store.checkpoints.promote("demo", "c1", replacing="base", since_cycle=1, reason="improved")
    assert store.checkpoints.get("demo", "c1").status == "candidate"  # type: ignore[union-attr]


def test_blocked_checkpoint_is_never_promoted(store: Store) -> None:
    candidate(store, "c0")
    blocked = store.checkpoints.block("demo", "c0", "edit rate fell")
    assert (blocked.status, blocked.reason) == ("blocked", "edit rate fell")
    assert store.checkpoints.block("demo", "c0", "again") == blocked
    with pytest.raises(StoreError, match="is blocked, not candidate"):
        store.checkpoints.promote("demo", "c0", replacing="base", since_cycle=1, reason="improved")


def test_champion_cannot_be_blocked_or_superseded_by_hand(store: Store) -> None:
    with pytest.raises(StoreError, match="is promoted, not candidate or blocked"):
        store.checkpoints.block("demo", "base", "no")
    with pytest.raises(StoreError, match="is promoted, not candidate or superseded"):
        store.checkpoints.supersede("demo", "base", "no")


def test_rollback_puts_the_former_champion_back(store: Store) -> None:
    candidate(store, "c0")
    store.checkpoints.promote("demo", "c0", replacing="base", since_cycle=1, reason="improved")
    back = store.checkpoints.roll_back("demo", "c0", to="base", since_cycle=2, reason="deferral")
    assert (back.checkpoint.checkpoint_id, back.since_cycle, back.checkpoint.served_from) == ("base", 2, 0)
    assert store.checkpoints.roll_back("demo", "c0", to="base", since_cycle=2, reason="deferral") == back
    fallen = store.checkpoints.get("demo", "c0")
    assert fallen is not None
    assert (fallen.status, fallen.reason) == ("rolled_back", "deferral")


def test_rollback_goes_only_to_a_checkpoint_that_served(store: Store) -> None:
    candidate(store, "held")
    store.checkpoints.supersede("demo", "held", "a later candidate came")
    with pytest.raises(StoreError, match="'held' of run 'demo' has never served"):
        store.checkpoints.roll_back("demo", "base", to="held", since_cycle=1, reason="no")
    with pytest.raises(StoreError, match="cannot be rolled back: the champion of run 'demo' is 'base'"):
        store.checkpoints.roll_back("demo", "held", to="base", since_cycle=1, reason="no")


def test_database_itself_lets_no_run_have_two_promoted_checkpoints(store: Store) -> None:
    candidate(store, "c0")
    two = text("UPDATE checkpoints SET status = 'promoted'")
    with pytest.raises(StoreError, match=r"(?i)unique"):
        store._database.write(lambda connection: connection.execute(two))


def test_checkpoint_with_other_content_under_the_same_id_is_refused(store: Store) -> None:
    candidate(store, "c0")
    candidate(store, "c0")
    with pytest.raises(StoreError, match="'c0' of run 'demo' is there already, with sha256 '01', not '02'"):
        store.checkpoints.add("demo", "c0", cycle=0, parent_id="base", path="c0", sha256="02")


def test_two_runs_may_share_a_checkpoint_id(store: Store) -> None:
    store.runs.add("second", name="second", seed=1, config={})
    store.checkpoints.add("second", "base", cycle=None, parent_id=None, path="base", sha256="00")
    assert store.checkpoints.champion("second") is None
    store.checkpoints.promote("second", "base", replacing=None, since_cycle=0, reason="the base")
    candidate(store, "c0")
    store.checkpoints.promote("demo", "c0", replacing="base", since_cycle=1, reason="improved")
    assert store.checkpoints.champion("second").checkpoint.checkpoint_id == "base"  # type: ignore[union-attr]


def test_evaluations_written_again_replace_the_same_metric(store: Store) -> None:
    rows = [Evaluation("base", "held-out", name, 0.5, 0.4, 0.6, 200) for name in ("pass_rate", "edit_rate")]
    store.evaluations.write("demo", rows)
    store.evaluations.write("demo", [replace(rows[0], value=None, low=None, high=None)])
    assert store.evaluations.read("demo", "base") == [rows[1], replace(rows[0], value=None, low=None, high=None)]
    assert store.evaluations.read("demo") == store.evaluations.read("demo", "base")
    assert store.evaluations.read("demo", "c0") == []


# --- rewards


def test_first_text_of_a_reward_version_stands(store: Store) -> None:
    first = store.rewards.add("v1", text="terms: []", parent=None, reason="start", actor="ada")
    assert store.rewards.add("v1", text="# other comment", parent=None, reason="again", actor="bob") == first
    assert store.rewards.read() == [first]


@pytest.mark.parametrize("change", ["UPDATE {} SET {} = 'other'", "DELETE FROM {}"])
@pytest.mark.parametrize(("table", "column"), [("reward_versions", "text"), ("decisions", "verdict")])
def test_database_itself_never_changes_rewards_and_decisions(
    store: Store, change: str, table: str, column: str
) -> None:
    version = store.rewards.add("v1", text="terms: []", parent=None, reason="start", actor="ada")
    candidate(store, "c0")
    made = store.decisions.record("demo", "c0", cycle=0, verdict="hold", reasons=[], evidence={}, policy="p1")
    with pytest.raises(StoreError, match=f"rows of {table} are never changed"):
        store._database.write(lambda connection: connection.execute(text(change.format(table, column))))
    assert store.rewards.get("v1") == version
    assert store.decisions.get("demo", "c0") == made


def test_reward_version_needs_a_parent_that_is_there(store: Store) -> None:
    with pytest.raises(StoreError, match=r"(?i)refers to|foreign key"):
        store.rewards.add("v2", text="terms: []", parent="v1", reason="patch", actor="ada")


def test_effective_reward_is_the_last_scheduled_by_then(store: Store) -> None:
    for version in ("v1", "v2"):
        store.rewards.add(version, text=version, parent=None, reason="x", actor="ada")
    store.rewards.schedule("demo", "v1", from_cycle=4)
    store.rewards.schedule("demo", "v2", from_cycle=7)
    effective = [store.rewards.effective("demo", cycle) for cycle in (3, 4, 6, 7, 99)]
    assert [None if reward is None else reward.version for reward in effective] == [None, "v1", "v1", "v2", "v2"]
    assert [(row.from_cycle, row.version) for row in store.rewards.scheduled("demo")] == [(4, "v1"), (7, "v2")]


def test_schedule_may_change_what_is_to_come_but_not_what_was_begun(store: Store) -> None:
    for version in ("v1", "v2"):
        store.rewards.add(version, text=version, parent=None, reason="x", actor="ada")
    store.rewards.schedule("demo", "v1", from_cycle=4)
    store.rewards.schedule("demo", "v2", from_cycle=4)
    store.cycles.start("demo", 4, checkpoint_id="base", reward_version="v2")
    store.rewards.schedule("demo", "v2", from_cycle=4)  # the same again
    with pytest.raises(StoreError, match="cannot begin in cycle 4: run 'demo' has begun cycle 4"):
        store.rewards.schedule("demo", "v1", from_cycle=4)
    assert store.rewards.effective("demo", 4).version == "v2"  # type: ignore[union-attr]


# --- decisions


def decide(store: Store, **change: Any) -> Any:
    given = {"cycle": 0, "verdict": "block", "reasons": ("edit_rate_fell",), "evidence": {"p": [0.1, 2]}, "policy": "p"}
    return store.decisions.record("demo", "c0", **{**given, **change})


def test_deciding_the_same_again_changes_nothing(store: Store) -> None:
    candidate(store, "c0")
    first = decide(store)
    assert decide(store, evidence={"p": (0.1, 2)}) == first
    assert store.decisions.get("demo", "c0") == first
    assert first.reasons == ("edit_rate_fell",)


@pytest.mark.parametrize(
    "change",
    [{"verdict": "promote"}, {"reasons": ()}, {"evidence": {"p": [0.1, 3]}}, {"policy": "q"}, {"cycle": 1}],
    ids=lambda change: next(iter(change)),
)
def test_deciding_otherwise_is_refused_and_the_first_stands(store: Store, change: dict[str, Any]) -> None:
    candidate(store, "c0")
    first = decide(store)
    with pytest.raises(StoreError, match=f"'c0' of run 'demo' was decided already .*another {next(iter(change))}"):
        decide(store, **change)
    assert store.decisions.get("demo", "c0") == first


def test_latest_decisions_come_newest_first(store: Store) -> None:
    for cycle in range(3):
        candidate(store, f"c{cycle}", cycle)
        store.decisions.record("demo", f"c{cycle}", cycle=cycle, verdict="hold", reasons=[], evidence={}, policy="p")
    assert [made.candidate for made in store.decisions.latest("demo", count=2)] == ["c2", "c1"]


# --- ledger, quarantine


def test_ledger_of_a_cycle_is_replaced_whole(store: Store) -> None:
    store.ledger.write(
        "demo",
        [
            LedgerRow(0, "hard", "collected", "", 10),
            LedgerRow(0, "hard", "excluded", "invalid_tool_call", 10),
            LedgerRow(1, "hard", "collected", "", 5),
        ],
    )
    again = [LedgerRow(0, "hard", "collected", "", 10), LedgerRow(0, "hard", "trained", "", 10)]
    store.ledger.write("demo", again)
    assert store.ledger.read("demo", 0) == again
    assert store.ledger.read("demo") == [*again, LedgerRow(1, "hard", "collected", "", 5)]


def test_quarantine_counts_ingestions_not_writes(store: Store) -> None:
    rows = [
        QuarantinedRow("q1", "a.jsonl", 3, "messages", "invalid", "no"),
        QuarantinedRow("q2", "b", None, None, "x", ""),
    ]
    store.quarantine.record([*rows, rows[0]], at=NOW)
    store.quarantine.record(rows, at=NOW)
    store.quarantine.record([replace(rows[0], source="moved.jsonl")], at=NOW + timedelta(hours=1))
    store.quarantine.record([rows[0]], at=NOW - timedelta(hours=1))  # an ingestion that began earlier and took longer
    entries = store.quarantine.latest(count=10)
    assert [(e.content_id, e.source, e.seen) for e in entries] == [("q1", "a.jsonl", 3), ("q2", "b", 1)]
    assert (entries[0].first_seen_at, entries[0].last_seen_at) == (NOW - timedelta(hours=1), NOW + timedelta(hours=1))
    assert [e.content_id for e in store.quarantine.latest(count=10, kind="x")] == ["q2"]
    assert [e.content_id for e in store.quarantine.latest(count=1)] == ["q1"]
    assert store.quarantine.by_kind() == {"invalid": 1, "x": 1}


# --- statistics


def test_measuring_again_leaves_no_slice_of_the_first_time(store: Store) -> None:
    store.statistics.write("demo", [statistic(0, "all"), statistic(0, "hard"), statistic(1, "hard")])
    store.statistics.write("demo", [statistic(0, "hard", name="reward")])
    store.statistics.write("demo", [statistic(0, "all", 0.7)])
    assert [(s.statistic, s.slice, s.cycle, s.value) for s in store.statistics.series("demo")] == [
        ("edit_rate", "all", 0, 0.7),
        ("edit_rate", "hard", 1, 0.5),
        ("reward", "hard", 0, 0.5),
    ]


def test_series_are_cut_to_what_is_asked(store: Store) -> None:
    every = [statistic(c, s, name=n) for n in ("a", "b") for s in ("all", "easy", "hard") for c in range(4)]
    store.statistics.write("demo", every)
    assert store.statistics.series("demo") == every
    asked = store.statistics.series("demo", statistics=["b"], slices=["all", "hard"], cycles=range(1, 3))
    assert asked == [statistic(c, s, name="b") for s in ("all", "hard") for c in (1, 2)]
    assert store.statistics.series("demo", statistics=[]) == []
    assert store.statistics.slices("demo") == ["all", "easy", "hard"]
    assert store.statistics.slices("nobody") == []


def test_values_that_are_not_known_stay_none(store: Store) -> None:
    unknown = Statistic(0, "all", "persistence", None, None, None, 0, "immature", None)
    store.statistics.write("demo", [unknown])
    assert store.statistics.series("demo") == [unknown]


def test_rows_of_a_cycle_that_was_never_begun_are_refused(store: Store) -> None:
    for write in (
        lambda: store.statistics.write("demo", [statistic(99, "all")]),
        lambda: store.ledger.write("demo", [LedgerRow(99, "hard", "trained", "", 1)]),
        lambda: store.cycles.finish_stage("demo", 99, "train", elapsed_s=1.0, detail={}),
    ):
        with pytest.raises(StoreError, match=r"(?i)refers to a run|foreign key"):
            write()


def test_failing_write_leaves_nothing(store: Store) -> None:
    before = [statistic(0, "all")]
    store.statistics.write("demo", before)
    with pytest.raises(StoreError):
        store.statistics.write("demo", [statistic(0, "all", 0.9), statistic(0, "hard"), statistic(99, "all")])
    assert store.statistics.series("demo") == before


def test_three_thousand_statistics_cost_less_than_fifty_milliseconds(tmp_path: Path) -> None:
    with Store.open(None, tmp_path) as store:
        store.runs.add("demo", name="demo", seed=7, config={})
        took = []
        for cycle in range(6):
            store.cycles.start("demo", cycle)
            rows = [statistic(cycle, f"organisation=o{k % 60}", name=f"statistic_{k // 60}") for k in range(3000)]
            # Time of the processor, not of the clock: the machine may be doing other things too.
            began = time.process_time()
            store.statistics.write("demo", rows)
            took.append(time.process_time() - began)
        assert len(store.statistics.series("demo")) == 18_000
        assert min(took) < 0.05, took


# --- what is stored is what is read

# Half of them of the characters that a database cannot hold and of those that the escapes are made of.
TEXTS = st.one_of(st.text(max_size=30), st.text(st.sampled_from("\x00\ud800\udfff\ufffe0AF'"), max_size=12))
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
WHOLES = st.integers(-(2**63), 2**63 - 1)
MOMENTS = st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=9, minutes=30))]))
OBJECTS = st.dictionaries(
    TEXTS,
    st.recursive(
        st.none() | st.booleans() | st.integers() | NUMBERS | TEXTS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)
_serial = iter(range(10**9))


@ON_ONE_STORE
@given(values=st.lists(st.one_of(st.none(), NUMBERS), min_size=3, max_size=3), name=TEXTS, slice=TEXTS, n=WHOLES)
def test_statistics_come_back_as_written(
    store: Store, values: list[float | None], name: str, slice: str, n: int
) -> None:
    row = Statistic(0, slice, name, values[0], values[1], values[2], n, name, None)
    store.statistics.write("demo", [row])
    assert store.statistics.series("demo", statistics=[name], slices=[slice]) == [row]


@ON_ONE_STORE
@given(config=OBJECTS, name=TEXTS, seed=WHOLES)
def test_runs_come_back_as_written(store: Store, config: dict[str, Any], name: str, seed: int) -> None:
    run_id = f"{name} {next(_serial)}"
    written = store.runs.add(run_id, name=name, seed=seed, config=config)
    assert (written.run_id, written.name, written.seed, written.config) == (run_id, name, seed, config)
    assert store.runs.get(run_id) == written


@ON_ONE_STORE
@given(evidence=OBJECTS, reasons=st.lists(TEXTS, max_size=3), policy=TEXTS)
def test_decisions_come_back_as_written(
    store: Store, evidence: dict[str, Any], reasons: list[str], policy: str
) -> None:
    name = f"c{next(_serial)}"
    candidate(store, name)
    given = {"cycle": 0, "verdict": "hold", "reasons": reasons, "evidence": evidence, "policy": policy}
    written = store.decisions.record("demo", name, **given)
    assert (list(written.reasons), written.evidence, written.policy) == (reasons, evidence, policy)
    assert store.decisions.record("demo", name, **given) == store.decisions.get("demo", name) == written


@ON_ONE_STORE
@given(texts=st.lists(TEXTS, min_size=2, max_size=6, unique=True))
def test_different_texts_stay_different_keys(store: Store, texts: list[str]) -> None:
    """Also those that differ only in characters which a database cannot hold."""
    store.ledger.write("demo", [LedgerRow(0, stratum, "trained", "", 1) for stratum in texts])
    assert {row.stratum for row in store.ledger.read("demo", 0)} == set(texts)


def test_hostile_text_stays_text(store: Store) -> None:
    store.runs.add(HOSTILE, name=HOSTILE, seed=1, config={HOSTILE: HOSTILE})
    store.cycles.start(HOSTILE, 0)
    store.cycles.stop(HOSTILE, 0, HOSTILE)
    run, cycle = store.runs.get(HOSTILE), store.cycles.get(HOSTILE, 0)
    assert run is not None
    assert (run.run_id, run.name, run.config) == (HOSTILE, HOSTILE, {HOSTILE: HOSTILE})
    assert cycle is not None
    assert cycle.problem == HOSTILE
    assert len(store.runs.read()) == 2


@pytest.mark.parametrize(
    ("write", "problem"),
    [
        (lambda s: s.statistics.write("demo", [statistic(0, "all", float("nan"))]), "nan is not a number"),
        (lambda s: s.statistics.write("demo", [statistic(0, "all", float("inf"))]), "inf is not a number"),
        (lambda s: s.runs.add("big", name="big", seed=2**63, config={}), "does not fit 64 bits"),
        (lambda s: s.runs.add("x" * 601, name="long", seed=1, config={}), "at most 600 bytes, not 601"),
        (lambda s: s.runs.add("é" * 301, name="long", seed=1, config={}), "at most 600 bytes, not 602"),
        (lambda s: s.runs.add("nan", name="nan", seed=1, config={"x": float("nan")}), "not JSON compliant"),
        (lambda s: s.runs.add("odd", name="odd", seed=1, config={"x": object()}), "not JSON serializable"),
        (lambda s: s.runs.set_status("demo", "paused"), "'paused' is not one of running, complete, stopped"),
        (lambda s: s.quarantine.record([QuarantinedRow("q", "a", 1, None, "x", "")], at=NO_ZONE), "no zone"),
    ],
)
def test_what_cannot_be_kept_is_refused_in_words(store: Store, write: Any, problem: str) -> None:
    with pytest.raises(StoreError, match=problem):
        write(store)


def test_longest_keys_fit_every_index(store: Store) -> None:
    """Four parts of 600 bytes that do not compress, in the widest key."""
    import hashlib

    def key(salt: str) -> str:
        return "".join(hashlib.sha256(f"{salt}{k}".encode()).hexdigest() for k in range(10))[:600]

    store.runs.add(key("run"), name="long", seed=1, config={})
    store.checkpoints.add(key("run"), key("checkpoint"), cycle=None, parent_id=None, path="x", sha256="0")
    row = Evaluation(key("checkpoint"), key("suite"), key("metric"), 1.0, None, None, 1)
    store.evaluations.write(key("run"), [row])
    assert store.evaluations.read(key("run")) == [row]


def test_numbers_of_numpy_are_taken(store: Store) -> None:
    import numpy as np

    store.statistics.write(
        "demo", [Statistic(np.int64(0), "all", "x", np.float32(0.5), np.float64(0.1), None, np.int32(3), "valid", None)]
    )
    assert store.statistics.series("demo") == [Statistic(0, "all", "x", 0.5, 0.1, None, 3, "valid", None)]


def test_a_cycle_is_begun_with_the_reward_in_force_and_a_change_waits_for_the_next(store: Store) -> None:
    for version in ("a", "b"):
        store.rewards.add(version, text=version, parent=None, reason="r", actor="ann")
    store.rewards.schedule("demo", "a", from_cycle=4)
    change = store.rewards.change("demo", "b", action="patch", reason="better", actor="ann", expected="a")
    assert change is not None
    assert (change.from_cycle, change.instead_of) == (4, "a")
    # Whoever read the reward before the change begins nothing with it.
    with pytest.raises(StoreError, match="is paid by reward b, not a: it was changed"):
        store.cycles.start("demo", 4, reward_version="a")
    assert store.cycles.get("demo", 4) is None
    store.cycles.start("demo", 4, reward_version="b")
    assert store.rewards.change("demo", "b", action="patch", reason="again", actor="ann") is None
    back = store.rewards.change("demo", "a", action="revert", reason="worse", actor="bob")
    assert back is not None
    assert back.from_cycle == 5
    store.cycles.start("demo", 4, reward_version="b")  # taken up again as it was begun
    with pytest.raises(StoreError, match="needs a reason and an actor"):
        store.rewards.change("demo", "b", action="patch", reason="", actor="ann")
    with pytest.raises(StoreError, match="stale"):
        store.rewards.change("demo", "b", action="patch", reason="r", actor="ann", expected="b2")
    assert [each.action for each in store.rewards.changes("demo")] == ["patch", "revert"]
    assert [each.action for each in store.audit_log.read(action="reward.")] == ["reward.patch", "reward.revert"]
