"""The pressure matrix of cycles in a lake: what is read, joined, sliced and charged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from palomar.data.lake import Lake
from palomar.data.observations import FACTS, SAMPLES
from palomar.detectors.measure import measure
from palomar.detectors.pressure import PRESSURE, measured_statistics, pressures
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
