from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palomar.app.streams import CHANGED, METRICS, ORGANISATIONS, REFERENCE, SLICES, START, Change, Null, rows, stream
from palomar.detectors.channels import Channels, Kind, Metric, Rows, Sums, channels, sums_of_rows
from palomar.detectors.drift import SHORTEST, Drift, drift, findings

SEED = 150


@cache
def run(null: Null, change: Change | None, seed: int = SEED) -> Drift:
    return drift(channels(stream(seed, null, change), REFERENCE), REFERENCE)


def own_out(result: Drift, change: Change, kinds: tuple[Kind, ...] | None = None) -> np.ndarray:
    """Cycles, counted from the change on, in which a channel of the changed metric is out."""
    series = result.channels
    own = [
        metric == CHANGED[change] and (kinds is None or kind in kinds)
        for kind, metric in zip(series.kind, series.metric, strict=True)
    ]
    return result.out[START : START + 30, np.array(own)].any(axis=1)


# -- what it must see, and the same stream without it ------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "within", "kinds"),
    [
        ("E", 10, ("mean", "slice")),
        ("C", 5, ("slice", "association")),
        ("I", 10, ("slice", "association")),
        ("L", 5, ("mean", "slice")),
        ("V", 1, ("spread",)),
        ("J", 1, ("association",)),
    ],
)
def test_a_change_is_seen_soon_on_the_channel_made_for_it_and_is_not_seen_without_it(
    change: Change, within: int, kinds: tuple[Kind, ...]
) -> None:
    changed, unchanged = run("stationary", change), run("stationary", None)
    assert own_out(changed, change, kinds)[:within].any()
    assert not own_out(unchanged, change).any()
    # Before the change the two are as quiet as each other.
    assert not changed.out[:START].any()


def test_means_alone_would_miss_a_change_of_spread_or_of_association() -> None:
    assert not own_out(run("stationary", "V"), "V", ("mean", "slice")).any()
    assert not own_out(run("stationary", "J"), "J", ("mean",)).any()


@pytest.mark.parametrize("null", ["stationary", "heavy", "growth"])
def test_streams_in_which_only_the_cycles_differ_do_not_alarm_more_than_stated(null: Null) -> None:
    alarms = sum(run(null, None, seed).out.any() for seed in range(150, 154))
    # 5 alarms per 1000 cycles are 1.2 in four streams of 60; Poisson's 99.9 % of 1.2 is 5, so at most all four may.
    assert alarms <= (1 if null != "heavy" else 3)


# -- laws --------------------------------------------------------------------------------------------------------


def some_rows(count: int = 400, seed: int = 5) -> Rows:
    rng = np.random.default_rng(seed)
    values = np.column_stack([rng.random(count) < 0.3, rng.lognormal(2, 1, count)]).astype(float)
    values[rng.random(count) < 0.1, 1] = np.nan
    return Rows(
        rng.integers(0, 3, count), rng.integers(0, 2, count), rng.integers(0, 2, count), rng.random(count), values
    )


def summed(given_rows: Rows) -> Sums:
    return sums_of_rows((Metric("asked", False), Metric("lines", True)), ("a", "b"), ("easy", "hard"), 3, given_rows)


def taken(given_rows: Rows, which: np.ndarray) -> Rows:
    return Rows(
        *(getattr(given_rows, name)[which] for name in ("cycle", "organisation", "cell", "difficulty", "values"))
    )


ROLES = ("n", "x", "xx", "d", "dd", "xd")


@given(order=st.permutations(range(60)), cut=st.integers(0, 60))
@settings(max_examples=30, deadline=None)
def test_order_and_partition_of_rows_change_no_sum(order: list[int], cut: int) -> None:
    given_rows = some_rows(60)
    whole = summed(given_rows)
    moved = np.array(order)
    parts = summed(taken(given_rows, moved[:cut])) + summed(taken(given_rows, moved[cut:]))
    for role in ROLES:
        assert np.array_equal(getattr(whole, role), getattr(parts, role))


def test_sums_are_those_of_the_rows() -> None:
    given_rows = some_rows()
    sums = summed(given_rows)
    inside = (given_rows.cycle == 1) & (given_rows.organisation == 0) & (given_rows.cell == 1)
    for metric in (0, 1):
        x, d = given_rows.values[inside, metric], given_rows.difficulty[inside]
        known = ~np.isnan(x)
        x, d = x[known], d[known]
        expected = (len(x), x.sum(), (x * x).sum(), d.sum(), (d * d).sum(), (x * d).sum())
        found = [getattr(sums, role)[1, 0, 1, metric] for role in ROLES]
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-4)


