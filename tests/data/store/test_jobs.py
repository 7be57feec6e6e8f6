"""Jobs: asked for once, taken by one worker, and failed when that dies."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest

from palomar.data.errors import StoreError
from palomar.data.store import Store
from palomar.data.store.jobs import SILENT_S


def test_the_same_token_is_the_same_job_and_another_request_under_it_is_refused(store: Store) -> None:
    first = store.jobs.ask("replay", {"cycles": [1, 2]}, actor="ada", token="t")
    assert store.jobs.ask("replay", {"cycles": [1, 2]}, actor="ada", token="t") == first
    with pytest.raises(StoreError, match="another job already"):
        store.jobs.ask("replay", {"cycles": [1, 3]}, actor="ada", token="t")
    assert store.jobs.ask("replay", {"cycles": [1, 2]}, actor="ada").job_id != first.job_id
    assert [each.state for each in store.jobs.read()] == ["queued", "queued"]
    with pytest.raises(StoreError, match="an actor"):
        store.jobs.ask("replay", {}, actor=" ")


def test_a_job_goes_from_the_queue_to_its_result_and_lists_leave_the_result_out(store: Store) -> None:
    asked = [store.jobs.ask("replay", {"number": number}, actor="ada") for number in range(3)]
    taken = store.jobs.take("w1")
    assert taken is not None
    assert (taken.job_id, taken.state, taken.worker) == (asked[0].job_id, "running", "w1")
    assert store.jobs.tell(taken.job_id, "w1", progress=0.5, step="reads")
    assert [(each.progress, each.step) for each in store.jobs.read(states=["running"])] == [(0.5, "reads")]
    assert store.jobs.finish(taken.job_id, "w1", {"rows": 3, "none": None})
    done = store.jobs.get(taken.job_id)
    assert done is not None
    assert (done.state, done.progress, done.result) == ("done", 1.0, {"rows": 3, "none": None})
    assert done.finished_at is not None
    assert [each.result for each in store.jobs.read()] == [None, None, None]
    assert [each.arguments for each in store.jobs.read(newest=2)] == [{"number": 1}, {"number": 2}]
    assert store.jobs.get("nobody") is None


def test_what_is_over_is_not_changed_by_a_worker_that_comes_late(store: Store) -> None:
    store.jobs.ask("replay", {}, actor="ada")
    taken = store.jobs.take("w1")
    assert taken is not None
    assert not store.jobs.finish(taken.job_id, "w2", {"rows": 1})
    assert store.jobs.fail(taken.job_id, "w1", "no rows")
    assert not store.jobs.finish(taken.job_id, "w1", {"rows": 1})
    assert not store.jobs.tell(taken.job_id, "w1", progress=0.9)
    found = store.jobs.get(taken.job_id)
    assert found is not None
    assert (found.state, found.error, found.result, found.progress) == ("failed", "no rows", None, 0.0)


def test_a_silent_worker_is_dead_and_one_that_speaks_is_not(store: Store) -> None:
    for _ in range(2):
        store.jobs.ask("replay", {}, actor="ada")
    silent, alive = store.jobs.take("w1"), store.jobs.take("w2")
    assert silent is not None
    assert alive is not None
    assert store.jobs.lose() == []
    later = datetime.now(UTC) + timedelta(seconds=SILENT_S + 1)
    assert store.jobs.lose(worker="w1", why="killed by signal 9") == [silent.job_id]
    lost = store.jobs.get(silent.job_id)
    assert lost is not None
    assert lost.state == "failed"
    assert (lost.error or "").startswith("lost: its worker died; last heard of ")
    assert (lost.error or "").endswith("(killed by signal 9)")
    assert store.jobs.lose(now=later - timedelta(seconds=3)) == []
    assert store.jobs.lose(now=later) == [alive.job_id]
    assert store.jobs.lose(now=later) == []


def test_no_two_workers_get_the_same_job(store: Store) -> None:
    asked = {store.jobs.ask("replay", {"number": number}, actor="ada").job_id for number in range(12)}
    taken: list[str] = []

    def work(name: str) -> None:
        while (job := store.jobs.take(name)) is not None:
            taken.append(job.job_id)

    threads = [threading.Thread(target=work, args=(f"w{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == sorted(asked)
