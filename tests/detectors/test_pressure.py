"""The pressure matrix of cycles in a lake: what is read, joined, sliced and charged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from palomar.data.lake import Lake
from palomar.data.observations import FACTS, SAMPLES
from palomar.data.slices import SLICES
from palomar.detectors import pressure as module
from palomar.detectors.measure import measure
from palomar.detectors.pressure import (
    MARGIN,
    PRESSURE,
    combined,
    cycle_pressures,
    judged,
    measured_statistics,
    pressures,
)
from palomar.reward.scoring import score, score_logged
from palomar.reward.spec import bundled, version
from palomar.trainer.advantages import advantages
from palomar.trainer.config import AdvantageConfig

NAIVE = bundled("naive")
SPECS = {version(NAIVE): NAIVE}
ROWS = 900
Matrix = dict[tuple[str, str, str], dict[str, Any]]


def facts(cycle: int | None, seed: int) -> pa.Table:
    """Requests of 60 users: on hard ones an edit is mostly reverted; the agent edits, asks or breaks a call."""
    rng = np.random.default_rng(seed)
    rows = []
    for index in range(ROWS):
        hard, vague = rng.random(), rng.random()
        does = rng.choice(["edit", "ask", "break"], p=[0.7, 0.2, 0.1])
        lines = int(rng.integers(4, 30))
        functions = int(rng.integers(1, 4))
        row: dict[str, Any] = {field.name: 0 for field in FACTS if field.type == pa.int32() and not field.nullable}
        row |= {
            "interaction_id": f"{cycle}-{index}", "source": "test", "traffic": "production", "cycle": cycle,
            "user_id": f"u{rng.integers(60)}", "conversation_id": f"{cycle}-c{index}", "predicted_failure": hard,
            "ambiguity": vague if index % 50 else None, "agent_turns": 1, "tool_calls": int(does != "ask"),
            "edited": does == "edit", "edits": int(does == "edit"), "asked": does == "ask", "watched_s": 1e6,
            "invalid_malformed": int(does == "break"), "latency_s": 5.0 + rng.random(),
            "undone": False, "answered": False,
        }  # fmt: skip
        if does == "edit":
            row |= {
                "functions_before": 1, "functions_after": functions, "function_lines_after": lines,
                "edit_lost_s": 60.0 if rng.random() < hard else None, "tests_run": 4, "tests_passed": 4,
            }  # fmt: skip
        if does == "break":  # it looked at a file, whose functions are known; they are no functions of an edit
            row |= {"functions_before": 9, "functions_after": 9}
        rows.append(row)
    return pa.Table.from_pylist(rows, schema=FACTS)


def samples(update: int, offered: pa.Table, waiting: set[str]) -> pa.Table:
    """What a trainer logs of an update, in which some rewards are not known yet."""
    made = advantages(offered, AdvantageConfig(), barred=dict.fromkeys(waiting, "reward_waiting"))
    rows = [
        {
            "interaction_id": name, "cycle": update, "sampled_cycle": sampled, "policy_lag": update - sampled,
            "reward": None if name in waiting else reward, "baseline": baseline, "advantage": advantage,
            "weight": weight, "trained": weight > 0, "reason": reason, "tokens": 9,
        }
        for name, sampled, reward, baseline, advantage, weight, reason in zip(
            offered["interaction_id"].to_pylist(), offered["cycle"].to_pylist(), offered["reward"].to_pylist(),
            made.baseline, made.value, made.weight, made.reason, strict=True,
        )
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=SAMPLES)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Two cycles paid by the naive reward. 40 samples of cycle 0 wait, and are trained on in cycle 1."""
    lake = Lake(tmp_path_factory.mktemp("lake"))
    first, second = (score(facts(cycle, seed=cycle), NAIVE) for cycle in (0, 1))
    included = [
        name for name, keep in zip(*(first[c].to_pylist() for c in ("interaction_id", "included")), strict=True) if keep
    ]
    late = set(included[:40])
    lake.write_observations(first, 0)
    lake.write_observations(second, 1)
    lake.append_samples(samples(0, first, late), 0)
    waited = first.filter(pa.array([name in late for name in first["interaction_id"].to_pylist()]))
    lake.append_samples(samples(1, pa.concat_tables([second, waited]), set()), 1)
    return lake


def matrix(table: pa.Table) -> Matrix:
    assert table.schema == PRESSURE
    return {(row["statistic"], row["slice"], row["kind"]): row for row in table.to_pylist()}


