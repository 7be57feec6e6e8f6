"""A cycle's vector of statistics next to the reference's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palomar.detectors.checks._examples import rows, view
from palomar.detectors.checks.anomaly_cycle import _distance, anomaly_cycle


def test_the_distance_is_mahalanobis_of_the_shrunk_covariance() -> None:
    """Worked by hand: two uncorrelated statistics, spread 1 and 2, 3 and 4 away: sqrt((9 + 4) / 2)."""
    signs = np.array([[-1, -1], [-1, 1], [1, -1], [1, 1]]) * np.sqrt(3) / 2  # sd 1 each, uncorrelated
    others = np.stack([signs * [1, 2] + [10, 20], np.zeros((4, 2))], axis=2)
    distance, parts = _distance(np.array([[13.0, 0], [24.0, 0]]), others)
    assert distance == pytest.approx(np.sqrt(13 / 2))
    assert parts.tolist() == pytest.approx([9, 4])


def test_sampling_error_is_the_least_spread() -> None:
    """A rate that was 0 in all cycles has an interval all the same: one event is no miracle."""
    others = np.zeros((8, 2, 2))
    others[:, :, 1] = [0.01, 0.5]
    distance, parts = _distance(np.array([[0.02, 0.01], [0.0, 0.5]]), others)
    assert parts.tolist() == pytest.approx([4, 0])
    assert distance == pytest.approx(np.sqrt(2))


def test_the_statistics_that_make_it_odd_are_named(tmp_path: Path) -> None:
    last = rows(8, 300, truncated=np.arange(300) % 2 == 0, tokens_in=50)
    (finding,) = anomaly_cycle(view(tmp_path, [*(rows(cycle, 300) for cycle in range(8)), last])).findings
    assert finding.severity == "notes"
    assert set(finding.detail["parts"]) >= {"truncated_rate", "tokens_in_mean"}  # type: ignore[call-overload]
    assert "truncated_rate 0 -> 0.5" in finding.sentence
    assert finding.threshold == pytest.approx(3.499, abs=1e-3)  # t(7) at 0.005
    assert finding.n == 300


def test_a_statistic_without_a_value_somewhere_is_left_out_and_said(tmp_path: Path) -> None:
    lacking: dict[str, Any] = {"tokens_in": None}
    tables = [rows(cycle, 200, **(lacking if cycle == 3 else {})) for cycle in range(9)]
    report = anomaly_cycle(view(tmp_path, tables))
    assert [item.what for item in report.unassessed] == ["tokens_in_mean"]
    assert report.assessed > 30


@pytest.mark.slow
def test_unchanged_streams_seldom_alarm(tmp_path: Path) -> None:
    """40 unchanged streams, cycles that differ by more than their rows: 0 or 1 alarm (2 or more: 1.7 %)."""
    alarms = 0
    for seed in range(40):
        rng = np.random.default_rng([seed, 77])
        tables = []
        for cycle in range(9):
            slow = np.exp(2 + 0.15 * rng.standard_normal() + 0.5 * rng.standard_normal(200))
            tables.append(rows(cycle, 200, seed, latency_s=slow))
        alarms += len(anomaly_cycle(view(tmp_path / str(seed), tables)).findings)
    assert alarms <= 1
