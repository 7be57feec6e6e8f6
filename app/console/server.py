"""The console as a web application: Streamlit behind a strict content security policy.

Run by `palomar console`, which passes the home in the environment. Nothing is loaded from outside the machine: fonts
and scripts come with Streamlit, usage statistics are off, and the policy below blocks what a hostile transcript might
ask the browser to fetch. Requests that name another host are refused, so that a page elsewhere on the web cannot reach
the console by pointing its own name at this machine (DNS rebinding).
"""

from __future__ import annotations

import base64
import contextlib
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

from palomar.app import jobs, service
from palomar.app.console import handing, options
from palomar.app.console.signing import SignIn, sign_in
from palomar.data.errors import PalomarError

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
                given = [(bytes(name).lower(), value) for name, value in message.get("headers", [])]
                # A page that is handed out in a sandbox has a stricter policy of its own; two would both be applied.
                own = {name for name, _ in given}
                message["headers"] = [*given, *(each for each in self._headers if each[0] not in own)]
            await send(message)

        await self._app(scope, receive, send_with_headers if scope["type"] == "http" else send)


HEALTH = "/_stcore/health"


class Guard:
    """ASGI middleware of the proxy mode: what did not come through the proxy, with a name, reaches nothing.

    The address is that of the connection: `palomar console` tells uvicorn to believe no header about it. A name that is
    there twice is refused, since a proxy that only adds its header lets its client choose the first. Whether the server
    is up may be asked from anywhere that may connect.
    """

    def __init__(self, app: ASGIApp, how: SignIn) -> None:
        self._app, self._how = app, how

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on what comes from the proxy; answers 403 to another address, 401 without one name."""
        if scope["type"] in ("http", "websocket") and (problem := self.problem(scope)) is not None:
            await self._refuse(*problem, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def problem(self, scope: Scope) -> tuple[int, str] | None:
        """Why a request is refused; None: it is not."""
        peer = (scope.get("client") or ("", 0))[0]
        if scope.get("path") == HEALTH:
            return None
        if not self._how.trusts(peer):
            return 403, "this console is reached through its proxy only"
        wanted = (self._how.user_header or "").lower().encode()
        named = [value for name, value in scope.get("headers", []) if name.lower() == wanted]
        if len(named) != 1 or not named[0].strip():
            return 401, "the proxy did not say who you are"
        return None

    @staticmethod
    async def _refuse(status: int, words: str, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": words})
            return
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": f"{words}\n".encode()})


def _go_on_with_jobs() -> None:
    """Goes on with what was asked for before the console was closed, and fails what died with it."""
    home, url = Path(os.environ.get(options.HOME_VARIABLE, ".palomar")), os.environ.get(options.STORE_VARIABLE) or None
    observatory = service.Observatory(home, url)
    if observatory.has_store:
        with contextlib.suppress(PalomarError):  # each page says what is the matter with its store
            jobs.runner_of(home, url).look(observatory.store)
            observatory.reopen()


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
    threading.Thread(target=_go_on_with_jobs, daemon=True).start()
    yield
    jobs.close_runners()


def _names() -> list[str]:
    public = os.environ.get(options.PUBLIC_NAME_VARIABLE)
    return [*LOCAL_NAMES, *([public] if public else [])]


HOW = sign_in()
app = st.App(
    HERE / "ui.py",
    middleware=[
        Middleware(SecurityHeaders),
        Middleware(TrustedHostMiddleware, allowed_hosts=_names()),
        *([Middleware(Guard, how=HOW)] if HOW.mode == "proxy" else []),
    ],
    routes=handing.ROUTES,
    lifespan=_lifespan,
)
