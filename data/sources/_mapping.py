"""The small language in which a person says where a foreign record keeps what (YAML, see docs/mapping.md).

Only field paths and constants can be written; nothing is evaluated. `python_literals` parses a column that holds Python
text with `ast.literal_eval`, which knows literals only.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from palomar.data.schema import Author, EditForm, FeedbackKind, RewardKind, Traffic

_PATH = re.compile(r"\.|\$?[\w-]+(?:\[\d+\])*(?:\.[\w-]+(?:\[\d+\])*)*")
_PART = re.compile(r"[\w$-]+|\[\d+\]")


def _checked_path(path: str) -> str:
    if not _PATH.fullmatch(path):
        raise ValueError("not a field path like info.tests[0].name (or . for the element itself)")
    return path


Path = Annotated[str, AfterValidator(_checked_path)]
"""Field of a record, with dots and ``[0]``. In an `each` it starts at the element; ``$`` there is the record."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Value(_Part):
    """Where a value comes from: a field, or a constant."""

    field: Path | None = None
    value: str | int | float | bool | None = None
    """Constant, instead of a field."""
    map: dict[str, str | int | float | bool] | None = None
    """Other words for what the field holds; a value that is not named here passes as it is."""
    lookup: str | None = None
    """Name of a JSON object beside the file, in which the field's value is a key."""

    @model_validator(mode="after")
    def _one_origin(self) -> Value:
        if (self.field is None) == (self.value is None):
            raise ValueError("needs either a field or a value")
        if self.lookup is not None and ("/" in self.lookup or "\\" in self.lookup):
            raise ValueError("lookup is a file name beside the file, not a path")
        return self


def _from_path(value: Any) -> Any:
    return {"field": value} if isinstance(value, str) else value


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


Field_ = Annotated[Value, BeforeValidator(_from_path)]
"""A bare word is a field path."""
Text = Annotated[tuple[Field_, ...], BeforeValidator(_as_list)]
"""One value, or several that are joined by a blank line. A list of texts is joined by line ends."""


class EditMapping(_Part):
    """An edit that the agent made or proposed."""

    text: Field_
    form: EditForm = "whole_file"
    path: Field_ | None = None
    language: Field_ | None = None
    each: Path | None = None
    """List of which each element is one edit; paths then start at the element."""


class StepMapping(_Part):
    """One step, or with `each` one for every element of a list. A step whose text is missing or null is left out."""

    author: Author
    role: str | None = None
    each: Path | None = None
    text: Text | None = None
    thinking: Text | None = None
    output: Text | None = None
    """What a tool answered; becomes a step of the tool after this one."""
    edit: EditMapping | None = None


class MessagesMapping(_Part):
    """Steps from a list of OpenAI-like messages."""

    messages: Path
    later_users: Literal["person", "harness"] = "person"
    """Who speaks as "user" once the agent has spoken."""
    error_prefix: str | None = None
    """How the answer of a failed tool call begins; any other answer then means that the call ran."""


def _kind_of_steps(given: Any) -> str:
    """Tells the two kinds apart, so that an error names the keys of the one that was meant."""
    return (
        "messages"
        if isinstance(given, MessagesMapping) or (isinstance(given, dict) and "messages" in given)
        else "step"
    )


Steps = Annotated[
    Annotated[MessagesMapping, Tag("messages")] | Annotated[StepMapping, Tag("step")], Discriminator(_kind_of_steps)
]


class RewardMapping(_Part):
    """A reward; null, NaN or a word is an invalid one."""

    name: str
    value: Field_
    kind: RewardKind = "unknown"


class LabelMapping(_Part):
    """A judgement that came with the record."""

    name: str
    value: Field_


class FeedbackMapping(_Part):
    """A reaction, or with `each` one for every element of a list."""

    kind: FeedbackKind
    each: Path | None = None
    text: Field_ | None = None


class TestsMapping(_Part):
    """Tests that were run on the result."""

    __test__ = False  # pytest would take the name for a test class

    passed: Field_
    run: Field_


class Mapping(_Part):
    """How records of one foreign format become interactions."""

    name: Annotated[str, Field(pattern=r"[a-z0-9-]+")]
    """Goes into ``Interaction.source``."""
    title: str
    format: Literal["json", "csv"] = "json"
    """``json``: JSON Lines, or a JSON list or document. ``csv``: with a header."""
    recognise: Annotated[tuple[Path, ...], Field(min_length=1)]
    """Fields that every record of the format has; a file whose first record has them is taken for one."""
    not_interactions: str | None = None
    """Set where the records are no interactions: the reason under which they are quarantined."""
    python_literals: tuple[str, ...] = ()
    """Text fields that hold a Python literal."""
    growing: Path | None = None
    """List of messages that repeats the conversation so far: each record then adds one turn to the record before."""
    id: tuple[Path, ...] = ()
    """Fields that name the record; without them its whole content does."""
    task: Field_ | None = None
    group: Field_ | None = None
    user: Field_ | None = None
    checkpoint: Field_ | None = None
    organisation: Field_ | None = None
    work_kind: Field_ | None = None
    language: Field_ | None = None
    traffic: Traffic = "production"
    stop_reason: Field_ | None = None
    started_at: Field_ | None = None
    tests: TestsMapping | None = None
    steps: tuple[Steps, ...] = ()
    edits: tuple[EditMapping, ...] = ()
    """Edits of the agent's last step."""
    rewards: tuple[RewardMapping, ...] = ()
    labels: tuple[LabelMapping, ...] = ()
    feedback: tuple[FeedbackMapping, ...] = ()

    @model_validator(mode="after")
    def _has_an_agent(self) -> Mapping:
        speaks = any(isinstance(step, MessagesMapping) or step.author == "agent" for step in self.steps)
        if self.not_interactions is None and not speaks:
            raise ValueError("steps: none of them is the agent's")
        if self.not_interactions is not None and self.steps:
            raise ValueError("steps: records that are no interactions have none")
        return self


def parts_of(path: str) -> tuple[str | int, ...]:
    """Keys and positions of a path; ``.`` is the empty one."""
    if path == ".":
        return ()
    return tuple(int(part[1:-1]) if part.startswith("[") else part for part in _PART.findall(path))
