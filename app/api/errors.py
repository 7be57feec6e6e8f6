"""Every refusal as one JSON object: ``{"error": {"code", "message", "where"}}``, without traces, paths or passwords."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException

from palomar.app.plain import plain_json
from palomar.data.errors import LakeError, PalomarError, StoreError

_LOG = logging.getLogger("palomar.api")
RETRY_S = 5
"""What ``Retry-After`` says where nothing better is known."""
_CODES = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "too_slow",
    409: "refused",
    411: "length_required",
    413: "too_large",
    415: "unsupported_media_type",
    422: "invalid",
    429: "too_many_requests",
    500: "internal",
    503: "unavailable",
}
SHAPE: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "additionalProperties": False,
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "where"],
            "additionalProperties": False,
            "properties": {
                "code": {"type": "string"},
                "message": {"type": "string"},
                "where": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            },
        }
    },
}
"""JSON schema of every refusal."""
_MESSAGES = {404: "there is nothing here", 405: "this address does not take that method"}


class Refusal(HTTPException):
    """A request that is not done, and why. ``where``: field, header or record that it is about."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        where: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, dict(headers or {}))
        self.code = code or _CODES[status]
        self.where = where


def later(message: str, *, code: str, seconds: float = RETRY_S, status: int = 503) -> Refusal:
    """A refusal that ends by itself: the same request is worth another try after so many seconds."""
    return Refusal(status, message, code=code, headers={"Retry-After": str(max(1, round(seconds + 0.5)))})


class PlainJson(JSONResponse):
    """JSON as the command line prints it."""

    def render(self, content: Any) -> bytes:
        """The bytes."""
        return plain_json(content)


def refused(status: int, code: str, message: str, where: str | None, headers: Mapping[str, str] | None) -> Response:
    """The one shape."""
    return PlainJson({"error": {"code": code, "message": message, "where": where}}, status, headers=dict(headers or {}))


def install(app: FastAPI) -> None:
    """Lets the application answer every error in the one shape."""
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(StoreError, _store)
    app.add_exception_handler(LakeError, _unreadable)
    app.add_exception_handler(PalomarError, _bug)


def _http(_: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    if isinstance(exc, Refusal):
        return refused(exc.status_code, exc.code, exc.detail, exc.where, exc.headers)
    message = _MESSAGES.get(exc.status_code, "the request cannot be read" if exc.status_code < 500 else "refused")
    return refused(exc.status_code, _CODES.get(exc.status_code, "refused"), message, None, exc.headers)


def _invalid(_: Request, exc: Exception) -> Response:
    assert isinstance(exc, RequestValidationError)
    first = exc.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return refused(422, "invalid", str(first["msg"]), where, None)


def _store(request: Request, exc: Exception) -> Response:
    """A write that the store's rules refuse is 409; a store that does not answer is 503, and worth another try."""
    assert isinstance(exc, StoreError)
    api = request.app.state.api
    if isinstance(exc.__cause__, SQLAlchemyError) or not api.store_answers():
        _LOG.warning("the store does not answer: %s", exc)
        api.observatory.reopen()
        return _http(request, later("the store does not answer", code="store_unavailable"))
    return refused(409, "refused", exc.problem.replace(str(api.observatory.home), "the home"), None, None)


def _unreadable(request: Request, exc: Exception) -> Response:
    _LOG.warning("the lake does not answer: %s", exc)
    return _http(request, later("the lake cannot be read or written now", code="lake_unavailable"))


def _bug(_: Request, exc: Exception) -> Response:
    _LOG.error("unexpected: %s", exc)
    return internal()


def internal() -> Response:
    """The refusal that stands for a fault of ours."""
    return refused(500, "internal", "this could not be answered; the server's log says why", None, None)
