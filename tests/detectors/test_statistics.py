"""Behaviour statistics on rows counted by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palomar.data.clock import survival
from palomar.data.lake import Lake
from palomar.data.observations import OBSERVATIONS
from palomar.detectors.cube import Cube, cube, merge
from palomar.detectors.measure import SERIES, measure, series
from palomar.detectors.statistics import STATISTICS, Statistic, expanded, register


def rows(*given_rows: dict[str, Any], **for_all: Any) -> pa.Table:
    """Observations with the given values; null, or 0 where a column may not be null."""
    types = {field.name: field.type for field in OBSERVATIONS}
    empty = {
        field.name: None if field.nullable else {"int32": 0, "bool": False, "string": "x"}[str(field.type)]
        for field in OBSERVATIONS
    }
    values = [empty | {"cycle": 0} | for_all | row for row in given_rows]
    extra = [name for name in values[0] if name not in types]
    fields = [(name, types[name]) for name in types]
    fields += [(name, pa.string() if name.startswith("status:") else pa.float64()) for name in extra]
    return pa.Table.from_pylist(values, schema=pa.schema(fields))


def measured(table: pa.Table) -> Cube:
    connection = duckdb.connect()
    connection.register("observations", table)
    return cube(connection)


class Points:
    """The series of some rows, by statistic, slice and cycle."""

    def __init__(self, table: pa.Table) -> None:
        self.rows = series(measured(table)).to_pylist()

    def __call__(self, statistic: str, slice_: str = "all", cycle: int | None = 0) -> dict[str, Any]:
        (found,) = [
            row for row in self.rows if (row["statistic"], row["slice"], row["cycle"]) == (statistic, slice_, cycle)
        ]
        return dict(found)


def point(table: pa.Table, statistic: str, slice_: str = "all", cycle: int | None = 0) -> dict[str, Any]:
    return Points(table)(statistic, slice_, cycle)


def test_a_rate_is_a_share_with_wilsons_interval() -> None:
    """Wilson (1927) for 1 of 10: centre (0.1 + z2/20) / (1 + z2/10), as tabulated 0.0179 to 0.4042."""
    found = point(rows(*[{"edited": n == 0} for n in range(10)]), "edit_rate")
    assert found["value"] == 0.1
    assert found["low"] == pytest.approx(0.0179, abs=1e-4)
    assert found["high"] == pytest.approx(0.4042, abs=1e-4)
    assert (found["n"], found["status"], found["maturity"]) == (10, "ok", None)


def test_nothing_to_count_is_no_data_and_not_zero() -> None:
    found = point(rows({"asked": None}, {"asked": None}), "clarification_rate")
    assert (found["status"], found["value"], found["low"], found["n"]) == ("no data", None, None, 0)
    none_called = point(rows({"agent_turns": 1, "tool_calls": 0}), "failed_call_rate")
    assert (none_called["status"], none_called["value"]) == ("no data", None)


def test_unknown_rows_are_not_in_the_denominator() -> None:
    found = point(rows({"asked": True}, {"asked": False}, {"asked": None}), "clarification_rate")
    assert (found["value"], found["n"]) == (0.5, 2)


def test_clarification_on_clear_requests_leaves_out_vague_and_unknown_ones() -> None:
    point = Points(
        rows(
            {"asked": True, "ambiguity": 0.49},
            {"asked": False, "ambiguity": 0.1},
            {"asked": True, "ambiguity": 0.5},
            {"asked": True, "ambiguity": None},
        )
    )
    assert (point("clarification_rate_clear")["value"], point("clarification_rate_clear")["n"]) == (
        0.5,
        2,
    )
    assert point("clarification_rate", "ambiguity=clear")["value"] == 0.5


def test_invalid_calls_are_counted_per_assistant_turn_in_all_and_by_kind() -> None:
    point = Points(
        rows(
            {"agent_turns": 4, "invalid_malformed": 1, "invalid_schema": 2},
            {"agent_turns": 2, "invalid_rejected": 1},
            {"agent_turns": 0},
        )
    )
    assert point("invalid_call_rate")["value"] == pytest.approx(4 / 6)
    assert point("invalid_schema_rate")["value"] == pytest.approx(2 / 6)
    assert point("invalid_unparsed_rate")["value"] == 0
    assert point("invalid_call_rate")["n"] == 6


def test_a_ratio_has_the_delta_methods_interval() -> None:
    """By hand: x = 1 0 3, y = 2 2 4; r = 1/2; residuals 0 -1 1; error sqrt(3 * 2 / 2) / 8 = sqrt(3) / 8."""
    table = rows(*[{"calls_failed": x, "tool_calls": y} for x, y in ((1, 2), (0, 2), (3, 4))])
    found = point(table, "failed_call_rate")
    half = 1.959964 * math.sqrt(3) / 8
    assert found["value"] == 0.5
    assert found["high"] == pytest.approx(0.5 + half, abs=1e-6)
    assert found["low"] == pytest.approx(max(0.5 - half, 0), abs=1e-6)


def test_no_event_at_all_still_leaves_room_above_zero() -> None:
    """Wilson's upper limit of 0 in 10 rows is 0.2775; with 2 turns a row that is 0.139 calls a turn at most."""
    found = point(rows(*[{"agent_turns": 2}] * 10), "invalid_call_rate")
    assert (found["value"], found["low"]) == (0, 0)
    assert found["high"] == pytest.approx(0.2775 / 2, abs=1e-4)


