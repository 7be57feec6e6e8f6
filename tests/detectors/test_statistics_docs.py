"""docs/statistics.md says of every statistic what it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from palomar.detectors.cube import DIMENSIONS
from palomar.detectors.statistics import STATISTICS, Statistic

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "statistics.md").read_text()
ROWS = {
    cells[0].strip("` "): [cell.strip() for cell in cells[1:]]
    for cells in (line.strip("|").split("|") for line in PAGE.splitlines() if re.match(r"\| `\w+` \|", line))
    if len(cells) == 5
}


@pytest.mark.parametrize("statistic", STATISTICS.values(), ids=lambda statistic: str(statistic.name))
def test_the_table_has_unit_direction_and_meaning_of_every_statistic(statistic: Statistic) -> None:
    assert statistic.name in ROWS
    unit, _, good, meaning = ROWS[statistic.name]
    assert (unit, good, meaning) == (statistic.unit, statistic.good, statistic.description)


def test_the_table_has_no_statistic_that_is_gone() -> None:
    assert set(ROWS) == set(STATISTICS)


def test_every_dimension_is_explained() -> None:
    for dimension in DIMENSIONS:
        assert f"`{dimension}`" in PAGE
