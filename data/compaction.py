"""Merges the many small files that small batches leave, and changes nothing that anyone reads.

The merged files are made in a folder beside the table, with links to the files that stay as they are. That folder then
takes the place of the partition in one step: the two exchange their names (``renameat2``). So

- who lists a partition sees all of the old files or all of the new ones, never both and never some;
- a merge that is killed at any moment leaves the partition as it was, or as it shall be, and a folder that the next
  writer removes;
- writers wait meanwhile: it is done under the table's lock, one partition at a time.

Files of different columns are not merged: a column that a file lacks means "not known when it was written", and null
is something else for those that may not be null.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import time
import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from palomar.data.errors import LakeError
from palomar.data.lake import Lake, Table, file_id, row_group_rows, sync

TABLES: tuple[Table, ...] = ("interactions", "feedback")
"""Those that grow by batches; the others have one file a cycle."""
SMALL_BYTES = 8 << 20
"""A file below this is small."""
FILE_BYTES = 64 << 20
"""About the size of a merged file, at most."""
_GROUP_BYTES = 8 << 20
_EXCHANGE = 2
_AT_CWD = -100


@dataclass(frozen=True)
class Compacted:
    """What became of one table."""

    table: Table
    partitions: int = 0
    """In which something was merged."""
    files_before: int = 0
    """Of the whole table."""
    files_after: int = 0
    rows: int = 0
    """That were written anew."""
    problems: tuple[str, ...] = ()
    """Partitions that were left as they are, and why."""


def compact(lake: Lake, *, at_least: int = 2, small_bytes: int = SMALL_BYTES) -> list[Compacted]:
    """Merges the small files of each partition that has ``at_least`` of them.

    Raises LakeError where the file system cannot exchange two folders in one step.
    """
    if at_least < 2:
        raise ValueError(f"at_least: expected 2 or more, got {at_least}")
    done = []
    for table in TABLES:
        before = lake.files(table)
        partitions, rows, problems = 0, 0, []
        for folder in sorted({path.parent for path in before}):
            if len(_small(folder, small_bytes)) < at_least:  # asked before the lock: most have nothing to do
                continue
            try:
                with lake.writing(table):
                    small = _small(folder, small_bytes)
                    merged = _merge(lake, table, folder, small) if len(small) >= at_least else 0
            except (pa.ArrowException, OSError) as exc:
                problems.append(f"{table}/{folder.name}: {exc}")
                continue
            partitions += merged > 0
            rows += merged
        done.append(Compacted(table, partitions, len(before), len(lake.files(table)), rows, tuple(problems)))
    return done


def wanted(lake: Lake, at_least: int, small_bytes: int = SMALL_BYTES) -> bool:
    """Whether a partition has so many small files."""
    folders = {path.parent for table in TABLES for path in lake.files(table)}
    return any(len(_small(folder, small_bytes)) >= at_least for folder in folders)


def _small(folder: Path, small_bytes: int) -> list[Path]:
    found = []
    for path in sorted(folder.glob("*.parquet")):
        try:
            if path.stat().st_size < small_bytes:
                found.append(path)
        except FileNotFoundError:  # merged meanwhile
            continue
    return found


def _merge(lake: Lake, table: Table, folder: Path, small: Sequence[Path]) -> int:
    """Merges the files of a partition; the table's lock is held. Rows that were written anew."""
    groups = [group for group in _groups(small) if len(group) > 1]
    if not groups:
        return 0
    waiting_room = lake.replaced(table)
    waiting_room.mkdir(parents=True, exist_ok=True)
    made = waiting_room / f"{time.time_ns()}-{uuid.uuid4().hex}"
    made.mkdir()
    rows = 0
    try:
        for group in groups:
            rows += _written(group, made)
        gone = {path for group in groups for path in group}
        for path in folder.iterdir():
            if path not in gone:
                os.link(path, made / path.name)
        sync(made)
        sync(waiting_room)
        _exchange(made, folder)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    sync(folder.parent)
    sync(waiting_room)
    # `made` is the old folder now. It stays for a while, for who is listing it (`Lake.writing` removes it).
    return rows


def _groups(small: Sequence[Path]) -> list[list[Path]]:
    """Files that go into one, in the order in which they were written."""
    by_columns: defaultdict[bytes, list[Path]] = defaultdict(list)
    for path in sorted(small, key=lambda path: (path.stat().st_mtime_ns, path.name)):
        by_columns[pq.read_schema(path).serialize().to_pybytes()].append(path)
    found: list[list[Path]] = []
    for paths in by_columns.values():
        size, group = 0, list[Path]()
        for path in paths:
            if group and size + path.stat().st_size > FILE_BYTES:
                found.append(group)
                size, group = 0, []
            size += path.stat().st_size
            group.append(path)
        found.append(group)
    return found


def _written(group: Sequence[Path], folder: Path) -> int:
    """Writes the rows of some files into one, row group by row group. Their number."""
    temporary = folder / ".merging"
    waiting: list[pa.Table] = []
    names = []
    with pq.ParquetWriter(temporary, pq.read_schema(group[0]), compression="zstd") as writer:

        def flush() -> None:
            rows = pa.concat_tables(waiting)
            writer.write_table(rows, row_group_size=row_group_rows(rows))
            waiting.clear()

        for path in group:
            with pq.ParquetFile(path) as parquet:
                for number in range(parquet.num_row_groups):
                    waiting.append(parquet.read_row_group(number, use_threads=False))
                    names.append(waiting[-1]["interaction_id"])
                    if sum(rows.nbytes for rows in waiting) >= _GROUP_BYTES:
                        flush()
        if waiting:
            flush()
    before = pa.chunked_array([chunk for name in names for chunk in name.chunks], pa.string())
    if not pq.read_table(temporary, columns=["interaction_id"])["interaction_id"].equals(before):
        raise LakeError(f"{group[0].parent.name}: what was merged is not what was there; it was left as it is")
    newest = max(path.stat().st_mtime_ns for path in group)
    os.utime(temporary, ns=(newest, newest))  # nothing in it is newer, so nothing has to be derived anew
    sync(temporary)
    temporary.rename(folder / f"{file_id(temporary)}.parquet")
    return len(before)


def _exchange(first: Path, second: Path) -> None:
    """Lets two folders exchange their names in one step."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        raise LakeError("this system cannot exchange two folders in one step (renameat2), so nothing was merged")
    if rename(_AT_CWD, os.fsencode(first), _AT_CWD, os.fsencode(second), _EXCHANGE) == 0:
        return
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        raise LakeError("this file system cannot exchange two folders in one step, so nothing was merged")
    raise OSError(code, os.strerror(code), str(second))
