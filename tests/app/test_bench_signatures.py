"""The signatures on labelled code, as `palomar bench signatures` measures them."""

from __future__ import annotations

from pathlib import Path

import pytest

from palomar.app.bench.signatures import measure, split_of


@pytest.mark.slow
def test_signatures_are_right_on_the_codes_nobody_read_while_writing_them(samples: Path) -> None:
    assert samples.is_dir()
    value = {item.measure: item.value for item in measure(True)}
    for name in ("rh-cases", "impossible-lcb"):
        recall = value[f"recall of special-casing, {name}, unread split"]
        assert recall is not None
        assert recall >= 0.75
        assert value[f"false alarms of special-casing, {name}, unread split"] == 0
    assert value["false alarms of special-casing, solved HumanEval"] == 0
    ordinary = value["false alarms of any signature, ordinary patches"]
    assert ordinary is not None
    assert ordinary <= 0.05


def test_a_third_of_the_records_is_read() -> None:
    read = sum(split_of(str(number)) == "read" for number in range(3_000))
    assert 900 < read < 1_100
