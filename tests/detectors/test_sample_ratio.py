from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare

from palomar.detectors.sample_ratio import PRIOR, e_value


def case(folder: Path, name: str) -> dict[str, Any]:
    cases = json.loads((folder / "data_health.json").read_text(encoding="utf-8"))["cases"]
    return next(case for case in cases if case["id"] == name)


def test_srm_chi_square(known_answers: Path) -> None:
    """What the module's docstring sends people to for a single look."""
    known = case(known_answers, "srm_chi_square")
    found = [
        chisquare(one["users"], np.sum(one["users"]) * np.array(one["weights"])).pvalue
        for one in known["inputs"]["cases"]
    ]
    assert found == pytest.approx(known["expected"]["p_values"], rel=known["tolerance"]["rel"])


def test_srm_sequential_evalue(known_answers: Path) -> None:
    known = case(known_answers, "srm_sequential_evalue")
    assert known["inputs"]["k"] == PRIOR
    for one, expected in zip(known["inputs"]["cases"], known["expected"]["e_values"], strict=True):
        found = e_value(np.array(one["increments"]), np.array(one["theta0"]))
        assert found == pytest.approx(np.array(expected), rel=known["tolerance"]["rel"])
