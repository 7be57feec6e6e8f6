"""The HTTP API under load: a real `palomar serve`, several clients that send gzip batches, and what is read meanwhile.

Clients keep their connection, wait as long as ``Retry-After`` says, and send again until they are answered. In the last
part the server is killed (SIGKILL) while they send and started again. At the end the lake is counted: every record that
was answered must be there, once, and nothing else.

Clients and server share the two cores, and every batch is synced to the disk before it is answered.
"""

from __future__ import annotations

import gzip
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from palomar.app.bench import Measure
from palomar.data.findings import Finding
from palomar.data.lake import Lake
from palomar.data.store import Store
from palomar.detectors.incidents import open_incidents

SEED = 1
BATCH = 100
"""Records of a batch, each of some 10 KB."""
TURNS, WORDS_OF_A_TURN = 6, 250
CLIENTS = (1, 2, 4, 8)
PER_CLIENT, QUICK_PER_CLIENT = 24, 4
READS, QUICK_READS = 200, 30
READ_AIM_S = 0.1
READ = {
    "GET gate": "/v1/gate/c4",
    "GET findings": "/v1/cycles/4/findings",
    "GET incidents": "/v1/incidents",
}
_WORDS = ("list", "index", "total", "value", "order", "parse", "check", "retry", "cache", "items", "result", "error")


@dataclass
class Said:
    """What clients were told."""

    seconds: list[float] = field(default_factory=list)
    """Of each request that was answered with 200."""
    statuses: Counter[int] = field(default_factory=Counter)
    """0 = no answer."""
    new: int = 0
    known: int = 0
    stored: list[int] = field(default_factory=list)
    """Numbers of the batches that were answered with 200."""
    elapsed_s: float = 0.0

    @property
    def pushed_back(self) -> int:
        """Requests that were told to come again."""
        return self.statuses[429] + self.statuses[503]

    @property
    def wrong(self) -> int:
        """Answers that are neither 200 nor come again."""
        return sum(count for status, count in self.statuses.items() if status not in (0, 200, 429, 503))

    def at(self, share: float) -> float | None:
        """That share of the answers came within so many seconds."""
        return float(np.quantile(self.seconds, share)) if self.seconds else None


def measure(quick: bool) -> list[Measure]:
    """More and more clients, then reading beside them, then a client that is too fast, then a killed server."""
    per_client, reads = (QUICK_PER_CLIENT, QUICK_READS) if quick else (PER_CLIENT, READS)
    found: list[Measure] = []
    sent: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        secret = _home(home)
        wrong = 0
        with _Served(home) as server:
            _get(server, secret, "/v1/gate/c4", method="POST")  # so that there is a decision to read
            found += _reading(server, secret, reads, "idle")
            first = 0
            for clients in CLIENTS:
                numbers = range(first, first + clients * per_client)
                first = numbers.stop
                said = _send(server, secret, numbers, clients)
                sent += said.stored
                wrong += said.wrong
                found += _ingested(said, clients)
            found += _beside(server, secret, reads, range(first, first + 2 * per_client), sent)
            first += 2 * per_client
        with _Served(home, rate=20) as server:
            found.append(_too_fast(server, secret))
        with _Served(home) as server:
            numbers = range(first, first + 4 * max(per_client, 6))
            said = _send(server, secret, numbers, 4, on_answers=(8, server.kill_and_start))
            sent += said.stored
            wrong += said.wrong
            found.append(
                Measure(
                    "a server killed while 4 clients send: records that were stored and not answered for, and known "
                    "when they came again",
                    float(said.known),
                    "records",
                    len(said.stored) * BATCH,
                    (SEED,),
                )
            )
        found += _counted(home, sent, wrong)
    return found


def _ingested(said: Said, clients: int) -> list[Measure]:
    records = len(said.stored) * BATCH
    name = f"ingest, {clients} client{'s' if clients > 1 else ''}"
    tries = sum(said.statuses.values())
    return [
        Measure(f"{name}: records", records / said.elapsed_s, "1/s", records, (SEED,)),
        *(
            Measure(f"{name}: {word} of a batch of {BATCH}", said.at(share), "s", len(said.seconds), (SEED,))
            for word, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
        ),
        Measure(f"{name}: told to come again", said.pushed_back / tries, "fraction", tries, (SEED,)),
    ]


