"""The application: its routes, what surrounds every request, and how it is run."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from palomar import __version__
from palomar.app.api import deciding, errors, intake, reading
from palomar.app.api.errors import Refusal
from palomar.app.api.state import Api

_LOG = logging.getLogger("palomar.api")
_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
]
_METHODS = ("GET", "POST", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS")
_INTAKE = ("/v1/interactions", "/v1/feedback")
_ERROR = {"error": {"code": "not_found", "message": "there is no incident 7", "where": "number"}}


def create_app(api: Api) -> FastAPI:
    """The API on one home."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if api.deriving is not None:
            api.deriving.start()
        yield
        if api.deriving is not None:
            api.deriving.end()

    refusal = {"description": "Refused.", "content": {"application/json": {"schema": errors.SHAPE, "example": _ERROR}}}
    app = FastAPI(
        title="Palomar",
        version=__version__,
        description="Ingest interactions and feedback, ask the gate, read findings and incidents.",
        docs_url=None,  # its page would load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
        default_response_class=errors.PlainJson,
        responses=dict.fromkeys((400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 500, 503), refusal),
        redirect_slashes=False,
    )
    app.state.api = api
    errors.install(app)
    for part in (intake, deciding, reading):
        app.include_router(part.router)
    app.add_middleware(_Surround, api=api)
    describe = app.openapi

    def described() -> dict[str, Any]:
        said = describe()
        said["components"]["schemas"].update(intake.record_schemas())
        return said

    app.openapi = described  # type: ignore[method-assign]
    return app


class _Surround:
    """ASGI middleware: headers of every answer, the size of bodies, and how long it took."""

    def __init__(self, app: ASGIApp, api: Api) -> None:
        self._app = app
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most = self._api.limits.body_bytes if scope["path"] in _INTAKE else self._api.limits.small_body_bytes
        began, status, size, begun = time.perf_counter(), 500, 0, False

        async def limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > most:
                raise Refusal(413, f"a body of more than {most // 1024:,} KiB", where="body")
            return message

        async def answered(message: Message) -> None:
            nonlocal status, begun
            if message["type"] == "http.response.start":
                status, begun = message["status"], True
                message["headers"] = [*message.get("headers", []), *_HEADERS]
            await send(message)

        try:
            declared = dict(scope["headers"]).get(b"content-length", b"0")
            if declared.isdigit() and int(declared[:19]) > most:
                refusal = errors.refused(413, "too_large", f"a body of more than {most // 1024:,} KiB", "body", None)
                await refusal(scope, limited, answered)
            else:
                await self._app(scope, limited, answered)
        except Exception:
            # Not in a handler of its own: that would be called outside of this, and its answer lack the headers.
            _LOG.exception("a request could not be answered")
            if not begun:
                await errors.internal()(scope, limited, answered)
        finally:
            method = scope["method"] if scope["method"] in _METHODS else "other"
            route = getattr(scope.get("route"), "path", "other")
            self._api.meter.seconds.labels(method, route, str(status)).observe(time.perf_counter() - began)


def serve(api: Api, host: str, port: int) -> None:
    """Runs the API until it is interrupted; what is under way is finished first."""
    import uvicorn

    uvicorn.run(
        create_app(api),
        host=host,
        port=port,
        log_level="warning",
        server_header=False,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=30,
        h11_max_incomplete_event_size=32 * 1024,
    )
