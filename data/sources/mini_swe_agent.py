"""mini-swe-agent trajectories: version 1 (actions in bash fences) and 2 (tool calls), and bare message lists of either.

Who speaks: the first ``user`` message is the request; after it the role ``user`` is the harness (observations, format
errors, time-outs, the final patch), except where a person broke in: a rejected command, an interruption, a new task.

A turn must hold exactly one action. None is ``unparsed``, several are ``malformed``; the harness ran none of them. A
command's exit code other than 0 is a failure. The patch in ``info.submission`` gives the edits of the last step; only
where there is none do the commands give them, since both together would count each edit twice.

The verdict of a SWE-bench evaluation is read from beside the trajectory (``<name>.report.json`` in the same folder or
in ``../reports``): label ``resolved``, a held-out reward of the same name, and the tests. Blind to a custom observation
template without ``<returncode>``: there the outcome of a command is unknown. Left out: encrypted reasoning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from palomar.data.code_metrics import measured
from palomar.data.edits import from_unified_diff, shell_edits
from palomar.data.errors import IngestError
from palomar.data.quarantine import Quarantined
from palomar.data.schema import Author, Feedback, Interaction, Reward, Step, ToolCall
from palomar.data.sources import Head, Native, SourceFile, each_record, source
from palomar.data.sources._chat import (
    Transcript,
    call_of,
    content_of,
    expect,
    extra,
    identity,
    interactions,
    merged,
    time_of,
)
from palomar.data.sources._file import is_message
from palomar.data.sources._json import loads

_ACTION = re.compile(r"```(?:bash|mswea_bash_command)\s*\n(.*?)\n```", re.DOTALL)
_OBSERVATION = re.compile(r"\s*<returncode>\s*(-?\d+)\s*</returncode>")
_MARKS = ("COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT", "MINI_SWE_AGENT_FINAL_OUTPUT", "mswea_bash_command")
_FORMAT_ERROR = "Please always provide EXACTLY ONE"
_TIMED_OUT = re.compile(r"The last command <command>.*</command> timed out", re.DOTALL)
_REJECTED = "Command not executed."
_REJECTED_WITH = "Command not executed. The user rejected your command with the following message:"
_INTERRUPTED = "Interrupted by user:"
_NEW_TASK = "The user added a new task:"
_MAX_REPORT_BYTES = 16 * 1024 * 1024


@source("mini-swe-agent")
class MiniSweAgent:
    """Reader of mini-swe-agent trajectories."""

    name: str
    title = "mini-swe-agent trajectory (.traj.json)"

    def sniff(self, head: Head) -> float:
        """By ``trajectory_format``, ``info.mini_version``, or the harness's own marks in a list of messages."""
        first = head.first
        if isinstance(first, dict):
            info = first.get("info")
            if "tests_status" in first and "resolved" in first:
                return 0.9  # the report beside a trajectory
            if str(first.get("trajectory_format", "")).startswith("mini-swe-agent"):
                return 1.0
            if isinstance(info, dict) and ("mini_version" in info or ("config" in info and "messages" in first)):
                return 0.9
            return 0.6 if isinstance(info, dict) and head.name.endswith(".traj.json") else 0.0
        if isinstance(first, list) and first and is_message(first[0]):
            return 0.8 if any(mark in head.text for mark in _MARKS) else 0.0
        return 0.0

    def read(self, file: SourceFile) -> Iterator[Interaction | Quarantined]:
        """The interactions of the one trajectory in the file (or of each line's)."""
        return each_record(file, file.records(), _parse)


def _parse(record: Native, file: SourceFile) -> list[Interaction]:
    value = {"messages": record.value} if isinstance(record.value, list) else record.value
    expect(value, dict, "")
    if "tests_status" in value and "messages" not in value:
        raise IngestError(
            "", None, None, "a SWE-bench report; it is read with the trajectory beside it", "no_interaction"
        )
    messages = expect(value.get("messages"), list, "messages")
    info = value.get("info")
    info = info if isinstance(info, dict) else {}
    transcript, reactions = Transcript(), dict[int, Feedback]()
    asked = False
    for position, message in enumerate(messages):
        expect(message, dict, f"messages[{position}]")
        role = expect(message.get("role"), str, f"messages[{position}].role")
        if role == "assistant":
            following = messages[position + 1] if position + 1 < len(messages) else None
            transcript.add(_agent_step(message, following))
        elif role == "user" and not asked:
            asked = True
            transcript.add(_step(message, "person"))
        elif asked:
            _reply(transcript, reactions, message)
        else:
            transcript.add(_step(message, "harness"))
    report = _report(file, value)
    return interactions(
        _with_submission(transcript, info, messages),
        conversation_id=identity("mini-swe-agent", value),
        common={
            "source": "mini-swe-agent",
            "origin": file.origin,
            "origin_record": record.number,
            "task_id": value.get("instance_id") if isinstance(value.get("instance_id"), str) else None,
            "checkpoint": _model(info),
        },
        first={"extra_json": extra(**{key: item for key, item in value.items() if key not in ("messages", "info")},
                                   info={key: item for key, item in info.items() if key != "submission"})},
        last={"stop_reason": info.get("exit_status"), **report},
        reactions=reactions,
    )  # fmt: skip


