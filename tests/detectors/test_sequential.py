from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palomar.detectors.sequential import (
    first_at,
    log_bernoulli,
    log_bounded,
    log_e_detector,
    log_e_process,
    log_normal,
    mixture_bernoulli,
    mixture_normal,
)


def case(folder: Path, name: str) -> dict[str, Any]:
    cases = json.loads((folder / "change_detection.json").read_text(encoding="utf-8"))["cases"]
    return next(case for case in cases if case["id"] == name)


def held(path: np.ndarray, known: dict[str, Any], kind: str) -> None:
    expected = known["expected"]
    assert path == pytest.approx(np.array(expected[f"{kind}_log"]), abs=known["tolerance"]["abs"])
    assert first_at(path, known["inputs"]["log_threshold"]) == expected[f"{kind}_stop"]


@pytest.mark.parametrize("kind", ["SR", "CUSUM"])
def test_edetector_bernoulli(known_answers: Path, kind: Any) -> None:
    known = case(known_answers, "edetector_bernoulli")
    given = known["inputs"]
    factors = log_bernoulli(np.array(given["x"], float), given["m_pre"], np.array(given["lambdas"], float))
    held(log_e_detector(factors, np.array(given["weights"]), kind), known, kind)


@pytest.mark.parametrize("kind", ["SR", "CUSUM"])
def test_edetector_bounded(known_answers: Path, kind: Any) -> None:
    known = case(known_answers, "edetector_bounded")
    given = known["inputs"]
    factors = log_bounded(np.array(given["x"]), given["m_pre"], np.array(given["lambdas"]))
    held(log_e_detector(factors, np.array(given["weights"]), kind), known, kind)


def test_edetector_baseline_mixture(known_answers: Path) -> None:
    known = case(known_answers, "edetector_baseline_mixture")
    given, expected, near = known["inputs"], known["expected"], known["tolerance"]["abs"]
    mixture = mixture_bernoulli(given["alpha"], given["p"], given["delta_lower"], given["delta_upper"])
    assert len(mixture.lambdas) - 1 == expected["k_alpha"]
    assert mixture.g == pytest.approx(expected["g_alpha"], abs=near)
    ends = (mixture.lambdas[0], mixture.lambdas[-1], mixture.weights[0], mixture.weights[-1])
    names = ("lambda_first", "lambda_last", "omega_first", "omega_last")
    assert ends == pytest.approx([expected[name] for name in names], abs=near)


def test_evalue_mixture_normal_doc_example(known_answers: Path) -> None:
    known = case(known_answers, "evalue_mixture_normal_doc_example")
    given, expected = known["inputs"], known["expected"]
    mixture = mixture_normal(given["alpha"], given["delta_lower"], given["delta_upper"])
    assert len(mixture.lambdas) == expected["components"]
    path = log_e_process(log_normal(np.array(given["obs"], float), mixture.lambdas), mixture.weights)
    assert path == pytest.approx(np.array(expected["log_values"]), abs=known["tolerance"]["abs"])
    assert first_at(path, np.log(1 / given["alpha"])) == expected["stopped_time"]


def test_an_unchanged_stream_alarms_no_sooner_than_stated_and_a_changed_one_soon() -> None:
    rng = np.random.default_rng(3)
    mixture = mixture_bernoulli(0.005, 0.2, 0.1, 0.4)
    alarms, looks = 0, 0
    for _ in range(20):
        path = log_e_detector(
            log_bernoulli((rng.random(400) < 0.2).astype(float), 0.2, mixture.lambdas), mixture.weights, "SR"
        )
        first = first_at(path, np.log(200))
        alarms += first is not None
        looks += first or 400
    # At most one alarm in 200 looks: of 8000 at most 40 are expected, and Poisson's 99.9 % of 40 is 60.
    assert alarms / looks <= 60 / 8000
    changed = log_bernoulli((rng.random(60) < 0.6).astype(float), 0.2, mixture.lambdas)
    assert (first_at(log_e_detector(changed, mixture.weights, "SR"), np.log(200)) or 99) <= 30


def test_a_bet_that_could_lose_everything_is_refused() -> None:
    with pytest.raises(ValueError, match="bets"):
        log_bounded(np.array([0.1]), 0.2, np.array([1.0]))
    with pytest.raises(ValueError, match="not between"):
        log_bernoulli(np.array([1.0]), 0.0, np.array([1.0]))
