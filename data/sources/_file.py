"""A foreign file: its first bytes, its lines, its JSON records, always in bounded memory.

gzip and zstd are undone on the way (recognised by their magic bytes, not by the name). A line beyond `MAX_LINE_BYTES`
is read past, hashed and reported, never held.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeGuard, cast

import pyarrow as pa

from palomar.data.errors import IngestError
from palomar.data.quarantine import EXCERPT_BYTES, Kind, Quarantined, quarantined
from palomar.data.sources import _json

HEAD_BYTES = 64 * 1024
MAX_LINE_BYTES = 64 * 1024 * 1024
MAX_DOCUMENT_BYTES = 256 * 1024 * 1024
_CHUNK = 1024 * 1024
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_READ_ERRORS = (EOFError, OSError, zlib.error)

Shape = Literal["jsonl", "json", "text", "binary", "empty"]


@dataclass(frozen=True)
class Head:
    """What a source may look at to recognise a file: its name and its first bytes, uncompressed."""

    name: str
    """File name without its folder; a hint only, contents decide."""
    start: bytes
    """First bytes, at most `HEAD_BYTES`."""
    whole: bool
    """True: `start` is all there is."""

    @cached_property
    def text(self) -> str:
        """The first bytes as text; what is no UTF-8 shows as U+FFFD."""
        return self.start.removeprefix(_json.BOM).decode("utf-8", errors="replace")

    @cached_property
    def shape(self) -> Shape:
        """``jsonl``: one value a line (or a single one on one line); ``json``: one value over several lines."""
        lines = self._lines
        if not lines:
            return "empty"
        if b"\0" in self.start[:4096]:
            return "binary"
        if len(lines) == 1:
            return "jsonl" if lines[0].startswith(("{", "[")) else "text"
        if any(value is not None for value in self._parsed):
            return "jsonl"
        return "json" if lines[0].startswith(("{", "[")) else "text"

    @cached_property
    def records(self) -> list[Any]:
        """The first JSON values (up to 8): lines of a JSONL file or the one document, cut-off ones so far."""
        if self.shape == "json":
            text = self.text.lstrip()
            found = [_parse(text) if self.whole else None]
            found = found if found[0] is not None else [_json.partial(text)]
        elif self.shape == "jsonl":
            pairs = zip(self._lines[:8], self._parsed[:8], strict=True)
            found = [_json.partial(line) if value is None else value for line, value in pairs]
        else:
            found = []
        found = [item for item in found if item is not None]
        if len(found) == 1 and _is_list_of_records(found[0]):
            return found[0][:8]
        return found

    @cached_property
    def first(self) -> Any:
        """The first JSON object or list among `records`, or None."""
        return next((item for item in self.records if isinstance(item, dict | list)), None)

    @cached_property
    def keys(self) -> frozenset[str]:
        """Keys of `first`; empty where it is no object."""
        return frozenset(self.first) if isinstance(self.first, dict) else frozenset()

    @cached_property
    def _lines(self) -> list[str]:
        """Non-blank lines as far as the head goes."""
        return [line.rstrip("\r\n") for line in self.text.split("\n") if line.strip()]

    @cached_property
    def _parsed(self) -> list[Any]:
        """For each line the JSON object or list that it is, where it starts at the left edge; else None."""
        return [_parse(line) if line.startswith(("{", "[")) and len(line) > 1 else None for line in self._lines]


def is_message(value: Any) -> bool:
    """Whether a value looks like one chat message."""
    return isinstance(value, dict) and isinstance(value.get("role"), str)


def _is_list_of_records(value: Any) -> TypeGuard[list[Any]]:
    """A list, and not the messages of one conversation."""
    return isinstance(value, list) and bool(value) and not is_message(value[0])


def _parse(text: str) -> Any:
    """The JSON value that the whole text is, or None."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


@dataclass(frozen=True)
class Native:
    """One foreign record as read, before anyone understood it."""

    number: int
    """1-based line in the file, or position in the document's list."""
    value: Any
    raw: bytes | None = None
    """Its bytes; None where it is a part of a larger document."""
    member: str | None = None
    """Member of an archive it came from."""
    byte_offset: int | None = None

    def bytes(self) -> bytes:
        """The record's bytes, or its JSON text where it has none of its own."""
        return self.raw if self.raw is not None else _json.dumps(self.value).encode("utf-8", errors="replace")


@dataclass(frozen=True)
class Line:
    """One line of a file, without its line end."""

    number: int
    data: bytes
    byte_offset: int


