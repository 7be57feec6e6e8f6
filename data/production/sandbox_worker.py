"""The worker process of `palomar.data.production.sandbox`; run as a script, never imported.

Reads lines of JSON jobs from standard input and answers each line with one. Jobs run in forked children of this small
process, a few jobs a child since a fork costs as much as a job; a child that does not come back with all its results is
run again job by job, each in a child of its own, so that one bad patch takes no other with it.
"""

from __future__ import annotations

import ast

# Loaded before the limits: a child cannot open files, so it can import only what is already here.
import bisect  # noqa: F401
import collections  # noqa: F401
import gc
import io
import itertools  # noqa: F401
import json
import math  # noqa: F401
import os
import re  # noqa: F401
import resource
import select
import signal
import sys
import time
from typing import Any

CPU_S = 0.25
"""CPU time a child has, in seconds; its own, so that a loaded machine changes no result."""
WALL_S = 6.0
MEMORY_BYTES = 256 << 20
RESULT_CHARACTERS = 2000
TOGETHER = 8
"""Jobs a child."""


def main() -> None:
    """Answers lines of jobs until standard input ends."""
    gc.freeze()  # what is here now is shared with the children; a collection there would copy it
    cases_of: dict[str, tuple[Any, ...]] = {}
    for line in sys.stdin.buffer:
        jobs = json.loads(line)
        for job in jobs:
            text = job["cases"]
            if text not in cases_of:
                cases_of[text] = ast.literal_eval(text)
            job["cases"] = cases_of[text]
        answers = []
        for start in range(0, len(jobs), TOGETHER):
            some = jobs[start : start + TOGETHER]
            status, results = run_apart(some)
            if status == "ran" or len(some) == 1:
                answers += [{"status": status, "results": item} for item in results or [[]]]
                continue
            for job in some:
                status, results = run_apart([job])
                answers.append({"status": status, "results": results[0] if results else []})
        sys.stdout.buffer.write(json.dumps(answers).encode() + b"\n")
        sys.stdout.buffer.flush()


def run_apart(jobs: list[dict[str, Any]]) -> tuple[str, list[list[str]]]:
    """Runs jobs in one child: ``ran`` and the results of each, or why there are none."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(read_end)
            limit()
            data = json.dumps([run(job["source"], job["function"], job["cases"]) for job in jobs]).encode()
            while data:
                data = data[os.write(write_end, data) :]
            status = 0
        finally:
            os._exit(status)
    os.close(write_end)
    data = b""
    deadline = time.monotonic() + WALL_S
    late = False
    while not late:
        ready, _, _ = select.select([read_end], [], [], max(0.0, deadline - time.monotonic()))
        late = not ready
        part = os.read(read_end, 1 << 16) if ready else b""
        if not part:
            break
        data += part
    if late:
        os.kill(child, signal.SIGKILL)
    os.close(read_end)
    _, ended = os.waitpid(child, 0)
    if late or (os.WIFSIGNALED(ended) and os.WTERMSIG(ended) in (signal.SIGVTALRM, signal.SIGXCPU)):
        return "timed_out", []
    results = read_results(data, jobs) if ended == 0 else None
    return ("crashed", []) if results is None else ("ran", results)


def read_results(data: bytes, jobs: list[dict[str, Any]]) -> list[list[str]] | None:
    """What a child wrote, or None where a patch has left early or written there itself."""
    try:
        results = json.loads(data)
        if [len(item) for item in results] != [len(job["cases"]) for job in jobs]:
            return None
        return [[str(text) for text in item] for item in results]
    except (ValueError, TypeError):
        return None


def limit() -> None:
    """Takes from this child what a patch has no business with."""
    for number in (0, 1, 2):
        os.close(number)
    sys.stdin = sys.stdout = sys.stderr = io.StringIO()
    # Without a handler the signal ends the process, even inside one long operation of the interpreter.
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
    resource.setrlimit(resource.RLIMIT_CPU, (1, 1))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))


def run(source: str, function: str, cases: tuple[Any, ...]) -> list[str]:
    """The result of each case as text: a value's repr, or ``!`` and the name of what was raised."""
    space: dict[str, Any] = {"__name__": "module"}
    try:
        exec(compile(source, "module.py", "exec"), space)
        called = space[function]
    except Exception as exc:
        return [f"!{type(exc).__name__}" for _ in cases]
    results = []
    for arguments in cases:
        try:
            results.append(repr(called(*_fresh(arguments)))[:RESULT_CHARACTERS])
        except Exception as exc:
            results.append(f"!{type(exc).__name__}")
    return results


def _fresh(value: Any) -> Any:
    """A copy of literal data, so that what one run changes in place another does not see."""
    if isinstance(value, list | tuple | set):
        return type(value)(_fresh(item) for item in value)
    if isinstance(value, dict):
        return {key: _fresh(item) for key, item in value.items()}
    return value


if __name__ == "__main__":
    main()
