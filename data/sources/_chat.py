"""What chat-like formats share: message content, tool calls and their validity, results, turns of a conversation.

Conventions that every reader keeps to:

- **A tool's answer is stored once**, as ``ToolCall.result`` of the call it answers. The step that brought it keeps its
  place, author, role and time, and has no text. An answer that fits no call keeps its text, so nothing is lost.
- **The person is who asked**; the harness often speaks with the role "user" too. Who is who depends on the format, so
  readers decide it and this module never guesses from the role alone.
- **An interaction** starts at a person's turn and ends before the next one, which is the reaction to it. Messages of
  the person with no answer in between are one request. What comes before the first request (system prompt,
  demonstration) belongs to the first interaction.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from palomar.data.code_metrics import measured
from palomar.data.edits import for_call
from palomar.data.errors import IngestError
from palomar.data.schema import (
    CallOutcome,
    Feedback,
    Interaction,
    Invalidity,
    Reward,
    RewardKind,
    Step,
    ToolCall,
    content_id,
)
from palomar.data.sources import _json


@dataclass(frozen=True)
class Content:
    """A message's content, taken apart."""

    text: str | None
    thinking: str | None = None
    rest: tuple[Any, ...] = ()
    """Parts that are neither text nor reasoning (images, tool blocks), as logged."""


def content_of(content: Any) -> Content:
    """Text of a message's content: a string, a list of parts (``{"type": "text", "text": ...}`` or strings), or null.

    Parts of the types ``thinking`` and ``reasoning`` are reasoning. A part of any other type is kept in `Content.rest`.
    """
    if content is None or isinstance(content, str):
        return Content(content)
    if isinstance(content, dict):
        content = [content]
    if not isinstance(content, list):
        return Content(_json.dumps(content))
    texts: list[str] = []
    thoughts: list[str] = []
    rest: list[Any] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(part, str):
            texts.append(part)
        elif kind in ("text", "input_text", "output_text") and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif kind in ("thinking", "reasoning") and isinstance(part.get(kind, part.get("text")), str):
            thoughts.append(part.get(kind, part.get("text")))
        else:
            rest.append(part)
    return Content("\n".join(texts) if texts else None, "\n".join(thoughts) if thoughts else None, tuple(rest))


@dataclass(frozen=True)
class Tools:
    """Tools that a log says the agent had; `parameters` maps a name to its JSON Schema, or None where it has none."""

    parameters: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)

    @classmethod
    def from_definitions(cls, definitions: Any) -> Tools | None:
        """From a list of OpenAI (``{"type": "function", "function": {...}}``) or Anthropic definitions
        (``{"name", "input_schema"}``); None where the log gives none, since then no name can be called unknown.
        """
        if not isinstance(definitions, list) or not definitions:
            return None
        found: dict[str, Mapping[str, Any] | None] = {}
        for item in definitions:
            inner = item.get("function", item) if isinstance(item, dict) else None
            if isinstance(inner, dict) and isinstance(inner.get("name"), str):
                schema = inner.get("parameters", inner.get("input_schema"))
                found[inner["name"]] = schema if isinstance(schema, dict) else None
        return cls(found) if found else None


def arguments_text(arguments: Any) -> str | None:
    """Arguments as text: a string as written, an object as JSON, None where there are none."""
    if arguments is None or isinstance(arguments, str):
        return arguments
    return _json.dumps(arguments)


