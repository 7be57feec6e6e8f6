"""`palomar serve` as a process: what docs/api.md says runs, and a killed server loses and doubles nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from palomar.data.lake import Lake
from palomar.data.store import Store

ROOT = Path(__file__).resolve().parents[3]
BATCH, BATCHES = 40, 12


def free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


def start(home: Path, port: int, log: Path, *arguments: str) -> subprocess.Popen[bytes]:
    code = "from palomar.app.cli import main; main()"
    command = [sys.executable, "-c", code, "serve", "--port", str(port), "--no-classify", "--rate", "1000", *arguments]
    with log.open("ab") as written:
        return subprocess.Popen(
            command,
            env={**os.environ, "PALOMAR_HOME": str(home), "OMP_NUM_THREADS": "1"},
            stdout=written,
            stderr=subprocess.STDOUT,
        )


def await_server(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        assert server.poll() is None, log.read_text()
        try:
            if httpx.get(f"http://127.0.0.1:{port}/v1/health", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.1)
    pytest.fail(f"no answer: {log.read_text()}")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Callable[[], tuple[subprocess.Popen[bytes], int]]]:
    """Starts a server on the home ``home`` and waits until it answers; may be called again on the same port."""
    port, log, running = free_port(), tmp_path / "log", []

    def begin() -> tuple[subprocess.Popen[bytes], int]:
        server = start(tmp_path / "home", port, log)
        running.append(server)
        await_server(server, port, log)
        return server, port

    yield begin
    for server in running:
        server.kill()
        server.wait()


def token(home: Path, *roles: str) -> str:
    with Store.open(None, home) as store:
        return store.tokens.create("-".join(roles), roles, days=1, actor="ada")[1]


def batch(number: int) -> list[dict[str, Any]]:
    steps = [
        {"author": "person", "role": "user", "text": "x" * 2000},
        {"author": "agent", "role": "assistant", "text": "."},
    ]
    return [{"interaction_id": f"{number}/{index}", "steps": steps} for index in range(BATCH)]


def stored(home: Path) -> list[str]:
    return sorted(Lake(home / "lake").scan("interactions", ["interaction_id"])["interaction_id"].to_pylist())


@pytest.mark.slow
def test_a_server_killed_while_two_clients_write_loses_and_doubles_nothing(
    tmp_path: Path, served: Callable[[], tuple[subprocess.Popen[bytes], int]]
) -> None:
    home = tmp_path / "home"
    secret = token(home, "ingest")
    server, port = served()
    new, tries, answered = [], [], threading.Event()

    def send(numbers: list[int]) -> None:
        for number in numbers:
            while True:
                tries.append(number)
                try:
                    said = httpx.post(
                        f"http://127.0.0.1:{port}/v1/interactions",
                        json=batch(number),
                        headers={"Authorization": f"Bearer {secret}"},
                        timeout=60,
                    )
                    if said.status_code == 200:
                        new.append(said.json()["new"])
                        assert said.json()["refused"] == []
                        break
                    assert said.status_code == 503
                except httpx.HTTPError:
                    pass
                time.sleep(0.05)
            if len(new) >= 4:
                answered.set()

    # Both send every batch, one of them backwards.
    clients = [threading.Thread(target=send, args=([*range(BATCHES)][::way],)) for way in (1, -1)]
    for client in clients:
        client.start()
    assert answered.wait(120)
    os.kill(server.pid, signal.SIGKILL)
    server.wait()
    served()
    for client in clients:
        client.join(timeout=240)
        assert not client.is_alive()
    assert len(tries) > 2 * BATCHES  # something was sent again
    assert stored(home) == sorted(f"{number}/{index}" for number in range(BATCHES) for index in range(BATCH))
    assert sum(new) <= BATCHES * BATCH  # what was written and never answered is "known" the second time
    assert secret not in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_the_commands_of_the_docs_run(
    tmp_path: Path, served: Callable[[], tuple[subprocess.Popen[bytes], int]]
) -> None:
    home = tmp_path / "home"
    with Store.open(None, home) as store:
        store.runs.add("demo", name="demo", seed=7, config={})
        store.checkpoints.add("demo", "c4", cycle=None, parent_id=None, path="c4", sha256="00")
        store.cycles.start("demo", 0)
    everything = token(home, "ingest", "decide", "admin")
    _, port = served()
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    blocks = [block for block in re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL) if "curl" in block]
    assert len(blocks) == 4
    for block in blocks:
        # curl asks the server of this test; `-f` would hide what a refusal says.
        script = f"set -eu\ncurl() {{ command curl -sS -w '\\n%{{http_code}}\\n' \"$@\"; }}\n{block}"
        done = subprocess.run(
            ["bash", "-c", script],
            env={**os.environ, "TOKEN": everything, "API": f"http://127.0.0.1:{port}"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, block + done.stderr
        codes = re.findall(r"^(\d{3})$", done.stdout, flags=re.MULTILINE)
        assert codes, block
        assert set(codes) <= {"200"}, block + done.stdout


def test_a_public_address_needs_a_token(tmp_path: Path) -> None:
    server = start(tmp_path / "home", free_port(), tmp_path / "log", "--host", "0.0.0.0")
    assert server.wait(timeout=120) == 2
    assert "there is no token" in (tmp_path / "log").read_text()


def test_the_command_line_loads_no_server_library() -> None:
    names = ["fastapi", "uvicorn", "prometheus_client", "torch", "streamlit"]
    code = f"import sys, json, palomar.app.cli; print(json.dumps([m for m in {names} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