def test_sums_of_chunks_are_those_of_the_whole_stream() -> None:
    small = Rows(
        *(
            np.concatenate([getattr(chunk, name) for chunk in rows(3, "stationary", None, 100)])
            for name in ("cycle", "organisation", "cell", "difficulty", "values")
        )
    )
    backwards = taken(small, np.arange(len(small.cycle))[::-1])
    again = sums_of_rows(METRICS, ORGANISATIONS, SLICES, int(small.cycle.max()) + 1, backwards)
    whole = stream(3, n=100)
    for role in ROLES:
        assert np.array_equal(getattr(whole, role), getattr(again, role))


def test_sums_of_other_metrics_do_not_add_up() -> None:
    sums = summed(some_rows())
    with pytest.raises(ValueError, match="do not add up"):
        _ = sums + replace(sums, cells=("easy", "vague"))


@given(factors=st.lists(st.integers(1, 6), min_size=4, max_size=4))
@settings(max_examples=30, deadline=None)
def test_a_change_of_mix_alone_moves_no_mean_and_no_association(factors: list[int]) -> None:
    base = stream(3, n=100)
    # The last cycle repeats the one before with each organisation's rows taken so many times.
    times = np.array(factors * 2, dtype=float)[:, None, None]
    moved = {}
    for role in ROLES:
        array = getattr(base, role).copy()
        reference = array[:REFERENCE].sum(axis=0)
        array[-1] = reference * times  # every organisation exactly at its reference level
        array[-2] = reference
        moved[role] = array
    series = channels(replace(base, **moved), REFERENCE)
    means = np.array([kind in ("mean", "slice") for kind in series.kind])
    assert series.value[-1, means] == pytest.approx(series.value[-2, means], abs=1e-9)


# -- edges -------------------------------------------------------------------------------------------------------


def made(values: np.ndarray, variance: float = 1e-4) -> Channels:
    """One mean channel per column."""
    count = values.shape[1]
    return Channels(
        kind=("mean",) * count,
        metric=tuple(f"m{index}" for index in range(count)),
        slice=("all",) * count,
        value=values,
        variance=np.where(np.isnan(values), np.nan, variance),
        third=np.zeros(values.shape),
        n=np.full(values.shape, 100.0),
        unplaced=np.zeros(len(values)),
    )


def test_a_short_reference_is_not_assessable_and_says_what_it_needs() -> None:
    rng = np.random.default_rng(1)
    values = 0.5 + 0.01 * rng.standard_normal((12, 3))
    (first, *_) = findings(drift(made(values), SHORTEST - 1))
    assert (first.status, first.value, first.threshold) == ("not_assessable", None, None)
    assert str(SHORTEST) in first.reason
    assert findings(drift(made(values), SHORTEST))[0].status == "steady"


def test_a_step_warns_at_once_and_blocks_in_its_second_cycle() -> None:
    rng = np.random.default_rng(2)
    values = 0.5 + 0.01 * rng.standard_normal((22, 3))
    values[20:, 1] += 0.2
    one = findings(drift(made(values[:21]), 20))[1]
    assert (one.status, one.first_out, one.chart) == ("warns", 20, "cycle")
    assert one.effect == pytest.approx(0.2, abs=0.04)
    assert one.high is not None
    assert one.value is not None
    assert one.value > one.high
    two = findings(drift(made(values), 20))
    assert [finding.status for finding in two] == ["steady", "blocks", "steady"]
    assert two[1].first_out == 20


def test_an_average_that_is_out_warns_long_before_it_blocks() -> None:
    """It remembers, so two cycles of three say no more than one; a stricter threshold must be passed as well."""
    rng = np.random.default_rng(0)
    values = 0.5 + 0.01 * rng.standard_normal((40, 3))
    values[20:, 1] = 0.5  # no cycle is out by itself
    values[24:, 1] += 0.031
    result = drift(made(values), 20)
    assert not (np.abs(result.statistic[0, :, 1]) > result.threshold[1]).any()
    warned, blocked = (np.flatnonzero(flags[:, 1]) for flags in (result.out, result.blocks))
    assert len(warned) > 0
    assert len(blocked) > 0
    assert blocked[0] > warned[0] + 1


def test_what_is_no_behaviour_warns_and_never_blocks() -> None:
    rng = np.random.default_rng(2)
    values = 0.5 + 0.01 * rng.standard_normal((23, 3))
    values[20:, 1] += 0.2
    result = drift(replace(made(values), behaviour=(True, False, True)), 20)
    assert result.out[:, 1].all()
    assert not result.blocks.any()


