"""Where every sample went. Whether it adds up is checked by ``palomar.reward.ledger``, before it is written."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, delete, select
from sqlalchemy import insert as plain_insert

from palomar.data.store import models
from palomar.data.store.database import Database, lock_run
from palomar.data.store.records import LedgerRow
from palomar.data.store.tables import columns


class Ledger:
    """The sample ledger of each cycle."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def write(self, run_id: str, rows: Sequence[LedgerRow]) -> None:
        """Puts the rows in place of all that their cycles had."""
        if not rows:
            return

        def work(connection: Connection) -> None:
            lock_run(connection, self._database, run_id)
            cycles = sorted({row.cycle for row in rows})
            model = models.LedgerRow
            connection.execute(delete(model).where(model.run_id == run_id, model.cycle.in_(cycles)))
            connection.execute(plain_insert(model), [{"run_id": run_id, **vars(row)} for row in rows])

        self._database.write(work)

    def read(self, run_id: str, cycle: int | None = None, *, stratum: str | None = None) -> list[LedgerRow]:
        """By cycle, stratum, place and reason; of one cycle, of one stratum, where given."""
        model = models.LedgerRow
        query = select(*columns(model, LedgerRow)).where(model.run_id == run_id)
        if cycle is not None:
            query = query.where(model.cycle == cycle)
        if stratum is not None:
            query = query.where(model.stratum == stratum)
        query = query.order_by(model.cycle, model.stratum, model.place, model.reason)
        return self._database.read(lambda connection: [LedgerRow(*row) for row in connection.execute(query)])
