"""Pages that other tools made (Evidently's report), handed to the browser in a sandbox of their own.

Such a page has scripts, and may hold words that an agent or user wrote. So it is never part of a page of ours. It lies
in a frame of a bare document:

- the frame is a sandbox (``allow-scripts`` and no more): the page has an origin of its own, reads no cookie and nothing
  of the console's, opens no window and cannot leave with the tab;
- the page's own content security policy lets it fetch and send nothing;
- that of the bare document lets the frame go nowhere else: a page on its own could still turn to another address, and
  tell it what it knows.

Its address has a ticket that only a page of the console gives out, to whoever may read that page: it cannot be guessed,
names one file, and runs out. So no second check of who asks is needed here.

Not covered: WebRTC, which no policy that browsers know forbids.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

MOST_TICKETS = 256
LIFE_S = 3_600.0
PREFIX = "handed"
POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval' blob: data:; "
    "style-src 'unsafe-inline' data:; img-src data: blob:; font-src data:; worker-src blob:; connect-src 'none'; "
    "form-action 'none'; frame-ancestors 'self'; base-uri 'none'"
)
"""Of the page."""
FRAME_POLICY = (
    "default-src 'none'; frame-src 'self'; style-src 'unsafe-inline'; form-action 'none'; frame-ancestors 'none'; "
    "base-uri 'none'"
)
"""Of the bare document round it."""
_FRAME = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Report in a sandbox</title>
<style>html, body, iframe {{ margin: 0; width: 100%; height: 100%; border: 0; display: block }}
iframe {{ background: #fff }}</style>
</head><body><iframe sandbox="allow-scripts" title="Report" src="{ticket}/page"></iframe></body></html>
"""
_HEADERS = {"cache-control": "no-store", "x-dns-prefetch-control": "off"}

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


async def _frame(request: Request) -> Response:
    drawn = request.path_params["ticket"]
    if _path_of(drawn) is None:
        return PlainTextResponse("this link has run out; open it from the console again\n", 404)
    # Only a ticket that we drew gets here, so that nothing of the address stands in the document but that.
    return HTMLResponse(_FRAME.format(ticket=drawn), headers={"content-security-policy": FRAME_POLICY, **_HEADERS})


async def _page(request: Request) -> Response:
    path = _path_of(request.path_params["ticket"])
    if path is None:
        return PlainTextResponse("this link has run out; open it from the console again\n", 404)
    if request.headers.get("sec-fetch-dest", "iframe") != "iframe":
        return PlainTextResponse("this page is shown in its frame only\n", 403)
    try:
        body = await run_in_threadpool(path.read_bytes)
    except OSError:
        return PlainTextResponse("the page has gone\n", 404)
    return HTMLResponse(body, headers={"content-security-policy": POLICY, **_HEADERS})


ROUTES = [
    Route(f"/{PREFIX}/{{ticket}}", _frame, methods=["GET"]),
    Route(f"/{PREFIX}/{{ticket}}/page", _page, methods=["GET"]),
]
"""For the console's web application."""
