"""Claude Code sessions: ``projects/<folder>/<session>.jsonl``, one event a line. Not a documented contract.

A native record is a session (lines of one ``sessionId`` in one file). An interaction is one request and the agent's
work on it. Traps:

- a file can be cut in the middle of a line while its run is live; every line is read on its own, and one that cannot
  be read is quarantined. What a live session asks next is only known when the file is read again;
- an answer is written piece by piece, one line for each content block, with one ``message.id``: the pieces are one
  step, and its token counts are those of the last line, since they accumulate;
- a resumed session may repeat lines: a line with a known ``uuid`` and the same contents is dropped;
- tools' answers come in the role "user". `is_error` covers calls that never ran (``<tool_use_error>``), that failed,
  that timed out, and that the person refused; ``[Request interrupted by user]`` is a message of its own;
- older versions write the person's words of a refusal as the bare error; those look like any other failure;
- not everything typed is a request: slash commands, ``!`` commands with their output, and what Claude Code adds itself
  (``isMeta``, caveats, reminders) start no interaction;
- lines of a subagent (``isSidechain``) are a branch of the interaction that started it. A file of its own that holds
  only such lines gives an interaction labelled ``sidechain=true``;
- two requests after the same message mean that the person went back: the first one's steps are marked as a branch;
- summaries, file snapshots and queue operations belong to no request; they are kept with the session's first
  interaction. Token counts include what was read from and written to the prompt cache.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from palomar.data.quarantine import Quarantined
from palomar.data.schema import Feedback, Interaction, Step, ToolCall, content_id
from palomar.data.sources import Head, Native, SourceFile, each_record, source
from palomar.data.sources._chat import (
    Transcript,
    arguments_text,
    content_of,
    extra,
    interactions,
    time_of,
    validity,
)
from palomar.data.sources._file import MAX_DOCUMENT_BYTES
from palomar.data.sources._json import dumps
from palomar.data.sources._messages import Judged, edits_of_call

_ABOUT = ("summary", "file-history-snapshot", "queue-operation", "custom-title", "ai-title", "last-prompt", "pr-link")
_INTERRUPTED = re.compile(r"^\[Request interrupted by user(?: for tool use)?\]")
_REFUSED = re.compile(r"The user doesn't want to (?:proceed with this tool use|take this action)")
_SAID = re.compile(r"the user said:\s*(.+)\Z", re.DOTALL)
_TOOL_USE_ERROR = re.compile(r"<tool_use_error>(.*?)(?:</tool_use_error>|\Z)", re.DOTALL)
_TIMED_OUT = re.compile(r"\btimed out\b")
_EXIT_CODE = re.compile(r"^(?:Error: )?Exit code (\d+)")
_COMMAND = re.compile(r"\s*<(?:command-name|command-message|bash-input)>")
_ADDED = re.compile(
    r"\s*(?:<(?:local-command-stdout|local-command-stderr|local-command-caveat|bash-stdout|bash-stderr|system-reminder|"
    r"task-notification)>|Caveat: The messages below were generated)"
)
_ASKING_TOOL = "AskUserQuestion"
_ABANDONED = "abandoned"
_READ = frozenset(
    {
        "type",
        "message",
        "parentUuid",
        "sessionId",
        "timestamp",
        "isSidechain",
        "cwd",
        "gitBranch",
        "version",
        "toolUseResult",
    }
)


@source("claude-code")
class ClaudeCode:
    """Reader of Claude Code session files."""

    name: str
    title = "Claude Code session (JSONL)"

    def sniff(self, head: Head) -> float:
        """By the keys and types of the first lines."""
        for record in head.records:
            if not isinstance(record, dict):
                continue
            kind = record.get("type")
            if kind in ("user", "assistant", "system") and {"sessionId", "uuid"} <= record.keys():
                return 0.95
            if (kind == "summary" and "leafUuid" in record) or (
                kind in _ABOUT and record.keys() & {"messageId", "sessionId"}
            ):
                return 0.9
        return 0.0

    def read(self, file: SourceFile) -> Iterator[Interaction | Quarantined]:
        """Interactions of all sessions in the file."""
        return each_record(file, _sessions(file), _interactions)


def _sessions(file: SourceFile) -> Iterator[Native | Quarantined]:
    """Lines by session, each session with the number of its first line; damaged lines on the way."""
    sessions: dict[str, list[Native]] = {}
    about: list[Native] = []
    size = 0
    for record in file.records():
        if isinstance(record, Quarantined):
            yield record
            continue
        entry = record.value
        size += len(record.raw or b"")
        if size > MAX_DOCUMENT_BYTES:
            raise file.error("too_large", f"a session file of more than {MAX_DOCUMENT_BYTES:,} bytes")
        problem = _problem(entry)
        if problem is not None:
            yield file.quarantine(
                file.error("schema", problem[1], line=record.number, field=problem[0]), record.bytes()
            )
        elif entry["type"] in _ABOUT or not isinstance(entry.get("sessionId"), str):
            about.append(record)
        else:
            sessions.setdefault(entry["sessionId"], []).append(record)
    if not sessions:
        for record in about:
            yield file.quarantine(
                file.error("no_interaction", f"a {record.value['type']} line without its session", line=record.number),
                record.bytes(),
            )
    for index, (session, records) in enumerate(sessions.items()):
        value = {
            "session": session,
            "lines": [record.value for record in records],
            "about": [record.value for record in about] if index == 0 else [],
        }
        yield Native(records[0].number, value, byte_offset=records[0].byte_offset)


def _problem(entry: Any) -> tuple[str | None, str] | None:
    """What keeps a line from being read: the field and the reason."""
    if not isinstance(entry, dict) or not isinstance(entry.get("type"), str):
        return "type", "expected an object with a type"
    if entry["type"] in ("user", "assistant"):
        message = entry.get("message")
        if not isinstance(message, dict):
            return "message", f"expected an object, found {type(message).__name__}"
        if not isinstance(message.get("content"), str | list):
            return "message.content", "expected text or a list of blocks"
    return None


def _interactions(native: Native, file: SourceFile) -> list[Interaction]:
    session = _Session()
    for entry in native.value["lines"]:
        session.take(entry)
    steps = session.finished()
    first = native.value["lines"][0]
    identity = native.value["session"]
    models = [step.model for step in steps if step.model is not None]
    found = interactions(
        steps,
        conversation_id=content_id("claude-code", identity),
        common={
            "source": "claude-code",
            "origin": file.origin,
            "origin_record": native.number,
            "checkpoint": models[-1] if models else None,
        },
        first={
            "extra_json": extra(
                session=identity,
                cwd=first.get("cwd"),
                git_branch=first.get("gitBranch"),
                version=first.get("version"),
                about=[*native.value["about"], *session.about],
                repeated_lines=session.repeated,
            )
        },
        reactions=session.reactions,
        asides=session.asides,
    )
    return [_named(item, identity) for item in found]


def _named(item: Interaction, session: str) -> Interaction:
    """The interaction under an id of its first line's own, since a file may hold any part of a session."""
    first = item.steps[0]
    line = json.loads(first.extra_json or "{}").get("uuid", "")
    alone = all(step.branch is not None for step in item.steps if step.author == "agent")
    return item.model_copy(
        update={
            "interaction_id": content_id("claude-code", session, line, first.text or ""),
            "labels": ("sidechain=true",) if alone and first.branch != _ABANDONED else (),
        }
    )


