"""Any JSON Lines, JSON or CSV through a mapping: a YAML file that says which field is what (docs/mapping.md).

Mappings in the folder ``mappings`` are recognised by the fields they name; a person gives their own by its path in
place of a format's name. What a mapping does not read is kept in ``extra_json``, so nothing is lost by a short one.
"""

from __future__ import annotations

import ast
import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from palomar.data.config import read_config
from palomar.data.edits import edit, from_search_replace, from_unified_diff, from_whole_file
from palomar.data.errors import IngestError
from palomar.data.quarantine import Quarantined
from palomar.data.schema import Cohort, Edit, Feedback, Interaction, Step, ToolCall, content_id
from palomar.data.sources import Head, Native, SourceFile, _json, each_record, source
from palomar.data.sources._chat import asks, expect, extra, interactions, reward_of, time_of
from palomar.data.sources._mapping import (
    EditMapping,
    FeedbackMapping,
    Mapping,
    MessagesMapping,
    StepMapping,
    Value,
    parts_of,
)
from palomar.data.sources._messages import Distinct, Judged, chat_steps

MAPPINGS = Path(__file__).parent / "mappings"
MAX_LITERAL = 4 * 1024 * 1024
"""Longest text that is parsed as a Python literal; deeper nesting than Python's own limit is refused by it."""

csv.field_size_limit(64 * 1024 * 1024)


@cache
def shipped() -> tuple[Mapping, ...]:
    """The mappings that come with Palomar, the most demanding first."""
    found = [read_config(path, Mapping) for path in sorted(MAPPINGS.glob("*.yaml"))]
    return tuple(sorted(found, key=lambda mapping: -len(mapping.recognise)))


def suiting(head: Head) -> Mapping | None:
    """The first shipped mapping whose fields the file's first record has."""
    columns = _columns(head) if head.shape == "text" else None
    for mapping in shipped():
        if mapping.format == "csv":
            if columns is not None and set(mapping.recognise) <= columns:
                return mapping
        elif isinstance(head.first, dict) and all(_has(head.first, path) for path in mapping.recognise):
            return mapping
    return None


def _columns(head: Head) -> set[str]:
    try:
        return set(next(csv.reader(io.StringIO(head.text)), []))
    except csv.Error:
        return set()


@source("mapped")
class Mapped:
    """Reader of records by a mapping: a given one, or the shipped one that suits."""

    name: str
    title = "records through a mapping"

    def __init__(self, mapping: Mapping | None = None) -> None:
        self._mapping = mapping

    def sniff(self, head: Head) -> float:
        """Less sure than a format with a reader of its own, which may know more of it."""
        return 0.85 if suiting(head) is not None else 0.0

    def read(self, file: SourceFile) -> Iterator[Interaction | Quarantined]:
        """Interactions of all records."""
        mapping = self._mapping or suiting(file.head)
        if mapping is None:
            raise file.error("unknown_format", "no mapping suits its fields; give one")
        records: Iterable[Native | Quarantined] = _csv_records(file) if mapping.format == "csv" else file.records()
        records = _with_literals(records, mapping)
        if mapping.growing is not None:
            records = _with_history(records, mapping.growing)
        return each_record(file, records, _Reader(mapping, file).parse)


def mapped(path: Path) -> Mapped:
    """Reader for a mapping file. Raises ConfigError with line and key."""
    reader = Mapped(read_config(path, Mapping))
    reader.name = "mapped"
    return reader


@dataclass(frozen=True)
class _Record:
    """A record on its way: parsed, and placed in its conversation where records repeat it."""

    value: Any
    error: IngestError | None = None
    start: str | None = None
    """Identity of the first record of its conversation."""
    turn: int = 0
    known: int = 0
    """Leading messages that earlier records brought already."""
    following: tuple[str, ...] = ()
    """What the person said next, as the next record tells."""


