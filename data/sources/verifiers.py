"""Episodes of verifiers and prime-rl: ``traces.jsonl``, one episode a line, one or more traces (agents) in each.

A native record is an episode; every trace whose agent spoke is an interaction. Traps:

- a trace is a tree of nodes by ``parent``. The path to the last node is the main line; other nodes are marked with the
  name of their branch;
- ``arguments`` of a tool call is the raw text, so malformed calls can be counted;
- ``rewards[name] = null`` means that scoring did not run: an invalid reward, never 0. The reward is the sum of
  ``score * weight``;
- prime-rl writes ``all/traces.jsonl`` and ``effective/traces.jsonl`` with the same episodes; identifiers come from the
  episode's own, so the second is recognised as known. What only ``all`` has was filtered from training;
- None fields are left out of the file, so a missing key says nothing;
- messages with the role "user" after the agent's first are the environment's;
- ``token_ids`` of a node may hold tokens of the chat template too; ``mask`` says which were sampled;
- ``run.work.policy`` gives the first and last version of the policy that took part; they may differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from palomar.data.quarantine import Quarantined
from palomar.data.schema import Cohort, Interaction, Reward, Step, content_id
from palomar.data.sources import Head, Native, SourceFile, each_record, source
from palomar.data.sources._chat import expect, extra, failed_reward, merged, reward_of, summary, time_of
from palomar.data.sources._json import dumps
from palomar.data.sources._messages import chat_steps

_NODE_READ = frozenset({"parent", "sampled", "message", "timestamp", "token_ids", "mask", "logprobs"})
_TRACE_READ = frozenset({"nodes", "rewards", "metrics", "stop_condition"})
_EPISODE_READ = frozenset({"id", "traces", "group"})


@source("verifiers")
class Verifiers:
    """Reader of verifiers and prime-rl episodes."""

    name: str
    title = "verifiers / prime-rl episodes (traces.jsonl)"

    def sniff(self, head: Head) -> float:
        """By an episode's keys."""
        if not {"traces", "task"} <= head.keys or not isinstance(head.first["traces"], list):
            return 0.0
        return 0.95 if head.keys & {"env", "group", "run", "ok"} else 0.7

    def read(self, file: SourceFile) -> Iterator[Interaction | Quarantined]:
        """Interactions of all traces of all episodes."""
        return each_record(file, file.records(), _interactions)


def _interactions(native: Native, file: SourceFile) -> list[Interaction]:
    episode = expect(native.value, dict, "record")
    traces = expect(episode.get("traces"), list, "traces")
    identifier = episode.get("id")
    identity = identifier if isinstance(identifier, str) and identifier else dumps(episode)
    work = _part(_part(episode, "run"), "work")
    task = _part(episode, "task")
    found = []
    for index, trace in enumerate(traces):
        where = f"traces[{index}]"
        expect(trace, dict, where)
        steps = _steps(trace, where)
        if not any(step.author == "agent" for step in steps):
            continue
        step_number = work.get("step")
        found.append(
            Interaction(
                interaction_id=content_id("verifiers", identity, str(index)),
                source="verifiers",
                origin=file.origin,
                origin_record=native.number,
                conversation_id=content_id("verifiers", identity),
                turn=index,
                task_id=_text(task.get("key")) or _text(task.get("hash")),
                group_id=_text(_part(episode, "group").get("id")),
                checkpoint=_checkpoint(trace, work),
                cycle=step_number if isinstance(step_number, int) else None,
                cohort=Cohort(work_kind=_text(_part(episode, "env").get("id"))),
                traffic="evaluation" if work.get("type") == "eval" else "production",
                stop_reason=_text(trace.get("stop_condition")),
                steps=tuple(steps),
                rewards=tuple(_rewards(trace, episode)),
                labels=tuple(f"{key}={dumps(episode[key])}" for key in ("ok", "is_timeout") if key in episode),
                extra_json=extra(
                    episode={key: value for key, value in episode.items() if key not in _EPISODE_READ},
                    trace={key: value for key, value in trace.items() if key not in _TRACE_READ},
                ),
                **summary(steps) | _waited(trace),
            )
        )
    return found