class _Session:
    """Reads the lines of one session in order."""

    def __init__(self) -> None:
        self.about: list[Mapping[str, Any]] = []
        """Lines that belong to no request."""
        self.reactions: dict[int, Feedback] = {}
        self.asides: set[int] = set()
        self.repeated = 0
        self._transcript = Transcript()
        self._extras: dict[int, dict[str, Any]] = {}
        self._calls: dict[str, ToolCall] = {}
        self._seen: dict[str, str] = {}
        self._steps_of_lines: dict[str, int] = {}
        self._steps_of_messages: dict[str, int] = {}
        self._requests: list[tuple[str, int]] = []
        """Message a request came after, and the request's step."""

    def take(self, entry: Mapping[str, Any]) -> None:
        """One more line."""
        uuid, text = entry.get("uuid"), dumps(entry)
        if isinstance(uuid, str):
            if self._seen.get(uuid) == text:
                self.repeated += 1
                return
            self._seen[uuid] = text
        if entry["type"] == "assistant":
            self._answer(entry)
        elif entry["type"] == "user":
            self._user(entry)
        elif entry["type"] == "system":
            content = entry.get("content")
            self._add(entry, Step(author="harness", role="system", text=content if isinstance(content, str) else None))
        else:
            self.about.append(entry)

    def _add(self, entry: Mapping[str, Any], step: Step) -> int:
        return self._placed(entry, self._transcript.add(self._dated(entry, step)))

    def _dated(self, entry: Mapping[str, Any], step: Step) -> Step:
        """The step with its time, branch and parent."""
        before = self._steps_of_lines.get(str(entry.get("parentUuid")))
        agent = entry.get("agentId")
        branch = (agent if isinstance(agent, str) else "sidechain") if entry.get("isSidechain") is True else None
        parent = before if before != len(self._transcript.steps) - 1 else None
        return step.model_copy(update={"at": time_of(entry.get("timestamp")), "branch": branch, "parent": parent})

    def _placed(self, entry: Mapping[str, Any], index: int, **more: Any) -> int:
        """Remember where a line went, and what of it the schema does not name."""
        if isinstance(entry.get("uuid"), str):
            self._steps_of_lines[entry["uuid"]] = index
        kept = {key: value for key, value in entry.items() if key not in _READ and value not in (None, False)}
        self._extras[index] = {**kept, **more, **self._extras.get(index, {})}
        return index

    def _answer(self, entry: Mapping[str, Any]) -> None:
        message = entry["message"]
        content = content_of(message["content"])
        blocks = [block for block in content.rest if _is_call(block)]
        rest = [block for block in content.rest if not _is_call(block)]
        calls = [call for call in map(_call, blocks) if call.call_id is None or call.call_id not in self._calls]
        self._calls |= {call.call_id: call for call in calls if call.call_id is not None}
        usage = message.get("usage")
        model = message.get("model")
        counts = {**_counts(usage), **({"truncated": True} if message.get("stop_reason") == "max_tokens" else {})}
        identifier = message.get("id")
        index = self._steps_of_messages.get(identifier) if isinstance(identifier, str) else None
        if index is None:
            synthetic = model == "<synthetic>"  # an error message that Claude Code itself put there
            step = Step(
                author="harness" if synthetic else "agent",
                role="assistant",
                text=content.text,
                thinking=content.thinking,
                tool_calls=tuple(calls),
                model=None if synthetic or not isinstance(model, str) else model,
            )
            index = self._add(entry, step.model_copy(update=counts))
            if isinstance(identifier, str):
                self._steps_of_messages[identifier] = index
        else:
            before = self._transcript.steps[index]
            update = counts | {
                "text": _joined(before.text, content.text),
                "thinking": _joined(before.thinking, content.thinking),
            }
            self._transcript.extend(index, calls, **update)
            self._placed(entry, index)
        if usage:
            self._extras[index]["usage"] = usage
        if rest:
            self._extras[index]["parts"] = [*self._extras[index].get("parts", []), *rest]

    def _user(self, entry: Mapping[str, Any]) -> None:
        content = content_of(entry["message"]["content"])
        results = [part for part in content.rest if isinstance(part, dict) and part.get("type") == "tool_result"]
        rest = [part for part in content.rest if part not in results]
        for block in results:
            self._result(entry, block)
        if content.text is not None or rest or not results:
            self._said(entry, content.text, rest)

    def _result(self, entry: Mapping[str, Any], block: Mapping[str, Any]) -> None:
        identifier = block.get("tool_use_id")
        identifier = identifier if isinstance(identifier, str) else None
        given = content_of(block.get("content"))
        call = self._calls.get(identifier or "")
        structured = entry.get("toolUseResult")
        judged = _judged(call, given.text or "", block.get("is_error") is True, structured)
        exit_code = _EXIT_CODE.match(given.text or "") if block.get("is_error") is True else None
        step = self._dated(entry, Step(author="tool", role="user"))
        self._transcript.answer(
            identifier,
            given.text,
            step,
            outcome=judged.outcome,
            problem=judged.problem,
            invalidity=judged.invalidity,
            exit_code=int(exit_code.group(1)) if exit_code else None,
        )
        index = len(self._transcript.steps) - 1
        more = {"toolUseResult": structured} if isinstance(structured, dict | list) else {}
        orphan = self._transcript.steps[index].extra_json
        self._placed(entry, index, parts=list(given.rest), **more, **(json.loads(orphan) if orphan else {}))
        if judged.outcome == "refused":
            words = _SAID.search(given.text or "")
            self.reactions[index] = Feedback(kind="refusal", at=step.at, text=words.group(1).strip() if words else None)
        elif judged.outcome == "ok" and call is not None and call.name == _ASKING_TOOL:
            self.reactions[index] = Feedback(kind="answer", at=step.at, text=given.text)

    def _said(self, entry: Mapping[str, Any], text: str | None, rest: list[Any]) -> None:
        """A line in the person's role that is no tool's answer."""
        words = text or ""
        added = entry.get("isMeta") is True or entry.get("isCompactSummary") is True or _ADDED.match(words) is not None
        interrupted = _INTERRUPTED.match(words) is not None
        person = interrupted or not (added or entry.get("isSidechain") is True)
        index = self._add(entry, Step(author="person" if person else "harness", role="user", text=text))
        if rest:
            self._extras[index]["parts"] = rest
        if interrupted:
            self.reactions[index] = Feedback(kind="interruption", at=self._transcript.steps[index].at)
        elif person and _COMMAND.match(words):
            self.asides.add(index)
        elif person and isinstance(entry.get("parentUuid"), str):
            self._requests.append((entry["parentUuid"], index))

    def finished(self) -> list[Step]:
        """All steps, with edits and questions; those that the person went back from are marked."""
        abandoned: set[int] = set()
        for number, (parent, start) in enumerate(self._requests):
            later = next((index for other, index in self._requests[number + 1 :] if other == parent), None)
            abandoned.update(range(start, later) if later is not None else ())
        steps = []
        for index, step in enumerate(self._transcript.steps):
            update: dict[str, Any] = {"extra_json": extra(**self._extras.get(index, {}))}
            if step.author == "agent":
                update["edits"] = tuple(edit for call in step.tool_calls for edit in edits_of_call(call))
                if any(call.name == _ASKING_TOOL and call.invalidity is None for call in step.tool_calls):
                    update["is_question"] = True
            if index in abandoned and step.branch is None:
                update["branch"] = _ABANDONED
            steps.append(step.model_copy(update=update))
        return steps


