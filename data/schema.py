"""The interaction: one user request and all the agent did with it, up to the user's reaction.

These records are the only shape in which behaviour enters Palomar. A source turns foreign logs into them, the lake
keeps them (``palomar.data.arrow`` derives the Arrow schema from the same annotations, so the two cannot drift apart),
and everything later reads them.

Three rules hold throughout:

- **None means "not known"**, never zero and never "no". A log without token counts has ``tokens_out=None``.
- **author is not role**: in most formats the harness speaks as "user". ``role`` is what the log said, ``author`` who
  it was.
- **nothing is lost**: what a format holds and the schema does not name is kept as JSON text in ``extra_json``.

Times are UTC. Durations are seconds. Text is as logged; it is untrusted and must be shown as text, never as markup.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, model_validator

SCHEMA_VERSION = 1

Author = Literal["person", "agent", "tool", "harness"]
Invalidity = Literal["malformed", "unparsed", "unknown_tool", "schema", "rejected"]
CallOutcome = Literal["ok", "failed", "timed_out", "refused", "not_run", "unknown"]
EditForm = Literal["unified_diff", "search_replace", "old_new", "whole_file", "heredoc", "unknown"]
EditOutcome = Literal["applied", "failed", "proposed", "unknown"]
FeedbackKind = Literal[
    "kept", "reverted", "undo", "follow_up", "answer", "refusal", "interruption", "rating", "copied", "tests"
]
FollowUpLabel = Literal["dissatisfied", "satisfied", "neutral", "unclear"]
RewardKind = Literal["proxy", "held_out", "test", "judge", "metric", "unknown"]
Traffic = Literal["production", "shadow", "canary", "evaluation"]


def _to_utc(moment: datetime) -> datetime:
    """Naive times are refused: a log without a zone must be given one by its source, which knows what it meant."""
    if moment.tzinfo is None:
        raise ValueError("time has no zone; give it one (UTC is 'Z')")
    return moment.astimezone(UTC)


UtcTime = Annotated[datetime, AfterValidator(_to_utc)]
Probability = Annotated[FiniteFloat, Field(ge=0.0, le=1.0)]
Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[FiniteFloat, Field(ge=0.0)]


class Record(BaseModel):
    """Frozen, strict about unknown keys; what a format has beyond the schema belongs in ``extra_json``."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ToolCall(Record):
    """One tool call as the agent wrote it, and what came of it.

    Whether the call was *valid* (``invalidity``) and what happened when it *ran* (``outcome``) are separate: a valid
    call can fail, time out, or be refused by a person; an invalid one never ran (``outcome="not_run"``), except that
    ``rejected`` means the tool itself turned it down.
    """

    call_id: str | None = None
    """Identifier in the log, which pairs the call with its result; None where the format has none."""
    name: str | None = None
    """Tool name as written; None where the call was too broken to hold one."""
    arguments: str | None = None
    """Arguments exactly as the agent wrote them (often JSON text, perhaps malformed); None where the log has none."""
    invalidity: Invalidity | None = None
    """None = valid as far as the log can tell."""
    problem: str | None = None
    """Why it is invalid, failed or was refused, in the log's words."""
    outcome: CallOutcome = "unknown"
    exit_code: int | None = None
    result: str | None = None
    """What the tool answered, as text."""
    elapsed_s: Seconds | None = None


class FunctionMeasure(Record):
    """Size of one function, as lizard measures it."""

    name: str
    lines: Count
    """Lines of code without blanks and comments (lizard's nloc)."""
    complexity: Count
    """Cyclomatic complexity (McCabe 1976)."""
    parameters: Count


class Hunk(Record):
    """One contiguous replacement; both texts hold the context lines that the log gave."""

    before: str
    after: str
    start_before: Count | None = None
    """1-based first line in the old file; None where the format does not say."""
    start_after: Count | None = None


class Edit(Record):
    """One change of one file, in whatever form the agent expressed it."""

    path: str | None
    """None where the log does not name the file."""
    form: EditForm
    outcome: EditOutcome = "unknown"
    language: str | None = None
    """Programming language by file ending, lower case (``python``); None where unknown."""
    hunks: tuple[Hunk, ...] = ()
    text: str | None = None
    """The edit exactly as logged, where hunks could not be read from it or would lose some of it."""
    lines_added: Count | None = None
    lines_removed: Count | None = None
    functions_before: tuple[FunctionMeasure, ...] | None = None
    """Functions of the file (or of the hunks, where the whole file is not known) before; None = not measured."""
    functions_after: tuple[FunctionMeasure, ...] | None = None


