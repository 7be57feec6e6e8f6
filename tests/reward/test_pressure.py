"""Selection pressure: by hand, by law, and in worlds where the truth is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palomar.data.observations import OBSERVATIONS, SAMPLES
from palomar.reward import pressure as module
from palomar.reward.charges import Signals, outcome_signal, reward_signals
from palomar.reward.contexts import OUTSIDE, Regressors, Strata, merged
from palomar.reward.pressure import Behaviours, Pressures, pressure, pressure_in
from palomar.trainer.advantages import advantages
from palomar.trainer.config import AdvantageConfig

Floats = npt.NDArray[np.float64]


def shares(phi: Any) -> Behaviours:
    """A plain mean of one statistic."""
    x = np.asarray(phi, dtype=np.float64).reshape(-1, 1)
    return Behaviours(("phi",), x, np.ones_like(x))


def column(values: Any) -> Floats:
    return np.asarray(values, dtype=np.float64).reshape(-1, 1)


def one(signal: Any, phi: Any, cells: Any = None, users: Any = None) -> Pressures:
    rows = len(np.asarray(signal))
    codes = np.zeros(rows, dtype=np.int64) if cells is None else np.asarray(cells, dtype=np.int64)
    owner = np.arange(rows) if users is None else np.asarray(users)
    return pressure(column(signal), shares(phi), Strata(codes), owner)


# -- by hand -------------------------------------------------------------------------------------------------------


def test_pressure_matches_the_calculation_by_hand() -> None:
    # Two contexts of 12 rows. Sums of products of the distances from the means: 3 x 1 and 3 x 2, over 11, each of
    # weight 1/2: 9/22. Influences in 22nds: 3, 3, -9, -9 and 15, -9, 15, -9, three times: squares 3 x 792 / 484.
    signal = 3 * [1, -1, 0, 0] + 3 * [2, 0, -2, 0]
    phi = 3 * [1, 0, 0, 1] + 3 * [1, 1, 0, 0]
    found = one(signal, phi, [0] * 12 + [1] * 12)
    error = np.sqrt(24 / 23 * 3 * 792 / 484) / 24
    assert found.value[0, 0] == pytest.approx(9 / 22, abs=1e-12)
    assert found.z[0, 0] == pytest.approx(9 / 22 / error, abs=1e-12)
    assert found.high[0, 0] == pytest.approx(9 / 22 + 2.068658 * error, abs=1e-6)  # t, 23 degrees of freedom
    assert (found.level[0], found.n[0], found.clusters, found.status[0, 0]) == (0.5, 24, 24, "ok")


def test_rows_of_one_user_count_as_one_for_the_error() -> None:
    rng = np.random.default_rng(1)
    signal, phi = rng.normal(size=40), rng.integers(0, 2, 40)
    alone = one(signal, phi)
    thrice = one(np.repeat(signal, 3), np.repeat(phi, 3), users=np.repeat(np.arange(40), 3))
    assert thrice.z[0, 0] == pytest.approx(alone.z[0, 0], rel=1e-12)


def test_what_cannot_be_said_is_named() -> None:
    few = one([1.0, -1.0] * 15, [1] + [0] * 29)
    assert few.status[0, 0] == "too few"
    assert np.isfinite(few.value[0, 0])
    assert np.isnan([few.low[0, 0], few.high[0, 0], few.z[0, 0]]).all()
    assert one([1.0, -1.0] * 15, [1, 0] * 15, users=[0, 1, 2] * 10).status[0, 0] == "too few"
    assert one([0.5] * 30, [0, 1] * 15).status[0, 0] == "no variation"
    assert one([0, 1] * 15, [0.3] * 30).status[0, 0] == "no variation"
    nothing = Behaviours(("phi",), np.zeros((30, 1)), np.zeros((30, 1)))
    unknown = pressure(column([0, 1] * 15), nothing, Strata(np.zeros(30, dtype=np.int64)), np.arange(30))
    assert (unknown.status[0, 0], unknown.n[0]) == ("no data", 0)
    assert np.isnan(unknown.value[0, 0])
    none = pressure(np.zeros((0, 1)), shares([]), Strata(np.zeros(0, dtype=np.int64)), np.arange(0))
    assert none.status[0, 0] == "no data"
    with pytest.raises(ValueError, match="finite"):
        one([np.nan] * 30, [0, 1] * 15)


# -- laws ----------------------------------------------------------------------------------------------------------


def test_the_order_of_the_rows_changes_nothing() -> None:
    rng = np.random.default_rng(2)
    signal, phi, cells, users = (
        rng.normal(size=300),
        rng.normal(size=300),
        rng.integers(0, 9, 300),
        rng.integers(0, 40, 300),
    )
    order = rng.permutation(300)
    before, after = one(signal, phi, cells, users), one(signal[order], phi[order], cells[order], users[order])
    for name in ("value", "low", "high", "z"):
        assert getattr(after, name)[0, 0] == pytest.approx(getattr(before, name)[0, 0], rel=1e-9)


def test_price_equation_holds_to_first_order_in_a_discrete_world() -> None:
    """A replicator's step on a policy over 3 actions in 2 contexts, one action left out of training in one of them."""
    share = np.array([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3]])  # policy
    advantage = np.array([[1.0, -0.5, 0.0], [-2.0, 0.3, 0.7]])
    phi = np.array([[1.0, 0.0, 0.5], [0.2, 0.0, 3.0]])
    count = np.rint(10_000 * share).astype(int)
    context, action = (np.repeat(index.ravel(), count.ravel()) for index in np.indices(share.shape))
    found = one(advantage[context, action], phi[context, action], context).value[0, 0] * (1 - 1e-4)  # n - 1 to n
    step = 1e-6
    moved = share * np.exp(step * advantage)
    moved /= moved.sum(axis=1, keepdims=True)
    change = ((moved - share) * phi).sum(axis=1).mean()
    assert found == pytest.approx(change / step, rel=1e-5)


