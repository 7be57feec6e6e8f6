from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palomar.data.observations import OBSERVATIONS
from palomar.trainer.advantages import advantages
from palomar.trainer.config import AdvantageConfig


def observations(rewards: list[float | None], **columns: list[Any]) -> pa.Table:
    n = len(rewards)
    defaults: dict[str, list[Any]] = {
        "reward_status": ["waiting" if reward is None else "valid" for reward in rewards],
        "included": [None if reward is None else True for reward in rewards],
        "exclusion": [None] * n,
        "group_id": [None] * n,
        "predicted_failure": [None] * n,
        "ambiguity": [None] * n,
    }
    values = {"interaction_id": [f"i{row}" for row in range(n)], "reward": rewards} | defaults | columns
    return pa.table({name: pa.array(value, OBSERVATIONS.field(name).type) for name, value in values.items()})


BATCH = AdvantageConfig(scale=False)
GROUP = AdvantageConfig(baseline="group", scale=False)
CONTEXT = AdvantageConfig(baseline="context", scale=False)


def test_batch_baseline_is_the_mean_of_the_batch() -> None:
    result = advantages(observations([1.0, 2.0, 6.0]), BATCH)
    assert result.value == (-2.0, -1.0, 3.0)
    assert result.baseline == (3.0, 3.0, 3.0)
    assert result.weight == (1.0, 1.0, 1.0)


def test_scaled_advantages_have_unit_standard_deviation() -> None:
    value = advantages(observations([1.0, 2.0, 6.0]), AdvantageConfig()).value
    # By hand: deviations -2, -1, 3; mean square 14/3.
    assert value == pytest.approx(np.array([-2.0, -1.0, 3.0]) / np.sqrt(14 / 3))


def test_group_baseline_is_the_mean_of_each_group() -> None:
    result = advantages(observations([1.0, 3.0, 10.0, 30.0], group_id=["a", "a", "b", "b"]), GROUP)
    assert result.value == (-1.0, 1.0, -10.0, 10.0)


def test_context_baseline_is_the_mean_of_each_stratum_with_not_known_apart() -> None:
    result = advantages(
        observations(
            [1.0, 3.0, 10.0, 30.0, 5.0, 9.0],
            predicted_failure=[0.1, 0.2, 0.9, 0.9, None, None],
            ambiguity=[0.1, 0.1, 0.1, 0.1, 0.1, 0.1],
        ),
        CONTEXT,
    )
    assert result.value == (-1.0, 1.0, -10.0, 10.0, -2.0, 2.0)


def test_contexts_differ_by_ambiguity_too() -> None:
    result = advantages(
        observations([1.0, 3.0, 10.0, 30.0], predicted_failure=[0.1] * 4, ambiguity=[0.1, 0.1, 0.9, 0.9]), CONTEXT
    )
    assert result.value == (-1.0, 1.0, -10.0, 10.0)


def test_trl_5775_a_group_whose_rewards_are_all_null_is_not_a_group_of_zeros() -> None:
    table = observations(
        [None, None, 1.0, 3.0], group_id=["a", "a", "b", "b"], reward_status=["invalid", "invalid", "valid", "valid"]
    )
    result = advantages(table, GROUP)
    assert result.value == (None, None, -1.0, 1.0)
    assert result.reason[:2] == ("reward_invalid", "reward_invalid")
    batch = advantages(table, BATCH)
    assert batch.baseline == (None, None, 2.0, 2.0)


def test_trl_5775_one_null_reward_leaves_its_groups_mean_to_the_others() -> None:
    table = observations([None, 1.0, 3.0], group_id=["a"] * 3, reward_status=["invalid", "valid", "valid"])
    assert advantages(table, GROUP).value == (None, -1.0, 1.0)