def _is_call(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") in ("tool_use", "server_tool_use")


def _call(block: Mapping[str, Any]) -> ToolCall:
    name = block.get("name") if isinstance(block.get("name"), str) else None
    kind, problem = validity(name, block.get("input"), None)
    return ToolCall(
        call_id=block.get("id") if isinstance(block.get("id"), str) else None,
        name=name,
        arguments=arguments_text(block.get("input")),
        invalidity=kind,
        problem=problem,
        outcome="unknown" if kind is None else "not_run",
    )


def _counts(usage: Any) -> dict[str, int]:
    if not isinstance(usage, dict):
        return {}
    parts = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    read = [usage[key] for key in parts if isinstance(usage.get(key), int)]
    written = usage.get("output_tokens")
    found = {"tokens_in": sum(read)} if read else {}
    return found | ({"tokens_out": written} if isinstance(written, int) else {})


def _joined(before: str | None, more: str | None) -> str | None:
    """Text of two pieces; a piece that repeats what is there adds nothing."""
    if before is None or more is None:
        return more if before is None else before
    return before if before.endswith(more) else f"{before}\n{more}"


def _judged(call: ToolCall | None, result: str, is_error: bool, structured: Any) -> Judged:
    """What a tool's answer says about its call."""
    if not is_error:
        interrupted = isinstance(structured, dict) and structured.get("interrupted") is True
        return Judged("failed", "interrupted") if interrupted else Judged("ok")
    if _REFUSED.search(result) or _INTERRUPTED.match(result):
        return Judged("refused", result)
    never_ran = _TOOL_USE_ERROR.search(result)
    if never_ran is not None:
        problem = never_ran.group(1).strip()
        if "No such tool" in problem:
            return Judged("not_run", problem, "unknown_tool")
        return Judged("not_run", problem, "schema" if "InputValidationError" in problem else "rejected")
    if _TIMED_OUT.search(result):
        return Judged("timed_out", result)
    return Judged("failed", result)