def test_one_row_has_a_mean_but_no_interval() -> None:
    found = point(rows({"tokens_out": 7}), "tokens_out_mean")
    assert (found["value"], found["low"], found["high"], found["n"]) == (7, None, None, 1)


def test_a_mean_has_the_normal_interval() -> None:
    """Of 1 2 3 4: mean 2.5, sd sqrt(5/3), error sqrt(5/3)/2."""
    found = point(rows(*[{"latency_s": float(n)} for n in (1, 2, 3, 4)]), "latency_mean")
    assert found["value"] == 2.5
    assert found["high"] - found["low"] == pytest.approx(2 * 1.959964 * math.sqrt(5 / 3) / 2, abs=1e-4)


def test_function_statistics() -> None:
    point = Points(
        rows(
            {
                "edited": True,
                "functions_before": 1,
                "functions_after": 3,
                "function_lines_after": 12,
                "complexity_after": 6,
            },
            {
                "edited": True,
                "functions_before": 1,
                "functions_after": 1,
                "function_lines_after": 20,
                "complexity_after": 2,
            },
            {"edited": True, "functions_before": None, "functions_after": 2, "function_lines_after": 8},
            {"edited": False},
        )
    )
    assert point("function_lines_mean")["value"] == pytest.approx(40 / 6)
    assert point("functions_per_edit")["value"] == 2
    assert point("functions_per_edit")["n"] == 3
    assert point("function_growth")["value"] == 2  # (3 + 1) / 2, the third is not known before
    assert point("complexity_mean")["value"] == 2  # 8 / 4


@pytest.mark.parametrize(("lengths", "median"), [((12, 5, 7.5), 7.5), ((3,), 3), ((4, 4, 9, 9.5), 4), ((0, 0, 1), 0)])
def test_the_median_function_length_is_exact_on_halves(lengths: tuple[float, ...], median: float) -> None:
    table = rows(*[{"function_lines_median": float(length)} for length in lengths])
    assert point(table, "function_lines_median")["value"] == median


def test_quantiles_of_latency_are_within_four_percent_and_cover_the_order_statistics() -> None:
    rng = np.random.default_rng(1)
    latency = rng.lognormal(2.0, 1.0, 5000)
    point = Points(rows(*[{"latency_s": float(value)} for value in latency]))
    for percent in (50, 90, 99):
        found = point(f"latency_p{percent}")
        assert found["value"] == pytest.approx(float(np.quantile(latency, percent / 100)), rel=0.04)
        rank = 5000 * percent / 100
        spread = 1.96 * math.sqrt(rank * (1 - percent / 100))
        ordered = np.sort(latency)
        assert found["low"] == pytest.approx(float(ordered[int(rank - spread)]), rel=0.04)
        assert found["high"] == pytest.approx(float(ordered[int(rank + spread)]), rel=0.04)


def test_a_quantile_beyond_the_grid_is_not_a_number_made_up() -> None:
    assert point(rows({"latency_s": 1e9}), "latency_p50")["value"] is None


