"""Laws of the bench, on a log with three holes: whatever the limits, and however a spec is written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from palomar.data.lake import Lake
from palomar.reward.behaviours import Logged
from palomar.reward.patch import LIBRARY, Limits, Target, propose
from palomar.reward.replay import batch_advantage, pay, pressure_rows
from palomar.reward.spec import bundled, bundled_text, parse_spec, to_yaml, version

NAIVE = bundled("naive")
WEIGHTS = {term.name: term.weight for term in NAIVE.terms}
HACKS = (
    Target("clarification_rate", "predicted_failure=high,ambiguity=clear", -1),
    Target("functions_per_edit", "all", -1),
)
SLOW = settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],  # an example takes seconds: none is made smaller
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module")
def logged(lake_with_holes: Lake) -> Logged:
    return Logged.read(lake_with_holes, range(2))


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    """Bounds around some weights, some terms frozen, and reaches from nearly nothing to far."""
    bounded = draw(st.lists(st.sampled_from(sorted(WEIGHTS)), unique=True, max_size=4))
    room = {name: (draw(st.floats(0.0, 1.0)), draw(st.floats(0.0, 1.0))) for name in bounded}
    bounds = {
        name: (WEIGHTS[name] - low * abs(WEIGHTS[name]), WEIGHTS[name] + high * abs(WEIGHTS[name]))
        for name, (low, high) in room.items()
    }
    frozen = tuple(draw(st.lists(st.sampled_from(sorted(WEIGHTS)), unique=True, max_size=3)))
    return Limits(errors=draw(st.floats(1.0, 4.0)), frozen=frozen, bounds=bounds, largest=draw(st.floats(0.05, 3.0)))


@SLOW
@given(drawn=limits())
def test_a_patch_never_breaks_its_bounds_and_patching_twice_changes_nothing(logged: Logged, drawn: Limits) -> None:
    library = {remedy.term.kind: remedy.term.weight for remedy in LIBRARY}
    found = propose(logged, NAIVE, HACKS, limits=drawn)
    for each in found.proposals:
        replaced = {name for name in WEIGHTS if f"{name} unpaid" in each.title}  # a term that goes has no weight left
        for term in each.spec.terms:
            before = WEIGHTS.get(term.name, library.get(term.kind))
            assert before is not None
            if term.name in replaced:
                continue
            low, high = drawn.bounds.get(term.name, (None, None))
            assert low is None or term.weight >= low - 1e-9
            assert high is None or term.weight <= high + 1e-9
            assert term.weight * before >= 0
            assert abs(term.weight - before) <= drawn.largest * abs(before) + abs(before) * (term.name not in WEIGHTS)
            if term.name in drawn.frozen:
                assert term.weight == before
    if found.proposals and not found.proposals[0].unturned:
        once = found.proposals[0]
        again = propose(logged, once.spec, HACKS, limits=drawn, text=once.text)
        assert [version(each.spec) for each in again.proposals] == []


@given(constant=st.floats(-1e3, 1e3))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_constant_added_to_every_reward_changes_no_pressure(logged: Logged, constant: float) -> None:
    told = _paid(logged)
    moved = batch_advantage(told.reward + constant, told.included, logged.cycle)
    for before, after in zip(
        _pressures(logged, told.advantage, told.decided), _pressures(logged, moved, told.decided), strict=True
    ):
        assert after.value == pytest.approx(before.value, abs=1e-8)
        assert after.low == pytest.approx(before.low, abs=1e-8)


@given(scale=st.floats(0.1, 5.0), other=st.floats(-2.0, 2.0))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_pressure_is_linear_and_its_parts_add_up(logged: Logged, scale: float, other: float) -> None:
    told = _paid(logged)
    parts = np.column_stack([np.nan_to_num(told.contributions[name]) for name in ("latency", "undelivered")])
    mixed = parts @ np.array([scale, other])
    rows = pressure_rows(
        logged, ["a", "b", "mix"], np.column_stack([parts, mixed]), told.decided, statistics=["edit_rate"]
    )
    by = {(row.slice, row.kind): row.value for row in rows}
    for slice_ in {row.slice for row in rows}:
        first, second, both = (by[slice_, kind] for kind in ("a", "b", "mix"))
        assert first is not None
        assert second is not None
        assert both == pytest.approx(scale * first + other * second, abs=1e-9)


@given(st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_a_spec_with_the_same_content_has_the_same_hash_however_it_is_written(random: Any) -> None:
    plain = yaml.safe_load(bundled_text("naive"))

    def shuffled(value: Any) -> Any:
        if isinstance(value, dict):
            names = sorted(value)
            random.shuffle(names)
            return {name: shuffled(value[name]) for name in names}
        return [shuffled(each) for each in value] if isinstance(value, list) else value

    text = yaml.safe_dump(shuffled(plain), sort_keys=False, default_flow_style=random.random() < 0.5)
    assert version(parse_spec(f"# {random.random()}\n{text}")) == version(NAIVE)
    assert version(parse_spec(to_yaml(NAIVE))) == version(NAIVE)
    # And what pays otherwise is another.
    name = random.choice(sorted(WEIGHTS))
    terms = [{**each, "weight": each["weight"] + (each["name"] == name)} for each in plain["terms"]]
    assert version(parse_spec(yaml.safe_dump({**plain, "terms": terms}))) != version(NAIVE)


def _paid(logged: Logged) -> Any:
    return pay(logged, NAIVE, {version(NAIVE): NAIVE})


def _pressures(logged: Logged, advantage: Any, decided: Any) -> Any:
    return pressure_rows(logged, ["reward"], advantage[:, None], decided)
