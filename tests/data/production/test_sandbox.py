"""A patch may do what it likes in its own process, and nothing beyond it."""

from __future__ import annotations

import time

import pytest

from palomar.data.production.catalogue import modules
from palomar.data.production.sandbox import Run, Sandbox

MODULE = modules()["parcel_price"]
HONEST = MODULE.source((0, 0, 0))


def evil(body: str) -> str:
    return f"import os, sys\n\n\ndef parcel_price(*arguments):\n    {body}\n"


@pytest.mark.parametrize(
    ("body", "status", "result"),
    [
        ("while True: pass", "timed_out", None),
        ("return 10 ** 10 ** 9", "timed_out", None),
        ("return sum(range(10 ** 12))", "timed_out", None),
        ("os._exit(0)", "crashed", None),
        ("os._exit(3)", "crashed", None),
        ("os.kill(os.getpid(), 9)", "crashed", None),
        ("return os.write(4, b'[]')", "crashed", None),
        ("sys.exit(0)", "crashed", None),
        ("return parcel_price(*arguments)", "ran", "!RecursionError"),
        ("return len('x' * 10 ** 10)", "ran", "!MemoryError"),
        ("return open('/etc/hostname').read()", "ran", "!OSError"),
        ("import socket; return socket.socket()", "ran", "!"),
        ("return os.pipe()", "ran", "!OSError"),
        ("print('x'); return sys.stdin.read()", "ran", "''"),
        ("return x", "ran", "!NameError"),
    ],
)
def test_a_bad_patch_ends_alone(body, status, result, sandbox):
    (reference,) = sandbox.run([(MODULE, HONEST)])
    neighbours = [(MODULE, HONEST + f"# {body} {number}\n") for number in range(6)]
    *before, bad, after = sandbox.run([*neighbours[:5], (MODULE, evil(body)), neighbours[5]])
    assert bad.status == status
    assert (bad.results == ()) == (status != "ran")
    assert result is None or all(text.startswith(result) for text in bad.results)
    assert [*before, after] == [reference] * 6


def test_a_worker_that_a_patch_kills_is_replaced(sandbox):
    (reference,) = sandbox.run([(MODULE, HONEST)])
    jobs = [(MODULE, HONEST + "# 1\n"), (MODULE, evil("os.kill(os.getppid(), 9)")), (MODULE, HONEST + "# 2\n")]
    assert sandbox.run(jobs) == [reference, Run("crashed"), reference]


@pytest.mark.slow
def test_a_patch_that_sleeps_meets_the_wall_clock_limit(sandbox):
    began = time.monotonic()
    (run,) = sandbox.run([(MODULE, evil("import time; time.sleep(100)"))])
    assert run == Run("timed_out")
    assert time.monotonic() - began < 25


def test_text_that_does_not_compile_fails_every_test(sandbox):
    (run,) = sandbox.run([(MODULE, "def parcel_price(:\n")])
    assert run == Run("ran", ("!SyntaxError",) * len(MODULE.cases))


def test_tests_do_not_see_each_others_changes(sandbox):
    source = "seen = []\ndef parcel_price(*arguments):\n    seen.append(1)\n    return len(seen)\n"
    first, second = sandbox.run([(MODULE, source), (MODULE, source + "\n")])
    assert first == second, "a patch sees a fresh module"
    changing = modules()["sensor_smooth"]
    body = "def sensor_smooth(readings, *rest):\n    readings.append(1)\n    return len(readings)\n"
    first, second = sandbox.run([(changing, body), (changing, body + "\n")])
    assert first == second, "arguments changed in place are fresh for the next patch"


def test_equal_jobs_run_once(monkeypatch):
    with Sandbox(workers=1) as pool:
        asked = []
        ask = pool._workers[0].ask
        monkeypatch.setattr(pool._workers[0], "ask", lambda chunk: asked.extend(chunk) or ask(chunk))
        first = pool.run([(MODULE, HONEST), (MODULE, HONEST)])
        assert pool.run([(MODULE, HONEST)]) == first[:1] == first[1:]
        assert len(asked) == 1


def test_workers_go_when_the_pool_closes():
    with Sandbox(workers=2) as pool:
        pool.run([(MODULE, HONEST + f"# {number}\n") for number in range(80)])
        processes = [worker._process for worker in pool._workers]
        assert all(process.poll() is None for process in processes)
    assert all(process.poll() is not None for process in processes)
