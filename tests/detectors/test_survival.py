"""Lasting edits against R's survival package, and per user where rows of one user are alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from palomar.data.clock import survival
from palomar.detectors.survival import by_cause, ipcw, lasting, mean_lasting


@pytest.fixture(scope="session")
def known(known_answers: Path) -> dict[str, Any]:
    return {case["id"]: case for case in json.loads((known_answers / "survival.json").read_text("utf-8"))["cases"]}


def rows(inputs: dict[str, Any], suffix: str = "") -> tuple[Any, Any]:
    return np.array(inputs[f"time{suffix}"], float), np.array(inputs[f"event{suffix}"], bool)


def test_kaplan_meier_and_its_error_are_rs(known: dict[str, Any]) -> None:
    """Independent rows: the sum of squared influences is Greenwood's variance."""
    case = known["kaplan_meier_freireich"]
    times, lost = rows(case["inputs"])
    wanted = case["expected"]
    for at, share, error, low, high in zip(
        *(wanted[name] for name in ("time", "survival", "se", "lower", "upper")), strict=True
    ):
        found = lasting(times, lost, at)
        assert found is not None
        assert found.share == pytest.approx(share, abs=1e-9)
        assert np.sqrt((found.influence**2).sum()) == pytest.approx(error, abs=1e-9)
        # The interval of one group is the clock's, from lifelines.
        alone = survival(times, lost, at)
        assert (alone.estimate, alone.low, alone.high) == pytest.approx((share, low, high), abs=1e-7)


def test_censoring_weights_without_strata_are_kaplan_meier(known: dict[str, Any]) -> None:
    case = known["ipcw_equals_kaplan_meier"]
    times, lost = rows(case["inputs"])
    found = [ipcw(times, lost, horizon) for horizon in case["inputs"]["horizons"]]
    assert found == pytest.approx(case["expected"]["ipcw"], abs=1e-9)


def test_restricted_means_and_their_errors_are_rs(known: dict[str, Any]) -> None:
    case = known["restricted_mean_persistence"]
    for arm in ("a", "b"):
        found = mean_lasting(*rows(case["inputs"], f"_{arm}"), case["inputs"]["tau"])
        assert found == pytest.approx((case["expected"][f"rmst_{arm}"], case["expected"][f"se_{arm}"]), abs=1e-7)


def test_shares_by_cause_keep_ties(known: dict[str, Any]) -> None:
    """lifelines would give 0.1750 for the first; R gives 0.1759."""
    case = known["competing_risks_aalen_johansen"]
    times, states = np.array(case["inputs"]["time"], float), np.array(case["inputs"]["state"])
    for at, (kept, edited, deleted) in zip(case["inputs"]["times"], case["expected"]["probabilities"], strict=True):
        found = by_cause(times, states, at)
        assert (found[1], found[2]) == pytest.approx((edited, deleted), abs=1e-9)
        alone = lasting(times, states > 0, at)
        assert alone is not None
        assert alone.share == pytest.approx(kept, abs=1e-9)


def test_without_censoring_it_is_a_share() -> None:
    found = lasting(np.arange(1, 11.0), np.ones(10, bool), 4)
    assert found is not None
    assert (found.share, found.at_risk) == (pytest.approx(0.6), 7)
    assert (found.influence**2).sum() == pytest.approx(0.6 * 0.4 / 10)
    assert found.influence == pytest.approx([-0.06] * 4 + [0.04] * 6)


def test_nobody_watched_that_long_is_no_figure() -> None:
    assert lasting(np.array([1.0, 2.0]), np.array([True, False]), 5) is None
    lost = lasting(np.array([1.0, 2.0]), np.array([True, True]), 5)
    assert lost is not None
    assert (lost.share, list(lost.influence)) == (0.0, [0.0, 0.0])


def test_strata_that_are_watched_differently_are_put_right() -> None:
    """Short-lived rows are watched to the end, long-lived ones hardly: pooled the share is wrong, stratified right."""
    rng = np.random.default_rng(2)
    n = 20_000
    kind = np.arange(n) % 2
    loss = rng.exponential(np.where(kind, 100.0, 5.0))
    watched = np.where(kind, rng.uniform(0, 12, n), 20.0)
    times, lost = np.minimum(loss, watched), loss <= watched
    truth = (np.exp(-10 / 100) + np.exp(-10 / 5)) / 2
    assert ipcw(times, lost, 10.0, kind) == pytest.approx(truth, abs=0.02)
    assert abs(ipcw(times, lost, 10.0) - truth) > 0.1


spans = some.lists(some.tuples(some.integers(1, 30), some.booleans()), min_size=2, max_size=60)


@given(spans, some.integers(1, 30))
def test_influence_adds_up_to_nothing_and_is_what_leaving_a_row_out_does(rows_: list[Any], horizon: int) -> None:
    times, lost = np.array([t for t, _ in rows_], float), np.array([e for _, e in rows_])
    found = lasting(times, lost, horizon)
    if found is None:
        assert (times < horizon).all()
        return
    assert found.influence.sum() == pytest.approx(0.0, abs=1e-9)
    alone = survival(times, lost, float(horizon))
    assert found.share == pytest.approx(alone.estimate, abs=1e-9)
    assert found.at_risk == alone.n_at_risk


def test_influence_is_near_what_leaving_a_row_out_does() -> None:
    rng = np.random.default_rng(4)
    times, lost = rng.exponential(10, 400), rng.random(400) < 0.6
    found = lasting(times, lost, 8.0)
    assert found is not None
    keep = ~np.eye(400, dtype=bool)
    without = np.array([lasting(times[rest], lost[rest], 8.0).share for rest in keep])  # type: ignore[union-attr]
    assert found.influence == pytest.approx(found.share - without, abs=3e-5)
