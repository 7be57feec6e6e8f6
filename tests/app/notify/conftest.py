"""A real HTTP server that answers as it is told, and a run with decisions and incidents to tell of."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from palomar.data.findings import Finding, Report
from palomar.data.store import Store
from palomar.detectors.incidents import open_incidents


@dataclass
class Receiver:
    """What a server was sent, and what it answers: a status each, the last one for ever; None: nothing, for a while."""

    url: str = ""
    answers: list[int | None] = field(default_factory=lambda: [200])
    headers: dict[str, str] = field(default_factory=dict)
    got: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    hangs_s: float = 1.5

    def bodies(self) -> list[Any]:
        """Of all requests, as JSON."""
        return [json.loads(body) for _, _, body in self.got]

    def keys(self) -> list[str]:
        """Idempotency keys of all requests."""
        return [headers["idempotency-key"] for _, headers, _ in self.got]


@contextmanager
def serving(receiver: Receiver, port: int = 0) -> Iterator[Receiver]:
    """The receiver on a port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            place = min(len(receiver.got), len(receiver.answers) - 1)
            receiver.got.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
            answer = receiver.answers[place]
            if answer is None:
                time.sleep(receiver.hangs_s)
                return
            self.send_response(answer)
            for name, value in receiver.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    receiver.url = f"http://127.0.0.1:{server.server_port}/hook/s3cr3t"
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with serving(Receiver()) as one:
        yield one


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A run whose base serves, and a candidate of cycle 1."""
    with Store.open(None, tmp_path / "home") as opened:
        opened.runs.add("demo", name="demo", seed=0, config={})
        for name, parent, cycle in (("base", None, None), ("new", "base", 1), ("next", "base", 2)):
            opened.checkpoints.add("demo", name, cycle=cycle, parent_id=parent, path=name, sha256="00")
        opened.checkpoints.promote("demo", "base", replacing=None, since_cycle=0, reason="the base")
        for cycle in range(4):
            opened.cycles.start("demo", cycle, checkpoint_id="base")
        yield opened


@pytest.fixture
def decide(store: Store) -> Callable[..., Any]:
    """Has the gate decide."""

    def take(candidate: str, verdict: str, **more: Any) -> Any:
        given: dict[str, Any] = {
            "cycle": 1,
            "kind": "neutral" if verdict == "promote" else None,
            "reasons": ["not_worse:solved"],
            "sentence": f"it is {verdict}",
            "evidence": {},
            "inputs": None,
            "policy": "demo-1",
            "policy_text": None,
            "expires_at": None,
        }
        highest = store.decisions.highest("demo", candidate)
        return store.decisions.take("demo", candidate, after=highest, verdict=verdict, **{**given, **more})

    return take


@pytest.fixture
def incident(store: Store) -> Callable[..., int]:
    """Opens an incident by a finding that blocks."""

    def make(cycle: int = 1, sentence: str = "asks more", statistic: str = "clarification_rate") -> int:
        found = Finding("behaviour", "blocks", sentence, statistic=statistic, reading="reward_hack", effect=0.2, n=50)
        store.findings.write("demo", cycle, [found], [Report("behaviour", (found,), 1)])
        (opened,) = open_incidents(store, "demo", cycle)
        return opened.number

    return make