def validity(name: str | None, arguments: Any, tools: Tools | None) -> tuple[Invalidity | None, str | None]:
    """Whether a call is valid as far as the log can tell, and what is wrong with it.

    In this order: arguments that are no JSON, or no name, are ``malformed``; a name that is not among `tools` is
    ``unknown_tool``; arguments that are no object or break the tool's parameters are ``schema``. Null or empty
    arguments are an empty object, which suits a tool without required parameters.
    """
    if not name:
        return "malformed", "no tool is named"
    parsed: Any = arguments
    if isinstance(arguments, str) and arguments.strip():
        try:
            parsed = json.loads(arguments)
        except (ValueError, RecursionError) as exc:
            return "malformed", f"arguments are not JSON: {exc}"
    elif arguments is None or isinstance(arguments, str):
        parsed = {}
    if tools is not None and name not in tools.parameters:
        return "unknown_tool", f"no tool is called {name!r}"
    if not isinstance(parsed, dict):
        return "schema", f"arguments are not an object but {type(parsed).__name__}"
    schema = tools.parameters.get(name) if tools is not None else None
    problem = _schema_problem(parsed, schema) if schema else None
    return ("schema", problem) if problem else (None, None)


_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}


def _schema_problem(arguments: dict[str, Any], schema: Mapping[str, Any]) -> str | None:
    """First way in which arguments break the top level of a parameter schema.

    Not a JSON Schema validator on purpose: the schema comes with the log and is as untrusted as the rest (a pattern can
    take for ever, a reference can name a server); names, types and choices are what models get wrong.
    """
    properties = schema.get("properties")
    properties = properties if isinstance(properties, dict) else {}
    required = schema.get("required")
    for key in required if isinstance(required, list) else []:
        if key not in arguments:
            return f"{key!r} is required"
    for key, value in arguments.items():
        rule = properties.get(key)
        if rule is None and schema.get("additionalProperties") is False:
            return f"{key!r} is not a parameter"
        if isinstance(rule, dict) and (problem := _value_problem(value, rule)):
            return f"{key!r} {problem}"
    return None


def _value_problem(value: Any, rule: Mapping[str, Any]) -> str | None:
    wanted = rule.get("type")
    names = [wanted] if isinstance(wanted, str) else wanted if isinstance(wanted, list) else []
    known = [name for name in names if isinstance(name, str) and name in _TYPES]
    if known and len(known) == len(names) and not any(_is(value, name) for name in known):
        return f"should be {' or '.join(known)}"
    choices = rule.get("enum")
    if isinstance(choices, list) and value not in choices:
        return f"is none of {_json.dumps(choices)}"
    return None


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool):  # Python counts True as an integer, JSON does not
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[name])


def call_of(raw: Any, tools: Tools | None = None) -> ToolCall:
    """A tool call from its OpenAI form, nested (``{"id", "function": {"name", "arguments"}}``) or flat."""
    if not isinstance(raw, dict):
        return ToolCall(
            arguments=arguments_text(raw), invalidity="malformed", problem="not an object", outcome="not_run"
        )
    inner = raw.get("function")
    inner = inner if isinstance(inner, dict) else raw
    name = inner.get("name")
    name = name if isinstance(name, str) and name else None
    arguments = inner.get("arguments", inner.get("input"))
    kind, problem = validity(name, arguments, tools)
    identifier = raw.get("id") or raw.get("call_id")
    return ToolCall(
        call_id=identifier if isinstance(identifier, str) else None,
        name=name,
        arguments=arguments_text(arguments),
        invalidity=kind,
        problem=problem,
        outcome="unknown" if kind is None else "not_run",
    )


def with_result(
    call: ToolCall,
    result: str | None,
    *,
    outcome: CallOutcome | None = None,
    problem: str | None = None,
    exit_code: int | None = None,
    elapsed_s: float | None = None,
) -> ToolCall:
    """The call with what came of it. An invalid call keeps its outcome (``not_run``) unless one is given."""
    update: dict[str, Any] = {"result": result}
    if outcome is not None:
        update["outcome"] = outcome
    if problem is not None:
        update["problem"] = problem
    if exit_code is not None:
        update["exit_code"] = exit_code
    if elapsed_s is not None:
        update["elapsed_s"] = elapsed_s
    return call.model_copy(update=update)


