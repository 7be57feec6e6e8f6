"""The smallest change of weights: published cases, bounds, and what cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palomar.reward.reweighting import Box, Demand, Norm, best, readable, smallest_change

FOUR = ("edit_accept", "tests", "latency", "clarify")


@pytest.fixture
def case(request: pytest.FixtureRequest, known_answers: Path) -> dict[str, Any]:
    cases = json.loads((known_answers / "reward_reweighting.json").read_text(encoding="utf-8"))["cases"]
    return next(each for each in cases if each["id"] == request.param)


def honest_beats(inputs: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, Demand]:
    weights = np.array(inputs["w"])
    delta = np.array(inputs["phi_honest"]) - np.array(inputs["phi_hack"])
    return weights, delta, Demand("honest beats hack", delta, inputs["margin"])


@pytest.mark.parametrize("case", ["minimal_weight_change"], indirect=True)
@pytest.mark.parametrize("norm", ["l2", "l1", "linf"])
def test_smallest_change_matches_the_closed_forms(case: dict[str, Any], norm: Norm) -> None:
    weights, delta, demand = honest_beats(case["inputs"])
    expected, tolerance = case["expected"], case["tolerance"]["abs"]
    assert delta == pytest.approx(expected["delta_phi"], abs=tolerance)
    assert weights @ delta == pytest.approx(expected["current_gap"], abs=tolerance)
    found = smallest_change(weights, [demand], names=FOUR, norm=norm)
    assert found.weights is not None
    assert found.weights - weights == pytest.approx(expected[f"{norm}_delta"], abs=tolerance)
    assert found.change == pytest.approx(expected[f"{norm}_norm"], abs=tolerance)
    assert found.binding == ("honest beats hack",)


@pytest.mark.parametrize("case", ["sign_constrained_needs_new_feature"], indirect=True)
def test_weights_that_may_only_shrink_cannot_do_it_and_a_charged_feature_can(case: dict[str, Any]) -> None:
    weights, delta, demand = honest_beats(case["inputs"])
    expected, tolerance = case["expected"], case["tolerance"]["abs"]
    shrinking = Box(np.minimum(weights, 0.0), np.maximum(weights, 0.0))
    found = smallest_change(weights, [demand], names=FOUR, box=shrinking)
    assert (found.weights is None) is not expected["feasible"]
    assert best(demand, weights, shrinking) == pytest.approx(expected["max_gain"], abs=tolerance)
    assert -demand.margin(weights) == pytest.approx(expected["need"], abs=tolerance)
    # What holds it back: the weights that would have to change sign, or grow.
    assert found.conflict[0] == "honest beats hack"
    assert set(found.conflict[1:]) <= {f"the bounds of {name}" for name in FOUR}
    assert len(found.conflict) > 1
    # A fifth feature that the hack shows more often than the honest; all other weights are left alone.
    flag = case["inputs"]["monitor_fpr"] - case["inputs"]["monitor_tpr"]
    more = np.append(weights, 0.0)
    frozen = Box(np.append(weights, -np.inf), np.append(weights, 0.0))
    charged = smallest_change(more, [Demand("", np.append(delta, flag), 0.02)], names=(*FOUR, "flag"), box=frozen)
    assert charged.weights is not None
    assert -charged.weights[4] == pytest.approx(expected["min_penalty"], abs=tolerance)
    assert charged.weights[:4] == pytest.approx(weights, abs=1e-9)


@pytest.mark.parametrize("case", ["multi_constraint_lp"], indirect=True)
def test_several_hacks_and_an_order_to_keep_match_the_linear_programme(case: dict[str, Any]) -> None:
    inputs, expected, tolerance = case["inputs"], case["expected"], case["tolerance"]["abs"]
    weights = np.array(inputs["w"])
    phi = {name: np.array(value) for name, value in inputs["phi"].items()}
    demands = [
        Demand("hack_a", phi["honest"] - phi["hack_a"], inputs["margin"]),
        Demand("hack_b", phi["honest"] - phi["hack_b"], inputs["margin"]),
        Demand("lazy", phi["honest"] - phi["lazy"], inputs["keep_margin"]),
    ]
    high = np.full(5, np.inf)
    high[4] = 0.0
    box = Box(np.full(5, -np.inf), high)
    found = smallest_change(weights, demands, names=inputs["features"], box=box, norm="l1")
    assert found.weights is not None
    assert found.change == pytest.approx(expected["l1_norm"], abs=tolerance)
    assert found.weights - weights == pytest.approx(expected["delta"], abs=tolerance)
    assert [each.name in found.binding for each in demands] == expected["binding"]


# -- margins that cover their error --------------------------------------------------------------------------------


def test_the_margin_covers_the_error_of_the_new_weights() -> None:
    # One weight at 1 with estimate -1 +- 0.5, one at 1 with estimate 1 +- 0: w2 - w1 >= 2 x 0.5 w1, at (1, 1): -1.
    # Nearest point of w2 >= 2 w1: the projection on its edge.
    demand = Demand("d", np.array([-1.0, 1.0]), covariance=np.diag([0.25, 0.0]), errors=2.0)
    assert demand.margin(np.array([1.0, 1.0])) == pytest.approx(-1.0)
    found = smallest_change(np.array([1.0, 1.0]), [demand], names="ab")
    assert found.weights == pytest.approx([0.6, 1.2], abs=1e-7)


def test_weights_that_meet_all_stay_as_they_are() -> None:
    weights = np.array([0.1 + 0.2, -1.0])
    found = smallest_change(weights, [Demand("d", np.array([1.0, 0.0]), 0.3)], names="ab")
    assert found.weights is not None
    assert (found.weights == weights).all()
    assert found.change == 0.0


def test_a_scale_makes_the_change_relative() -> None:
    # Least (a/10)^2 + b^2 with a + b = 1.01: a = 100 b.
    found = smallest_change(np.zeros(2), [Demand("d", np.ones(2), 1.01)], names="ab", scale=np.array([10.0, 1.0]))
    assert found.weights == pytest.approx([1.0, 0.01], abs=1e-7)


def test_of_demands_that_cannot_be_met_those_that_contradict_each_other_are_named() -> None:
    demands = [
        Demand("harmless", np.array([0.0, 1.0]), -5.0),
        Demand("up", np.array([1.0, 0.0]), 1.0),
        Demand("down", np.array([-1.0, 0.0]), 1.0),
    ]
    found = smallest_change(np.zeros(2), demands, names="ab", box=Box(np.full(2, -9.0), np.full(2, 9.0)))
    assert (found.weights, found.change, found.conflict) == (None, None, ("up", "down"))


def test_the_bound_in_the_way_is_named() -> None:
    box = Box(np.array([-1.0, -1.0]), np.array([1.0, 1.0]))
    found = smallest_change(np.zeros(2), [Demand("d", np.array([1.0, 0.0]), 2.0)], names=("steps", "other"), box=box)
    assert found.conflict == ("d", "the bounds of steps")


def test_readable_weights_still_meet_everything() -> None:
    before = np.array([1.0, 1.0 / 3.0])
    demand = Demand("d", np.array([1.0, 0.0]), 1.23456)
    box = Box.open(2)
    found = smallest_change(before, [demand], names="ab")
    assert found.weights is not None
    told = readable(before, found.weights, [demand], box)
    assert told[1] == before[1]  # did not change, so it keeps all its digits
    assert told[0] == 1.24  # three digits, a little further along: 1.23 would fall short
    assert demand.met(told)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_any_answer_meets_its_demands_and_bounds_and_the_second_time_nothing_changes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 6))
    weights = rng.normal(size=size)
    roots = [rng.normal(size=(size, size)) * 0.2 for _ in range(3)]
    demands = [Demand(str(i), rng.normal(size=size), 0.0, root @ root.T, 1.0) for i, root in enumerate(roots)]
    box = Box(np.minimum(weights * 3, 0.0), np.maximum(weights * 3, 0.0))
    found = smallest_change(weights, demands, names=list(map(str, range(size))), box=box, scale=np.abs(weights))
    again = smallest_change(weights, demands, names=list(map(str, range(size))), box=box, scale=np.abs(weights))
    if found.weights is None:
        assert found.conflict
        return
    assert again.weights is not None
    assert (found.weights == again.weights).all()
    told = readable(weights, found.weights, demands, box)
    assert box.holds(told)
    assert all(demand.margin(told) >= -1e-5 for demand in demands)
    if all(demand.met(told) for demand in demands):
        third = smallest_change(told, demands, names=list(map(str, range(size))), box=box)
        assert third.weights is not None
        assert (third.weights == told).all()
