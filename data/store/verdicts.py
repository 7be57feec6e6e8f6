"""What the findings of each cycle, or of each candidate, come to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, select

from palomar.data.findings import Severity
from palomar.data.store import models
from palomar.data.store.database import Database, insert
from palomar.data.store.records import CheckedCycle, CycleVerdict
from palomar.data.store.tables import columns


class Verdicts:
    """Verdicts on cycles and candidates, of which each has one: the last."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def write(
        self,
        run_id: str,
        cycle: int,
        *,
        verdict: CycleVerdict,
        reasons: Sequence[str],
        sentence: str,
        findings: Mapping[Severity, int],
        budget: str,
        as_of: datetime | None,
        candidate: str | None = None,
    ) -> CheckedCycle:
        """The verdict, in place of an earlier one on the same cycle (or candidate in it)."""

        def work(connection: Connection) -> CheckedCycle:
            given = {
                "verdict": verdict,
                "reasons": list(reasons),
                "sentence": sentence,
                "findings": dict(findings),
                "budget": budget,
                "as_of": as_of,
                "checked_at": datetime.now(UTC),
            }
            connection.execute(
                insert(connection, models.CheckedCycle)
                .values(run_id=run_id, candidate=candidate or "", cycle=cycle, **given)
                .on_conflict_do_update(index_elements=["run_id", "candidate", "cycle"], set_=given)
            )
            stored = _verdict(connection, run_id, cycle, candidate)
            assert stored is not None
            return stored

        return self._database.write(work)

    def get(self, run_id: str, cycle: int, *, candidate: str | None = None) -> CheckedCycle | None:
        """The verdict on the cycle (or on the candidate in it); None where it was never checked."""
        return self._database.read(lambda connection: _verdict(connection, run_id, cycle, candidate))

    def words(self, run_id: str) -> dict[int, CycleVerdict]:
        """By cycle, the oldest first: the verdict's word alone."""
        model = models.CheckedCycle
        query = select(model.cycle, model.verdict).where(model.run_id == run_id, model.candidate == "")
        query = query.order_by(model.cycle)
        return self._database.read(lambda connection: {row.cycle: row.verdict for row in connection.execute(query)})

    def read(self, run_id: str, *, newest: int | None = None) -> list[CheckedCycle]:
        """The verdicts on the run's cycles, oldest first; only of the ``newest`` so many where given."""
        model = models.CheckedCycle
        query = select(*columns(model, CheckedCycle)).where(model.run_id == run_id, model.candidate == "")
        query = query.order_by(model.cycle.desc()).limit(newest)
        return self._database.read(lambda connection: [_read(row) for row in connection.execute(query)][::-1])


def _verdict(connection: Connection, run_id: str, cycle: int, candidate: str | None) -> CheckedCycle | None:
    model = models.CheckedCycle
    where = (model.run_id == run_id, model.candidate == (candidate or ""), model.cycle == cycle)
    row = connection.execute(select(*columns(model, CheckedCycle)).where(*where)).one_or_none()
    return None if row is None else _read(row)


def _read(row: Row[Any]) -> CheckedCycle:
    values = dict(row._mapping)
    return CheckedCycle(**{**values, "reasons": tuple(values["reasons"]), "candidate": values["candidate"] or None})
