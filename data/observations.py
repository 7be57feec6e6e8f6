"""The flat row of an interaction: what it did, how the user reacted, what it was paid.

Transcripts are heavy and nested; everything that counts, scores or tests reads this table instead. It is *derived*:
`palomar.data.facts` computes the behaviour and reaction columns from the raw interactions and feedback,
`palomar.reward.scoring` adds the reward columns, and both can be run again at any time, for example when later
feedback has come in. One Parquet file per cycle.

A null means "not known" (or "does not apply", where the column says so); it is never a zero.
"""

from __future__ import annotations

import pyarrow as pa

IDENTITY = pa.schema(
    [
        pa.field("interaction_id", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("conversation_id", pa.string()),
        pa.field("turn", pa.int32(), nullable=False),
        pa.field("task_id", pa.string()),
        pa.field("group_id", pa.string()),
        pa.field("user_id", pa.string()),
        pa.field("checkpoint", pa.string()),
        pa.field("cycle", pa.int32()),
        pa.field("arm", pa.string()),
        pa.field("traffic", pa.string(), nullable=False),
        pa.field("organisation", pa.string()),
        pa.field("work_kind", pa.string()),
        pa.field("language", pa.string()),
        pa.field("predicted_failure", pa.float64()),
        pa.field("ambiguity", pa.float64()),
        pa.field("started_at", pa.timestamp("us", tz="UTC")),
        pa.field("ended_at", pa.timestamp("us", tz="UTC")),
    ]
)

BEHAVIOUR = pa.schema(
    [
        # Counts of the agent's main-line and side-branch steps alike.
        pa.field("agent_turns", pa.int32(), nullable=False),
        pa.field("tool_calls", pa.int32(), nullable=False),
        pa.field("invalid_malformed", pa.int32(), nullable=False),
        pa.field("invalid_unparsed", pa.int32(), nullable=False),
        pa.field("invalid_unknown_tool", pa.int32(), nullable=False),
        pa.field("invalid_schema", pa.int32(), nullable=False),
        pa.field("invalid_rejected", pa.int32(), nullable=False),
        pa.field("calls_failed", pa.int32(), nullable=False),
        pa.field("calls_timed_out", pa.int32(), nullable=False),
        pa.field("calls_refused", pa.int32(), nullable=False),
        pa.field("edits", pa.int32(), nullable=False),  # attempted, whatever came of them
        pa.field("edits_failed", pa.int32(), nullable=False),
        pa.field("edited", pa.bool_(), nullable=False),  # at least one edit that did not fail
        pa.field("asked", pa.bool_()),  # ended by asking the person, without an edit; null = cannot tell
        pa.field("files_edited", pa.int32(), nullable=False),
        pa.field("lines_added", pa.int64()),
        pa.field("lines_removed", pa.int64()),
        pa.field("tests_edited", pa.bool_()),  # null where no edit names its path
        # Sums over the functions of the edited files; null where not measured. `_before` is the state it found.
        pa.field("functions_before", pa.int32()),
        pa.field("functions_after", pa.int32()),
        pa.field("function_lines_before", pa.int32()),
        pa.field("function_lines_after", pa.int32()),
        pa.field("function_lines_median", pa.float64()),  # of the functions after, in lines
        pa.field("complexity_before", pa.int32()),
        pa.field("complexity_after", pa.int32()),
        pa.field("complexity_max", pa.int32()),  # largest cyclomatic complexity of one function after
        pa.field("tokens_in", pa.int64()),
        pa.field("tokens_out", pa.int64()),
        pa.field("latency_s", pa.float64()),
        pa.field("truncated", pa.bool_()),
        pa.field("tests_passed", pa.int32()),
        pa.field("tests_run", pa.int32()),
        pa.field("logged_reward", pa.float64()),  # weighted sum of the log's own proxy rewards; null if any is invalid
        pa.field("logged_reward_invalid", pa.string()),  # why it is null, where the log had rewards at all
        # Of rewards without a value: whether a scorer or environment failed, not the agent; null where all have one.
        pa.field("logged_reward_infrastructure", pa.bool_()),
    ]
)

REACTION = pa.schema(
    [
        # What was known at `as_of`. A horizon h is mature for a row iff watched_s >= h (or the event came before).
        pa.field("as_of", pa.timestamp("us", tz="UTC")),
        pa.field("watched_s", pa.float64()),  # seconds from the end of the interaction to as_of; null without times
        pa.field("edit_lost_s", pa.float64()),  # seconds until the edit was reverted or undone; null = not so far
        pa.field("kept_share", pa.float64()),  # share of the edited lines at the last look, where the log has it
        pa.field("follow_up", pa.string()),  # label of the first follow-up; null = none so far
        pa.field("follow_up_s", pa.float64()),  # seconds until it came
        pa.field("undone", pa.bool_(), nullable=False),
        pa.field("refusals", pa.int32(), nullable=False),
        pa.field("answered", pa.bool_(), nullable=False),  # the person answered the agent's question
    ]
)

REWARD = pa.schema(
    [
        pa.field("reward_version", pa.string()),
        pa.field("reward", pa.float64()),  # null unless reward_status = "valid"
        pa.field("reward_status", pa.string()),  # valid | invalid | waiting; null = never scored
        pa.field("reward_reason", pa.string()),  # why it is not valid, names the term
        pa.field("included", pa.bool_()),  # trained on, by the spec's inclusion rules
        pa.field("exclusion", pa.string()),  # name of the rule that dropped it
        pa.field("outcome", pa.float64()),  # users' outcome, credited over the conversation; never trained on
        pa.field("outcome_status", pa.string()),  # mature | immature | invalid
    ]
)
"""Followed by two columns per term of the spec: ``term:<name>`` (float64) and ``status:<name>`` (string)."""

FACTS = pa.schema([*IDENTITY, *BEHAVIOUR, *REACTION])
"""What `palomar.data.facts` computes."""

OBSERVATIONS = pa.schema([*FACTS, *REWARD])
"""What the lake's ``observations`` table holds, besides the term columns."""

SAMPLES = pa.schema(
    [
        pa.field("interaction_id", pa.string(), nullable=False),
        pa.field("cycle", pa.int32(), nullable=False),  # the cycle that was offered the sample
        pa.field("sampled_cycle", pa.int32()),
        pa.field("checkpoint", pa.string()),  # that sampled it
        pa.field("policy_lag", pa.int32()),  # cycles from sampling to this update
        pa.field("reward", pa.float64()),
        pa.field("baseline", pa.float64()),
        pa.field("advantage", pa.float64()),  # null where not trained on; its pressure is then 0
        pa.field("weight", pa.float64(), nullable=False),  # 0 where not trained on
        pa.field("trained", pa.bool_(), nullable=False),
        pa.field("reason", pa.string()),  # why it does not count
        pa.field("step", pa.int32()),  # optimiser step it was used in, from 0
        pa.field("tokens", pa.int32(), nullable=False),  # tokens the policy sampled
        pa.field("ratio", pa.float64()),  # mean importance ratio of its tokens when it was used
        pa.field("clipped", pa.float64()),  # share of its tokens whose gradient the clip removed
        pa.field("kl_sampler", pa.float64()),  # sampled KL(sampler || policy) when it was used, nats a sample
    ]
)
"""What the lake's ``samples`` table holds: what the trainer made of each interaction it was offered.

A null is "not known" or "not used".
"""