class Transcript:
    """Collects steps in order and pairs each tool's answer with its call.

    Answers are paired by call id; where the log has no ids, with the calls of the latest step that made any, in order.
    """

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._open: dict[tuple[int, int], ToolCall] = {}

    def add(self, step: Step) -> int:
        """Append a step; its index."""
        self.steps.append(step)
        index = len(self.steps) - 1
        if step.tool_calls:  # what has no id and was not answered by now never will be
            self._open = {place: call for place, call in self._open.items() if call.call_id is not None}
        for position, call in enumerate(step.tool_calls):
            self._open[index, position] = call
        return index

    def extend(self, index: int, calls: Sequence[ToolCall], **update: Any) -> None:
        """More of a step that the log gives in pieces: further calls, and fields that replace those so far."""
        have = self.steps[index].tool_calls
        self.steps[index] = self.steps[index].model_copy(update={**update, "tool_calls": (*have, *calls)})
        for position, call in enumerate(calls, start=len(have)):
            self._open[index, position] = call

    def answer(
        self,
        call_id: str | None,
        result: str | None,
        step: Step,
        *,
        outcome: CallOutcome | None = None,
        problem: str | None = None,
        invalidity: Invalidity | None = None,
        exit_code: int | None = None,
        elapsed_s: float | None = None,
    ) -> bool:
        """Append `step`, which brought a tool's answer, and give the answer to its call.

        False where no open call has that id (an orphan): then the step keeps `result` as its text.
        """
        place = self._find(call_id)
        if place is None:
            orphan = _json.dumps({"orphan_tool_call_id": call_id}) if call_id is not None else None
            self.add(step.model_copy(update={"text": result, "extra_json": merged(step.extra_json, orphan)}))
            return False
        call = with_result(
            self._open.pop(place),
            result,
            outcome=outcome,
            problem=problem,
            exit_code=exit_code,
            elapsed_s=elapsed_s,
        )
        if invalidity is not None and call.invalidity is None:
            call = call.model_copy(update={"invalidity": invalidity})
        index, position = place
        calls = list(self.steps[index].tool_calls)
        calls[position] = call
        self.steps[index] = self.steps[index].model_copy(update={"tool_calls": tuple(calls)})
        self.add(step if step.text is None else step.model_copy(update={"text": None}))
        return True

    def finished(self) -> list[Step]:
        """The steps, with the edits that their tool calls make (where none were given), their functions measured."""
        return [
            step
            if step.edits or not step.tool_calls
            else step.model_copy(update={"edits": tuple(measured(e) for c in step.tool_calls for e in for_call(c))})
            for step in self.steps
        ]

    def _find(self, call_id: str | None) -> tuple[int, int] | None:
        if call_id is not None:
            same = [place for place, call in self._open.items() if call.call_id == call_id]
            return same[-1] if same else None  # an id used again means the later call
        return next((place for place, call in self._open.items() if call.call_id is None), None)


def merged(first: str | None, second: str | None) -> str | None:
    """Two JSON objects as text, the second's keys winning; None where both are None."""
    if first is None or second is None:
        return first if second is None else second
    return _json.dumps({**json.loads(first), **json.loads(second)})


def extra(**values: Any) -> str | None:
    """JSON text of what the schema does not name, without the empty ones; None where nothing is left."""
    kept = {key: value for key, value in values.items() if value not in (None, "", [], {}, ())}
    return _json.dumps(kept) if kept else None


_CALL_LIKE = re.compile(r"<tool_call>|<function_call>|<function=\w|<invoke name=|<\|tool_call|\[TOOL_CALLS\]")


def looks_like_call(text: str | None) -> bool:
    """Whether a text holds the markup of a tool call, in one of the forms that models are trained to write."""
    return bool(text) and _CALL_LIKE.search(text or "") is not None


_CLOSING = "\"'`*_)]}»”’ \t\r\n"
_QUESTION_MARKS = ("?", "？", "؟", "⁇")
_COURTESY = re.compile(r"\b(?:any|some)thing else\b|\bfurther (?:help|assistance|questions)\b", re.IGNORECASE)
_FENCE = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)


