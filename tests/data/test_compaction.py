"""Merging small files: every record stays as it was, at every moment, whoever is killed or reads meanwhile."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

from palomar.data import compaction
from palomar.data.compaction import compact, wanted
from palomar.data.errors import ConflictError
from palomar.data.facts import facts
from palomar.data.lake import KEPT_NS, Lake
from palomar.data.schema import Feedback, Interaction, Step

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def record(name: str, cycle: int | None = None, text: str = "done") -> Interaction:
    steps = (Step(author="person", role="user", text="please"), Step(author="agent", role="assistant", text=text))
    return Interaction(interaction_id=name, source="test", origin="here", cycle=cycle, steps=steps)


def reaction(text: str) -> Feedback:
    return Feedback(kind="follow_up", at=NOON, text=text)


def fill(lake: Lake, batches: int = 6, cycle: int | None = None) -> list[str]:
    names = []
    for number in range(batches):
        batch = [record(f"{cycle}/{number}/{index}", cycle, "x" * number) for index in range(3)]
        lake.append_interactions(batch, cycle)
        lake.append_feedback([(batch[0].interaction_id, reaction(str(number)))], cycle)
        names += [each.interaction_id for each in batch]
    return names


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def content(lake: Lake) -> tuple[list[Interaction], list[tuple[str, str]]]:
    """All that is stored, in an order of its own."""
    names = lake.scan("interactions", ["interaction_id"])["interaction_id"].to_pylist()
    assert len(names) == len(set(names))
    said = lake.feedback(names)
    return lake.interactions(sorted(names)), sorted((owner, item.text or "") for owner, item in said)


def test_every_record_stays_as_it_was_in_fewer_files(lake: Lake) -> None:
    fill(lake)
    fill(lake, 3, cycle=4)
    before, known = content(lake), [facts(lake, cycle, NOON) for cycle in (None, 4)]
    done = {each.table: each for each in compact(lake)}
    assert (done["interactions"].partitions, done["interactions"].rows) == (2, 27)
    assert (done["interactions"].files_before, done["interactions"].files_after) == (9, 2)
    assert (done["feedback"].files_before, done["feedback"].files_after) == (9, 2)
    assert content(lake) == before
    for cycle, was in zip((None, 4), known, strict=True):
        assert facts(lake, cycle, NOON).sort_by("interaction_id").equals(was.sort_by("interaction_id"))
    assert [each.partitions for each in compact(lake)] == [0, 0]  # nothing is left to do


def test_what_is_known_stays_known_and_conflicts_conflict(lake: Lake) -> None:
    names = fill(lake)
    compact(lake)
    assert lake.append_interactions([record(names[0], None, "")], None).known == 1
    assert lake.append_feedback([(names[0], reaction("0"))], None).known == 1
    with pytest.raises(ConflictError):
        lake.append_interactions([record(names[0], None, "other")], None)
    lake.append_interactions([record("later")], None)
    assert len(content(lake)[0]) == len(names) + 1


def test_large_files_and_files_of_other_columns_stay(lake: Lake) -> None:
    fill(lake, 3)
    first = lake.files("interactions")[0]
    older = first.with_name("older.parquet")  # without rows, and without a column that came later
    pq.write_table(pq.read_table(first).slice(0, 0).drop_columns(["checkpoint"]), older)
    before = content(lake)
    small = max(path.stat().st_size for path in lake.files("interactions")) + 1
    assert compact(lake, small_bytes=small)[0].files_after == 2
    assert older.exists()
    assert content(lake) == before
    # What is not small is not written anew: it is the same file.
    number = older.stat().st_ino
    lake.append_interactions([record("a")], None)
    lake.append_interactions([record("b")], None)
    compact(lake)
    assert older.stat().st_ino == number


def test_only_as_many_files_as_are_asked_for_are_worth_it(lake: Lake) -> None:
    fill(lake, 4)
    assert (wanted(lake, 4), wanted(lake, 5)) == (True, False)
    assert compact(lake, at_least=5)[0].partitions == 0
    assert compact(lake, at_least=4)[0].partitions == 1
    with pytest.raises(ValueError, match="at_least"):
        compact(lake, at_least=1)


def test_a_damaged_file_leaves_its_partition_and_no_other(lake: Lake) -> None:
    fill(lake, 3)
    fill(lake, 3, cycle=2)
    lake.files("interactions", [None])[0].write_bytes(b"PAR1 not")
    files = lake.files("interactions", [None])
    done = compact(lake)[0]
    assert done.partitions == 1
    assert len(done.problems) == 1
    assert "interactions/cycle=none" in done.problems[0]
    assert lake.files("interactions", [None]) == files
    assert list(lake.replaced("interactions").glob("*/.merging")) == []


def test_a_merge_that_is_not_what_was_there_is_not_taken(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(lake)
    before = content(lake)
    real = pq.ParquetWriter.write_table
    monkeypatch.setattr(pq.ParquetWriter, "write_table", lambda self, rows, **more: real(self, rows.slice(1), **more))
    with pytest.raises(compaction.LakeError, match="left as it is"):
        compact(lake)
    monkeypatch.undo()
    assert content(lake) == before


KILLED = """
import os, signal, sys
from pathlib import Path
import pyarrow.parquet as pq
from palomar.data import compaction
from palomar.data.lake import Lake

left = 0

def step():
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1

def stepping(holder, name):
    real = getattr(holder, name)
    def told(*arguments, **more):
        step()
        found = real(*arguments, **more)
        step()
        return found
    setattr(holder, name, told)

