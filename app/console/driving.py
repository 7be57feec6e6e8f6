"""Driving the console with a headless Chromium: for pictures, for timing clicks, and for tests.

Chromium is Debian's (`apt-get install chromium`), driven by playwright; both are for development only.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palomar.app.cli.console import await_console, start_console, stop_console

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = "chromium"
FLAGS = [
    "--no-sandbox",
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE_MS = 120_000
QUIET_MS = 1_000


@contextmanager
def browser() -> Iterator[Browser]:
    """A headless Chromium. Raises FileNotFoundError where there is none."""
    from playwright.sync_api import sync_playwright

    executable = shutil.which(CHROMIUM)
    if executable is None:
        raise FileNotFoundError(f"no {CHROMIUM} on this machine; on Debian: apt-get install {CHROMIUM}")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        try:
            yield opened
        finally:
            opened.close()


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def served(home: Path, log: Path | None = None, port: int | None = None, **more: Any) -> Iterator[str]:
    """A console on the home, on a free port unless one is given; its URL. `more` is for `start_console`."""
    port = free_port() if port is None else port
    server = start_console(home, None, port, log=log, **more)
    try:
        await_console(server, port, log=log)
        yield f"http://localhost:{port}"
    finally:
        stop_console(server)


def settle(page: Page, quiet_ms: int = QUIET_MS) -> None:
    """Waits until the page has run and drawn what it has.

    By locators only: the content security policy refuses scripts given as strings, playwright's too.
    """
    page.get_by_test_id("stApp").locator("h1").first.wait_for(timeout=PATIENCE_MS)
    for busy in ("stStatusWidget", "stSkeleton"):
        for _ in range(PATIENCE_MS // 250):
            if page.get_by_test_id(busy).count() == 0:
                break
            page.wait_for_timeout(250)
    page.wait_for_timeout(quiet_ms)
