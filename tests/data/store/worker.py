"""What the store's tests let other processes do: ``python worker.py TASK URL ...``.

Says ``ready``, waits for a line on stdin, then works; so several processes begin together.
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import Engine, event

from palomar.data.errors import StoreError
from palomar.data.store import Store
from palomar.data.store.records import QuarantinedRow, Statistic

START = datetime(2026, 1, 1, tzinfo=UTC)


def say(words: str) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


def wait_for_go() -> None:
    say("ready")
    sys.stdin.readline()


def open_only(url: str) -> None:
    wait_for_go()
    with Store.open(url, Path()) as store:
        say(str(store.health().schema))


def write_much(url: str, worker: str, times: str) -> None:
    """Cycles of its own, and sightings of records that all workers meet."""
    with Store.open(url, Path()) as store:
        wait_for_go()
        for turn in range(int(times)):
            cycle = 1000 * (int(worker) + 1) + turn
            store.cycles.start("demo", cycle, checkpoint_id="base")
            store.cycles.finish_stage("demo", cycle, "collect", elapsed_s=1.0, detail={"worker": worker})
            store.statistics.write(
                "demo", [Statistic(cycle, f"s{k}", "edit_rate", 0.5, 0.4, 0.6, 9, "valid", 1.0) for k in range(20)]
            )
            store.quarantine.record(
                [QuarantinedRow(f"q{k}", "log.jsonl", k, None, "unreadable", "broken") for k in range(20)],
                at=START + timedelta(minutes=2 * turn, seconds=int(worker)),
            )


def promote_much(url: str, worker: str, times: str) -> None:
    """Promotes candidates of its own, each in place of whoever is champion then."""
    with Store.open(url, Path()) as store:
        wait_for_go()
        lost = 0
        for turn in range(int(times)):
            name = f"w{worker}-{turn}"
            store.checkpoints.add("demo", name, cycle=turn, parent_id="base", path=name, sha256="01")
            while True:
                champion = store.checkpoints.champion("demo")
                assert champion is not None, "no champion"
                serving = champion.checkpoint.checkpoint_id
                try:
                    store.checkpoints.promote("demo", name, replacing=serving, since_cycle=turn, reason="better")
                except StoreError as exc:
                    if "was to replace" not in exc.problem:
                        raise
                    lost += 1
                else:
                    break
        say(f"lost {lost}")


def promote_and_die(url: str, candidate: str, writes: str) -> None:
    """Promotes, and is killed before the write of that number; one more than there are writes: before the commit."""
    left = int(writes)
    with Store.open(url, Path()) as store:
        champion = store.checkpoints.champion("demo")
        assert champion is not None

        def count_down(*_: object) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

        @event.listens_for(Engine, "before_cursor_execute")
        def before_statement(_c: object, _u: object, statement: str, *_: object) -> None:
            if statement.startswith(("UPDATE", "INSERT")):
                count_down()

        event.listen(Engine, "commit", count_down)
        store.checkpoints.promote(
            "demo", candidate, replacing=champion.checkpoint.checkpoint_id, since_cycle=1, reason="better"
        )


def append_much(url: str, worker: str, times: str) -> None:
    """Entries of its own, and requests that all workers send."""
    with Store.open(url, Path()) as store:
        wait_for_go()
        for turn in range(int(times)):
            store.audit_log.append(actor=f"w{worker}", action="a.b", subject="s", reason=str(turn))
            store.audit_log.append(actor="all", action="a.b", subject="s", reason=str(turn), token=f"all-{turn}")


def open_incidents_much(url: str, cycles: str) -> None:
    """Lets the kept findings of each cycle open incidents, as all workers do."""
    from palomar.detectors.incidents import open_incidents

    with Store.open(url, Path()) as store:
        wait_for_go()
        for _ in range(3):
            for cycle in range(int(cycles)):
                open_incidents(store, "demo", cycle)


def hold_the_lock(url: str) -> None:
    """Keeps a write transaction on run ``demo`` open until stdin closes."""
    with Store.open(url, Path()) as store:

        @event.listens_for(Engine, "commit")
        def before_commit(_: object) -> None:
            wait_for_go()

        store.runs.set_status("demo", "stopped")


if __name__ == "__main__":
    TASKS = (open_only, write_much, promote_much, promote_and_die, append_much, open_incidents_much, hold_the_lock)
    {task.__name__: task for task in TASKS}[sys.argv[1]](*sys.argv[2:])
