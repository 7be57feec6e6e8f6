"""Who may do what: a bearer token with roles, looked up at each request, so that a revoked one ends at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from palomar.app.api.errors import Refusal
from palomar.app.api.state import Api
from palomar.data.store.records import ApiToken, TokenRole
from palomar.data.store.tokens import problem_of

_BEARER = HTTPBearer(auto_error=False, description="A token of `palomar token create`.")
_ALSO: dict[TokenRole, tuple[TokenRole, ...]] = {
    "ingest": ("ingest", "admin"),
    "read": ("read", "decide", "admin"),
    "decide": ("decide", "admin"),
    "admin": ("admin",),
}
"""Which roles suffice for what one role may do."""


def api_of(request: Request) -> Api:
    """What the server holds."""
    api: Api = request.app.state.api
    return api


def may(token: ApiToken, role: TokenRole) -> bool:
    """Whether the token has the role, or one that holds it."""
    return any(each in _ALSO[role] for each in token.roles)


def require(token: ApiToken, role: TokenRole) -> None:
    """Raises Refusal (403) where the token may not."""
    if not may(token, role):
        raise Refusal(403, f"the token {token.name!r} has not the role {role}")


def allowed(role: TokenRole) -> Callable[..., ApiToken]:
    """A dependency that lets a token of that role pass and gives it. Raises Refusal: 401, 403 or 429."""

    def check(request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]) -> ApiToken:
        api = api_of(request)
        if given is None:
            raise _unknown("send a token: 'Authorization: Bearer ...'")
        token = api.store.tokens.of(given.credentials)
        if token is None:
            raise _unknown("there is no such token")
        if problem := problem_of(token):
            raise _unknown(f"the token is {problem}")
        try:
            api.rate.take(token.token_id)
        except Refusal:
            api.meter.pushed_back.labels("rate").inc()
            raise
        require(token, role)
        return token

    return check


Ingests = Annotated[ApiToken, Depends(allowed("ingest"))]
Reads = Annotated[ApiToken, Depends(allowed("read"))]
Decides = Annotated[ApiToken, Depends(allowed("decide"))]
Administers = Annotated[ApiToken, Depends(allowed("admin"))]
Served = Annotated[Api, Depends(api_of)]


def _unknown(message: str) -> Refusal:
    return Refusal(401, message, where="Authorization", headers={"WWW-Authenticate": "Bearer"})