def same(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Equal, up to rounding."""
    return found.keys() == expected.keys() and all(
        found[name] == (pytest.approx(value, rel=1e-9, abs=1e-12) if isinstance(value, float) else value)
        for name, value in expected.items()
    )


def test_behaviour_is_measured_and_what_it_is_paid_is_not() -> None:
    names = {item.name for item in measured_statistics()}
    assert names >= {"edit_rate", "clarification_rate", "invalid_call_rate", "functions_per_edit", "outcome_mean"}
    assert not names & {"reward_mean", "logged_reward_mean", "excluded_rate", "dissatisfied_rate", "latency_p50"}
    assert not names & {"clarification_rate_clear", "edit_persistence_90m"}


def test_levels_are_those_that_the_statistics_show(lake: Lake) -> None:
    shown = {(p.statistic, p.slice): p for p in measure(lake, [0]) if p.status == "ok"}
    waiting_too = matrix(pressures(lake, [0], SPECS))
    compared = 0
    for (statistic, slice_, kind), row in waiting_too.items():
        if kind == "reward" and (statistic, slice_) in shown:
            assert row["level"] == pytest.approx(shown[statistic, slice_].value, rel=1e-6), statistic
            compared += 1
    assert compared > 30


def test_a_sample_that_waited_counts_with_the_advantage_of_the_cycle_that_trained_on_it(lake: Lake) -> None:
    found = matrix(pressures(lake, [0], SPECS))
    assert found["edit_rate", "all", "reward"]["n"] == ROWS
    assert not [key for key in found if key[2] in ("rule:reward_waiting", "term:unattributed")]


@pytest.mark.parametrize("cycles", [[0], [1], [0, 1]])
def test_terms_add_up_in_every_cell_of_the_matrix(lake: Lake, cycles: list[int]) -> None:
    found = matrix(pressures(lake, cycles, SPECS))
    cells = {key[:2] for key, row in found.items() if key[2] == "reward" and row["value"] is not None}
    assert len(cells) > 30
    for cell in cells:
        parts = [row["value"] or 0.0 for key, row in found.items() if key[:2] == cell and key[2].startswith("term:")]
        assert sum(parts) == pytest.approx(found[*cell, "reward"]["value"], abs=1e-9)


def test_the_holes_of_the_naive_reward_show_in_their_slices(lake: Lake) -> None:
    found = matrix(pressures(lake, [0, 1], SPECS))
    dodge = {kind: found["invalid_call_rate", "predicted_failure=high", kind] for kind in ("reward", "outcome")}
    assert dodge["reward"]["low"] > 0 > dodge["outcome"]["high"]
    assert found["invalid_call_rate", "predicted_failure=high", "rule:invalid_tool_call"]["low"] > 0
    assert found["clarification_rate", "predicted_failure=high", "reward"]["low"] > 0
    assert found["clarification_rate", "predicted_failure=high", "term:edit_persistence"]["low"] > 0
    assert found["functions_per_edit", "all", "term:function_size"]["low"] > 0
    assert ("outcome_mean", "all", "outcome") not in found


def test_a_slice_holds_its_rows_alone_and_none_that_are_not_known(lake: Lake) -> None:
    found = matrix(pressures(lake, [1], SPECS))
    sizes = {slice_: row["n"] for (name, slice_, kind), row in found.items() if (name, kind) == ("edit_rate", "reward")}
    unknown = len(range(0, ROWS, 50))
    assert sizes["ambiguity=clear"] + sizes["ambiguity=vague"] == sizes["all"] - unknown == ROWS - unknown
    assert 0 < sizes["predicted_failure=high,ambiguity=clear"] < sizes["predicted_failure=high"] < sizes["all"]


def test_without_the_spec_nothing_is_charged_to_a_term_and_that_is_said(lake: Lake) -> None:
    known, unknown = matrix(pressures(lake, [1], SPECS)), matrix(pressures(lake, [1], {}))
    key = ("edit_rate", "all")
    assert unknown[*key, "term:unattributed"]["value"] == pytest.approx(known[*key, "reward"]["value"], abs=1e-12)
    assert not [kind for *_, kind in unknown if kind == "term:edit_persistence"]


def test_logs_from_outside_a_loop_get_the_advantages_a_trainer_would_have_made(tmp_path: Path) -> None:
    scored = score(facts(None, seed=5), NAIVE)
    lake = Lake(tmp_path / "lake")
    lake.write_observations(scored, None)
    outside = matrix(pressures(lake, [None], SPECS))
    looped = Lake(tmp_path / "looped")
    numbered = scored.set_column(scored.column_names.index("cycle"), "cycle", pa.array([3] * ROWS, pa.int32()))
    looped.write_observations(numbered, 3)
    looped.append_samples(samples(3, numbered, set()), 3)
    for key, row in matrix(pressures(looped, [3], SPECS)).items():
        assert outside[key]["status"] == row["status"]
        assert outside[key]["value"] == pytest.approx(row["value"], abs=1e-9, nan_ok=True)


def test_logs_without_any_reward_have_no_pressure_and_an_empty_lake_no_rows(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    assert pressures(lake, [0], {}).num_rows == 0
    lake.write_observations(score_logged(facts(None, seed=6)), None)
    assert pressures(lake, [None], {}).num_rows == 0


def test_few_rows_in_coarse_contexts_are_held_fixed_by_regression(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    lake.write_observations(score(facts(None, seed=7).slice(0, 60), NAIVE), None)
    found = matrix(pressures(lake, [None], SPECS))
    assert {row["adjustment"] for row in found.values()} >= {"regression"}
    parts = [row["value"] or 0.0 for key, row in found.items() if key[:2] == ("edit_rate", "all") and "term:" in key[2]]
    assert sum(parts) == pytest.approx(found["edit_rate", "all", "reward"]["value"], abs=1e-9)


def test_sharing_cells_between_slices_changes_no_number(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    known = lake_without_gaps(lake)
    together = matrix(pressures(known, [0, 1], SPECS))
    monkeypatch.setattr(module, "_LEFT_THIN", -1.0)  # then each slice is worked on alone
    alone = matrix(pressures(known, [0, 1], SPECS))
    assert together.keys() == alone.keys()
    assert {slice_ for _, slice_, _ in together} == set(SLICES)
    for key, row in together.items():
        assert same(row, alone[key]), key


def lake_without_gaps(lake: Lake) -> Lake:
    """The same where all requests have an ambiguity: no cell is thin."""
    other = Lake(lake.root.parent / "without-gaps")
    for cycle in (0, 1):
        with lake.connect(["observations"], [cycle]) as connection:
            table = connection.execute(
                "SELECT * REPLACE (coalesce(ambiguity, 0.3) AS ambiguity) FROM observations"
            ).to_arrow_table()
        other.write_observations(table, cycle)
    return other


# -- cycle by cycle ------------------------------------------------------------------------------------------------


def test_a_cycle_is_kept_and_is_what_it_would_be_alone(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def counted(lake: Lake, cycles: Any, specs: Any) -> pa.Table:
        made.append(cycles)
        return pressures(lake, cycles, specs)

    monkeypatch.setattr(module, "pressures", counted)
    first = cycle_pressures(lake, 0, SPECS)
    assert first.equals(cycle_pressures(lake, 0, SPECS))
    alone = matrix(pressures(lake, [0], SPECS))
    assert all(same(row, alone[key]) for key, row in matrix(first).items())
    assert made == [[0]]
    cycle_pressures(lake, 0, {**SPECS, "another": bundled("sound")})  # no row was paid by it
    assert made == [[0]]
    cycle_pressures(lake, 0, {})
    assert made == [[0], [0]]


def test_a_cycle_is_made_anew_only_when_a_later_update_trained_on_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path)
    tables = [score(facts(cycle, seed=cycle), NAIVE) for cycle in range(3)]
    made = []

    def counted(lake: Lake, cycles: Any, specs: Any) -> pa.Table:
        made.extend(cycles)
        return pressures(lake, cycles, specs)

    monkeypatch.setattr(module, "pressures", counted)
    late = tables[1].filter(tables[1]["included"]).slice(0, 30)
    offered = [tables[0], tables[1], pa.concat_tables([tables[2], late])]
    waiting = [set(), set(late["interaction_id"].to_pylist()), set()]
    before = None
    for cycle in range(3):
        made.clear()
        lake.write_observations(tables[cycle], cycle)
        lake.append_samples(samples(cycle, offered[cycle], waiting[cycle]), cycle)
        known = [cycle_pressures(lake, each, SPECS) for each in range(cycle + 1)]
        assert made == ([1, 2] if cycle == 2 else [cycle])
        before, after = (known[1] if cycle == 1 else before), known[-2] if cycle == 2 else None
    assert before is not None
    assert after is not None
    rows = {table["rows"][0].as_py() for table in (before, after)}
    assert rows == {ROWS - 30, ROWS}


def test_combined_cycles_are_nearly_what_all_rows_say_at_once(lake: Lake) -> None:
    """Values within a standard error, most far closer; errors within a third, and right in the middle."""
    together = matrix(pressures(lake, [0, 1], SPECS))
    parts = matrix(combined([cycle_pressures(lake, cycle, SPECS) for cycle in (0, 1)]))
    assert together.keys() == parts.keys()
    errors, apart = [], []
    for key, row in together.items():
        part = parts[key]
        assert part["status"] == row["status"], key
        assert (part["n"], part["rows"]) == (row["n"], row["rows"])
        assert part["level"] == (None if row["level"] is None else pytest.approx(row["level"], rel=1e-9))
        if row["status"] == "ok":
            apart.append(abs(part["value"] - row["value"]) / row["error"])
            if key[0] == "edit_rate" and key[2] != "outcome":  # of all rows, by advantages that are the same in both
                assert part["value"] == pytest.approx(row["value"], rel=1e-9)
            errors.append(part["error"] / row["error"])
            assert part["spread"] == pytest.approx(row["spread"], rel=0.05), key
    assert len(errors) > 300
    assert max(apart) < 1
    assert np.quantile(apart, 0.95) < 0.25
    assert 0.75 < min(errors) <= max(errors) < 1.33
    assert np.median(errors) == pytest.approx(1, abs=0.03)


def test_one_cycle_combined_is_itself(lake: Lake) -> None:
    alone = cycle_pressures(lake, 1, SPECS)
    before, after = matrix(alone), matrix(combined([alone]))
    assert before.keys() == after.keys()
    for key, row in before.items():
        assert same(after[key], row), key


def test_a_rule_that_a_cycle_lacks_pushes_nothing_there(lake: Lake) -> None:
    both = [cycle_pressures(lake, cycle, SPECS) for cycle in (0, 1)]
    rule = "rule:invalid_tool_call"
    without = both[0].filter(pc.not_equal(both[0]["kind"], rule))
    key = ("invalid_call_rate", "all", rule)
    found, alone = matrix(combined([without, both[1]]))[key], matrix(both[1])[key]
    share = alone["total"] / (alone["total"] + matrix(both[0])["invalid_call_rate", "all", "reward"]["total"])
    assert found["value"] == pytest.approx(share * alone["value"], rel=1e-9)
    assert found["error"] == pytest.approx(share * alone["error"], rel=1e-9)
    assert combined([]).num_rows == combined([PRESSURE.empty_table()]).num_rows == 0


# -- there, shown not to be there, or neither ----------------------------------------------------------------------


def estimates(value: float, half: float, status: str = "ok", n: int = 1000) -> dict[str, Any]:
    known = status == "ok"
    return {
        "statistic": "s", "slice": "all", "kind": "reward", "value": value, "low": value - half if known else None,
        "high": value + half if known else None, "z": None, "n": n, "clusters": 100, "status": status, "level": 0.5,
        "adjustment": "cells", "error": half / 2, "level_error": 0.1, "rows": n, "total": n, "spread": 0.5,
        "signal_spread": 2.0, "unusual": 99, "signal_unusual": 99,
    }  # fmt: skip


def test_the_verdict_says_what_the_interval_shows() -> None:
    rows = [
        estimates(0.10, 0.05),  # spreads multiply to 1: these are correlations
        estimates(-0.10, 0.05),
        estimates(0.01, 0.03),
        estimates(0.01, 0.06),
        estimates(0.03, 0.06),
        estimates(0.10, 0.05, status="too few"),
    ]
    found = judged(pa.Table.from_pylist(rows, schema=PRESSURE.remove(22).remove(21).remove(20))).to_pylist()
    assert MARGIN == 0.05
    assert [row["verdict"] for row in found] == ["along_up", "along_down", "none", "unclear", "unclear", "unclear"]
    assert [row["correlation"] for row in found] == [0.10, -0.10, 0.01, 0.01, 0.03, 0.10]
    # 0.06 must shrink to 0.04, to be none, by 1.5 times 1.5; to 0.03, to be there, by 2 times 2.
    assert [row["needed_n"] for row in found] == [None, None, None, 2250, 4000, None]


@pytest.mark.parametrize(("push", "verdict"), [(0.0, "none"), (0.3, "along_up")])
def test_no_pressure_is_shown_by_rows_enough_and_pressure_too(tmp_path: Path, push: float, verdict: str) -> None:
    rng = np.random.default_rng(31)
    parts = [facts(None, seed=40 + part) for part in range(8)]
    table = pa.concat_tables(parts)
    names = pa.array([f"i{index}" for index in range(table.num_rows)])
    scored = score(table.set_column(0, "interaction_id", names), NAIVE)
    latency = scored["latency_s"].to_numpy()
    reward = rng.normal(size=table.num_rows) + push * (latency - latency.mean()) / latency.std()
    lake = Lake(tmp_path)
    lake.write_observations(scored.set_column(scored.column_names.index("reward"), "reward", pa.array(reward)), None)
    row = matrix(pressures(lake, [None], {}))["latency_mean", "all", "reward"]
    assert row["verdict"] == verdict
    assert row["correlation"] == pytest.approx(push / np.sqrt(1 + push**2), abs=0.03)