@pytest.mark.parametrize("expected", [0.5, 2.0, 10.0])
def test_rare_events_alarm_at_the_stated_rate_and_not_above(expected: float) -> None:
    """Counts of a Poisson over 100 rows: 400 channels, 200 cycles, a budget of 5 in 1000 for all."""
    rng = np.random.default_rng(1)
    rows_per_cycle, cycles = 100, 208
    counts = rng.poisson(expected, (cycles, 400)).astype(float)
    n = np.full((cycles, 1, 1, 400), float(rows_per_cycle))
    x = counts[:, None, None, :]
    zero = np.zeros_like(n)
    metrics = tuple(Metric(f"m{index}", False) for index in range(400))
    roles = {"n": n, "x": x, "xx": x, "d": zero, "dd": zero, "xd": zero, "y": n, "yy": n, "xy": x, "yd": zero}
    sums = Sums(metrics, ("a",), ("all",), **roles, unripe=zero)
    result = drift(channels(sums, 8), 8)
    alarms = int((np.abs(result.statistic[0]) > result.threshold).any(axis=1).sum())
    # The cycle's chart has half the budget: 0.5 alarms in 200 cycles; Poisson's 99.9 % of 0.5 is 4.
    assert alarms <= 4
    # Not by never alarming: ten times what is usual is seen at once.
    moved = x.copy()
    moved[-1, ..., 0] = 10 * expected + 8
    again = drift(channels(replace(sums, x=moved, xx=moved), 8), 8)
    assert again.out[-1, 0]


def test_a_slice_is_not_surer_of_its_variance_than_the_whole_it_looks_to() -> None:
    """With many rows cycles are all there is, and a slice has no more of them than the whole."""
    freedom = {}
    for n in (2_000, 20_000):
        result = drift(channels(stream(SEED, n=n), REFERENCE), REFERENCE)
        kind = np.array(result.channels.kind)
        freedom[n] = float(np.median(result.freedom[kind == "slice"]))
    assert freedom[20_000] < 0.75 * freedom[2_000]


def test_cycles_without_a_value_are_passed_over_not_read_as_zero() -> None:
    rng = np.random.default_rng(3)
    values = 0.5 + 0.01 * rng.standard_normal((30, 3))
    values[[3, 22, 23], 0] = np.nan
    result = drift(made(values), 20)
    assert not result.out.any()
    assert findings(result)[0].status == "steady"
    values[-1, 0] = np.nan
    last = findings(drift(made(values), 20))[0]
    assert (last.status, last.reason) == ("not_assessable", "no value in the last cycle")


def test_a_slow_reference_raises_the_threshold_and_the_error() -> None:
    rng = np.random.default_rng(4)
    quick = rng.standard_normal((80, 12))
    slow = np.zeros_like(quick)
    for time in range(1, len(slow)):
        slow[time] = 0.85 * slow[time - 1] + np.sqrt(1 - 0.85**2) * quick[time]
    fast, lasting = (drift(made(0.5 + 0.05 * series), 20) for series in (quick, slow))
    assert lasting.memory > 0.5 > fast.memory
    assert (lasting.threshold > fast.threshold).all()


def test_one_event_where_there_was_never_one_is_no_alarm() -> None:
    base = stream(3, n=100)
    silent = {role: getattr(base, role).copy() for role in ROLES}
    for role in ("x", "xx", "xd"):
        silent[role][..., 2] = 0  # no invalid call anywhere
    silent["x"][-1, 0, 0, 2] = silent["xx"][-1, 0, 0, 2] = 1
    result = drift(channels(replace(base, **silent), REFERENCE), REFERENCE)
    means = [finding for finding in findings(result) if finding.metric == "invalid_call" and finding.kind == "mean"]
    assert [finding.status for finding in means] == ["steady"]


def constant(role_values: dict[str, np.ndarray], index: int, last: float = 2.0) -> dict[str, np.ndarray]:
    """Sums in which a metric is 2 in all rows, and ``last`` in the last cycle."""
    made_of = {role: array.copy() for role, array in role_values.items()}
    level = np.full(len(made_of["n"]), 2.0)
    level[-1] = last
    level = level[:, None, None]
    made_of["x"][..., index] = made_of["n"][..., index] * level
    made_of["xx"][..., index] = made_of["n"][..., index] * level**2
    made_of["xd"][..., index] = made_of["d"][..., index] * level
    return made_of


def test_an_amount_that_was_constant_over_the_reference_is_not_assessable() -> None:
    base = stream(3, n=100)
    given = {role: getattr(base, role) for role in ROLES}
    found = findings(drift(channels(replace(base, **constant(given, 10, last=3.0)), REFERENCE), REFERENCE))
    assert {finding.status for finding in found if finding.metric == "reward"} == {"not_assessable"}


def test_what_never_varies_is_no_channel_and_is_told() -> None:
    base = stream(3, n=100)
    given = {role: getattr(base, role) for role in ROLES}
    series = channels(replace(base, **constant(given, 10)), REFERENCE)
    assert "reward" not in series.metric
    assert ("mean", "reward", "all") in series.constant


def test_a_budget_or_a_reference_without_sense_is_refused() -> None:
    series = made(np.zeros((20, 2)))
    with pytest.raises(ValueError, match="budget"):
        drift(series, 10, budget=0)
    with pytest.raises(ValueError, match="reference"):
        drift(series, 20)
