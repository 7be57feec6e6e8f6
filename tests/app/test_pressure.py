"""`palomar pressure` on a home that holds scored logs."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from palomar.app.cli import app
from palomar.data.lake import Lake
from palomar.data.observations import FACTS
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


def test_what_is_not_there_is_said_with_exit_code_3(home: Path, tmp_path: Path) -> None:
    assert "there are cycles 4" in run("--home", str(home), "--cycle", "7", code=3)
    assert "predicted_failure=high" in run("--home", str(home), "--slice", "hard", code=3)
    assert "nothing was ingested" in run("--home", str(tmp_path / "empty"), code=3)
    assert json.loads(run("--home", str(home), "--cycle", "7", "--json", code=3)) == {"cycles": [7], "rows": []}
