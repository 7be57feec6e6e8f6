"""Running patched code on a module's tests, apart from this process.

A few worker processes stay alive (`sandbox_worker`, a bare interpreter without site packages). A worker forks children
with limits on CPU time, memory, open files, file size and processes, and reads what they found; so an endless loop, a
memory bomb or an exit ends a child and nothing else. A worker that dies all the same is replaced. Results are a pure
function of the job, hence memoised by it.
"""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Literal, Self

from palomar.data.production.catalogue import Module

_WORKER = Path(__file__).with_name("sandbox_worker.py")
_CHUNK = 32
_WALL_SLACK_S = 20.0
_REMEMBERED = 100_000

RunStatus = Literal["ran", "timed_out", "crashed"]


@dataclass(frozen=True)
class Run:
    """What came of running a source on the tests of its module."""

    status: RunStatus
    """``crashed``: it ended its own process, or was ended by a limit other than time."""
    results: tuple[str, ...] = ()
    """Per case the value's ``repr``, or ``!`` and the name of the exception; empty unless it ran to the end."""


class Sandbox:
    """A pool of workers; start it with `with`, or let it start at the first job and `close` it."""

    def __init__(self, workers: int = 2) -> None:
        self._workers = [_Worker() for _ in range(workers)]
        self._memo: dict[tuple[str, str], Run] = {}

    def run(self, jobs: Sequence[tuple[Module, str]]) -> list[Run]:
        """Runs each source on the tests of its module; equal jobs run once in the life of the pool."""
        if len(self._memo) >= _REMEMBERED:
            self._memo.clear()
        wanted = {(module.name, source): module for module, source in jobs}
        new = [(key, module) for key, module in wanted.items() if key not in self._memo]
        chunks = [new[start : start + _CHUNK] for start in range(0, len(new), _CHUNK)]
        lanes = [chunks[lane :: len(self._workers)] for lane in range(len(self._workers))]
        with ThreadPoolExecutor(len(self._workers)) as threads:
            for answered in threads.map(_work_off, self._workers, lanes):
                self._memo.update(answered)
        return [self._memo[module.name, source] for module, source in jobs]

    def close(self) -> None:
        """Ends the workers."""
        for worker in self._workers:
            worker.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


Chunk = list[tuple[tuple[str, str], Module]]


def _work_off(worker: _Worker, chunks: list[Chunk]) -> dict[tuple[str, str], Run]:
    answered: dict[tuple[str, str], Run] = {}
    for chunk in chunks:
        runs = worker.ask(chunk)
        if runs is None:  # the worker itself died or hung: find out which job does that
            runs = [(worker.ask([job]) or [Run("crashed")])[0] for job in chunk]
        answered.update((key, run) for (key, _), run in zip(chunk, runs, strict=True))
    return answered


class _Worker:
    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, chunk: Chunk) -> list[Run] | None:
        """One run per job; None where the worker died or did not answer in time."""
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                # As isolated as -I, but with a fixed order of sets: -I would not read the seed.
                [sys.executable, "-S", "-s", "-P", str(_WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={"PYTHONHASHSEED": "0"},
                bufsize=0,
            )
        process = self._process
        jobs = [
            {"source": source, "function": module.function, "cases": repr(module.cases)}
            for (_, source), module in chunk
        ]
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            _write(process.stdin, json.dumps(jobs).encode() + b"\n")
            line = _read_line(process.stdout, time.monotonic() + _WALL_SLACK_S + len(jobs))
            answers = json.loads(line)
        except (OSError, ValueError, TimeoutError):
            self.stop()
            return None
        return [Run(answer["status"], tuple(answer["results"])) for answer in answers]

    def stop(self) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        process.kill()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        process.wait()


def _write(pipe: IO[bytes], data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[pipe.write(view) :]


def _read_line(pipe: IO[bytes], deadline: float) -> bytes:
    parts: list[bytes] = []
    while not parts or not parts[-1].endswith(b"\n"):
        ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError
        part = pipe.read(1 << 16)
        if not part:
            raise OSError("the worker is gone")
        parts.append(part)
    return b"".join(parts)
