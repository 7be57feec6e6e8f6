"""TRL completions: ``completions/completions_00001.parquet`` as `log_completions=True` writes them.

Columns are ``step, prompt, completion``, one per reward function (named after it), what `log_extra` added, and
``advantage``. One row is one sample and becomes one interaction. Traps:

- there is no group id. Rows are consecutive blocks of ``num_generations`` per prompt, so a run of rows of one step with
  the same prompt is a group; two groups of the same prompt right after each other cannot be told apart;
- a null or NaN reward is a reward function that gave none: an invalid reward, never 0. Every numeric column beyond the
  fixed ones is taken as a reward, also numbers that a function logged by `log_extra`; the file neither tells them apart
  nor holds the weights;
- ``prompt`` and ``completion`` are text or lists of chat messages. Tool arguments went through one Arrow structure, in
  which other tools' keys appear as null: nulls are dropped, so an argument that was really null is lost as well;
- a failed tool call's answer is the Python text ``{'error': '...'}``, not JSON;
- evaluation at a training step overwrites that step's training file, and no column says which it is;
- ``logging_steps > 1`` loses the batches in between.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from palomar.data.errors import IngestError
from palomar.data.quarantine import Quarantined
from palomar.data.schema import Interaction, Step, ToolCall, content_id
from palomar.data.sources import Head, Native, SourceFile, each_record, source
from palomar.data.sources._chat import asks, expect, extra, reward_of
from palomar.data.sources._json import dumps, without_lone_surrogates
from palomar.data.sources._messages import Distinct, Judged, chat_steps

_FIXED = ("step", "prompt", "completion", "advantage")
_ROWS_AT_ONCE = 256


@source("trl")
class Trl:
    """Reader of TRL completion dumps."""

    name: str
    title = "TRL completions (Parquet)"

    def sniff(self, head: Head) -> float:
        """A Parquet file's columns stand at its end, so only its mark and name can be looked at; `read` checks them."""
        if not head.start.startswith(b"PAR1"):
            return 0.0
        return 0.9 if re.fullmatch(r"completions_\d+\.parquet", head.name) else 0.4

    def read(self, file: SourceFile) -> Iterator[Interaction | Quarantined]:
        """One interaction a row."""
        return each_record(file, _rows(file), _Rows().parse)


def _rows(file: SourceFile) -> Iterator[Native]:
    number = 0
    try:
        with pq.ParquetFile(file.path) as parquet:
            schema = parquet.schema_arrow
            missing = [name for name in _FIXED[1:3] if name not in schema.names]
            if missing:
                raise file.error(
                    "schema", f"a Parquet file without the columns {', '.join(missing)} of TRL completions"
                )
            rewards = [
                item.name
                for item in schema
                if item.name not in _FIXED
                and (
                    pa.types.is_integer(item.type)
                    or pa.types.is_floating(item.type)
                    or pa.types.is_boolean(item.type)
                    or pa.types.is_null(item.type)
                )
            ]
            for batch in parquet.iter_batches(batch_size=_ROWS_AT_ONCE):
                file.bytes_read += batch.nbytes
                for row in batch.to_pylist():
                    number += 1
                    yield Native(number, {"row": without_lone_surrogates(row), "rewards": rewards})
    except (pa.ArrowException, OSError) as exc:
        raise IngestError(file.origin, number or None, None, f"the Parquet file breaks off: {exc}", "damaged") from exc


class _Rows:
    """Reads rows in order, since a group is a run of them."""

    def __init__(self) -> None:
        self._distinct = Distinct()
        self._group: tuple[Any, str] | None = None
        self._groups = Distinct()
        self._group_id = ""

    def parse(self, native: Native, file: SourceFile) -> list[Interaction]:
        """The interaction of one row."""
        row, reward_names = native.value["row"], native.value["rewards"]
        step = _step(row.get("step"))
        prompt_json = dumps(row["prompt"])
        if self._group != (step, prompt_json):
            self._group = (step, prompt_json)
            self._group_id = self._groups.id("trl", str(step), prompt_json)
        steps = (*_steps(row["prompt"], "prompt", "person"), *_steps(row["completion"], "completion", "agent"))
        kept = {key: value for key, value in row.items() if key not in (*_FIXED[:3], *reward_names)}
        identifier = self._distinct.id("trl", str(step), prompt_json, dumps(row["completion"]))
        return [
            Interaction(
                interaction_id=identifier,
                source="trl",
                origin=file.origin,
                origin_record=native.number,
                conversation_id=identifier,
                task_id=content_id("trl", prompt_json),
                group_id=self._group_id,
                cycle=step,
                steps=steps,
                rewards=tuple(reward_of(name, row[name], kind="proxy") for name in reward_names),
                extra_json=extra(**kept),
            )
        ]


def _step(value: Any) -> int | None:
    """The trainer's step; older releases wrote it as text."""
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return expect(value, int, "step") if value is not None else None


def _steps(value: Any, where: str, author: str) -> list[Step]:
    if isinstance(value, str):
        role = "user" if author == "person" else "assistant"
        step = Step.model_validate({"author": author, "role": role, "text": value})
        return [asks(step, ends_turn=True) if author == "agent" else step]
    messages = [_without_nulls(message) for message in expect(value, list, where)]
    return chat_steps(messages, judge=_judge, where=where)


def _without_nulls(value: Any) -> Any:
    """The value without null members of structures: Arrow put them there."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _judge(call: ToolCall | None, result: str | None, message: Mapping[str, Any]) -> Judged:
    """TRL writes ``str({"error": str(exception)})`` as the answer of a call that raised."""
    error = _error(result)
    if error is None:
        return Judged("ok")
    if call is not None and error == repr(call.name):  # a KeyError: no tool has that name
        return Judged("not_run", f"no tool is called {call.name!r}", "unknown_tool")
    if re.search(r"unexpected keyword argument|missing \d+ required", error):
        return Judged("not_run", error, "schema")
    return Judged("failed", error)


def _error(result: str | None) -> str | None:
    if result is None or not result.startswith(("{'error':", '{"error":')):
        return None
    try:
        value = ast.literal_eval(result)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return result
    return str(value["error"]) if isinstance(value, dict) and set(value) == {"error"} else None
