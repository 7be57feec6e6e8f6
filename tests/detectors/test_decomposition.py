"""Splits of a change, against published examples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palomar.detectors.checks._examples import rows, view
from palomar.detectors.decomposition import adtributor, kitagawa, mix_within, oaxaca_blinder


def known(folder: Path, name: str) -> dict[str, Any]:
    cases: list[dict[str, Any]] = json.loads((folder / "decomposition.json").read_text(encoding="utf-8"))["cases"]
    return next(case for case in cases if case["id"] == name)


def ends(case: dict[str, Any]) -> tuple[Any, Any]:
    """Women before, men after: the case takes a less b."""
    given_ = {name: np.array(case["inputs"][name], dtype=np.float64) for name in ("n_a", "rate_a", "n_b", "rate_b")}
    return (given_["n_b"], given_["rate_b"]), (given_["n_a"], given_["rate_a"])


def test_berkeley_1973_is_all_mix_and_its_within_part_goes_the_other_way(known_answers: Path) -> None:
    case = known(known_answers, "kitagawa_shapley_mix_within")
    found = kitagawa(case["inputs"]["segment"], *ends(case))
    expected, near = case["expected"], case["tolerance"]["abs"]
    assert found.after == pytest.approx(expected["rate_a"], abs=near)
    assert found.before == pytest.approx(expected["rate_b"], abs=near)
    for name in ("total", "mix", "within"):
        assert getattr(found, name) == pytest.approx(expected[name], abs=near)
    assert found.mix_by_segment == pytest.approx(np.array(expected["mix_by_segment"]), abs=near)
    assert found.within_by_segment == pytest.approx(np.array(expected["within_by_segment"]), abs=near)


def test_kitagawa_is_oaxaca_and_blinder_with_dummies_at_weight_one_half(known_answers: Path) -> None:
    """Two independent ways to one number: cell levels, and a regression on rows."""
    case = known(known_answers, "kitagawa_shapley_mix_within")
    values, dummies, after = [], [], []
    for flag, (n, rate) in enumerate(ends(case)):
        for segment, (count, level) in enumerate(zip(n, rate, strict=True)):
            admitted = round(count * level)
            values += [1.0] * admitted + [0.0] * (int(count) - admitted)
            dummies += [np.eye(len(n))[segment][1:]] * int(count)
            after += [bool(flag)] * int(count)
    found = oaxaca_blinder(np.array(values), np.array(dummies), np.array(after), weights="reimers")
    assert found.explained == pytest.approx(case["expected"]["mix"], abs=1e-9)
    assert found.unexplained == pytest.approx(case["expected"]["within"], abs=1e-9)


def test_oaxaca_blinder_ccard(known_answers: Path) -> None:
    from statsmodels.datasets import ccard

    case = known(known_answers, "oaxaca_blinder_ccard")
    data, near = ccard.load_pandas(), case["tolerance"]["abs"]
    owns = data.exog["OWNRENT"].to_numpy() == 1
    covariates = data.exog[["AGE", "INCOME", "INCOMESQ"]].to_numpy()
    for weights in ("pooled", "reimers"):
        found = oaxaca_blinder(data.endog.to_numpy(), covariates, owns, weights)
        two = (found.unexplained, found.explained, found.gap)
        assert two == pytest.approx(tuple(case["expected"]["two_fold"][weights]), abs=near)
        three = (found.endowments, found.coefficients, found.interaction, found.gap)
        assert three == pytest.approx(tuple(case["expected"]["three_fold"]), abs=near)


def test_cotton_gives_each_group_its_own_share_where_the_case_has_them_exchanged(known_answers: Path) -> None:
    """Cotton (1988): the groups' coefficients by their own shares, here 27 and 45 of 72.

    The case's value is statsmodels' with its default ``swap``, which counts the groups before it exchanges them.
    """
    from statsmodels.datasets import ccard

    data = ccard.load_pandas()
    owns = data.exog["OWNRENT"].to_numpy() == 1
    covariates, values = data.exog[["AGE", "INCOME", "INCOMESQ"]].to_numpy(), data.endog.to_numpy()
    design = np.column_stack([np.ones(len(values)), covariates])
    fits = {flag: np.linalg.lstsq(design[owns == flag], values[owns == flag], rcond=None)[0] for flag in (True, False)}

    def unexplained(share: float) -> float:
        common = share * fits[True] + (1 - share) * fits[False]
        means = {flag: design[owns == flag].mean(axis=0) for flag in fits}
        return float(means[True] @ (fits[True] - common) + means[False] @ (common - fits[False]))

    expected = known(known_answers, "oaxaca_blinder_ccard")["expected"]["two_fold"]["cotton"][0]
    assert oaxaca_blinder(values, covariates, owns, "cotton").unexplained == pytest.approx(
        unexplained(27 / 72), abs=1e-6
    )
    assert unexplained(45 / 72) == pytest.approx(expected, abs=1e-6)


def test_a_gap_downwards_keeps_its_sign(known_answers: Path) -> None:
    """statsmodels swaps the groups of a negative gap unless told not to."""
    rng = np.random.default_rng(0)
    covariates, after = rng.standard_normal((200, 1)), np.arange(200) >= 100
    found = oaxaca_blinder(covariates[:, 0] - 2.0 * after, covariates, after)
    assert found.unexplained == pytest.approx(-2.0)
    assert found.gap == pytest.approx(found.explained + found.unexplained)


def test_adtributor_paper_example(known_answers: Path) -> None:
    case = known(known_answers, "adtributor_paper_example")
    given_ = case["inputs"]
    dimensions = {
        name: {value: (float(pair[0]), float(pair[1])) for value, pair in values.items()}
        for name, values in given_["forecast_actual"].items()
    }
    found = adtributor(dimensions, given_["T_EP"], given_["T_EEP"])
    expected, near = case["expected"], case["tolerance"]["abs"]
    assert [item.dimension for item in found] == expected["ranking"]
    for item in found:
        assert item.power == pytest.approx(expected["explanatory_power"][item.dimension], abs=near)
        assert item.surprise == pytest.approx(expected["surprise_nats"][item.dimension], abs=near)
        assert list(item.elements) == expected["elements"][item.dimension]
        assert item.explained == pytest.approx(expected["ep"][item.dimension], abs=near)


def test_a_dimension_that_explains_too_little_comes_last_without_elements() -> None:
    flat = dict.fromkeys("abcdefghijkl", (10.0, 9.0))  # each explains a twelfth
    found = adtributor({"spread": flat, "one": {"x": (100.0, 88.0), "y": (20.0, 20.0)}})
    assert [(item.dimension, item.elements) for item in found] == [("one", ("x",)), ("spread", ())]


@given(st.lists(st.tuples(*[st.integers(0, 50), st.floats(0, 1)] * 2), min_size=1, max_size=6))
@settings(max_examples=80, deadline=None)
def test_mix_and_within_add_up_to_the_change(cells: list[tuple[int, float, int, float]]) -> None:
    columns = np.array(cells, dtype=np.float64).T
    if not columns[0].sum() or not columns[2].sum():
        return
    found = kitagawa([str(index) for index in range(len(cells))], (columns[0], columns[1]), (columns[2], columns[3]))
    assert found.mix + found.within == pytest.approx(found.total, abs=1e-12)
    assert found.before == pytest.approx(np.average(columns[1], weights=columns[0]), abs=1e-12)
    assert found.after == pytest.approx(np.average(columns[3], weights=columns[2]), abs=1e-12)


def test_an_easier_mix_alone_is_all_mix(tmp_path: Path) -> None:
    """The cycle has only easy requests of the reference: its outcome is up, and nothing inside the bands is."""
    base = [rows(cycle, 4000) for cycle in range(8)]
    later = rows(8, 4000)
    easy = later.filter(later["predicted_failure"].to_numpy() < 0.4)
    found = mix_within(view(tmp_path, [*base, easy]), "outcome_mean", "predicted_failure")
    assert found is not None
    assert found.segments == ("high", "low", "mid")
    assert found.total > 0.2
    assert found.mix == pytest.approx(found.total, abs=0.05)
    assert abs(found.within) < 0.05


def test_the_split_of_the_lake_is_the_split_of_its_rows(tmp_path: Path) -> None:
    base, later = [rows(cycle, 300) for cycle in range(8)], rows(8, 300, edited=True)
    found = mix_within(view(tmp_path, [*base, later]), "invalid_call_rate", ["organisation", "ambiguity"])
    assert found is not None
    turns = sum(sum(table["agent_turns"].to_pylist()) for table in base)
    calls = sum(sum(table["invalid_malformed"].to_pylist()) for table in base)
    assert found.before == pytest.approx(calls / turns)
    after = sum(later["invalid_malformed"].to_pylist()) / sum(later["agent_turns"].to_pylist())
    assert found.after == pytest.approx(after)
    assert "north | clear" in found.segments
    assert len(found.segments) == 6


def test_what_does_not_add_up_is_refused(tmp_path: Path) -> None:
    looked = view(tmp_path, [rows(cycle, 50) for cycle in range(9)])
    for statistic in ("latency_p50", "edit_persistence_90m", "nonsense"):
        with pytest.raises(ValueError, match="does not add up"):
            mix_within(looked, statistic, "organisation")
    with pytest.raises(ValueError, match="no slice dimension user_id"):
        mix_within(looked, "edit_rate", "user_id")
    assert mix_within(looked, "logged_reward_mean", "organisation") is None
