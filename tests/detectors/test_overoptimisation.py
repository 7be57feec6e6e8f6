"""Over-optimisation curves, against Gao, Schulman and Hilton's closed forms and streams made from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import optimize

from palomar.detectors.overoptimisation import Form, best_of_n_kl, fit, peak

ERROR = 0.02


def known(folder: Path, name: str) -> dict[str, Any]:
    cases: list[dict[str, Any]] = json.loads((folder / "reward_hacking.json").read_text(encoding="utf-8"))["cases"]
    return next(case for case in cases if case["id"] == name)


def test_overoptimisation_turning_points(known_answers: Path) -> None:
    case = known(known_answers, "overoptimisation_turning_points")
    a, b, expected = case["inputs"]["alpha"], case["inputs"]["beta"], case["expected"]
    near = case["tolerance"]["rel"]
    assert peak("best-of-n", a, b) == pytest.approx((expected["bon_peak_d"], expected["bon_peak_R"]), rel=near)
    assert peak("rl", a, b) == pytest.approx((expected["rl_peak_d"], expected["rl_peak_R"]), rel=near)
    assert [best_of_n_kl(n) for n in case["inputs"]["n"]] == pytest.approx(expected["bon_kl"], rel=near)


@pytest.mark.parametrize(("form", "a", "b"), [("rl", 0.8, 0.5), ("best-of-n", 0.8, 0.2)])
def test_the_closed_form_of_the_peak_is_where_a_search_finds_it(form: Form, a: float, b: float) -> None:
    found = optimize.minimize_scalar(lambda d: -_curve(form, a, b, d), bounds=(1e-3, 20), method="bounded")
    top, height = peak(form, a, b)
    assert top == pytest.approx(found.x, rel=1e-4)
    assert height == pytest.approx(-found.fun, rel=1e-6)


def _curve(form: Form, a: float, b: float, d: Any) -> Any:
    return d * (a - b * d) if form == "best-of-n" else d * (a - b * np.log(np.maximum(d, 1e-12)))


def _cycles(form: Form, a: float, b: float, furthest: float, seed: int) -> tuple[Any, Any, Any]:
    """Eight cycles of the base and twenty ever further away from it."""
    rng = np.random.default_rng(seed)
    d = np.concatenate([np.zeros(8), np.linspace(0.15, furthest, 20)])
    return d**2, _curve(form, a, b, d) + ERROR * rng.standard_normal(28), np.full(28, ERROR)


@pytest.mark.parametrize("form", ["rl", "best-of-n"])
def test_past_the_peak_before_it_and_a_rise_without_one_are_told_apart(form: Form) -> None:
    past = fit(*_cycles(form, 0.4, 0.3 if form == "rl" else 0.15, 3.0, seed=1), form=form)
    top = peak(form, 0.4, 0.3 if form == "rl" else 0.15)[0]
    assert past is not None
    assert past.status == "past_peak"
    assert past.peak == pytest.approx(top, rel=0.1)
    assert past.peak_low is not None
    assert past.peak_high is not None
    assert past.peak_low < top < past.peak_high < 3.0
    rising = fit(*_cycles(form, 0.4, 0.02, 2.0, seed=1), form=form)
    assert rising is not None
    assert rising.status == "rising"
    falling = fit(*_cycles(form, -0.3, 0.0, 2.0, seed=1), form=form)
    assert falling is not None
    assert (falling.status, falling.peak) == ("past_peak", 0.0)


def test_the_interval_of_the_slope_holds_the_true_slope_as_often_as_it_says() -> None:
    """300 streams: 95 % of intervals hold dR/dd = a - b (ln d + 1), within three standard errors of 1.3 points."""
    truth = 0.4 - 0.3 * (np.log(2.0) + 1)
    shapes = [fit(*_cycles("rl", 0.4, 0.3, 2.0, seed)) for seed in range(300)]
    held = [shape.low <= truth <= shape.high for shape in shapes if shape is not None]
    assert len(held) == 300
    # Errors are never scaled down, so it errs on the wide side.
    assert 0.91 <= np.mean(held) <= 0.995


def test_noise_alone_is_seldom_past_a_peak() -> None:
    statuses = [fit(*_cycles("rl", 0.0, 0.0, 2.0, seed)).status for seed in range(300)]  # type: ignore[union-attr]
    assert statuses.count("past_peak") <= 15  # 2.5 % expected, 7.5 of 300; more than 15 has a chance of 0.4 %
    assert statuses.count("unclear") >= 270


def test_too_few_or_all_equal_distances_have_no_shape() -> None:
    kl, value, error = _cycles("rl", 0.4, 0.3, 2.0, seed=0)
    assert fit(kl[:13], value[:13], error[:13]) is None  # five cycles away
    assert fit(np.where(kl > 0, 1.0, 0.0), value, error) is None
    with pytest.raises(ValueError, match="negative"):
        fit(-kl, value, error)
