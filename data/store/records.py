"""What the store holds, as plain frozen records; the tables are in ``models``.

Times are UTC. A None means "not known" or "not yet", as its docstring says; it is never a zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from palomar.data.findings import ALL, Finding, Severity

RunStatus = Literal["running", "complete", "stopped"]
CycleStatus = Literal["running", "complete", "stopped"]
StageName = Literal["collect", "distil", "train", "check", "evaluate", "decide", "deploy"]
CheckpointStatus = Literal["candidate", "promoted", "blocked", "rolled_back", "superseded"]
Verdict = Literal["promote", "hold", "block"]
Place = Literal["collected", "trained", "excluded", "quarantined", "waiting"]
CycleVerdict = Literal["pass", "warn", "block", "not_assessable"]
"""What the findings of a cycle come to; `Verdict` is the gate's word on a candidate."""

Details = Mapping[str, object]
"""JSON object; NaN and infinity are refused (say None and why), tuples come back as lists."""


@dataclass(frozen=True)
class Run:
    """One loop: a seed and a resolved config, from its first cycle to its last."""

    run_id: str
    name: str
    seed: int
    config: Details
    """The resolved config, all defaults filled in."""
    status: RunStatus
    created_at: datetime


@dataclass(frozen=True)
class Stage:
    """A stage that is done; a stage without a record has still to be done."""

    run_id: str
    cycle: int
    stage: StageName
    elapsed_s: float
    detail: Details
    """Figures of the stage: for ``train`` kl, policy lag, entropy, clip fraction, mean reward, n, ..."""
    finished_at: datetime


@dataclass(frozen=True)
class Cycle:
    """One turn of the loop, with the stages that are done, in their order."""

    run_id: str
    cycle: int
    checkpoint_id: str | None
    """Checkpoint that served users in it; None for foreign series, which do not say."""
    reward_version: str | None
    status: CycleStatus
    problem: str | None
    """Why it stopped; None unless it did."""
    started_at: datetime
    finished_at: datetime | None
    """None while it runs."""
    stages: tuple[Stage, ...] = ()


@dataclass(frozen=True)
class Checkpoint:
    """One set of weights and how it fared. In a run exactly one is ``promoted`` once one ever was."""

    run_id: str
    checkpoint_id: str
    cycle: int | None
    """Cycle that trained it; None for the base that the run began with."""
    parent_id: str | None
    """Checkpoint it was trained from; None for the base."""
    path: str
    """Folder of the weights, as its writer names it."""
    sha256: str
    status: CheckpointStatus
    reason: str | None
    """Why it has this status; None for a candidate that nothing was decided about."""
    served_from: int | None
    """First cycle that it served; None = never promoted."""
    created_at: datetime
    status_at: datetime
    """When it got its status."""


@dataclass(frozen=True)
class Champion:
    """The checkpoint that serves users, and from which cycle on."""

    checkpoint: Checkpoint
    since_cycle: int


@dataclass(frozen=True)
class Evaluation:
    """One metric of an evaluation suite for one checkpoint."""

    checkpoint_id: str
    suite: str
    metric: str
    value: float | None
    """None = it could not be measured."""
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True)
class RewardVersion:
    """One reward spec, word for word. Never changed once written."""

    version: str
    """Content hash, by ``palomar.reward.spec``."""
    parent: str | None
    text: str
    reason: str
    actor: str
    created_at: datetime


@dataclass(frozen=True)
class ScheduledReward:
    """From which cycle on a run uses a reward version."""

    run_id: str
    from_cycle: int
    version: str
    scheduled_at: datetime


@dataclass(frozen=True)
class Decision:
    """What the gate said about a candidate. One per candidate, never changed once written."""

    run_id: str
    cycle: int
    candidate: str
    verdict: Verdict
    reasons: tuple[str, ...]
    """Reason codes, the deciding one first."""
    evidence: Details
    policy: str
    """Version of the gate's policy."""
    created_at: datetime


@dataclass(frozen=True)
class LedgerRow:
    """How many samples of one stratum went to one place in one cycle."""

    cycle: int
    stratum: str
    place: Place
    reason: str
    """Name of the rule or problem; empty where the place needs none (collected, trained)."""
    count: int


@dataclass(frozen=True)
class QuarantinedRow:
    """A record that could not be read, without its bytes; those are in the lake's quarantine."""

    content_id: str
    source: str
    """File (and member) of the first sighting."""
    line: int | None
    field: str | None
    kind: str
    problem: str