def _csv_records(file: SourceFile) -> Iterator[Native | Quarantined]:
    """Rows as objects, numbered from 1 after the header. A row of the wrong length or of bad bytes is quarantined."""
    with file.open() as stream:
        # Bytes that are no UTF-8 become lone surrogates, so that they cost one row and not the rest.
        text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
        reader = csv.reader(text, strict=True)
        number = 0
        try:
            header = next(reader, [])
            for cells in reader:
                number += 1
                record = dict(zip(header, cells, strict=False))
                raw = _json.dumps(record).encode("utf-8", errors="surrogateescape")
                file.bytes_read += len(raw)
                problem: IngestError | None = None
                if len(cells) != len(header):
                    problem = file.error("damaged", f"{len(cells)} cells under a header of {len(header)}", line=number)
                elif any(0xDC80 <= ord(letter) <= 0xDCFF for cell in cells for letter in cell):
                    problem = file.error("encoding", "holds bytes that are not UTF-8", line=number)
                yield Native(number, record, raw) if problem is None else file.quarantine(problem, raw)
        except csv.Error as exc:
            raise file.error("damaged", f"not CSV from here on: {exc}", line=number + 1) from exc


def _with_literals(records: Iterable[Native | Quarantined], mapping: Mapping) -> Iterator[Native | Quarantined]:
    for record in records:
        if isinstance(record, Quarantined):
            yield record
            continue
        value, error = record.value, None
        if isinstance(value, dict) and mapping.python_literals:
            value = dict(value)
            for column in mapping.python_literals:
                try:
                    value[column] = _literal(value.get(column), column)
                except IngestError as exc:
                    error = exc
        yield replace(record, value=_Record(value, error))


def _literal(text: Any, column: str) -> Any:
    """Raises IngestError for text that is no Python literal; an empty cell is null."""
    if not isinstance(text, str) or not text.strip():
        return None
    if len(text) > MAX_LITERAL:
        raise IngestError("", None, column, f"a Python literal of {len(text):,} characters", "too_large")
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError) as exc:
        raise IngestError("", None, column, f"not a Python literal: {exc}", "schema") from exc


def _with_history(records: Iterable[Native | Quarantined], path: str) -> Iterator[Native | Quarantined]:
    """Place each record in its conversation: it goes on from the one before if it begins with all its messages."""
    before: Native | None = None
    for record in records:
        if isinstance(record, Quarantined):
            yield record
            continue
        here = _messages(record.value.value, path)
        if before is not None:
            said = _messages(before.value.value, path)
            if here and said and len(here) > len(said) and here[: len(said)] == said:
                placed = replace(record.value, start=before.value.start, turn=before.value.turn + 1, known=len(said))
                record = replace(record, value=placed)  # noqa: PLW2901
                new = [m.get("content") for m in here[len(said) :] if isinstance(m, dict) and m.get("role") == "user"]
                before = replace(before, value=replace(before.value, following=tuple(map(str, new))))
            yield before
        if record.value.start is None:
            record = replace(record, value=replace(record.value, start=_json.dumps(record.value.value)))  # noqa: PLW2901
        before = record
    if before is not None:
        yield before


def _messages(value: Any, path: str) -> list[Any]:
    found = _get(value, path)
    return found if isinstance(found, list) else []


