"""The audit log: who did what, when and why. Entries are only ever added, and each is chained to the one before.

An entry's hash is SHA-256 over its content and the hash of the entry before it, so whoever changes, removes, inserts or
moves an entry must write all later hashes anew. The log's head (number of entries and last hash) stands in a row of its
own, which every writer locks: entries come one after the other, and a log that was cut short disagrees with its head.

What a chain cannot show is the work of someone who may write to the database and rewrites everything from the changed
entry to the head. For that, keep the head outside (`palomar audit-log head`) and check against it: a log that does not
lead through a pinned head was rewritten or cut before it. Entries after the last pinned head, and the truth of what
an entry says when it is written, rest on who may write to the database.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, select, text, update
from sqlalchemy import insert as plain_insert

from palomar.data.store import models
from palomar.data.store.columns import escape
from palomar.data.store.database import Database, as_json, dumps
from palomar.data.store.records import AuditEntry, AuditHead, AuditProblem, Details
from palomar.data.store.tables import columns

GENESIS = "0" * 64
"""What the first entry has in place of the hash of one before it."""
_LOG = "audit_log"
_BATCH = 1000
_CONTENT = ("number", "at", "actor", "action", "subject", "reason", "detail", "token", "previous")


class AuditLog:
    """Every write that a person or a program answers for."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def append(
        self,
        *,
        actor: str,
        action: str,
        subject: str,
        reason: str,
        detail: Details | None = None,
        token: str | None = None,
    ) -> AuditEntry:
        """The entry, written behind all others. StoreError without an actor or an action, and where the head is gone.

        ``token``: an id of the request. The same again writes nothing and returns the first entry, so that a request
        that is sent twice leaves one; StoreError where it was used for something else.
        """
        # Drawn before the transaction: where an answer was lost and it runs again, it must not write twice.
        token = token or uuid.uuid4().hex
        return self._database.write(
            lambda connection: append_entry(
                connection,
                self._database,
                actor=actor,
                action=action,
                subject=subject,
                reason=reason,
                detail=detail,
                token=token,
            )
        )

    def read(
        self,
        *,
        subject: str | None = None,
        actor: str | None = None,
        action: str | None = None,
        newest: int | None = None,
        skip: int = 0,
    ) -> list[AuditEntry]:
        """Entries in their order: about one subject, by one actor, of one action (``incident.`` means all that begin
        so), and only the ``newest`` so many, where given, after leaving out the ``skip`` newest of them. Reading does
        not verify."""
        model = models.AuditEntry
        query = select(*columns(model, AuditEntry)).where(*_like(subject, actor, action))
        query = query.order_by(model.number.desc()).limit(newest).offset(skip or None)
        return self._database.read(lambda connection: [AuditEntry(*row) for row in connection.execute(query)][::-1])

    def count(self, *, subject: str | None = None, actor: str | None = None, action: str | None = None) -> int:
        """How many entries `read` would find."""
        query = select(func.count()).select_from(models.AuditEntry).where(*_like(subject, actor, action))
        return self._database.read(lambda connection: connection.scalar(query) or 0)

    def names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """All actors and all actions that the log names. Reads every entry: to be kept until the head is another."""
        model = models.AuditEntry

        def work(connection: Connection) -> tuple[tuple[str, ...], tuple[str, ...]]:
            actors = connection.scalars(select(model.actor).distinct().order_by(model.actor))
            actions = connection.scalars(select(model.action).distinct().order_by(model.action))
            return tuple(actors), tuple(actions)

        return self._database.read(work)

    def subjects(self, beginning: str, count: int) -> list[str]:
        """The first ``count`` subjects, in the order of the alphabet, that begin so."""
        model = models.AuditEntry
        query = select(model.subject).where(model.subject.startswith(beginning, autoescape=True)).distinct()
        query = query.order_by(model.subject).limit(count)
        return self._database.read(lambda connection: list(connection.scalars(query)))

    def head(self) -> AuditHead:
        """Number of entries and last hash, as the head's row has them; to be kept outside."""

        def work(connection: Connection) -> AuditHead:
            found = _head(connection, lock=False)
            if found is None:
                raise self._database.refuse("the head of the audit log is gone; `palomar audit-log verify` says more")
            return found

        return self._database.read(work)

    def verify(self, pinned: AuditHead | None = None) -> tuple[AuditHead, AuditProblem | None]:
        """The head as the entries themselves give it, and the first thing that is wrong; None = the chain holds.

        ``pinned``: a head that was kept outside; the log must lead through it. Reads one state of the database.
        """
        return self._database.read(lambda connection: _verify(connection, pinned))


def _like(subject: str | None, actor: str | None, action: str | None) -> list[ColumnElement[bool]]:
    model = models.AuditEntry
    found: list[ColumnElement[bool]] = []
    if subject is not None:
        found.append(model.subject == subject)
    if actor is not None:
        found.append(model.actor == actor)
    if action is not None:
        begins = model.action.startswith(action, autoescape=True)
        found.append(begins if action.endswith(".") else model.action == action)
    return found


