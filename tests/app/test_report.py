"""`palomar report`: exit codes, files, and that checks read what it made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from palomar.app.cli import app
from palomar.data.lake import Lake
from palomar.detectors.checks._examples import rows, view
from palomar.detectors.checks.distribution import distribution
from palomar.detectors.detector import View


def run(home: Path, *arguments: str, code: int) -> str:
    done = CliRunner().invoke(app, ["report", "--home", str(home), *arguments])
    assert done.exit_code == code, done.output
    return done.stdout


def test_where_there_is_nothing_to_compare_it_exits_with_3(tmp_path: Path) -> None:
    assert "no interactions of any cycle there" in run(tmp_path, code=3)
    view(tmp_path / "lake", [rows(cycle, 20) for cycle in range(3)])
    assert "cycle 2 is itself part of the reference" in run(tmp_path, code=3)
    assert json.loads(run(tmp_path, "--cycle", "9", "--json", code=3))["why"] == "no interactions of cycle 9 there"


@pytest.mark.slow
def test_the_page_is_kept_with_the_home_and_checks_read_what_it_says(tmp_path: Path) -> None:
    slow: dict[str, Any] = {"latency_s": 3.0}
    view(tmp_path / "lake", [rows(cycle, 80, **(slow if cycle == 8 else {})) for cycle in range(9)])
    copy = tmp_path / "copy.html"
    told = json.loads(run(tmp_path, "--html", str(copy), "--json", code=0))
    assert told["cycle"] == 8
    assert told["evidently"]["columns"][0]["name"] == "latency_s"
    page = tmp_path / "reports" / "evidently" / "8.html"
    assert page.read_bytes() == copy.read_bytes()
    assert told["texts"]["unassessed"][0]["why"].startswith("0 replies")
    (finding,) = distribution(View.of(Lake(tmp_path / "lake"), 8)).findings
    assert "latency_s" in finding.sentence
    text = run(tmp_path, "--no-texts", code=0)
    assert "no stated error rate" in text
    assert "texts:" not in text
