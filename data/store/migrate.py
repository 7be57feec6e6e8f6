"""Brings a database to the schema of this version, by the Alembic scripts packaged in ``migrations/``.

Each script says what changes; all that are missing run in one transaction, so a migration that fails leaves the
database as it was. Two processes that open an empty database at once: one migrates, the other waits and finds it done.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, column, func, inspect, select, table

from palomar.data.store.database import Database

if TYPE_CHECKING:
    from alembic.config import Config

HEAD = "0011"
"""Newest revision. Written here so that opening a database which has it already needs not load Alembic."""
MIGRATIONS = Path(__file__).with_name("migrations")
VERSION_TABLE = "palomar_schema"
"""Not Alembic's default name, which another tool in the same database may use."""
_LOCK = int.from_bytes(b"palomar", "big")
"""Key of the advisory lock under which PostgreSQL is migrated."""


def version_of(connection: Connection) -> str | None:
    """Revision of the database; None where it is empty."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.scalar(select(column("version_num")).select_from(table(VERSION_TABLE)))


def bring_up_to_date(database: Database) -> None:
    """Migrates an empty or older database; StoreError where it is newer than this version.

    ``database`` must be open without foreign keys: on SQLite, changing a table means to write it anew.
    """
    if database.read(version_of) != HEAD:
        database.write(lambda connection: _upgrade(connection, database))


def config(connection: Connection) -> Config:
    """Alembic's config for one open connection; no file of its own is needed."""
    from alembic.config import Config

    settings = Config()
    settings.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    settings.set_main_option("file_template", "r%%(rev)s_%%(slug)s")  # a module's name does not begin with a digit
    settings.attributes["connection"] = connection
    return settings


def _upgrade(connection: Connection, database: Database) -> None:
    from alembic import command
    from alembic.script import ScriptDirectory

    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
    settings = config(connection)
    found = version_of(connection)  # again, now that nobody else migrates
    known = {script.revision for script in ScriptDirectory.from_config(settings).walk_revisions()}
    if found is not None and found not in known:
        raise database.refuse(
            f"its schema is {found}, newer than {HEAD}, the newest that this version of Palomar knows; upgrade Palomar"
        )
    command.upgrade(settings, "head")
    if connection.dialect.name == "sqlite":
        broken = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
        if broken is not None:
            raise database.refuse(
                f"after migration a row of {broken[0]} refers to a row of {broken[2]} that is not there"
            )
