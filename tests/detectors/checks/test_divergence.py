"""Reward against outcome: numbers, on made-up cycles and on streams of cycle levels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from palomar.detectors.checks._examples import rows, view
from palomar.detectors.checks.divergence import EXAMPLES, NEWEST, divergence
from palomar.detectors.detector import View
from palomar.detectors.divergences import Lines, cells_of, judge, lines

CYCLES = 13


def cycles(gain: float, outcome_gain: float, n: int = 400, number: int = CYCLES, **columns: Any) -> list[pa.Table]:
    """From cycle 8 on every reward and every outcome is higher by that much."""
    found = []
    for cycle in range(number):
        table = rows(cycle, n, **columns)
        for name, more in (("reward", gain), ("outcome", outcome_gain)):
            changed = pa.array(table[name].to_numpy() + (more if cycle >= 8 else 0.0))
            table = table.set_column(table.column_names.index(name), name, changed)
        found.append(table)
    return found


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_examples(example: Any, tmp_path: Path) -> None:
    report = divergence(example.make(tmp_path))
    said = "fires" if report.findings else "clear" if report.assessed else "not_assessable"
    assert said == example.expects
    assert said != "not_assessable" or report.unassessed


def test_a_flat_outcome_under_a_rising_reward_is_told_in_numbers(tmp_path: Path) -> None:
    (found,) = divergence(view(tmp_path, cycles(0.6, 0.0))).findings
    assert found.severity == "blocks"
    assert found.detail["reward_gain"] == pytest.approx(0.6, abs=0.15)
    assert found.effect == pytest.approx(0.0, abs=0.12)
    assert found.low is not None
    assert found.high is not None
    # "Flat" is shown: even its upper limit is below what the reward would have brought.
    assert found.low < 0 < found.high < found.detail["outcome_expected"]  # type: ignore[operator]
    assert found.test is not None
    assert found.threshold is not None
    assert found.test < found.threshold < 0
    assert 8 <= (found.since or 0) <= 11
    assert "1 alarm per 1000 cycles" in found.error_control
    assert (len(found.evidence.carrying), len(found.evidence.random), len(found.evidence.counter)) == (5, 2, 1)


def test_evidence_was_paid_and_served_badly_and_its_counter_example_was_served_well(tmp_path: Path) -> None:
    looked = view(tmp_path, cycles(0.6, 0.0))
    (found,) = divergence(looked).findings
    last = {row["interaction_id"]: row for row in looked.scan(["interaction_id", "reward", "outcome"]).to_pylist()}
    for name in found.evidence.carrying:
        assert last[name]["reward"] > 0.4  # an edit that stayed, or a question
        assert last[name]["outcome"] <= 0
    assert last[found.evidence.counter[0]]["outcome"] == 1.0


def test_the_lake_s_within_part_is_the_one_computed_row_by_row(tmp_path: Path) -> None:
    tables = cycles(0.6, 0.2, number=9)
    looked = view(tmp_path, tables)
    cells = cells_of(looked, [*looked.reference, *looked.monitored], 8)
    found = lines(cells)
    frames = [table.to_pandas() for table in tables]
    for frame in frames:
        frame["band"] = np.digitize(frame["predicted_failure"], [0.4, 0.6])
        frame["vague"] = frame["ambiguity"] >= 0.5
    import pandas as pd

    base, last = pd.concat(frames[:8]), frames[8]
    keys = ["band", "vague", "organisation"]
    before, after = base.groupby(keys), last.groupby(keys)
    mixes = [before.size() / len(base), after.size() / len(last)]
    for what, series in (("reward", found.reward), ("outcome", found.outcome)):
        apart = after[what].mean() - before[what].mean()
        expected = np.mean([(mix * apart).sum() for mix in mixes])
        assert series[8] == pytest.approx(expected, abs=1e-9)
        raw = last[what].mean() - base[what].mean()
        assert cells.raw(what[0], 8) == pytest.approx(raw, abs=1e-9)


def test_what_is_excluded_by_the_policy_s_doing_counts_as_its_rise(tmp_path: Path) -> None:
    """A dodge: bad samples of hard requests leave training. All within, though the mix of what is trained on moves."""
    tables = []
    for cycle in range(CYCLES):
        table = rows(cycle, 800)
        bad = (table["reward"].to_numpy() < -1) & (table["predicted_failure"].to_numpy() >= 0.6) & (cycle >= 8)
        included = pa.array(~bad)
        tables.append(table.set_column(table.column_names.index("included"), "included", included))
    looked = view(tmp_path, tables)
    cells = cells_of(looked, [*looked.reference, *looked.monitored], 8)
    found = lines(cells)
    assert cells.raw("r", CYCLES - 1) > 0.3
    assert found.reward[CYCLES - 1] == pytest.approx(cells.raw("r", CYCLES - 1), abs=0.03)
    assert divergence(looked).findings


def test_an_immature_cycle_is_judged_by_the_newest_that_is_not_and_this_is_said(tmp_path: Path) -> None:
    tables = cycles(0.6, 0.0)
    tables[-1] = rows(CYCLES - 1, outcome=None, outcome_status="immature")
    report = divergence(view(tmp_path, tables))
    (found,) = report.findings
    assert found.detail["cycle"] == CYCLES - 2
    (late,) = report.unassessed
    assert late.what == f"outcome of cycle {CYCLES - 1}"
    assert "0% of it is known" in late.why


def test_an_outcome_that_lags_too_far_behind_is_not_assessable(tmp_path: Path) -> None:
    tables = cycles(0.6, 0.0, number=9 + NEWEST + 1)
    for cycle in range(9, len(tables)):
        tables[cycle] = rows(cycle, outcome=None, outcome_status="immature")
    report = divergence(view(tmp_path, tables))
    assert (report.findings, report.assessed) == ((), 0)
    assert "newest cycle with a known outcome is 8" in report.unassessed[0].why


def test_users_that_the_reference_does_not_know_leave_the_others_to_be_judged(tmp_path: Path) -> None:
    """Two thirds of the requests come from a new organisation, and are paid as they like."""
    tables = []
    for cycle, table in enumerate(cycles(0.6, 0.0, n=900)):
        new = (np.arange(table.num_rows) % 3 > 0) & (cycle >= 8)
        names = np.where(new, "newcomers", table["organisation"].to_pylist())
        tables.append(table.set_column(table.column_names.index("organisation"), "organisation", pa.array(names)))
    looked = view(tmp_path, tables)
    assert lines(cells_of(looked, [*looked.reference, *looked.monitored], 8)).placed[-1] == pytest.approx(
        1 / 3, abs=0.01
    )
    assert divergence(looked).findings


def test_rewards_of_another_version_are_not_compared(tmp_path: Path) -> None:
    tables = cycles(0.6, 0.0)
    tables[-1] = tables[-1].set_column(
        tables[-1].column_names.index("reward_version"), "reward_version", pa.array(["v2"] * tables[-1].num_rows)
    )
    report = divergence(view(tmp_path, tables))
    assert (report.findings, report.assessed) == ((), 0)
    assert "no training reward of the version that is paid now" in report.unassessed[0].why


def test_the_shape_over_the_distance_from_the_base_goes_with_the_finding(tmp_path: Path) -> None:
    """Reward rises with the distance, the outcome turns down at d = 1."""
    tables, updates = [], {}
    for cycle in range(20):
        d = 0.25 * max(cycle - 7, 0)
        table = rows(cycle, 600)
        for name, more in (("reward", 0.5 * d), ("outcome", 0.3 * d * (1 - np.log(max(d, 1e-9))))):
            changed = pa.array(table[name].to_numpy() + more)
            table = table.set_column(table.column_names.index(name), name, changed)
        tables.append(table)
        updates[cycle - 1] = {"kl_base": d * d}
    (found,) = divergence(view(tmp_path, tables, updates=updates)).findings
    shape = found.detail["over_optimisation"]["outcome"]  # type: ignore[index]
    assert shape["status"] == "past_peak"
    assert shape["peak"] == pytest.approx(1.0, abs=0.3)
    assert found.detail["over_optimisation"]["reward"]["status"] != "past_peak"  # type: ignore[index]
    assert "past its peak" in found.sentence


def test_a_cycle_costs_its_own_reading_only(tmp_path: Path) -> None:
    looked = view(tmp_path, cycles(0.6, 0.0))
    divergence(looked)
    kept = sorted((looked.lake.root / "derived" / "divergence").rglob("*.parquet"))
    assert len(kept) == CYCLES
    times = [path.stat().st_mtime_ns for path in kept]
    divergence(looked)
    assert [path.stat().st_mtime_ns for path in kept] == times


# -- error rates, on levels of cycles ---------------------------------------------------------------------------------


def streams(number: int, gain: float, followed: float, rng: np.random.Generator, memory: float = 0.0) -> list[Lines]:
    """8 reference and 30 monitored cycles; error of a cycle 0.05 in reward and 0.04 in outcome, slope 0.4.

    Cycles differ by twice the sampling variance. ``followed``: outcome per reward, as a share of the slope.
    """
    found = []
    for _ in range(number):
        noise = rng.standard_normal((38, 2)) * np.sqrt(2)
        own = noise.copy()
        for time in range(1, 38):
            own[time] = memory * own[time - 1] + np.sqrt(1 - memory**2) * noise[time]
        reward, outcome = (own / np.sqrt(2) + rng.standard_normal((38, 2)) / np.sqrt(2)).T * [[0.05], [0.04]]
        reward[8:] += gain
        outcome[8:] += followed * 0.4 * gain
        halves = np.full(38, 0.5)
        found.append(
            Lines(8, 0.4, reward, outcome, halves * 0.05**2, halves * 0.04**2, np.zeros(38), placed=np.ones(38))
        )
    return found


def alarmed(series: list[Lines]) -> int:
    return sum(bool(judge(each).alarms.any()) for each in series)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gain", "followed"),
    [(0.0, 0.0), (0.5, 0.5), (0.5, 1.0), (0.0, -2.0)],
    ids=["unchanged", "at the limit", "followed", "outcome down, reward not up"],
)
def test_streams_without_a_divergence_alarm_within_the_budget(gain: float, followed: float) -> None:
    """200 streams of 30 cycles: 6,000 cycles at 1 per 1000 allow 6 runs with an alarm."""
    rng = np.random.default_rng(11)
    series = streams(200, gain, followed, rng)
    if gain == 0.0 and followed < 0:
        series = [replace(each, outcome=each.outcome - 0.3 * (np.arange(38) >= 8)) for each in series]
    assert alarmed(series) <= 6


@pytest.mark.slow
def test_a_divergence_is_found_in_nearly_all_streams_and_soon() -> None:
    """Those that are missed had a wild reference of 8 cycles, from which a change cannot be told."""
    rng = np.random.default_rng(12)
    series = streams(100, 0.8, -1.5, rng)
    first = [int(np.argmax(judge(each).alarms)) for each in series if judge(each).alarms.any()]
    assert len(first) >= 85
    assert np.median(first) <= 2


def test_a_view_without_cycles_after_the_reference_says_so(tmp_path: Path) -> None:
    looked = view(tmp_path, cycles(0.6, 0.0, number=8))
    assert "cycles after" in divergence(looked).unassessed[0].why
    assert divergence(View.of(looked.lake, None)).assessed == 0
