"""The gate's decisions, and overrides. None is ever changed; a later one about the same candidate takes its place.

The highest number of a candidate stands, but for an override whose time is over. Decisions of a run are numbered under
the run's lock, so that of two that are taken at once one comes first, and the other is told what stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, func, or_, select, update
from sqlalchemy import insert as plain_insert

from palomar.data.store import models
from palomar.data.store.audit_log import append_entry
from palomar.data.store.database import Database, as_json, lock_run
from palomar.data.store.records import Decision, DecisionKind, DecisionWord, Details, Override, Verdict
from palomar.data.store.tables import columns

THE_LOOP = "palomar run"
"""Who decides where nobody is named."""


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
        **kept: Any,
    ) -> Decision:
        """The decision, written if it is the first; the same again changes nothing, another one is a StoreError.

        ``kept``: further columns (kind, sentence, inputs, policy_text, expires_at), which do not make it another one.
        """
        given: dict[str, Any] = {
            "cycle": cycle,
            "verdict": verdict,
            "reasons": list(reasons),
            "evidence": evidence,
            "policy": policy,
        }

        def work(connection: Connection) -> Decision:
            lock_run(connection, self._database, run_id)
            stored = _standing(connection, run_id, candidate, datetime.now(UTC))
            if stored is None:
                return _write(connection, self._database, run_id, candidate, {**given, **kept, "actor": THE_LOOP})
            for name, value in given.items():
                if as_json(getattr(stored, name)) != as_json(value):
                    raise self._database.refuse(
                        f"{candidate!r} of run {run_id!r} was decided already ({stored.verdict}, "
                        f"{stored.created_at:%Y-%m-%d %H:%M} UTC), with another {name}"
                    )
            return stored

        return self._database.write(work)

    def take(
        self,
        run_id: str,
        candidate: str,
        *,
        after: int,
        cycle: int,
        verdict: Verdict,
        kind: DecisionKind | None,
        reasons: Sequence[str],
        sentence: str,
        evidence: Details,
        inputs: Details | None,
        policy: str,
        policy_text: str | None,
        expires_at: datetime | None,
        actor: str = THE_LOOP,
    ) -> Decision:
        """The decision about the candidate that stands afterwards: this one, or one that came first.

        ``after``: the highest number of the candidate's decisions that was known when this one was made, 0 for none.
        Where there is a higher one by now, nothing is written.
        """
        given: dict[str, Any] = {
            "cycle": cycle,
            "verdict": verdict,
            "kind": kind,
            "reasons": list(reasons),
            "sentence": sentence,
            "evidence": evidence,
            "inputs": inputs,
            "policy": policy,
            "policy_text": policy_text,
            "expires_at": expires_at,
            "actor": actor,
        }

        def work(connection: Connection) -> Decision:
            lock_run(connection, self._database, run_id)
            standing = _standing(connection, run_id, candidate, datetime.now(UTC))
            if standing is not None and _highest(connection, run_id, candidate) > after:
                return standing
            return _write(connection, self._database, run_id, candidate, given, standing=standing)

        return self._database.write(work)

    def get(self, run_id: str, candidate: str) -> Decision | None:
        """The decision about the candidate that stands; None where nothing was decided yet."""
        return self._database.read(lambda connection: _standing(connection, run_id, candidate, datetime.now(UTC)))

    def highest(self, run_id: str, candidate: str) -> int:
        """The highest number of the candidate's decisions, 0 for none; for `take`."""
        return self._database.read(lambda connection: _highest(connection, run_id, candidate))

    def find(self, decision_id: str) -> Decision | None:
        """The decision of that id; None where there is none."""
        model = models.Decision
        query = select(*columns(model, Decision)).where(model.decision_id == decision_id)

        def work(connection: Connection) -> Decision | None:
            row = connection.execute(query).one_or_none()
            return None if row is None else _read(row)

        return self._database.read(work)

    def history(self, run_id: str, candidate: str) -> list[Decision]:
        """All that was decided about the candidate, oldest first."""
        model = models.Decision
        query = select(*columns(model, Decision)).where(model.run_id == run_id, model.candidate == candidate)
        query = query.order_by(model.sequence)
        return self._database.read(lambda connection: [_read(row) for row in connection.execute(query)])

    def words(self, run_id: str, *, since: int = 0) -> dict[int, DecisionWord]:
        """By cycle, from ``since`` on: what stands about the candidate that it trained, without the evidence."""
        model = models.Decision
        numbers = (
            select(func.max(model.sequence))
            .where(model.run_id == run_id, model.cycle >= since, _in_force(datetime.now(UTC)))
            .group_by(model.candidate)
        )
        query = select(*columns(model, DecisionWord)).where(model.run_id == run_id, model.sequence.in_(numbers))
        query = query.order_by(model.sequence)

        def work(connection: Connection) -> dict[int, DecisionWord]:
            rows = connection.execute(query)
            return {row.cycle: DecisionWord(row.cycle, row.candidate, row.verdict, tuple(row.reasons)) for row in rows}

        return self._database.read(work)

    def latest(self, run_id: str, *, count: int) -> list[Decision]:
        """What stands of the run's last ``count`` candidates, newest cycle first."""
        model = models.Decision
        numbers = (
            select(func.max(model.sequence))
            .where(model.run_id == run_id, _in_force(datetime.now(UTC)))
            .group_by(model.candidate)
        )
        query = select(*columns(model, Decision)).where(model.run_id == run_id, model.sequence.in_(numbers))
        query = query.order_by(model.cycle.desc(), model.created_at.desc(), model.candidate).limit(count)
        return self._database.read(lambda connection: [_read(row) for row in connection.execute(query)])


