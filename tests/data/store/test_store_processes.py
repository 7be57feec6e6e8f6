"""Two processes at once, and processes that die: nothing is lost, and the champion is never torn."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from palomar.data.errors import StoreError
from palomar.data.store import Store, database

Start = Callable[..., subprocess.Popen[str]]
PROMOTION_WRITES = 4
"""UPDATE of the old champion, UPDATEs of the new one's status and first cycle, INSERT of the pointer."""


def let_go(workers: list[subprocess.Popen[str]]) -> None:
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()


def champion_and_promoted(store: Store) -> tuple[str, list[str]]:
    """Pointer and statuses, past the store's own reading."""

    def look(connection: Connection) -> tuple[str, list[str]]:
        pointer = connection.scalar(text("SELECT checkpoint_id FROM champions WHERE run_id = 'demo'"))
        promoted = connection.scalars(text("SELECT checkpoint_id FROM checkpoints WHERE status = 'promoted'"))
        return str(pointer), list(promoted)

    return store._database.read(look)


def test_two_processes_that_write_at_once_lose_nothing(store: Store, url: str, start_worker: Start) -> None:
    workers = [start_worker("write_much", url, str(number), "25") for number in range(2)]
    let_go(workers)
    for worker in workers:
        worker.communicate(timeout=120)
        assert worker.returncode == 0
    cycles = [cycle for cycle in store.cycles.read("demo") if cycle.cycle >= 1000]
    assert [cycle.cycle for cycle in cycles] == [*range(1000, 1025), *range(2000, 2025)]
    assert all(len(cycle.stages) == 1 for cycle in cycles)
    assert len(store.statistics.series("demo")) == 2 * 25 * 20
    assert [entry.seen for entry in store.quarantine.latest(count=100)] == [50] * 20


def test_two_processes_that_promote_at_once_never_tear_the_champion(
    store: Store, url: str, start_worker: Start
) -> None:
    workers = [start_worker("promote_much", url, str(number), "15") for number in range(2)]
    let_go(workers)
    seen = set()
    while any(worker.poll() is None for worker in workers):
        champion, promoted = champion_and_promoted(store)
        assert promoted == [champion]
        seen.add(champion)
        time.sleep(0.002)
    assert [worker.returncode for worker in workers] == [0, 0]
    assert len(seen) > 2  # it was watched while it moved
    every = store.checkpoints.read("demo")
    assert sorted(c.status for c in every) == ["promoted"] + ["superseded"] * 30
    assert all(c.served_from is not None for c in every)
    champion, promoted = champion_and_promoted(store)
    assert promoted == [champion]


@pytest.mark.slow
def test_process_killed_in_a_promotion_leaves_the_old_champion(store: Store, url: str, start_worker: Start) -> None:
    store.checkpoints.add("demo", "c0", cycle=0, parent_id="base", path="c0", sha256="01")
    before = store.checkpoints.read("demo")
    workers = [start_worker("promote_and_die", url, "c0", str(write)) for write in range(PROMOTION_WRITES + 1)]
    for worker in workers:
        worker.communicate(timeout=60)
        assert worker.returncode == -signal.SIGKILL
        assert champion_and_promoted(store) == ("base", ["base"])
        assert store.checkpoints.read("demo") == before
    # One write more than there are, and it is done: the kills above were in the middle.
    last = start_worker("promote_and_die", url, "c0", str(PROMOTION_WRITES + 1))
    last.communicate(timeout=60)
    assert last.returncode == 0
    assert champion_and_promoted(store) == ("c0", ["c0"])


def test_lock_that_another_process_keeps_is_waited_for_and_then_named(
    store: Store, url: str, start_worker: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    holder = start_worker("hold_the_lock", url)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "ready\n"
    monkeypatch.setattr(database, "LOCK_WAIT_S", 0.05)
    with Store.open(url, tmp_path) as impatient:
        with pytest.raises(StoreError, match=r"locked by another process|lock timeout"):
            impatient.runs.set_status("demo", "complete")
        assert [run.run_id for run in impatient.runs.read()] == ["demo"]  # readers do not wait
    assert holder.stdin is not None
    holder.stdin.write("go\n")
    holder.stdin.flush()
    store.runs.set_status("demo", "complete")
    holder.communicate(timeout=60)
    assert holder.returncode == 0
    assert store.runs.read()[0].status == "complete"


def test_what_a_writer_has_read_stays_so_until_it_commits(
    store: Store, url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(database, "LOCK_WAIT_S", 0.05)
    with Store.open(url, tmp_path) as other:

        def read_then_let_another_write(connection: Connection) -> None:
            database.lock_run(connection, store._database, "demo")
            with pytest.raises(StoreError, match=r"locked by another process|lock timeout"):
                other.runs.set_status("demo", "complete")

        store._database.write(read_then_let_another_write)
        other.runs.set_status("demo", "complete")


def test_lock_of_a_killed_process_is_free(store: Store, url: str, start_worker: Start) -> None:
    holder = start_worker("hold_the_lock", url)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "ready\n"
    holder.kill()
    store.runs.set_status("demo", "complete")
    assert store.runs.read()[0].status == "complete"