def append_entry(
    connection: Connection,
    database: Database,
    *,
    actor: str,
    action: str,
    subject: str,
    reason: str,
    detail: Details | None = None,
    token: str | None = None,
) -> AuditEntry:
    """As `AuditLog.append`, within a transaction that is under way: what is done and its entry stand or fall together.

    Locks the log's head until that transaction ends. Take other locks before, so that all writers take them in the
    same order.
    """
    if not actor.strip() or not action.strip():
        raise database.refuse("an entry of the audit log needs an actor and an action")
    head = lock_log(connection, database)
    said = {"actor": actor, "action": action, "subject": subject, "reason": reason, "detail": dict(detail or {})}
    model = models.AuditEntry
    if token is not None:
        entry = entry_of(connection, token)
        if entry is not None:
            if as_json({name: getattr(entry, name) for name in said}) != as_json(said):
                raise database.refuse(f"token {token!r} was used for {entry.action} of {entry.subject} already")
            return entry
    row: dict[str, Any] = {
        "number": head.entries + 1,
        "at": datetime.now(UTC).isoformat(timespec="microseconds"),
        **said,
        "token": token or uuid.uuid4().hex,
        "previous": head.hash,
    }
    stored = {name: escape(value) if isinstance(value, str) else value for name, value in row.items()}
    row["hash"] = entry_hash({**stored, "detail": dumps(row["detail"])})
    connection.execute(plain_insert(model).values(**row))
    connection.execute(
        update(models.AuditHead).where(models.AuditHead.log == _LOG).values(entries=row["number"], hash=row["hash"])
    )
    return AuditEntry(**{**row, "detail": as_json(row["detail"])})


def lock_log(connection: Connection, database: Database) -> AuditHead:
    """The log's head, locked until the transaction ends; StoreError where it is gone."""
    head = _head(connection, lock=True)
    if head is None:
        raise database.refuse("the head of the audit log is gone; `palomar audit-log verify` says more")
    return head


def entry_of(connection: Connection, token: str) -> AuditEntry | None:
    """The entry of a request; None where it left none."""
    model = models.AuditEntry
    row = connection.execute(select(*columns(model, AuditEntry)).where(model.token == token)).one_or_none()
    return None if row is None else AuditEntry(*row)


def entry_hash(row: Mapping[str, Any]) -> str:
    """SHA-256 in hexadecimal of an entry's content as stored: JSON, keys sorted, ASCII, no spaces, without ``hash``.

    Raises TypeError where a value is neither text nor a whole number.
    """
    content = {name: row[name] for name in _CONTENT}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def parse_head(words: str) -> AuditHead | None:
    """A head as `palomar audit-log head` prints it, ``ENTRIES:HASH``; None where it is not one."""
    found = re.fullmatch(r"(\d{1,18}):([0-9a-f]{64})", words.strip())
    return None if found is None else AuditHead(int(found[1]), found[2])


def _head(connection: Connection, *, lock: bool) -> AuditHead | None:
    model = models.AuditHead
    query = select(model.entries, model.hash).where(model.log == _LOG)
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    return None if row is None else AuditHead(*row)


def _rows(connection: Connection) -> Iterator[Mapping[str, Any]]:
    """Entries as they are stored, by number. Past the column types, which would refuse what someone has put there."""
    names = ", ".join(name if name != "detail" else "CAST(detail AS TEXT) AS detail" for name in _CONTENT)
    asked = text(f"SELECT {names}, hash FROM audit_log WHERE number > :after ORDER BY number LIMIT :most")
    after = -(2**63)
    while batch := connection.execute(asked, {"after": after, "most": _BATCH}).mappings().all():
        yield from (dict(row) for row in batch)
        after = batch[-1]["number"]


def _verify(connection: Connection, pinned: AuditHead | None) -> tuple[AuditHead, AuditProblem | None]:
    last = AuditHead(0, GENESIS)
    if pinned is not None and pinned.entries == 0 and pinned.hash != GENESIS:
        return last, AuditProblem(None, "pinned", "the pinned head is no head of such a log: it counts 0 entries")
    passed = pinned is None or pinned.entries == 0
    for row in _rows(connection):
        problem = _wrong(row, last)
        if problem is None and pinned is not None and row["number"] == pinned.entries:
            passed = row["hash"] == pinned.hash
            if not passed:
                problem = AuditProblem(row["number"], "pinned", "its hash is not the pinned one: the log was rewritten")
        if problem is not None:
            return last, problem
        last = AuditHead(row["number"], row["hash"])
    head = _head(connection, lock=False)
    if head is None:
        return last, AuditProblem(None, "head", "the row of the log's head is gone")
    if head.entries > last.entries:
        why = f"it and all later ones are gone: the log's head counts {head.entries} entries, {last.entries} are there"
        return last, AuditProblem(last.entries + 1, "missing", why)
    if head != last:
        why = f"the head says {head.entries} entries with hash {head.hash}; the entries do not"
        return last, AuditProblem(last.entries or None, "head", why)
    if pinned is not None and not passed:
        why = f"the log has {last.entries} entries, the pinned head {pinned.entries}: its end was cut off"
        return last, AuditProblem(last.entries + 1, "pinned", why)
    return last, None


def _wrong(row: Mapping[str, Any], last: AuditHead) -> AuditProblem | None:
    """What is wrong with the entry that follows ``last``; None = nothing."""
    number = row["number"]
    if number != last.entries + 1:
        if isinstance(number, int) and number > last.entries + 1:
            return AuditProblem(last.entries + 1, "missing", f"it is gone; the next one that is there is {number}")
        return AuditProblem(None, "moved", f"an entry has the number {number!r}, where {last.entries + 1} was due")
    try:
        expected = entry_hash(row)
    except (TypeError, ValueError):
        return AuditProblem(number, "changed", "it holds something that is no text")
    if row["hash"] != expected:
        return AuditProblem(number, "changed", "its content does not have its hash: it was changed or moved")
    if row["previous"] != last.hash:
        return AuditProblem(number, "moved", "it does not follow the entry before it: one of both was put there later")
    return None
