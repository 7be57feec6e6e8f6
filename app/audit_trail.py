"""The audit log as a page shows it: a part of it, and whether the whole is whole.

A verification reads every entry, so its result is kept until it is asked for again; what was written since is said.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from difflib import get_close_matches

from palomar.app.plain import plain_json
from palomar.data.errors import StoreError
from palomar.data.store import Store
from palomar.data.store.records import AuditEntry, AuditHead, AuditProblem

AT_ONCE = 4_000
"""Entries up to which a log is verified whenever it has grown: a tenth of a second."""
_KEPT = 8
"""Stores of which the last verification and the names are remembered."""


@dataclass(frozen=True)
class Filter:
    """Which entries; None = any. An action that ends with a full stop stands for all that begin so."""

    subject: str | None = None
    actor: str | None = None
    action: str | None = None


@dataclass(frozen=True)
class Verified:
    """What a verification came to."""

    head: AuditHead | None
    """What the head's row said when it began; None = it is gone."""
    whole: AuditHead
    """How far the entries follow each other."""
    problem: AuditProblem | None
    """The first thing that is wrong; None = nothing."""
    at: datetime
    elapsed_s: float


@dataclass(frozen=True)
class Page:
    """A page of the log, newest first."""

    entries: tuple[AuditEntry, ...]
    total: int
    """Entries on all pages."""
    head: AuditHead | None
    """None = its row is gone; the verification says so."""


_lock = threading.Lock()
_verified: OrderedDict[str, Verified] = OrderedDict()
_names: OrderedDict[str, tuple[AuditHead | None, tuple[tuple[str, ...], tuple[str, ...]]]] = OrderedDict()


def read(store: Store, which: Filter, *, size: int, page: int) -> Page:
    """Page ``page``, from 1, of the entries that are wanted. Raises StoreError where the store does not answer."""
    asked = asdict(which)
    newest = store.audit_log.read(**asked, newest=size, skip=(page - 1) * size)
    now = head(store)
    total = now.entries if now is not None and which == Filter() else store.audit_log.count(**asked)
    return Page(tuple(reversed(newest)), total, now)


def verify(store: Store, pinned: AuditHead | None = None) -> Verified:
    """Reads all entries now. Without a pinned head the result is kept for `last_verified`."""
    began, at = time.perf_counter(), datetime.now(UTC)
    now = head(store)
    whole, problem = store.audit_log.verify(pinned)
    found = Verified(now, whole, problem, at, time.perf_counter() - began)
    if pinned is None:
        with _lock:
            _verified[store.where] = found
            _verified.move_to_end(store.where)
            while len(_verified) > _KEPT:
                _verified.popitem(last=False)
    return found


def head(store: Store) -> AuditHead | None:
    """The head's row; None where it is gone, which a verification says too.

    None also where the store does not answer: whatever is asked next says so.
    """
    try:
        return store.audit_log.head()
    except StoreError:
        return None


def last_verified(store: Store, head: AuditHead | None) -> Verified | None:
    """The verification of the log up to this head; of a short log it is made where there is none.

    Of a long one the last that was made, which may be of an earlier head; None = none was made yet.
    """
    with _lock:
        found = _verified.get(store.where)
    if (found is None or found.head != head) and (head is None or head.entries <= AT_ONCE):
        return verify(store)
    return found


def names(store: Store, head: AuditHead | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """All actors and all actions in the log; actions that share a beginning also as ``incident.``."""
    with _lock:
        known = _names.get(store.where)
    if known is not None and head is not None and known[0] == head:
        return known[1]
    actors, actions = store.audit_log.names()
    parts = {action.partition(".")[0] + "." for action in actions if "." in action}
    found = (actors, tuple(sorted({*actions, *parts})))
    with _lock:
        _names[store.where] = (head, found)
        _names.move_to_end(store.where)
        while len(_names) > _KEPT:
            _names.popitem(last=False)
    return found


def near(store: Store, subject: str) -> list[str]:
    """Subjects that are most like one of which the log knows nothing."""
    kind = subject.partition(":")[0]
    known = store.audit_log.subjects(f"{kind}:", 200) or store.audit_log.subjects("", 200)
    return get_close_matches(subject, known, n=5, cutoff=0) if known else []


def json_lines(entries: list[AuditEntry]) -> bytes:
    """One JSON object a line, oldest first, with all that the hash is over."""
    return b"".join(plain_json(asdict(entry)) + b"\n" for entry in entries)


def rows(entries: list[AuditEntry]) -> list[dict[str, object]]:
    """The same for a table of text: the detail as JSON."""
    return [asdict(entry) | {"detail": json.dumps(entry.detail, sort_keys=True)} for entry in entries]
