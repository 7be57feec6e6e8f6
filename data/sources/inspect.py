"""Inspect AI logs: ``.eval`` (a zip of JSON members) and the older ``.json``. One sample is one interaction.

Traps:

- members are compressed with deflate or zstd (method 93, which Python 3.11's `zipfile` does not know);
- texts that occur often are kept once, under ``attachments``, and named ``attachment://<hash>`` elsewhere;
- a trimmed log's header still counts all samples. The samples that are there count; the header's number is kept beside
  them as ``log.total_samples``. A log that is being written has no header, only ``_journal/start.json``;
- a zip cut off before its directory (a killed run) is read member by member from its front; the member that is cut is
  quarantined by name;
- only ``samples/`` holds samples; header, summaries, reductions and journal are about them;
- a scorer's value is a number, a bool, ``C``/``I``/``P``/``N``, a dict or list of these, or null. Null, NaN and other
  text are invalid rewards. A sample that failed and has no score gets an invalid one for each of its scorers;
- a tool's error has a type: ``timeout`` timed out, ``approval`` was refused, ``parsing`` never ran (it is an unknown
  tool, bad JSON or wrong parameters), any other failed;
- only messages that come with the sample are a person's; the scaffold goes on speaking as "user".

Of the events, those of models and tools are read (times, tokens, errors) and a person's refusals; the others (sandbox,
state, spans) stay in the log.
"""

from __future__ import annotations

import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import zipfile_zstd  # teaches `zipfile` method 93

from palomar.data.errors import IngestError
from palomar.data.quarantine import Quarantined
from palomar.data.schema import Feedback, Interaction, Reward, Step, ToolCall, content_id
from palomar.data.sources import Head, Native, SourceFile, _json, each_record, source
from palomar.data.sources._chat import Tools, expect, extra, failed_reward, reward_of, summary, time_of
from palomar.data.sources._file import MAX_DOCUMENT_BYTES
from palomar.data.sources._messages import Judged, chat_steps

_ZIP = b"PK\x03\x04"
_ATTACHMENT = re.compile(r"attachment://([0-9a-f]{32})")
_GRADES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0, "true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0}
"""Inspect's own reading of grades and yes or no."""
_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_READ = frozenset(
    {"messages", "events", "attachments", "scores", "input", "output", "started_at", "completed_at", "total_time"}
)


@dataclass(frozen=True)
class Member:
    """One member of the archive."""

    name: str
    read: Callable[[], bytes]
    """Its contents. Raises IngestError of kind ``damaged`` or ``too_large``."""

    @property
    def is_sample(self) -> bool:
        """Whether it holds a sample (others are about the samples)."""
        return re.fullmatch(r"samples/.*\.json", self.name) is not None


@source("inspect")
class Inspect:
    """Reader of Inspect AI logs."""

    name: str
    title = "Inspect AI log (.eval or .json)"

    def sniff(self, head: Head) -> float:
        """A zip with Inspect's members, or a JSON document with its keys."""
        if head.start.startswith(_ZIP):
            named = head.name.endswith(".eval")
            known = any(part in head.start for part in (b"_journal/", b"samples/", b"header.json"))
            return 0.95 if named and known else 0.8 if named or known else 0.0
        return 0.9 if {"version", "eval"} <= head.keys and head.keys & {"samples", "plan", "status"} else 0.0

    def read(self, file: SourceFile) -> Iterator[Interaction | Quarantined]:
        """One interaction a sample."""
        records = _zip_records(file) if file.head.start.startswith(_ZIP) else _json_records(file)
        return each_record(file, records, _interaction)


def _json_records(file: SourceFile) -> Iterator[Native]:
    log = expect(_json.loads(file.read(), file.origin), dict, "log")
    samples = expect(log.get("samples") or [], list, "samples")
    if not samples:
        raise file.error("no_interaction", "the log holds no samples")
    header = {key: value for key, value in log.items() if key != "samples"}
    for number, sample in enumerate(samples, start=1):
        yield Native(number, {"sample": sample, "header": header, "present": len(samples)})


