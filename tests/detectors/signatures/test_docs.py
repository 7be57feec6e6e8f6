"""docs/signatures.md says of every signature what it flags and what it is blind to."""

from __future__ import annotations

import re
from pathlib import Path

from palomar.detectors.signature import signatures

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "signatures.md").read_text(encoding="utf-8")
ROWS = {
    cells[0].strip("` "): [cell.strip() for cell in cells[1:]]
    for cells in (line.strip("|").split("|") for line in PAGE.splitlines() if re.match(r"\| `[\w-]+` \|", line))
    if len(cells) == 4
}


def test_the_table_lists_exactly_the_registered_signatures() -> None:
    assert list(ROWS) == list(signatures())


def test_no_cell_of_the_table_is_empty() -> None:
    assert all(all(cells) for cells in ROWS.values())