def test_pressure_on_a_ratio_is_its_derivative_and_no_row_is_dropped() -> None:
    """Functions per edit: rows with an edit only, in a world that also moves who edits."""
    rng = np.random.default_rng(3)
    edited = rng.random(4000) < 0.6
    functions = np.where(edited, rng.integers(1, 5, 4000), 0).astype(float)
    signal = 0.4 * functions - edited + rng.normal(size=4000)
    behaviours = Behaviours(("per edit",), functions[:, None], edited[:, None].astype(float))
    found = pressure(signal[:, None], behaviours, Strata(np.zeros(4000, dtype=np.int64)), np.arange(4000))
    step = 1e-6
    weight = 1 + step * (signal - signal.mean())
    change = (weight @ functions) / (weight @ edited) - functions.sum() / edited.sum()
    assert found.value[0, 0] * (1 - 1 / 4000) == pytest.approx(change / step, rel=1e-4)
    assert (found.n[0], found.level[0]) == (edited.sum(), pytest.approx(functions.sum() / edited.sum()))


def test_the_error_of_a_ratio_is_that_of_leaving_out_one_user_at_a_time() -> None:
    """A signal that moves the denominator most: then what estimating the ratio adds is most of the error."""
    rng = np.random.default_rng(19)
    user, context = np.repeat(np.arange(100), 8), rng.integers(0, 2, 800)
    edited = (rng.random(800) < 0.5).astype(float)
    functions = edited * rng.integers(1, 9, 800)
    signal = 3.0 * edited + rng.normal(size=800)

    def of(rows: npt.NDArray[np.bool_]) -> Pressures:
        behaviours = Behaviours(("per edit",), functions[rows, None], edited[rows, None])
        return pressure(signal[rows, None], behaviours, Strata(context[rows]), user[rows])

    found = of(np.ones(800, dtype=np.bool_))
    without = np.array([of(user != each).value[0, 0] for each in range(100)])
    jackknife = np.sqrt(99 / 100 * ((without - without.mean()) ** 2).sum())
    assert found.value[0, 0] / found.z[0, 0] == pytest.approx(jackknife, rel=0.03)


