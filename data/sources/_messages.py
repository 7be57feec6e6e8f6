"""Chat messages as steps, and the edits that tool calls make, for every format that logs OpenAI-like messages."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from palomar.data.edits import from_old_new, from_shell, from_unified_diff, from_whole_file
from palomar.data.schema import Author, CallOutcome, Edit, EditOutcome, Invalidity, Step, ToolCall, content_id
from palomar.data.sources._chat import Tools, Transcript, asks, call_of, content_of, expect, extra, time_of

AUTHORS: Mapping[str, Author] = {
    "system": "harness",
    "developer": "harness",
    "user": "person",
    "assistant": "agent",
    "tool": "tool",
    "function": "tool",
}
"""Who speaks under a role where the format has no better word for it."""


@dataclass(frozen=True)
class Judged:
    """What a tool's answer says about its call."""

    outcome: CallOutcome = "unknown"
    problem: str | None = None
    invalidity: Invalidity | None = None


Judge = Callable[[ToolCall | None, str | None, Mapping[str, Any]], Judged]
"""From a call (None where the answer fits none), its answer and the message that brought it."""


def chat_steps(
    messages: Any,
    tools: Tools | None = None,
    *,
    judge: Judge | None = None,
    where: str = "messages",
    later_users: Author = "person",
) -> list[Step]:
    """Steps of a list of OpenAI-like messages, tools' answers paired with their calls, edits read from the calls.

    `later_users` is who speaks as "user" once the agent has spoken: in an environment that is the harness.
    `judge` tells how a format marks failures; without it an answered call's outcome stays unknown. Keys of a message
    that the schema does not name are kept in ``extra_json``. Raises IngestError that names the message.
    """
    transcript = Transcript()
    calls: dict[str | None, ToolCall] = {}
    answered = False
    for index, message in enumerate(expect(messages, list, where)):
        at = f"{where}[{index}]"
        expect(message, dict, at)
        role = expect(message.get("role"), str, f"{at}.role")
        content = content_of(message.get("content"))
        raw_calls = message.get("tool_calls") or ([message["function_call"]] if message.get("function_call") else [])
        answered = answered or role == "assistant"
        step = Step(
            author=later_users if role == "user" and answered else AUTHORS.get(role, "harness"),
            role=role,
            text=content.text,
            thinking=_thinking(message, content.thinking),
            tool_calls=tuple(call_of(raw, tools) for raw in expect(raw_calls, list, f"{at}.tool_calls")),
            at=time_of(message.get("timestamp")),
            extra_json=extra(parts=list(content.rest), **{key: message[key] for key in message if key not in _READ}),
        )
        if step.author != "tool":
            transcript.add(step)
            calls |= {call.call_id: call for call in step.tool_calls}
            continue
        identifier = message.get("tool_call_id")
        identifier = identifier if isinstance(identifier, str) else None
        call = calls.get(identifier)
        judged = judge(call, step.text, message) if judge else Judged()
        known_invalid = call is not None and call.invalidity is not None  # then it never ran, whatever the answer says
        transcript.answer(
            identifier,
            step.text,
            step,
            outcome=None if known_invalid or judged.outcome == "unknown" else judged.outcome,
            problem=None if known_invalid else judged.problem,
            invalidity=judged.invalidity,
        )
    return finished(transcript.steps)


_READ = frozenset(
    {"role", "content", "tool_calls", "function_call", "tool_call_id", "timestamp", "reasoning_content", "reasoning"}
)


def _thinking(message: Mapping[str, Any], found: str | None) -> str | None:
    given = message.get("reasoning_content") or message.get("reasoning")
    return found if found is not None or not isinstance(given, str) else given


def finished(steps: Sequence[Step]) -> list[Step]:
    """The steps with what can only be said once all are there: edits with their outcomes, and who asked.

    The agent's last step before a person's, and its last one at all, can ask; others go on working.
    """
    done: list[Step] = []
    next_author: Author | None = None
    for step in reversed(steps):
        if step.author == "agent":
            edits = tuple(edit for call in step.tool_calls for edit in edits_of_call(call))
            made = step.model_copy(update={"edits": (*step.edits, *edits)}) if edits else step
            done.append(asks(made, ends_turn=next_author in (None, "person") and not made.edits))
        else:
            done.append(step)
        if step.author in ("agent", "person"):
            next_author = step.author
    return done[::-1]


_OUTCOMES: Mapping[CallOutcome, EditOutcome] = {
    "ok": "applied",
    "failed": "failed",
    "timed_out": "failed",
    "not_run": "failed",
    "refused": "proposed",
    "unknown": "unknown",
}
_PATHS = ("path", "file_path", "filename", "file", "filepath", "target_file", "notebook_path")
_PAIRS = (("old_str", "new_str"), ("old_string", "new_string"), ("old_text", "new_text"), ("search", "replace"))
_CONTENTS = ("file_text", "content", "contents", "text", "new_source")
_SHELLS = ("bash", "shell", "exec", "terminal", "command", "cmd", "run")
_WRITERS = ("write", "create", "save", "notebookedit")


def edits_of_call(call: ToolCall) -> tuple[Edit, ...]:
    """Edits that a tool call makes, by the names of its arguments, with the call's outcome as theirs.

    Known: a pair of old and new text (one, or a list of them under ``edits``), the whole text of a file given to a tool
    that writes or creates, a unified diff, and a command given to a shell (see `palomar.data.edits.from_shell`). A
    refused edit is ``proposed``; one whose call failed or never ran is ``failed``.
    """
    try:
        arguments = json.loads(call.arguments or "")
    except (ValueError, RecursionError):
        return ()
    if not isinstance(arguments, dict):
        return ()
    return tuple(_edits(call.name or "", arguments, _OUTCOMES[call.outcome]))


def _edits(name: str, arguments: Mapping[str, Any], outcome: EditOutcome) -> Iterable[Edit]:
    path = next((arguments[key] for key in _PATHS if isinstance(arguments.get(key), str)), None)
    parts = arguments.get("edits")
    if isinstance(parts, list):
        for part in parts:
            if isinstance(part, dict):
                yield from _edits(name, {"path": path, **part}, outcome)
        return
    for old, new in _PAIRS:
        if isinstance(arguments.get(new), str):
            before = arguments.get(old)
            yield from_old_new(path, before if isinstance(before, str) else "", arguments[new], outcome)
            return
    for key in ("patch", "diff", "input"):
        if isinstance(arguments.get(key), str) and (found := from_unified_diff(arguments[key], outcome)):
            yield from found
            return
    lowered = name.lower()
    command = next(
        (arguments[key] for key in ("command", "cmd", "script") if isinstance(arguments.get(key), str)), None
    )
    text = next((arguments[key] for key in _CONTENTS if isinstance(arguments.get(key), str)), None)
    writes = any(word in lowered for word in _WRITERS) or command in ("create", "write")
    if text is not None and path is not None and writes:
        yield from_whole_file(path, text, outcome)
    elif command is not None and any(word in lowered for word in _SHELLS):
        yield from from_shell(command, outcome)


class Distinct:
    """Identifiers from content for records that may be equal, as samples of one prompt often are.

    The first of equal records has the plain content id, each further one also its place among them; so a file read
    twice gives the same identifiers, and none of its samples disappears in another.
    """

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def id(self, *parts: str) -> str:
        """Identifier of one more record."""
        plain = content_id(*parts)
        self._seen[plain] += 1
        return plain if self._seen[plain] == 1 else content_id(*parts, str(self._seen[plain]))
