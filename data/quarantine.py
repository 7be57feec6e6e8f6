"""What could not be read, and why: the other half of every ingest.

A foreign record ends as interactions or as exactly one `Quarantined`; there is no third way out. The entry keeps
enough to find the record again (file, line, byte offset, hash and size of the whole) and the first bytes of it, not a
copy: a damaged line may be gigabytes.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from palomar.data.errors import IngestError

Kind = Literal[
    "damaged",  # not the JSON, archive or table that it should be: cut off, garbled
    "encoding",  # bytes that are not UTF-8
    "too_large",  # beyond the cap that keeps memory bounded
    "empty",  # nothing in it
    "unknown_format",  # no source recognises the file
    "schema",  # well-formed, but not what its format says: a missing or ill-typed field
    "conflict",  # its id is stored already, with other content
    "no_interaction",  # well-formed, and holds no request with an answer
    "unreadable",  # the system refused: permission, dangling link, input/output error
    "unexpected",  # our reader failed on it in a way we did not foresee; please report
]

EXCERPT_BYTES = 2048


@dataclass(frozen=True)
class Quarantined:
    """One foreign record (or whole file) that gave no interaction."""

    source: str
    """File (and member: ``log.eval!samples/1.json``) as the user named it."""
    line: int | None
    """1-based line or record; None where the whole file is meant."""
    field: str | None
    """Path of the offending field inside the record."""
    kind: Kind
    problem: str
    """What is wrong and what was expected, in words."""
    excerpt: str
    """First bytes of the record, at most `EXCERPT_BYTES`; bytes that are no text show as ``\\xNN``."""
    content_id: str
    """20 hex digits of SHA-256 over all its bytes."""
    format: str | None = None
    """Source that tried to read it; None where none recognised it."""
    byte_offset: int | None = None
    """Where in the (uncompressed) file the trouble is, where known."""
    size: int | None = None
    """Bytes of the whole record; None where it could not be read to its end."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return str(IngestError(self.source, self.line, self.field, self.problem, self.kind))


def quarantined(
    source: str,
    kind: Kind,
    problem: str,
    raw: bytes = b"",
    *,
    line: int | None = None,
    field: str | None = None,
    format: str | None = None,
    byte_offset: int | None = None,
    size: int | None = None,
    digest: str | None = None,
) -> Quarantined:
    """Entry for a record whose bytes are `raw`; `size` and `digest` where `raw` is only its beginning."""
    return Quarantined(
        source=source,
        line=line,
        field=field,
        kind=kind,
        problem=problem,
        excerpt=raw[:EXCERPT_BYTES].decode("utf-8", errors="backslashreplace"),
        content_id=(digest or hashlib.sha256(raw).hexdigest())[:20],
        format=format,
        byte_offset=byte_offset,
        size=len(raw) if size is None else size,
    )


def to_jsonl(entries: list[Quarantined]) -> str:
    """One JSON object a line, in the order given."""
    return "".join(json.dumps(entry.to_dict(), ensure_ascii=False) + "\n" for entry in entries)
