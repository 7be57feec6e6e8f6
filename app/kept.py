"""Answers that take longer than a click may: computed once per state of the home, in a thread, a few of them kept.

A key names what was asked and the state of the files that the answer comes from, so that a stale one is never given.
Whoever asks waits for a moment; what is not there by then is `Pending`, and is asked for again later.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from palomar.data.lake import Lake, Table

T = TypeVar("T")
WAIT_S = 0.25
"""How long whoever asks waits, unless they say otherwise."""


@dataclass(frozen=True)
class Pending:
    """It is being computed."""

    elapsed_s: float


class Kept:
    """The newest answers, and those under way. Threads may share it; one computes at a time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._answers: OrderedDict[Hashable, tuple[float, Future[Any]]] = OrderedDict()
        self._pool: ThreadPoolExecutor | None = None

    def ask(self, key: Hashable, make: Callable[[], T], *, wait_s: float | None = WAIT_S) -> T | Pending:
        """The answer of that key, from `make` where it is not there yet. ``wait_s`` None: until it is there.

        What `make` raises is raised here, and not kept: the next one who asks tries again.
        """
        with self._lock:
            found = self._answers.get(key)
            if found is None:
                self._pool = self._pool or ThreadPoolExecutor(1, thread_name_prefix="palomar-kept")
                found = self._answers[key] = (time.monotonic(), self._pool.submit(make))
                self._forget()
            self._answers.move_to_end(key)
        since, future = found
        try:
            return cast(T, future.result(wait_s))
        except NotYet:
            if future.done():  # it was the computation that timed out
                self._drop(key)
                raise
            return Pending(time.monotonic() - since)
        except BaseException:
            self._drop(key)
            raise

    def _forget(self) -> None:
        """Lets go of the oldest that are done; one that nobody waits for any more is not begun."""
        for key in list(self._answers)[: max(0, len(self._answers) - self._most)]:
            self._answers.pop(key)[1].cancel()

    def _drop(self, key: Hashable) -> None:
        with self._lock:
            self._answers.pop(key, None)


def state(lake: Lake, *parts: tuple[Table, Iterable[int | None] | None]) -> Hashable:
    """Changes when a file of these tables and cycles (None: all cycles) does."""
    files = [path for table, cycles in parts for path in lake.files(table, None if cycles is None else list(cycles))]
    return (str(lake.root), *((path.name, path.parent.name, *_stamp(path.stat())) for path in files))


def _stamp(status: Any) -> tuple[int, int]:
    return status.st_mtime_ns, status.st_size
