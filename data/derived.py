"""Tables that are computed from one cycle's part of the lake, kept beside it and computed again when it changes.

Whoever looks at a long run again and again pays for the new cycle only. A kept table is named by the state of the files
that it was made from and by the version of the code that made it, so that it can be deleted at any time, and a stale
one is never read.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from palomar.data.lake import Lake, Table
from palomar.data.schema import content_id

FOLDER = "derived"
Part = tuple[Table, Sequence[int | None]]
"""A table of the lake and the cycles of it that something is made from."""


def derived(
    lake: Lake, name: str, cycle: int | None, *, version: str, parts: Sequence[Part], make: Callable[[], pa.Table]
) -> pa.Table:
    """The table `name` of a cycle, made by `make` unless it was made from the same files by the same version."""
    files = [path for table, cycles in parts for path in lake.files(table, cycles)]
    states = [f"{path.name}:{status.st_mtime_ns}:{status.st_size}" for path in files for status in (path.stat(),)]
    folder = lake.root / FOLDER / name / ("none" if cycle is None else str(cycle))
    path = folder / f"{content_id(version, *states)}.parquet"
    if path.exists():
        return pq.read_table(path)
    table = make()
    folder.mkdir(parents=True, exist_ok=True)
    old = list(folder.glob("*.parquet"))
    _write(table, path)
    for each in old:
        if each != path:
            each.unlink(missing_ok=True)
    return table


def _write(table: pa.Table, path: Path) -> None:
    """At once or not at all. Not synced: what a crash takes is computed again."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    os.close(handle)
    pq.write_table(table, temporary)
    Path(temporary).rename(path)