def test_prime_rl_1746_an_excluded_sample_keeps_its_reward_out_of_the_baseline() -> None:
    table = observations(
        [-100.0, 1.0, 3.0],
        group_id=["a"] * 3,
        included=[False, True, True],
        exclusion=["invalid_tool_call", None, None],
    )
    for config in (BATCH, GROUP):
        result = advantages(table, config)
        assert result.value == (None, -1.0, 1.0)
        assert result.weight == (0.0, 1.0, 1.0)
        assert result.reason == ("invalid_tool_call", None, None)


def test_verl_6310_the_reward_of_a_sample_barred_by_the_caller_moves_none_of_its_peers() -> None:
    table = observations([50.0, 1.0, 3.0], group_id=["a"] * 3)
    result = advantages(table, GROUP, barred={"i0": "stale"})
    assert result.value == (None, -1.0, 1.0)
    assert result.reason[0] == "stale"


def test_a_waiting_sample_is_neither_trained_on_nor_a_zero() -> None:
    result = advantages(observations([None, 1.0, 3.0]), BATCH)
    assert result.value == (None, -1.0, 1.0)
    assert result.reason[0] == "reward_waiting"


def test_a_sample_that_was_never_scored_says_so() -> None:
    result = advantages(observations([1.0, 2.0, 3.0], reward_status=[None, "valid", "valid"]), BATCH)
    assert result.reason[0] == "reward_missing"


def test_a_valid_reward_that_is_not_a_number_is_invalid() -> None:
    result = advantages(observations([float("nan"), 1.0, 3.0]), BATCH)
    assert result.value == (None, -1.0, 1.0)
    assert result.reason[0] == "reward_invalid"


def test_a_sample_alone_in_its_group_is_not_called_average() -> None:
    result = advantages(observations([7.0, 1.0, 3.0, 9.0], group_id=["a", "b", "b", None]), GROUP)
    assert result.value == (None, -1.0, 1.0, None)
    assert result.reason == ("alone_in_group", None, None, "alone_in_group")


def test_nothing_to_learn_from_is_a_status_and_never_a_nan() -> None:
    assert advantages(observations([]), BATCH).status == "empty"
    excluded = advantages(observations([1.0, 2.0], included=[False, False], exclusion=["cut", "cut"]), BATCH)
    assert excluded.status == "all_excluded"
    assert excluded.value == (None, None)
    for rewards in ([2.0, 2.0, 2.0], [0.0, 0.0], [0.1 + 0.2, 0.3], [5.0]):
        equal = advantages(observations(rewards), AdvantageConfig())
        assert equal.status == "no_spread"
        assert equal.value == (0.0,) * len(rewards)


@given(
    rewards=st.lists(st.integers(-50, 50), min_size=2, max_size=30),
    constant=st.integers(-10_000, 10_000),
    baseline=st.sampled_from(["batch", "group", "context"]),
    data=st.data(),
)
def test_adding_a_constant_to_every_reward_changes_nothing(
    rewards: list[int], constant: int, baseline: Any, data: st.DataObject
) -> None:
    columns = {
        "group_id": data.draw(st.lists(st.sampled_from(["a", "b"]), min_size=len(rewards), max_size=len(rewards))),
        "predicted_failure": [0.1 if reward % 2 else 0.8 for reward in rewards],
    }
    config = AdvantageConfig(baseline=baseline)
    plain = advantages(observations([reward / 7 for reward in rewards], **columns), config)
    moved = advantages(observations([reward / 7 + constant for reward in rewards], **columns), config)
    assert plain.status == moved.status
    assert plain.reason == moved.reason
    for before, after in zip(plain.value, moved.value, strict=True):
        assert before == (None if after is None else pytest.approx(after, abs=1e-6))


@given(rewards=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
def test_advantages_of_the_batch_add_up_to_zero_and_are_finite(rewards: list[float]) -> None:
    result = advantages(observations(list(rewards)), AdvantageConfig())
    values = [value for value in result.value if value is not None]
    assert np.isfinite(values).all()
    assert sum(values) == pytest.approx(0.0, abs=1e-6)
