"""The gate's benchmark: what it simulates is what the gate computes, and it fails where the rule is broken."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from palomar.app.bench import gate as bench
from palomar.trainer import promotion
from palomar.trainer.evaluation import Evaluation, TaskResult
from palomar.trainer.gate_evidence import compare_metrics
from palomar.trainer.gate_policy import PolicyText

POLICY = PolicyText(bench.SUITE, "bench").policy


@pytest.mark.parametrize("often", [0.3, 0.0])
def test_simulated_estimates_are_what_the_gate_computes(often: float) -> None:
    rng = np.random.default_rng(3)
    old = rng.integers(0, 2, (20, 15)).astype(float)
    new = np.where(rng.random((20, 15)) < often, 1 - old, old)

    def evaluation(name: str, values: np.ndarray) -> Evaluation:
        blank = {"tests_pass": None, "invalid_call": 0.0, "asked_on_clear": 0.0, "functions_per_edit": None}
        results = (
            TaskResult(f"{f:02d}-{t:02d}", f"f{f}", {"solved": values[f, t], **blank})
            for f in range(20)
            for t in range(15)
        )
        return Evaluation("held-out-tasks", name, 0, tuple(results))

    before, after = evaluation("old", old), evaluation("new", new)
    (found,) = compare_metrics("held-out-tasks", ["solved"], "champion", "old", before=before, after=after)
    effect, error = bench.estimates((new - old)[None])
    assert (found.effect, found.error) == (pytest.approx(effect[0]), pytest.approx(error[0]))
    assert (found.tasks, found.clusters) == (300, 20)


def test_what_is_worse_by_its_margin_is_rarely_promoted_and_the_same_rarely_blocked() -> None:
    rng = np.random.default_rng(1)
    worse = bench.Truth(worse=(("solved", "champion", 0.08),), rest=0.2, gain=0.2)
    promoted = [word == "promote" for word, _ in bench._decided(rng, POLICY, worse, 150)]
    assert 0 < sum(promoted) <= 15  # 99.5 % of Binomial(150, 0.05) are up to 15; not 0: the case is at the margin
    blocked = [word == "block" for word, _ in bench._decided(rng, POLICY, bench.Truth(), 150)]
    assert sum(blocked) <= 6


def test_a_broken_rule_fails_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    worse = bench.Truth(worse=(("solved", "champion", 0.08),), rest=0.2, gain=0.2)
    monkeypatch.setattr(promotion, "_quantile", lambda level, df: 0.0)  # the estimate in place of its bound
    promoted = [word == "promote" for word, _ in bench._decided(rng, POLICY, worse, 100)]
    assert bench._rate("", promoted, 0.05, "").met is False


def test_an_anchor_keeps_a_chain_from_creeping() -> None:
    rng = np.random.default_rng(2)
    said = {item.measure: item.value for item in bench._chains(rng, 20)}
    below = [value for name, value in said.items() if "below the anchor" in name]
    assert below[0] is not None
    assert below[0] >= 0.5, "without a margin they creep"
    assert below[2] is not None
    assert below[2] <= 0.05


def test_a_rate_is_told_with_its_interval_and_bar() -> None:
    said = bench._rate("x", [True] * 12 + [False] * 188, 0.05, "why")
    assert said.met is True
    assert "stated 0.05" in said.note
    assert bench._rate("x", [True] * 30 + [False] * 170, 0.05, "").met is False
    assert dataclasses.is_dataclass(said)
