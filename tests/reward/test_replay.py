"""Replay: what another reward would have paid, by hand and by law."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from palomar.data.lake import Lake
from palomar.data.observations import FACTS
from palomar.data.slices import BANDS, SLICES
from palomar.detectors import cube, pressure
from palomar.detectors.pressure import measured_statistics
from palomar.reward import replay as module
from palomar.reward.behaviours import MEASURED, Logged, measured, within
from palomar.reward.charges import SAMPLE_COLUMNS, reward_signals
from palomar.reward.replay import Change, Inclusion, batch_advantage, compare, flips, pay, replay, spec_changes
from palomar.reward.scoring import score
from palomar.reward.spec import RewardSpec, bundled, parse_spec, version

OLD = """
name: old
terms:
  - { name: edit_persistence, weight: 1.0, params: { horizon_minutes: 30 } }
  - { name: latency, weight: -0.01 }
inclusion:
  - { name: broken, condition: invalid_tool_call }
"""
NEW = """
name: new
terms:
  - { name: kept, kind: edit_persistence, weight: 2.0, params: { horizon_minutes: 30 } }
  - { name: latency, weight: -0.01 }
  - { name: invalid_tool_call, weight: -1.0 }
"""
EDIT = {"edits": 1, "edited": True, "functions_before": 1, "functions_after": 1, "lines_added": 1, "lines_removed": 1}
ROWS: tuple[dict[str, Any], ...] = (
    {**EDIT},
    {**EDIT, "edit_lost_s": 60.0, "functions_after": 3},
    {"asked": True},
    {"invalid_malformed": 1, "ambiguity": 0.2},
)


@pytest.fixture
def logged(facts: Callable[..., pa.Table]) -> Logged:
    """Scored by OLD: kept edit 0.9, reverted and split edit -1.6, question -0.1, broken call -0.1 and dropped."""
    return Logged.of(score(facts(*ROWS), parse_spec(OLD)))


def change(found: Any, behaviour: str, slice_: str = "all") -> Change:
    return next(each for each in found.changes if (each.behaviour, each.slice) == (behaviour, slice_))


def test_both_rewards_are_the_sums_by_hand(logged: Logged) -> None:
    found = compare(logged, parse_spec(OLD), parse_spec(NEW), pressures=False)
    assert (found.num_rows, found.compared) == (4, 4)
    # Old: 0.9, -1.6, -0.1, -0.1; new: 1.9, -3.1, -0.1, -1.1.
    every = change(found, "any")
    assert (every.n, every.old, every.new) == (4, pytest.approx(-0.9 / 4), pytest.approx(-2.4 / 4))
    assert (change(found, "edit").old, change(found, "edit").new) == (pytest.approx(-0.35), pytest.approx(-0.6))
    assert (change(found, "split").n, change(found, "split").new) == (1, pytest.approx(-3.1))
    clear = change(found, "broken call", "ambiguity=clear")
    assert (clear.n, clear.old, clear.new) == (1, pytest.approx(-0.1), pytest.approx(-1.1))
    # Old mean of the three included: -0.8 / 3; its spread; the dropped row is not pushed at all.
    mean, spread = np.mean([0.9, -1.6, -0.1]), np.std([0.9, -1.6, -0.1])
    assert change(found, "question").old_advantage == pytest.approx((-0.1 - mean) / spread)
    assert change(found, "broken call").old_advantage == 0.0
    mean, spread = np.mean([1.9, -3.1, -0.1, -1.1]), np.std([1.9, -3.1, -0.1, -1.1])
    assert change(found, "broken call").new_advantage == pytest.approx((-1.1 - mean) / spread)
    assert (every.old_pushed, every.new_pushed) == (0.5, 0.5)


def test_terms_say_what_each_adds(logged: Logged) -> None:
    found = compare(logged, parse_spec(OLD), parse_spec(NEW), pressures=False)
    by_term = {(each.term, each.behaviour): (each.old, each.new) for each in found.terms if each.slice == "all"}
    assert by_term["kept", "any"] == (0.0, pytest.approx(2 * -0.5 / 4))
    assert by_term["edit_persistence", "any"] == (pytest.approx(-0.5 / 4), 0.0)
    assert by_term["invalid_tool_call", "broken call"] == (0.0, -1.0)
    assert by_term["latency", "question"] == (pytest.approx(-0.1), pytest.approx(-0.1))


def test_rows_that_were_dropped_and_now_are_trained_on_are_told_with_their_pay(logged: Logged) -> None:
    found = compare(logged, parse_spec(OLD), parse_spec(NEW), pressures=False)
    spread = np.std([1.9, -3.1, -0.1, -1.1])
    dropped = next(each for each in found.inclusion if each.before == "broken")
    assert dropped == Inclusion("broken", "trained", 1, pytest.approx(-1.1), pytest.approx((-1.1 + 0.6) / spread))
    assert {(each.before, each.after, each.n) for each in found.inclusion} == {
        ("trained", "trained", 3),
        ("broken", "trained", 1),
    }
    back = compare(logged, parse_spec(NEW), parse_spec(OLD), pressures=False)
    gone = next(each for each in back.inclusion if each.after == "broken")
    assert (gone.before, gone.n, gone.reward, gone.advantage) == ("trained", 1, pytest.approx(-0.1), None)


def test_the_same_term_keeps_its_stored_score_and_another_is_recomputed(logged: Logged) -> None:
    coverage = {each.term: each for each in compare(logged, parse_spec(OLD), parse_spec(NEW), pressures=False).coverage}
    assert (coverage["kept"].stored, coverage["kept"].recomputed) == (4, 0)  # under another name, with another weight
    assert (coverage["invalid_tool_call"].stored, coverage["invalid_tool_call"].recomputed) == (0, 4)
    later = parse_spec(OLD.replace("30", "60"))
    moved = {each.term: each for each in compare(logged, parse_spec(OLD), later, pressures=False).coverage}
    assert (moved["edit_persistence"].stored, moved["latency"].stored) == (0, 4)


def test_a_stored_score_is_what_was_paid_even_where_the_facts_have_gone(facts: Callable[..., pa.Table]) -> None:
    scored = score(facts(*ROWS), parse_spec(OLD))
    place = scored.schema.get_field_index("latency_s")
    blind = Logged.of(scored.set_column(place, "latency_s", pa.nulls(4, pa.float64())))
    kept = pay(blind, parse_spec(OLD))
    assert kept.reward[2] == pytest.approx(-0.1)
    other = pay(
        blind,
        parse_spec(OLD.replace("name: latency, weight: -0.01", "name: latency, weight: -0.01, params: { cap_s: 5 }")),
    )
    latency = next(each for each in other.coverage if each.term == "latency")
    assert (latency.invalid, latency.why) == (4, "the latency is not known")
    assert np.isnan(other.reward).all()
    assert not other.included.any()


def test_what_waits_takes_no_part(facts: Callable[..., pa.Table]) -> None:
    young = {**EDIT, "watched_s": 10.0}
    logged = Logged.of(score(facts(*ROWS, young), parse_spec(OLD)))
    found = compare(logged, parse_spec(OLD), parse_spec(NEW), pressures=False)
    assert (found.num_rows, found.compared, change(found, "edit").n) == (5, 4, 2)
    assert ("waiting", "waiting", 1) in {(each.before, each.after, each.n) for each in found.inclusion}


def test_movers_and_flagged_rows(logged: Logged) -> None:
    found = compare(logged, parse_spec(OLD), parse_spec(NEW), flagged=["i2"], pressures=False)
    assert found.losers[0].interaction_id == "i3"
    assert found.losers[0].behaviours == ("answer", "broken call")
    assert found.losers[0].old == 0.0
    assert {each.interaction_id for each in (*found.gainers, *found.losers)} <= {"i0", "i1", "i2", "i3"}
    assert found.flagged is not None
    # The question was pushed (above the mean of the included) and is still, now that the broken call is below it.
    assert (found.flagged.n, found.flagged.gained, found.flagged.lost) == (1, 1, 0.0)
    assert (found.flagged.honest_gained, found.flagged.honest_hurt) == (1, 0.0)
    asked = parse_spec(NEW + "  - { name: clarification, weight: 1.0, params: { clear: -4, ambiguous: -4 } }\n")
    cured = compare(logged, parse_spec(OLD), asked, flagged=["i2"], pressures=False).flagged
    assert cured is not None
    assert (cured.lost, cured.honest_hurt) == (1.0, 0.0)


def test_flips_are_all_pairs_of_a_small_context_and_kendalls_tau(facts: Callable[..., pa.Table]) -> None:
    rng = np.random.default_rng(4)
    logged = Logged.of(score(facts(*[{} for _ in range(9)]), parse_spec(OLD)))
    old, new = rng.integers(0, 4, 9).astype(float), rng.integers(0, 4, 9).astype(float)
    found = flips(logged, old, new)
    assert found is not None
    assert (found.within, found.pairs) == ("context", 72)
    assert found.tau == pytest.approx(stats.kendalltau(old, new).statistic, abs=1e-12)
    pairs = [(i, j) for i in range(9) for j in range(9) if i < j]
    turned = [(old[i] - old[j]) * (new[i] - new[j]) < 0 for i, j in pairs]
    assert found.flipped == pytest.approx(np.mean(turned))


def test_flips_of_a_large_context_come_close_to_kendalls_tau(facts: Callable[..., pa.Table]) -> None:
    rng = np.random.default_rng(5)
    logged = Logged.of(score(facts(*[{} for _ in range(3000)]), parse_spec(OLD)))
    old = rng.normal(size=3000)
    new = old + rng.normal(size=3000)
    found = flips(logged, old, new)
    assert found is not None
    assert found.pairs == 24_000
    assert found.tau == pytest.approx(stats.kendalltau(old, new).statistic, abs=0.02)


def test_of_very_many_rows_fewer_pairs_are_compared_and_say_the_same(
    facts: Callable[..., pa.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(5)
    logged = Logged.of(score(facts(*[{} for _ in range(3000)]), parse_spec(OLD)))
    old = rng.normal(size=3000)
    new = old + rng.normal(size=3000)
    for allowed, pairs in ((10_000, 9_000), (100, 3_000)):
        monkeypatch.setattr(module, "FLIP_PAIRS", allowed)
        found = flips(logged, old, new)
        assert found is not None
        assert found.pairs == pairs
        assert found.tau == pytest.approx(stats.kendalltau(old, new).statistic, abs=0.04)


def test_of_very_many_rows_pressures_rest_on_whole_users(
    facts: Callable[..., pa.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(6)
    rows = [dict(rng.choice(ROWS)) | {"user_id": f"u{n % 50}"} for n in range(1000)]  # type: ignore[arg-type]
    logged = Logged.of(score(facts(*rows), parse_spec(OLD)))
    every = compare(logged, parse_spec(OLD), parse_spec(NEW))
    monkeypatch.setattr(module, "PRESSURE_ROWS", 400)
    some = compare(logged, parse_spec(OLD), parse_spec(NEW))
    assert (every.pressure_rows, some.pressure_rows) == (1000, 340)  # users 0, 3, 6, ... of 50, 20 rows each
    assert some.changes == every.changes  # all the rest is of all rows
    assert some.pressures != every.pressures


def test_flips_stay_within_groups_where_the_log_has_them(facts: Callable[..., pa.Table]) -> None:
    rows = [{"group_id": name} for name in ("a", "a", "a", "b", "b", "b")]
    logged = Logged.of(score(facts(*rows), parse_spec(OLD)))
    old = np.array([1.0, 2.0, 3.0, 10.0, 20.0, 30.0])
    # All of b above all of a before, below it after: no pair of one group turns but one.
    found = flips(logged, old, np.array([101.0, 102.0, 103.0, 2.0, 1.0, 3.0]))
    assert found is not None
    assert (found.within, found.pairs, found.flipped) == ("group", 12, pytest.approx(1 / 6))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(-50, 50), st.booleans(), st.integers(0, 2)), min_size=1, max_size=40),
    st.integers(-9, 9),
)
def test_the_rebuilt_advantage_is_that_of_the_charges_and_a_constant_changes_none(
    rows: list[tuple[int, bool, int]], constant: int
) -> None:
    reward = np.array([value / 10 for value, _, _ in rows])
    included = np.array([flag for _, flag, _ in rows])
    cycle = np.array([each for *_, each in rows], dtype=np.int64)
    found = batch_advantage(reward, included, cycle)
    table = pa.table(
        {
            "cycle": pa.array(cycle, pa.int32()),
            "group_id": pa.nulls(len(rows), pa.string()),
            "reward": reward,
            "reward_status": ["valid"] * len(rows),
            "included": included,
            "exclusion": pa.array([None if flag else "rule" for flag in included], pa.string()),
            "outcome": pa.nulls(len(rows), pa.float64()),
            "outcome_status": pa.nulls(len(rows), pa.string()),
        }
    )
    types = {"update_cycle": pa.int32(), "trained": pa.bool_(), "reason": pa.string()}
    for name in SAMPLE_COLUMNS:
        table = table.append_column(name, pa.nulls(len(rows), types.get(name, pa.float64())))
    assert found == pytest.approx(reward_signals(table, {}).values[:, 0], abs=1e-9)
    assert batch_advantage(reward + constant, included, cycle) == pytest.approx(found, abs=1e-6)


def test_a_replay_of_the_same_reward_changes_nothing(logged: Logged) -> None:
    found = compare(logged, parse_spec(OLD), parse_spec(OLD), pressures=False)
    assert (found.distance, found.gainers, found.losers, found.spec_changes) == (0.0, (), (), ())
    assert found.flips is not None
    assert (found.flips.flipped, found.flips.tau) == (0.0, 1.0)


def test_differences_between_specs_are_named(logged: Logged) -> None:
    assert spec_changes(parse_spec(OLD), parse_spec(NEW)) == (
        "term edit_persistence is gone",
        "term kept is new: kind edit_persistence, weight 2, params {horizon_minutes: 30, kept: 1, reverted: -1.5}",
        "term invalid_tool_call is new: kind invalid_tool_call, weight -1, "
        "params {kinds: ['malformed', 'unparsed', 'unknown_tool', 'schema', 'rejected']}",
        "rule broken is gone",
        "name 'old' -> 'new'",
    )
    lighter = parse_spec(OLD.replace("-0.01", "-0.02"))
    assert spec_changes(parse_spec(OLD), lighter) == ("term latency: weight -0.01 -> -0.02",)


# -- the pressure matrix -------------------------------------------------------------------------------------------


def dodging(facts: Callable[..., pa.Table], spec: RewardSpec, size: int = 1200) -> Logged:
    """Hard requests, on which an edit is mostly reverted, and a third of the calls is broken."""
    rng = np.random.default_rng(6)
    rows = []
    for user in range(size):
        broken, kept = rng.random() < 1 / 3, rng.random() < 0.2
        row = {"invalid_malformed": 1} if broken else {**EDIT, "edit_lost_s": None if kept else 60.0}
        rows.append({"user_id": f"u{user}", "predicted_failure": 0.9, "ambiguity": 0.2, "agent_turns": 1} | row)
    return Logged.of(score(facts(*rows), spec))


def test_the_matrix_turns_round_where_the_dropped_samples_are_kept(facts: Callable[..., pa.Table]) -> None:
    logged = dodging(facts, parse_spec(OLD))
    found = compare(logged, parse_spec(OLD), parse_spec(NEW))
    by_kind = {
        each.kind: each
        for each in found.pressures
        if (each.statistic, each.slice) == ("invalid_call_rate", "predicted_failure=high")
    }
    # Without the dropped third the edits' advantages have mean 0, so nothing speaks for or against a broken call;
    # with it, at -1.1 each against a mean of -2.1 of the edits, breaking a call still pays.
    assert by_kind["old"].value == pytest.approx(0.0, abs=1e-12)
    share, old = 1 / 3, by_kind["new"]
    assert old.value is not None
    assert old.value > 0
    charged = parse_spec(NEW.replace("weight: -1.0 }", "weight: -4.0 }"))
    cured = next(
        each
        for each in compare(logged, parse_spec(OLD), charged).pressures
        if (each.statistic, each.slice, each.kind) == ("invalid_call_rate", "predicted_failure=high", "new")
    )
    assert cured.high is not None
    assert cured.high < 0
    assert cured.level == pytest.approx(share, abs=0.04)


def test_slices_bands_and_statistics_are_those_of_the_detectors(tmp_path: Path, facts: Callable[..., pa.Table]) -> None:
    assert dict(SLICES) == dict(pressure.SLICES)
    assert dict(BANDS) == dict(cube.BANDS)
    logged = dodging(facts, parse_spec(OLD), 200)
    lake = Lake(tmp_path)
    lake.write_observations(logged.table, 0)
    theirs = {each.name: each for each in measured_statistics()}
    shared = [each.name for each in MEASURED if each.name in theirs]
    assert len(shared) >= 9
    levels = lake.query(
        "SELECT " + ", ".join(f"{_level(theirs[name])} AS {name}" for name in shared) + " FROM observations",
        observations=logged.table,
    ).to_pylist()[0]
    ours = measured(logged.rows, shared)
    for index, name in enumerate(shared):
        y = ours.denominator[:, index].mean()
        mine = ours.numerator[:, index].mean() / y if y else None
        assert mine == (None if levels[name] is None else pytest.approx(levels[name])), name


def _level(item: Any) -> str:
    value = f"({item.numerator})::DOUBLE"
    if item.kind == "rate":
        return f"avg({value}) FILTER (({item.where}))"
    known = f"({item.where}) AND {item.numerator} IS NOT NULL AND {item.denominator} IS NOT NULL"
    total = f"sum(({item.denominator})::DOUBLE) FILTER ({known})"
    return f"sum({value}) FILTER ({known}) / nullif({total}, 0)"


def test_a_row_whose_place_is_not_known_is_in_the_whole_only(facts: Callable[..., pa.Table]) -> None:
    logged = Logged.of(
        score(facts({"predicted_failure": None}, {"predicted_failure": 0.6, "ambiguity": 0.499}), bundled("sound"))
    )
    inside = {name: within(logged.rows, name).tolist() for name in SLICES}
    assert inside == {
        "all": [True, True],
        "predicted_failure=low": [False, False],
        "predicted_failure=mid": [False, False],
        "predicted_failure=high": [False, True],
        "ambiguity=clear": [False, True],
        "ambiguity=vague": [True, False],
        "predicted_failure=high,ambiguity=clear": [False, True],
        "predicted_failure=high,ambiguity=vague": [False, False],
    }


def test_a_lake_is_replayed_by_cycle(tmp_path: Path, facts: Callable[..., pa.Table]) -> None:
    lake = Lake(tmp_path)
    spec = bundled("naive")
    for cycle in (0, 1):
        rows = [{"interaction_id": f"c{cycle}-{index}", "cycle": cycle, **row} for index, row in enumerate(ROWS)]
        lake.write_observations(score(facts(*rows), spec), cycle)
    found = replay(lake, [1], spec, bundled("sound"), pressures=False)
    assert (found.cycles, found.num_rows, found.old, found.new) == ((1,), 4, version(spec), version(bundled("sound")))
    assert {each.interaction_id[:3] for each in (*found.gainers, *found.losers)} == {"c1-"}
    assert set(FACTS.names) <= set(Logged.read(lake, [0]).table.column_names)