for holder, name in ((compaction, "sync"), (compaction, "_exchange"), (os, "link"), (os, "utime"), (Path, "rename"),
                     (pq.ParquetWriter, "write_table"), (Path, "mkdir")):
    stepping(holder, name)
number = 0
while True:
    child = os.fork()
    if child == 0:
        left = number
        compaction.compact(Lake(Path(sys.argv[1]) / str(number) / "lake"))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(number, status, flush=True)
    if status == 0:
        break
    number += 1
"""


@pytest.mark.slow
def test_a_merge_killed_at_any_moment_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = Lake(tmp_path / "origin" / "lake")
    fill(origin, 4)
    pq.write_table(
        pq.read_table(origin.files("interactions")[0]).slice(0, 0).drop_columns(["checkpoint"]),
        origin.root / "interactions" / "cycle=none" / "older.parquet",
    )  # one that is linked
    before = content(origin)
    for number in range(80):
        shutil.copytree(tmp_path / "origin", tmp_path / str(number))
    command = [sys.executable, "-W", "ignore", "-c", KILLED, str(tmp_path)]
    source = str(Path(compaction.__file__).resolve().parents[1] / "src")
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300,
                          env={**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"})  # fmt: skip
    ends = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert [status for _, status in ends[:-1]] == [9] * (len(ends) - 1)
    assert 25 < len(ends) < 80
    merged = set()
    for number, _ in ends:
        lake = Lake(tmp_path / str(number) / "lake")
        merged.add(len(lake.files("interactions")))
        assert content(lake) == before, number
        lake.append_interactions([record("later")], None)  # the dead one holds no lock
        compact(lake)
        assert len(content(lake)[0]) == len(before[0]) + 1
        assert len(lake.files("interactions")) == 2
    assert merged == {5, 2}  # as it was, or as it shall be
    later = time.time_ns() + 2 * KEPT_NS
    monkeypatch.setattr("palomar.data.lake.time.time_ns", lambda: later)
    lake.append_interactions([record("much later")], None)
    assert list(lake.replaced("interactions").iterdir()) == []


@pytest.mark.slow
def test_readers_never_see_a_record_twice_or_miss_one(lake: Lake) -> None:
    known: list[str] = []
    problems: list[str] = []
    rounds = 0
    ended = threading.Event()
    pattern = str(lake.root / "interactions" / "*" / "*.parquet")

    def look(ask: object) -> None:
        nonlocal rounds
        while not ended.is_set():
            sure = set(known)
            try:
                names = ask()  # type: ignore[operator]
            except duckdb.IOException:
                continue  # another program's query, which does not ask again
            except Exception as exc:
                problems.append(repr(exc))
                return
            rounds += 1
            if len(names) != len(set(names)) or not sure <= set(names):
                problems.append(f"{len(names)} rows, {len(set(names))} different, {len(sure)} sure")
                return

    def by_scan() -> list[str]:
        return list(lake.scan("interactions", ["interaction_id"])["interaction_id"].to_pylist())

    def by_id() -> list[str]:
        return [each.interaction_id for each in lake.interactions(list(known))]

    def by_facts() -> list[str]:
        return list(facts(lake, None, NOON)["interaction_id"].to_pylist())

    def elsewhere() -> list[str]:
        found = duckdb.sql(f"SELECT interaction_id FROM read_parquet('{pattern}', union_by_name = true)").fetchall()
        return [name for (name,) in found]

    known += fill(lake, 2)
    readers = [threading.Thread(target=look, args=(ask,)) for ask in (by_scan, by_id, by_facts, elsewhere)]
    for reader in readers:
        reader.start()
    until, at_least = time.monotonic() + 120, time.monotonic() + 4
    number = merges = 0
    while (merges < 12 or rounds < 50 or time.monotonic() < at_least) and time.monotonic() < until and not problems:
        for _ in range(3):
            number += 1
            lake.append_interactions([record(f"more {number}")], None)
            known.append(f"more {number}")
        merges += compact(lake)[0].partitions
    ended.set()
    for reader in readers:
        reader.join()
    assert problems == []
    assert merges >= 12
    assert rounds >= 50


def test_who_opened_a_folder_before_the_merge_lists_all_of_it_after(lake: Lake) -> None:
    fill(lake, 4)
    before = {path.name for path in lake.files("interactions")}
    with os.scandir(lake.files("interactions")[0].parent) as listing:  # open, and nothing listed yet
        compact(lake)
        assert {entry.name for entry in listing} == before


@pytest.mark.slow
def test_two_that_merge_and_one_that_writes_at_once(tmp_path: Path) -> None:
    root = tmp_path / "lake"
    lake = Lake(root)
    names = fill(lake, 10)
    code = """
import sys
from palomar.data import compaction, lake
for _ in range(20):
    compaction.compact(lake.Lake(sys.argv[1]))
"""
    source = str(Path(compaction.__file__).resolve().parents[1] / "src")
    running = [subprocess.Popen([sys.executable, "-c", code, str(root)], env={**os.environ, "PYTHONPATH": source})
               for _ in range(2)]  # fmt: skip
    number = 0
    while any(each.poll() is None for each in running):
        number += 1
        lake.append_interactions([record(f"more {number}")], None)
        names.append(f"more {number}")
    assert [each.returncode for each in running] == [0, 0]
    assert [each.interaction_id for each in content(lake)[0]] == sorted(names)
