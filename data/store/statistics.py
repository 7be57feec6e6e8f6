"""Behaviour statistics by cycle and slice, as ``palomar.detectors.measure`` computes them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy import Connection, delete, select
from sqlalchemy import insert as plain_insert

from palomar.data.store import models
from palomar.data.store.database import Database, lock_run
from palomar.data.store.records import Statistic
from palomar.data.store.tables import columns


class Statistics:
    """The series that charts and detectors read."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def write(self, run_id: str, rows: Sequence[Statistic]) -> None:
        """Puts the rows in place of all slices that the same statistics had in the same cycles.

        So measuring again, when later feedback has come in, leaves no slice of the first measurement behind.
        """
        named: defaultdict[int, set[str]] = defaultdict(set)
        for row in rows:
            named[row.cycle].add(row.statistic)
        if not named:
            return

        def work(connection: Connection) -> None:
            lock_run(connection, self._database, run_id)
            model = models.Statistic
            for cycle, statistics in named.items():
                where = (model.run_id == run_id, model.cycle == cycle, model.statistic.in_(sorted(statistics)))
                connection.execute(delete(model).where(*where))
            connection.execute(plain_insert(model), [{"run_id": run_id, **vars(row)} for row in rows])

        self._database.write(work)

    def series(
        self,
        run_id: str,
        *,
        statistics: Sequence[str] | None = None,
        slices: Sequence[str] | None = None,
        cycles: range | None = None,
    ) -> list[Statistic]:
        """By statistic, slice and cycle: every point of the named statistics, slices and cycles (None: of all)."""
        model = models.Statistic
        # Naming the cycles lets both databases seek each cycle's rows by key instead of reading all of the run.
        begun = select(models.Cycle.cycle).where(models.Cycle.run_id == run_id)
        if cycles is not None:
            begun = begun.where(models.Cycle.cycle >= cycles.start, models.Cycle.cycle < cycles.stop)
        query = select(*columns(model, Statistic)).where(model.run_id == run_id, model.cycle.in_(begun))
        if statistics is not None:
            query = query.where(model.statistic.in_(statistics))
        if slices is not None:
            query = query.where(model.slice.in_(slices))
        query = query.order_by(model.statistic, model.slice, model.cycle)
        return self._database.read(lambda connection: [Statistic(*row) for row in connection.execute(query)])

    def slices(self, run_id: str) -> list[str]:
        """Names of all slices that the run has points of."""
        model = models.Statistic
        query = select(model.slice).where(model.run_id == run_id).distinct().order_by(model.slice)
        return self._database.read(lambda connection: list(connection.scalars(query)))
