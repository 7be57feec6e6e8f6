"""`palomar console`: the Streamlit console on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from palomar.app.cli.output import Home, StoreUrl, notes
from palomar.app.settings import DEFAULT_HOME

PORT = 8501


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("console")(console)


def console(
    port: Annotated[int, typer.Option(help="Port on this machine.")] = PORT,
    home: Home = None,
    store_url: StoreUrl = None,
) -> None:
    """Open the console on http://localhost:8501 until interrupted."""
    server = start_console(home or DEFAULT_HOME, store_url, port)
    notes.print(f"console: http://localhost:{port} (for you alone, on this machine); Ctrl-C ends it")
    try:
        raise typer.Exit(server.wait())
    finally:
        stop_console(server)


def start_console(home: Path, store_url: str | None, port: int) -> subprocess.Popen[bytes]:
    """The console as a child process that listens on this machine only."""
    # Found without importing it: the command line need not load streamlit.
    package = find_spec("palomar.app.console")
    assert package is not None
    assert package.origin is not None
    environment = {**os.environ, "PALOMAR_HOME": str(home.absolute())}
    if store_url is not None:
        environment["PALOMAR_STORE"] = store_url
    options = {
        "server.headless": "true",
        "server.address": "127.0.0.1",
        "server.port": str(port),
        "server.fileWatcherType": "none",
        "browser.gatherUsageStats": "false",
        "browser.serverAddress": "localhost",
        "client.showErrorDetails": "type",
        "client.showErrorLinks": "false",
        "client.toolbarMode": "viewer",
        "runner.postScriptGC": "false",
    }
    flags = [flag for name, value in options.items() for flag in (f"--{name}", value)]
    script = Path(package.origin).with_name("server.py")
    return subprocess.Popen(
        [sys.executable, "-m", "streamlit", "run", str(script), *flags],
        env=environment,
        stdout=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
    )


def stop_console(server: subprocess.Popen[bytes]) -> None:
    """Ends the child process."""
    if server.poll() is None:
        server.terminate()
        try:
            server.wait(timeout=5)
        except subprocess.TimeoutExpired:
            server.kill()
