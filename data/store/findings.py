"""What detectors found, and what each of them assessed and could not, by cycle or candidate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, case, delete, func, select
from sqlalchemy import insert as plain_insert

from palomar.data.findings import Cause, Evidence, Finding, Reading, Report, Unassessed
from palomar.data.schema import content_id
from palomar.data.store import models
from palomar.data.store.columns import escape
from palomar.data.store.database import Database, lock_run
from palomar.data.store.records import Assessment, StoredFinding
from palomar.data.store.tables import columns

_FINDING = columns(models.Finding, Finding)


class Findings:
    """Findings of every cycle that was checked. Those about a candidate are kept apart, under its id."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def write(
        self,
        run_id: str,
        cycle: int,
        findings: Sequence[Finding],
        reports: Sequence[Report] = (),
        *,
        candidate: str | None = None,
    ) -> None:
        """Puts findings and reports in place of all that the cycle (or the candidate in it) had.

        Of a report its counts and words are kept; the findings are those given, whoever made them, in their order.
        """
        about = {"run_id": run_id, "candidate": candidate or "", "cycle": cycle, "recorded_at": datetime.now(UTC)}
        ids = _ids([run_id, str(cycle), *([f"candidate {candidate}"] if candidate else [])], findings)
        found = [
            {**about, "position": position, "finding_id": finding_id, "key": finding.key, **_plain(finding)}
            for position, (finding_id, finding) in enumerate(zip(ids, findings, strict=True))
        ]
        said = [
            {**about, **vars(report), "unassessed": [vars(item) for item in report.unassessed]} for report in reports
        ]
        for row in said:
            del row["findings"]

        def work(connection: Connection) -> None:
            lock_run(connection, self._database, run_id)
            model: type[models.Finding | models.Report]
            for model, rows in ((models.Finding, found), (models.Report, said)):
                where = (model.run_id == run_id, model.candidate == about["candidate"], model.cycle == cycle)
                connection.execute(delete(model).where(*where))
                if rows:
                    connection.execute(plain_insert(model), rows)

        self._database.write(work)

    def read(
        self,
        run_id: str,
        cycle: int | None = None,
        *,
        key: str | None = None,
        reading: Reading | None = None,
        newest: int | None = None,
        candidate: str | None = None,
    ) -> list[StoredFinding]:
        """By cycle, in the order they were written: of one cycle, of one key, with one reading, where given.

        ``newest``: only so many, from the newest cycles. Those about a candidate only where it is named.
        """
        model = models.Finding
        query = _select().where(model.run_id == run_id, model.candidate == (candidate or ""))
        if cycle is not None:
            query = query.where(model.cycle == cycle)
        if key is not None:
            query = query.where(model.key == key)
        if reading is not None:
            query = query.where(model.reading == reading)
        query = query.order_by(model.cycle.desc(), model.position).limit(newest)
        return self._database.read(lambda connection: _found(connection, query))

    def get(self, finding_id: str) -> StoredFinding | None:
        """The finding; None where there is none of that id, be it since its cycle was checked again without it."""
        query = _select().where(models.Finding.finding_id == finding_id)
        found = self._database.read(lambda connection: _found(connection, query))
        return found[0] if found else None

    def several(self, finding_ids: Collection[str]) -> dict[str, StoredFinding]:
        """Findings by id, in one question; those that are not there any more are left out."""
        query = _select().where(models.Finding.finding_id.in_(sorted(set(finding_ids))))
        return {each.finding_id: each for each in self._database.read(lambda connection: _found(connection, query))}

    def newest_of(self, run_id: str, keys: Collection[str]) -> dict[str, StoredFinding]:
        """By key: the finding of the newest cycle that has one, the first of it; about cycles, not about candidates."""
        model = models.Finding
        # One seek a key: joined with the newest cycle of each, the database walks through all findings of the keys.
        query = _select().where(model.run_id == run_id, model.candidate == "", model.key == bindparam("wanted"))
        query = query.order_by(model.cycle.desc(), model.position).limit(1)

        def work(connection: Connection) -> dict[str, StoredFinding]:
            rows = ((key, connection.execute(query, {"wanted": key}).first()) for key in sorted(set(keys)))
            return {key: _read(row) for key, row in rows if row is not None}

        return self._database.read(work)

    def saying(self, run_id: str, cycle: int, sentence: str) -> StoredFinding | None:
        """The first of the cycle's findings that says so; None where none does. For what a verdict says."""
        model = models.Finding
        query = _select().where(
            model.run_id == run_id, model.candidate == "", model.cycle == cycle, model.sentence == sentence
        )
        found = self._database.read(lambda connection: _found(connection, query.order_by(model.position).limit(1)))
        return found[0] if found else None

    def cycles_with(self, run_id: str, reading: Reading, first: int, last: int) -> list[int]:
        """The cycles of a span in which something was read so, ascending."""
        model = models.Finding
        query = select(model.cycle).where(
            model.run_id == run_id, model.reading == reading, model.cycle.between(first, last), model.candidate == ""
        )
        return self._database.read(lambda connection: sorted(set(connection.scalars(query))))

    def assessments(self, run_id: str) -> list[Assessment]:
        """What each detector could assess over all cycles of the run that were checked; by detector."""
        model = models.Report
        tested = case((model.assessed > 0, model.cycle))
        query = (
            select(model.detector, func.count(), func.count(tested), func.max(tested), func.max(model.cycle))
            .where(model.run_id == run_id, model.candidate == "")
            .group_by(model.detector)
            .order_by(model.detector)
        )
        return self._database.read(lambda connection: [Assessment(*row) for row in connection.execute(query)])

    def unassessed(self, run_id: str, cycle: int) -> dict[str, tuple[Unassessed, ...]]:
        """By detector: what it could not assess in the cycle, and why."""
        model = models.Report
        query = select(model.detector, model.unassessed).where(
            model.run_id == run_id, model.candidate == "", model.cycle == cycle
        )

        def work(connection: Connection) -> dict[str, tuple[Unassessed, ...]]:
            rows = connection.execute(query.order_by(model.detector))
            return {detector: tuple(Unassessed(**item) for item in items) for detector, items in rows}

        return self._database.read(work)

    def reports(self, run_id: str, cycle: int, *, candidate: str | None = None) -> list[Report]:
        """What each detector said of the cycle (or the candidate in it), by detector, with its findings."""

        def of(model: type[models.Finding | models.Report]) -> tuple[Any, ...]:
            return (model.run_id == run_id, model.candidate == (candidate or ""), model.cycle == cycle)

        def work(connection: Connection) -> list[Report]:
            query = select(*columns(models.Report, Report)).where(*of(models.Report)).order_by(models.Report.detector)
            rows = connection.execute(query).all()
            found = _found(connection, _select().where(*of(models.Finding)).order_by(models.Finding.position))
            return [
                Report(
                    row.detector,
                    tuple(each.finding for each in found if each.finding.detector == row.detector),
                    row.assessed,
                    tuple(Unassessed(**item) for item in row.unassessed),
                    row.power,
                )
                for row in rows
            ]

        return self._database.read(work)


