"""`palomar console` as a process: its port, its end, and what is said when it cannot start."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from palomar.app.cli import console
from palomar.app.console import options
from palomar.data.errors import ConfigError

PATIENCE_S = 180


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that something listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield int(listener.getsockname()[1])


@pytest.fixture
def free() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def palomar(*arguments: str, home: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", "from palomar.app.cli import main; main()", *arguments, "--home", str(home)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def listening(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


def wait_for(port: int, *, up: bool) -> None:
    until = time.monotonic() + PATIENCE_S
    while listening(port) != up:
        assert time.monotonic() < until, f"port {port} is {'not ' if up else ''}up after {PATIENCE_S} s"
        time.sleep(0.1)


@pytest.mark.parametrize("command", ["console", "demo"])
def test_a_port_in_use_is_named_before_anything_is_begun(tmp_path: Path, taken: int, command: str) -> None:
    home = tmp_path / "home"
    process = palomar(command, "--port", str(taken), home=home)
    stdout, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2, stderr
    assert stderr == f"error: --port: {taken} is in use by another program; stop that, or choose another port\n"
    assert stdout == ""
    assert not home.exists()


def test_a_port_that_nobody_holds_is_free_and_one_of_ipv6_counts_too(free: int) -> None:
    console.require_port(free)
    try:
        listener = socket.create_server(("::1", free), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 on this machine")
    with listener, pytest.raises(ConfigError, match=f"{free} is in use"):
        console.require_port(free)


def test_a_console_that_cannot_start_says_why(tmp_path: Path, free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "OPTIONS", {"server.noSuchOption": "1"})
    log = tmp_path / "home" / "console.log"
    server = console.start_console(tmp_path / "home", None, free, log=log)
    with pytest.raises(ConfigError) as failed:
        console.await_console(server, free, log=log)
    assert "ended by itself with exit code 2" in str(failed.value)
    assert "noSuchOption" in str(failed.value).split(str(log))[1]


@pytest.mark.slow
def test_the_console_says_its_address_and_ends_well_on_ctrl_c(tmp_path: Path, free: int) -> None:
    process = palomar("console", "--port", str(free), home=tmp_path / "home")
    assert process.stderr is not None
    line = process.stderr.readline()
    assert f"http://localhost:{free}" in line
    assert listening(free)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert process.wait(timeout=PATIENCE_S) == 0
    wait_for(free, up=False)
    assert process.stderr.read() == ""


@pytest.mark.slow
def test_the_console_does_not_outlive_a_parent_that_is_killed(tmp_path: Path, free: int) -> None:
    process = palomar("console", "--port", str(free), home=tmp_path / "home")
    wait_for(free, up=True)
    process.kill()  # SIGKILL: it cannot tell its child
    process.wait(timeout=PATIENCE_S)
    wait_for(free, up=False)
