"""Distances of policies and what a score tells, against scipy's and scikit-learn's published values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palomar.detectors.policy_distance import policy_distance, separation


def known(folder: Path, name: str) -> dict[str, Any]:
    cases: list[dict[str, Any]] = json.loads((folder / "reward_hacking.json").read_text(encoding="utf-8"))["cases"]
    return next(case for case in cases if case["id"] == name)


def test_policy_divergence_detectors(known_answers: Path) -> None:
    case = known(known_answers, "policy_divergence_detectors")
    found = policy_distance(case["inputs"]["trusted"], case["inputs"]["suspect"])
    expected, near = case["expected"], case["tolerance"]["abs"]
    assert found.js == pytest.approx(np.array(expected["js_distance_base2"]), abs=near)
    assert found.js**2 == pytest.approx(np.array(expected["js_divergence_base2"]), abs=near)
    assert found.js * np.sqrt(np.log(2)) == pytest.approx(np.array(expected["js_distance_nats"]), abs=near)
    assert found.hellinger == pytest.approx(np.array(expected["hellinger"]), abs=near)
    assert found.js.mean() == pytest.approx(expected["mean_js_distance_base2"], abs=near)
    assert found.hellinger.mean() == pytest.approx(expected["mean_hellinger"], abs=near)
    assert found.hellinger_range == pytest.approx(expected["range_hellinger"], abs=near)


def test_auroc_max_f1(known_answers: Path) -> None:
    case = known(known_answers, "auroc_max_f1")
    found = separation([bool(label) for label in case["inputs"]["labels"]], case["inputs"]["scores"])
    assert found.auroc == pytest.approx(case["expected"]["auroc"], abs=case["tolerance"]["abs"])
    assert found.max_f1 == pytest.approx(case["expected"]["max_f1"], abs=case["tolerance"]["abs"])


def test_labels_that_are_all_alike_are_refused() -> None:
    with pytest.raises(ValueError, match="alike"):
        separation([True, True], [0.1, 0.2])
