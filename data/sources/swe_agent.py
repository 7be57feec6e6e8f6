"""SWE-agent ``.traj`` files: thought/action, XML and function calling, with or without retries.

Read from ``trajectory`` (every step that was taken, also those asked again) with the request from ``history``; a file
with only ``history`` (a demonstration) is read from that. Function calls in ``history`` give names, ids and raw
arguments; elsewhere the action is a command line of the tool named by its first word.

A step without an action is a reply that could not be parsed: ``malformed`` where it holds a fence or a call, else
``unparsed``. A step with an action that took no time, left no state and showed nothing was blocked or was no valid
bash: ``rejected``. With ``attempts`` the chosen attempt is the main line and the others are branches ``attempt-N``.

The patch in ``info.submission`` gives the edits of the last step; only where it is none (a CTF flag) do the commands.
Left out: ``messages`` and ``query`` of each step, which repeat the history.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from palomar.data import edits
from palomar.data.code_metrics import measured
from palomar.data.errors import IngestError
from palomar.data.quarantine import Quarantined
from palomar.data.schema import CallOutcome, Edit, EditOutcome, Interaction, Step, ToolCall
from palomar.data.sources import Head, Native, SourceFile, each_record, source
from palomar.data.sources._chat import call_of, content_of, expect, extra, identity, interactions, looks_like_call
from palomar.data.sources._json import loads

_TIMED_OUT = ("EXECUTION TIMED OUT", "was cancelled because it took more than")
_FAILED_EDIT = ("Your proposed edit has introduced new syntax error", "No replacement was performed", "Text not found")
_COMMAND_FAILED = ("Traceback (most recent call last)", "command not found", ": No such file or directory")
_FENCE = re.compile(r"```|<command>")
_STEP_KEYS = {"action", "observation", "response", "thought", "state", "execution_time", "messages", "query"}


@source("swe-agent")
class SweAgent:
    """Reader of SWE-agent trajectories."""

    name: str
    title = "SWE-agent trajectory (.traj)"

    def sniff(self, head: Head) -> float:
        """By the keys of a trajectory's steps, or a history that names its agent."""
        first = head.first
        if not isinstance(first, dict):
            return 0.0
        attempts = first.get("attempts")
        inner = attempts[0] if isinstance(attempts, list) and attempts and isinstance(attempts[0], dict) else first
        for key, wanted in (("trajectory", "observation"), ("trajectory", "action"), ("history", "agent")):
            steps = inner.get(key)
            if isinstance(steps, list) and steps and isinstance(steps[0], dict) and wanted in steps[0]:
                return 0.95
        return 0.5 if head.name.endswith(".traj") else 0.0

    def read(self, file: SourceFile) -> Iterator[Interaction | Quarantined]:
        """The one interaction of the file (or of each line)."""
        return each_record(file, file.records(), _parse)


def _parse(record: Native, file: SourceFile) -> list[Interaction]:
    value = expect(record.value, dict, "")
    main, others = _attempts(value)
    history = main.get("history")
    history = [item for item in history if isinstance(item, dict)] if isinstance(history, list) else []
    trajectory = main.get("trajectory")
    info = main.get("info")
    info = info if isinstance(info, dict) else {}
    opening = _opening(history, trajectory)
    if not any(step.author == "person" for step in opening):
        opening.append(_request(value))
    steps = opening
    for number, attempt in others:
        steps = steps + [step.model_copy(update={"branch": f"attempt-{number}"}) for step in _attempt_steps(attempt)]
    steps = steps + _attempt_steps(main)
    if not isinstance(trajectory, list) and not history:
        raise IngestError(
            "", None, "trajectory", "expected a list of steps, found neither trajectory nor history", "schema"
        )
    return interactions(
        steps,
        conversation_id=identity("swe-agent", value),
        common={
            "source": "swe-agent",
            "origin": file.origin,
            "origin_record": record.number,
            "task_id": _task(value),
            "checkpoint": _model(value),
        },
        first={
            "extra_json": extra(
                info={key: item for key, item in info.items() if key != "submission"},
                submission=info.get("submission") if not _submission(info) else None,
                environment=value.get("environment"),
                replay_config=value.get("replay_config"),
            )
        },
        last={"stop_reason": info.get("exit_status") if isinstance(info.get("exit_status"), str) else None},
    )


