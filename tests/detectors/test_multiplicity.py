from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import false_discovery_control
from statsmodels.stats.multitest import multipletests

from palomar.detectors.multiplicity import ONLINE, e_bh, e_from_p, e_lond, online


def case(folder: Path, name: str) -> dict[str, Any]:
    cases = json.loads((folder / "multiplicity.json").read_text(encoding="utf-8"))["cases"]
    return next(case for case in cases if case["id"] == name)


NAMES = {"LORD++": "LORDpp", "LORD3-onlineFDR": "LORD3", "LORD-dep": "LORDdep", "alpha-spending": "alpha_spending"}
HELD = tuple(method for method in ONLINE if method != "LORD3")


@pytest.mark.parametrize("method", HELD)
def test_online_fdr_levels(known_answers: Path, method: Any) -> None:
    known = case(known_answers, "online_fdr_levels")
    expected = known["expected"][NAMES.get(method, method)]
    levels = online(known["inputs"]["p_values"], method, known["inputs"]["alpha"])
    assert levels.alpha == pytest.approx(np.array(expected["alphai"]), abs=known["tolerance"]["abs"])
    assert levels.rejected.tolist() == [bool(flag) for flag in expected["R"]]


def test_online_fdr_levels_knows_all_procedures_of_the_case(known_answers: Path) -> None:
    assert {NAMES.get(method, method) for method in HELD} == set(case(known_answers, "online_fdr_levels")["expected"])


def test_lord3_as_published_parts_from_the_package_where_that_credits_a_reward_nobody_earned(
    known_answers: Path,
) -> None:
    known = case(known_answers, "online_fdr_levels")
    package = np.array(known["expected"]["LORD3"]["alphai"])
    published = online(known["inputs"]["p_values"], "LORD3", 0.05).alpha
    assert published[:6] == pytest.approx(package[:6], abs=1e-9)
    # Test 7 is the first after the second rejection (test 6): wealth 0.005 + 2 * 0.045 less what tests 1 to 6 spent,
    # times gamma_1 = 0.07720838 ln 2.
    assert published[6] == pytest.approx(0.07720838 * np.log(2) * (0.095 - published[:6].sum()), abs=1e-12)
    assert package[6] - published[6] == pytest.approx(0.07720838 * np.log(2) * 0.045, abs=1e-9)


def test_benjamini_hochberg_1995_example(known_answers: Path) -> None:
    """What the module's docstring sends people to: the libraries."""
    known = case(known_answers, "benjamini_hochberg_1995_example")
    p, alpha = known["inputs"]["p_values"], known["inputs"]["alpha"]
    near = known["tolerance"]["abs"]
    for name, method in {"BH": "fdr_bh", "BY": "fdr_by", "holm": "holm", "bonferroni": "bonferroni"}.items():
        rejected, adjusted, *_ = multipletests(p, alpha, method)
        assert adjusted == pytest.approx(np.array(known["expected"][name]), abs=near)
        if name in known["expected"]["rejections"]:
            assert rejected.sum() == known["expected"]["rejections"][name]
    for name in ("BH", "BY"):
        adjusted = false_discovery_control(p, method=name.lower())
        assert adjusted == pytest.approx(np.array(known["expected"][name]), abs=near)


def test_e_bh(known_answers: Path) -> None:
    known = case(known_answers, "e_bh")
    inverse = 1 / np.array(case(known_answers, "benjamini_hochberg_1995_example")["inputs"]["p_values"])
    values = [inverse if isinstance(one["e"], str) else np.array(one["e"], float) for one in known["inputs"]["cases"]]
    found = [int(e_bh(e, one["alpha"]).sum()) for e, one in zip(values, known["inputs"]["cases"], strict=True)]
    assert found == known["expected"]["rejections"]


def test_p_to_e_calibrators(known_answers: Path) -> None:
    known = case(known_answers, "p_to_e_calibrators")
    p, near = np.array(known["inputs"]["p"]), known["tolerance"]["abs"]
    assert e_from_p(p, 0.5) == pytest.approx(np.array(known["expected"]["kappa_half"]), abs=near)
    assert e_from_p(p) == pytest.approx(np.array(known["expected"]["mixture"]), abs=near)


def test_e_lond(known_answers: Path) -> None:
    known = case(known_answers, "e_lond")
    levels = e_lond(known["inputs"]["e"], known["inputs"]["alpha"])
    assert levels.alpha == pytest.approx(np.array(known["expected"]["alpha_t"]), rel=known["tolerance"]["rel"])
    assert levels.rejected.tolist() == [bool(flag) for flag in known["expected"]["reject"]]


@given(st.lists(st.floats(1e-8, 1.0), min_size=1, max_size=30), st.floats(0.01, 0.5))
def test_e_bh_on_inverse_p_values_is_bh(p: list[float], alpha: float) -> None:
    near_tie = np.abs(np.sort(p) * len(p) / np.arange(1, len(p) + 1) - alpha).min() < 1e-9
    if not near_tie:
        assert e_bh(1 / np.array(p), alpha).tolist() == multipletests(p, alpha, "fdr_bh")[0].tolist()


def test_no_e_value_comes_from_something_that_is_no_p_value() -> None:
    with pytest.raises(ValueError, match="p-values"):
        e_from_p(np.array([0.0]))
    assert e_from_p(np.array([1.0])) == pytest.approx(np.array([0.5]))


def test_an_unknown_procedure_is_named() -> None:
    with pytest.raises(ValueError, match="BONF"):
        online([0.1], "BONF", 0.05)  # type: ignore[arg-type]