@dataclass
class SourceFile:
    """A file that one source reads, and the count of native records drawn from it."""

    path: Path
    origin: str
    """The file as the user named it; goes into ``Interaction.origin``."""
    format: str | None = None
    max_line_bytes: int = MAX_LINE_BYTES
    records_read: int = field(default=0, init=False)
    """Native records drawn so far, whatever became of them (see `palomar.data.sources.each_record`)."""
    records_kept: int = field(default=0, init=False)
    """Those of them that gave interactions (or feedback); the others are in quarantine, one entry each."""
    bytes_read: int = field(default=0, init=False)

    @cached_property
    def head(self) -> Head:
        """First bytes, uncompressed. Raises IngestError where they cannot be read."""
        try:
            with self.open() as stream:
                start = stream.read(HEAD_BYTES + 1)
        except _READ_ERRORS as exc:
            raise self.error("damaged" if isinstance(exc, EOFError | zlib.error) else "unreadable", str(exc)) from exc
        name = self.path.name
        for ending in (".gz", ".zst"):
            name = name.removesuffix(ending)
        return Head(name, start[:HEAD_BYTES], whole=len(start) <= HEAD_BYTES)

    def open(self) -> BinaryIO:
        """The file's bytes, uncompressed."""
        with self.path.open("rb") as stream:
            magic = stream.read(4)
        if magic.startswith(_GZIP):
            return cast(BinaryIO, gzip.open(self.path, "rb"))
        if magic == _ZSTD:
            return io.BufferedReader(cast(io.RawIOBase, pa.input_stream(str(self.path), compression="zstd")))
        return self.path.open("rb")

    def lines(self) -> Iterator[Line | Quarantined]:
        """Lines with their line ends (LF or CRLF) off, blank ones left out; too long ones as quarantine entries.

        Raises IngestError of kind ``damaged`` where the bytes give out before the end (a cut-off gzip).
        """
        number, offset = 0, 0
        with self.open() as stream:
            while True:
                number += 1
                try:
                    data = stream.readline(self.max_line_bytes + 1)
                    if not data:
                        return
                    size, digest = len(data), None
                    if size > self.max_line_bytes and not data.endswith(b"\n"):
                        size, digest = _skip_line(stream, data)
                except _READ_ERRORS as exc:
                    raise self.error("damaged", f"the file breaks off here: {exc}", line=number) from exc
                self.bytes_read += size
                if digest is not None:
                    yield self._too_long(number, offset, data, size, digest)
                elif data.strip():
                    yield Line(number, (data.removeprefix(_json.BOM) if number == 1 else data).rstrip(b"\r\n"), offset)
                offset += size

    def read(self, limit: int = MAX_DOCUMENT_BYTES) -> bytes:
        """The whole file. Raises IngestError of kind ``too_large`` or ``damaged``."""
        try:
            with self.open() as stream:
                data = stream.read(limit + 1)
        except _READ_ERRORS as exc:
            raise self.error("damaged", f"the file breaks off: {exc}") from exc
        if len(data) > limit:
            raise self.error("too_large", f"one document of more than {limit:,} bytes; write it as JSON Lines instead")
        self.bytes_read += len(data)
        return data

    def records(self) -> Iterator[Native | Quarantined]:
        """JSON records: lines of a JSONL file, elements of a JSON list, or the one document of a JSON file.

        A list of chat messages is one record. What does not parse comes out as quarantine entries.
        """
        if self.head.shape == "json":
            yield from self.document_records()
            return
        for line in self.lines():
            if isinstance(line, Quarantined):
                yield line
                continue
            try:
                value = _json.loads(line.data, self.origin, line.number)
            except IngestError as exc:
                yield self.quarantine(exc, line.data, byte_offset=line.byte_offset)
                continue
            if line.number == 1 and _is_list_of_records(value):  # a JSON document that happens to be one line
                yield from (Native(number, item) for number, item in enumerate(value, start=1))
            else:
                yield Native(line.number, value, line.data, byte_offset=line.byte_offset)

    def document_records(self) -> Iterator[Native | Quarantined]:
        """The elements of the one JSON list in this file, or its one document as record 1."""
        raw = self.read()
        try:
            value = _json.loads(raw, self.origin)
        except IngestError as exc:
            yield self.quarantine(exc, raw)
            return
        if _is_list_of_records(value):
            for number, item in enumerate(value, start=1):
                yield Native(number, item)
        else:
            yield Native(1, value, raw)

    def error(self, kind: Kind, problem: str, *, line: int | None = None, field: str | None = None) -> IngestError:
        """An error about this file."""
        return IngestError(self.origin, line, field, problem, kind)

    def quarantine(self, error: IngestError, raw: bytes = b"", *, byte_offset: int | None = None) -> Quarantined:
        """The entry for an error, with the bytes it is about."""
        return quarantined(
            error.source or self.origin,
            cast(Kind, error.kind),
            error.problem,
            raw,
            line=error.line,
            field=error.field,
            format=self.format,
            byte_offset=byte_offset,
        )

    def _too_long(self, number: int, offset: int, data: bytes, size: int, digest: str) -> Quarantined:
        return quarantined(
            self.origin,
            "too_large",
            f"a line of {size:,} bytes; the limit is {self.max_line_bytes:,}",
            data[:EXCERPT_BYTES],
            line=number,
            format=self.format,
            byte_offset=offset,
            size=size,
            digest=digest,
        )


def _skip_line(stream: BinaryIO, start: bytes) -> tuple[int, str]:
    """Read past the rest of a line; its size and SHA-256, in the memory of one chunk."""
    digest, size, piece = hashlib.sha256(start), len(start), start
    while piece and not piece.endswith(b"\n"):
        piece = stream.readline(_CHUNK)
        digest.update(piece)
        size += len(piece)
    return size, digest.hexdigest()