class Overrides:
    """Decisions that two people make against the rule: one asks, another approves, and it ends by itself."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def request(
        self, run_id: str, candidate: str, *, verdict: Verdict, reason: str, hours: float, actor: str
    ) -> Override:
        """The request; the same again changes nothing.

        StoreError without a reason, where nothing was decided yet, or where the verdict is the one that stands.
        """
        if not reason.strip() or not actor.strip():
            raise self._database.refuse("an override needs a reason, and someone who asks for it")

        def work(connection: Connection) -> Override:
            lock_run(connection, self._database, run_id)
            now = datetime.now(UTC)
            standing = _standing(connection, run_id, candidate, now)
            if standing is None:
                raise self._database.refuse(
                    f"nothing was decided about {candidate!r} of run {run_id!r} that could be overridden"
                )
            if standing.verdict == verdict:
                raise self._database.refuse(f"{standing.decision_id} says {verdict} already")
            given: dict[str, Any] = {
                "decision_id": standing.decision_id,
                "verdict": verdict,
                "reason": reason,
                "hours": hours,
                "requested_by": actor,
            }
            before = _overrides(connection, models.Override.run_id == run_id, models.Override.candidate == candidate)
            for each in before:
                if each.made is None and all(getattr(each, name) == value for name, value in given.items()):
                    return each
            number = len(before) + 1
            row = {
                "override_id": f"{run_id}:{candidate}:override-{number}",
                "run_id": run_id,
                "candidate": candidate,
                "number": number,
                **given,
                "requested_at": now,
            }
            connection.execute(plain_insert(models.Override).values(**row))
            append_entry(
                connection,
                self._database,
                actor=actor,
                action="gate.override.request",
                subject=f"candidate:{candidate}",
                reason=reason,
                detail={"override": row["override_id"], "instead_of": standing.decision_id, "verdict": verdict},
            )
            return self._require(connection, row["override_id"])

        return self._database.write(work)

    def approve(self, override_id: str, *, actor: str, approval: str) -> Decision:
        """The decision that comes of the request; approving again changes nothing.

        StoreError where the one who approves is the one who asked, and where what it was to override stands no more.
        """

        def work(connection: Connection) -> Decision:
            asked = self._require(connection, override_id)
            lock_run(connection, self._database, asked.run_id)
            asked = self._require(connection, override_id)
            if asked.made is not None:
                made = _one(connection, models.Decision.decision_id == asked.made)
                assert made is not None, "decisions are never deleted"
                return made
            if not actor.strip() or _person(actor) == _person(asked.requested_by):
                raise self._database.refuse(
                    f"{override_id} was asked for by {asked.requested_by}: another person must approve it"
                )
            now = datetime.now(UTC)
            standing = _standing(connection, asked.run_id, asked.candidate, now)
            assert standing is not None, "decisions are never deleted"
            if standing.decision_id != asked.decision_id:
                raise self._database.refuse(
                    f"{override_id} was to take the place of {asked.decision_id}, but {standing.decision_id} stands "
                    "by now; ask again"
                )
            given: dict[str, Any] = {
                "cycle": standing.cycle,
                "verdict": asked.verdict,
                "kind": "override",
                "reasons": [f"override:{standing.verdict}_to_{asked.verdict}", *standing.reasons],
                "sentence": f"{asked.requested_by} asked for it and {actor} approved: {asked.reason}",
                "evidence": {"override": override_id, "approval": approval, "rule_said": standing.decision_id},
                "policy": standing.policy,
                "policy_text": standing.policy_text,
                "expires_at": now + timedelta(hours=asked.hours),
                "actor": actor,
            }
            made = _write(connection, self._database, asked.run_id, asked.candidate, given, standing=standing)
            connection.execute(
                update(models.Override)
                .where(models.Override.override_id == override_id)
                .values(approved_by=actor, approved_at=now, approval=approval, made=made.decision_id)
            )
            append_entry(
                connection,
                self._database,
                actor=actor,
                action="gate.override.approve",
                subject=f"candidate:{asked.candidate}",
                reason=approval,
                detail={"override": override_id, "made": made.decision_id},
            )
            return made

        return self._database.write(work)

    def read(self, run_id: str) -> list[Override]:
        """All of a run, by candidate and number."""
        return self._database.read(lambda connection: _overrides(connection, models.Override.run_id == run_id))

    def _require(self, connection: Connection, override_id: str) -> Override:
        found = _overrides(connection, models.Override.override_id == override_id)
        if not found:
            raise self._database.refuse(f"there is no override {override_id!r}")
        return found[0]


def _write(
    connection: Connection,
    database: Database,
    run_id: str,
    candidate: str,
    given: Mapping[str, Any],
    *,
    standing: Decision | None = None,
) -> Decision:
    """Writes the run's next decision and its entry in the audit log. The run must be locked."""
    model = models.Decision
    sequence = 1 + (connection.scalar(select(func.max(model.sequence)).where(model.run_id == run_id)) or 0)
    decision_id = f"{run_id}:{sequence}"
    row = {
        "run_id": run_id,
        "sequence": sequence,
        "decision_id": decision_id,
        "candidate": candidate,
        "sentence": "",
        **given,
        "supersedes": None if standing is None else standing.decision_id,
        "created_at": datetime.now(UTC),
    }
    connection.execute(plain_insert(model).values(**row))
    append_entry(
        connection,
        database,
        actor=row["actor"],
        action=f"gate.{row['verdict']}",
        subject=f"candidate:{candidate}",
        reason=", ".join(row["reasons"]),
        detail={"decision": decision_id, "policy": row["policy"]},
        token=f"decision:{decision_id}",
    )
    stored = _one(connection, model.decision_id == decision_id)
    assert stored is not None
    return stored