def _model(info: dict[str, Any]) -> str | None:
    config = info.get("config")
    model = config.get("model") if isinstance(config, dict) else None
    name = model.get("model_name") if isinstance(model, dict) else None
    return name if isinstance(name, str) else None


def _step(message: dict[str, Any], author: Author) -> Step:
    content = content_of(message.get("content"))
    about = message.get("extra")
    about = about if isinstance(about, dict) else {}
    return Step(
        author=author,
        role=message["role"],
        text=content.text,
        thinking=content.thinking,
        at=time_of(about.get("timestamp")),
        extra_json=extra(
            parts=list(content.rest),
            **{key: item for key, item in about.items() if key not in ("response", "actions", "parts")},
        ),
    )


def _agent_step(message: dict[str, Any], following: dict[str, Any] | None) -> Step:
    step = _step(message, "agent")
    about = message.get("extra")
    about = about if isinstance(about, dict) else {}
    response = about.get("response")
    response = response if isinstance(response, dict) else {}
    choices = response.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    inner = choice.get("message")
    inner = inner if isinstance(inner, dict) else {}
    usage = response.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    thinking = inner.get("reasoning_content") or inner.get("reasoning") or message.get("reasoning_content")
    return step.model_copy(
        update={
            "thinking": thinking if isinstance(thinking, str) else step.thinking,
            "at": step.at or time_of(response.get("created")),
            "model": response.get("model") if isinstance(response.get("model"), str) else None,
            "truncated": choice.get("finish_reason") == "length" if choice.get("finish_reason") else None,
            "tokens_in": _count(usage.get("prompt_tokens", usage.get("input_tokens"))),
            "tokens_out": _count(usage.get("completion_tokens", usage.get("output_tokens"))),
            "tool_calls": _calls(message, step.text or "", following),
            "extra_json": merged(
                step.extra_json,
                extra(usage=usage, response_id=response.get("id"), provider=response.get("provider")),
            ),
        }
    )


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _calls(message: dict[str, Any], text: str, following: dict[str, Any] | None) -> tuple[ToolCall, ...]:
    """The turn's tool calls (version 2), or the one command in its fence (version 1)."""
    raw = message.get("tool_calls")
    if isinstance(raw, list) and raw:
        return tuple(call_of(item) for item in raw)
    actions = _ACTION.findall(text)
    reply = content_of(following.get("content")).text or "" if isinstance(following, dict) else ""
    refused = isinstance(following, dict) and _is_format_error(following, reply)
    if len(actions) == 1 and not refused:
        return (ToolCall(name="bash", arguments=actions[0]),)
    if actions and _OBSERVATION.match(reply):  # an older harness that took the first of several
        return (ToolCall(name="bash", arguments=actions[0]),)
    if not actions and not refused and not text.strip():
        return ()
    kind = "malformed" if actions else "unparsed"
    problem = f"exactly one action is allowed, found {len(actions)}"
    call = {"name": "bash" if actions else None, "arguments": "\n".join(actions) or None, "invalidity": kind}
    return (ToolCall.model_validate({**call, "problem": problem, "outcome": "not_run"}),)


def _is_format_error(message: dict[str, Any], text: str) -> bool:
    about = message.get("extra")
    if isinstance(about, dict) and about.get("interrupt_type") == "FormatError":
        return True
    return message.get("role") == "user" and text.startswith(_FORMAT_ERROR)


def _reply(transcript: Transcript, reactions: dict[int, Feedback], message: dict[str, Any]) -> None:
    """One message after the request that is not the agent's: what the harness, a tool or a person had to say."""
    text = content_of(message.get("content")).text or ""
    about = message.get("extra")
    about = about if isinstance(about, dict) else {}
    if text.startswith(_NEW_TASK):
        transcript.add(_step(message, "person"))
        return
    if text.startswith(_REJECTED) or about.get("interrupt_type") == "UserRejection":
        words = text.removeprefix(_REJECTED_WITH).strip()
        step = _step(message, "person")
        transcript.answer(_call_id(transcript), text, step, outcome="refused", problem=words)
        reactions[len(transcript.steps) - 1] = Feedback(kind="refusal", text=words, at=step.at)
        return
    if text.startswith(_INTERRUPTED):
        step = _step(message, "person")
        words = text.removeprefix(_INTERRUPTED).strip()
        reactions[transcript.add(step)] = Feedback(kind="interruption", text=words, at=step.at)
        return
    last = transcript.steps[-1] if transcript.steps else None
    if (last is None or not last.tool_calls or _is_format_error(message, text)) and message["role"] != "tool":
        transcript.add(_step(message, "harness"))
        return
    _observe(transcript, message, text, about)


