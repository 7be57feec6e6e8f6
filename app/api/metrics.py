"""What Prometheus reads: requests, batches, and where the run stands."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily

from palomar.data.store import Store
from palomar.data.store.incidents import ACTIVE
from palomar.data.store.records import Run

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Meter:
    """Counters of this process since it began."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.seconds = Histogram(
            "palomar_http_request_seconds",
            "Time to answer, by route, method and status.",
            ("method", "route", "status"),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.records = Counter(
            "palomar_ingest_records",
            "Records that were sent: new, known already, or refused to quarantine.",
            ("kind", "outcome"),
            registry=self.registry,
        )
        self.pushed_back = Counter(
            "palomar_ingest_pushed_back",
            "Batches that were told to come again: busy, disk or rate.",
            ("why",),
            registry=self.registry,
        )

    def text(self, store: Store, run: Run | None) -> bytes:
        """All of it in Prometheus' text format, with what the store says now."""
        now = CollectorRegistry()
        now.register(_Standing(store, run))
        return generate_latest(self.registry) + generate_latest(now)


class _Standing:
    """Where the newest run stands, read from the store."""

    def __init__(self, store: Store, run: Run | None) -> None:
        self._store = store
        self._run = run

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """One family after the other."""
        incidents = GaugeMetricFamily("palomar_incidents", "Incidents that are not resolved.", labels=("state",))
        active = self._store.incidents.read(states=ACTIVE)
        for state in ACTIVE:
            incidents.add_metric((state,), sum(each.state == state for each in active))
        yield incidents
        quarantine = GaugeMetricFamily("palomar_quarantine", "Distinct records in quarantine.", labels=("kind",))
        for kind, count in self._store.quarantine.by_kind().items():
            quarantine.add_metric((kind,), count)
        yield quarantine
        if self._run is not None:
            yield from self._of(self._run.run_id)

    def _of(self, run_id: str) -> Iterator[GaugeMetricFamily]:
        cycles = self._store.cycles.read(run_id)
        done = [each.cycle for each in cycles if each.status == "complete"]
        if done:
            newest = GaugeMetricFamily("palomar_cycle", "Newest complete cycle.", labels=("run",))
            newest.add_metric((run_id,), done[-1])
            yield newest
            ledger = GaugeMetricFamily(
                "palomar_ledger", "Samples of the newest complete cycle.", labels=("run", "place", "reason")
            )
            sums: dict[tuple[str, str], int] = {}
            for row in self._store.ledger.read(run_id, done[-1]):
                key = (row.place, row.reason or "")
                sums[key] = sums.get(key, 0) + row.count
            for (place, reason), count in sorted(sums.items()):
                ledger.add_metric((run_id, place, reason), count)
            yield ledger
        verdicts = GaugeMetricFamily("palomar_verdicts", "Cycles by verdict.", labels=("run", "verdict"))
        said = [each.verdict for each in self._store.verdicts.read(run_id)]
        for word in ("pass", "warn", "block", "not_assessable"):
            verdicts.add_metric((run_id, word), said.count(word))
        yield verdicts