class _Reader:
    """Reads records by one mapping."""

    def __init__(self, mapping: Mapping, file: SourceFile) -> None:
        self._mapping = mapping
        self._file = file
        self._distinct = Distinct()
        self._lookups: dict[str, Any] = {}

    def parse(self, native: Native, file: SourceFile) -> list[Interaction]:
        """Interactions of one record."""
        mapping, record = self._mapping, native.value
        if record.error is not None:
            raise record.error
        value = expect(record.value, dict, "record")
        if mapping.not_interactions is not None:
            raise IngestError("", None, None, mapping.not_interactions, "no_interaction")
        for path in mapping.recognise:
            if not _has(value, path):
                raise IngestError("", None, path, "is missing", "schema")
        own = [_json.dumps(_get(value, path)) for path in mapping.id] or [_json.dumps(value)]
        identity = self._distinct.id(mapping.name, *own)
        steps = self._steps(value, record)
        asked = any(step.is_question for step in steps)
        text = self._text
        found = interactions(
            steps,
            conversation_id=identity,
            common={
                "source": mapping.name,
                "origin": file.origin,
                "origin_record": native.number,
                "task_id": text(mapping.task, value),
                "group_id": text(mapping.group, value),
                "user_id": text(mapping.user, value),
                "checkpoint": text(mapping.checkpoint, value),
                "cohort": Cohort(
                    organisation=text(mapping.organisation, value),
                    work_kind=text(mapping.work_kind, value),
                    language=text(mapping.language, value),
                ),
                "traffic": mapping.traffic,
            },
            first={"extra_json": extra(**self._unread(value, record))},
            last={
                "stop_reason": text(mapping.stop_reason, value),
                "rewards": tuple(
                    reward_of(reward.name, self._value(reward.value, value), kind=reward.kind)
                    for reward in mapping.rewards
                ),
                "labels": tuple(
                    f"{label.name}={said}" for label in mapping.labels if (said := text(label.value, value)) is not None
                ),
                "feedback": (
                    *(Feedback(kind="answer" if asked else "follow_up", text=said) for said in record.following),
                    *(reaction for item in mapping.feedback for reaction in self._feedback(item, value)),
                ),
                **self._tests(value),
            },
        )
        started = time_of(self._value(mapping.started_at, value)) if mapping.started_at else None
        return [self._placed(item, record, started) for item in found]

    def _placed(self, item: Interaction, record: _Record, started: Any) -> Interaction:
        """The interaction with its place in the conversation that records repeat, and with its time."""
        update: dict[str, Any] = {} if started is None or item.turn else {"started_at": started}
        if record.start is not None and self._mapping.growing is not None:
            update |= {
                "conversation_id": content_id(self._mapping.name, "conversation", record.start),
                "turn": record.turn,
            }
        return item.model_copy(update=update) if update else item

    def _steps(self, value: dict[str, Any], record: _Record) -> list[Step]:
        steps: list[Step] = []
        for part in self._mapping.steps:
            if isinstance(part, MessagesMapping):
                given = _get(value, part.messages)
                if part.messages == self._mapping.growing and isinstance(given, list):
                    given = given[record.known :]
                steps += chat_steps(
                    given, judge=_judge(part.error_prefix), where=part.messages, later_users=part.later_users
                )
            else:
                for element in _elements(value, part.each):
                    steps += self._step(part, element, value)
        if self._mapping.growing is not None:
            steps = _without_repeated_answer(steps, record)
        last = max((index for index, step in enumerate(steps) if step.author == "agent"), default=None)
        if last is not None:
            edits = tuple(item for part in self._mapping.edits for item in self._edits(part, value, value))
            steps[last] = steps[last].model_copy(update={"edits": (*steps[last].edits, *edits)})
        if all(isinstance(part, MessagesMapping) for part in self._mapping.steps):
            return steps
        return [
            asks(step, ends_turn=index == last and not step.edits) if step.author == "agent" else step
            for index, step in enumerate(steps)
        ]

    def _step(self, part: StepMapping, element: Any, root: dict[str, Any]) -> Iterator[Step]:
        text, thinking, output = (
            self._joined(given, element, root) for given in (part.text, part.thinking, part.output)
        )
        edits = () if part.edit is None else tuple(self._edits(part.edit, element, root))
        if text is not None or thinking is not None or edits:
            role = part.role or {"person": "user", "agent": "assistant"}.get(part.author, part.author)
            yield Step(author=part.author, role=role, text=text, thinking=thinking, edits=edits)
        if output is not None:
            yield Step(author="tool", role="tool", text=output)

    def _edits(self, part: EditMapping, element: Any, root: dict[str, Any]) -> Iterator[Edit]:
        for item in _elements(element, part.each, root):
            text, path = self._text(part.text, item, root), self._text(part.path, item, root)
            if text is None:
                continue
            if part.form == "unified_diff":
                found = from_unified_diff(text) or (edit(path, "unknown", text=text),)
            elif part.form == "search_replace":
                found = from_search_replace(text) or (edit(path, "unknown", text=text),)
            elif part.form == "whole_file":
                found = (from_whole_file(path, text),)
            else:
                found = (edit(path, part.form, text=text),)
            language = self._text(part.language, item, root)
            yield from (one if language is None else one.model_copy(update={"language": language}) for one in found)

    def _feedback(self, part: FeedbackMapping, value: dict[str, Any]) -> Iterator[Feedback]:
        for element in _elements(value, part.each):
            yield Feedback(kind=part.kind, text=self._text(part.text, element, value))

    def _tests(self, value: dict[str, Any]) -> dict[str, Any]:
        tests = self._mapping.tests
        if tests is None:
            return {}
        return {"tests_passed": self._value(tests.passed, value), "tests_run": self._value(tests.run, value)}

    def _value(self, given: Value | None, element: Any, root: dict[str, Any] | None = None) -> Any:
        if given is None:
            return None
        if given.field is None:
            return given.value
        found = _get(element, given.field, root)
        if given.lookup is not None:
            return self._lookup(given.lookup).get(found) if isinstance(found, str) else None
        if given.map is not None and found is not None:
            key = found if isinstance(found, str) else _json.dumps(found)
            return given.map.get(key, found)
        return found

    def _text(self, given: Value | None, element: Any, root: dict[str, Any] | None = None) -> str | None:
        found = self._value(given, element, root)
        if found is None or isinstance(found, str):
            return found
        if isinstance(found, list) and all(isinstance(item, str) for item in found):
            return "\n".join(found)
        return _json.dumps(found)

    def _joined(self, given: Sequence[Value] | None, element: Any, root: dict[str, Any]) -> str | None:
        texts = [self._text(item, element, root) for item in given or ()]
        known = [text for text in texts if text is not None]
        return "\n\n".join(known) if known else None

    def _lookup(self, name: str) -> Any:
        """The JSON object beside the file; an empty one where there is none, so only that text is missing."""
        if name not in self._lookups:
            try:
                found = json.loads((self._file.path.parent / name).read_text(encoding="utf-8"))
            except (OSError, ValueError, RecursionError):
                found = {}
            self._lookups[name] = found if isinstance(found, dict) else {}
        return self._lookups[name]

    def _unread(self, value: dict[str, Any], record: _Record) -> dict[str, Any]:
        """The record without what became steps; all of it that is in doubt stays."""
        read = set()
        for part in self._mapping.steps:
            if isinstance(part, MessagesMapping):
                read.add(part.messages)
            elif part.each is None:
                given = (*(part.text or ()), *(part.output or ()), *(part.thinking or ()))
                read |= {item.field for item in given if item.lookup is None and item.field is not None}
        rest = {key: item for key, item in value.items() if key not in read}
        if self._mapping.growing is not None and record.turn:
            rest["known_messages"] = record.known
        return rest