# -- against a plain, slow reference -------------------------------------------------------------------------------


def slowly(signal: Floats, x: Floats, y: Floats, cells: Any, users: Any) -> dict[str, float]:
    """Pressure of one signal on one statistic as the module's docstring has it, row by row."""
    rows = len(signal)

    def left(values: Floats) -> Floats:
        found = np.empty(rows)
        for cell in set(cells):
            here = cells == cell
            found[here] = (values[here] - values[here].mean()) * np.sqrt(here.sum() / max(here.sum() - 1, 1))
        return found

    level = x.sum() / y.sum()
    phi, share = (x - level * y) / y.mean(), y / y.mean()
    products = left(signal) * left(phi)
    value = products.mean()
    influence = products - (left(signal) * left(share)).mean() * phi - value * share
    sums = np.array([influence[users == each].sum() for each in set(users)])
    levels = np.array([phi[users == each].sum() for each in set(users)])
    correction = len(sums) / (len(sums) - 1)
    return {
        "value": value,
        "error": np.sqrt(correction * (sums**2).sum()) / rows,
        "level": level,
        "level_error": np.sqrt(correction * (levels**2).sum()) / rows,
        "spread": np.sqrt((left(phi) ** 2).mean()),
        "signal_spread": np.sqrt((left(signal) ** 2).mean()),
        "total": y.sum(),
    }


def test_slices_at_once_are_each_what_the_plain_reference_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PIECE", 100)  # several pieces, cut between users
    rng = np.random.default_rng(23)
    rows, num_signals, num = 900, 3, 4
    cells, users = rng.integers(0, 12, rows), rng.integers(0, 150, rows) * 7
    y = np.column_stack([np.ones(rows), rng.integers(0, 3, (rows, num - 1))]).astype(float)
    x = y * rng.integers(0, 5, (rows, num))
    signals = rng.normal(size=(rows, num_signals)) * np.array([1.0, 1e3, 1e-3]) + x[:, :1] + 100
    slices = [np.ones(rows, dtype=bool), cells < 4, (cells >= 4) & (cells % 2 == 0)]
    behaviours = Behaviours(tuple("abcd"), x, y)
    found = pressure_in(slices, signals, behaviours, Strata(cells), users)
    for mask, got in zip(slices, found, strict=True):
        assert (got.rows, got.clusters) == (mask.sum(), len(set(users[mask])))
        for k in range(num):
            for s in range(num_signals):
                expected = slowly(signals[mask, s], x[mask, k], y[mask, k], cells[mask], users[mask])
                for name, value in expected.items():
                    array = getattr(got, name)
                    at = (k, s) if array.ndim == 2 else (s,) if name == "signal_spread" else (k,)
                    assert array[at] == pytest.approx(value, rel=1e-9), (name, k, s)


def test_rows_outside_every_slice_take_no_part() -> None:
    rng = np.random.default_rng(24)
    signal, phi, users = rng.normal(size=200), rng.normal(size=200), rng.integers(0, 40, 200)
    inside = rng.random(200) < 0.6
    codes = np.where(inside, rng.integers(0, 3, 200), OUTSIDE)
    found = pressure_in([inside], column(signal), shares(phi), Strata(codes), users)[0]
    alone = one(signal[inside], phi[inside], codes[inside], users[inside])
    assert found.value[0, 0] == pytest.approx(alone.value[0, 0], rel=1e-12)
    assert found.z[0, 0] == pytest.approx(alone.z[0, 0], rel=1e-12)
    assert found.clusters == alone.clusters == len(set(users[inside]))