def _ids(about: Sequence[str], findings: Sequence[Finding]) -> list[str]:
    """Content ids. Of several findings with one key, the second says that it is number 2, and so on."""
    seen: Counter[str] = Counter()
    ids = []
    for finding in findings:
        seen[finding.key] += 1
        number = [f"number {seen[finding.key]}"] if seen[finding.key] > 1 else []
        ids.append(content_id(*(escape(part) for part in (*about, finding.key, *number))))
    return ids


def _plain(finding: Finding) -> dict[str, Any]:
    """The finding's fields, as JSON where they are no plain values."""
    causes = [{**vars(cause), "value": float(cause.value), "share": float(cause.share)} for cause in finding.causes]
    return {**vars(finding), "causes": causes, "evidence": vars(finding.evidence), "detail": dict(finding.detail)}


def _select() -> Select[Any]:
    model = models.Finding
    return select(model.run_id, model.candidate, model.cycle, model.finding_id, model.recorded_at, *_FINDING)


def _found(connection: Connection, query: Select[Any]) -> list[StoredFinding]:
    """By cycle; in one cycle, in the query's order."""
    return sorted((_read(row) for row in connection.execute(query)), key=lambda found: found.cycle)


def _read(row: Row[Any]) -> StoredFinding:
    values: Mapping[str, Any] = {column.key: row._mapping[column.key] for column in _FINDING}
    finding = Finding(
        **{
            **values,
            "causes": tuple(Cause(**cause) for cause in values["causes"]),
            "evidence": Evidence(**{place: tuple(ids) for place, ids in values["evidence"].items()}),
        }
    )
    return StoredFinding(row.run_id, row.cycle, row.finding_id, row.recorded_at, finding, row.candidate or None)
