"""Whom a run tells of its decisions and incidents: the key `notify` of `palomar.yaml`.

URLs and secrets are read from environment variables, whose names stand in the file: an address of a Slack channel is a
secret as well.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from palomar.data.errors import ConfigError

Event = Literal["promote", "hold", "block", "rollback", "incident"]
ALL_EVENTS: tuple[Event, ...] = ("promote", "hold", "block", "rollback", "incident")
EnvironmentName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")]


class _Channel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
    """Names it in the store; another name is another channel, which begins at the moment."""
    events: Annotated[tuple[Event, ...], Field(min_length=1)] = ALL_EVENTS
    """What it is told: decisions by verdict, champions that were taken back, incidents that changed their state."""


class WebhookChannel(_Channel):
    """JSON by POST."""

    kind: Literal["webhook"]
    url_env: EnvironmentName
    """Environment variable that holds the URL."""
    secret_env: EnvironmentName | None = None
    """Environment variable that holds the secret to sign with; without one, messages are not signed."""


class SlackChannel(_Channel):
    """An incoming webhook of Slack."""

    kind: Literal["slack"]
    url_env: EnvironmentName
    events: Annotated[tuple[Event, ...], Field(min_length=1)] = ("promote", "block", "rollback", "incident")


def _not_reserved(alias: str) -> str:
    """The alias; ValueError for one that MLflow keeps for itself: ``latest``, and ``v`` with a number."""
    if alias == "latest" or re.fullmatch(r"v\d+", alias):
        raise ValueError(f"{alias!r} is a name that MLflow keeps for itself")
    return alias


class MlflowChannel(_Channel):
    """A registered model of MLflow: its versions get tags, and the alias moves to what was promoted."""

    kind: Literal["mlflow"]
    model: Annotated[str, Field(min_length=1, pattern=r"^[^/:.%\"'\x00-\x1f]+$")]
    """Name of the registered model; made where it is not there."""
    uri_env: EnvironmentName = "MLFLOW_TRACKING_URI"
    """Environment variable that holds the registry's URI."""
    alias: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$"), AfterValidator(_not_reserved)] = "champion"
    source: str | None = None
    """Where a version's files are, with ``{checkpoint}`` in it: ``s3://bucket/run/{checkpoint}``. None: in the home,
    which a registry on another machine refuses."""
    events: Annotated[tuple[Event, ...], Field(min_length=1)] = ("promote", "hold", "block", "rollback")


Channel = Annotated[WebhookChannel | SlackChannel | MlflowChannel, Field(discriminator="kind")]


def names_are_distinct(channels: Sequence[Channel]) -> Sequence[Channel]:
    """The channels; ValueError where two share a name."""
    for name, count in Counter(each.name for each in channels).items():
        if count > 1:
            raise ValueError(f"{count} channels are called {name!r}")
    return channels


def value_of(environment: Mapping[str, str], channel: _Channel, name: str) -> str:
    """A channel's environment variable. Raises ConfigError where it is not set."""
    value = environment.get(name, "").strip()
    if not value:
        raise ConfigError(f"notify.{channel.name}", None, None, f"the environment variable {name} is not set")
    return value


def url_of(environment: Mapping[str, str], channel: _Channel, name: str) -> str:
    """A channel's URL. Raises ConfigError, which does not repeat it: it may hold a secret."""
    value = value_of(environment, channel, name)
    try:
        parts = urlsplit(value)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        good = False
    if not good or any(ord(character) <= 32 or ord(character) > 126 for character in value):
        raise ConfigError(f"notify.{channel.name}", None, None, f"{name} holds no http or https URL")
    return value
