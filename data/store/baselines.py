"""Which cycles later ones are compared with: a history that only grows."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, func, select
from sqlalchemy import insert as plain_insert

from palomar.data.store import models
from palomar.data.store.database import Database, lock_run
from palomar.data.store.records import Baseline
from palomar.data.store.tables import columns


class Baselines:
    """The reference of each run, and how it moved."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def move(self, run_id: str, *, from_cycle: int, cycles: Iterable[int], reason: str, actor: str) -> Baseline:
        """Lets cycles from ``from_cycle`` on be judged by ``cycles``; saying the same again changes nothing.

        Another word on the same ``from_cycle`` takes the place of the first, which stays in the history. StoreError
        without cycles, and where one is not before ``from_cycle``: no cycle is judged by itself or by what came later.
        """
        chosen = tuple(sorted({operator.index(cycle) for cycle in cycles}))
        if not chosen:
            raise self._database.refuse(f"a baseline of run {run_id!r} needs at least one cycle")
        if chosen[-1] >= from_cycle:
            raise self._database.refuse(
                f"cycle {chosen[-1]} cannot be in the baseline of run {run_id!r} from cycle {from_cycle} on: a cycle "
                "is compared with earlier ones"
            )

        def work(connection: Connection) -> Baseline:
            lock_run(connection, self._database, run_id)
            last = _current(connection, run_id, from_cycle)
            if last is not None and (last.from_cycle, last.cycles, last.reason, last.actor) == (
                from_cycle,
                chosen,
                reason,
                actor,
            ):
                return last
            model = models.Baseline
            highest = connection.scalar(select(func.max(model.number)).where(model.run_id == run_id))
            row = {"from_cycle": from_cycle, "cycles": list(chosen), "reason": reason, "actor": actor}
            number = 0 if highest is None else highest + 1
            connection.execute(
                plain_insert(model).values(run_id=run_id, number=number, **row, set_at=datetime.now(UTC))
            )
            moved = _current(connection, run_id, from_cycle)
            assert moved is not None
            return moved

        return self._database.write(work)

    def current(self, run_id: str, cycle: int) -> Baseline | None:
        """The baseline that the cycle is judged by; None where none begins that early."""
        return self._database.read(lambda connection: _current(connection, run_id, cycle))

    def read(self, run_id: str) -> list[Baseline]:
        """All that was ever set, in that order."""
        model = models.Baseline
        query = select(*columns(model, Baseline)).where(model.run_id == run_id).order_by(model.number)
        return self._database.read(lambda connection: [_read(row) for row in connection.execute(query)])


def _current(connection: Connection, run_id: str, cycle: int) -> Baseline | None:
    model = models.Baseline
    query = select(*columns(model, Baseline)).where(model.run_id == run_id, model.from_cycle <= cycle)
    row = connection.execute(query.order_by(model.from_cycle.desc(), model.number.desc()).limit(1)).one_or_none()
    return None if row is None else _read(row)


def _read(row: Row[Any]) -> Baseline:
    values = dict(row._mapping)
    return Baseline(**{**values, "cycles": tuple(values["cycles"])})
