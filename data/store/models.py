"""Tables of the store. Each has a natural key, so writing the same thing twice changes nothing.

A change here needs a migration (docs/store.md says how); a test compares the two. Two rules are kept by the database
itself, in the migrations: ``reward_versions``, ``decisions``, ``baselines`` and ``audit_log`` refuse UPDATE and DELETE
by trigger, and ``one_promoted`` lets no run have two promoted checkpoints.

Rows about a cycle as such have an empty ``candidate``, where a record says None: a key holds no NULL.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, get_args

from sqlalchemy import ForeignKey, ForeignKeyConstraint, Index, MetaData, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from palomar.data import findings
from palomar.data.store import records
from palomar.data.store.columns import Key, Moment, Number, Object, OneOf, Whole, Words

KeyText = Annotated[str, mapped_column(Key)]


class Base(DeclarativeBase):
    """Gives every annotation the column type that keeps it whole on both databases."""

    # Named, so that a later migration can drop or change any of them on both databases.
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {str: Words, int: Whole, float: Number, datetime: Moment, dict[str, Any]: Object}  # noqa: RUF012


def _key(*foreign: str) -> Mapped[str]:
    return mapped_column(Key, *(ForeignKey(name) for name in foreign), primary_key=True)


def _of_cycle() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(["run_id", "cycle"], ["cycles.run_id", "cycles.cycle"])


def _of_checkpoint(column: str) -> ForeignKeyConstraint:
    return ForeignKeyConstraint(["run_id", column], ["checkpoints.run_id", "checkpoints.checkpoint_id"])


class Run(Base):
    """See `records.Run`."""

    __tablename__ = "runs"
    run_id: Mapped[str] = _key()
    name: Mapped[str]
    seed: Mapped[int]
    config: Mapped[dict[str, Any]]
    status: Mapped[str] = mapped_column(OneOf(get_args(records.RunStatus)))
    created_at: Mapped[datetime]


class RewardVersion(Base):
    """See `records.RewardVersion`."""

    __tablename__ = "reward_versions"
    version: Mapped[str] = _key()
    parent: Mapped[KeyText | None] = mapped_column(ForeignKey("reward_versions.version"))
    text: Mapped[str]
    reason: Mapped[str]
    actor: Mapped[str]
    created_at: Mapped[datetime]


class ScheduledReward(Base):
    """See `records.ScheduledReward`."""

    __tablename__ = "reward_schedule"
    run_id: Mapped[str] = _key("runs.run_id")
    from_cycle: Mapped[int] = mapped_column(primary_key=True)
    version: Mapped[KeyText] = mapped_column(ForeignKey("reward_versions.version"))
    scheduled_at: Mapped[datetime]


class RewardProposal(Base):
    """See `records.RewardProposal`."""

    __tablename__ = "reward_proposals"
    run_id: Mapped[str] = _key()
    proposal_id: Mapped[str] = _key()
    cycle: Mapped[int]
    place: Mapped[int]
    base: Mapped[KeyText] = mapped_column(ForeignKey("reward_versions.version"))
    version: Mapped[KeyText]
    kind: Mapped[str]
    title: Mapped[str]
    text: Mapped[str]
    actor: Mapped[str]
    detail: Mapped[dict[str, Any]]
    made_at: Mapped[datetime]
    __table_args__ = (_of_cycle(), Index(None, "run_id", "cycle", "place"))


class RewardChange(Base):
    """See `records.RewardChange`."""

    __tablename__ = "reward_changes"
    run_id: Mapped[str] = _key("runs.run_id")
    number: Mapped[int] = mapped_column(primary_key=True)
    from_cycle: Mapped[int]
    version: Mapped[KeyText] = mapped_column(ForeignKey("reward_versions.version"))
    instead_of: Mapped[KeyText | None] = mapped_column(ForeignKey("reward_versions.version"))
    action: Mapped[str] = mapped_column(OneOf(get_args(records.RewardAction)))
    proposal_id: Mapped[KeyText | None]
    reason: Mapped[str]
    actor: Mapped[str]
    changed_at: Mapped[datetime]
    __table_args__ = (
        ForeignKeyConstraint(["run_id", "proposal_id"], ["reward_proposals.run_id", "reward_proposals.proposal_id"]),
    )


class Checkpoint(Base):
    """See `records.Checkpoint`."""

    __tablename__ = "checkpoints"
    run_id: Mapped[str] = _key("runs.run_id")
    checkpoint_id: Mapped[str] = _key()
    cycle: Mapped[int | None]
    parent_id: Mapped[KeyText | None]
    path: Mapped[str]
    sha256: Mapped[str]
    status: Mapped[str] = mapped_column(OneOf(get_args(records.CheckpointStatus)))
    reason: Mapped[str | None]
    served_from: Mapped[int | None]
    created_at: Mapped[datetime]
    status_at: Mapped[datetime]

    _promoted = text("status = 'promoted'")
    __table_args__ = (
        _of_checkpoint("parent_id"),
        Index("one_promoted", "run_id", unique=True, sqlite_where=_promoted, postgresql_where=_promoted),
    )


class Champion(Base):
    """Pointer to the promoted checkpoint; moves in the transaction that changes the statuses."""

    __tablename__ = "champions"
    run_id: Mapped[str] = _key("runs.run_id")
    checkpoint_id: Mapped[KeyText]
    since_cycle: Mapped[int]
    __table_args__ = (_of_checkpoint("checkpoint_id"),)


class Evaluation(Base):
    """See `records.Evaluation`."""

    __tablename__ = "evaluations"
    run_id: Mapped[str] = _key()
    checkpoint_id: Mapped[str] = _key()
    suite: Mapped[str] = _key()
    metric: Mapped[str] = _key()
    value: Mapped[float | None]
    low: Mapped[float | None]
    high: Mapped[float | None]
    n: Mapped[int]
    __table_args__ = (_of_checkpoint("checkpoint_id"),)


class Cycle(Base):
    """See `records.Cycle`."""

    __tablename__ = "cycles"
    run_id: Mapped[str] = _key("runs.run_id")
    cycle: Mapped[int] = mapped_column(primary_key=True)
    checkpoint_id: Mapped[KeyText | None]
    reward_version: Mapped[KeyText | None] = mapped_column(ForeignKey("reward_versions.version"))
    status: Mapped[str] = mapped_column(OneOf(get_args(records.CycleStatus)))
    problem: Mapped[str | None]
    started_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
    __table_args__ = (_of_checkpoint("checkpoint_id"),)


class Stage(Base):
    """See `records.Stage`."""

    __tablename__ = "stages"
    run_id: Mapped[str] = _key()
    cycle: Mapped[int] = mapped_column(primary_key=True)
    stage: Mapped[str] = mapped_column(OneOf(get_args(records.StageName)), primary_key=True)
    elapsed_s: Mapped[float]
    detail: Mapped[dict[str, Any]]
    finished_at: Mapped[datetime]
    __table_args__ = (_of_cycle(),)


class Decision(Base):
    """See `records.Decision`."""

    __tablename__ = "decisions"
    run_id: Mapped[str] = _key()
    sequence: Mapped[int] = mapped_column(primary_key=True)
    decision_id: Mapped[KeyText]
    candidate: Mapped[KeyText]
    cycle: Mapped[int]
    verdict: Mapped[str] = mapped_column(OneOf(get_args(records.Verdict)))
    kind: Mapped[str | None] = mapped_column(OneOf(get_args(records.DecisionKind)))
    reasons: Mapped[Any] = mapped_column(Object, nullable=False)
    sentence: Mapped[str]
    evidence: Mapped[dict[str, Any]]
    inputs: Mapped[dict[str, Any] | None]
    policy: Mapped[str]
    policy_text: Mapped[str | None]
    expires_at: Mapped[datetime | None]
    supersedes: Mapped[KeyText | None]
    actor: Mapped[str]
    created_at: Mapped[datetime]
    __table_args__ = (
        _of_cycle(),
        _of_checkpoint("candidate"),
        Index(None, "run_id", "cycle"),
        Index(None, "run_id", "candidate", "sequence"),
        Index(None, "decision_id", unique=True),
    )


class Override(Base):
    """See `records.Override`."""

    __tablename__ = "overrides"
    override_id: Mapped[str] = _key()
    run_id: Mapped[KeyText]
    candidate: Mapped[KeyText]
    number: Mapped[int]
    decision_id: Mapped[KeyText] = mapped_column(ForeignKey("decisions.decision_id"))
    verdict: Mapped[str] = mapped_column(OneOf(get_args(records.Verdict)))
    reason: Mapped[str]
    hours: Mapped[float]
    requested_by: Mapped[str]
    requested_at: Mapped[datetime]
    approved_by: Mapped[str | None]
    approved_at: Mapped[datetime | None]
    approval: Mapped[str | None]
    made: Mapped[KeyText | None]
    __table_args__ = (_of_checkpoint("candidate"), Index(None, "run_id", "candidate", "number", unique=True))


class LedgerRow(Base):
    """See `records.LedgerRow`."""

    __tablename__ = "ledger"
    run_id: Mapped[str] = _key()
    cycle: Mapped[int] = mapped_column(primary_key=True)
    stratum: Mapped[str] = _key()
    place: Mapped[str] = mapped_column(OneOf(get_args(records.Place)), primary_key=True)
    reason: Mapped[str] = _key()
    count: Mapped[int]
    __table_args__ = (_of_cycle(),)


class Quarantined(Base):
    """See `records.QuarantinedRow`."""

    __tablename__ = "quarantine"
    content_id: Mapped[str] = _key()
    source: Mapped[str]
    line: Mapped[int | None]
    field: Mapped[str | None]
    kind: Mapped[KeyText] = mapped_column(index=True)
    problem: Mapped[str]


class Sighting(Base):
    """An ingestion that met a quarantined record. Rows, not a counter: adding the same row twice counts once."""

    __tablename__ = "quarantine_sightings"
    content_id: Mapped[str] = _key("quarantine.content_id")
    at: Mapped[datetime] = mapped_column(primary_key=True)


class Statistic(Base):
    """See `records.Statistic`.

    The key begins with the cycle, so that a cycle's rows are written side by side; a series is read by one seek per
    cycle. A second index in series order would make each write touch a page per series.
    """

    __tablename__ = "statistics"
    run_id: Mapped[str] = _key()
    cycle: Mapped[int] = mapped_column(primary_key=True)
    statistic: Mapped[str] = _key()
    slice: Mapped[str] = _key()
    value: Mapped[float | None]
    low: Mapped[float | None]
    high: Mapped[float | None]
    n: Mapped[int]
    status: Mapped[str]
    maturity: Mapped[float | None]
    __table_args__ = (_of_cycle(), {"sqlite_with_rowid": False})


class Finding(Base):
    """See `records.StoredFinding`; what is read by has a column, what is only shown is JSON."""

    __tablename__ = "findings"
    run_id: Mapped[str] = _key()
    candidate: Mapped[str] = _key()
    cycle: Mapped[int] = mapped_column(primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    finding_id: Mapped[KeyText]
    key: Mapped[KeyText]
    recorded_at: Mapped[datetime]
    detector: Mapped[str]
    severity: Mapped[str] = mapped_column(OneOf(get_args(findings.Severity)))
    sentence: Mapped[str]
    statistic: Mapped[str | None]
    slice: Mapped[str]
    unit: Mapped[str | None]
    before: Mapped[float | None]
    after: Mapped[float | None]
    effect: Mapped[float | None]
    low: Mapped[float | None]
    high: Mapped[float | None]
    test: Mapped[float | None]
    threshold: Mapped[float | None]
    error_control: Mapped[str]
    n: Mapped[int]
    maturity: Mapped[float | None]
    smallest: Mapped[float | None]
    since: Mapped[int | None]
    reading: Mapped[str | None] = mapped_column(OneOf(get_args(findings.Reading)))
    causes: Mapped[Any] = mapped_column(Object, nullable=False)
    evidence: Mapped[dict[str, Any]]
    detail: Mapped[dict[str, Any]]
    __table_args__ = (
        _of_cycle(),
        Index(None, "finding_id", unique=True),
        Index(None, "run_id", "key", "cycle"),
        Index(None, "run_id", "reading", "cycle"),
    )


class Report(Base):
    """See `findings.Report`, without its findings: what a detector assessed in a cycle and what it could not."""

    __tablename__ = "reports"
    run_id: Mapped[str] = _key()
    candidate: Mapped[str] = _key()
    cycle: Mapped[int] = mapped_column(primary_key=True)
    detector: Mapped[str] = _key()
    assessed: Mapped[int]
    unassessed: Mapped[Any] = mapped_column(Object, nullable=False)
    power: Mapped[str]
    recorded_at: Mapped[datetime]
    __table_args__ = (_of_cycle(),)


class CheckedCycle(Base):
    """See `records.CheckedCycle`."""

    __tablename__ = "verdicts"
    run_id: Mapped[str] = _key()
    candidate: Mapped[str] = _key()
    cycle: Mapped[int] = mapped_column(primary_key=True)
    verdict: Mapped[str] = mapped_column(OneOf(get_args(records.CycleVerdict)))
    reasons: Mapped[Any] = mapped_column(Object, nullable=False)
    sentence: Mapped[str]
    findings: Mapped[dict[str, Any]]
    budget: Mapped[str]
    as_of: Mapped[datetime | None]
    checked_at: Mapped[datetime]
    __table_args__ = (_of_cycle(),)


class Baseline(Base):
    """See `records.Baseline`. Its first cycle may still be to come, so it refers to the run only."""

    __tablename__ = "baselines"
    run_id: Mapped[str] = _key("runs.run_id")
    number: Mapped[int] = mapped_column(primary_key=True)
    from_cycle: Mapped[int]
    cycles: Mapped[Any] = mapped_column(Object, nullable=False)
    reason: Mapped[str]
    actor: Mapped[str]
    set_at: Mapped[datetime]
    __table_args__ = (Index(None, "run_id", "from_cycle", "number"),)


class Forecast(Base):
    """See `records.Forecast`."""

    __tablename__ = "forecasts"
    run_id: Mapped[str] = _key()
    for_cycle: Mapped[int] = mapped_column(primary_key=True)
    made_in: Mapped[int] = mapped_column(primary_key=True)
    statistic: Mapped[str] = _key()
    slice: Mapped[str] = _key()
    value: Mapped[float]
    change: Mapped[float]
    low: Mapped[float | None]
    high: Mapped[float | None]
    step: Mapped[float | None]
    came: Mapped[float | None]
    __table_args__ = (
        ForeignKeyConstraint(["run_id", "made_in"], ["cycles.run_id", "cycles.cycle"]),
        Index(None, "run_id", "made_in"),
        Index(None, "run_id", "statistic", "slice", "for_cycle", "made_in"),
    )


class AuditEntry(Base):
    """See `records.AuditEntry`. The time is text, since the hash is over what is stored."""

    __tablename__ = "audit_log"
    number: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[str]
    actor: Mapped[str]
    action: Mapped[str]
    subject: Mapped[KeyText]
    reason: Mapped[str]
    detail: Mapped[dict[str, Any]]
    token: Mapped[KeyText]
    previous: Mapped[str]
    hash: Mapped[str]
    __table_args__ = (Index(None, "token", unique=True), Index(None, "subject", "number"))


class AuditHead(Base):
    """See `records.AuditHead`; one row, which every writer of the log locks."""

    __tablename__ = "audit_log_head"
    log: Mapped[str] = _key()
    entries: Mapped[int]
    hash: Mapped[str]


class Incident(Base):
    """See `records.Incident`. Numbered by the store: people say the number."""

    __tablename__ = "incidents"
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    run_id: Mapped[KeyText] = mapped_column(ForeignKey("runs.run_id"))
    title: Mapped[str]
    strands: Mapped[Any] = mapped_column(Object, nullable=False)
    family: Mapped[str]
    blocks: Mapped[int]
    state: Mapped[str] = mapped_column(OneOf(get_args(records.IncidentState)))
    opened_cycle: Mapped[int]
    seen_cycle: Mapped[int]
    opened_at: Mapped[datetime]
    changed_at: Mapped[datetime]
    assignee: Mapped[str | None]
    cause: Mapped[dict[str, Any] | None]
    resolution: Mapped[str | None] = mapped_column(OneOf(get_args(records.Resolution)))
    resolved_cycle: Mapped[int | None]
    until_cycle: Mapped[int | None]
    until: Mapped[datetime | None]
    scope: Mapped[Any] = mapped_column(Object, nullable=False)
    reopened: Mapped[int]
    __table_args__ = (Index(None, "run_id", "state", "number"),)


class PinnedFinding(Base):
    """See `records.PinnedFinding`."""

    __tablename__ = "incident_findings"
    incident: Mapped[int] = mapped_column(ForeignKey("incidents.number"), primary_key=True)
    finding_id: Mapped[str] = _key()
    key: Mapped[KeyText]
    cycle: Mapped[int]
    why: Mapped[str]
    finding: Mapped[dict[str, Any]]
    pinned_at: Mapped[datetime]


class AlarmVote(Base):
    """See `records.AlarmVote`."""

    __tablename__ = "incident_votes"
    incident: Mapped[int] = mapped_column(ForeignKey("incidents.number"), primary_key=True)
    detector: Mapped[str] = _key()
    actor: Mapped[str] = _key()
    vote: Mapped[str] = mapped_column(OneOf(get_args(records.Vote)))
    voted_at: Mapped[datetime]


class Silence(Base):
    """See `records.Silence`."""

    __tablename__ = "silences"
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    run_id: Mapped[KeyText] = mapped_column(ForeignKey("runs.run_id"))
    detector: Mapped[str]
    statistic: Mapped[str | None]
    slice: Mapped[str | None]
    reason: Mapped[str]
    actor: Mapped[str]
    made_at: Mapped[datetime]
    until_cycle: Mapped[int | None]
    until: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    ended_by: Mapped[str | None]
    ended_reason: Mapped[str | None]
    __table_args__ = (Index(None, "run_id", "number"),)


class SilencedFinding(Base):
    """See `records.SilencedFinding`."""

    __tablename__ = "silenced_findings"
    silence: Mapped[int] = mapped_column(ForeignKey("silences.number"), primary_key=True)
    finding_id: Mapped[str] = _key()
    key: Mapped[KeyText]
    cycle: Mapped[int]
    blocks: Mapped[int]
    sentence: Mapped[str]
    silenced_at: Mapped[datetime]


class ApiToken(Base):
    """See `records.ApiToken`; of the secret only its hash is here."""

    __tablename__ = "api_tokens"
    token_id: Mapped[str] = _key()
    name: Mapped[KeyText]
    roles: Mapped[Any] = mapped_column(Object, nullable=False)
    hash: Mapped[str]
    created_at: Mapped[datetime]
    created_by: Mapped[str]
    expires_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]
    revoked_by: Mapped[str | None]
    __table_args__ = (Index(None, "name", unique=True),)


class Channel(Base):
    """See `records.Channel`."""

    __tablename__ = "channels"
    run_id: Mapped[str] = _key("runs.run_id")
    channel: Mapped[str] = _key()
    read_to: Mapped[int]
    since: Mapped[datetime]


class Message(Base):
    """See `records.Message`."""

    __tablename__ = "messages"
    run_id: Mapped[str] = _key()
    channel: Mapped[str] = _key()
    number: Mapped[int] = mapped_column(primary_key=True)
    event: Mapped[str]
    body: Mapped[str]
    state: Mapped[str] = mapped_column(OneOf(get_args(records.MessageState)))
    attempts: Mapped[int]
    next_at: Mapped[datetime]
    problem: Mapped[str | None]
    queued_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    __table_args__ = (ForeignKeyConstraint(["run_id", "channel"], ["channels.run_id", "channels.channel"]),)


class Job(Base):
    """See `records.Job`."""

    __tablename__ = "jobs"
    job_id: Mapped[str] = _key()
    token: Mapped[KeyText]
    kind: Mapped[str]
    arguments: Mapped[dict[str, Any]]
    actor: Mapped[str]
    state: Mapped[str] = mapped_column(OneOf(get_args(records.JobState)))
    progress: Mapped[float]
    step: Mapped[str]
    result: Mapped[dict[str, Any] | None]
    error: Mapped[str | None]
    worker: Mapped[str | None]
    asked_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    heard_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    __table_args__ = (Index(None, "token", unique=True), Index(None, "state", "asked_at"))


class Label(Base):
    """See `records.Label`."""

    __tablename__ = "labels"
    finding_id: Mapped[str] = _key()
    interaction_id: Mapped[str] = _key()
    actor: Mapped[str] = _key()
    run_id: Mapped[KeyText] = mapped_column(ForeignKey("runs.run_id"))
    detector: Mapped[str]
    place: Mapped[str] = mapped_column(OneOf(get_args(records.ExamplePlace)))
    label: Mapped[str] = mapped_column(OneOf(get_args(records.ExampleLabel)))
    labelled_at: Mapped[datetime]
    __table_args__ = (Index(None, "interaction_id"),)
