"""Long work beside the pages: a replay, a search for a patch, a question to the gate.

A page cannot do it: any click begins its script anew. So it asks for a job, which stands in the store, and a worker, a
process of its own that the console starts when there is something to do, takes one after the other. Whoever looks sees
how far it is, and where the worker died the job says so; asking again does it again.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from palomar.app import patching
from palomar.app.plain import plain_json
from palomar.app.service import Observatory
from palomar.data.errors import PalomarError, StoreError
from palomar.data.slices import ALL
from palomar.data.store import Store
from palomar.data.store.database import loads
from palomar.data.store.jobs import SILENT_S, UNDER_WAY
from palomar.data.store.records import Job, Run

Tell = Callable[[float, str], None]
"""How far it is, from 0 to 1, and what is being done, in words."""
Arguments = Mapping[str, Any]

BEAT_S = 5.0
"""Seconds between two signs of life."""
LOOK_S = 0.5
"""How often a worker without work looks for some."""
IDLE_S = 300.0
"""How long a worker of the console waits for more: to start one anew takes two seconds, to keep one 150 MB."""
NICE = 5
TRIALS = 3
"""Workers that end before they take a job until what waits is given up."""
HOME_VARIABLE, STORE_VARIABLE = "PALOMAR_HOME", "PALOMAR_STORE"
PARENT_VARIABLE = "PALOMAR_WORKER_PARENT"
"""Process that a worker must not outlive; unset: it ends when it is told to."""


# -- what can be asked for -------------------------------------------------------------------------------------------


def _replay(observatory: Observatory, arguments: Arguments, actor: str, tell: Tell) -> dict[str, Any]:
    """``old`` and ``new`` (YAML), ``cycles``, and ``flagged`` (ids): what the new one would have paid."""
    cycles, flagged = arguments["cycles"], arguments.get("flagged", ())
    found = patching.replayed(
        observatory, str(arguments["old"]), str(arguments["new"]), cycles, flagged=flagged, tell=tell
    )
    return found.to_dict()


def _patch(observatory: Observatory, arguments: Arguments, actor: str, tell: Tell) -> dict[str, Any]:
    """``run``, ``cycles``, and one of ``incident``, ``finding``, or ``statistic`` with ``slice`` and ``want``; none of
    them: what the newest check says. The proposals are kept, and named by id. ``base``: only while that is in force."""
    run = _run(observatory, arguments)
    asked = {name: arguments[name] for name in ("incident", "finding", "statistic", "want") if name in arguments}
    where = str(arguments.get("slice", ALL))
    present = patching.in_force(observatory.store, run)[0].version
    if arguments.get("base", present) != present:
        raise StoreError(f"reward {arguments['base']}", f"is in force no more ({present} is): ask again")
    found = patching.search(observatory, run, arguments["cycles"], slice_=where, actor=actor, tell=tell, **asked)
    return {**patching.plain_patching(run, found), "proposals": [each.proposal_id for each in found.proposals]}


def _gate(observatory: Observatory, arguments: Arguments, actor: str, tell: Tell) -> dict[str, Any]:
    """``candidate``, ``policy`` (a name or file) and ``again``: checked first, then decided."""
    from palomar.app.gating import Question, ask
    from palomar.trainer.gate_policy import read_policy

    tell(0.1, "checks the cycle and the candidate")
    policy = read_policy(str(arguments.get("policy", "demo")))
    again = bool(arguments.get("again", False))
    answer = ask(observatory, Question(str(arguments["candidate"]), policy, actor, again=again, check=True))
    return {"decision": answer.decision.decision_id, "verdict": answer.decision.verdict}


KINDS: Mapping[str, Callable[[Observatory, Arguments, str, Tell], dict[str, Any]]] = {
    "replay": _replay,
    "patch": _patch,
    "gate": _gate,
}


def _run(observatory: Observatory, arguments: Arguments) -> Run:
    run = observatory.run(str(arguments["run"]))
    if run is None:
        raise StoreError(f"run {arguments['run']!r}", "there is no such run")
    return run


# -- the worker ------------------------------------------------------------------------------------------------------


def name_here(pid: int | None = None) -> str:
    """What a worker on this machine is called."""
    return f"{socket.gethostname()}:{os.getpid() if pid is None else pid}"


def do_one(observatory: Observatory, worker: str) -> Job | None:
    """Takes the oldest job that waits and does it; as it is afterwards, or None where none waits.

    What we raise on purpose is told as it is, and a bug by its name: its message may hold secrets, and is in the log.
    """
    store = observatory.store
    job = store.jobs.take(worker)
    if job is None:
        return None
    with _alive(store, job, worker):
        try:
            if job.kind not in KINDS:
                raise StoreError(f"job {job.job_id}", f"{job.kind!r} is unknown here; was it asked by a newer version?")

            def tell(progress: float, step: str) -> None:
                store.jobs.tell(job.job_id, worker, progress=progress, step=step)

            found = KINDS[job.kind](observatory, job.arguments, job.actor, tell)
            store.jobs.finish(job.job_id, worker, loads(plain_json(found)))
        except PalomarError as exc:
            store.jobs.fail(job.job_id, worker, str(exc))
        except Exception as exc:
            traceback.print_exc()
            store.jobs.fail(job.job_id, worker, f"{type(exc).__name__} (a bug in Palomar; the worker's log says more)")
    return store.jobs.get(job.job_id)


@contextmanager
def _alive(store: Store, job: Job, worker: str) -> Iterator[None]:
    """Says every `BEAT_S` that the worker lives; once its parent does not, fails the job and ends this process."""
    over = threading.Event()
    parent = os.environ.get(PARENT_VARIABLE)

    def beat() -> None:
        said = time.monotonic()
        while not over.wait(1.0):
            if parent is not None and os.getppid() != int(parent):
                store.jobs.fail(job.job_id, worker, "the console was closed while it was being done")
                os._exit(1)
            if time.monotonic() - said >= BEAT_S:
                said = time.monotonic()
                try:
                    store.jobs.tell(job.job_id, worker)
                except StoreError:
                    continue  # said at the next beat, or by whoever finds us silent

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def work(observatory: Observatory, *, idle_s: float | None = IDLE_S, once: bool = False) -> int:
    """Does jobs until none came for `idle_s` (None: for ever); with `once`, those that wait now. How many it did."""
    parent = os.environ.get(PARENT_VARIABLE)
    worker, count, since = name_here(), 0, time.monotonic()
    while True:
        if parent is not None and os.getppid() != int(parent):
            return count
        if do_one(observatory, worker) is not None:
            count, since = count + 1, time.monotonic()
        elif once or (idle_s is not None and time.monotonic() - since > idle_s):
            return count
        else:
            time.sleep(LOOK_S)


def serve() -> None:
    """What the process of a console's worker runs; home and store are in its environment."""
    os.nice(NICE)
    work(Observatory(Path(os.environ[HOME_VARIABLE]), os.environ.get(STORE_VARIABLE)))


