"""What the store holds, as plain frozen records; the tables are in ``models``.

Times are UTC. A None means "not known" or "not yet", as its docstring says; it is never a zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from palomar.data.findings import Finding, Severity
from palomar.data.slices import ALL

RunStatus = Literal["running", "complete", "stopped"]
CycleStatus = Literal["running", "complete", "stopped"]
StageName = Literal["collect", "distil", "train", "check", "respond", "evaluate", "decide", "deploy"]
CheckpointStatus = Literal["candidate", "promoted", "blocked", "rolled_back", "superseded"]
Verdict = Literal["promote", "hold", "block"]
DecisionKind = Literal["improved", "neutral", "override"]
"""Of a promotion: some measure of success improved; nothing got worse and nothing is shown to be better; or two people
decided otherwise than the rule, which any verdict can be."""
Place = Literal["collected", "trained", "excluded", "quarantined", "waiting"]
IncidentState = Literal["open", "acknowledged", "mitigated", "resolved"]
Resolution = Literal["patched", "rolled_back", "accepted", "false_alarm"]
Vote = Literal["useful", "not_useful"]
ExampleLabel = Literal["hack", "not", "cannot_tell"]
"""What a person thinks of one interaction: the agent plays the reward, it does not, or it cannot be told."""
ExamplePlace = Literal["carrying", "random", "counter"]
"""As what an interaction was shown, see `data.findings.Evidence`."""
CycleVerdict = Literal["pass", "warn", "block", "not_assessable"]
"""What the findings of a cycle come to; `Verdict` is the gate's word on a candidate."""

TokenRole = Literal["ingest", "read", "decide", "admin"]
"""``decide`` may also read, ``admin`` may do everything."""
MessageState = Literal["waiting", "sent", "given_up"]

RewardAction = Literal["patch", "revert"]
"""Why a run goes over to another reward version."""

JobState = Literal["queued", "running", "done", "failed"]

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
class RewardProposal:
    """A patch of a run's reward, as it was proposed. Never changed once written."""

    run_id: str
    proposal_id: str
    """Content id of run, cycle, base and version: the same data give the same proposal the same id."""
    cycle: int
    """Newest cycle that it rests on."""
    place: int
    """1 = the best of its cycle."""
    base: str
    """Version that it changes; once another is in force, the proposal is stale."""
    version: str
    """Content hash of the spec that it would make; a stored version only once it was applied."""
    kind: str
    """``weights``, ``rule``, ``term`` or ``together``, by ``palomar.reward.patch``."""
    title: str
    text: str
    """YAML of the whole spec."""
    actor: str
    detail: Details
    """Diff, targets turned and not, what is lost, who is hurt, pressures, the predicted next cycle."""
    made_at: datetime


@dataclass(frozen=True)
class RewardChange:
    """A run went over to another reward version. Never changed once written."""

    run_id: str
    number: int
    """Place in the run's history, from 0."""
    from_cycle: int
    version: str
    instead_of: str | None
    """Version that would have been in force."""
    action: RewardAction
    proposal_id: str | None
    """Of a patch: the proposal that was applied."""
    reason: str
    actor: str
    changed_at: datetime


@dataclass(frozen=True)
class Decision:
    """What was decided about a candidate. Never changed once written; taken again, it is a further one."""

    run_id: str
    cycle: int
    candidate: str
    verdict: Verdict
    reasons: tuple[str, ...]
    """Reason codes, the deciding one first."""
    evidence: Details
    """What each check came to, or whatever the gate keeps."""
    policy: str
    """Version of the gate's policy."""
    created_at: datetime
    decision_id: str
    """Run and sequence: ``demo:12``."""
    sequence: int
    """Place in the run's decisions, from 1; the highest of a candidate stands."""
    actor: str
    kind: DecisionKind | None = None
    """None for what is no promotion, unless it is an override, and where the gate does not say."""
    sentence: str = ""
    """For people; empty where the gate has none."""
    inputs: Details | None = None
    """All that the rule was given, so that it can be asked again; None where it was not kept."""
    policy_text: str | None = None
    """The policy, word for word; None where it has no text."""
    expires_at: datetime | None = None
    """Until when it stands; None = until another takes its place."""
    supersedes: str | None = None
    """Id of the decision about the same candidate that it took the place of."""


@dataclass(frozen=True)
class DecisionWord:
    """What stands about a candidate, without the evidence: for lists and pictures of many cycles."""

    cycle: int
    candidate: str
    verdict: Verdict
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Override:
    """A decision other than the rule's, asked for by one person and made by another."""

    override_id: str
    """Run, candidate and number: ``demo:c9:override-1``."""
    run_id: str
    candidate: str
    number: int
    """Of the candidate's overrides, from 1."""
    decision_id: str
    """Decision that it is to take the place of."""
    verdict: Verdict
    reason: str
    hours: float
    """How long it stands from its approval on."""
    requested_by: str
    requested_at: datetime
    approved_by: str | None
    """None = nobody has yet."""
    approved_at: datetime | None
    approval: str | None
    """What the second person said."""
    made: str | None
    """Id of the decision that came of it."""


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
class Assessment:
    """What one detector did over all cycles of a run that were checked."""

    detector: str
    checks: int
    """Cycles in which it was asked."""
    assessed: int
    """Of them, those in which it could test something."""
    newest: int | None
    """The last of those; None = it never could."""
    asked: int
    """Last cycle in which it was asked."""


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
class Scope:
    """What an accepted incident covers. None = any."""

    statistic: str | None
    slice: str | None