@dataclass(frozen=True)
class QuarantineEntry(QuarantinedRow):
    """A quarantined record with the times at which ingestion met it."""

    first_seen_at: datetime
    last_seen_at: datetime
    seen: int
    """Ingestions that met it (not lines: a file that repeats it counts once)."""


@dataclass(frozen=True)
class Statistic:
    """One behaviour statistic in one slice of one cycle."""

    cycle: int
    slice: str
    statistic: str
    value: float | None
    """None unless ``status`` says that it is a number."""
    low: float | None
    high: float | None
    n: int
    """Size of the denominator."""
    status: str
    maturity: float | None
    """Share of the rows (0..1) whose outcome has been watched long enough; None where it needs no waiting."""


@dataclass(frozen=True)
class StoredFinding:
    """A finding, and where and when it was found."""

    run_id: str
    cycle: int
    finding_id: str
    """Content id of run, cycle and the finding's key (and candidate, where there is one): the same when the cycle is
    checked again. Further findings of the same key are numbered."""
    recorded_at: datetime
    finding: Finding
    candidate: str | None = None
    """Checkpoint that it is about; None = the cycle."""


@dataclass(frozen=True)
class CheckedCycle:
    """What all findings of a cycle, or of a candidate, come to. Another takes its place when it is checked again."""

    run_id: str
    cycle: int
    verdict: CycleVerdict
    reasons: tuple[str, ...]
    """Short codes, the deciding one first."""
    sentence: str
    findings: Mapping[Severity, int]
    """How many there were, by severity."""
    budget: str
    """Which error is held at what rate over all that was tested, in words."""
    as_of: datetime | None
    """Reactions up to then were known; None where the log has no times."""
    checked_at: datetime
    candidate: str | None = None
    """Checkpoint that it is about; None = the cycle."""


@dataclass(frozen=True)
class Baseline:
    """Cycles that later ones are compared with. Never changed once set: a later entry takes over from its cycle on."""

    run_id: str
    number: int
    """Place in the run's history, from 0."""
    from_cycle: int
    """First cycle that is judged by it."""
    cycles: tuple[int, ...]
    """Ascending, all before ``from_cycle``."""
    reason: str
    """``first cycles``, ``honest learning was promoted``, or a person's words."""
    actor: str
    set_at: datetime


@dataclass(frozen=True)
class Forecast:
    """What a statistic was expected to be in a later cycle, and what came."""

    made_in: int
    """Cycle whose pressure it rests on."""
    for_cycle: int
    statistic: str
    value: float
    """Expected level."""
    change: float
    """Expected change from the level in ``made_in``."""
    slice: str = ALL
    low: float | None = None
    """Of the interval of the level; None = no interval is known."""
    high: float | None = None
    step: float | None = None
    """Step size (eta) that the pressure was multiplied with; None = it was made otherwise."""
    came: float | None = None
    """Level that was measured in ``for_cycle``; None until it is known."""

    @property
    def inside(self) -> bool | None:
        """Whether the interval holds what came; None until it is known, or without an interval."""
        if self.came is None or self.low is None or self.high is None:
            return None
        return self.low <= self.came <= self.high


@dataclass(frozen=True)
class AuditEntry:
    """Something that someone did. Never changed, never removed."""

    number: int
    """Place in the log, from 1, without gaps. The order of events, where clocks disagree."""
    at: str
    """Time in UTC by the writer's clock, ISO 8601 with microseconds: text, since the hash is over what is stored."""
    actor: str
    action: str
    """What was done, ``part.verb``: ``incident.resolve``."""
    subject: str
    """What it was done to, ``kind:id``: ``incident:12``."""
    reason: str
    detail: Details
    token: str
    """Id of the request; no two entries share one."""
    previous: str
    """Hash of the entry before it."""
    hash: str


@dataclass(frozen=True)
class AuditHead:
    """Where the audit log ends; kept outside, it pins all that came before."""

    entries: int
    hash: str

    def __str__(self) -> str:
        return f"{self.entries}:{self.hash}"


@dataclass(frozen=True)
class AuditProblem:
    """The first thing that is wrong with the audit log."""

    number: int | None
    """Entry it is about; None where it has no number."""
    kind: Literal["changed", "missing", "moved", "head", "pinned"]
    why: str


@dataclass(frozen=True)
class Health:
    """Whether the store answers. Never raised, always returned, so that a page can say it."""

    where: str
    reachable: bool
    problem: str | None
    """Why it does not answer; None when it does."""
    schema: str | None
    """Version of the schema; None when it could not be asked."""
    elapsed_s: float
