"""`palomar console`: the Streamlit console on this machine."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Annotated

import typer

from palomar.app.cli.output import Home, StoreUrl, notes
from palomar.app.console import options
from palomar.app.console.options import HOST, PORT
from palomar.app.settings import DEFAULT_HOME
from palomar.data.errors import ConfigError

START_S = 120
"""How long the console may take to answer; a crowded machine needs several times the usual two seconds."""
LOG_TAIL = 2_000
"""Characters of its log that are shown when it ends by itself."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("console")(console)


def console(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on this machine.")] = PORT,
    public_name: Annotated[
        str | None, typer.Option(help="Name of the reverse proxy that people reach it by; see docs/console.md.")
    ] = None,
    home: Home = None,
    store_url: StoreUrl = None,
) -> None:
    """Open the console on http://localhost:8501 until interrupted."""
    server = start_console(home or DEFAULT_HOME, store_url, port, public_name=public_name)
    try:
        await_console(server, port)
        notes.print(f"console: http://localhost:{port} (for you alone, on this machine); Ctrl-C ends it")
        keep_open(server)
    except KeyboardInterrupt:
        pass  # how it ends well, also before `keep_open` waits for it
    finally:
        stop_console(server)


def require_port(port: int) -> None:
    """Raises ConfigError where something listens on the port already, or we may not."""
    # A browser may try either for "localhost", so both must be free.
    for family, address in ((socket.AF_INET, HOST), (socket.AF_INET6, "::1")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind((address, port))
        except OSError as exc:
            if exc.errno == errno.EADDRINUSE:
                problem = f"{port} is in use by another program; stop that, or choose another port"
                raise ConfigError("--port", None, None, problem) from exc
            if family == socket.AF_INET:
                raise ConfigError("--port", None, None, f"{port} cannot be used: {exc.strerror}") from exc
            # No IPv6 on this machine: then nobody reaches anything by it.


def start_console(
    home: Path, store_url: str | None, port: int, *, log: Path | None = None, public_name: str | None = None
) -> subprocess.Popen[bytes]:
    """The console as a child process that listens on this machine only; it ends when this process does, killed or not.

    What it has to say goes to `log`, without one to this process's standard error. Raises ConfigError where the port
    is taken.
    """
    require_port(port)
    environment = {
        **os.environ,
        options.HOME_VARIABLE: str(home.absolute()),
        options.PARENT_VARIABLE: str(os.getpid()),
        **({} if store_url is None else {options.STORE_VARIABLE: store_url}),
        **({} if public_name is None else {options.PUBLIC_NAME_VARIABLE: public_name}),
    }
    command = [sys.executable, "-m", "streamlit", *options.arguments(port, public_name)]
    if log is None:
        return _child(command, environment, None)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as written:
        return _child(command, environment, written.fileno())


def _child(command: list[str], environment: dict[str, str], stderr: int | None) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C reaches this process only, which then ends the console in good order.
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        start_new_session=True,
    )


def await_console(server: subprocess.Popen[bytes], port: int, *, log: Path | None = None) -> None:
    """Returns once the console answers. Raises ConfigError with the end of its log where it ends or stays silent."""
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        code = server.poll()
        if code is not None:
            raise ConfigError("console", None, None, f"ended by itself with exit code {code}{_tail(log)}")
        if _answers(port):
            return
        time.sleep(0.1)
    raise ConfigError("console", None, None, f"has not answered on port {port} for {START_S} s{_tail(log)}")


def announce_console(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Says, from beside the work that goes on, when the console answers, or why it will not."""

    def tell() -> None:
        try:
            await_console(server, port, log=log)
        except ConfigError as exc:
            notes.print(f"no console: {exc}", soft_wrap=True)
        else:
            notes.print(f"console: http://localhost:{port}")

    threading.Thread(target=tell, daemon=True).start()


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/_stcore/health", timeout=1) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _tail(log: Path | None) -> str:
    if log is None:
        return "; see above"
    text = log.read_text(encoding="utf-8", errors="replace").strip()
    return f"; {log} ends with:\n{text[-LOG_TAIL:]}" if text else f"; {log} is empty"


def keep_open(server: subprocess.Popen[bytes], *, log: Path | None = None) -> None:
    """Waits until the person ends the console with Ctrl-C, which is how it ends well. Else raises ConfigError."""
    try:
        code = server.wait()
    except KeyboardInterrupt:
        return
    raise ConfigError("console", None, None, f"ended by itself with exit code {code}{_tail(log)}")


def stop_console(server: subprocess.Popen[bytes]) -> None:
    """Ends the child process."""
    if server.poll() is None:
        server.terminate()
        try:
            server.wait(timeout=5)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
