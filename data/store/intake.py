"""Records of foreign logs that could not be read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, func, select

from palomar.data.store import models
from palomar.data.store.database import Database, insert
from palomar.data.store.records import QuarantinedRow, QuarantineEntry
from palomar.data.store.tables import columns


class Quarantine:
    """Records that could not be read, and why."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record(self, rows: Sequence[QuarantinedRow], *, at: datetime) -> None:
        """Notes that the ingestion which began at ``at`` met these records; noting it again changes nothing."""
        # By key: two writers that meet the same records take their locks in the same order.
        unique = sorted({row.content_id: row for row in reversed(rows)}.items())
        if not unique:
            return

        def work(connection: Connection) -> None:
            connection.execute(
                insert(connection, models.Quarantined).on_conflict_do_nothing(), [vars(row) for _, row in unique]
            )
            connection.execute(
                insert(connection, models.Sighting).on_conflict_do_nothing(),
                [{"content_id": content_id, "at": at} for content_id, _ in unique],
            )

        self._database.write(work)

    def latest(self, *, count: int, kind: str | None = None) -> list[QuarantineEntry]:
        """The ``count`` records met last, of one kind where given."""
        model, at = models.Quarantined, models.Sighting.at
        query = select(*[*columns(model, QuarantinedRow), func.min(at), func.max(at), func.count()])
        query = query.join(models.Sighting, models.Sighting.content_id == model.content_id).group_by(model.content_id)
        if kind is not None:
            query = query.where(model.kind == kind)
        query = query.order_by(func.max(at).desc(), model.content_id).limit(count)
        return self._database.read(lambda connection: [QuarantineEntry(*row) for row in connection.execute(query)])

    def by_kind(self) -> dict[str, int]:
        """Number of distinct records by kind of problem."""
        query = select(models.Quarantined.kind, func.count()).group_by(models.Quarantined.kind)
        query = query.order_by(models.Quarantined.kind)
        return self._database.read(lambda connection: {row[0]: row[1] for row in connection.execute(query)})
