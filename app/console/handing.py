"""Pages that other tools made (Evidently's report), handed to the browser in a sandbox of their own.

Such a page has scripts, and may hold words that an agent or user wrote. So it is never part of a page of ours: it is a
document of its own, whose content security policy gives it an origin of its own (``sandbox allow-scripts``: it reads no
cookie and nothing of the console's) and no way out (``default-src 'none'``; it can neither fetch nor send, nor open a
window or send a form).

Its address has a ticket that only a page of the console gives out, to whoever may read that page: it cannot be guessed,
names one file, and runs out. So no second check of who asks is needed here.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

MOST_TICKETS = 256
LIFE_S = 3_600.0
PREFIX = "handed"
POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval' blob: data:; "
    "style-src 'unsafe-inline' data:; img-src data: blob:; font-src data:; worker-src blob:; connect-src 'none'; "
    "form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
)

_lock = threading.Lock()
_tickets: OrderedDict[str, tuple[Path, float]] = OrderedDict()


def ticket(path: Path) -> str:
    """Address, relative to the console's root, under which a file can be read for an hour; the same while it lives."""
    now = time.monotonic()
    with _lock:
        for known, (of, until) in _tickets.items():
            if of == path and until - now > LIFE_S / 2:
                return f"{PREFIX}/{known}"
        drawn = secrets.token_urlsafe(24)
        _tickets[drawn] = (path, now + LIFE_S)
        while len(_tickets) > MOST_TICKETS:
            _tickets.popitem(last=False)
    return f"{PREFIX}/{drawn}"


def _path_of(drawn: str) -> Path | None:
    with _lock:
        path, until = _tickets.get(drawn, (None, 0.0))
    return path if time.monotonic() < until else None


async def _hand(request: Request) -> Response:
    path = _path_of(request.path_params["ticket"])
    if path is None:
        return PlainTextResponse("this link has run out; open it from the console again\n", 404)
    try:
        body = await run_in_threadpool(path.read_bytes)
    except OSError:
        return PlainTextResponse("the page has gone\n", 404)
    headers = {"content-security-policy": POLICY, "cache-control": "no-store", "x-frame-options": "DENY"}
    return Response(body, media_type="text/html; charset=utf-8", headers=headers)


ROUTES = [Route(f"/{PREFIX}/{{ticket}}", _hand, methods=["GET"])]
"""For the console's web application."""
