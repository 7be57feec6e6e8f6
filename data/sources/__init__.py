"""Readers of foreign logs, one module per format, found by walking this folder.

A reader registers itself::

    @source("mini-swe-agent")
    class MiniSweAgent:
        title = "mini-swe-agent trajectory"

        def sniff(self, head: Head) -> float: ...

        def read(self, file: SourceFile) -> Iterator[Interaction | Quarantined]:
            return each_record(file, file.records(), self._parse)

Nothing else needs an edit: the walk lists it, `read_path` picks it by content, and the shared suite in
``tests/data/sources`` checks it against its fixture.

What a reader must keep to:

- every native record ends as interactions or as exactly one quarantine entry. `each_record` sees to it;
- identifiers come from content (`palomar.data.schema.content_id`), never from the file's place: the same log under two
  names is one log;
- ``Interaction.origin_record`` is the number of the native record it came from.
"""

from __future__ import annotations

import glob
import importlib
import os
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol, TypeVar

from pydantic import ValidationError

from palomar.data.errors import IngestError
from palomar.data.quarantine import Quarantined, quarantined
from palomar.data.schema import Feedback, Interaction
from palomar.data.sources._file import Head, Line, Native, SourceFile

__all__ = [
    "Head",
    "Item",
    "LateFeedback",
    "Line",
    "Native",
    "Source",
    "SourceFile",
    "detect",
    "each_record",
    "files_under",
    "named_source",
    "read_file",
    "read_path",
    "source",
    "sources",
]

MINIMUM_CONFIDENCE = 0.3
"""Below this a file counts as unknown: better to say so than to read it as something it is not."""

MAPPING_ENDINGS = (".yaml", ".yml")
"""A format's name that ends so is the path of a mapping file."""

_SKIPPED_FOLDERS = {".git", "__pycache__", "node_modules"}


@dataclass(frozen=True)
class LateFeedback:
    """A reaction that a log gives on its own, for an interaction that it names."""

    interaction_id: str
    feedback: Feedback
    origin: str
    origin_record: int


Item = Interaction | LateFeedback | Quarantined
"""What reading a file gives."""


class Source(Protocol):
    """One foreign format."""

    name: str
    """Key in the registry and value of ``Interaction.source``."""
    title: str
    """What a person calls it."""

    def sniff(self, head: Head) -> float:
        """Confidence 0..1 that the file is of this format, from its name and first bytes. Must not raise."""
        ...

    def read(self, file: SourceFile) -> Iterator[Item]:
        """The file's interactions, and an entry for each record that gave none."""
        ...


_REGISTRY: dict[str, Source] = {}

C = TypeVar("C", bound=type)
T = TypeVar("T", bound=Interaction | LateFeedback)


def source(name: str) -> Callable[[C], C]:
    """Class decorator that puts one instance of a reader into the registry under `name`."""

    def register(cls: C) -> C:
        if name in _REGISTRY:
            raise ValueError(f"two sources are called {name!r}")
        instance = cls()
        instance.name = name
        _REGISTRY[name] = instance
        return cls

    return register


@cache
def sources() -> dict[str, Source]:
    """All readers by name, in alphabetical order."""
    for module in pkgutil.iter_modules(__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"{__name__}.{module.name}")
    return dict(sorted(_REGISTRY.items()))


def named_source(name: str) -> Source:
    """The reader of that name or, for a path that ends in ``.yaml``, one for the mapping in that file.

    Raises KeyError for a format that is not registered, ConfigError for a bad mapping file.
    """
    if name.endswith(MAPPING_ENDINGS):
        from palomar.data.sources.mapped import mapped  # registers itself, so it is imported late

        return mapped(Path(name))
    return sources()[name]


def detect(head: Head) -> Source | None:
    """The reader that is surest of a file, or None where none is sure enough."""
    scored = [(reader.sniff(head), reader) for reader in sources().values()]
    confidence, best = max(scored, key=lambda pair: pair[0])
    return best if confidence >= MINIMUM_CONFIDENCE else None


