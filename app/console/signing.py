"""How people sign in to the console, and what each may do: chosen when it is started, and fixed until it ends.

``local``: one person on their own machine, who may do everything. ``oidc``: an OpenID Connect provider says who it is.
``proxy``: a reverse proxy does, in a header; such a header counts only where it comes from an address that is allowed,
and without it nobody is let in. Who may do what stands in a file of roles:

    default: [read]                  # whoever has signed in; left out: nothing
    people:                          # by the name that signs in
      ada@example.org: [decide]
    groups:                          # by what the claim (or, behind a proxy, the header of groups) holds
      reward-engineers: [decide]
      operators: [admin]
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Collection, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from palomar.data.config import read_config
from palomar.data.errors import ConfigError

Mode = Literal["local", "oidc", "proxy"]
Role = Literal["read", "decide", "admin"]
"""``read`` looks; ``decide`` acknowledges, labels, patches and asks the gate; ``admin`` may do all of it."""
ALSO: Mapping[Role, tuple[Role, ...]] = {
    "read": ("read", "decide", "admin"),
    "decide": ("decide", "admin"),
    "admin": ("admin",),
}
"""Which roles suffice for what one role may do, as for tokens of the API."""
VARIABLE = "PALOMAR_CONSOLE_SIGN_IN"
"""Where the console's process finds its `SignIn`, as JSON."""
LOOPBACK = ("127.0.0.0/8", "::1/128")

_Header = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9-]{0,63}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Roles(_Strict):
    """Who may do what."""

    default: tuple[Role, ...] = ()
    """Of whoever has signed in; none: somebody who is not named sees nothing."""
    people: Mapping[str, tuple[Role, ...]] = {}
    groups: Mapping[str, tuple[Role, ...]] = {}

    def of(self, name: str, groups: Collection[str]) -> frozenset[Role]:
        """All roles of a person, from everything that names them. Names are compared exactly."""
        found = {*self.default, *self.people.get(name, ())}
        return frozenset(found.union(*(self.groups.get(group, ()) for group in groups)))


EVERYBODY_READS = Roles(default=("read",))
"""Without a file of roles: whoever signs in may look, and nobody may write."""


class SignIn(_Strict):
    """How people sign in."""

    mode: Mode = "local"
    roles: Roles = EVERYBODY_READS
    name_claim: str = "email"
    """OIDC: the claim that is the actor of all that a person does."""
    groups_claim: str | None = None
    """OIDC: the claim that holds a person's groups; none: roles go by name."""
    user_header: _Header | None = None
    """Proxy: the header that names who it is."""
    groups_header: _Header | None = None
    """Proxy: the header that names their groups, with commas between."""
    peers: tuple[str, ...] = LOOPBACK
    """Proxy: addresses or networks that the proxy speaks from; whoever else connects is refused."""

    @field_validator("peers")
    @classmethod
    def _networks(cls, peers: tuple[str, ...]) -> tuple[str, ...]:
        for peer in peers:
            ipaddress.ip_network(peer, strict=False)
        return peers

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.mode == "proxy") != (self.user_header is not None):
            raise ValueError("--user-header belongs to --sign-in proxy, which needs it")
        if self.groups_header is not None and self.mode != "proxy":
            raise ValueError("--groups-header belongs to --sign-in proxy")
        if self.groups_claim is not None and self.mode != "oidc":
            raise ValueError("--groups-claim belongs to --sign-in oidc")
        return self

    def trusts(self, peer: str | None) -> bool:
        """Whether a header that came from this address counts."""
        try:
            address = ipaddress.ip_address(peer or "")
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return any((mapped or address) in ipaddress.ip_network(each, strict=False) for each in self.peers)


def sign_in() -> SignIn:
    """How people sign in to this process; ``local`` where nothing was said."""
    return _parsed(os.environ.get(VARIABLE, ""))


@lru_cache(maxsize=8)
def _parsed(text: str) -> SignIn:
    return SignIn.model_validate_json(text) if text else SignIn()


def made(**given: object) -> SignIn:
    """A `SignIn` of what was given on the command line; None is left out. Raises ConfigError where it is none."""
    try:
        return SignIn.model_validate({name: value for name, value in given.items() if value is not None})
    except ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(map(str, first["loc"]))
        problem = str(first["msg"]).removeprefix("Value error, ")
        raise ConfigError("--sign-in", None, None, f"{where}: {problem}" if where else problem) from exc


def read_roles(path: Path) -> Roles:
    """The file of roles. Raises ConfigError with file, line and key."""
    roles = read_config(path, Roles)
    if not (roles.default or roles.people or roles.groups):
        raise ConfigError(str(path), None, None, f"names nobody; roles are {', '.join(get_args(Role))}")
    return roles
