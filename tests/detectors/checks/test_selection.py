"""Who is kept out of training: the numbers, and how often a rule that drops by lot is accused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from palomar.detectors.checks import selection as module
from palomar.detectors.checks._examples import rows, samples, view
from palomar.detectors.checks.selection import selection

N = 600


def cycle_with(cycle: int, dropped: np.ndarray, reward: np.ndarray | None = None, **more: Any) -> pa.Table:
    columns: dict[str, Any] = {} if reward is None else {"reward": reward}
    return rows(cycle, N, included=~dropped, exclusion=pa.array(["rule"] * N, mask=~dropped), **columns, **more)


def by_lot(cycle: int, share: float = 0.1) -> np.ndarray:
    return np.random.default_rng(cycle + 60).random(N) < share


def test_difference_is_taken_within_difficulty(tmp_path: Path) -> None:
    """Hard requests are paid 2 less and dropped four times as often; within a difficulty the dropped are paid alike."""
    tables = []
    for cycle in range(5):
        hard = np.asarray(rows(cycle, N)["predicted_failure"]) >= 0.6
        dropped = np.random.default_rng(cycle).random(N) < np.where(hard, 0.2, 0.05)
        reward = np.where(hard, -1.0, 1.0) + 0.3 * np.random.default_rng(cycle + 9).standard_normal(N)
        tables.append(cycle_with(cycle, dropped, reward))
    (found,) = selection(view(tmp_path, tables)).findings
    assert found.detail["by_difficulty"]
    assert not found.detail["by_reward"]
    assert found.reading == "forewarning"


def test_reward_of_the_dropped_against_the_kept_is_the_hand_calculation(tmp_path: Path) -> None:
    """Kept are paid 1 or 0 by turns, dropped -1, on requests of one kind: -1.5 below the mean, in 300 of 3,000 rows."""
    alike = {"predicted_failure": 0.5, "ambiguity": 0.2}
    dropped = np.arange(N) % 10 == 0
    reward = np.where(dropped, -1.0, np.arange(N) % 2).astype(float)
    tables = [cycle_with(cycle, dropped, reward, **alike) for cycle in range(5)]
    (found,) = selection(view(tmp_path, tables)).findings
    kept = reward[~dropped].mean()  # 5 of 9
    assert (found.before, found.after, found.n) == (pytest.approx(kept), pytest.approx(-1.0), 300)
    assert found.low is not None
    assert found.low < -1 - kept < (found.high or 0) < 0
    assert found.statistic == "rule:rule"
    assert [cause.name for cause in found.causes] == ["rule:rule"]
    assert found.since == 0


def test_a_rule_that_drops_what_was_paid_more_warns_of_nothing(tmp_path: Path) -> None:
    tables = []
    for cycle in range(5):
        dropped = by_lot(cycle)
        reward = np.where(dropped, 3.0, np.asarray(rows(cycle, N)["reward"]))
        tables.append(cycle_with(cycle, dropped, reward))
    (found,) = selection(view(tmp_path, tables)).findings
    assert found.reading is None
    assert "more" in found.sentence


def test_what_the_trainer_dropped_counts_where_no_rule_says(tmp_path: Path) -> None:
    """No inclusion rules: the reasons are those that the trainer logged; waiting and watched-only are none."""
    made = view(tmp_path, [rows(cycle, N, included=None) for cycle in range(3)])
    for cycle in range(3):
        table = rows(cycle, N, included=None)
        overlong = (np.asarray(table["reward"]) < -1) & by_lot(cycle, 0.5)
        reason = np.where(overlong, "overlong", np.where(by_lot(cycle + 7), "reward_waiting", "none"))
        made.lake.append_samples(
            samples(table, cycle, trained=reason == "none", reason=pa.array(reason, mask=reason == "none")), cycle
        )
    report = selection(made)
    (found,) = report.findings
    assert found.statistic == "rule:overlong"
    assert found.reading == "forewarning"


def test_without_an_excluded_sample_nothing_is_assessed(tmp_path: Path) -> None:
    report = selection(view(tmp_path, [*map(rows, range(3))]))
    assert report.assessed == 0
    assert report.unassessed[0].why == "no sample was excluded in cycles 0-2"


def test_without_a_word_on_training_it_says_what_it_takes(tmp_path: Path) -> None:
    report = selection(view(tmp_path, [rows(cycle, included=None) for cycle in range(3)]))
    assert "it takes inclusion rules, or samples" in report.unassessed[0].why


def test_rules_that_drop_by_lot_are_accused_no_more_often_than_stated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 rules that drop a tenth by lot, asked at 10 % (two questions): 20 alarms are expected, of which some stay
    below the smallest effect that is told; users differ in what they are paid, and are dropped as a whole or not."""
    monkeypatch.setattr(module, "RATE", 0.1)
    monkeypatch.setattr(module, "SMALLEST_REWARD", 0.0)
    monkeypatch.setattr(module, "SMALLEST_RATE", 0.0)
    monkeypatch.setattr(module, "OF_RATE", 0.0)
    rng = np.random.default_rng(8)
    alarms = 0
    for _ in range(200):
        user = rng.integers(0, 150, 3000)
        table = pa.table(
            {
                "user": user.astype(np.uint64),
                "failure": rng.integers(0, 3, 3000),
                "vague": rng.integers(0, 2, 3000),
                "reason": np.where((rng.random(150) < 0.1)[user], "rule", ""),
                "n": np.ones(3000, dtype=np.int64),
                "paid": np.ones(3000, dtype=np.int64),
            }
        )
        reward = rng.normal(0, 1, 150)[user] + rng.normal(0, 1, 3000)
        table = table.append_column("total", pa.array(reward)).append_column("squares", pa.array(reward**2))
        data = module._Data.of([table])
        tests = [data.reward("rule", 0.05), data.difficulty("rule", 0.05)]
        alarms += any(not isinstance(each, str) and each.significant for each in tests)
    assert alarms <= 20 + 3 * np.sqrt(200 * 0.1 * 0.9)