def looks_like_question(text: str | None) -> bool:
    """Whether the agent's last words ask the person something: the last paragraph of prose ends in a question mark.

    Code blocks do not count. The courtesy "is there anything else?" is no question in this sense: it comes after the
    work, and counting it would make a polite agent look like one that defers its edits. Blind to questions without a
    question mark.
    """
    if not text:
        return False
    prose = _FENCE.sub("", text).rstrip(_CLOSING)
    last = prose.rsplit("\n", 1)[-1]
    return last.endswith(_QUESTION_MARKS) and not _COURTESY.search(last)


def asks(step: Step, *, ends_turn: bool) -> Step:
    """The agent's step with `is_question` set: only a step that ends the agent's work, without a call, can ask."""
    return step.model_copy(update={"is_question": ends_turn and not step.tool_calls and looks_like_question(step.text)})


def reward_of(name: str, value: Any, *, kind: RewardKind = "unknown", weight: float | None = None) -> Reward:
    """A reward from whatever the log holds: null, NaN, infinity, text and bools included.

    A number is a value (true is 1, false is 0); everything else is invalid with its reason, never zero.
    """
    if isinstance(value, bool | int | float):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return Reward(name=name, value=number, weight=weight, kind=kind)
        return Reward(name=name, value=None, weight=weight, kind=kind, invalid_reason=f"the log says {value}"[:200])
    reason = "the log holds null" if value is None else f"not a number: {_json.dumps(value)}"[:200]
    return Reward(name=name, value=None, weight=weight, kind=kind, invalid_reason=reason)


def failed_reward(name: str, reason: str, *, kind: RewardKind = "unknown", weight: float | None = None) -> Reward:
    """A reward that has no value because the scorer or the environment failed, not the agent."""
    return Reward(name=name, value=None, weight=weight, kind=kind, invalid_reason=reason, infrastructure=True)


def time_of(value: Any) -> datetime | None:
    """A moment from seconds (or milliseconds) since 1970 or ISO 8601 text; None where it is none of these.

    Text without a zone is taken as UTC, which is what loggers that omit it mostly write; readers whose format says
    otherwise must not use this.
    """
    try:
        if isinstance(value, bool):
            return None
        if isinstance(value, int | float):
            return datetime.fromtimestamp(value / 1000 if abs(value) > 1e11 else value, UTC)
        if isinstance(value, str):
            moment = datetime.fromisoformat(value)
            return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return None


def expect(value: Any, kind: type | tuple[type, ...], where: str) -> Any:
    """The value, which must be of a type; raises IngestError of kind ``schema`` that names the field."""
    if not isinstance(value, kind):
        names = kind.__name__ if isinstance(kind, type) else " or ".join(item.__name__ for item in kind)
        raise IngestError("", None, where, f"expected {names}, found {type(value).__name__}", "schema")
    return value


def identity(source: str, record: Any) -> str:
    """Conversation id from the content of a native record, whatever file it stands in."""
    return content_id(source, _json.dumps(record))


def interactions(
    steps: Sequence[Step],
    *,
    conversation_id: str,
    common: Mapping[str, Any],
    first: Mapping[str, Any] | None = None,
    last: Mapping[str, Any] | None = None,
    reactions: Mapping[int, Feedback] | None = None,
    asides: Collection[int] = (),
) -> list[Interaction]:
    """Cut a conversation at the person's turns.

    `common` are fields of every interaction (``source``, ``origin``, ``origin_record``, ...), `first` those of its
    first (what the log says about the whole), `last` those of its end (rewards, labels, stop reason), which belong to
    its last interaction. `reactions` are those amid the agent's work (a refusal, an interruption) by the index of
    their step: such a step starts no new interaction, even where a person speaks. Nor do `asides`, which are steps in
    which a person asks the agent nothing (a command to the tool around it).

    A person's turn that follows the agent's is the reaction to it: a ``follow_up``, or an ``answer`` where the agent
    had asked. A last turn of the person that nobody answered is only that reaction, not a request of its own. The
    agent's last step before it `asks` where its words do, any earlier one does not. Empty where the agent never spoke.
    """
    reactions = reactions or {}
    groups = _groups(steps, {*reactions, *asides})
    found: list[Interaction] = []
    for turn, (group, following) in enumerate(groups):
        own = _asking(group)
        moved = _parents_from(own)
        fields: dict[str, Any] = {
            **common,
            **summary(moved),
            **((first or {}) if turn == 0 else {}),
            **((last or {}) if turn == len(groups) - 1 else {}),
        }
        feedback = (
            *(reactions[index] for index, _ in own if index in reactions),
            *_reactions(own, following),
            *fields.pop("feedback", ()),
        )
        found.append(
            Interaction(
                interaction_id=content_id(conversation_id, str(turn)),
                conversation_id=conversation_id,
                turn=turn,
                steps=moved,
                feedback=feedback,
                **fields,
            )
        )
    return found


