"""From foreign logs to the lake, in one pass and bounded memory, with nothing lost on the way.

Every native record ends as interactions or in quarantine, and the report proves it:

    records   = records_kept + records quarantined
    interactions = new + known + conflicting

Running it twice changes nothing: interactions are known by their content, the quarantine file is named after its own.
"""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from palomar.data.errors import ConflictError, IngestError, LakeError, UnreadableError
from palomar.data.quarantine import Quarantined, quarantined, to_jsonl
from palomar.data.schema import Feedback, FollowUpLabel, Interaction
from palomar.data.sources import MAPPING_ENDINGS, Item, LateFeedback, SourceFile, files_under, read_file, sources
from palomar.data.sources.palomar import read_records

BATCH_ROWS = 2_000
BATCH_CHARACTERS = 64 * 1024 * 1024
ENTRIES_KEPT = 1_000
"""Quarantine entries that the report itself holds; the file on disk has them all."""


class Reading(Protocol):
    """What a classifier says of one message."""

    @property
    def label(self) -> FollowUpLabel:
        """The class."""
        ...

    @property
    def p(self) -> float | None:
        """Its probability; None where nothing could be judged."""
        ...


class Classifier(Protocol):
    """What labels follow-ups; `palomar.data.followups.FollowUpClassifier` is one."""

    @property
    def label_by(self) -> str:
        """What ``Feedback.label_by`` says."""
        ...

    def classify(self, texts: Sequence[str]) -> Sequence[Reading]:
        """One reading per text, in order."""
        ...


class Appended(Protocol):
    """What an append did."""

    @property
    def new(self) -> int:
        """Rows written."""
        ...

    @property
    def known(self) -> int:
        """Rows that were there."""
        ...


class Store(Protocol):
    """What of `palomar.data.lake.Lake` is needed here."""

    root: Path

    def append_interactions(self, records: Sequence[Interaction], cycle: int | None) -> Appended:
        """Store interactions, once."""
        ...

    def append_feedback(self, rows: Sequence[tuple[str, Feedback]], cycle: int | None) -> Appended:
        """Store late reactions, once."""
        ...


@dataclass
class FormatCount:
    """What was read in one format."""

    files: int = 0
    records: int = 0
    interactions: int = 0
    quarantined: int = 0


@dataclass
class IngestReport:
    """What an ingest read, kept and could not read."""

    files: int = 0
    bytes: int = 0
    """On disk, compressed where the files are."""
    records: int = 0
    """Native records met: lines, documents, samples; a file that could not be read at all counts as one."""
    records_kept: int = 0
    """Records that gave interactions or feedback."""
    interactions: int = 0
    conversations: int = 0
    new: int = 0
    known: int = 0
    """Interactions that were in the lake already, or came twice."""
    conflicting: int = 0
    """Interactions whose id is stored with other content; each is in quarantine too."""
    feedback_new: int = 0
    feedback_known: int = 0
    quarantined: dict[str, int] = field(default_factory=dict)
    """Entries by kind."""
    formats: dict[str, FormatCount] = field(default_factory=dict)
    """Counts by format; ``unknown`` for files that no source recognised."""
    seconds: float = 0.0
    entries: list[Quarantined] = field(default_factory=list)
    """The first `ENTRIES_KEPT` quarantine entries."""
    quarantine_file: str | None = None
    """Where all entries are; None where there are none."""

    def check(self) -> None:
        """Raise IngestError unless everything read is accounted for; a failure here is a bug of a source."""
        refused = sum(self.quarantined.values()) - self.conflicting
        if self.records != self.records_kept + refused:
            problem = f"{self.records} records were met, but {self.records_kept} kept + {refused} quarantined"
            raise IngestError("ingest", None, None, problem, "unexpected")
        if self.interactions != self.new + self.known + self.conflicting:
            problem = (
                f"{self.interactions} interactions were read, but {self.new} new + {self.known} known + "
                f"{self.conflicting} conflicting"
            )
            raise IngestError("ingest", None, None, problem, "unexpected")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def ingest(
    paths: Iterable[Path | str] | Path | str,
    lake: Store,
    *,
    format: str = "auto",
    cycle: int | None = None,
    classify: Classifier | None = None,
    progress: Callable[[str, IngestReport], None] | None = None,
) -> IngestReport:
    """Read logs into the lake; what cannot be read goes to ``quarantine/`` beside the lake.

    `paths` are files, folders or glob patterns; `format` names a source for all of them, ``auto`` recognises each by
    content. `cycle` is given to interactions whose log names none. `classify` labels follow-ups that have no label yet.
    `progress` is called after each file with its name and the report so far.

    Raises IngestError for a format that does not exist or a path with nothing behind it, LakeError where the lake
    refuses to write at all.
    """
    if format != "auto" and not format.endswith(MAPPING_ENDINGS) and format not in sources():
        raise IngestError("--format", None, None, f"no format {format!r}; there are: auto, {', '.join(sources())}")
    if isinstance(paths, Path | str):
        paths = [paths]
    started = time.monotonic()
    run = _Run(lake, cycle, classify)
    try:
        for path in paths:
            found = False
            for place, origin in files_under(path):
                found = True
                run.read(SourceFile(place, origin), format)
                if progress is not None:
                    progress(origin, run.report)
            if not found:
                raise IngestError(os.fspath(path), None, None, "there is no file here", "unreadable")
    finally:  # what was read before an error is stored all the same
        run.finish()
    run.report.seconds = time.monotonic() - started
    run.report.check()
    return run.report