def _call_id(transcript: Transcript) -> str | None:
    calls = transcript.steps[-1].tool_calls if transcript.steps else ()
    return calls[-1].call_id if calls else None


def _observe(transcript: Transcript, message: dict[str, Any], text: str, about: dict[str, Any]) -> None:
    step = _step(message, "tool" if message["role"] == "tool" else "harness")
    call_id = message.get("tool_call_id")
    call_id = call_id if isinstance(call_id, str) else _call_id(transcript)
    code = about.get("returncode")
    if not isinstance(code, int):
        found = _OBSERVATION.match(text)
        code = int(found.group(1)) if found else None
    exception = about.get("exception_info")
    exception = exception if isinstance(exception, str) and exception else None
    if _TIMED_OUT.match(text) or (exception and "timed out" in exception.lower()):
        transcript.answer(call_id, text, step, outcome="timed_out", problem=exception)
    elif exception:
        transcript.answer(call_id, text, step, outcome="failed", problem=exception, exit_code=code)
    elif code is not None:
        transcript.answer(call_id, text, step, outcome="ok" if code == 0 else "failed", exit_code=code)
    elif _submits(transcript):
        transcript.answer(call_id, text, step, outcome="ok")
    else:
        transcript.answer(call_id, text, step)


def _submits(transcript: Transcript) -> bool:
    calls = transcript.steps[-1].tool_calls if transcript.steps else ()
    return any(call.arguments and any(mark in call.arguments for mark in _MARKS) for call in calls)


def _with_submission(transcript: Transcript, info: dict[str, Any], messages: list[Any]) -> list[Step]:
    """The steps, with the submitted patch as edits of the agent's last; without one, with what the commands edited."""
    submission = info.get("submission")
    if not isinstance(submission, str) and messages:
        submission = content_of(messages[-1].get("content")).text  # a bare list ends with the patch
    edits = from_unified_diff(submission, "applied") if submission else ()
    last = max((i for i, step in enumerate(transcript.steps) if step.author == "agent"), default=None)
    if not edits or last is None:
        return [_with_command_edits(step) for step in transcript.finished()]
    steps = list(transcript.steps)
    steps[last] = steps[last].model_copy(update={"edits": tuple(measured(item) for item in edits)})
    return steps


def _with_command_edits(step: Step) -> Step:
    """The step with the edits of its fenced commands, which are shell text and not JSON."""
    if step.edits or not step.tool_calls:
        return step
    found = [item for call in step.tool_calls if call.invalidity is None for item in shell_edits(call)]
    return step.model_copy(update={"edits": tuple(measured(item) for item in found)})


def _report(file: SourceFile, value: dict[str, Any]) -> dict[str, Any]:
    """What a SWE-bench report beside the trajectory says about it."""
    stem = file.path.name.removesuffix(".json").removesuffix(".traj")
    folder = file.path.parent
    for place in (folder / f"{stem}.report.json", folder.parent / "reports" / f"{stem}.report.json"):
        try:
            if place.stat().st_size > _MAX_REPORT_BYTES:
                continue
            report = loads(place.read_bytes())
        except (OSError, IngestError):
            continue
        if isinstance(report, dict) and isinstance(report.get("resolved"), bool):
            return _verdict(report)
    return {}


def _verdict(report: dict[str, Any]) -> dict[str, Any]:
    resolved = report["resolved"]
    passed, run = 0, 0
    status = report.get("tests_status")
    for key in ("FAIL_TO_PASS", "PASS_TO_PASS"):
        part = status.get(key) if isinstance(status, dict) else None
        good, bad = (part.get(name, []) if isinstance(part, dict) else [] for name in ("success", "failure"))
        passed, run = passed + len(good), run + len(good) + len(bad)
    tests = {"tests_passed": passed, "tests_run": run} if isinstance(status, dict) else {}
    return {
        "labels": (f"resolved={str(resolved).lower()}",),
        "rewards": (Reward(name="resolved", value=float(resolved), kind="held_out"),),
        **tests,
    }
