"""`palomar seed`: the same seed twice is the same home, and everything that a console shows is in it."""

from __future__ import annotations

import json
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from palomar.app.cli import app
from palomar.app.seeding import BASELINE, RUN, SeedConfig, make_source, seed_home, story
from palomar.app.service import Observatory
from palomar.data.errors import ConfigError, StoreError
from palomar.data.lake import TABLES, Lake

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("seed")]

SMALL = SeedConfig(interactions=6_400, cycles=32, incidents=8)
BY_CLOCK = {"created_at", "status_at", "started_at", "finished_at", "recorded_at", "checked_at", "scheduled_at",
            "changed_at", "made_at", "opened_at", "pinned_at", "voted_at", "at", "hash", "moved_at", "expires_at",
            "requested_at", "approved_at", "set_at", "token", "inputs", "until", "first_seen_at", "evidence",
            "previous"}  # fmt: skip
"""Columns that hold the time of writing, something with it inside, or a random token."""


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short real run, in which the policy learns to play the reward."""
    home = tmp_path_factory.mktemp("source") / "home"
    make_source(home, 0, cycles=18)
    return home


@pytest.fixture(scope="session")
def small(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small seeded home, made by the command."""
    home = tmp_path_factory.mktemp("seeded") / "home"
    done = CliRunner().invoke(
        app,
        ["seed", "--from", str(source), "--interactions", "6400", "--cycles", "32", "--incidents", "8", "--json",
         "--home", str(home)],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["incidents"] == 8
    return home


def rows_of(home: Path) -> dict[str, list[tuple[object, ...]]]:
    """All rows of the store, without times of writing."""
    found = {}
    with sqlite3.connect(f"file:{home / 'palomar.db'}?mode=ro", uri=True) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})") if row[1] not in BY_CLOCK]
            found[table] = database.execute(
                f"SELECT {', '.join(columns)} FROM {table} ORDER BY {', '.join(columns)}"
            ).fetchall()
    return found


def test_the_same_seed_gives_the_same_home(source: Path, small: Path, tmp_path: Path) -> None:
    seed_home(tmp_path, SMALL, source=source)
    for table in TABLES:
        # Files are named by their bytes, but for those that are replaced.
        names = [
            [str(path.relative_to(home)) for path in Lake(home / "lake").files(table)] for home in (small, tmp_path)
        ]
        assert names[0] == names[1]
    told = rows_of(small)
    again = rows_of(tmp_path)
    assert told.keys() == again.keys()
    for name, rows in told.items():
        assert rows == again[name], name
    assert len(told["findings"]) > 100
    assert len(told["forecasts"]) > 100


def test_another_seed_gives_another(source: Path, small: Path, tmp_path: Path) -> None:
    seed_home(tmp_path, SeedConfig(6_400, 32, 8, seed=1), source=source)
    assert rows_of(tmp_path)["statistics"] != rows_of(small)["statistics"]


def test_everything_is_there_that_a_console_shows(small: Path) -> None:
    observatory = Observatory(small)
    store = observatory.store
    assert len(observatory.cycles(RUN)) == 32
    assert len(observatory.lake.scan("interactions", ["interaction_id"])["interaction_id"].unique()) == 6_400
    incidents = store.incidents.read(RUN)
    assert {each.state for each in incidents} == {"open", "acknowledged", "mitigated", "resolved"}
    assert {each.resolution for each in incidents} >= {"patched", "rolled_back", "accepted", "false_alarm"}
    assert any(each.reopened for each in incidents)
    assert any(each.until_cycle for each in incidents)
    assert store.incidents.votes()
    decisions = store.decisions.latest(RUN, count=40)
    assert {each.verdict for each in decisions} >= {"block", "promote"}
    assert all("outcome" in each.evidence for each in decisions if each.kind != "override")
    assert store.overrides.read(RUN)
    assert {each.action for each in store.rewards.changes(RUN)} == {"patch", "revert"}
    assert store.baselines.read(RUN)
    assert store.silences.read(RUN)
    assert store.quarantine.by_kind()
    assert any(each.came is not None for each in store.forecasts.read(RUN))
    assert (small / "experiments" / "candidate-canary" / "plan.json").exists()


def test_the_store_verifies_and_the_samples_add_up(small: Path) -> None:
    done = CliRunner().invoke(app, ["audit-log", "verify", "--home", str(small)])
    assert done.exit_code == 0, done.output
    store = Observatory(small).store
    for cycle in range(32):
        rows = [row for row in store.ledger.read(RUN, cycle) if row.stratum == "all"]
        collected = sum(row.count for row in rows if row.place == "collected")
        assert collected == sum(row.count for row in rows if row.place != "collected") > 0


def test_evidence_can_be_opened_and_is_of_its_cycle(small: Path) -> None:
    observatory = Observatory(small)
    found = observatory.store.findings.read(RUN, 15)
    ids = [each for item in found for some in vars(item.finding.evidence).values() for each in some]
    assert ids
    opened = observatory.lake.interactions(list(dict.fromkeys(ids))[:20])
    assert all(each.steps and each.conversation_id for each in opened)
    last = observatory.lake.interaction(found[0].finding.evidence.carrying[0])
    assert last.cycle == 15
    began = datetime(2026, 1, 5, tzinfo=UTC) + timedelta(hours=5 * 15)
    assert last.started_at is not None
    assert began <= last.started_at <= began + timedelta(hours=5, minutes=1)
    times = [step.at for step in last.steps if step.at is not None]
    assert all(abs((at - last.started_at).total_seconds()) < 5 * 3600 for at in times)


def test_a_home_with_a_run_is_left_alone(source: Path) -> None:
    with pytest.raises(StoreError, match="holds a run"):
        seed_home(source, SMALL)


def test_eras_rise_to_where_the_reward_is_played() -> None:
    turns = story(SeedConfig(100_000, 100, 20), 29)
    assert [each.cycle for each in turns] == list(range(100))
    assert sum(each.rows for each in turns) == 100_000
    assert all(each.position == each.cycle for each in turns[:BASELINE])
    ends = [each for each in turns if each.last]
    assert len(ends) == 7
    assert all(each.position >= 17 for each in ends)


@pytest.mark.parametrize("wrong", [{"cycles": 10}, {"interactions": 1_000}])
def test_what_cannot_be_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        SeedConfig(**{"interactions": 100_000, "cycles": 200, "incidents": 50, **wrong})
