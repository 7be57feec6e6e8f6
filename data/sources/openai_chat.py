"""OpenAI chat messages, one conversation a line: ``{"messages": [...], "tools": [...]}`` or a bare list of messages.

Who speaks: ``user`` is the person, unless the text is a tool's answer in the harness's wrapping (``<tool_response>``,
``Observation:`` and the like, see `HARNESS`); ``system`` and ``developer`` are the harness. A call is invalid as
`palomar.data.sources._chat.validity` says; a call written as text (``<tool_call>{...}``) that no message answers is
``unparsed``. A tool's answer that says the call itself was wrong makes it ``rejected``; one that starts with an error
makes it ``failed``; any other answer leaves the outcome unknown, since the format has no field for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from palomar.data.errors import IngestError
from palomar.data.quarantine import Quarantined
from palomar.data.schema import Author, CallOutcome, Interaction, Invalidity, Step, ToolCall
from palomar.data.sources import Head, Native, SourceFile, each_record, source
from palomar.data.sources._chat import (
    Content,
    Tools,
    Transcript,
    call_of,
    content_of,
    expect,
    extra,
    identity,
    interactions,
    looks_like_call,
    reward_of,
    time_of,
    validity,
)
from palomar.data.sources._file import is_message

HARNESS = re.compile(
    r"\s*(?:<tool_response>|<tool_result|<function_results?>|<environment_details>|<returncode>|<system-reminder>"
    r"|observation:|\[tool (?:result|output)|execution (?:result|output):)",
    re.IGNORECASE,
)
"""How a harness that has only the role ``user`` marks what it says."""

_FAILED = re.compile(
    r"\s*(?:error\b|traceback \(most recent call last\)|exception\b|\{\s*['\"]error['\"])", re.IGNORECASE
)
_REJECTED = re.compile(
    r"(?:unknown|no such|invalid|unrecognized) (?:tool|function)\b|\b(?:tool|function) \S+ (?:not found|does not exist)"
    r"|inputvalidationerror|invalid arguments?\b|missing (?:\d+ )?required|unexpected keyword argument"
    r"|(?:failed|could not|unable) to parse (?:the )?(?:tool|function|arguments)",
    re.IGNORECASE,
)
_TIMED_OUT = re.compile(r"\btimed out\b|\btimeout(?: error|error|expired)?\b", re.IGNORECASE)
_TEXT_CALL = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)", re.DOTALL)

_ROLES: Mapping[str, Author] = {
    "user": "person",
    "assistant": "agent",
    "tool": "tool",
    "function": "tool",
    "ipython": "tool",
    "system": "harness",
    "developer": "harness",
}
_NAMED = ("messages", "tools", "functions", "model", "user", "user_id", "reward", "rewards", "task_id", "group_id")


@source("openai-chat")
class OpenAIChat:
    """Reader of chat messages."""

    name: str
    title = "OpenAI chat messages (JSON Lines)"

    def sniff(self, head: Head) -> float:
        """Records that are chat messages, with few keys that would mean a richer format."""
        for record in head.records:
            messages = record.get("messages") if isinstance(record, dict) else record
            if isinstance(messages, list) and messages and is_message(messages[0]):
                return 0.5 if isinstance(record, dict) else 0.4
        return 0.0

    def read(self, file: SourceFile) -> Iterator[Interaction | Quarantined]:
        """Interactions of each conversation, in order."""
        return each_record(file, file.records(), _parse)


def _parse(record: Native, file: SourceFile) -> list[Interaction]:
    value = record.value
    if isinstance(value, list):
        value = {"messages": value}
    if not isinstance(value, dict):
        raise IngestError("", None, None, f"expected an object or a list, found {type(value).__name__}", "schema")
    messages = expect(value.get("messages"), list, "messages")
    tools = Tools.from_definitions(value.get("tools") or value.get("functions"))
    transcript = Transcript()
    for position, message in enumerate(messages):
        where = f"messages[{position}]"
        expect(message, dict, where)
        expect(message.get("role"), str, f"{where}.role")
        _add(transcript, message, messages[position + 1 :], tools)
    rewards: dict[str, Any] = {"reward": value["reward"]} if "reward" in value else {}
    if isinstance(value.get("rewards"), dict):
        rewards |= value["rewards"]
    return interactions(
        transcript.finished(),
        conversation_id=identity("openai-chat", value),
        common={
            "source": "openai-chat",
            "origin": file.origin,
            "origin_record": record.number,
            "checkpoint": _text(value.get("model")),
            "user_id": _text(value.get("user_id")) or _text(value.get("user")),
            "task_id": _text(value.get("task_id")),
            "group_id": _text(value.get("group_id")),
        },
        first={
            "extra_json": extra(
                tools=value.get("tools") or value.get("functions"),
                **{key: item for key, item in value.items() if key not in _NAMED},
            )
        },
        last={"rewards": tuple(reward_of(name, item) for name, item in rewards.items())},
    )


def _text(value: Any) -> str | None:
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) and value != "" else None


def _add(transcript: Transcript, message: dict[str, Any], rest: list[Any], tools: Tools | None) -> None:
    role = message["role"]
    content = content_of(message.get("content"))
    author = _ROLES.get(role, "harness")
    from_harness = author == "person" and bool(content.text and HARNESS.match(content.text))
    step = Step(
        author="harness" if from_harness else author,
        role=role,
        text=content.text,
        thinking=content.thinking or _text(message.get("reasoning_content")) or _text(message.get("reasoning")),
        at=time_of(message.get("timestamp", message.get("created_at"))),
        model=_text(message.get("model")),
        extra_json=extra(parts=_other_parts(content), name=message.get("name"), refusal=message.get("refusal")),
    )
    if author == "agent":
        transcript.add(step.model_copy(update={"tool_calls": _calls(message, content, rest, tools)}))
        return
    results = [part for part in content.rest if isinstance(part, dict) and part.get("type") == "tool_result"]
    for part in results:
        answer = content_of(part.get("content")).text
        bringing = step.model_copy(update={"author": "tool", "extra_json": None})
        _answer(transcript, _text(part.get("tool_use_id")), answer, bringing, failed=part.get("is_error") is True)
    if author == "tool" or from_harness:
        _answer(transcript, _text(message.get("tool_call_id")), content.text, step)
    elif content.text is not None or not results:
        transcript.add(step)


def _other_parts(content: Content) -> list[Any]:
    return [p for p in content.rest if not (isinstance(p, dict) and p.get("type") in ("tool_use", "tool_result"))]


def _calls(message: dict[str, Any], content: Content, rest: list[Any], tools: Tools | None) -> tuple[ToolCall, ...]:
    raw = message.get("tool_calls")
    calls = [call_of(item, tools) for item in raw] if isinstance(raw, list) else []
    if isinstance(message.get("function_call"), dict):  # the form before tools
        calls.append(call_of(message["function_call"], tools))
    calls += [call_of(p, tools) for p in content.rest if isinstance(p, dict) and p.get("type") == "tool_use"]
    if not calls and looks_like_call(content.text):
        following = rest[0] if rest and isinstance(rest[0], dict) else {}
        text = content_of(following.get("content")).text
        answered = following.get("role") in ("tool", "function") or bool(text and HARNESS.match(text))
        calls = [_text_call(found, answered, tools) for found in _TEXT_CALL.findall(content.text or "")] or [
            ToolCall(invalidity="unparsed", problem="looks like a call, and is none", outcome="not_run")
        ]
    return tuple(calls)


def _text_call(text: str, answered: bool, tools: Tools | None) -> ToolCall:
    """A call written as text; valid only where it is JSON and was answered."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as exc:
        return ToolCall(arguments=text, invalidity="unparsed", problem=f"not JSON: {exc}", outcome="not_run")
    if not answered or not isinstance(value, dict):
        return ToolCall(arguments=text, invalidity="unparsed", problem="no one ran it", outcome="not_run")
    kind, problem = validity(_text(value.get("name")), value.get("arguments"), tools)
    return call_of(value, tools).model_copy(update={"invalidity": kind, "problem": problem})


def _answer(transcript: Transcript, call_id: str | None, text: str | None, step: Step, *, failed: bool = False) -> None:
    head = (text or "")[:400]
    failed = failed or bool(_FAILED.match(head))
    rejected = failed and bool(_REJECTED.search(head))
    invalidity: Invalidity | None = "rejected" if rejected else None
    outcome: CallOutcome | None = None
    if failed:
        outcome = "timed_out" if _TIMED_OUT.search(head) else "failed"
    transcript.answer(call_id, text, step, outcome=outcome, problem=head if failed else None, invalidity=invalidity)
