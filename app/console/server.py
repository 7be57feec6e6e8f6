"""The console as a web application: Streamlit behind a strict content security policy.

Run by `palomar console`, which passes the home in the environment. Nothing is loaded from outside the machine: fonts
and scripts come with Streamlit, usage statistics are off, and the policy below blocks what a hostile transcript might
ask the browser to fetch. Requests that name another host are refused, so that a page elsewhere on the web cannot reach
the console by pointing its own name at this machine (DNS rebinding).
"""

from __future__ import annotations

import base64
import gc
import hashlib
import os
import re
import signal
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import streamlit as st
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from palomar.app import service
from palomar.app.console import options

HERE = Path(__file__).parent
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
PATIENCE_S = 5


def content_security_policy() -> str:
    """The policy, with the hash of the one inline script that Streamlit's own page has."""
    index = (Path(st.__file__).parent / "static" / "index.html").read_text(encoding="utf-8")
    scripts = re.findall(r"<script(?![^>]*\bsrc=)[^>]*>(.*?)</script>", index, flags=re.DOTALL)
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts
    )
    return (
        f"default-src 'self'; script-src 'self' {hashes}; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; worker-src 'self' blob:; "
        "frame-ancestors 'none'; base-uri 'self'; form-action 'self'; object-src 'none'"
    )


class SecurityHeaders:
    """ASGI middleware that adds the headers to every HTTP response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._headers = [
            (b"content-security-policy", content_security_policy().encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on; only the start of a response is touched."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *self._headers]
            await send(message)

        await self._app(scope, receive, send_with_headers if scope["type"] == "http" else send)


def _end_with(parent: int) -> None:
    """Ends this process once `parent` has died, also where that was killed and could not say so."""
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE_S)
    os._exit(1)


@asynccontextmanager
async def _lifespan(_: st.App) -> AsyncIterator[None]:
    parent = os.environ.get(options.PARENT_VARIABLE)
    if parent is not None:
        threading.Thread(target=_end_with, args=(int(parent),), daemon=True).start()
    # What the pages import (`service`) is loaded by now and never becomes garbage; a full collection over it would
    # cost more than a page.
    assert service
    gc.collect()
    gc.freeze()
    yield


def _names() -> list[str]:
    public = os.environ.get(options.PUBLIC_NAME_VARIABLE)
    return [*LOCAL_NAMES, *([public] if public else [])]


app = st.App(
    HERE / "ui.py",
    middleware=[Middleware(SecurityHeaders), Middleware(TrustedHostMiddleware, allowed_hosts=_names())],
    lifespan=_lifespan,
)