def test_edit_persistence_equals_lifelines_when_times_lie_on_the_grid() -> None:
    """Times are powers of 2 (grid times) or horizons; Kaplan-Meier on them is exact, censoring included."""
    rng = np.random.default_rng(2)
    times = rng.choice([64.0, 256.0, 1024.0, 1800.0, 4096.0, 5400.0, 16384.0], 400)
    lost = rng.random(400) < 0.4
    point = Points(
        rows(
            *[
                {"edited": True, "edit_lost_s": float(t) if gone else None, "watched_s": 20000.0 if gone else float(t)}
                for t, gone in zip(times, lost, strict=True)
            ]
        )
    )
    for name, seconds in (("30m", 1800.0), ("90m", 5400.0)):
        exact = survival(times, lost, seconds)
        found = point(f"edit_persistence_{name}")
        assert found["value"] == pytest.approx(exact.estimate, abs=1e-9)
        assert found["low"] == pytest.approx(exact.low, abs=1e-9)
        assert found["high"] == pytest.approx(exact.high, abs=1e-9)
        mature = (times >= seconds) | lost
        assert found["maturity"] == pytest.approx(float(mature.mean()))


def test_edit_persistence_with_nobody_watched_so_long_is_not_estimable() -> None:
    table = rows(*[{"edited": True, "watched_s": 100.0}] * 5)
    found = point(table, "edit_persistence_30m")
    assert (found["status"], found["value"], found["maturity"], found["n"]) == ("not estimable", None, 0.0, 5)


def test_edits_without_a_clock_and_what_was_not_edited_are_not_in_persistence() -> None:
    table = rows(
        {"edited": True, "watched_s": 1800.0},
        {"edited": True, "watched_s": None, "undone": True},
        {"edited": False, "watched_s": 9000.0, "edit_lost_s": 1.0},
        {"edited": True, "watched_s": 2000.0, "edit_lost_s": 0.0},
    )
    found = point(table, "edit_persistence_30m")
    assert (found["n"], found["value"]) == (2, 0.5)


def test_an_edit_watched_for_zero_seconds_is_not_a_loss() -> None:
    table = rows({"edited": True, "watched_s": 0.0}, {"edited": True, "watched_s": 1800.0})
    assert point(table, "edit_persistence_30m")["value"] == 1


def test_dissatisfied_follow_ups_are_counted_among_those_watched_long_enough() -> None:
    table = rows(
        {"follow_up": "dissatisfied", "follow_up_s": 60.0, "watched_s": 5400.0},
        {"follow_up": "dissatisfied", "follow_up_s": 5401.0, "watched_s": 9000.0},  # too late to count
        {"follow_up": "satisfied", "follow_up_s": 60.0, "watched_s": 9000.0},
        {"watched_s": 9000.0},
        {
            "follow_up": "dissatisfied",
            "follow_up_s": 60.0,
            "watched_s": 100.0,
        },  # immature: early events are not cherry-picked
        {"watched_s": 100.0},
        {"follow_up": "unclear", "watched_s": 9000.0},
        {"follow_up": "unclassified", "watched_s": 9000.0},
        {"watched_s": None},  # no clock: nobody can say that none came
    )
    found = point(table, "dissatisfied_rate")
    assert (found["value"], found["n"]) == (0.25, 4)
    assert found["maturity"] == pytest.approx(4 / 6)


def test_logs_without_times_count_among_those_with_a_follow_up() -> None:
    table = rows({"follow_up": "dissatisfied"}, {"follow_up": "neutral"}, {"follow_up": None})
    found = point(table, "dissatisfied_rate")
    assert (found["value"], found["n"], found["maturity"]) == (0.5, 2, 1.0)


def test_nothing_watched_long_enough_is_immature() -> None:
    found = point(rows({"watched_s": 10.0}, {"watched_s": 20.0}), "dissatisfied_rate")
    assert (found["status"], found["value"], found["maturity"], found["n"]) == ("immature", None, 0.0, 0)


def test_rewards_terms_exclusions_and_outcome() -> None:
    point = Points(
        rows(
            {"reward": 1.5, "reward_status": "valid", "included": True, "outcome": 1.0, "outcome_status": "mature"},
            {
                "reward": 0.5,
                "reward_status": "valid",
                "included": False,
                "exclusion": "broken",
                "outcome_status": "immature",
            },
            {"reward": None, "reward_status": "invalid", "included": False, "exclusion": "it's"},
            {"reward": None, "reward_status": "waiting", "included": None},
            **{"term:kept it": 0.25, "status:kept it": "valid"},
        )
    )
    assert point("reward_mean")["value"] == 1.0
    assert point("reward_mean")["maturity"] == pytest.approx(2 / 3)
    assert point("training_reward_mean")["value"] == 1.5
    assert point("training_reward_mean")["maturity"] == pytest.approx(1 / 2)
    assert point("reward_invalid_rate")["value"] == 0.25
    assert point("term:kept it")["value"] == 0.25
    assert point("excluded_rate")["value"] == pytest.approx(2 / 3)
    assert point("excluded:broken")["value"] == pytest.approx(1 / 3)
    assert point("excluded:it's")["value"] == pytest.approx(1 / 3)
    assert (point("outcome_mean")["value"], point("outcome_mean")["maturity"]) == (1.0, 0.5)


