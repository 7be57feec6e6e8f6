"""What people say of single interactions that a finding names: each word in the audit log, in the same transaction."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, select

from palomar.data.store import models
from palomar.data.store.audit_log import append_entry, entry_of, lock_log
from palomar.data.store.database import Database, insert
from palomar.data.store.records import ExampleLabel, ExamplePlace, Label
from palomar.data.store.tables import columns

ACTION = "label.set"
_BATCH = 500
"""Ids in one query: SQLite takes 32,766 variables, and a shorter text is kept compiled."""


class Labels:
    """Labels of examples, by finding, interaction and person."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def set(
        self,
        finding_id: str,
        interaction_id: str,
        label: ExampleLabel,
        *,
        place: ExamplePlace,
        actor: str,
        reason: str = "",
        token: str | None = None,
    ) -> Label:
        """The person's word on it; the last stands, and the same again writes nothing.

        StoreError where no finding of that id is kept or pinned to an incident.
        """

        def work(connection: Connection) -> Label:
            lock_log(connection, self._database)
            if token is not None and (entry := entry_of(connection, token)) is not None:
                if (entry.action, entry.subject, entry.actor) != (ACTION, subject(finding_id), actor):
                    raise self._database.refuse(f"token {token!r} was used for {entry.action} of {entry.subject}")
                now = _one(connection, finding_id, interaction_id, actor)
                if now is not None:
                    return now
            before = _one(connection, finding_id, interaction_id, actor)
            if before is not None and (before.label, before.place) == (label, place):
                return before
            about = _finding(connection, finding_id)
            if about is None:
                raise self._database.refuse(f"there is no finding {finding_id!r}")
            run_id, detector = about
            key = {"finding_id": finding_id, "interaction_id": interaction_id, "actor": actor}
            row: dict[str, Any] = {"run_id": run_id, "detector": detector, "place": place, "label": label}
            row["labelled_at"] = datetime.now(UTC)
            added = insert(connection, models.Label).values(**key, **row)
            connection.execute(added.on_conflict_do_update(index_elements=list(key), set_=row))
            append_entry(
                connection,
                self._database,
                actor=actor,
                action=ACTION,
                subject=subject(finding_id),
                reason=reason,
                detail={
                    "interaction": interaction_id,
                    "label": label,
                    "was": None if before is None else before.label,
                    "place": place,
                    "detector": detector,
                },
                token=token,
            )
            made = _one(connection, finding_id, interaction_id, actor)
            assert made is not None
            return made

        return self._database.write(work)

    def read(
        self,
        *,
        findings: Collection[str] | None = None,
        interaction_id: str | None = None,
        incident: int | None = None,
    ) -> list[Label]:
        """Labels of some findings, of one interaction, of the findings pinned to an incident, where given.

        By finding, interaction and person.
        """
        model = models.Label
        query = select(*columns(model, Label))
        if incident is not None:
            pin = models.PinnedFinding
            query = query.where(model.finding_id.in_(select(pin.finding_id).where(pin.incident == incident)))
        if interaction_id is not None:
            query = query.where(model.interaction_id == interaction_id)
        query = query.order_by(model.finding_id, model.interaction_id, model.actor)
        if findings is None:
            return self._database.read(lambda connection: [Label(*row) for row in connection.execute(query)])
        wanted = sorted(set(findings))

        def work(connection: Connection) -> list[Label]:
            found: list[Label] = []
            for start in range(0, len(wanted), _BATCH):
                part = query.where(model.finding_id.in_(wanted[start : start + _BATCH]))
                found += [Label(*row) for row in connection.execute(part)]
            return found

        return self._database.read(work)


def subject(finding_id: str) -> str:
    """What the audit log calls a finding."""
    return f"finding:{finding_id}"


def _one(connection: Connection, finding_id: str, interaction_id: str, actor: str) -> Label | None:
    model = models.Label
    query = select(*columns(model, Label)).where(
        model.finding_id == finding_id, model.interaction_id == interaction_id, model.actor == actor
    )
    row = connection.execute(query).one_or_none()
    return None if row is None else Label(*row)


def _finding(connection: Connection, finding_id: str) -> tuple[str, str] | None:
    """Run and detector of a finding that is kept, else of one that is pinned."""
    model = models.Finding
    row = connection.execute(select(model.run_id, model.detector).where(model.finding_id == finding_id)).first()
    if row is not None:
        return row.run_id, row.detector
    pin, incident = models.PinnedFinding, models.Incident
    query = (
        select(incident.run_id, pin.finding)
        .join(incident, incident.number == pin.incident)
        .where(pin.finding_id == finding_id)
    )
    pinned: Sequence[Any] | None = connection.execute(query).first()
    return None if pinned is None else (pinned[0], str(pinned[1]["detector"]))
