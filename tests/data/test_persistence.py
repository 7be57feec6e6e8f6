"""Comparisons of how long edits stay, against published survival data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lifelines import KaplanMeierFitter
from lifelines.utils import restricted_mean_survival_time

from palomar.data.clock import survival
from palomar.data.persistence import delayed_feedback, incidence, inverse_weighted, log_rank, restricted_mean


def known(folder: Path, name: str) -> dict[str, Any]:
    cases: list[dict[str, Any]] = json.loads((folder / "survival.json").read_text(encoding="utf-8"))["cases"]
    return next(case for case in cases if case["id"] == name)


def arms(case: dict[str, Any]) -> tuple[Any, Any]:
    inputs = case["inputs"]
    times = tuple(np.array(inputs[f"time_{arm}"], dtype=np.float64) for arm in "ab")
    return times, tuple(np.array(inputs[f"event_{arm}"], dtype=bool) for arm in "ab")


def test_log_rank_freireich(known_answers: Path) -> None:
    case = known(known_answers, "log_rank_freireich")
    found = log_rank(*arms(case))
    assert found.chi2 == pytest.approx(case["expected"]["chi2"], abs=case["tolerance"]["abs"])
    assert found.p == pytest.approx(case["expected"]["p"], abs=case["tolerance"]["abs"])


def test_restricted_mean_persistence_has_the_error_of_the_mean_and_not_of_the_times(known_answers: Path) -> None:
    case = known(known_answers, "restricted_mean_persistence")
    until, near = case["inputs"]["tau"], case["tolerance"]["abs"]
    for arm, times, ended in zip("ab", *arms(case), strict=True):
        found = restricted_mean(times, ended, until)
        assert found.mean == pytest.approx(case["expected"][f"rmst_{arm}"], abs=near)
        assert found.error == pytest.approx(case["expected"][f"se_{arm}"], abs=near)
    times, ended = (part[0] for part in arms(case))
    mean, variance = restricted_mean_survival_time(KaplanMeierFitter().fit(times, ended), until, return_variance=True)
    assert mean == pytest.approx(restricted_mean(times, ended, until).mean, abs=1e-6)
    assert variance == pytest.approx(30.90, abs=0.01)  # against 1.2516 squared


def test_restricted_mean_does_not_reach_beyond_what_was_watched() -> None:
    with pytest.raises(ValueError, match="nobody was watched up to 30"):
        restricted_mean(np.array([5.0, 20.0]), np.array([True, False]), 30)
    assert restricted_mean(np.array([5.0, 15.0]), np.array([True, True]), 30).mean == pytest.approx(10.0)


def test_ipcw_equals_kaplan_meier(known_answers: Path) -> None:
    case = known(known_answers, "ipcw_equals_kaplan_meier")
    times = np.array(case["inputs"]["time"], dtype=np.float64)
    ended = np.array(case["inputs"]["event"], dtype=bool)
    for horizon, value in zip(case["inputs"]["horizons"], case["expected"]["ipcw"], strict=True):
        found = inverse_weighted(times, ended, horizon)
        assert found == pytest.approx(value, abs=case["tolerance"]["abs"])
        assert found == pytest.approx(survival(times, ended, horizon).estimate, abs=1e-12)


def test_competing_risks_aalen_johansen(known_answers: Path) -> None:
    case = known(known_answers, "competing_risks_aalen_johansen")
    times = np.array(case["inputs"]["time"], dtype=np.float64)
    found = incidence(times, np.array(case["inputs"]["state"]), case["inputs"]["times"])
    assert found == pytest.approx(np.array(case["expected"]["probabilities"]), abs=case["tolerance"]["abs"])
    assert incidence(times, np.array(case["inputs"]["state"]), [0.5]).tolist() == [[1.0, 0.0, 0.0]]


def test_delayed_feedback_model(known_answers: Path) -> None:
    case = known(known_answers, "delayed_feedback_model")
    delays = np.array(case["inputs"]["event_delays"], dtype=np.float64)
    elapsed = np.array(case["inputs"]["elapsed_no_event"], dtype=np.float64)
    found, expected, near = delayed_feedback(delays, elapsed), case["expected"], case["tolerance"]["abs"]
    assert found.share == pytest.approx(expected["p"], abs=near)
    assert found.rate == pytest.approx(expected["lam"], abs=near)
    assert found.log_likelihood == pytest.approx(expected["log_likelihood"], abs=near)
    posterior = found.still_to_come(np.array(case["inputs"]["posterior_at"], dtype=np.float64))
    assert posterior == pytest.approx(np.array(expected["posterior"]), abs=near)
    with pytest.raises(ValueError, match="something that came"):
        delayed_feedback(np.array([]), elapsed)