def test_the_rest_by_hand() -> None:
    table = rows(
        {"edited": True, "edits": 3, "edits_failed": 1, "tests_edited": True, "tests_run": 4, "tests_passed": 3},
        {"edited": True, "edits": 1, "tests_edited": False, "tests_run": 0, "tests_passed": 0, "truncated": True},
        {"edited": True, "tests_edited": None, "calls_timed_out": 1, "calls_refused": 2, "tool_calls": 5},
        {"logged_reward": 0.25, "tokens_in": 10, "agent_turns": 2},
    )
    expected = {
        "failed_edit_rate": 0.25,
        "tests_edited_rate": 0.5,
        "test_pass_share": 0.75,
        "truncated_rate": 1.0,
        "timed_out_call_rate": 0.2,
        "refused_call_rate": 0.4,
        "logged_reward_mean": 0.25,
        "tokens_in_mean": 10,
        "tool_calls_mean": 1.25,
        "agent_turns_mean": 0.5,
    }
    assert {name: point(table, name)["value"] for name in expected} == expected


def test_every_slice_of_every_dimension_and_cycle_is_there() -> None:
    table = rows(
        {"predicted_failure": 0.39, "organisation": "acme", "language": "go", "arm": "a", "edited": True},
        {"predicted_failure": 0.4, "organisation": "acme", "language": None, "arm": "b"},
        {"predicted_failure": 0.6, "organisation": "globex", "language": "go", "arm": "b"},
        {"predicted_failure": None, "organisation": "globex", "language": "go", "arm": "b", "cycle": 1},
    )
    found = {(r["cycle"], r["slice"]): r for r in series(measured(table)).to_pylist() if r["statistic"] == "edit_rate"}
    assert set(found) == {
        *((0, f"predicted_failure={band}") for band in ("low", "mid", "high")),
        *((0, name) for name in ("all", "organisation=acme", "organisation=globex", "language=go", "language=unknown")),
        *((0, name) for name in ("arm=a", "arm=b")),
        *((1, name) for name in ("all", "predicted_failure=unknown", "organisation=globex", "language=go", "arm=b")),
    }  # ambiguity and kind of work are known nowhere, so they make no slices
    assert found[0, "organisation=acme"]["value"] == 0.5
    assert found[0, "predicted_failure=low"]["value"] == 1.0
    assert found[0, "all"]["n"] == 3


def test_a_slice_without_rows_of_a_statistic_says_so_and_a_cycle_without_any_says_so_once() -> None:
    table = rows({"arm": "a", "tokens_out": 3}, {"arm": "b"})
    found = [(row["slice"], row["statistic"], row["status"]) for row in series(measured(table)).to_pylist()]
    assert ("arm=b", "tokens_out_mean", "no data") in found
    assert ("all", "tokens_in_mean", "no data") in found
    assert ("arm=a", "tokens_in_mean", "no data") not in found


def test_logs_outside_a_loop_have_no_cycle() -> None:
    assert point(rows({"edited": True}, cycle=None), "edit_rate", cycle=None)["value"] == 1


def test_no_rows_give_an_empty_series_with_its_columns() -> None:
    assert series(measured(rows({}).slice(0, 0))).schema == SERIES
    assert series(measured(rows({}).slice(0, 0))).num_rows == 0


def test_measure_reads_the_cycles_asked_for_from_the_lake(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for cycle in range(3):
        lake.write_observations(rows(*[{"edited": n < cycle} for n in range(4)], cycle=cycle), cycle)
    found = [p for p in measure(lake, [1, 2]) if (p.statistic, p.slice) == ("edit_rate", "all")]
    assert [(p.cycle, p.value, p.n) for p in found] == [(1, 0.25, 4), (2, 0.5, 4)]


def test_registering_a_name_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="edit_rate"):
        register(STATISTICS["edit_rate"])