def ingest_records(
    records: Sequence[bytes],
    origin: str,
    lake: Store,
    *,
    kind: Literal["interactions", "feedback"],
    cycle: int | None = None,
    classify: Classifier | None = None,
) -> IngestReport:
    """Read records of Palomar's own format, each one JSON value, as `ingest` reads the lines of a file.

    For programs that send their records. `origin` says who, in place of a file; a quarantine entry's line is the
    record's position, from 1. A record of the other kind goes to quarantine. Raises LakeError or OSError where the lake
    cannot be written; some cycles of the records may be stored then, and sending them again stores the rest.
    """
    started = time.monotonic()
    run = _Run(lake, cycle, classify)
    file = SourceFile(Path(origin), origin, "palomar")
    try:
        run.take(file, read_records(file, records, kind))
    finally:
        run.finish()
    run.report.bytes = sum(map(len, records))
    run.report.seconds = time.monotonic() - started
    run.report.check()
    return run.report


class _Run:
    """State of one ingest: the batch that waits to be written, and the quarantine file."""

    def __init__(self, lake: Store, cycle: int | None, classify: Classifier | None) -> None:
        self.report = IngestReport()
        self._lake = lake
        self._cycle = cycle
        self._classify = classify
        self._batch: list[Interaction] = []
        self._characters = 0
        self._late: list[LateFeedback] = []
        self._kinds: Counter[str] = Counter()
        self._quarantine = _QuarantineFile(lake.root.parent / "quarantine")

    def read(self, file: SourceFile, format: str) -> None:
        """Read one file into the batch."""
        self.report.files += 1
        if file.path.is_file():
            self.report.bytes += file.path.stat().st_size
        self.take(file, read_file(file, format), files=1)

    def take(self, file: SourceFile, items: Iterable[Item], *, files: int = 0) -> None:
        """Take what was read from a file into the batch."""
        count = FormatCount(files=files)
        for item in items:
            if isinstance(item, Quarantined):
                count.quarantined += 1
                self._refuse(item)
            elif isinstance(item, LateFeedback):
                self._late.append(item)
            else:
                count.interactions += 1
                self._take(item)
            if len(self._batch) + len(self._late) >= BATCH_ROWS or self._characters >= BATCH_CHARACTERS:
                self._flush()
        count.records = file.records_read
        self.report.records += file.records_read
        self.report.records_kept += file.records_kept
        total = self.report.formats.setdefault(file.format or "unknown", FormatCount())
        for name, value in vars(count).items():
            setattr(total, name, getattr(total, name) + value)

    def finish(self) -> None:
        """Write what is left."""
        self._flush()
        self.report.quarantined = dict(sorted(self._kinds.items()))
        place = self._quarantine.close()
        self.report.quarantine_file = None if place is None else str(place)

    def _take(self, item: Interaction) -> None:
        if item.cycle is None and self._cycle is not None:
            item = item.model_copy(update={"cycle": self._cycle})
        self.report.interactions += 1
        self.report.conversations += item.turn == 0
        self._batch.append(item)
        self._characters += _characters(item)

    def _refuse(self, entry: Quarantined) -> None:
        self._kinds[entry.kind] += 1
        if len(self.report.entries) < ENTRIES_KEPT:
            self.report.entries.append(entry)
        self._quarantine.write(entry)

    def _flush(self) -> None:
        records, late = self._batch, self._late
        self._batch, self._late, self._characters = [], [], 0
        if self._classify is not None:
            records, late = _labelled(records, late, self._classify)
        by_cycle: dict[int | None, list[Interaction]] = defaultdict(list)
        for record in records:
            by_cycle[record.cycle].append(record)
        for cycle, group in by_cycle.items():
            self._append(group, cycle)
        if late:
            done = self._lake.append_feedback([(item.interaction_id, item.feedback) for item in late], self._cycle)
            self.report.feedback_new += done.new
            self.report.feedback_known += done.known

    def _append(self, records: list[Interaction], cycle: int | None) -> None:
        """Store a batch; what conflicts with what is stored, or cannot be stored, is set aside and the rest stored."""
        if not records:
            return
        try:
            done = self._lake.append_interactions(records, cycle)
        except ConflictError as exc:
            self._append(self._without(records, set(exc.interaction_ids), str(exc)), cycle)
        except UnreadableError:  # no record's fault, so none goes to quarantine for it
            raise
        except LakeError as exc:
            if len(records) == 1:
                self._conflict(records[0], f"the lake cannot hold it: {exc}")
                return
            middle = len(records) // 2  # find the one that cannot be stored
            self._append(records[:middle], cycle)
            self._append(records[middle:], cycle)
        else:
            self.report.new += done.new
            self.report.known += done.known

    def _without(self, records: list[Interaction], ids: set[str], problem: str) -> list[Interaction]:
        """The records without those that conflict; of several in the batch under one id the first may yet be stored."""
        kept: list[Interaction] = []
        seen: set[str] = set()
        several = {item for item, times in Counter(r.interaction_id for r in records).items() if times > 1}
        for record in records:
            name = record.interaction_id
            if name not in ids or (name in several and name not in seen):
                kept.append(record)
                seen.add(name)
            else:
                self._conflict(record, problem)
        return kept

    def _conflict(self, record: Interaction, problem: str) -> None:
        self.report.conflicting += 1
        raw = record.model_dump_json().encode()
        self._refuse(
            quarantined(
                record.origin,
                "conflict",
                problem,
                raw,
                line=record.origin_record,
                field="interaction_id",
                format=record.source,
            )
        )