# -- whoever has the work done ---------------------------------------------------------------------------------------


class Runner:
    """The one worker of a console: started when a job waits, and missed when it has died. Threads may share it."""

    def __init__(self, home: Path, store_url: str | None = None) -> None:
        self._home, self._store_url = home, store_url
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._in_vain = 0
        """Workers in a row that ended before they had taken a job."""

    @property
    def pid(self) -> int | None:
        """Process of the worker; None where there is none now."""
        return None if self._child is None or self._child.poll() is not None else self._child.pid

    def look(self, store: Store) -> None:
        """Fails what a dead worker had in hand, and starts one where jobs wait. Cheap: to be called at each look."""
        under_way = store.jobs.read(states=UNDER_WAY)
        with self._lock:
            if self._child is not None and (code := self._child.poll()) is not None:
                worker = name_here(self._child.pid)
                if any(job.worker == worker for job in under_way):
                    store.jobs.lose(worker=worker, why=_ended(code))
                self._in_vain = 0 if code == 0 or _took(store, worker) else self._in_vain + 1
                self._child = None
                if self._in_vain == TRIALS:
                    self._in_vain = 0
                    store.jobs.give_up(f"no worker can be started ({_ended(code)}); the console's log says why")
                    return
            silent = datetime.now(UTC) - timedelta(seconds=SILENT_S)
            if any(job.heard_at is not None and job.heard_at < silent for job in under_way):
                store.jobs.lose()
            if self._child is None and any(job.state == "queued" for job in under_way):
                self._child = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        # In the environment, since others could read arguments: the URL may hold a password.
        environment = {**os.environ, PARENT_VARIABLE: str(os.getpid()), HOME_VARIABLE: str(self._home)}
        environment.pop(STORE_VARIABLE, None)
        if self._store_url is not None:
            environment[STORE_VARIABLE] = self._store_url
        return subprocess.Popen(
            [sys.executable, "-c", "from palomar.app.jobs import serve; serve()"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the console, which then ends it
        )

    def close(self) -> None:
        """Ends the worker; what it had in hand is failed by the next one who looks."""
        with self._lock:
            if self._child is not None and self._child.poll() is None:
                self._child.terminate()
                self._child.wait()


_RUNNERS: dict[tuple[Path, str | None], Runner] = {}
_RUNNERS_LOCK = threading.Lock()


def runner_of(home: Path, store_url: str | None = None) -> Runner:
    """The runner of this process for a home: one, whoever asks."""
    with _RUNNERS_LOCK:
        return _RUNNERS.setdefault((home.absolute(), store_url), Runner(home.absolute(), store_url))


def close_runners() -> None:
    """Ends the workers of this process."""
    with _RUNNERS_LOCK:
        for runner in _RUNNERS.values():
            runner.close()
        _RUNNERS.clear()


def _took(store: Store, worker: str) -> bool:
    return any(job.worker == worker for job in store.jobs.read(newest=100))


def _ended(code: int) -> str:
    return f"killed by signal {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