def test_definitions_that_make_no_sense_are_refused() -> None:
    common = {"title": "t", "unit": "u", "good": "up", "description": "d", "name": "n", "numerator": "edits"}
    with pytest.raises(ValueError, match="horizon"):
        Statistic(kind="survival", **common)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="quantile"):
        Statistic(kind="quantile", quantile=1.0, **common)  # type: ignore[arg-type]


# -- partitions combine exactly ------------------------------------------------------------------------------------

ROW = st.fixed_dictionaries(
    {
        "cycle": st.sampled_from([None, 0, 1]),
        "organisation": st.sampled_from([None, "acme", "globex"]),
        "predicted_failure": st.sampled_from([None, 0.1, 0.5, 0.9]),
        "edited": st.booleans(),
        "asked": st.sampled_from([None, True, False]),
        "agent_turns": st.integers(0, 9),
        "invalid_schema": st.integers(0, 3),
        "tokens_out": st.none() | st.integers(0, 100_000),
        "latency_s": st.none() | st.floats(0, 1000),
        "function_lines_median": st.none() | st.integers(0, 80).map(lambda value: value / 2),
        "watched_s": st.none() | st.floats(0, 100_000),
        "edit_lost_s": st.none() | st.floats(0, 100_000),
        "reward": st.none() | st.floats(-3, 3),
        "reward_status": st.sampled_from([None, "valid", "waiting", "invalid"]),
        "included": st.sampled_from([None, True, False]),
        "exclusion": st.sampled_from([None, "broken", "stale"]),
    }
)


def same(one: Cube, other: Cube) -> bool:
    """Equal to the last bit."""
    return (
        one.cells == other.cells
        and {s.name for s in one.statistics} == {s.name for s in other.statistics}
        and one.sums.keys() == other.sums.keys()
        and all(np.array_equal(one.sums[name], other.sums[name]) for name in one.sums)
        and all((one.histograms[name] != other.histograms[name]).nnz == 0 for name in one.histograms)
    )


@given(st.lists(ROW, min_size=3, max_size=12), st.data())
@settings(max_examples=8, deadline=None)
@pytest.mark.slow
def test_cubes_of_partitions_add_up_to_the_cube_of_the_whole_in_any_order(given_rows: Any, data: Any) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(1, len(given_rows) - 1), min_size=2, max_size=2)))
    table = rows(*given_rows)
    whole = measured(table)
    a, b, c = (measured(table.slice(i, j - i)) for i, j in zip((0, *cuts), (*cuts, len(given_rows)), strict=True))
    assert same(merge(merge(a, b), c), whole)
    assert same(merge(a, merge(b, c)), whole)
    assert same(merge(c, a, b), whole)
    assert series(merge(a, b, c)).equals(series(whole))


def test_sums_of_fractions_do_not_depend_on_how_rows_are_parted() -> None:
    """0.1 + 0.2 + 0.3 is 0.6000000000000001 or 0.6 in floating point, by the order."""
    table = rows(*[{"latency_s": value} for value in (0.1, 0.2, 0.3)])
    a, b, c = (measured(table.slice(n, 1)) for n in range(3))
    assert same(merge(merge(a, b), c), merge(a, merge(b, c)))
    assert same(merge(a, b, c), measured(table))


def test_a_partition_without_a_reason_of_exclusion_is_in_its_denominator() -> None:
    table = rows(
        {"included": True}, {"included": False, "exclusion": "broken"}, {"included": False, "exclusion": "old"}
    )
    merged = merge(*(measured(table.slice(n, 1)) for n in range(3)))
    assert same(merged, measured(table))
    (found,) = [row for row in series(merged).to_pylist() if row["statistic"] == "excluded:broken"]
    assert (found["value"], found["n"]) == (pytest.approx(1 / 3), 3)


def test_many_cells_are_counted_batch_by_batch_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    table = rows(
        *[
            {"organisation": f"o{n % 7}", "latency_s": float(rng.random() * 50), "function_lines_median": float(n % 30)}
            for n in range(200)
        ]
    )
    dense = measured(table)
    monkeypatch.setattr("palomar.detectors.cube._DENSE", 0)
    monkeypatch.setattr("palomar.detectors.cube._BATCH", 64)
    assert same(measured(table), dense)


def test_expanded_statistics_have_unique_names_and_say_what_they_are_of() -> None:
    found = expanded(["edited", "term:a", "status:a"], ["stale"])
    assert len({statistic.name for statistic in found}) == len(found) == len(STATISTICS) + 2
    for statistic in found:
        assert statistic.title
        assert statistic.unit
        assert statistic.description.endswith(".")
