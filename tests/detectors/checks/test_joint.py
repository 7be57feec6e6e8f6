"""Joint changes: what is told, by how much, and what must stay silent."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from palomar.data.findings import Finding, Report
from palomar.detectors.checks._examples import rows, view
from palomar.detectors.checks.joint import _told, joint
from palomar.detectors.detector import View

N = 300


def stream(folder: Path, *, before: float, after: float, cycles: int = 9, seed: int = 1, **last: Any) -> View:
    """Correlation between length and latency, the last cycle's its own; ``last``: further columns of it."""
    tables = []
    for cycle in range(cycles):
        rng = np.random.default_rng([seed, cycle])
        one, noise = rng.standard_normal((2, N))
        rho = after if cycle == cycles - 1 else before
        other = rho * one + np.sqrt(1 - rho**2) * noise
        columns = {"tokens_out": np.exp(4 + 0.5 * one).astype(int), "latency_s": np.exp(2 + 0.5 * other)}
        tables.append(rows(cycle, N, seed, **columns, **(last if cycle == cycles - 1 else {})))
    return view(folder, tables)


def pairs(finding: Finding) -> list[dict[str, Any]]:
    return cast(list[dict[str, Any]], finding.detail["pairs"])


def auc(report: Report) -> float:
    (finding,) = report.findings
    assert finding.after is not None
    return finding.after


def test_a_flipped_correlation_is_told_and_named_with_its_values(tmp_path: Path) -> None:
    report = joint(stream(tmp_path, before=0.7, after=-0.7))
    (finding,) = report.findings
    assert 0.7 < auc(report) < 0.9
    first = pairs(finding)[0]
    assert {first["one"], first["other"]} == {"tokens_out", "latency_s"}
    assert (first["before"], first["after"]) == (pytest.approx(0.70, abs=0.01), pytest.approx(-0.63, abs=0.01))
    assert first["share"] > 0.8
    assert finding.detail["levels_moved"] == []
    assert "did not move" in finding.sentence
    assert (finding.since, finding.n, finding.severity) == (8, N, "warns")
    assert finding.threshold == pytest.approx(3.499, abs=1e-3)  # t(7) at 0.005


def test_margins_alone_change_nothing_at_all(tmp_path: Path) -> None:
    """Monotone changes of single columns leave ranks within the cycle as they are: the AUC stays to the last digit."""
    same = stream(tmp_path / "a", before=0.7, after=0.7)
    skewed = same.scan(["predicted_failure"])["predicted_failure"].to_numpy() ** 3
    other = stream(tmp_path / "b", before=0.7, after=0.7, predicted_failure=skewed)
    assert _told(other, 8)["auc"] == pytest.approx(_told(same, 8)["auc"], abs=1e-9)
    assert _told(other, 8)["moved"] == ["predicted_failure"]
    assert joint(other).findings == ()


def test_a_yes_or_no_column_tied_to_difficulty_at_an_unchanged_rate(tmp_path: Path) -> None:
    """The agent asks on hard requests where it asked at random; as many questions as before."""
    tables = []
    for cycle in range(9):
        rng = np.random.default_rng([3, cycle])
        hard = rng.random(N)
        chance = np.clip(1.6 * hard - 0.5, 0, 1) if cycle == 8 else np.full(N, 0.34)
        tables.append(rows(cycle, N, 2, predicted_failure=hard, asked=rng.random(N) < chance))
    (finding,) = joint(view(tmp_path, tables)).findings
    first = pairs(finding)[0]
    assert {first["one"], first["other"]} == {"predicted_failure", "asked"}
    assert abs(first["before"]) < 0.1
    assert first["after"] > 0.5


def test_the_first_cycle_it_showed_in_is_told(tmp_path: Path) -> None:
    early = [rows(cycle, N, 1) for cycle in range(8)]
    late = []
    for cycle in (8, 9, 10):
        rng = np.random.default_rng([9, cycle])
        one = rng.standard_normal(N)
        other = 0.9 * one + 0.4 * rng.standard_normal(N) if cycle > 8 else rng.standard_normal(N)
        late.append(rows(cycle, N, 1, tokens_in=np.exp(6 + one).astype(int), latency_s=np.exp(2 + other)))
    seen = view(tmp_path, [*early, *late])
    (finding,) = joint(seen).findings
    assert finding.since == 9


def test_what_cannot_be_paired_is_said_with_the_reason(tmp_path: Path) -> None:
    tables = [rows(cycle, N, tokens_in=7, complexity_max=None) for cycle in range(9)]
    said = {item.what: item.why for item in joint(view(tmp_path, tables)).unassessed}
    assert said["tokens_in"] == "0.0% of it vary in the reference; 3% needed"
    assert said["complexity_max"].startswith("known in 0 of 2,400 reference rows")


def test_small_cycles_are_not_assessed(tmp_path: Path) -> None:
    report = joint(view(tmp_path, [rows(cycle, 60) for cycle in range(9)]))
    assert report.assessed == 0
    assert "60 interactions" in report.unassessed[0].why


@pytest.mark.slow
def test_unchanged_streams_seldom_alarm(tmp_path: Path) -> None:
    """At the stated 5 per 1000 more than 2 of 80 come in 8 of 1000 trials.

    Reference cycles that are told from each other, and not from the cycle, alarm in 3 of the first 40.
    """
    alarms = 0
    for seed in range(80):
        seen = stream(tmp_path / str(seed), before=0.5, after=0.5, seed=100 + seed)
        alarms += len(joint(seen).findings)
    assert alarms <= 2


def test_a_reference_cycle_is_held_against_the_others_only(tmp_path: Path) -> None:
    """With itself among them the correlation it is compared with would be 0.5, not 0.7."""
    seen = stream(tmp_path, before=0.7, after=-0.7, cycles=6)
    within = View.of(seen.lake, 5, reference=range(6))
    told = _told(within, 5)
    assert told["pairs"][0]["before"] == pytest.approx(0.7, abs=0.02)
    assert told["auc"] > 0.7