def test_groups_of_users_give_the_same_errors_on_average(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(26)
    ratios = []
    for _ in range(40):
        users = rng.integers(0, 400, 1200)
        liking = rng.normal(size=400)[users]
        signal, phi = liking + rng.normal(size=1200), (liking + rng.normal(size=1200) > 0).astype(float)
        cells = rng.integers(0, 3, 1200)
        monkeypatch.setattr(module, "GROUPS", 10_000)
        exact = one(signal, phi, cells, users)
        monkeypatch.setattr(module, "GROUPS", 100)
        grouped = one(signal, phi, cells, users)
        assert grouped.value[0, 0] == pytest.approx(exact.value[0, 0], rel=1e-9)
        assert grouped.clusters == exact.clusters == len(set(users))
        ratios.append((grouped.error[0, 0] / exact.error[0, 0]) ** 2)
    assert np.mean(ratios) == pytest.approx(1, abs=0.08)  # each is known to 14 %
    assert 0.02 < np.std(ratios) < 0.25


@pytest.mark.parametrize("odd", [0, 9, 10, 11, 4000])
def test_rare_rows_are_counted_though_a_part_is_looked_at_first(odd: int) -> None:
    rng = np.random.default_rng(25)
    phi = np.zeros(300_000)
    phi[rng.choice(len(phi), odd, replace=False)] = 1.0
    found = one(rng.normal(size=len(phi)), phi)
    assert found.status[0, 0] == ("no variation" if odd == 0 else "too few" if odd < 10 else "ok")
    if odd < 1000:
        assert found.unusual[0] == odd
    assert found.signal_unusual[0] >= 10


# -- what the reward's pressure is made of -------------------------------------------------------------------------


def paid(rng: np.random.Generator, rows: int = 400, **columns: Any) -> tuple[pa.Table, dict[str, Floats]]:
    """Observations without a log of the trainer, and two contributions that add up to their reward."""
    parts = {"a": rng.normal(size=rows), "b": 2 * rng.integers(0, 2, rows).astype(float)}
    dropped = rng.random(rows) < 0.2
    table = {
        "interaction_id": [f"i{index}" for index in range(rows)],
        "cycle": rng.integers(0, 2, rows),
        "reward": parts["a"] + parts["b"],
        "reward_status": ["valid"] * rows,
        "included": ~dropped,
        "exclusion": ["broken" if drop else None for drop in dropped],
    } | columns
    kept = {name: pa.array(value, OBSERVATIONS.field(name).type) for name, value in table.items()}
    return unlogged(pa.table(kept)), parts


def unlogged(table: pa.Table) -> pa.Table:
    for name in ("group_id", "outcome", "outcome_status", "predicted_failure", "ambiguity"):
        if name not in table.column_names:
            table = table.append_column(name, pa.nulls(table.num_rows, OBSERVATIONS.field(name).type))
    for name in ("update_cycle", "paid", "baseline", "advantage", "weight", "trained", "reason"):
        of = SAMPLES.field({"update_cycle": "cycle", "paid": "reward"}.get(name, name)).type
        table = table.append_column(name, pa.nulls(table.num_rows, of))
    return table


def logged(table: pa.Table, config: AdvantageConfig) -> pa.Table:
    """As the trainer would have logged it, one update for all rows."""
    made = advantages(table, config)
    columns = {
        "update_cycle": pa.array([7] * table.num_rows, pa.int32()),
        "paid": table["reward"],
        "baseline": pa.array(made.baseline, pa.float64()),
        "advantage": pa.array(made.value, pa.float64()),
        "weight": pa.array(made.weight, pa.float64()),
        "trained": pa.array([weight > 0 for weight in made.weight]),
        "reason": pa.array(made.reason, pa.string()),
    }
    return _with(table, columns)


def _with(table: pa.Table, columns: dict[str, Any]) -> pa.Table:
    for name, values in columns.items():
        table = table.set_column(table.column_names.index(name), name, values)
    return table


def get(signals: Signals, name: str) -> Floats:
    return np.asarray(signals.values[:, signals.names.index(name)])


@pytest.mark.parametrize("baseline", ["batch", "group", "context"])
def test_terms_add_up_to_the_reward_whatever_baseline_the_trainer_used(baseline: Any) -> None:
    rng = np.random.default_rng(4)
    table, parts = paid(
        rng,
        group_id=[f"g{index // 8}" for index in range(400)],
        predicted_failure=rng.random(400),
        ambiguity=rng.random(400),
    )
    for rows in (table, logged(table, AdvantageConfig(baseline=baseline))):
        signals = reward_signals(rows, parts)
        assert set(signals.names) == {"reward", "term:a", "term:b", "rule:broken"} | (
            {"rule:alone_in_group"} & set(signals.names)
        )
        total = get(signals, "term:a") + get(signals, "term:b")
        np.testing.assert_allclose(total, get(signals, "reward"), atol=1e-12)
        assert np.abs(get(signals, "reward")).max() > 1
        phi = rng.normal(size=400)
        found = pressure(signals.values, shares(phi), Strata(rng.integers(0, 5, 400)), np.arange(400))
        by_name = dict(zip(signals.names, found.value[0], strict=True))
        assert by_name["term:a"] + by_name["term:b"] == pytest.approx(by_name["reward"], abs=1e-12)


def test_what_is_rebuilt_is_what_the_trainer_would_have_used() -> None:
    table, parts = paid(np.random.default_rng(5), cycle=[0] * 400)
    rebuilt, told = reward_signals(table, parts), reward_signals(logged(table, AdvantageConfig()), parts)
    assert rebuilt.names == told.names
    np.testing.assert_allclose(rebuilt.values, told.values, atol=1e-12)


def test_the_logged_advantage_is_used_even_where_it_is_not_what_we_would_have_made() -> None:
    table, parts = paid(np.random.default_rng(6))
    rows = logged(table, AdvantageConfig())
    halved = pa.array(np.where(rows["trained"], 0.5 * rows["advantage"].to_numpy(), np.nan), from_pandas=True)
    signals = reward_signals(_with(rows, {"advantage": halved}), parts)
    np.testing.assert_allclose(get(signals, "reward"), np.nan_to_num(halved.to_numpy(zero_copy_only=False)))
    np.testing.assert_allclose(get(signals, "term:a") + get(signals, "term:b"), get(signals, "reward"), atol=1e-12)


@given(constant=st.floats(-1e3, 1e3))
@settings(max_examples=20, deadline=None)
def test_a_constant_added_to_every_reward_changes_no_signal(constant: float) -> None:
    table, parts = paid(np.random.default_rng(7))
    shifted = _with(table, {"reward": pa.array(table["reward"].to_numpy() + constant)})
    before = reward_signals(table, parts)
    after = reward_signals(shifted, parts | {"b": parts["b"] + constant})
    np.testing.assert_allclose(after.values, before.values, atol=1e-9)


def test_without_scale_pressure_is_linear_in_the_weights_of_the_terms() -> None:
    table, parts = paid(np.random.default_rng(8))
    config = AdvantageConfig(scale=False)
    phi = np.random.default_rng(9).normal(size=400)

    def of(weight_a: float, weight_b: float) -> float:
        mixed = {"a": weight_a * parts["a"], "b": weight_b * parts["b"]}
        rows = logged(_with(table, {"reward": pa.array(mixed["a"] + mixed["b"])}), config)
        return float(one(get(reward_signals(rows, mixed), "reward"), phi).value[0, 0])

    assert of(2, -3) == pytest.approx(2 * of(1, 0) - 3 * of(0, 1), abs=1e-12)


def test_a_rule_is_charged_with_what_leaving_its_samples_out_adds() -> None:
    table, parts = paid(np.random.default_rng(10), cycle=[0] * 400)
    signals = reward_signals(table, parts)
    reward = table["reward"].to_numpy()
    kept = np.asarray(table["included"])
    baseline, scale = reward[kept].mean(), reward[kept].std()
    with_them_in = (reward - baseline) / scale
    np.testing.assert_allclose(get(signals, "reward") - get(signals, "rule:broken"), with_them_in, atol=1e-12)


def test_a_reward_that_no_known_term_explains_is_said_to_be_unattributed() -> None:
    table, parts = paid(np.random.default_rng(11))
    signals = reward_signals(table, {"a": parts["a"]})
    np.testing.assert_allclose(get(signals, "term:a") + get(signals, "term:unattributed"), get(signals, "reward"))
    assert np.abs(get(signals, "term:unattributed")).max() > 0.5


def test_rows_that_wait_are_in_no_mean_and_dropped_ones_are() -> None:
    table, parts = paid(np.random.default_rng(12))
    status = ["waiting"] * 3 + ["valid"] * 397
    reward = pa.array([None] * 3 + table["reward"].to_pylist()[3:], pa.float64())
    included = pa.array([None, None, False] + [True] * 397)
    exclusion = pa.array([None, None, "broken"] + [None] * 397, pa.string())
    waiting = _with(
        table, {"reward": reward, "reward_status": pa.array(status), "included": included, "exclusion": exclusion}
    )
    for rows in (waiting, logged(waiting, AdvantageConfig())):
        signals = reward_signals(
            rows, {name: np.where(np.arange(400) < 3, np.nan, part) for name, part in parts.items()}
        )
        assert signals.counted.tolist() == [False, False, True] + [True] * 397
        assert np.isfinite(signals.values).all()
        assert get(signals, "rule:broken")[2] == 0  # nobody knows what it would have been paid


def test_equal_rewards_teach_nothing() -> None:
    table, _ = paid(np.random.default_rng(13), reward=[0.1] * 400)
    assert not reward_signals(table, {}).values.any()


def test_only_mature_outcomes_count_in_standard_deviations() -> None:
    status = ["mature", "mature", "immature", "invalid"]
    table, _ = paid(np.random.default_rng(14), rows=4, outcome=[1.0, 3.0, 9.0, None], outcome_status=status)
    signals = outcome_signal(table)
    assert signals.counted.tolist() == [True, True, False, False]
    assert signals.values[:, 0].tolist() == [-1, 1, 0, 0]


def test_the_dodge_is_named_only_because_its_samples_are_left_out() -> None:
    """Hard requests, where an edit loses; a broken call would lose more, and is dropped by a rule, or not."""
    rng = np.random.default_rng(15)
    hard, broken = rng.random(4000) < 0.4, rng.random(4000) < 0.05
    reward = np.where(hard, -1.0, 1.0) + rng.normal(size=4000) - 1.5 * broken
    found = {}
    for rule in (False, True):
        dropped = broken if rule else np.zeros(4000, dtype=bool)
        why = np.where(dropped, "broken", None)
        table, _ = paid(rng, rows=4000, cycle=[0] * 4000, reward=reward, included=~dropped, exclusion=why)
        signals = reward_signals(table, {"all": reward})
        result = pressure(
            signals.values[hard], shares(broken[hard]), Strata(np.zeros(hard.sum(), int)), np.arange(hard.sum())
        )
        found[rule] = dict(zip(signals.names, result.z[0], strict=True))
    assert found[False]["reward"] < -4
    assert found[True]["reward"] > 4
    assert found[True]["rule:broken"] > 4


# -- contexts ------------------------------------------------------------------------------------------------------


@given(st.integers(0, 10_000), st.integers(1, 200), st.integers(1, 30))
@settings(max_examples=60, deadline=None)
def test_no_cell_is_thin_and_what_differs_last_is_merged_first(seed: int, rows: int, thin: int) -> None:
    rng = np.random.default_rng(seed)
    levels = np.column_stack([rng.integers(0, 2, rows), rng.integers(0, 3, rows), rng.integers(0, 4, rows)])
    cells = merged(levels, thin)
    sizes = np.bincount(cells)
    assert sizes[sizes > 0].min() >= min(thin, rows)
    tops = np.bincount(levels[:, 0], minlength=2)
    if tops.min() >= thin:
        assert all(len(set(levels[cells == cell, 0])) == 1 for cell in np.unique(cells))
    finest, counts = np.unique(levels, axis=0, return_counts=True)
    if counts.min() >= thin:
        assert len(np.unique(cells)) == len(finest)


def test_cells_can_be_kept_from_reaching_over_the_first_levels() -> None:
    levels = np.column_stack([np.repeat([0, 1], [60, 4]), np.tile([0, 1], 32)])
    assert len(np.unique(merged(levels))) == 2  # four rows of the second level with the smaller half of the first
    cells = merged(levels, within=1)
    assert [len(set(cells[levels[:, 0] == each])) for each in (0, 1)] == [2, 1]
    assert not set(cells[levels[:, 0] == 0]) & set(cells[levels[:, 0] == 1])


def test_regression_holds_fixed_what_coarse_cells_leave_in() -> None:
    """Reward and behaviour both follow how hard a request is, smoothly, and have nothing else in common."""
    rng = np.random.default_rng(16)
    hard = rng.random(6000)
    phi = (rng.random(6000) < hard**2).astype(float)
    signal = -3 * hard + rng.normal(size=6000)
    coarse = one(signal, phi, (hard > 0.5).astype(int)).z[0, 0]
    fine = one(signal, phi, (hard * 30).astype(int)).z[0, 0]
    regression = pressure(column(signal), shares(phi), Regressors(hard[:, None], np.arange(6000)), np.arange(6000)).z[
        0, 0
    ]
    assert abs(coarse) > 10
    assert abs(fine) < 3
    assert abs(regression) < 2.5


def test_parts_add_up_under_regression_too() -> None:
    rng = np.random.default_rng(17)
    parts, phi, features = rng.normal(size=(500, 2)), rng.integers(0, 2, 500), rng.random((500, 2))
    signals = np.column_stack([parts.sum(axis=1), parts])
    users = rng.integers(0, 60, 500)
    found = pressure(signals, shares(phi), Regressors(features, users), users).value[0]
    assert found[1] + found[2] == pytest.approx(found[0], abs=1e-10)


# -- coverage ------------------------------------------------------------------------------------------------------


def _worlds(rng: np.random.Generator, worlds: int) -> tuple[float, float]:
    """Share of 95 % intervals that hold the truth, clustered by user and not. 60 users of 1 to 19 rows."""
    held = np.zeros(2)
    for _ in range(worlds):
        user = np.repeat(np.arange(60), rng.integers(1, 20, 60))
        context = rng.integers(0, 3, len(user))
        liking, habit = rng.normal(size=60)[user], rng.normal(size=60)[user]
        phi = (habit + rng.normal(size=len(user)) > 1 + 0.3 * context).astype(float)
        signal = phi * (1.0 + liking) + liking - context
        # E_x Cov(signal, phi | x) = mean of p (1 - p): a liking has mean 0 and nothing to do with habits.
        truth = np.mean([p * (1 - p) for p in _tail((1 + 0.3 * np.arange(3)) / np.sqrt(2))])
        for index, owner in enumerate((user, np.arange(len(user)))):
            found = one(signal, phi, context, owner)
            held[index] += found.low[0, 0] <= truth <= found.high[0, 0]
    return float(held[0] / worlds), float(held[1] / worlds)


def _tail(value: Floats) -> Floats:
    from scipy import stats

    return np.asarray(stats.norm.sf(value))


def test_clustered_intervals_hold_the_truth_as_often_as_they_say() -> None:
    clustered, rowwise = _worlds(np.random.default_rng(18), 600)
    assert 0.92 <= clustered <= 0.975
    assert rowwise < clustered - 0.03
