"""Palomar's own JSON Lines: one interaction a line, as `palomar.data.schema.Interaction` says.

Any team can write it; ``palomar.schema.json`` beside this file is its JSON Schema. Only ``steps`` is required. Without
an ``interaction_id`` it is made from the content; a reaction that comes later has a line of its own::

    {"interaction_id": "a1", "steps": [{"author": "person", "role": "user", "text": "..."}, ...]}
    {"interaction_id": "a1", "feedback": {"kind": "reverted", "at": "2026-01-01T10:00:00Z"}}

JSON has no NaN, loggers write it all the same: a reward that is NaN, infinite or null is kept as invalid with its
reason.
``python -m palomar.data.sources.palomar`` prints the schema.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from palomar.data.errors import IngestError
from palomar.data.quarantine import Quarantined
from palomar.data.schema import Feedback, Interaction
from palomar.data.sources import Head, Item, LateFeedback, Native, SourceFile, each_record, source
from palomar.data.sources._chat import identity, merged, reward_of
from palomar.data.sources._json import dumps, loads

OPTIONAL = ("interaction_id", "source", "origin")
"""Fields of an interaction that a file may leave out: the first is made from the content, the others are known here."""


@source("palomar")
class Palomar:
    """Reader of Palomar's own JSON Lines."""

    name: str
    title = "Palomar's own JSON Lines"

    def sniff(self, head: Head) -> float:
        """Sure where a record has steps with an author, or is a reaction to an interaction it names."""
        for record in head.records:
            if not isinstance(record, dict):
                continue
            steps = record.get("steps")
            if isinstance(steps, list) and steps and isinstance(steps[0], dict) and "author" in steps[0]:
                return 1.0
            if isinstance(record.get("feedback"), dict) and "interaction_id" in record:
                return 0.9
        return 0.0

    def read(self, file: SourceFile) -> Iterator[Item]:
        """Interactions and late feedback, line by line."""
        return each_record(file, file.records(), _parse)


def read_records(
    file: SourceFile, records: Sequence[bytes], kind: Literal["interactions", "feedback"]
) -> Iterator[Item]:
    """Interactions or late feedback, as `kind` says, of records that were sent; `file` counts them."""

    def parse(record: Native, file: SourceFile) -> list[Interaction | LateFeedback]:
        found = _parse(record, file)
        late = isinstance(found[0], LateFeedback)
        if late != (kind == "feedback"):
            what = "feedback on an interaction" if late else "an interaction"
            raise IngestError("", None, None, f"expected {kind}, found {what}", "schema")
        return found

    return each_record(file, _natives(file, records), parse)


def _natives(file: SourceFile, records: Sequence[bytes]) -> Iterator[Native | Quarantined]:
    for number, raw in enumerate(records, start=1):
        try:
            yield Native(number, loads(raw, file.origin, number), raw)
        except IngestError as exc:
            yield file.quarantine(exc, raw)
        except RecursionError:
            yield file.quarantine(IngestError(file.origin, number, None, "nested too deeply", "damaged"), raw)


def _parse(record: Native, file: SourceFile) -> list[Interaction | LateFeedback]:
    value = record.value
    if not isinstance(value, dict):
        raise IngestError("", None, None, f"expected an object, found {type(value).__name__}", "schema")
    if isinstance(value.get("feedback"), dict):
        return [_late(value, record, file)]
    fields = {"source": "palomar", **value, "origin": file.origin, "origin_record": record.number}
    if not fields.get("interaction_id"):
        fields["interaction_id"] = identity("palomar", value)
    if isinstance(value.get("rewards"), list):
        fields["rewards"] = [_reward(item) for item in value["rewards"]]
    if isinstance(value.get("steps"), list):
        fields["steps"] = [_step(item) for item in value["steps"]]
    return [Interaction.model_validate(fields)]


def _late(value: dict[str, Any], record: Native, file: SourceFile) -> LateFeedback:
    interaction_id = value.get("interaction_id")
    if not isinstance(interaction_id, str) or not interaction_id:
        raise IngestError("", None, "interaction_id", "expected the id of the interaction this is about", "schema")
    if unknown := sorted(value.keys() - {"interaction_id", "feedback"}):
        raise IngestError("", None, unknown[0], "not a field of a feedback line", "schema")
    return LateFeedback(interaction_id, Feedback.model_validate(value["feedback"]), file.origin, record.number)


def _reward(item: Any) -> Any:
    """A reward without a finite number becomes invalid with a reason, unless the log gives one."""
    if not isinstance(item, dict) or item.get("invalid_reason"):
        return item
    value = item.get("value")
    if isinstance(value, float | int) and math.isfinite(value):
        return item
    return {**item, "value": None, "invalid_reason": reward_of("", value).invalid_reason}


def _step(item: Any) -> Any:
    reward = item.get("reward") if isinstance(item, dict) else None
    if isinstance(reward, float) and not math.isfinite(reward):
        return {**item, "reward": None, "extra_json": merged(item.get("extra_json"), dumps({"reward": reward}))}
    return item


def json_schema() -> dict[str, Any]:
    """JSON Schema of a line: an interaction or a reaction, made from the records themselves."""
    interaction = Interaction.model_json_schema()
    definitions = interaction.pop("$defs")
    interaction["required"] = [name for name in interaction["required"] if name not in OPTIONAL]
    late = {
        "title": "LateFeedback",
        "description": "A reaction that came after its interaction was written.",
        "type": "object",
        "additionalProperties": False,
        "required": ["interaction_id", "feedback"],
        "properties": {"interaction_id": {"type": "string"}, "feedback": {"$ref": "#/$defs/Feedback"}},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Palomar interaction log",
        "description": "One line of Palomar's own JSON Lines.",
        "oneOf": [{"$ref": "#/$defs/Interaction"}, {"$ref": "#/$defs/LateFeedback"}],
        "$defs": {**definitions, "Interaction": interaction, "LateFeedback": late},
    }


def schema_text() -> str:
    """The schema as it stands in ``palomar.schema.json``."""
    return json.dumps(json_schema(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    sys.stdout.write(schema_text())
