"""What a running API holds."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from palomar.app.api.errors import later
from palomar.app.api.limits import Limits, Rate
from palomar.app.api.metrics import Meter
from palomar.app.ingesting import Deriving
from palomar.app.service import Observatory
from palomar.data.errors import StoreError
from palomar.data.ingest import Classifier
from palomar.data.store import Store
from palomar.data.store.records import Run
from palomar.detectors.experiment import Plan
from palomar.trainer.gate_policy import PolicyText


@dataclass
class Api:
    """The home that is served, by which policy the gate is asked, and what is refused."""

    observatory: Observatory
    policy: PolicyText
    """Chosen by whoever starts the server: a caller must not choose the rule that it is judged by."""
    plan: Plan | None = None
    limits: Limits = field(default_factory=Limits)
    classify: Classifier | None = None
    deriving: Deriving | None = None
    meter: Meter = field(default_factory=Meter)

    def __post_init__(self) -> None:
        self.rate = Rate(self.limits.requests_per_s)
        self._slots = threading.BoundedSemaphore(self.limits.batches_waiting)
        self.writing = threading.Lock()
        """One batch of this process is written at a time; the lake's own lock holds off other processes."""

    @property
    def store(self) -> Store:
        """The store. Raises StoreError where it is gone: none is made in its place, since that would know no token."""
        if not self.observatory.has_store:
            raise StoreError(str(self.observatory.home), "the store is gone")
        return self.observatory.store

    def store_answers(self) -> bool:
        """Whether the store can be asked."""
        try:
            return self.store.health().reachable
        except StoreError:
            return False

    def lake_writable(self) -> bool:
        """Whether interactions can be written: the folder takes files, and the disk has room."""
        root: Path = self.observatory.lake.root
        place = root if root.exists() else root.parent
        return os.access(place, os.W_OK | os.X_OK) and shutil.disk_usage(place).free >= self.limits.free_bytes

    def run(self) -> Run | None:
        """The newest run; None where there is none yet."""
        runs = self.store.runs.read()
        return runs[0] if runs else None

    @contextmanager
    def slot(self) -> Iterator[None]:
        """A place for one batch, from its first byte to its last write. Raises Refusal (503) where all are taken."""
        if not self._slots.acquire(blocking=False):
            self.meter.pushed_back.labels("busy").inc()
            raise later("other batches are being written; send this one again", code="busy", seconds=1)
        try:
            if not self.lake_writable():
                self.meter.pushed_back.labels("disk").inc()
                raise later("the disk is full, or not writable", code="disk", seconds=60)
            yield
        finally:
            self._slots.release()
