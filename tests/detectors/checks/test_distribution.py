"""Evidently as a second opinion: what is kept of its report, and the page itself."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palomar.detectors.checks._examples import rows, view
from palomar.detectors.checks.distribution import distribution
from palomar.detectors.detector import View
from palomar.detectors.evidently_report import Column, EvidentlyReport, keep, kept, report

PROBE = """
import sys
from pathlib import Path
from typing import Any
from palomar.detectors.detector import detectors
from palomar.detectors.checks._examples import rows, view
seen = view(Path(sys.argv[1]), [rows(cycle, 60) for cycle in range(9)])
detectors()["distribution"].judge(seen)
detectors()["texts"].judge(seen)
print(" ".join(name for name in ("evidently", "torch", "transformers") if name in sys.modules))
"""


def small(folder: Path, **last: Any) -> View:
    return view(folder, [rows(cycle, 80, **(last if cycle == 8 else {})) for cycle in range(9)])


def test_a_check_loads_neither_evidently_nor_an_encoder(tmp_path: Path) -> None:
    import palomar

    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(Path(palomar.__file__).parents[1])},
    )
    assert done.stdout.strip() == ""


def test_without_a_report_it_says_what_to_run(tmp_path: Path) -> None:
    (only,) = distribution(small(tmp_path)).unassessed
    assert only.why == "no Evidently report on these rows; run: palomar report --cycle 8"


def test_what_is_kept_is_told_as_a_note_without_an_error_rate(tmp_path: Path) -> None:
    seen = small(tmp_path)
    columns = (
        Column("latency_s", "psi", 0.31, 0.1, True, 80),
        Column("tokens_out", "psi", 0.099, 0.1, False, 80),
        Column("complexity_max", None, None, 0.1, None, 0, "0 values in the cycle"),
    )
    made = EvidentlyReport(tmp_path / "8.html", tmp_path / "8.json", columns, 80, 640)
    keep(seen, made)
    assert kept(seen) == made
    found = distribution(seen)
    (finding,) = found.findings
    assert finding.severity == "notes"
    assert "1 of 2 columns drifted" in finding.sentence
    assert "latency_s 0.31" in finding.sentence
    assert finding.error_control.startswith("none")
    assert [item.what for item in found.unassessed] == ["complexity_max"]


def test_a_report_on_other_rows_is_not_read(tmp_path: Path) -> None:
    seen = small(tmp_path)
    keep(seen, EvidentlyReport(tmp_path / "8.html", tmp_path / "8.json", (), 80, 640))
    column = Column("latency_s", "psi", 0.31, 0.1, True, 80)
    keep(seen, EvidentlyReport(tmp_path / "8.html", tmp_path / "8.json", (column,), 80, 640))
    seen.lake.write_observations(rows(8, 81), 8)
    assert kept(seen) is None


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[View, EvidentlyReport]:
    folder = tmp_path_factory.mktemp("evidently")
    seen = small(folder / "lake", latency_s=np.exp(np.random.default_rng(0).normal(4, 0.5, 80)), asked=False)
    return seen, report(seen, folder / "reports")


@pytest.mark.slow
def test_evidently_compares_every_column_by_the_chosen_method(made: tuple[View, EvidentlyReport]) -> None:
    seen, result = made
    by_name = {column.name: column for column in result.columns}
    assert {column.method for column in result.columns if column.value is not None} == {"psi"}
    assert next(column.name for column in result.columns if column.drifted) == "latency_s"
    assert by_name["asked"].drifted
    assert by_name["outcome"].drifted is False
    assert by_name["complexity_max"].value is None
    assert by_name["complexity_max"].why == "0 values in the cycle, 0 in the reference; 50 are needed"
    assert (result.n, result.reference_n) == (80, 640)
    assert kept(seen) == result


@pytest.mark.slow
def test_its_psi_is_the_formula_for_a_yes_or_no_column(made: tuple[View, EvidentlyReport]) -> None:
    """None asks of 80; Evidently puts 0.0001 for an empty category (its ``feel_zeroes``)."""
    seen, result = made
    asked = seen.query("SELECT avg(asked::INTEGER) AS share FROM observations", range(8))["share"][0].as_py()
    now, before = np.array([0.0001, 1.0]), np.array([asked, 1 - asked])
    expected = float(((before - now) * np.log(before / now)).sum())
    (value,) = (column.value for column in result.columns if column.name == "asked")
    assert value == pytest.approx(expected, rel=0.02)


@pytest.mark.slow
def test_the_summary_says_the_same_as_json(made: tuple[View, EvidentlyReport]) -> None:
    _, result = made
    told = json.loads(result.summary.read_text())
    assert told["cycle"] == 8
    assert told["reference"] == list(range(8))
    assert [column["name"] for column in told["columns"]] == [column.name for column in result.columns]


@pytest.mark.slow
def test_the_page_names_no_other_host_to_load_from(made: tuple[View, EvidentlyReport]) -> None:
    text = made[1].html.read_text()
    assert "Content-Security-Policy" in text[:400]
    assert not re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=.?https?:", text)
    assert not re.findall(r"url\(['\"]?https?:", text)


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium on this machine")
def test_the_page_draws_its_columns_and_asks_for_nothing(made: tuple[View, EvidentlyReport]) -> None:
    from palomar.app.console import driving

    asked: list[str] = []
    with driving.browser() as opened:
        page = opened.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.goto(made[1].html.as_uri())
        page.get_by_text("latency_s").first.wait_for(timeout=60_000)
        page.wait_for_timeout(500)
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
