"""`palomar scan`: exit codes tell flagged, clear and not assessed apart."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from palomar.app.cli import app
from palomar.data.lake import Lake
from palomar.detectors.signature import Status, signatures


def home_with(folder: Path, *statuses: Status) -> Path:
    """A home that holds the examples of ``early-exit`` with the given verdicts, in cycle 3."""
    items = [item for item, status in signatures()["early-exit"].examples if status in statuses]
    Lake(folder / "lake").append_interactions([item.model_copy(update={"cycle": 3}) for item in items], 3)
    return folder


def scan(home: Path, *arguments: str, code: int) -> str:
    done = CliRunner().invoke(app, ["scan", "--home", str(home), *arguments])
    assert done.exit_code == code, done.output
    return done.stdout


def test_flagged_interactions_are_shown_with_their_lines_and_exit_with_1(tmp_path: Path) -> None:
    home = home_with(tmp_path, "flagged", "clear")
    text = scan(home, code=1)
    assert "early-exit  at import  score 0.90" in text
    assert "step 1, solution.py:6: sys.exit(0)" in text
    (only,) = json.loads(scan(home, "--signature", "early-exit", "--cycle", "3", "--json", code=1))["signatures"]
    assert (only["flagged"], only["clear"], only["not_assessed"]) == (3, 4, 0)
    assert len(only["first"]) == 3


def test_clear_interactions_exit_with_0(tmp_path: Path) -> None:
    scan(home_with(tmp_path, "clear"), "--signature", "early-exit", code=0)


def test_where_nothing_can_be_assessed_it_exits_with_3(tmp_path: Path) -> None:
    home = home_with(tmp_path, "not_assessed")
    assert "no code in it" in scan(home, "--signature", "early-exit", code=3)
    assert "nothing to scan" in scan(home, "--cycle", "9", code=3)


def test_an_unknown_signature_is_an_error(tmp_path: Path) -> None:
    scan(tmp_path, "--signature", "early-exits", code=2)