class Step(Record):
    """One turn of anyone in the interaction, in the log's order."""

    author: Author
    role: str
    """Role as the log has it: ``system``, ``user``, ``assistant``, ``tool``, ..."""
    text: str | None = None
    thinking: str | None = None
    """Reasoning that the log keeps apart from the answer."""
    tool_calls: tuple[ToolCall, ...] = ()
    edits: tuple[Edit, ...] = ()
    is_question: bool | None = None
    """True: the agent ends its work by asking the person something. Only for the agent's steps; None = not known."""
    at: UtcTime | None = None
    elapsed_s: Seconds | None = None
    model: str | None = None
    parent: Count | None = None
    """Index of the step this one answers, where the log is a tree; None = the step before."""
    branch: str | None = None
    """Name of a side branch (subagent, sidechain, abandoned retry); None = main line."""
    truncated: bool | None = None
    """True: the output hit a length limit."""
    tokens_in: Count | None = None
    tokens_out: Count | None = None
    token_ids: tuple[int, ...] | None = None
    """Sampled tokens of this step, where the trainer logged them."""
    logprobs: tuple[FiniteFloat, ...] | None = None
    """Log-probability of each of ``token_ids`` under the policy that sampled it, natural log."""
    reward: FiniteFloat | None = None
    """Reward credited to this very step, where the log has one."""
    extra_json: str | None = None


class Feedback(Record):
    """One reaction of a person (or of what stands in for one), with its time."""

    kind: FeedbackKind
    author: Author = "person"
    at: UtcTime | None = None
    text: str | None = None
    """The person's words (``follow_up``, ``answer``, ``refusal``)."""
    value: FiniteFloat | None = None
    """``rating``: as logged; ``kept``: share of the edited lines still there; ``tests``: share that pass."""
    path: str | None = None
    label: FollowUpLabel | None = None
    """Class of a follow-up, by the classifier or by a person; None = not classified yet."""
    label_by: str | None = None
    """Who gave the label: ``classifier:<head hash>`` or a person's name."""
    label_probability: Probability | None = None


class Reward(Record):
    """One reward as the log has it. A scorer that failed has ``value=None`` and a reason; that is not zero."""

    name: str
    value: FiniteFloat | None
    weight: FiniteFloat | None = None
    kind: RewardKind = "unknown"
    invalid_reason: str | None = None
    """Why there is no value; None only where there is one."""
    infrastructure: bool = False
    """True: the log says that the scorer or the environment failed, not the agent."""

    @model_validator(mode="after")
    def _value_or_reason(self) -> Reward:
        if (self.value is None) == (self.invalid_reason is None):
            raise ValueError("a reward has either a value or an invalid_reason")
        return self


class Cohort(Record):
    """Who asked for what kind of work. None = not known."""

    organisation: str | None = None
    work_kind: str | None = None
    language: str | None = None
    """Programming language of the work, lower case."""


class Interaction(Record):
    """One user request and all the agent did with it, up to the user's reaction."""

    interaction_id: str
    """Unique and stable: the log's own id where it has one, else ``content_id`` of the record."""
    source: str
    """Name of the format it came from, e.g. ``mini-swe-agent``; ``production`` for our own simulated one."""
    origin: str
    """File (and member) it was read from, or the run that produced it."""
    origin_record: Count | None = None
    """1-based line or record in ``origin``."""
    conversation_id: str | None = None
    """Shared by the turns of one conversation; the outcome is credited over it."""
    turn: Count = 0
    """Position of the request in its conversation, from 0."""
    task_id: str | None = None
    group_id: str | None = None
    """Shared by samples drawn for the same prompt (GRPO group)."""
    user_id: str | None = None
    """Pseudonym of the person; standard errors are clustered by it."""
    checkpoint: str | None = None
    """Policy that answered; a model name where no checkpoint is known."""
    cycle: Count | None = None
    """Training cycle in which it was collected; None for logs outside a loop."""
    cohort: Cohort = Cohort()
    arm: str | None = None
    """Arm of an experiment."""
    traffic: Traffic = "production"
    predicted_failure: Probability | None = None
    """Chance that an edit here fails, as predicted from the request alone, before the agent acted."""
    ambiguity: Probability | None = None
    """Chance that the request cannot be met without asking, predicted from the request alone."""
    started_at: UtcTime | None = None
    ended_at: UtcTime | None = None
    latency_s: Seconds | None = None
    """Time the user waited for the agent."""
    tokens_in: Count | None = None
    tokens_out: Count | None = None
    """Tokens the agent wrote, over all its steps."""
    stop_reason: str | None = None
    """Why the agent stopped, in the log's words (``Submitted``, ``max_turns``, ...)."""
    tests_passed: Count | None = None
    tests_run: Count | None = None
    """Tests that were run on the result; None = none known, 0 = it was tried and there were none."""
    steps: tuple[Step, ...]
    feedback: tuple[Feedback, ...] = ()
    rewards: tuple[Reward, ...] = ()
    labels: tuple[str, ...] = ()
    """Judgements that came with the log, as ``name=value`` (``resolved=true``, ``judge=hack``)."""
    extra_json: str | None = None


def content_id(*parts: str) -> str:
    """Identifier of content: 20 hex digits of SHA-256 over the parts, each framed by its length."""
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "big"))
        digest.update(encoded)
    return digest.hexdigest()[:20]
