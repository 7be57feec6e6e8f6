"""Tokens of programs that speak to the HTTP API: who they are, what they may do, and until when.

A token is ``pal_ID_SECRET``. The secret has 256 random bits, so one round of SHA-256 is enough: there is nothing to
guess that a slow hash would protect. Only the hash is kept; the token itself is shown once, to whoever makes it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

from sqlalchemy import Connection, Row, select, update
from sqlalchemy import insert as plain_insert

from palomar.data.store import models
from palomar.data.store.audit_log import append_entry, lock_log
from palomar.data.store.database import Database
from palomar.data.store.records import ApiToken, TokenRole
from palomar.data.store.tables import columns

MOST_DAYS = 3650
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TOKEN = re.compile(r"pal_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_COLUMNS = columns(models.ApiToken, ApiToken)
_NOBODY = "0" * 64
"""Compared with where there is no such token, so that both answers take as long."""


class Tokens:
    """Who may speak to the API."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(
        self, name: str, roles: Collection[str], *, days: float, actor: str, reason: str = ""
    ) -> tuple[ApiToken, str]:
        """A new token and, this once, its secret form. StoreError for a name that was ever used, or an unknown role."""
        chosen = [role for role in get_args(TokenRole) if role in roles]
        if not _NAME.fullmatch(name):
            raise self._database.refuse(
                f"{name!r} names no token: 1 to 64 of letters, digits, '.', '_' and '-', a letter or digit first"
            )
        if not chosen or len(chosen) != len(set(roles)):
            raise self._database.refuse(f"a token needs roles of {', '.join(get_args(TokenRole))}")
        if not 0 < days <= MOST_DAYS:
            raise self._database.refuse(f"a token lives for up to {MOST_DAYS} days, not {days:g}")
        # Drawn before the transaction, which may run again where an answer was lost.
        token_id, secret, now = secrets.token_hex(6), secrets.token_urlsafe(32), datetime.now(UTC)
        token = f"pal_{token_id}_{secret}"

        def work(connection: Connection) -> ApiToken:
            lock_log(connection, self._database)
            model = models.ApiToken
            taken = connection.scalar(select(model.token_id).where(model.name == name))
            if taken not in (None, token_id):
                raise self._database.refuse(
                    f"there is or was a token {name!r} already; the log names actors by it, so take another name"
                )
            if taken is None:
                row = {"token_id": token_id, "name": name, "roles": chosen, "hash": _hash(token), "created_at": now}
                row |= {"created_by": actor, "expires_at": now + timedelta(days=days)}
                connection.execute(plain_insert(model).values(**row))
            append_entry(
                connection,
                self._database,
                actor=actor,
                action="token.create",
                subject=f"token:{name}",
                reason=reason,
                detail={"roles": chosen, "expires_at": (now + timedelta(days=days)).isoformat()},
                token=f"token.create:{token_id}",
            )
            return _one(connection, name)

        return self._database.write(work), token

    def revoke(self, name: str, *, actor: str, reason: str = "") -> ApiToken:
        """Ends it now and for good; nothing where it was revoked already. StoreError for an unknown one."""
        now = datetime.now(UTC)

        def work(connection: Connection) -> ApiToken:
            lock_log(connection, self._database)
            model = models.ApiToken
            ends = update(model).where(model.name == name, model.revoked_at.is_(None))
            done = connection.execute(ends.values(revoked_at=now, revoked_by=actor))
            if done.rowcount:
                append_entry(
                    connection,
                    self._database,
                    actor=actor,
                    action="token.revoke",
                    subject=f"token:{name}",
                    reason=reason,
                )
            elif connection.scalar(select(model.name).where(model.name == name)) is None:
                raise self._database.refuse(f"there is no token {name!r}")
            return _one(connection, name)

        return self._database.write(work)

    def read(self) -> list[ApiToken]:
        """All that were ever made, oldest first."""
        query = select(*_COLUMNS).order_by(models.ApiToken.created_at, models.ApiToken.name)
        return self._database.read(lambda connection: [_read(row) for row in connection.execute(query)])

    def of(self, token: str) -> ApiToken | None:
        """Whose token this is, be it revoked or expired; None where it is nobody's."""
        parts = _TOKEN.fullmatch(token)
        if parts is None:
            return None
        query = select(models.ApiToken.hash, *_COLUMNS).where(models.ApiToken.token_id == parts[1])
        row = self._database.read(lambda connection: connection.execute(query).one_or_none())
        same = hmac.compare_digest(_hash(token), _NOBODY if row is None else row[0])
        return _read(row) if same and row is not None else None


def problem_of(token: ApiToken, now: datetime | None = None) -> str | None:
    """``revoked`` or ``expired`` where it is no good any more."""
    if token.revoked_at is not None:
        return "revoked"
    return "expired" if token.expires_at <= (now or datetime.now(UTC)) else None


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _one(connection: Connection, name: str) -> ApiToken:
    return _read(connection.execute(select(*_COLUMNS).where(models.ApiToken.name == name)).one())


def _read(row: Row[Any]) -> ApiToken:
    values = {name: value for name, value in row._mapping.items() if name != "hash"}
    return ApiToken(**{**values, "roles": tuple(values["roles"])})