def _attempts(value: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[int, dict[str, Any]]]]:
    """The attempt that counts, and the others with their number from 0."""
    attempts = value.get("attempts")
    attempts = [item for item in attempts if isinstance(item, dict)] if isinstance(attempts, list) else []
    if not attempts:
        return value, []
    info = value.get("info")
    best = info.get("best_attempt_idx") if isinstance(info, dict) else None
    if not isinstance(best, int) or not 0 <= best < len(attempts):
        same = [i for i, item in enumerate(attempts) if item.get("trajectory") == value.get("trajectory")]
        best = same[0] if same else len(attempts) - 1
    main = value if isinstance(value.get("trajectory"), list) else attempts[best]
    return main, [(number, item) for number, item in enumerate(attempts) if number != best]


def _opening(history: list[dict[str, Any]], trajectory: Any) -> list[Step]:
    """What was said before the agent's first step: system prompt, demonstrations (both the harness), the request."""
    if not history and isinstance(trajectory, list) and trajectory and isinstance(trajectory[0], dict):
        query = trajectory[0].get("query") or trajectory[0].get("messages")
        history = [item for item in query if isinstance(item, dict)] if isinstance(query, list) else []
    before: list[dict[str, Any]] = []
    for message in history:
        if message.get("role") == "assistant" and not _is_demonstration(message):
            break
        before.append(message)
    request = max((i for i, m in enumerate(before) if m.get("role") == "user" and not _is_demonstration(m)), default=-1)
    return [
        Step(
            author="person" if index == request else "harness",
            role=str(message.get("role", "user")),
            text=content_of(message.get("content")).text,
            extra_json=extra(demonstration=True) if _is_demonstration(message) else None,
        )
        for index, message in enumerate(before)
    ]


def _is_demonstration(message: dict[str, Any]) -> bool:
    return message.get("is_demo") is True or message.get("message_type") == "demonstration"


def _request(value: dict[str, Any]) -> Step:
    """The request of a file whose history does not hold it."""
    config = value.get("replay_config")
    problem = config.get("problem_statement") if isinstance(config, dict) else None
    text = problem.get("text") if isinstance(problem, dict) else None
    return Step(author="person", role="user", text=text if isinstance(text, str) else None)


def _task(value: dict[str, Any]) -> str | None:
    """Id of the problem; not taken from the file's name, since the same log under another name is the same log."""
    config = value.get("replay_config")
    problem = config.get("problem_statement") if isinstance(config, dict) else None
    if isinstance(problem, dict) and isinstance(problem.get("id"), str):
        return str(problem["id"])
    return None


def _model(value: dict[str, Any]) -> str | None:
    config = value.get("replay_config")
    agent = config.get("agent") if isinstance(config, dict) else None
    model = agent.get("model") if isinstance(agent, dict) else None
    name = model.get("name") if isinstance(model, dict) else None
    return name if isinstance(name, str) else None


def _submission(info: dict[str, Any]) -> tuple[Edit, ...]:
    submission = info.get("submission")
    return edits.from_unified_diff(submission, "applied") if isinstance(submission, str) else ()


def _attempt_steps(attempt: dict[str, Any]) -> list[Step]:
    """Steps of one attempt, the edits of its submission on the last of the agent's."""
    trajectory = attempt.get("trajectory")
    calls = _history_calls(attempt.get("history"))
    steps: list[Step] = []
    if isinstance(trajectory, list):
        for position, item in enumerate(trajectory):
            expect(item, dict, f"trajectory[{position}]")
            steps += _steps(item, calls)
    else:
        steps = _from_history(attempt.get("history"))
    info = attempt.get("info")
    submitted = _submission(info) if isinstance(info, dict) else ()
    last = max((index for index, step in enumerate(steps) if step.author == "agent"), default=None)
    if submitted and last is not None:
        steps = [step.model_copy(update={"edits": ()}) if step.edits else step for step in steps]
        steps[last] = steps[last].model_copy(update={"edits": tuple(measured(item) for item in submitted)})
    return steps


def _history_calls(history: Any) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Function calls in the history, by the thought and action of the step that made them."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for message in history if isinstance(history, list) else []:
        if isinstance(message, dict) and isinstance(message.get("tool_calls"), list):
            found.setdefault(_key(message), message["tool_calls"])
    return found


def _key(item: dict[str, Any]) -> tuple[str, str]:
    return str(item.get("thought") or "").strip(), str(item.get("action") or "").strip()