def _zip_records(file: SourceFile) -> Iterator[Native | Quarantined]:
    """The sample members in the archive's order; each comes with the header. Only one is held at a time."""
    with _opened(file) as members:
        header: dict[str, Any] = {}
        for member in members:
            if member.name in ("header.json", "_journal/start.json"):
                header |= expect(_json.loads(member.read(), f"{file.origin}!{member.name}"), dict, member.name)
        samples = [member for member in members if member.is_sample]
        if not samples:
            raise file.error("no_interaction", "the log holds no samples")
        for number, member in enumerate(samples, start=1):
            where, data = f"{file.origin}!{member.name}", b""
            try:
                data = member.read()
                file.bytes_read += len(data)
                value = {"sample": _json.loads(data), "header": header, "present": len(samples)}
            except IngestError as exc:
                yield file.quarantine(IngestError(where, number, exc.field, exc.problem, exc.kind), data)
            else:
                yield Native(number, value, data, member=member.name)


@contextmanager
def _opened(file: SourceFile) -> Iterator[list[Member]]:
    """Members by the archive's directory or, where it is gone, by the headers in front of them."""
    try:
        archive = zipfile.ZipFile(file.path)
    except (zipfile.BadZipFile, OSError):
        yield list(_front_to_back(file.read()))
        return
    with archive:
        yield [Member(info.filename, partial(_member, archive, info)) for info in archive.infolist()]


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    if info.file_size > MAX_DOCUMENT_BYTES:
        raise IngestError("", None, None, f"{info.file_size:,} bytes; the limit is {MAX_DOCUMENT_BYTES:,}", "too_large")
    try:
        return archive.read(info)
    except Exception as exc:  # each decompressor has errors of its own
        raise IngestError("", None, None, f"cannot be unpacked: {type(exc).__name__}: {exc}", "damaged") from exc


def _front_to_back(raw: bytes) -> Iterator[Member]:
    """Members of a zip whose directory (at its end) is gone, by the header in front of each.

    Source: PKWARE's APPNOTE 6.3.10, section 4.3.7. A member written as a stream has its size behind it, so there the
    next header is looked for.
    """
    at = 0
    while raw.startswith(_ZIP, at) and at + _LOCAL_HEADER.size <= len(raw):
        _, _, flags, method, _, _, crc, packed, size, name_length, extra_length = _LOCAL_HEADER.unpack_from(raw, at)
        start = at + _LOCAL_HEADER.size + name_length + extra_length
        name = raw[at + _LOCAL_HEADER.size : at + _LOCAL_HEADER.size + name_length].decode("utf-8", errors="replace")
        streamed = bool(flags & 8) or packed == 0xFFFFFFFF
        end = raw.find(_ZIP, start) if streamed else start + packed
        whole = 0 <= end <= len(raw)
        yield Member(name, partial(_unpacked, raw[start : end if whole else len(raw)], method, size, crc, streamed))
        if not whole:
            return
        at = end


def _unpacked(packed: bytes, method: int, size: int, crc: int, streamed: bool) -> bytes:
    problem = "the archive breaks off inside this member"
    try:
        if method == zipfile.ZIP_DEFLATED:
            inflate = zlib.decompressobj(-15)
            data = inflate.decompress(packed, MAX_DOCUMENT_BYTES)
            if not inflate.eof:
                raise IngestError("", None, None, problem, "damaged")
        elif method == zipfile_zstd.ZIP_ZSTANDARD:
            with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
                data = stream.read(MAX_DOCUMENT_BYTES)
        elif method == zipfile.ZIP_STORED and not streamed:
            data = packed
        else:
            problem = f"compression method {method} cannot be read without the archive's directory"
            raise IngestError("", None, None, problem, "damaged")
    except (zlib.error, pa.ArrowException, OSError) as exc:
        raise IngestError("", None, None, problem, "damaged") from exc
    if not streamed and (len(data), zlib.crc32(data)) != (size, crc):
        raise IngestError("", None, None, problem, "damaged")
    return data