def _in_force(now: datetime) -> ColumnElement[bool]:
    model = models.Decision
    return or_(model.kind.is_(None), model.kind != "override", model.expires_at.is_(None), model.expires_at > now)


def _standing(connection: Connection, run_id: str, candidate: str, now: datetime) -> Decision | None:
    model = models.Decision
    return _one(connection, model.run_id == run_id, model.candidate == candidate, _in_force(now))


def _highest(connection: Connection, run_id: str, candidate: str) -> int:
    model = models.Decision
    query = select(func.max(model.sequence)).where(model.run_id == run_id, model.candidate == candidate)
    return connection.scalar(query) or 0


def _one(connection: Connection, *where: ColumnElement[bool]) -> Decision | None:
    """The newest of those."""
    model = models.Decision
    query = select(*columns(model, Decision)).where(*where).order_by(model.sequence.desc()).limit(1)
    row = connection.execute(query).one_or_none()
    return None if row is None else _read(row)


def _overrides(connection: Connection, *where: ColumnElement[bool]) -> list[Override]:
    model = models.Override
    query = select(*columns(model, Override)).where(*where).order_by(model.candidate, model.number)
    return [Override(*row) for row in connection.execute(query)]


def _person(name: str) -> str:
    return " ".join(name.split()).casefold()


def _read(row: Row[Any]) -> Decision:
    values = dict(row._mapping)
    return Decision(**{**values, "reasons": tuple(values["reasons"])})
