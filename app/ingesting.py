"""After an ingest: what was refused is noted in the store, and what a cycle's rows say is derived from the lake."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from palomar.data.compaction import compact, wanted
from palomar.data.errors import LakeError, PalomarError
from palomar.data.facts import facts
from palomar.data.lake import Lake
from palomar.data.quarantine import Quarantined
from palomar.data.store import Store
from palomar.data.store.records import QuarantinedRow
from palomar.reward.scoring import score, score_logged
from palomar.reward.spec import RewardSpec

_LOG = logging.getLogger("palomar.ingest")


def note_refused(store: Store, entries: Sequence[Quarantined], *, at: datetime) -> None:
    """Notes what went to quarantine in the ingest that began at ``at``."""
    store.quarantine.record([_row(entry) for entry in entries], at=at)


def derive(lake: Lake, store: Store, *, at: datetime, spec: RewardSpec | None = None) -> list[int | None]:
    """Derives the observations of all cycles that belong to no run, scored by the spec, else by the logs' own rewards.

    A run distils its own cycles, by its own reward and clock. The cycles that were derived.
    """
    of_runs = {each.cycle for run in store.runs.read() for each in store.cycles.read(run.run_id)}
    derived = [each for each in lake.cycles("interactions") if each not in of_runs]
    for each in derived:
        known = facts(lake, each, at)
        lake.write_observations(score_logged(known) if spec is None else score(known, spec, at), each)
    return derived


class Deriving:
    """Derives in a thread of its own, some seconds after records came in, however many batches they were.

    Deriving reads whole cycles, so it takes at most a fifth of the time. A server that dies before it leaves nothing
    wrong, only old observations; the next one sees it by the files' times. Where a partition has ``compact_at`` small
    files, they are merged after it; 0: never.
    """

    def __init__(self, lake: Lake, store_of: Any, every_s: float = 10.0, *, compact_at: int = 0) -> None:
        self._lake = lake
        self._store_of = store_of
        self._every_s = every_s
        self._compact_at = compact_at
        self._wanted = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="deriving", daemon=True)

    def start(self) -> None:
        """Begins; derives at once where the lake has interactions that are newer than its observations."""
        if self._newest("interactions", "feedback") > self._newest("observations"):
            self._wanted.set()
        self._thread.start()

    def ask(self) -> None:
        """Says that there is something new."""
        self._wanted.set()

    def end(self) -> None:
        """Ends the thread after what it is doing."""
        self._ended.set()
        self._wanted.set()
        self._thread.join(timeout=30)

    def _newest(self, *tables: Any) -> int:
        return max((path.stat().st_mtime_ns for table in tables for path in self._lake.files(table)), default=0)

    def _work(self) -> None:
        while True:
            self._wanted.wait()
            if self._ended.is_set():
                return
            self._wanted.clear()
            began = time.monotonic()
            try:
                derive(self._lake, self._store_of(), at=datetime.now(UTC))
            except (PalomarError, OSError) as exc:
                _LOG.warning("cannot derive observations now, will try again: %s", exc)
                self._wanted.set()
            self._compact()
            self._ended.wait(max(self._every_s, 4 * (time.monotonic() - began)))

    def _compact(self) -> None:
        try:
            if self._compact_at and wanted(self._lake, self._compact_at):
                for done in compact(self._lake, at_least=max(2, self._compact_at)):
                    for problem in done.problems:
                        _LOG.warning("not merged: %s", problem)
        except LakeError as exc:  # this file system cannot; the lake stays as it is
            _LOG.warning("%s; no further merge is tried", exc)
            self._compact_at = 0
        except OSError as exc:
            _LOG.warning("cannot merge now, will try again: %s", exc)


def _row(entry: Quarantined) -> QuarantinedRow:
    fields: dict[str, Any] = {name: getattr(entry, name) for name in QuarantinedRow.__dataclass_fields__}
    return QuarantinedRow(**fields)
