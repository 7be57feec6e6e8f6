"""The command line: what it prints, where, and with which exit code. Commands run as a pipeline would run them."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
import typer.main

from palomar.app.cli import app
from palomar.data.facts import facts
from palomar.data.lake import Lake
from palomar.data.schema import Interaction, Step
from palomar.data.store import Store
from palomar.reward.scoring import score
from palomar.reward.spec import bundled

ROOT = Path(__file__).resolve().parents[2]


def palomar(*arguments: str | Path, home: Path, code: int) -> tuple[str, str]:
    """Runs the command in a process of its own; its standard output and standard error."""
    environment = {**os.environ, "PALOMAR_HOME": str(home), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-c", "from palomar.app.cli import main; main()", *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout, done.stderr


def chat(folder: Path, text: str = "Rename f to g") -> Path:
    log = folder / "chats.jsonl"
    messages = [{"role": "user", "content": text}, {"role": "assistant", "content": "Which file do you mean?"}]
    log.write_text(json.dumps({"messages": messages}) + "\n", encoding="utf-8")
    return log


def test_every_command_is_documented() -> None:
    documented = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    group = typer.main.get_command(app)
    names = list(group.commands)  # type: ignore[attr-defined]
    assert len(names) > 8
    assert [name for name in names if f"`palomar {name}" not in documented] == []


def test_ingest_says_what_it_read_and_stats_and_show_find_it_again(tmp_path: Path) -> None:
    home = tmp_path / "home"
    report = json.loads(palomar("ingest", chat(tmp_path), "--no-classify", "--json", home=home, code=0)[0])
    assert (report["new"], report["quarantined"]) == (1, {})
    rate = next(point for point in report["statistics"] if point["statistic"] == "clarification_rate")
    assert (rate["value"], rate["n"]) == (1.0, 1)
    again = json.loads(palomar("ingest", chat(tmp_path), "--no-classify", "--json", home=home, code=0)[0])
    assert (again["new"], again["known"]) == (0, 1)

    points = json.loads(palomar("stats", "--stat", "clarification_rate", "--json", home=home, code=0)[0])
    assert [(point["slice"], point["value"]) for point in points] == [("all", 1.0)]
    assert "clarification_rate" in palomar("stats", home=home, code=0)[0]

    listed = json.loads(palomar("stats", "--slices", "--json", home=home, code=0)[0])
    assert {point["slice"] for point in listed} >= {"all"}


def test_aggregated_series_are_read_and_a_row_that_does_not_add_up_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "series.csv"
    table.write_text("cycle,metric,count,total\n0,edits,32,64\n1,edits,16,64\n2,edits,0,0\n", encoding="utf-8")
    rows = json.loads(palomar("stats", "--series", table, "--json", home=tmp_path, code=0)[0])
    assert [(row["cycle"], row["count"], row["total"]) for row in rows] == [(0, 32, 64), (1, 16, 64), (2, 0, 0)]
    out, _ = palomar("stats", "--series", table, home=tmp_path, code=0)
    assert out.split() == ["edits,", "by", "cycle", "slice", "0", "1", "2", "all", "0.5", "0.25", "-"]
    table.write_text("cycle,metric,count,total\n0,edits,65,64\n", encoding="utf-8")
    _, said = palomar("stats", "--series", table, home=tmp_path, code=2)
    assert "series.csv:2" in said


def test_a_damaged_line_is_reported_with_its_place_and_the_rest_is_read(tmp_path: Path) -> None:
    log = chat(tmp_path)
    log.write_bytes(log.read_bytes() + b'{"messages": [\n')
    out, _ = palomar("ingest", log, "--no-classify", home=tmp_path / "home", code=1)
    assert "chats.jsonl:2" in out
    assert "damaged 1" in out
    assert "1 new" in out


def test_ingest_leaves_the_cycles_of_a_run_as_the_run_scored_them(tmp_path: Path) -> None:
    home, now = tmp_path / "home", datetime(2026, 1, 5, tzinfo=UTC)
    lake = Lake(home / "lake")
    steps = (Step(author="person", role="user", text="hi"), Step(author="agent", role="assistant", text="done"))
    lake.append_interactions([Interaction(interaction_id="a", source="s", origin="o", cycle=0, steps=steps)], 0)
    lake.write_observations(score(facts(lake, 0, now), bundled("sound"), now), 0)
    with Store.open(None, home) as store:
        store.runs.add("r", name="r", seed=0, config={})
        store.cycles.start("r", 0)
    columns = ["interaction_id", "reward_version", "reward_status", "as_of"]
    scored = lake.scan("observations", columns, cycles=[0]).to_pylist()
    assert scored[0]["reward_version"] is not None
    palomar("ingest", chat(tmp_path), "--no-classify", "--json", home=home, code=0)
    assert lake.scan("observations", columns, cycles=[0]).to_pylist() == scored
    assert lake.cycles("observations") == (0, None)


def test_hostile_text_is_shown_as_text_without_control_characters(tmp_path: Path) -> None:
    home = tmp_path / "home"
    log = chat(tmp_path, "[red]\x1b[31m\u202eevil[/red] ![x](http://127.0.0.1/beacon)")
    palomar("ingest", log, "--no-classify", "--json", home=home, code=0)
    out, _ = palomar("show", _only_id(home), home=home, code=0)
    assert "[red]\ufffd[31m\ufffdevil[/red] ![x](http://127.0.0.1/beacon)" in out
    assert "\x1b" not in out


def test_nothing_to_answer_from_is_3_and_an_error_is_2(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert "nothing to show" in palomar("stats", home=home, code=3)[0]
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    palomar("ingest", empty, "--no-classify", home=home, code=3)
    said, _ = palomar("ingest", tmp_path / "nowhere", "--no-classify", home=home, code=3)
    assert "nowhere: [Errno 2] No such file or directory" in said
    _, said = palomar("ingest", empty, "--format", "nothing", home=home, code=2)
    assert "no format 'nothing'" in said
    out, said = palomar("show", "unknown-id", "--json", home=home, code=2)
    assert json.loads(out)["error"]["kind"] == "LakeError"
    assert "unknown-id" in said
    palomar("stats", "--no-such-option", home=home, code=2)
    _, said = palomar("run", "--config", tmp_path / "none.yaml", home=home, code=2)
    assert "none.yaml" in said


def test_a_bug_exits_with_2_and_says_that_it_is_one(tmp_path: Path) -> None:
    code = (
        "import palomar.app.cli.stats as stats\n"
        "def broken(*arguments, **options): raise RuntimeError('boom')\n"
        "stats.Lake = broken\n"
        "from palomar.app.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code, "stats"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "boom (this is a bug in Palomar)" in done.stderr
    assert "Traceback" in done.stderr


def test_the_commands_that_only_read_load_neither_torch_nor_streamlit(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "import palomar.app.cli\n"
        "print([name for name in ('torch', 'transformers', 'streamlit') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


SMALL = """
name: small
cycles: 2
reward: reward.yaml
source: {kind: simulated, requests: 32}
evaluation: {tasks: 32}
gate: {min_tasks: 5}
"""


@pytest.mark.slow
@pytest.mark.xdist_group("cycle")
def test_a_run_of_ones_own_is_begun_resumed_and_not_begun_twice(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "mine"
    palomar("init", folder, home=home, code=0)
    _, said = palomar("init", folder, home=home, code=2)
    assert "is there already" in said
    config = folder / "palomar.yaml"
    config.write_text(SMALL, encoding="utf-8")
    first = json.loads(palomar("run", "--config", config, "--cycles", "1", "--json", home=home, code=0)[0])
    assert first["cycles"] == 1
    _, said = palomar("run", "--config", config, home=home, code=2)
    assert "--resume goes on with it" in said
    out, said = palomar("run", "--config", config, "--resume", home=home, code=0)
    assert "cycle  1 of 2" in said
    assert "summary" in out
    with (home / ".running").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _, said = palomar("run", "--config", config, "--resume", home=home, code=2)
        assert "another process is running the loop" in said
    config.write_text(SMALL.replace("small", "other"), encoding="utf-8")
    _, said = palomar("run", "--config", config, home=home, code=2)
    assert "holds the run 'small'" in said


@pytest.mark.slow
@pytest.mark.xdist_group("cycle")
def test_the_demo_ends_with_a_summary_and_0(tmp_path: Path) -> None:
    out, said = palomar("demo", "--headless", "--cycles", "2", home=tmp_path, code=0)
    for hack in ("invalid-call dodge", "edit deferral", "function splitting", "outcome down"):
        assert hack in out
    assert "look further: palomar stats" in out
    assert "guard off" in out
    assert "guard: the reward was not changed" in out  # two cycles are no baseline
    assert "s left" in said


def _only_id(home: Path) -> str:
    (found,) = Lake(home / "lake").scan("interactions", ["interaction_id"])["interaction_id"].to_pylist()
    return str(found)
