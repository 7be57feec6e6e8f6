"""What came in from foreign logs: the files that were read, and the records that could not be."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, func, select

from palomar.data.store import models
from palomar.data.store.database import Database, insert
from palomar.data.store.records import Ingest, QuarantinedRow, QuarantineEntry
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


class Ingests:
    """Files that were read."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record(self, ingest: Ingest) -> Ingest:
        """The record of the first reading of these bytes in this format: this one, if it is the first."""

        def work(connection: Connection) -> Ingest:
            connection.execute(insert(connection, models.Ingest).values(**vars(ingest)).on_conflict_do_nothing())
            stored = _ingest(connection, ingest.sha256, ingest.size, ingest.format)
            assert stored is not None
            return stored

        return self._database.write(work)

    def get(self, sha256: str, size: int, format: str) -> Ingest | None:
        """What came of these bytes; None where they were not read in this format yet."""
        return self._database.read(lambda connection: _ingest(connection, sha256, size, format))

    def latest(self, *, count: int) -> list[Ingest]:
        """The ``count`` files read last, newest first."""
        model = models.Ingest
        query = select(*columns(model, Ingest)).order_by(model.at.desc(), model.path, model.sha256).limit(count)
        return self._database.read(lambda connection: [Ingest(*row) for row in connection.execute(query)])


def _ingest(connection: Connection, sha256: str, size: int, format: str) -> Ingest | None:
    model = models.Ingest
    query = select(*columns(model, Ingest)).where(model.sha256 == sha256, model.size == size, model.format == format)
    row = connection.execute(query).one_or_none()
    return None if row is None else Ingest(*row)
