"""The lake: interactions, late feedback, observations and samples as Parquet files, one folder per table and cycle.

    <root>/interactions/cycle=000012/<content id>.parquet
    <root>/interactions/cycle=none/<content id>.parquet        logs from outside a loop
    <root>/observations/cycle=000012/rows.parquet              derived, replaced whole

What it promises:

- **A reader never sees half a file.** A file is written beside its place under a name that readers ignore, synced,
  renamed, and its folder synced. A killed writer leaves at most such a temporary file, which the next writer removes.
- **Appending twice changes nothing.** Interactions are known by ``interaction_id``, reactions and samples by content.
  The same id with other content is an error that names it, and then nothing of that batch is written.
- **Two processes may append at once.** Looking up what is known and writing happen under an ``flock`` on the table,
  which the kernel lets go of when its holder dies.
- **Merging small files changes nothing that is read.** Files of one partition are merged into a new folder, which then
  takes the place of the old one in one step (`Lake.compact`): who lists the partition sees the old files or the new
  ones. Who listed before and opens after finds a file gone; this class then asks again (`Lake.steady`).
- **Lists are cheap.** Reads go through DuckDB and touch only the columns they name. `Lake.interaction` reads the ids
  and one row group.
- **Old files stay readable.** A column that came later reads as null in them.

What a list shows is in ``observations``; the steps of ``interactions`` are read by `palomar.data.facts` (only the
leaves it counts) and by whoever shows one trajectory.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
import uuid
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, get_args

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from palomar.data.arrow import INTERACTION_SCHEMA, arrow_schema, to_arrow
from palomar.data.errors import ConflictError, LakeError, UnreadableError
from palomar.data.observations import FACTS, OBSERVATIONS, SAMPLES
from palomar.data.schema import Feedback, Interaction, content_id

Table = Literal["interactions", "feedback", "observations", "samples"]
TABLES: tuple[Table, ...] = get_args(Table)

FEEDBACK_SCHEMA = pa.schema(
    [
        pa.field("interaction_id", pa.string(), nullable=False),
        pa.field("cycle", pa.int32()),  # the cycle in which it was delivered, not the one it is about
        *arrow_schema(Feedback),
    ]
)
"""One reaction that came after its interaction was stored."""

_SHAPES: dict[Table, pa.Schema] = {
    "interactions": INTERACTION_SCHEMA,
    "feedback": FEEDBACK_SCHEMA,
    "observations": OBSERVATIONS,
    "samples": SAMPLES,
}
_ROW_GROUP_BYTES = 8 << 20
_READABLE = "*/*.parquet"
KEPT_NS = 60 * 10**9
"""How long a folder that was replaced stays: who was listing it just then lists it to the end."""
_TRIES = 5
_MOST_RANGES = 10_000
"""Files whose first and last id are remembered, give or take."""

T = TypeVar("T")


@dataclass(frozen=True)
class Appended:
    """What an append did: rows written now, and rows that were there already (or came twice in the batch)."""

    new: int
    known: int


@dataclass(frozen=True)
class _Place:
    """Where a stored interaction lies."""

    interaction_id: str
    file: str
    row: int
    """Position in the file, from 0."""


class Lake:
    """The Parquet lake under one folder, which is made when it is first written to.

    ``memory_limit`` is DuckDB's (``"2GB"``); what does not fit is spilled beside the lake. One instance may be used by
    several threads: each call works on a cursor of its own.
    """

    def __init__(self, root: Path | str, *, memory_limit: str = "2GB", threads: int = 2) -> None:
        self.root = Path(root).absolute()
        self._database = duckdb.connect(
            ":memory:",
            config={
                "threads": threads,
                "memory_limit": memory_limit,
                "temp_directory": str(self.root / ".spill"),
                # A cycle's observations are replaced under the same name: never answer from a cached file.
                "enable_external_file_cache": False,
                "autoinstall_known_extensions": False,
            },
        )
        self._ranges: dict[Path, tuple[tuple[int, int], tuple[str, str] | None]] = {}
        self._database.execute("SET GLOBAL TimeZone = 'UTC'")  # plain SET would not reach the cursors
        for table in TABLES:
            self._database.register("shape", _SHAPES[table].empty_table())
            self._database.execute(f"CREATE TABLE shape_{table} AS SELECT * FROM shape")
            self._database.unregister("shape")

    # -- writing ------------------------------------------------------------------------------------------------

    def append_interactions(self, records: Sequence[Interaction], cycle: int | None) -> Appended:
        """Store interactions of one cycle; those already stored with the same content are left alone.

        Content is all of the record except where it was read from (``origin``, ``origin_record``), the cycle that took
        it in, and the labels a classifier put on follow-ups: logs may be moved, read again by a later cycle and classed
        anew. An interaction stays in the cycle that stored it first.

        Raises ConflictError when an id is stored (or comes twice in ``records``) with other content, and LakeError when
        a record belongs to another cycle or cannot be stored; nothing is written then.
        """
        for record in records:
            if record.cycle != cycle:
                raise LakeError(f"interaction {record.interaction_id!r} is of cycle {record.cycle}, not of {cycle}")
        fresh: dict[str, Interaction] = {}
        conflicts: list[str] = []
        for record in records:
            first = fresh.setdefault(record.interaction_id, record)
            if first is not record and _content(first) != _content(record):
                conflicts.append(record.interaction_id)
        if conflicts:
            raise ConflictError("the batch holds different interactions under one id", tuple(conflicts))
        with self.writing("interactions"):
            for stored in self._find(list(fresh)):
                if _content(fresh.pop(stored.interaction_id)) != _content(stored):
                    conflicts.append(stored.interaction_id)
            if conflicts:
                raise ConflictError("already stored with other content", tuple(conflicts))
            if fresh:
                self._put("interactions", cycle, _interaction_table(list(fresh.values())))
        return Appended(new=len(fresh), known=len(records) - len(fresh))

    def append_feedback(self, rows: Sequence[tuple[str, Feedback]], cycle: int | None) -> Appended:
        """Store reactions, each with the id of the interaction it is about, as delivered in ``cycle``.

        A reaction is known by its content (all fields but a classifier's label), in whatever cycle it was stored. Its
        interaction need not be there yet.
        """
        fresh = {_feedback_key(owner, item): (owner, item) for owner, item in rows}
        with self.writing("feedback"):
            owners = list({owner for owner, _ in fresh.values()})
            for owner, stored in self.feedback(owners):
                fresh.pop(_feedback_key(owner, stored), None)
            if fresh:
                records = [
                    {"interaction_id": owner, "cycle": cycle, **item.model_dump()} for owner, item in fresh.values()
                ]
                with _storable("reactions"):
                    table = pa.Table.from_pylist(records, schema=FEEDBACK_SCHEMA)
                self._put("feedback", cycle, table)
        return Appended(new=len(fresh), known=len(rows) - len(fresh))

    def write_observations(self, table: pa.Table, cycle: int | None) -> None:
        """Replace the observations of one cycle; a reader sees the old rows or the new ones.

        Raises LakeError when a column of ``FACTS`` is missing or a row belongs to another cycle.
        """
        missing = [name for name in FACTS.names if name not in table.column_names]
        if missing:
            raise LakeError(f"observations lack the columns {', '.join(missing)}")
        with self.writing("observations"):
            self._put("observations", cycle, _with_cycle(table, cycle), name="rows.parquet")

    def append_samples(self, table: pa.Table, cycle: int | None) -> Appended:
        """Store the samples of one cycle, once: the same again are known, others raise LakeError."""
        with self.writing("samples"):
            stored = {path.name for path in self.files("samples", [cycle])}
            written = self._put("samples", cycle, _with_cycle(table, cycle), refuse_beside=stored)
        return Appended(new=table.num_rows if written else 0, known=0 if written else table.num_rows)

    # -- reading ------------------------------------------------------------------------------------------------

    def connect(
        self, tables: Sequence[Table] = TABLES, cycles: Sequence[int | None] | None = None
    ) -> duckdb.DuckDBPyConnection:
        """A DuckDB connection with a view per table (of some cycles), for reading; close it when done.

        A view of all cycles reads the files that are there when it is queried. After a file with *new columns* has come
        in, connect again: DuckDB refuses a view whose columns changed.
        """
        cursor = self._database.cursor()
        for table in tables:
            cursor.execute(f"CREATE OR REPLACE TEMP VIEW {table} AS {self._relation(table, cycles)}")
        return cursor

    def scan(
        self,
        table: Table,
        columns: Sequence[str],
        *,
        where: str | None = None,
        parameters: Sequence[object] = (),
        cycles: Iterable[int | None] | None = None,
    ) -> pa.Table:
        """The named columns of a table, of the rows where the SQL condition ``where`` holds (``?`` for parameters).

        ``where`` is our own SQL, never a user's text; what a user typed belongs in ``parameters``. Only the named
        columns and those of the condition are read. Raises LakeError for a column the table does not have.
        """
        condition = "" if where is None else f" WHERE {where}"
        listed = ", ".join(_quoted(column) for column in columns)
        chosen = None if cycles is None else list(cycles)
        return self.steady(
            (table,),
            lambda: self.query(f"SELECT {listed} FROM ({self._relation(table, chosen)}){condition}", parameters),
        )

    def steady(self, tables: Sequence[Table], work: Callable[[], T]) -> T:
        """What ``work`` gives, done again where files of these tables were merged while it read them.

        For whoever lists files and opens them after: between the two a merge may put others in their place.
        """
        for _ in range(_TRIES - 1):
            before = [self.files(table) for table in tables]
            try:
                return work()
            except (UnreadableError, FileNotFoundError, duckdb.IOException):
                if [self.files(table) for table in tables] == before:
                    raise
        return work()

    def query(self, sql: str, parameters: Sequence[object] = (), **tables: pa.Table) -> pa.Table:
        """The answer to our own SQL, in which ``tables`` are known by their names. Raises LakeError with the cause."""
        cursor = self._database.cursor()
        for name, table in tables.items():
            cursor.register(name, table)
        try:
            return cursor.execute(sql, list(parameters)).to_arrow_table()
        except (duckdb.BinderException, duckdb.InvalidInputException, duckdb.IOException) as exc:
            raise UnreadableError(f"the lake cannot answer: {exc}") from exc

    def interaction(self, interaction_id: str) -> Interaction:
        """One interaction with all its steps. Raises LakeError, naming the nearest ids, when it is not stored."""
        return self.interactions([interaction_id])[0]

    def interactions(self, ids: Sequence[str]) -> list[Interaction]:
        """Interactions with all their steps, in the order asked for. Raises LakeError when one is not stored."""
        found = {record.interaction_id: record for record in self._find(ids)}
        for wanted in ids:
            if wanted not in found:
                raise LakeError(f"no interaction {wanted!r} in the lake{self._nearest(wanted)}")
        return [found[wanted] for wanted in ids]

    def feedback(self, ids: Sequence[str]) -> list[tuple[str, Feedback]]:
        """Reactions to the given interactions that were stored after them, in no particular order."""
        rows = self.rows("feedback", ids)
        kept = rows.select(list(Feedback.model_fields)).to_pylist()
        owners = rows["interaction_id"].to_pylist()
        return [(owner, Feedback.model_validate(row)) for owner, row in zip(owners, kept, strict=True)]

    def rows(self, table: Table, ids: Sequence[str], cycles: Iterable[int | None] | None = None) -> pa.Table:
        """All columns of the rows of these interactions (in some cycles), in no particular order."""
        chosen = None if cycles is None else list(cycles)
        return self.steady(
            (table,),
            lambda: self.query(
                f"SELECT * FROM ({self._of(table, self.holding(table, ids, chosen))}) "
                "SEMI JOIN wanted USING (interaction_id)",
                wanted=_id_table(ids),
            ),
        )

    def cycles(self, table: Table) -> tuple[int | None, ...]:
        """Cycles that a table has files for, in order; None (logs outside a loop) comes last."""
        found = {_cycle_of(path) for path in self.files(table)}
        numbered = sorted(cycle for cycle in found if cycle is not None)
        return (*numbered, None) if None in found else tuple(numbered)

    def numbered(self, table: Table) -> tuple[int, ...]:
        """The same without logs outside a loop."""
        return tuple(cycle for cycle in self.cycles(table) if cycle is not None)

    def files(self, table: Table, cycles: Iterable[int | None] | None = None) -> list[Path]:
        """Complete files of a table (of some cycles), sorted by path."""
        folder = self._folder(table)
        if cycles is None:
            return sorted(folder.glob(_READABLE))
        return sorted(path for cycle in set(cycles) for path in (folder / _partition(cycle)).glob("*.parquet"))

    # -- inside -------------------------------------------------------------------------------------------------

    def holding(self, table: Table, ids: Sequence[str], cycles: Iterable[int | None] | None = None) -> list[Path]:
        """Files of a table (of some cycles) that may hold one of the ids, sorted by path.

        By the first and last id that a file's footer tells; footers are read once, since a lake of many cycles has
        hundreds. A file that does not tell may hold any.
        """
        files = self.files(table, cycles)
        wanted = sorted(ids)
        found = [path for path in files if _between(wanted, self._range(path))]
        if len(self._ranges) > _MOST_RANGES:
            self._ranges.clear()
        return found

    def _range(self, path: Path) -> tuple[str, str] | None:
        """First and last interaction id of a file; None where it does not tell."""
        try:
            status = path.stat()
            stamp = (status.st_mtime_ns, status.st_size)
            known = self._ranges.get(path)
            if known is None or known[0] != stamp:
                known = self._ranges[path] = (stamp, _range_of(path))
        except (OSError, pa.ArrowException):
            return None  # gone or damaged: whoever reads it says so
        return known[1]

    def replaced(self, table: Table) -> Path:
        """Where folders of a table are prepared, and lie for a while after others took their place."""
        return self.root / ".compacting" / table

    def _find(self, ids: Sequence[str]) -> list[Interaction]:
        """The interactions that are stored under these ids."""
        return self.steady(("interactions",), lambda: list(self._read(self._locate(ids))))

    def _folder(self, table: Table) -> Path:
        if table not in TABLES:
            raise LakeError(f"no table {table!r} in the lake; it has {', '.join(TABLES)}")
        return self.root / table

    def _relation(self, table: Table, cycles: Iterable[int | None] | None, *, options: str = "") -> str:
        """SQL of a table: its files, and (with no rows) the columns it should have, so that old files read as null."""
        if cycles is None:
            return self._of(table, [self._folder(table) / _READABLE] if self.files(table) else [], options)
        return self._of(table, self.files(table, cycles), options)

    def _of(self, table: Table, files: Sequence[Path], options: str = "") -> str:
        """SQL of some files of a table."""
        shape = f"SELECT * FROM shape_{table}"
        if not files:
            return shape
        listed = ", ".join(_path_literal(path, self.root) for path in files)
        read = f"read_parquet([{listed}], union_by_name = true, hive_partitioning = false{options})"
        return f"{shape} UNION ALL BY NAME SELECT * FROM {read}"

    def _locate(self, ids: Sequence[str]) -> list[_Place]:
        """Where the given ids are stored; reads nothing but the id column. Unknown ids are left out."""
        files = self.holding("interactions", ids)
        if not files:
            return []
        options = ", filename = true, file_row_number = true"
        rows = self.query(
            "SELECT interaction_id, filename, file_row_number "
            f"FROM ({self._of('interactions', files, options)}) SEMI JOIN wanted USING (interaction_id)",
            wanted=_id_table(ids),
        )
        return [_Place(*row.values()) for row in rows.to_pylist()]

    def _read(self, places: Sequence[_Place]) -> Iterator[Interaction]:
        """The interactions at the given places; reads only the row groups they lie in."""
        by_file: dict[str, list[_Place]] = defaultdict(list)
        for place in places:
            by_file[place.file].append(place)
        for file, wanted in sorted(by_file.items()):
            try:
                yield from _read_rows(file, sorted(place.row for place in wanted))
            except (pa.ArrowException, OSError, ValidationError) as exc:
                ids = ", ".join(repr(place.interaction_id) for place in wanted[:3])
                raise UnreadableError(f"{Path(file).relative_to(self.root)}: cannot read {ids}: {exc}") from exc

    def _nearest(self, wanted: str) -> str:
        if not self.files("interactions"):
            return ", which is empty"
        rows = self.query(
            f"SELECT interaction_id FROM ({self._relation('interactions', None)}) "
            "ORDER BY starts_with(interaction_id, ?) DESC, jaro_winkler_similarity(interaction_id, ?) DESC LIMIT 3",
            [wanted, wanted],
        )
        return "; nearest: " + ", ".join(repr(value) for value in rows["interaction_id"].to_pylist())

    @contextmanager
    def writing(self, table: Table) -> Iterator[None]:
        """Hold the table's lock; temporary files found under it belong to dead writers, so they go.

        So do folders whose place was taken a while ago (`palomar.data.compaction`).
        """
        folder = self._folder(table)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed, or by the kernel if we die
            for left_over in folder.glob("*/*.tmp"):
                left_over.unlink(missing_ok=True)
            for folder in self.replaced(table).glob("*"):
                made_ns = folder.name.split("-")[0]
                if not made_ns.isdecimal() or abs(time.time_ns() - int(made_ns)) > KEPT_NS:
                    shutil.rmtree(folder, ignore_errors=True)
            yield

    def _put(
        self,
        table: Table,
        cycle: int | None,
        rows: pa.Table,
        *,
        name: str | None = None,
        refuse_beside: set[str] | None = None,
    ) -> bool:
        """Write one file atomically, named by its content unless told; False when that very file is there already.

        ``refuse_beside``: names of the files the partition has; another one beside them is an error.
        """
        folder = self._folder(table) / _partition(cycle)
        if not folder.is_dir():
            folder.mkdir()
            sync(folder.parent)
        temporary = folder / f".{uuid.uuid4().hex}.tmp"
        try:
            group = row_group_rows(rows)
            pq.write_table(rows, temporary, compression="zstd", row_group_size=group)
            sync(temporary)
            final = folder / (name or f"{file_id(temporary)}.parquet")
            if name is None and final.exists():
                return False
            if refuse_beside:
                raise LakeError(f"{table} of cycle {cycle} are stored already, with other content")
            temporary.rename(final)
            sync(folder)
        finally:
            temporary.unlink(missing_ok=True)
        return True


def _between(ids: Sequence[str], ends: tuple[str, str] | None) -> bool:
    """Whether one of the ids (ascending) lies between the ends."""
    if ends is None:
        return bool(ids)
    at = bisect_left(ids, ends[0])
    return at < len(ids) and ids[at] <= ends[1]


def _range_of(path: Path) -> tuple[str, str] | None:
    metadata = pq.read_metadata(path)
    names = [metadata.schema.column(place).path for place in range(metadata.num_columns)]
    if "interaction_id" not in names:
        return None
    column = names.index("interaction_id")
    told = [metadata.row_group(group).column(column).statistics for group in range(metadata.num_row_groups)]
    if not told or any(each is None or not each.has_min_max for each in told):
        return None
    return min(each.min for each in told), max(each.max for each in told)


def _id_table(ids: Sequence[str]) -> pa.Table:
    return pa.table({"interaction_id": pa.array(ids, pa.string())})


def _interaction_table(records: Sequence[Interaction]) -> pa.Table:
    try:
        return to_arrow(records, Interaction)
    except (UnicodeEncodeError, OverflowError, pa.ArrowException):
        for record in records:  # find the one to name
            with _storable(f"interaction {record.interaction_id!r}"):
                to_arrow([record], Interaction)
        raise


@contextmanager
def _storable(what: str) -> Iterator[None]:
    """Names what could not be turned into Arrow."""
    try:
        yield
    except UnicodeEncodeError as exc:
        raise LakeError(f"{what}: text holds half of a surrogate pair, which is not Unicode: {exc}") from exc
    except (OverflowError, pa.ArrowException) as exc:
        raise LakeError(f"{what}: {exc}") from exc


def _content(record: Interaction) -> Interaction:
    """The record without where and in which cycle it was read, and without classifiers' labels."""
    feedback = tuple(_unclassified(item) for item in record.feedback)
    return record.model_copy(update={"origin": "", "origin_record": None, "cycle": None, "feedback": feedback})


def _unclassified(item: Feedback) -> Feedback:
    if item.label_by is not None and item.label_by.startswith("classifier:"):
        return item.model_copy(update={"label": None, "label_by": None, "label_probability": None})
    return item


def _feedback_key(owner: str, item: Feedback) -> str:
    return content_id(owner, _unclassified(item).model_dump_json())


def _with_cycle(table: pa.Table, cycle: int | None) -> pa.Table:
    """The table with its ``cycle`` column, added where it has none. Raises LakeError when it says another cycle."""
    if "cycle" not in table.column_names:
        return table.append_column("cycle", pa.array([cycle] * table.num_rows, pa.int32()))
    others = [value for value in table["cycle"].unique().to_pylist() if value != cycle]
    if others:
        raise LakeError(f"rows of cycle {others[0]} among those of cycle {cycle}")
    return table


def _read_rows(file: str, rows: Sequence[int]) -> Iterator[Interaction]:
    """Interactions at the given positions (ascending) of one file, one row group in memory at a time."""
    with pq.ParquetFile(file) as parquet:
        names = [name for name in INTERACTION_SCHEMA.names if name in parquet.schema_arrow.names]
        start = 0
        for group in range(parquet.num_row_groups):
            end = start + parquet.metadata.row_group(group).num_rows
            inside = [row - start for row in rows if start <= row < end]
            if inside:
                table = parquet.read_row_group(group, columns=names, use_threads=False).take(inside)
                # Fields that the file does not know take their defaults: they were not known when it was written.
                yield from (Interaction.model_validate(row) for row in table.to_pylist())
            start = end


def row_group_rows(table: pa.Table) -> int:
    """Rows per row group so that one holds about 8 MiB: one trajectory is read without many others."""
    if not table.num_rows:
        return 1
    return int(min(max(_ROW_GROUP_BYTES * table.num_rows // max(table.nbytes, 1), 64), 122_880))


def _partition(cycle: int | None) -> str:
    return "cycle=none" if cycle is None else f"cycle={cycle:06d}"


def _cycle_of(path: Path) -> int | None:
    value = path.parent.name.removeprefix("cycle=")
    return None if value == "none" else int(value)


def _quoted(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


def _path_literal(path: Path, root: Path) -> str:
    """SQL string of a path; characters of the root that DuckDB would expand as a pattern stand for themselves."""
    plain = "".join(f"[{letter}]" if letter in "*?[" else letter for letter in str(root))
    return "'" + f"{plain}/{path.relative_to(root)}".replace("'", "''") + "'"


def file_id(path: Path) -> str:
    """The name of a file by its bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:20]


def sync(path: Path) -> None:
    """Puts a file or a folder on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