def _groups(steps: Sequence[Step], no_request: Collection[int]) -> list[tuple[list[tuple[int, Step]], list[Step]]]:
    """Steps (with their index) of each interaction, and the person's steps that came right after it."""
    groups: list[list[tuple[int, Step]]] = [[]]
    answered = False
    for index, step in enumerate(steps):
        if step.author == "person" and answered and index not in no_request:
            groups.append([])
            answered = False
        groups[-1].append((index, step))
        answered = answered or step.author == "agent"
    after = [*(_opening(group, no_request) for group in groups[1:]), []]
    if not answered:  # the last request got no answer
        groups.pop()
        after.pop()
    return list(zip(groups, after, strict=True))


def _asking(group: list[tuple[int, Step]]) -> list[tuple[int, Step]]:
    """The group with `is_question` decided for the agent's steps whose reader left it open."""
    final = max((index for index, step in group if step.author == "agent" and step.branch is None), default=-1)
    return [
        (index, asks(step, ends_turn=index == final))
        if step.author == "agent" and step.is_question is None
        else (index, step)
        for index, step in group
    ]


def _opening(group: Sequence[tuple[int, Step]], no_request: Collection[int]) -> list[Step]:
    """The person's requests before the agent's first step."""
    found: list[Step] = []
    for index, step in group:
        if step.author == "agent":
            break
        if step.author == "person" and index not in no_request:
            found.append(step)
    return found


def _parents_from(group: Sequence[tuple[int, Step]]) -> tuple[Step, ...]:
    """The steps, with parents counted from the interaction's first step; a parent before it is no longer named."""
    start = group[0][0]
    if start == 0 or all(step.parent is None for _, step in group):
        return tuple(step for _, step in group)
    return tuple(
        step
        if step.parent is None
        else step.model_copy(update={"parent": step.parent - start if step.parent >= start else None})
        for _, step in group
    )


def _reactions(group: Sequence[tuple[int, Step]], reaction: Sequence[Step]) -> tuple[Feedback, ...]:
    agent = [step for _, step in group if step.author == "agent"]
    kind = "answer" if agent and agent[-1].is_question else "follow_up"
    return tuple(Feedback.model_validate({"kind": kind, "at": step.at, "text": step.text}) for step in reaction)


def summary(steps: Sequence[Step]) -> dict[str, Any]:
    """Times and tokens of an interaction from its steps; a sum is known only where every part is."""
    agent = [step for step in steps if step.author == "agent"]
    times = [step.at for step in steps if step.at is not None]
    asked = next((step.at for step in steps if step.author == "person"), None)
    answered = next((step.at for step in reversed(steps) if step.author == "agent"), None)
    waited = (answered - asked).total_seconds() if asked is not None and answered is not None else None
    outs = [step.tokens_out for step in agent]
    ins = [step.tokens_in for step in agent]
    return {
        "started_at": min(times, default=None),
        "ended_at": max(times, default=None),
        "latency_s": waited if waited is not None and waited >= 0 else None,
        "tokens_out": None if not outs or None in outs else sum(out for out in outs if out is not None),
        "tokens_in": None if not ins or None in ins else sum(count for count in ins if count is not None),
    }
