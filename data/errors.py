"""Every error that Palomar raises on purpose, drawn once.

    PalomarError
    ├── IngestError        a foreign record that could not be read: where, which field, what is wrong
    ├── ConfigError        a config or reward spec that says something we do not understand: file, line, key
    ├── LakeError          the Parquet lake disagrees with what it was told
    │   ├── ConflictError  an id that is stored already, with other content
    │   └── UnreadableError  its files cannot be read now, whatever is asked of them
    ├── StoreError         the database refused, or is not there
    ├── LedgerError        samples do not add up; the cycle stops
    ├── StaleDataError     training data is older than the configured policy lag
    └── CheckpointError    a checkpoint is missing, torn, or not what its hash says

Each keeps its parts as attributes and prints them in one line, so that a pipeline's log shows where to look.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


class PalomarError(Exception):
    """Base of all errors raised on purpose; anything else is a bug of ours."""


@dataclass(eq=False)
class IngestError(PalomarError):
    """One foreign record that could not be turned into an interaction. Goes to quarantine; the rest goes on."""

    source: str
    """File (or member of an archive: ``log.eval!samples/1.json``) as the user named it."""
    line: int | None
    """1-based line or record number, None where the whole file is meant."""
    field: str | None
    """Path of the field inside the record (``messages[3].tool_calls``), None where the record itself is meant."""
    problem: str
    """What is wrong and what was expected, in words."""
    kind: str = "unreadable"
    """Quarantine kind, see ``palomar.data.quarantine.Kind``."""

    def __str__(self) -> str:
        where = self.source if self.line is None else f"{self.source}:{self.line}"
        return f"{where}: {self.problem}" if self.field is None else f"{where}: {self.field}: {self.problem}"


@dataclass(eq=False)
class ConfigError(PalomarError):
    """A config file, reward spec or mapping that is not valid."""

    source: str
    line: int | None
    key: str | None
    problem: str

    def __str__(self) -> str:
        where = self.source if self.line is None else f"{self.source}:{self.line}"
        return f"{where}: {self.problem}" if self.key is None else f"{where}: {self.key}: {self.problem}"


class LakeError(PalomarError):
    """The lake on disk is not what was asked for (missing table, other schema, conflicting content)."""


class UnreadableError(LakeError):
    """Files of the lake cannot be read: damaged, or the disk does not answer. No fault of what was to be stored."""


@dataclass(eq=False)
class ConflictError(LakeError):
    """Interactions whose id is taken by other content; nothing of the batch was written."""

    problem: str
    interaction_ids: tuple[str, ...]

    def __str__(self) -> str:
        more = "" if len(self.interaction_ids) <= 3 else f" and {len(self.interaction_ids) - 3} more"
        return f"{self.problem}: {', '.join(repr(name) for name in self.interaction_ids[:3])}{more}"


@dataclass(eq=False)
class StoreError(PalomarError):
    """The store cannot be reached, or a write would break one of its rules."""

    where: str
    """File or URL of the store, never with a password."""
    problem: str

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}"


@dataclass(eq=False)
class LedgerError(PalomarError):
    """Collected samples do not add up to trained + excluded + quarantined + waiting."""

    cycle: int
    stratum: str
    """Stratum of predicted failure in which the sum fails."""
    collected: int
    parts: Mapping[str, int]
    """Counted samples by where they went, e.g. ``{"trained": 480, "excluded:invalid_tool_call": 20}``."""

    def __str__(self) -> str:
        parts = " + ".join(f"{name} {count}" for name, count in self.parts.items())
        return (
            f"cycle {self.cycle}, {self.stratum}: {self.collected} samples were collected, but "
            f"{parts} = {sum(self.parts.values())}"
        )


class StaleDataError(PalomarError):
    """A batch holds samples from a policy older than the configured lag."""


class CheckpointError(PalomarError):
    """A checkpoint that is missing, torn, in a refused format, or does not match its hash."""