def _reading(server: _Served, secret: str, reads: int, when: str, aim: float | None = READ_AIM_S) -> list[Measure]:
    found = []
    for name, path in READ.items():
        said = Said()
        for _ in range(reads):
            began = time.perf_counter()
            status = _get(server, secret, path)
            if status == 200:
                said.seconds.append(time.perf_counter() - began)
            said.statuses[status] += 1
        if said.statuses[200] != reads:
            raise RuntimeError(f"{path} answers {dict(said.statuses)}")
        found += [
            Measure(f"{name}, {when}: {word}", said.at(share), "s", reads, (SEED,), aim if word == "p95" else None)
            for word, share in (("p50", 0.5), ("p95", 0.95))
        ]
    return found


def _beside(server: _Served, secret: str, reads: int, numbers: Sequence[int], sent: list[int]) -> list[Measure]:
    """Reading while two clients send."""
    found: list[Measure] = []
    done: list[Said] = []
    sending = threading.Thread(target=lambda: done.append(_send(server, secret, numbers, 2)))
    sending.start()
    found += _reading(server, secret, max(10, reads // 4), "while 2 clients send", aim=None)
    sending.join()
    sent += done[0].stored
    return found


def _too_fast(server: _Served, secret: str) -> Measure:
    """One token that asks as fast as it can, at the server's ordinary rate."""
    statuses: Counter[int] = Counter()
    until = time.perf_counter() + 3.0
    while time.perf_counter() < until:
        statuses[_get(server, secret, "/v1/gate/c4")] += 1
    return Measure(
        "a token that asks without a pause, at --rate 20: answered with 429",
        statuses[429] / sum(statuses.values()),
        "fraction",
        sum(statuses.values()),
        (SEED,),
        note=f"{statuses[200] / 3.0:.0f} a second were answered, the burst of 40 among them",
    )


def _counted(home: Path, sent: Sequence[int], wrong: int) -> list[Measure]:
    """What the lake has against what was answered with 200."""
    names = Counter(Lake(home / "lake").scan("interactions", ["interaction_id"])["interaction_id"].to_pylist())
    answered = {f"{number}/{index}" for number in sent for index in range(BATCH)}
    n = len(answered)
    return [
        Measure("records that were answered for and are not in the lake", float(len(answered - set(names))), "records",
                n, (SEED,), 0.0),
        Measure("records that are in the lake twice", float(sum(count > 1 for count in names.values())), "records", n,
                (SEED,), 0.0),
        Measure("records in the lake that nobody was answered for", float(len(set(names) - answered)), "records", n,
                (SEED,), 0.0),
        Measure("answers that are neither 200 nor come again", float(wrong), "answers", len(sent), (SEED,), 0.0),
        Measure("files of interactions in the end", float(len(Lake(home / "lake").files("interactions"))), "files",
                len(sent), (SEED,), note="n: batches"),
    ]  # fmt: skip


# -- the server ----------------------------------------------------------------------------------------------------


def _home(home: Path) -> str:
    """A home with a run, a candidate, findings and an incident. A token for everything."""
    with Store.open(None, home) as store:
        store.runs.add("demo", name="demo", seed=SEED, config={})
        for name, cycle in (("base", None), ("c4", 4)):
            store.checkpoints.add("demo", name, cycle=cycle, parent_id=None, path=name, sha256="00")
        store.checkpoints.promote("demo", "base", replacing=None, since_cycle=0, reason="the base")
        for cycle in range(5):
            store.cycles.start("demo", cycle, checkpoint_id="base")
        names = ("clarification_rate", "edit_rate", "invalid_call_rate", "functions_per_edit")
        findings = [
            Finding("behaviour", "blocks", f"{name} moved", statistic=name, effect=0.4, n=900) for name in names
        ]
        store.findings.write("demo", 4, findings)
        store.verdicts.write("demo", 4, verdict="block", reasons=["reward_hack"], sentence="", findings={}, budget="",
                             as_of=None)  # fmt: skip
        open_incidents(store, "demo", 4)
        return store.tokens.create("bench", ["ingest", "decide"], days=1, actor="bench")[1]


class _Served:
    """`palomar serve` in a process of its own, on this machine only."""

    def __init__(self, home: Path, rate: float = 100_000) -> None:
        with socket.socket() as trial:
            trial.bind(("127.0.0.1", 0))
            self.port = int(trial.getsockname()[1])
        self._home = home
        self._rate = rate
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> _Served:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _start(self) -> None:
        code = "from palomar.app.cli import main; main()"
        command = [sys.executable, "-c", code, "serve", "--port", str(self.port), "--no-classify", "--rate",
                   str(self._rate)]  # fmt: skip
        with (self._home / "serve.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, env={**os.environ, "PALOMAR_HOME": str(self._home)}, stdout=log, stderr=subprocess.STDOUT
            )
        until = time.monotonic() + 120
        while _get(self, "", "/v1/health") != 200:
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"palomar serve does not answer: {(self._home / 'serve.log').read_text()[-2000:]}")
            time.sleep(0.1)

    def kill_and_start(self) -> None:
        """SIGKILL, in whatever it is doing, and a new one."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._start()


@contextmanager
def _connected(server: _Served) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        yield connection
    finally:
        connection.close()


def _get(server: _Served, secret: str, path: str, *, method: str = "GET") -> int:
    """The status; 0 where there was no answer."""
    try:
        with _connected(server) as connection:
            connection.request(method, path, headers={"Authorization": f"Bearer {secret}"})
            answer = connection.getresponse()
            answer.read()
            return answer.status
    except (OSError, http.client.HTTPException):
        return 0


# -- the clients ---------------------------------------------------------------------------------------------------


def _send(
    server: _Served,
    secret: str,
    numbers: Sequence[int],
    clients: int,
    on_answers: tuple[int, Callable[[], None]] | None = None,
) -> Said:
    """Sends the batches with so many clients until each was answered. ``on_answers``: after so many, do that."""
    batches = {number: _batch(number) for number in numbers}  # made before the clock runs
    waiting = list(reversed(numbers))
    said, lock, enough = Said(), threading.Lock(), threading.Event()

    def client() -> None:
        headers = {
            "Authorization": f"Bearer {secret}",
            "Content-Type": "application/x-ndjson",
            "Content-Encoding": "gzip",
        }
        with _connected(server) as connection:
            while True:
                with lock:
                    if not waiting:
                        return
                    number = waiting.pop()
                while not _once(connection, batches[number], headers, number):
                    pass

    def _once(connection: http.client.HTTPConnection, body: bytes, headers: dict[str, str], number: int) -> bool:
        began = time.perf_counter()
        pause = 0.0
        try:
            connection.request("POST", "/v1/interactions", body, headers)
            answer = connection.getresponse()
            status, told = answer.status, answer.read()
            pause = float(answer.headers.get("Retry-After", 0))
        except (OSError, http.client.HTTPException):
            connection.close()
            status, told, pause = 0, b"", 0.5
        elapsed_s = time.perf_counter() - began
        with lock:
            said.statuses[status] += 1
            if status == 200:
                known = json.loads(told)
                said.new += known["new"]
                said.known += known["known"]
                said.seconds.append(elapsed_s)
                said.stored.append(number)
                if on_answers is not None and len(said.stored) == on_answers[0]:
                    enough.set()
        if status not in (0, 200, 429, 503):
            raise RuntimeError(f"a batch was answered with {status}: {told[:300]!r}")
        time.sleep(pause)
        return status == 200

    threads = [threading.Thread(target=client) for _ in range(clients)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    if on_answers is not None and enough.wait(timeout=300):
        on_answers[1]()
    for thread in threads:
        thread.join()
    said.elapsed_s = time.perf_counter() - began
    if len(said.stored) != len(numbers):
        raise RuntimeError("a client gave up: the cause is above")
    return said


def _batch(number: int) -> bytes:
    """One batch as it is sent."""
    generator = random.Random(SEED * 1_000_003 + number)
    lines = []
    for index in range(BATCH):
        steps: list[dict[str, Any]] = [{"author": "person", "role": "user", "text": _text(generator, 60)}]
        for _ in range(TURNS):
            call = {"name": "bash", "arguments": json.dumps({"command": f"grep -n {generator.choice(_WORDS)} a.py"}),
                    "outcome": "ok", "result": _text(generator, WORDS_OF_A_TURN)}  # fmt: skip
            steps.append({"author": "agent", "role": "assistant", "text": _text(generator, 30), "tool_calls": [call]})
        record = {"interaction_id": f"{number}/{index}", "user_id": f"u{index % 17}", "steps": steps}
        lines.append(json.dumps(record))
    return gzip.compress("\n".join(lines).encode(), compresslevel=1)


def _text(generator: random.Random, words: int) -> str:
    return " ".join(generator.choices(_WORDS, k=words))
