"""The console as a web application: Streamlit behind a strict content security policy.

Run by `palomar console`, which passes the home in the environment. Nothing is loaded from outside the machine: fonts
and scripts come with Streamlit, usage statistics are off, and the policy below blocks what a hostile transcript might
ask the browser to fetch.
"""

from __future__ import annotations

import base64
import gc
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import streamlit as st
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HERE = Path(__file__).parent


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


@asynccontextmanager
async def _lifespan(_: st.App) -> AsyncIterator[None]:
    # A full collection over all imported objects costs more than a page; what is imported never becomes garbage.
    gc.collect()
    gc.freeze()
    yield


app = st.App(HERE / "ui.py", middleware=[Middleware(SecurityHeaders)], lifespan=_lifespan)
