"""Agentic RL rollouts as the tinker cookbook's environments write them, one JSON document each.

``rollouts[]`` are the messages, ``metrics{}`` the rewards and faults, ``env_type`` and ``env_config`` the environment.

Who speaks: the first ``user`` message is the request, every later one the harness (a tool's output, or the complaint
that no tool was called). A call that could not be parsed stands in ``unparsed_tool_calls``, or as text with call
markup, or only shows in the harness's complaint; each is ``unparsed``. The tools are read from the system prompt. The
exit code that the harness prints tells whether a call failed; only where it prints none do its words.

``public_reward`` is what was trained on (proxy), ``private_reward`` is held out. Where the container failed, the
start-up commands failed or the tests could not run, both are invalid by infrastructure, whatever number was logged.
``tests_timed_out`` is not among them: a solution that hangs is the agent's doing, so its reward stands and the fact
becomes a label.

A reward list (``{"rewards": [...], "metadata": {...}}``) has numbers without transcripts, so there is no behaviour to
read and no interaction: it goes to quarantine as ``no_interaction`` with its count; `palomar.data.reward_lists` reads
them as an aggregated series.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from palomar.data.errors import IngestError
from palomar.data.quarantine import Quarantined
from palomar.data.schema import CallOutcome, Interaction, Reward, Step, ToolCall
from palomar.data.sources import Head, Native, SourceFile, each_record, source
from palomar.data.sources._chat import (
    Content,
    Tools,
    Transcript,
    call_of,
    content_of,
    expect,
    extra,
    failed_reward,
    identity,
    interactions,
    looks_like_call,
    reward_of,
)

_TOOLS = re.compile(r"<tools>(.*?)</tools>", re.DOTALL)
_COMPLAINT = "There was an error parsing the tool call"
_FAULTS = {
    "docker_error": "the container failed",
    "could_not_run_tests": "the tests could not be run",
    "failed_startup_commands": "the start-up commands failed",
}
_EXIT_CODE = re.compile(r"^EXIT CODE: (-?\d+)\s*$", re.MULTILINE)
_TIMED_OUT = re.compile(r"\btimed out\b", re.IGNORECASE)
_TIMEOUT_CODE = 124
"""Exit code of ``timeout(1)`` when it had to stop the command."""


@source("tinker-rollouts")
class TinkerRollouts:
    """Reader of tinker cookbook rollouts."""

    name: str
    title = "Tinker cookbook rollout (JSON)"

    def sniff(self, head: Head) -> float:
        """By the keys ``rollouts`` (messages) with ``metrics`` or ``env_type``, or ``rewards`` with ``metadata``."""
        first = head.first
        if not isinstance(first, dict):
            return 0.0
        rollouts = first.get("rollouts")
        if isinstance(rollouts, list) and rollouts and isinstance(rollouts[0], dict) and "role" in rollouts[0]:
            return 0.9
        return 0.8 if isinstance(first.get("rewards"), list) and head.keys <= {"rewards", "metadata"} else 0.0

    def read(self, file: SourceFile) -> Iterator[Interaction | Quarantined]:
        """The one interaction of each document."""
        return each_record(file, file.records(), _parse)


def _parse(record: Native, file: SourceFile) -> list[Interaction]:
    value = expect(record.value, dict, "")
    if "rollouts" not in value and isinstance(value.get("rewards"), list):
        problem = f"{len(value['rewards'])} rewards without transcripts; import them as an aggregated series"
        raise IngestError("", None, "rewards", problem, "no_interaction")
    messages = expect(value.get("rollouts"), list, "rollouts")
    metrics = value.get("metrics")
    metrics = metrics if isinstance(metrics, dict) else {}
    transcript = Transcript()
    tools: Tools | None = None
    asked = False
    for position, message in enumerate(messages):
        where = f"rollouts[{position}]"
        expect(message, dict, where)
        role = expect(message.get("role"), str, f"{where}.role")
        content = content_of(message.get("content"))
        if role == "assistant":
            transcript.add(_agent_step(message, content, tools, messages[position + 1 :]))
        elif role == "user" and not asked:
            asked = True
            transcript.add(Step(author="person", role=role, text=content.text))
        elif role == "system":
            tools = _tools(content.text) or tools
            transcript.add(Step(author="harness", role=role, text=content.text))
        else:
            _reply(transcript, role, content.text or "")
    return interactions(
        transcript.finished(),
        conversation_id=identity("tinker-rollouts", value),
        common={
            "source": "tinker-rollouts",
            "origin": file.origin,
            "origin_record": record.number,
            "checkpoint": value.get("checkpoint") if isinstance(value.get("checkpoint"), str) else None,
            "group_id": value.get("group_id") if isinstance(value.get("group_id"), str) else None,
        },
        first={"extra_json": extra(**{key: item for key, item in value.items() if key != "rollouts"})},
        last={
            "rewards": _rewards(metrics),
            "labels": ("tests_timed_out=true",) if metrics.get("tests_timed_out") else (),
        },
    )


def _tools(prompt: str | None) -> Tools | None:
    """The tools that a system prompt lists, one JSON definition a line."""
    found = _TOOLS.search(prompt or "")
    definitions = []
    for line in found.group(1).splitlines() if found else []:
        try:
            definitions.append(json.loads(line))
        except (ValueError, RecursionError):
            continue
    return Tools.from_definitions(definitions)


def _agent_step(message: dict[str, Any], content: Content, tools: Tools | None, rest: list[Any]) -> Step:
    raw = message.get("tool_calls")
    calls = [call_of(item, tools) for item in raw] if isinstance(raw, list) else []
    broken = message.get("unparsed_tool_calls")
    calls += [_unparsed(item) for item in broken] if isinstance(broken, list) else []
    following = rest[0] if rest and isinstance(rest[0], dict) else {}
    complaint = content_of(following.get("content")).text or ""
    if not calls and (looks_like_call(content.text) or complaint.startswith(_COMPLAINT)):
        problem = complaint.strip() or "looks like a call, and is none"
        calls = [ToolCall(invalidity="unparsed", problem=problem, outcome="not_run")]
    kept = [p for p in content.rest if not (isinstance(p, dict) and str(p.get("type", "")).endswith("tool_call"))]
    return Step(
        author="agent",
        role="assistant",
        text=content.text,
        thinking=content.thinking,
        tool_calls=tuple(calls),
        extra_json=extra(parts=kept),
    )


def _unparsed(item: Any) -> ToolCall:
    raw, error = (item.get("raw_text"), item.get("error")) if isinstance(item, dict) else (item, None)
    return ToolCall(
        arguments=raw if isinstance(raw, str) else None,
        invalidity="unparsed",
        problem=error if isinstance(error, str) else "could not be parsed",
        outcome="not_run",
    )


def _reply(transcript: Transcript, role: str, text: str) -> None:
    step = Step(author="tool" if role == "tool" else "harness", role=role)
    if text.startswith(_COMPLAINT):
        transcript.add(step.model_copy(update={"text": text}))
        return
    found = _EXIT_CODE.search(text)
    code = int(found.group(1)) if found else None
    outcome: CallOutcome | None = None
    if code == _TIMEOUT_CODE or (code is None and _TIMED_OUT.search(text)):
        outcome = "timed_out"
    elif code is not None:
        outcome = "ok" if code == 0 else "failed"
    transcript.answer(None, text, step, outcome=outcome, exit_code=code)


def _rewards(metrics: dict[str, Any]) -> tuple[Reward, ...]:
    reasons = [reason for key, reason in _FAULTS.items() if metrics.get(key)]
    found: list[Reward] = []
    for key, kind in (("public_reward", "proxy"), ("private_reward", "held_out")):
        if key not in metrics:
            continue
        if reasons:
            found.append(failed_reward(key, "; ".join(reasons), kind=kind))  # type: ignore[arg-type]
        else:
            found.append(reward_of(key, metrics[key], kind=kind))  # type: ignore[arg-type]
    return tuple(found)
