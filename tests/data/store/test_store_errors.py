"""A store that is not there, goes away or may not be written: said clearly, and without secrets."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, event

from palomar.data.errors import StoreError
from palomar.data.store import Store

SECRET = "hunter2"


@pytest.fixture
def closed_folder() -> Iterator[Path]:
    """A folder that this process may enter but not write to, also when the tests run as root."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o555)
        if os.geteuid() != 0:
            yield folder
        else:
            os.seteuid(65534)
            try:
                yield folder
            finally:
                os.seteuid(0)
        folder.chmod(0o755)


def test_store_in_a_folder_that_cannot_be_written_says_so(closed_folder: Path) -> None:
    with pytest.raises(StoreError, match=r"unable to open database file: .*may this user write") as refused:
        Store.open(None, closed_folder)
    assert refused.value.where == f"{closed_folder}/palomar.db"


def test_store_in_a_folder_that_cannot_be_made_says_so(closed_folder: Path) -> None:
    with pytest.raises(StoreError, match="its folder cannot be made: Permission denied"):
        Store.open(None, closed_folder / "home")


def test_store_file_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        Store.open(None, folder).close()
        (folder / "palomar.db").chmod(0o444)
        folder.chmod(0o555)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)
        try:
            with pytest.raises(StoreError, match=r"readonly database|unable to open database file"):
                Store.open(None, folder)
        finally:
            if user == 0:
                os.seteuid(0)
            folder.chmod(0o755)


def test_file_that_is_no_database_is_refused_and_not_touched(tmp_path: Path) -> None:
    file = tmp_path / "palomar.db"
    file.write_text("a diary, not a database\n" * 100)
    with pytest.raises(StoreError, match="file is not a database"):
        Store.open(None, tmp_path)
    assert file.read_text().startswith("a diary")


def test_sqlite_file_that_goes_away_is_noticed(tmp_path: Path) -> None:
    with Store.open(None, tmp_path) as store:
        store.runs.add("demo", name="demo", seed=7, config={})
        for file in tmp_path.iterdir():
            file.unlink()
        with pytest.raises(StoreError, match="the file has gone since it was opened"):
            store.runs.add("lost", name="lost", seed=7, config={})
        assert store.health().problem == "the file has gone since it was opened"
        Store.open(None, tmp_path).close()
        with pytest.raises(StoreError, match="the file was replaced"):
            store.runs.read()


@pytest.mark.postgres
def test_server_that_goes_away_and_comes_back(postgres: Any, postgres_url: str, tmp_path: Path) -> None:
    with Store.open(postgres_url, tmp_path) as store:
        store.runs.add("demo", name="demo", seed=7, config={})
        postgres.stop()
        try:
            with pytest.raises(StoreError, match="connection") as gone:
                store.runs.read()
            assert gone.value.where == store.where
            health = store.health()
            assert (health.reachable, health.schema) == (False, None)
            assert health.problem is not None
            with pytest.raises(StoreError, match="connection"):
                Store.open(postgres_url, tmp_path)
        finally:
            postgres.ensure_postgres_running()
        assert [run.run_id for run in store.runs.read()] == ["demo"]
        assert store.health().reachable


@pytest.mark.postgres
def test_connection_lost_in_the_middle_of_a_write_is_made_again(
    postgres: Any, postgres_url: str, tmp_path: Path
) -> None:
    lost = []
    with Store.open(postgres_url, tmp_path) as store:

        def cut(connection: Any, _cursor: object, statement: str, *_: object) -> None:
            if statement.startswith("INSERT INTO runs") and not lost:
                lost.append(connection.connection.dbapi_connection.info.backend_pid)
                with closing(psycopg.connect(postgres.get_uri(), autocommit=True)) as other:
                    other.execute("SELECT pg_terminate_backend(%s, 5000)", lost)

        event.listen(Engine, "before_cursor_execute", cut)
        try:
            store.runs.add("demo", name="demo", seed=7, config={})
        finally:
            event.remove(Engine, "before_cursor_execute", cut)
        assert len(lost) == 1
        assert [run.run_id for run in store.runs.read()] == ["demo"]


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ada:{SECRET}@127.0.0.1:1/palomar",
        f"postgresql://ada:{SECRET}@127.0.0.1:1/palomar?sslpassword={SECRET}",
        f"postgresql://127.0.0.1:1/palomar?user=ada&password={SECRET}",
        f"postgresql://ada:{SECRET}@no-such-host.invalid/palomar",
        f"postgresql://ada:x@{SECRET}@127.0.0.1:1/palomar",
        f"postgresql://ada:x/{SECRET}@127.0.0.1:1/palomar",
        f"postgresql://ada:{SECRET}@127.0.0.1:port/palomar",
        f"postgresql://ada:{SECRET}@127.0.0.1:1/palomar?no_such_option={SECRET}",
        f"mysql://ada:{SECRET}@127.0.0.1/palomar",
        f"{SECRET}",
    ],
)
def test_no_secret_is_in_an_error(url: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError) as refused:
        Store.open(url, tmp_path)
    assert SECRET not in "".join(traceback.format_exception(refused.value))
    assert SECRET not in repr(vars(refused.value))


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("mysql://127.0.0.1/palomar", "mysql is not supported; use sqlite or postgresql"),
        ("sqlite://", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
        ("/var/lib/palomar.db", "is not a URL"),
    ],
)
def test_url_that_names_no_store_is_refused_in_words(url: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=problem):
        Store.open(url, tmp_path)


def test_sqlite_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    """The settings that docs/store.md promises, as the database itself reports them."""
    with Store.open(None, tmp_path) as store:
        found = {
            name: store._database.read(lambda c, name=name: c.exec_driver_sql(f"PRAGMA {name}").scalar())
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    assert found == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 5000}