def each_record(
    file: SourceFile,
    records: Iterable[Native | Quarantined],
    parse: Callable[[Native, SourceFile], Iterable[T]],
) -> Iterator[T | Quarantined]:
    """Run `parse` over native records; each ends as at least one interaction or as one quarantine entry.

    This is the boundary where a foreign record may fail in any way: `parse` raises IngestError for what it foresees, a
    record that breaks the schema is caught with its field, and anything else is kept as ``unexpected`` with its cause,
    so that one odd record never costs the rest of a file.
    """
    iterator = iter(records)
    while True:
        try:
            record = next(iterator, None)
        except IngestError as exc:  # the file itself gave out; what was read before stands
            file.records_read += 1
            yield file.quarantine(exc)
            return
        if record is None:
            return
        file.records_read += 1
        if isinstance(record, Quarantined):
            yield record
            continue
        parsed = _parsed(record, file, parse)
        if isinstance(parsed, Quarantined):
            yield parsed
        else:
            file.records_kept += 1
            yield from parsed


def _parsed(
    record: Native, file: SourceFile, parse: Callable[[Native, SourceFile], Iterable[T]]
) -> list[T] | Quarantined:
    origin = file.origin if record.member is None else f"{file.origin}!{record.member}"
    try:
        found = list(parse(record, file))
        if found:
            return found
        error = IngestError(origin, record.number, None, "holds no request with an answer", "no_interaction")
    except IngestError as exc:
        error = IngestError(origin, record.number, exc.field, exc.problem, exc.kind)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        error = IngestError(origin, record.number, where or None, first["msg"], "schema")
    except Exception as exc:
        error = IngestError(origin, record.number, None, f"{type(exc).__name__}: {exc}", "unexpected")
    return file.quarantine(error, record.bytes(), byte_offset=record.byte_offset)


def read_file(file: SourceFile, format: str = "auto") -> Iterator[Item]:
    """Interactions and quarantine entries of one file. Sets ``file.format``.

    Raises KeyError for a format that is not registered, ConfigError for a bad mapping file.
    """
    named = None if format == "auto" else named_source(format)
    try:
        if file.path.exists() and not file.path.is_file():  # a pipe or device could block for ever
            raise file.error("unreadable", "not a regular file")
        if file.head.shape == "empty":
            raise file.error("empty", "the file is empty")
        reader = named or detect(file.head)
        if reader is None:
            raise file.error("unknown_format", f"no source recognises it; the formats are {', '.join(sources())}")
    except IngestError as exc:
        file.records_read += 1
        size = file.path.stat().st_size if file.path.is_file() else None
        start = file.head.start if exc.kind in ("unknown_format", "empty") else b""
        yield quarantined(file.origin, exc.kind, exc.problem, start, size=size)  # type: ignore[arg-type]
        return
    file.format = reader.name
    try:
        yield from reader.read(file)
    except IngestError as exc:  # of the whole file; a reader keeps errors of a record to that record
        file.records_read += 1
        yield file.quarantine(exc, file.head.start)
    except Exception as exc:  # the same boundary as in `each_record`: one odd file never costs the rest of a folder
        file.records_read += 1
        yield file.quarantine(file.error("unexpected", f"{type(exc).__name__}: {exc}"), file.head.start)


def files_under(path: Path | str) -> Iterator[tuple[Path, str]]:
    """Files below a path in a stable order, each with its name as the user would write it.

    `path` is a file, a folder, or a glob pattern. Links are followed; a folder met a second time (a loop) is not
    entered again. Version-control and cache folders are left out.
    """
    text = os.fspath(path)
    if not os.path.lexists(text) and glob.has_magic(text):
        for match in sorted(glob.glob(text, recursive=True)):
            if os.path.isfile(match):
                yield Path(match), match
        return
    if not os.path.isdir(text):
        yield Path(text), text
        return
    seen: set[tuple[int, int]] = set()
    for folder, names, files in os.walk(text, followlinks=True):
        status = os.stat(folder)
        if (status.st_dev, status.st_ino) in seen:
            names.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        names[:] = sorted(name for name in names if name not in _SKIPPED_FOLDERS)
        for name in sorted(files):
            found = os.path.join(folder, name)
            yield Path(found), found


def read_path(path: Path | str, format: str = "auto") -> Iterator[Item]:
    """Interactions and quarantine entries of all files below `path` (file, folder or glob)."""
    for found, origin in files_under(path):
        yield from read_file(SourceFile(found, origin), format)
