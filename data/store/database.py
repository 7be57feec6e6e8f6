"""One database, SQLite or PostgreSQL: how it is reached, how a transaction runs, and what is said when it fails.

Every call of the store is one transaction. On SQLite a writer takes the write lock at once (BEGIN IMMEDIATE), so two
writers queue and neither fails half-way; on PostgreSQL, writers that depend on what they read lock their run's row
first. What still collides (a lock held too long, a deadlock, a connection that broke) is tried again a bounded number
of times, which is safe because writing twice changes nothing.
"""

from __future__ import annotations

import json
import random
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError, StatementError

from palomar.data.errors import StoreError
from palomar.data.store import models
from palomar.data.store.columns import escape, unescape

T = TypeVar("T")

LOCK_WAIT_S = 5.0
"""How long one attempt waits for a lock that another process holds."""
ATTEMPTS = 5
CONNECT_TIMEOUT_S = 10

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_RETRIED_SQLSTATES = {
    "40001",  # serialization_failure
    "40P01",  # deadlock_detected
    "55P03",  # lock_not_available, after lock_timeout
    "57P01",  # admin_shutdown
    "57P02",  # crash_shutdown
    "57P03",  # cannot_connect_now, while the server starts
}
_SHOWN_OPTIONS = {"host", "port", "user", "sslmode"}
"""Of a URL's options, those that may be shown; any other, a misspelt ``password`` too, may be a secret."""


def locate(url: str | None, home: Path) -> URL:
    """Where the store is: ``home/palomar.db`` unless ``url`` names a SQLite file or a PostgreSQL database.

    Raises StoreError, which never repeats a URL that could not be read: it may hold a password.
    """
    if url is None:
        return URL.create("sqlite", database=str((home / "palomar.db").absolute()))
    try:
        parsed = make_url(url)
    except (SQLAlchemyError, ValueError) as exc:
        raise StoreError("store URL", "is not a URL; expected e.g. postgresql://user@host:5432/name") from exc
    if parsed.drivername in ("postgresql", "postgres", "postgresql+psycopg"):
        if "@" in (parsed.host or "") or "@" in (parsed.database or ""):
            raise StoreError("store URL", "its user or password holds a character that must be percent-encoded")
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername == "sqlite":
        if parsed.database in (None, "", ":memory:") or parsed.query:
            raise StoreError("store URL", "needs a file, e.g. sqlite:////var/lib/palomar/palomar.db, and no options")
        return parsed.set(database=str(Path(str(parsed.database)).absolute()))
    raise StoreError("store URL", f"{parsed.drivername} is not supported; use sqlite or postgresql")


class Database:
    """An open database; `read` and `write` run a function in a transaction of its own."""

    def __init__(self, url: URL, *, foreign_keys: bool = True) -> None:
        self.file = Path(str(url.database)) if url.drivername == "sqlite" else None
        shown = {name: value for name, value in url.query.items() if name in _SHOWN_OPTIONS}
        self.where = str(self.file or url.set(query=shown).render_as_string(hide_password=True))
        self._password = str(url.password or "")
        self._identity: tuple[int, int] | None = None
        engine = _sqlite(url, foreign_keys) if self.file else _postgresql(url)
        # Reads see one state of the database throughout, however many queries they take.
        self._reader = engine if self.file else engine.execution_options(isolation_level="REPEATABLE READ")
        self._writer = engine.execution_options(palomar_begin="BEGIN IMMEDIATE")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the pooled connections."""
        self._writer.dispose()

    def read(self, work: Callable[[Connection], T]) -> T:
        """Result of ``work`` in a transaction that sees one state of the database."""
        return self._run(self._reader, work)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Result of ``work`` in a transaction that is committed whole or not at all; ``work`` may run several times."""
        return self._run(self._writer, work)

    def refuse(self, problem: str) -> StoreError:
        """The error for a write that would break one of the store's rules."""
        return StoreError(self.where, problem)

    def _run(self, engine: Engine, work: Callable[[Connection], T]) -> T:
        attempt = 1
        while True:
            self._notice_a_lost_file()
            try:
                with engine.begin() as connection:
                    return work(connection)
            except SQLAlchemyError as exc:
                if attempt == ATTEMPTS or not _worth_another_try(exc):
                    raise StoreError(self.where, self._explain(exc)) from exc
            # Random, so that two that collided do not collide again.
            time.sleep(random.uniform(0.5, 1.0) * 0.05 * 2**attempt)
            attempt += 1

    def _notice_a_lost_file(self) -> None:
        """SQLite goes on writing to a file that was deleted or replaced under it; those writes would be lost."""
        if self.file is None:
            return
        try:
            status = self.file.stat()
        except OSError as exc:
            if self._identity is None:
                return  # not opened yet: connecting creates it, or says why it cannot
            raise StoreError(self.where, "the file has gone since it was opened") from exc
        identity = (status.st_dev, status.st_ino)
        if self._identity not in (None, identity):
            raise StoreError(self.where, "the file was replaced since it was opened; open the store again")
        self._identity = identity

    def _explain(self, exc: SQLAlchemyError) -> str:
        """The database's own words in one line, without secrets."""
        cause = exc.orig if isinstance(exc, StatementError) and exc.orig is not None else exc
        message = " ".join(str(cause).split())
        if self._password:
            message = message.replace(self._password, "***")
        match message:
            case "database is locked":
                return f"database is locked by another process (tried {ATTEMPTS} times for {LOCK_WAIT_S:g} s)"
            case "FOREIGN KEY constraint failed":
                return "refers to a run, cycle, checkpoint or reward version that the store does not hold"
            case "attempt to write a readonly database" | "unable to open database file":
                return f"{message}: is the folder there, and may this user write to the file and its folder?"
        return message