def _characters(item: Interaction) -> int:
    """About how much memory an interaction takes."""
    return sum(
        len(step.text or "")
        + len(step.thinking or "")
        + sum(len(call.arguments or "") + len(call.result or "") for call in step.tool_calls)
        for step in item.steps
    )


def _labelled(
    records: list[Interaction], late: list[LateFeedback], classifier: Classifier
) -> tuple[list[Interaction], list[LateFeedback]]:
    """The same, with a label on every follow-up that has words and no label."""
    waiting = [item for record in records for item in record.feedback if _unlabelled(item)]
    waiting += [item.feedback for item in late if _unlabelled(item.feedback)]
    if not waiting:
        return records, late
    texts = list(dict.fromkeys(item.text or "" for item in waiting))
    readings = dict(zip(texts, classifier.classify(texts), strict=True))

    def label(item: Feedback) -> Feedback:
        if not _unlabelled(item):
            return item
        reading = readings[item.text or ""]
        return item.model_copy(
            update={"label": reading.label, "label_by": classifier.label_by, "label_probability": reading.p}
        )

    done = [
        record.model_copy(update={"feedback": tuple(label(item) for item in record.feedback)})
        if record.feedback
        else record
        for record in records
    ]
    return done, [LateFeedback(i.interaction_id, label(i.feedback), i.origin, i.origin_record) for i in late]


def _unlabelled(item: Feedback) -> bool:
    return item.kind == "follow_up" and item.label is None and bool(item.text and item.text.strip())


class _QuarantineFile:
    """Entries as JSON Lines, written as they come and named after their content when closed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._digest = hashlib.sha256()
        self._stream: Any = None
        self._temporary = folder / f".{uuid.uuid4().hex}.tmp"

    def write(self, entry: Quarantined) -> None:
        """Append one entry."""
        if self._stream is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._stream = self._temporary.open("wb")
        line = to_jsonl([entry]).encode("utf-8", errors="replace")
        self._digest.update(line)
        self._stream.write(line)

    def close(self) -> Path | None:
        """Put the file in its place; None where nothing was written."""
        if self._stream is None:
            return None
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()
        place = self._folder / f"{self._digest.hexdigest()[:20]}.jsonl"
        self._temporary.replace(place)
        return place