def _steps(item: dict[str, Any], calls: dict[tuple[str, str], list[dict[str, Any]]]) -> list[Step]:
    """The agent's step and the answer to it."""
    action = _text(item.get("action")) or ""
    observation = _text(item.get("observation"))
    raw = item.get("tool_calls") or calls.get(_key(item))
    response = content_of(item.get("response")).text
    thought = _text(item.get("thought"))
    elapsed = item.get("execution_time")
    elapsed = elapsed if isinstance(elapsed, int | float) and elapsed >= 0 else None
    made = _made_calls(action.rstrip("\n"), response or thought or "", raw)
    asked_again = _asked_again(item, action, observation)
    done = [_answered(call, observation, elapsed, asked_again) for call in made]
    agent = Step(
        author="agent",
        role="assistant",
        text=response if response is not None else thought,
        tool_calls=tuple(done),
        edits=tuple(measured(edit) for call in done for edit in _command_edits(call, item)),
        extra_json=extra(
            state=_state(item),
            thought=thought if thought != response else None,
            **{key: value for key, value in item.items() if key not in _STEP_KEYS | {"tool_calls", "tool_call_ids"}},
        ),
    )
    if observation is None:
        return [agent]
    text = None if done and not asked_again else observation or None
    return [
        agent,
        Step(author="tool", role="tool", text=text) if raw else Step(author="harness", role="user", text=text),
    ]


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _state(item: dict[str, Any]) -> Any:
    """The environment's state, which older versions log as JSON text."""
    state = item.get("state")
    if not isinstance(state, str):
        return state
    try:
        return loads(state.encode())
    except IngestError:
        return state


def _made_calls(action: str, response: str, raw: Any) -> list[ToolCall]:
    if isinstance(raw, list) and raw:
        return [call_of(item) for item in raw]
    if action.strip():
        return [ToolCall(name=action.split(maxsplit=1)[0], arguments=action)]
    kind = "malformed" if _FENCE.search(response) or looks_like_call(response) else "unparsed"
    problem = "no action could be parsed from the reply"
    return [ToolCall.model_validate({"invalidity": kind, "problem": problem, "outcome": "not_run"})] if response else []


def _asked_again(item: dict[str, Any], action: str, observation: str | None) -> bool:
    """Whether the harness refused the action (blocked, or no valid bash): it took no time and left no state."""
    return (
        bool(action.strip()) and not observation and item.get("execution_time") == 0 and item.get("state") in ({}, "")
    )


def _answered(call: ToolCall, observation: str | None, elapsed_s: float | None, asked_again: bool) -> ToolCall:
    if call.invalidity is not None:
        return call
    if asked_again:
        problem = "the harness asked again: the action was blocked, or is no valid bash"
        return call.model_copy(update={"invalidity": "rejected", "outcome": "not_run", "problem": problem})
    outcome: CallOutcome = "unknown"
    if observation is not None:
        end = observation[-4000:]
        if any(words in observation for words in _TIMED_OUT):
            outcome = "timed_out"
        elif any(words in observation for words in _FAILED_EDIT) or any(words in end for words in _COMMAND_FAILED):
            outcome = "failed"
        elif call.name in ("edit", "create", "insert", "submit", "open", "goto", "scroll_down", "scroll_up"):
            outcome = "ok"
    return call.model_copy(update={"outcome": outcome, "result": observation, "elapsed_s": elapsed_s})


def _command_edits(call: ToolCall, item: dict[str, Any]) -> tuple[Edit, ...]:
    """Edits of one action: SWE-agent's own commands, edit tools, or plain shell."""
    if found := edits.for_call(call):
        return found
    text = call.arguments or ""
    outcome: EditOutcome = {"ok": "applied", "unknown": "unknown"}.get(call.outcome, "failed")  # type: ignore[assignment]
    if call.name in ("edit", "insert"):
        state = _state(item)
        path = state.get("open_file") if isinstance(state, dict) else None
        return (
            edits.edit(
                path if isinstance(path, str) and path != "n/a" else None, "unknown", text=text, outcome=outcome
            ),
        )
    if call.name == "create":
        words = text.split(maxsplit=1)
        return (
            (edits.edit(words[1].strip().strip("\"'"), "unknown", text=text, outcome=outcome),)
            if len(words) > 1
            else ()
        )
    return edits.shell_edits(call)


def _from_history(history: Any) -> list[Step]:
    """Steps of a file that has only its history, the system prompt and request left to `_opening`."""
    steps: list[Step] = []
    started = False
    for position, message in enumerate(history if isinstance(history, list) else []):
        where = f"history[{position}]"
        expect(message, dict, where)
        role = expect(message.get("role"), str, f"{where}.role")
        if role == "assistant" and not _is_demonstration(message):
            started = True
            following = history[position + 1] if position + 1 < len(history) else {}
            observed: dict[str, Any] = following if following.get("role") != "assistant" else {}
            item = {**message, "response": message.get("content"), "state": None}
            if observed:
                item["observation"] = content_of(observed.get("content")).text or ""
            steps += _steps({key: item[key] for key in item if key in _STEP_KEYS | {"tool_calls"}}, {})
        elif started and role not in ("tool", "user"):
            steps.append(Step(author="harness", role=role, text=content_of(message.get("content")).text))
    return steps