def _without_repeated_answer(steps: list[Step], record: _Record) -> list[Step]:
    """Steps without the agent's answer to the turn before, which this record repeats at its beginning."""
    return steps[1:] if record.turn and steps and steps[0].author == "agent" else steps


def _judge(prefix: str | None) -> Any:
    if prefix is None:
        return None

    def judge(call: ToolCall | None, result: str | None, message: Any) -> Judged:
        failed = result is not None and result.startswith(prefix)
        return Judged("failed", result) if failed else Judged("ok")

    return judge


_ABSENT = object()


def _find(value: Any, path: str, root: Any = None) -> Any:
    """What stands at a path, or `_ABSENT`."""
    parts = parts_of(path)
    if parts and parts[0] == "$":
        value, parts = root, parts[1:]
    for part in parts:
        if isinstance(part, int):
            if not isinstance(value, list) or part >= len(value):
                return _ABSENT
            value = value[part]
        elif isinstance(value, dict) and part in value:
            value = value[part]
        else:
            return _ABSENT
    return value


def _get(value: Any, path: str, root: Any = None) -> Any:
    found = _find(value, path, root)
    return None if found is _ABSENT else found


def _has(value: Any, path: str) -> bool:
    return _find(value, path) is not _ABSENT


def _elements(value: Any, each: str | None, root: Any = None) -> list[Any]:
    """The elements of a list at a path; without one the value itself. A missing list has none."""
    if each is None:
        return [value]
    found = _get(value, each, root if root is not None else value)
    return found if isinstance(found, list) else []
