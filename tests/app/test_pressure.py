"""`palomar pressure` on a home that holds scored logs."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from palomar.app.cli import app
from palomar.data.lake import Lake
from palomar.data.observations import FACTS
from palomar.detectors.checks import _examples
from palomar.reward.scoring import score
from palomar.reward.spec import bundled


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Cycle 4 of a log: 40 edits, every other one reverted, and 20 questions."""
    rows = []
    for index in range(60):
        row = {field.name: 0 for field in FACTS if field.type == pa.int32() and not field.nullable}
        edit = index % 3 > 0
        row |= {
            "interaction_id": f"i{index}", "user_id": f"u{index}", "cycle": 4, "source": "test",
            "traffic": "production", "predicted_failure": 0.5, "ambiguity": 0.2, "agent_turns": 1,
            "edited": edit, "edits": int(edit),
            "asked": not edit, "latency_s": 5.0, "undone": False, "answered": False, "watched_s": 1e6,
            "edit_lost_s": 60.0 if index % 3 == 1 else None, "tests_run": 1, "tests_passed": 1,
            "functions_after": 1, "function_lines_after": 8,
        }  # fmt: skip
        rows.append(row)
    lake = Lake(tmp_path / "lake")
    lake.write_observations(score(pa.Table.from_pylist(rows, schema=FACTS), bundled("naive")), 4)
    return tmp_path


def run(*arguments: str, code: int) -> str:
    done = CliRunner().invoke(app, ["pressure", *arguments])
    assert done.exit_code == code, done.output
    return done.stdout if "--json" in arguments or code == 0 else " ".join(done.stdout.split())


def test_the_newest_cycle_is_shown_with_what_it_is_charged_to(home: Path) -> None:
    out = run("--home", str(home), "--reward", "naive", "--slice", "all", code=0)
    assert "all, cycle 4, 60 users" in out
    line = next(line for line in out.splitlines() if line.startswith("edit_rate"))
    # Edits pay (1 - 1.5) / 2 on average, questions nothing.
    assert line.split()[1:3] == ["0.6667", "60"]
    assert line.split()[3].startswith("-0.")
    assert "term:edit_persistence" in out
    assert "no data, or no variation: " in out


def test_json_holds_every_row(home: Path) -> None:
    found = json.loads(run("--home", str(home), "--reward", "naive", "--cycle", "4", "--json", code=0))
    assert found["cycles"] == [4]
    kinds = {row["kind"] for row in found["rows"]}
    assert kinds >= {"reward", "outcome", "term:edit_persistence", "term:function_size"}
    assert {row["status"] for row in found["rows"]} <= {"ok", "no data", "no variation", "too few"}


@pytest.mark.parametrize("name", ["pressure.csv", "pressure.parquet"])
def test_what_is_shown_can_be_exported(home: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    run("--home", str(home), "--reward", "naive", "--slice", "all", "--export", str(path), code=0)
    table = pacsv.read_csv(path) if path.suffix == ".csv" else pq.read_table(path)
    assert set(table["slice"].to_pylist()) == {"all"}
    assert {"statistic", "kind", "value", "low", "high", "verdict", "needed_n"} <= set(table.column_names)
    shown = json.loads(run("--home", str(home), "--reward", "naive", "--slice", "all", "--json", code=0))["rows"]
    assert table["value"].to_pylist() == pytest.approx([row["value"] for row in shown], nan_ok=True)


def test_an_export_of_another_kind_is_wrong_usage(home: Path, tmp_path: Path) -> None:
    out = CliRunner().invoke(app, ["pressure", "--home", str(home), "--export", str(tmp_path / "pressure.xlsx")])
    assert out.exit_code == 2
    assert not (tmp_path / "pressure.xlsx").exists()


def test_marks_say_what_is_there_and_what_more_rows_would_tell(home: Path) -> None:
    rows = json.loads(run("--home", str(home), "--reward", "naive", "--slice", "all", "--json", code=0))["rows"]
    out = run("--home", str(home), "--reward", "naive", "--slice", "all", code=0)
    assert "= shown to be none, a correlation within 0.05" in out
    reward = {row["statistic"]: row for row in rows if row["kind"] == "reward"}
    for name, row in reward.items():
        line = next((line for line in out.splitlines() if line.split() and line.split()[0] == name), "")
        if row["verdict"] in ("along_up", "along_down"):
            assert "*" in line
        if row["needed_n"] is not None:
            assert f"{row['needed_n']:,}" in line.split()
    assert any(row["needed_n"] for row in reward.values())
    assert any(row["verdict"].startswith("along") for row in rows)


@pytest.fixture
def loop(tmp_path: Path) -> Path:
    """A home with six cycles, of which the first two were only watched."""
    tables = [_examples.rows(cycle, n=300, seed=cycle) for cycle in range(6)]
    _examples.view(tmp_path / "lake", tables, trained=True, reference=(0, 1))
    return tmp_path


def test_a_forecast_is_shown_with_how_good_those_before_were(loop: Path) -> None:
    out = run("--home", str(loop), "--forecast", "--slice", "all", code=0)
    assert "all, made in cycle 5 for cycle 6" in out
    assert "Forecasts so far: " in out
    found = json.loads(run("--home", str(loop), "--forecast", "--cycle", "4", "--json", code=0))
    assert {row["made_in"] for row in found["rows"]} == {4}
    assert all(row["came"] is None for row in found["rows"])  # what came later is not looked at
    assert found["past"]["n"] > 50
    early = run("--home", str(loop), "--forecast", "--cycle", "2", "--slice", "all", code=0)
    assert "no step size: " in early


def test_a_forecast_is_of_one_cycle_of_a_loop(loop: Path, tmp_path: Path) -> None:
    both = CliRunner().invoke(app, ["pressure", "--home", str(loop), "--forecast", "--cycle", "1", "--cycle", "2"])
    assert both.exit_code == 2
    assert "nothing was ingested" in run("--home", str(tmp_path / "empty"), "--forecast", code=3)
    assert "there are cycles 0, 1, 2, 3, 4, 5" in run("--home", str(loop), "--forecast", "--cycle", "9", code=3)


def test_what_is_not_there_is_said_with_exit_code_3(home: Path, tmp_path: Path) -> None:
    assert "there are cycles 4" in run("--home", str(home), "--cycle", "7", code=3)
    assert "predicted_failure=high" in run("--home", str(home), "--slice", "hard", code=3)
    assert "nothing was ingested" in run("--home", str(tmp_path / "empty"), code=3)
    assert json.loads(run("--home", str(home), "--cycle", "7", "--json", code=3)) == {"cycles": [7], "rows": []}