def _interaction(native: Native, file: SourceFile) -> list[Interaction]:
    header = native.value["header"]
    sample = expect(native.value["sample"], dict, "sample")
    attachments = sample.get("attachments")
    if isinstance(attachments, dict) and attachments:
        sample = {key: _resolved(value, attachments) for key, value in sample.items() if key != "attachments"}
    about = header.get("eval") if isinstance(header.get("eval"), dict) else {}
    events = [event for event in sample.get("events") or [] if isinstance(event, dict)]
    steps = _steps(sample, events)
    if not any(step.author == "agent" for step in steps):
        return []
    model = about.get("model")
    usage = (sample.get("model_usage") or {}).get(model) or {}
    error, limit = sample.get("error"), sample.get("limit")
    output = sample.get("output") or {}
    choice: dict[str, Any] = next(iter(output.get("choices") or []), {})
    stop = f"limit:{limit.get('type')}" if isinstance(limit, dict) else choice.get("stop_reason")
    task, name = about.get("task"), str(sample.get("id"))
    uuid = sample.get("uuid") or _json.dumps([about.get("eval_id"), name, sample.get("epoch")])
    results = header.get("results") if isinstance(header.get("results"), dict) else {}
    found = Interaction(
        interaction_id=content_id("inspect", uuid),
        source="inspect",
        origin=file.origin if native.member is None else f"{file.origin}!{native.member}",
        origin_record=native.number,
        conversation_id=content_id("inspect", uuid),
        task_id=f"{task}/{name}" if task else name,
        group_id=content_id("inspect", str(about.get("eval_id")), name),
        checkpoint=model,
        traffic="evaluation",
        stop_reason="error" if error else stop,
        steps=tuple(steps),
        feedback=tuple(_refusals(events)),
        rewards=tuple(_rewards(sample, about)),
        labels=tuple(_labels(sample)),
        extra_json=extra(
            sample={key: value for key, value in sample.items() if key not in _READ},
            scores={name: _rest(score) for name, score in (sample.get("scores") or {}).items()},
            log={
                "eval_id": about.get("eval_id"),
                "revision": about.get("revision"),
                "status": header.get("status"),
                "total_samples": results.get("total_samples"),
                "samples_in_file": native.value["present"],
            },
        ),
        **summary(steps)
        | {
            "started_at": time_of(sample.get("started_at")),
            "ended_at": time_of(sample.get("completed_at")),
            "latency_s": sample.get("total_time"),
            "tokens_in": usage.get("input_tokens"),
            "tokens_out": usage.get("output_tokens"),
        },
    )
    return [found]


def _resolved(value: Any, attachments: Mapping[str, Any]) -> Any:
    """The value with every ``attachment://`` name replaced by what it names; one that names nothing stays."""
    if isinstance(value, str):
        if "attachment://" not in value:
            return value
        return _ATTACHMENT.sub(lambda match: str(attachments.get(match.group(1), match.group())), value)
    if isinstance(value, list):
        return [_resolved(item, attachments) for item in value]
    if isinstance(value, dict):
        return {key: _resolved(item, attachments) for key, item in value.items()}
    return value


def _steps(sample: Mapping[str, Any], events: list[dict[str, Any]]) -> list[Step]:
    """Steps of the messages, with the times and token counts of the model events that made them."""
    messages = expect(sample.get("messages"), list, "messages")
    made = {
        choice["message"].get("id"): event
        for event in events
        if event.get("event") == "model"
        for choice in (event.get("output") or {}).get("choices") or []
        if isinstance(choice.get("message"), dict)
    }
    tools = next((event["tools"] for event in events if event.get("event") == "model" and event.get("tools")), None)
    ran = {event.get("id"): event for event in events if event.get("event") == "tool"}

    def judge(call: ToolCall | None, result: str | None, message: Mapping[str, Any]) -> Judged:
        event = ran.get(message.get("tool_call_id"), {})
        return _judged(message.get("error") or event.get("error"), failed=bool(event.get("failed")))

    plain = [_openai_message(message) for message in messages]
    steps = chat_steps(plain, Tools.from_definitions(tools), judge=judge, later_users="harness")
    for index, (message, step) in enumerate(zip(messages, steps, strict=True)):
        event = made.get(message.get("id")) if step.author == "agent" else None
        update: dict[str, Any] = {"model": message.get("model")} if step.author == "agent" else {}
        if event is not None:
            usage = (event.get("output") or {}).get("usage") or {}
            stop = event["output"]["choices"][0].get("stop_reason")
            update |= {
                "at": time_of(event.get("completed") or event.get("timestamp")),
                "elapsed_s": event.get("working_time"),
                "tokens_in": usage.get("input_tokens"),
                "tokens_out": usage.get("output_tokens"),
                "truncated": stop in ("max_tokens", "model_length") if stop is not None else None,
            }
        elapsed = ran.get(message.get("tool_call_id"), {}).get("working_time")
        steps[index] = step.model_copy(update=update | ({"elapsed_s": elapsed} if elapsed is not None else {}))
    return steps


