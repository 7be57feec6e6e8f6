"""What was expected of the next cycles, and what came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlalchemy import ColumnElement, Connection, bindparam, delete, select, update
from sqlalchemy import insert as plain_insert

from palomar.data.store import models
from palomar.data.store.database import Database, lock_run
from palomar.data.store.records import Forecast
from palomar.data.store.tables import columns


class Forecasts:
    """Forecasts by cycle, statistic and slice, each with what came of it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def write(self, run_id: str, cycle: int, rows: Sequence[Forecast]) -> None:
        """Puts the rows in place of all that was forecast in the cycle. What came since is kept.

        StoreError for a row that was made in another cycle.
        """
        for row in rows:
            if row.made_in != cycle:
                raise self._database.refuse(f"a forecast made in cycle {row.made_in} is not one of cycle {cycle}")

        def work(connection: Connection) -> None:
            lock_run(connection, self._database, run_id)
            model = models.Forecast
            where = (model.run_id == run_id, model.made_in == cycle)
            old = connection.execute(select(*columns(model, Forecast)).where(*where)).all()
            came = {(row.for_cycle, row.statistic, row.slice): row.came for row in old}
            connection.execute(delete(model).where(*where))
            if rows:
                known = [
                    row
                    if row.came is not None
                    else replace(row, came=came.get((row.for_cycle, row.statistic, row.slice)))
                    for row in rows
                ]
                connection.execute(plain_insert(model), [{"run_id": run_id, **vars(row)} for row in known])

        self._database.write(work)

    def score(self, run_id: str, cycle: int, levels: Mapping[tuple[str, str], float | None]) -> list[Forecast]:
        """The forecasts for the cycle, after writing what came: measured levels by statistic and slice.

        A level of None says that it could not be measured; what was forecast and has no level stays as it was.
        """

        def work(connection: Connection) -> list[Forecast]:
            lock_run(connection, self._database, run_id)
            model = models.Forecast
            if levels:
                connection.execute(
                    update(model)
                    .where(
                        model.run_id == run_id,
                        model.for_cycle == cycle,
                        model.statistic == bindparam("of_statistic"),
                        model.slice == bindparam("in_slice"),
                    )
                    .values(came=bindparam("level")),
                    [
                        {"of_statistic": statistic, "in_slice": slice_, "level": level}
                        for (statistic, slice_), level in levels.items()
                    ],
                )
            return _forecasts(connection, model.run_id == run_id, model.for_cycle == cycle)

        return self._database.write(work)

    def read(
        self,
        run_id: str,
        *,
        for_cycle: int | None = None,
        statistic: str | None = None,
        slice: str | None = None,
        newest: int | None = None,
    ) -> list[Forecast]:
        """By the cycle they are for, the one they were made in, statistic and slice: those asked for.

        ``newest``: only so many, for the newest cycles.
        """
        model = models.Forecast
        asked = {model.for_cycle: for_cycle, model.statistic: statistic, model.slice: slice}
        where = [column == value for column, value in asked.items() if value is not None]
        return self._database.read(
            lambda connection: _forecasts(connection, model.run_id == run_id, *where, newest=newest)
        )


def _forecasts(connection: Connection, *where: ColumnElement[bool], newest: int | None = None) -> list[Forecast]:
    model = models.Forecast
    order = (model.for_cycle, model.made_in, model.statistic, model.slice)
    query = select(*columns(model, Forecast)).where(*where).order_by(*(column.desc() for column in order))
    return [Forecast(*row) for row in connection.execute(query.limit(newest))][::-1]