def _part(record: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = record.get(key)
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return None if value is None else value if isinstance(value, str) else dumps(value)


def _steps(trace: Mapping[str, Any], where: str) -> list[Step]:
    """Steps of the nodes, one each."""
    nodes = expect(trace.get("nodes"), list, f"{where}.nodes")
    messages = [
        expect(expect(node, dict, f"{where}.nodes[{i}]").get("message"), dict, f"{where}.nodes[{i}].message")
        for i, node in enumerate(nodes)
    ]
    steps = chat_steps(messages, where=f"{where}.nodes", later_users="harness")
    branches = _branches([node.get("parent") for node in nodes])
    calls = {call["node"]: call for call in _list(trace.get("calls")) if isinstance(call, dict) and "node" in call}
    done = []
    for index, (node, step) in enumerate(zip(nodes, steps, strict=True)):
        parent = node.get("parent")
        sampled, rest = _sampled(node)
        rest |= {key: node[key] for key in node if key not in _NODE_READ}
        done.append(
            step.model_copy(
                update={
                    "at": time_of(node.get("timestamp")),
                    "parent": parent if isinstance(parent, int) and 0 <= parent != index - 1 else None,
                    "branch": branches[index],
                    "extra_json": merged(step.extra_json, extra(**rest)),
                    **sampled,
                    **_call(calls.get(index, {})),
                }
            )
        )
    return done


def _branches(parents: Sequence[Any]) -> list[str | None]:
    """Branch of each node: None on the path to the last node, else named after the node where the branch ends.

    A node without ``parent`` follows the node before it, except for the first.
    """
    above = [
        parent if isinstance(parent, int) and 0 <= parent < index else index - 1 for index, parent in enumerate(parents)
    ]
    branches: list[str | None] = [""] * len(parents)
    for leaf in reversed(range(len(parents))):
        name = None if leaf == len(parents) - 1 else f"to node {leaf}"
        at = leaf
        while at >= 0 and branches[at] == "":
            branches[at] = name
            at = above[at]
    return branches


def _sampled(node: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Sampled tokens and their log-probabilities as fields of the step, and what is kept beside it as logged.

    The latter are tokens that nobody sampled (the prompt's, the template's), and lists of lengths that do not fit.
    """
    whole = {key: node[key] for key in ("token_ids", "mask", "logprobs") if node.get(key) is not None}
    tokens, logprobs, mask = node.get("token_ids"), node.get("logprobs"), node.get("mask")
    if not isinstance(tokens, list) or not node.get("sampled", True):
        return {}, whole
    chosen = [index for index, use in enumerate(mask) if use] if isinstance(mask, list) else list(range(len(tokens)))
    if isinstance(mask, list) and len(mask) != len(tokens):
        return {}, whole
    update: dict[str, Any] = {"token_ids": tuple(tokens[index] for index in chosen), "tokens_out": len(chosen)}
    if isinstance(logprobs, list):
        if len(logprobs) not in (len(tokens), len(chosen)):
            return {}, whole
        kept = logprobs if len(logprobs) == len(chosen) else [logprobs[index] for index in chosen]
        update["logprobs"] = tuple(float(value) for value in kept)
    return update, whole if len(chosen) < len(tokens) else {}


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    """What the log says of the model call that sampled a node."""
    if not call:
        return {}
    update: dict[str, Any] = {"model": _text(call.get("model"))}
    if isinstance(call.get("finish_reason"), str):
        update["truncated"] = call["finish_reason"] == "length"
    usage, time = _part(call, "usage"), _part(call, "time")
    for name, keys in (
        ("tokens_in", ("prompt_tokens", "input_tokens")),
        ("tokens_out", ("completion_tokens", "output_tokens")),
    ):
        count = next((usage[key] for key in keys if isinstance(usage.get(key), int)), None)
        if count is not None:
            update[name] = count
    if (elapsed := _span(time)) is not None:
        update["elapsed_s"] = elapsed
    return update


def _span(time: Mapping[str, Any]) -> float | None:
    start, end = time_of(time.get("start")), time_of(time.get("end"))
    return (end - start).total_seconds() if start is not None and end is not None and end >= start else None


def _waited(trace: Mapping[str, Any]) -> dict[str, float]:
    """Seconds that the agent worked, where the trace has its times."""
    agent = _part(trace, "timing").get("agent")
    seconds = _span(agent) if isinstance(agent, dict) else agent
    return {"latency_s": float(seconds)} if isinstance(seconds, int | float) and seconds >= 0 else {}


def _checkpoint(trace: Mapping[str, Any], work: Mapping[str, Any]) -> str | None:
    """Model and the versions of the policy that took part: ``name@3``, or ``name@3-4`` where it changed on the way."""
    models = [call.get("model") for call in _list(trace.get("calls")) if isinstance(call, dict)]
    model = next((name for name in models if isinstance(name, str)), None)
    policy = _part(work, "policy")
    start, end = policy.get("start"), policy.get("end")
    if start is None and end is None:
        return model
    versions = f"{start}" if start == end or end is None else f"{start}-{end}"
    return f"{model or _text(_part(trace, 'agent').get('name')) or 'policy'}@{versions}"


def _rewards(trace: Mapping[str, Any], episode: Mapping[str, Any]) -> Iterator[Reward]:
    failures = [*_list(trace.get("errors")), *_list(episode.get("errors"))]
    failed = next(
        (f"{error.get('type')}: {error.get('message')}" for error in failures if isinstance(error, dict)), None
    )
    if failed is None and (trace.get("is_timeout") or episode.get("is_timeout")):
        failed = "the rollout timed out"
    for name, given in expect(trace.get("rewards") or {}, dict, "rewards").items():
        if given is None:
            reason = "scoring did not run"
            if failed is None:
                yield Reward(name=name, value=None, kind="proxy", invalid_reason=reason)
            else:
                yield failed_reward(name, f"{reason} ({failed})"[:500], kind="proxy")
        elif isinstance(given, dict):
            weight = given.get("weight")
            weight = float(weight) if isinstance(weight, int | float) and not isinstance(weight, bool) else None
            yield reward_of(name, given.get("score"), kind="proxy", weight=weight)
        else:
            yield reward_of(name, given, kind="proxy")
    for name, value in expect(trace.get("metrics") or {}, dict, "metrics").items():
        yield reward_of(name, value, kind="metric")


def _list(value: Any) -> list[Any]:
    """The value where it is a list; a field of another type says nothing we could use."""
    return value if isinstance(value, list) else []
