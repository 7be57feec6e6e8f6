"""Settings of the simulated production: who its users are, and what happens to it in a run.

Kept apart from the code they steer, so that a run's config file can be checked without loading the modules.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

from palomar.data.production.grammar import ORGANISATIONS
from palomar.data.schema import UtcTime

_STRICT = ConfigDict(extra="forbid")


def _known_organisations(shares: dict[str, float]) -> dict[str, float]:
    unknown = set(shares) - set(ORGANISATIONS)
    if unknown:
        raise ValueError(f"no organisation {sorted(unknown)[0]!r}; known: {', '.join(ORGANISATIONS)}")
    if sum(shares.values()) <= 0:
        raise ValueError("at least one organisation needs a share above 0")
    return shares


Shares = Annotated[dict[str, Annotated[float, Field(ge=0)]], AfterValidator(_known_organisations)]
"""Relative share of requests by organisation; those left out send none."""

USUAL_SHARES = {"harbor": 0.34, "lumen": 0.26, "quill": 0.22, "ferrous": 0.18}
"""Requests by organisation unless a run says otherwise; ``orchard`` is a customer who may come later."""


@dataclass(frozen=True, config=_STRICT)
class UserChange:
    """From a cycle on, requests come from other organisations, with their kinds of work, difficulty and ambiguity."""

    kind: Literal["users"]
    cycle: Annotated[int, Field(ge=0)]
    """First cycle with the new users."""
    organisations: Shares


@dataclass(frozen=True, config=_STRICT)
class Outage:
    """For some cycles, a share of tool calls or test runs gets no answer. Nobody's fault, least of all the agent's."""

    kind: Literal["outage"]
    cycle: Annotated[int, Field(ge=0)]
    """First cycle hit."""
    what: Literal["tools", "tests"]
    """``tools``: valid calls time out, so that edits are turned down; ``tests``: results are not known."""
    cycles: Annotated[int, Field(ge=1)] = 1
    """How many cycles it lasts."""
    share: Annotated[float, Field(gt=0, le=1)] = 0.8
    """Share of interactions hit."""


@dataclass(frozen=True, config=_STRICT)
class ProductionConfig:
    """The simulated production; the default is the one the shipped base policy was cloned for."""

    organisations: Shares = Field(default_factory=lambda: dict(USUAL_SHARES))
    events: tuple[Annotated[UserChange | Outage, Field(discriminator="kind")], ...] = ()
    start: UtcTime = datetime(2026, 1, 5, tzinfo=UTC)
    """When cycle 0 starts on the simulated clock."""
    cycle_hours: Annotated[float, Field(gt=0)] = 5.0
    """Simulated hours per cycle; requests are spread evenly over them."""
    workers: Annotated[int, Field(ge=1)] = 2
    """Processes that run patched code."""

    def shares(self, cycle: int) -> dict[str, float]:
        """Shares of the organisations in a cycle: those of the last change of users up to it."""
        shares = self.organisations
        for event in sorted((e for e in self.events if isinstance(e, UserChange)), key=lambda e: e.cycle):
            if event.cycle <= cycle:
                shares = event.organisations
        return shares

    def outage(self, cycle: int, what: Literal["tools", "tests"]) -> float:
        """Share of interactions whose tools or tests are down in a cycle; 0 when all is well."""
        return max(
            (
                event.share
                for event in self.events
                if isinstance(event, Outage)
                and event.what == what
                and event.cycle <= cycle < event.cycle + event.cycles
            ),
            default=0.0,
        )
