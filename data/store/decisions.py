"""The gate's decisions: one per candidate, and it stands."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import Connection, Row, select

from palomar.data.store import models
from palomar.data.store.database import Database, as_json, insert
from palomar.data.store.records import Decision, Details, Verdict
from palomar.data.store.tables import columns


class Decisions:
    """What was decided about which candidate, and on what evidence."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record(
        self,
        run_id: str,
        candidate: str,
        *,
        cycle: int,
        verdict: Verdict,
        reasons: Sequence[str],
        evidence: Details,
        policy: str,
    ) -> Decision:
        """The decision, written if it is the first; the same again changes nothing, another one is a StoreError."""

        def work(connection: Connection) -> Decision:
            given = {
                "cycle": cycle,
                "verdict": verdict,
                "reasons": list(reasons),
                "evidence": evidence,
                "policy": policy,
            }
            connection.execute(
                insert(connection, models.Decision)
                .values(run_id=run_id, candidate=candidate, **given, created_at=datetime.now(UTC))
                .on_conflict_do_nothing()
            )
            stored = _decision(connection, run_id, candidate)
            assert stored is not None
            for name, value in given.items():
                if as_json(getattr(stored, name)) != as_json(value):
                    raise self._database.refuse(
                        f"{candidate!r} of run {run_id!r} was decided already ({stored.verdict}, "
                        f"{stored.created_at:%Y-%m-%d %H:%M} UTC), with another {name}"
                    )
            return stored

        return self._database.write(work)

    def get(self, run_id: str, candidate: str) -> Decision | None:
        """What was decided about the candidate; None where nothing was yet."""
        return self._database.read(lambda connection: _decision(connection, run_id, candidate))

    def latest(self, run_id: str, *, count: int) -> list[Decision]:
        """The run's last ``count`` decisions, newest first."""
        model = models.Decision
        query = select(*columns(model, Decision)).where(model.run_id == run_id)
        query = query.order_by(model.cycle.desc(), model.created_at.desc(), model.candidate).limit(count)
        return self._database.read(lambda connection: [_read(row) for row in connection.execute(query)])


def _decision(connection: Connection, run_id: str, candidate: str) -> Decision | None:
    model = models.Decision
    query = select(*columns(model, Decision)).where(model.run_id == run_id, model.candidate == candidate)
    row = connection.execute(query).one_or_none()
    return None if row is None else _read(row)


def _read(row: Row[tuple[object, ...]]) -> Decision:
    values = dict(row._mapping)
    return Decision(**{**values, "reasons": tuple(values["reasons"])})