def insert(connection: Connection, model: type[models.Base]) -> sqlite.Insert | postgresql.Insert:
    """INSERT with ON CONFLICT, which both databases have under the same names."""
    return postgresql.insert(model) if connection.dialect.name == "postgresql" else sqlite.insert(model)


def lock_run(connection: Connection, database: Database, run_id: str) -> None:
    """Makes other writers of this run wait until the transaction ends; StoreError where there is no such run.

    On SQLite the transaction holds the whole database already. FOR NO KEY UPDATE (``key_share``) lets others insert
    rows that merely refer to the run.
    """
    query = select(models.Run.run_id).where(models.Run.run_id == run_id).with_for_update(key_share=True)
    if connection.scalar(query) is None:
        raise database.refuse(f"there is no run {run_id!r}")


def as_json(value: Any) -> Any:
    """The value as JSON will give it back, to compare with what is stored."""
    return loads(dumps(value))


def dumps(value: Any) -> str:
    """JSON text, sorted, so that equal objects are equal text.

    Lone surrogates are escaped as in any text, not as JSON would: it reads two of them in a row as one character.
    """
    try:
        return escape(json.dumps(value, allow_nan=False, ensure_ascii=False, sort_keys=True))
    except (TypeError, ValueError, RecursionError) as exc:
        # psycopg calls this outside of where SQLAlchemy turns errors into its own.
        raise ArgumentError(str(exc)) from exc


def loads(text: str | bytes) -> Any:
    """The value that `dumps` wrote."""
    return json.loads(unescape(text if isinstance(text, str) else text.decode()))


def _sqlite(url: URL, foreign_keys: bool) -> Engine:
    engine = create_engine(
        url,
        hide_parameters=True,
        json_serializer=dumps,
        json_deserializer=loads,
        # isolation_level None: the driver leaves BEGIN to us. The driver waits for locks as long as ``timeout``.
        connect_args={"timeout": LOCK_WAIT_S, "isolation_level": None},
    )

    @event.listens_for(engine, "connect")
    def configure(connection: sqlite3.Connection, _: object) -> None:
        # WAL: readers and one writer do not wait for each other. FULL: what was acknowledged survives a power cut;
        # NORMAL could lose the last promotion, and a cycle commits too rarely for the extra fsync to matter.
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA foreign_keys = {'ON' if foreign_keys else 'OFF'}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get("palomar_begin", "BEGIN"))

    return engine


def _postgresql(url: URL) -> Engine:
    engine = create_engine(
        url,
        hide_parameters=True,
        json_serializer=dumps,
        json_deserializer=loads,
        pool_pre_ping=True,
        connect_args={"connect_timeout": CONNECT_TIMEOUT_S, "application_name": "palomar"},
    )

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _: object) -> None:
        connection.execute("SET timezone = 'UTC'")
        connection.execute(f"SET lock_timeout = '{LOCK_WAIT_S:g}s'")
        connection.commit()

    return engine


def _worth_another_try(exc: SQLAlchemyError) -> bool:
    if not isinstance(exc, DBAPIError):
        return False
    if exc.connection_invalidated:
        return True
    if isinstance(exc.orig, sqlite3.Error):
        # The low byte is the error, the rest says more about it.
        return getattr(exc.orig, "sqlite_errorcode", 0) & 0xFF in _BUSY
    return getattr(exc.orig, "sqlstate", None) in _RETRIED_SQLSTATES
