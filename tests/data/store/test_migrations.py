"""The schema: made from nothing, brought up to date, and the same as the models."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from palomar.data.errors import StoreError
from palomar.data.findings import Finding
from palomar.data.store import Store, migrate, models
from palomar.data.store.database import Database, locate

NEXT = """
import sqlalchemy as sa
from alembic import op

revision = "0777"
down_revision = "HEAD"


def upgrade():
    with op.batch_alter_table("runs") as table:
        table.add_column(sa.Column("note", sa.Text(), nullable=False, server_default="none"))
        table.alter_column("name", nullable=True)
"""


@pytest.fixture
def next_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Pretends to be a release that has one migration more."""

    def release(script: str) -> None:
        scripts = tmp_path / "migrations"
        shutil.copytree(migrate.MIGRATIONS, scripts, ignore=shutil.ignore_patterns("__pycache__"))
        (scripts / "versions" / "r0777_next.py").write_text(script.replace("HEAD", migrate.HEAD))
        monkeypatch.setattr(migrate, "MIGRATIONS", scripts)
        monkeypatch.setattr(migrate, "HEAD", "0777")

    return release


def test_migrated_database_is_what_the_models_say(store: Store) -> None:
    def differences(connection):
        options = {"version_table": migrate.VERSION_TABLE, "compare_type": True, "compare_server_default": True}
        return compare_metadata(MigrationContext.configure(connection, opts=options), models.Base.metadata)

    assert store._database.read(differences) == []


def test_head_is_the_newest_script() -> None:
    assert ScriptDirectory(str(migrate.MIGRATIONS)).get_heads() == [migrate.HEAD]


def test_opening_an_up_to_date_store_does_not_load_alembic(tmp_path: Path) -> None:
    Store.open(None, tmp_path).close()
    code = "import sys; from pathlib import Path; from palomar.data.store import Store; "
    code += "Store.open(None, Path(sys.argv[1])).close(); sys.exit('alembic' in sys.modules)"
    source = str(Path(models.__file__).parents[3])
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, env={"PYTHONPATH": source})


def test_two_processes_that_open_an_empty_database_at_once_both_get_a_store(
    url: str, tmp_path: Path, start_worker: Callable[..., subprocess.Popen[str]]
) -> None:
    workers = [start_worker("open_only", url) for _ in range(2)]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    for worker in workers:
        output, _ = worker.communicate(timeout=60)
        assert (worker.returncode, output) == (0, f"{migrate.HEAD}\n")


def test_older_store_is_migrated_and_keeps_its_rows(
    store: Store, url: str, tmp_path: Path, next_release: Callable[[str], None]
) -> None:
    before = store.runs.get("demo")
    store.close()
    next_release(NEXT)
    with Store.open(url, tmp_path) as migrated:
        assert migrated.health().schema == "0777"
        assert migrated.runs.get("demo") == before
        notes = migrated._database.read(lambda connection: connection.scalar(text("SELECT note FROM runs")))
        assert notes == "none"
        # Foreign keys, off while SQLite writes the table anew, are on again.
        with pytest.raises(StoreError):
            migrated.checkpoints.add("nobody", "x", cycle=None, parent_id=None, path="x", sha256="00")


def test_store_of_the_first_release_takes_findings(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as first_release:
        scripts = tmp_path / "first"
        newer = shutil.ignore_patterns("__pycache__", "r000[2-9]*", "r00[1-9]*")
        shutil.copytree(migrate.MIGRATIONS, scripts, ignore=newer)
        first_release.setattr(migrate, "MIGRATIONS", scripts)
        first_release.setattr(migrate, "HEAD", "0001")
        with Store.open(url, tmp_path) as old:
            run = old.runs.add("demo", name="demo", seed=7, config={})
            old.cycles.start("demo", 0)
            assert old.health().schema == "0001"
    with Store.open(url, tmp_path) as store:
        assert store.health().schema == migrate.HEAD
        assert store.runs.read() == [run]
        found = Finding("drift", "notes", "asks more")
        store.findings.write("demo", 0, [found])
        assert [stored.finding for stored in store.findings.read("demo")] == [found]


def test_migration_that_fails_leaves_the_store_as_it_was(
    store: Store, url: str, tmp_path: Path, next_release: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.close()
    with monkeypatch.context():
        next_release(NEXT + "    op.execute('SELECT * FROM no_such_table')\n")
        with pytest.raises(StoreError, match="no_such_table"):
            Store.open(url, tmp_path)
    monkeypatch.undo()
    with Store.open(url, tmp_path) as unharmed:
        assert unharmed.health().schema == migrate.HEAD
        assert [run.run_id for run in unharmed.runs.read()] == ["demo"]


def test_newer_store_is_refused_and_not_touched(store: Store, url: str, tmp_path: Path) -> None:
    stamp = text(f"UPDATE {migrate.VERSION_TABLE} SET version_num = '0888'")
    store._database.write(lambda connection: connection.execute(stamp))
    with pytest.raises(StoreError, match=r"schema is 0888, newer than .*upgrade Palomar"):
        Store.open(url, tmp_path)
    assert store.health().schema == "0888"


def test_new_script_is_written_with_the_vocabulary_of_migrations(
    tmp_path: Path, next_release: Callable[[str], None]
) -> None:
    """The command in docs/store.md, on an empty database: everything is new."""
    from alembic import command

    next_release(NEXT)
    for script in (migrate.MIGRATIONS / "versions").glob("r0*.py"):
        script.unlink()
    with Database(locate(None, tmp_path), foreign_keys=False) as database:
        database.write(
            lambda connection: command.revision(
                migrate.config(connection), "all anew", autogenerate=True, rev_id="0001"
            )
        )
    written = (migrate.MIGRATIONS / "versions" / "r0001_all_anew.py").read_text()
    assert "'run_id', KEY, nullable=False" in written
    assert "'config', OBJECT, nullable=False" in written
    assert "palomar.data.store.columns" not in written