@dataclass(frozen=True)
class Incident:
    """Findings that belong together, from alarm to end. What happened to it is in the audit log (``incident:N``)."""

    number: int
    run_id: str
    title: str
    strands: tuple[str, ...]
    """What the agent does in it, see `palomar.detectors.grouping`; a strand may join later."""
    family: str
    """``all`` kinds of tasks, or the cohort that it was opened for: ``organisation=north``."""
    blocks: bool
    """Whether one of its findings blocks; else it keeps a cycle from being judged."""
    state: IncidentState
    opened_cycle: int
    """Cycle of the first finding that opened it."""
    seen_cycle: int
    """Last cycle in which a finding that would open it was found."""
    opened_at: datetime
    changed_at: datetime
    """Of its state, owner or cause."""
    assignee: str | None
    cause: Details | None
    """Root cause in a person's ``words``, with ``term``, ``slice`` and ``reward`` where they name them; None = not
    known yet."""
    resolution: Resolution | None
    """How it ended; None unless it is resolved."""
    resolved_cycle: int | None
    """Last cycle that the resolution speaks of: a finding of a later one reopens it, whenever it arrives."""
    until_cycle: int | None
    """Of an accepted one: last cycle in which it is accepted; None = the end is a time."""
    until: datetime | None
    """Of an accepted one: cycles that began later are not covered; None = the end is a cycle."""
    scope: tuple[Scope, ...]
    """Of an accepted one: what is accepted; one of them is enough."""
    reopened: int
    """How often."""


@dataclass(frozen=True)
class PinnedFinding:
    """A finding of an incident as it was when it joined. Never changed; later numbers are read beside it."""

    incident: int
    finding_id: str
    key: str
    cycle: int
    why: str
    """Why it belongs to the incident."""
    finding: Finding
    pinned_at: datetime


@dataclass(frozen=True)
class AlarmVote:
    """What one person thinks of what one detector said in an incident; their last word stands."""

    incident: int
    detector: str
    actor: str
    vote: Vote
    voted_at: datetime


@dataclass(frozen=True)
class Silence:
    """A detector, or one thing that it looks at, opens no incident for a while. It never lets a checkpoint pass."""

    number: int
    run_id: str
    detector: str
    statistic: str | None
    """None = any."""
    slice: str | None
    """None = any."""
    reason: str
    actor: str
    made_at: datetime
    until_cycle: int | None
    """Last cycle in which it holds; None = the end is a time."""
    until: datetime | None
    """Cycles that began later are not covered; None = the end is a cycle."""
    ended_at: datetime | None
    """When somebody ended it before; None = nobody did."""
    ended_by: str | None
    ended_reason: str | None


@dataclass(frozen=True)
class SilencedFinding:
    """A finding that would have opened an incident, and did not. Never changed; the finding is among the others."""

    silence: int
    finding_id: str
    key: str
    cycle: int
    blocks: bool
    """Whether it blocks; else it keeps a cycle from being judged."""
    sentence: str
    """Of the finding, as it was then."""
    silenced_at: datetime


@dataclass(frozen=True)
class Label:
    """What one person thinks of one interaction that a finding names; their last word stands."""

    finding_id: str
    interaction_id: str
    actor: str
    run_id: str
    detector: str
    """That made the finding."""
    place: ExamplePlace
    label: ExampleLabel
    labelled_at: datetime


@dataclass(frozen=True)
class ApiToken:
    """A token of a program that speaks to the HTTP API, without its secret, which nobody keeps."""

    token_id: str
    """Public part of the token."""
    name: str
    """Who acts with it: the actor of all that it does. No two tokens ever share one."""
    roles: tuple[TokenRole, ...]
    created_at: datetime
    created_by: str
    expires_at: datetime
    revoked_at: datetime | None
    """None = not revoked."""
    revoked_by: str | None


@dataclass(frozen=True)
class Channel:
    """A way out of a run, to one other system."""

    run_id: str
    channel: str
    read_to: int
    """Number of the last entry of the audit log that was read for it."""
    since: datetime


@dataclass(frozen=True)
class Message:
    """Something that one other system is to be told, and whether it was."""

    run_id: str
    channel: str
    number: int
    """Of the entry of the audit log that it tells of: with run and channel, it names the message."""
    event: str
    """What happened: ``promote``, ``incident``, ..."""
    body: str
    """As JSON; never changed once it is here."""
    state: MessageState
    attempts: int
    """Begun so far."""
    next_at: datetime
    """Not tried before."""
    problem: str | None
    """Of the last attempt; None where it went well, or where there was none."""
    queued_at: datetime
    ended_at: datetime | None
    """When it was sent or given up."""


@dataclass(frozen=True)
class Job:
    """Long work that somebody asked for, and how far it is."""

    job_id: str
    token: str
    """Of the request; the same again is the same job."""
    kind: str
    arguments: Details
    actor: str
    state: JobState
    progress: float
    """From 0 to 1."""
    step: str
    """What is being done, in words."""
    result: Details | None
    """What came of it; None until it is done, and in lists, which leave it out."""
    error: str | None
    """Why it failed; None unless it did."""
    worker: str | None
    """Who does it, or did; None while it waits."""
    asked_at: datetime
    started_at: datetime | None
    heard_at: datetime | None
    """Last sign of life of its worker."""
    finished_at: datetime | None


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