def _openai_message(message: Any) -> Any:
    """Inspect's message with tool calls in the form the shared code reads: name and arguments beside each other.

    A call that Inspect could not parse has no arguments, only ``parse_error``; it is passed on as text that is no JSON.
    """
    if not isinstance(message, dict) or not message.get("tool_calls"):
        return message
    calls = [
        {
            "id": call.get("id"),
            "name": call.get("function"),
            "arguments": f"(parse error) {call['parse_error']}" if call.get("parse_error") else call.get("arguments"),
        }
        for call in message["tool_calls"]
        if isinstance(call, dict)
    ]
    return {**message, "tool_calls": calls}


def _judged(error: Any, *, failed: bool) -> Judged:
    if not isinstance(error, dict):
        return Judged("failed", "the tool failed") if failed else Judged("ok")
    kind, message = str(error.get("type")), str(error.get("message"))
    problem = f"{kind}: {message}"
    if kind == "parsing":
        unknown = re.search(r"[Tt]ool .*not found", message) is not None
        return Judged("not_run", problem, "unknown_tool" if unknown else "schema")
    if kind == "timeout":
        return Judged("timed_out", problem)
    if kind == "approval":
        return Judged("refused", problem)
    return Judged("failed", problem)


def _refusals(events: list[dict[str, Any]]) -> Iterator[Feedback]:
    """A person's refusals of tool calls; policies refuse too, and those are no feedback."""
    for event in events:
        refused = event.get("decision") in ("reject", "terminate")
        if event.get("event") == "approval" and event.get("approver") == "human" and refused:
            yield Feedback(kind="refusal", text=event.get("explanation"), at=time_of(event.get("timestamp")))


def _rewards(sample: Mapping[str, Any], about: Mapping[str, Any]) -> Iterator[Reward]:
    scores = sample.get("scores") or {}
    error = sample.get("error")
    for name, score in scores.items():
        value = score.get("value") if isinstance(score, dict) else score
        yield from _scores(name, value)
    for scorer in about.get("scorers") or []:
        name = scorer.get("name") if isinstance(scorer, dict) else None
        if isinstance(name, str) and name not in scores:
            if error:
                message = error.get("message") if isinstance(error, dict) else error
                yield failed_reward(name, f"the sample failed: {message}"[:500])
            else:
                yield Reward(name=name, value=None, invalid_reason="not scored")


def _scores(name: str, value: Any) -> Iterator[Reward]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _scores(f"{name}/{key}", item)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _scores(f"{name}/{index}", item)
    else:
        yield reward_of(name, _GRADES.get(value, value) if isinstance(value, str) else value)


def _labels(sample: Mapping[str, Any]) -> Iterator[str]:
    """Grades as written, since ``N`` (no answer) and ``I`` (incorrect) are both 0."""
    for name, score in (sample.get("scores") or {}).items():
        if isinstance(score, dict) and isinstance(score.get("value"), str):
            yield f"{name}={score['value']}"


def _rest(score: Any) -> Any:
    return {key: value for key, value in score.items() if key != "value"} if isinstance(score, dict) else None
