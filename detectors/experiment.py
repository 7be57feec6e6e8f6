"""What an experiment is, and what it says: the effect of each metric between arms, and whether to believe it.

An experiment serves two checkpoints (and perhaps a frozen anchor) to users drawn at random. Its plan is written before
it begins; its report is what the gate reads. Everything is counted per *unit* of randomisation, the user, never per
interaction. `palomar.detectors.arms` computes the report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from palomar.data.clock import HORIZONS, Horizon
from palomar.data.schema import Traffic
from palomar.detectors.confidence import Contrast, one_sided, tuned

Better = Literal["up", "down", "none"]
EffectStatus = Literal["known", "immature", "too_few", "invalid"]
ValidityStatus = Literal["pass", "fail", "unknown"]
Role = Literal["control", "anchor", "treatment"]
UnitOf = Literal["user", "organisation", "conversation"]

_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


# -- the plan --------------------------------------------------------------------------------------------------------


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ArmPlan(_Strict):
    """One arm."""

    checkpoint: Annotated[str, Field(min_length=1)]
    """Identifier of the checkpoint it serves, as on its interactions."""
    share: Annotated[float, Field(gt=0, le=1)]
    """Share of the units that are drawn into it; they add up to 1 over the arms."""
    role: Role
    """``control``: the champion; ``anchor``: an earlier champion kept fixed; ``treatment``: what is tried. Every
    treatment is compared with the control and with the anchor."""


class Plan(_Strict):
    """An experiment, as its file says it. What decides on error rates is fixed before it begins."""

    name: _Name
    """It also seeds the drawing of units into arms."""
    arms: Annotated[dict[_Name, ArmPlan], Field(min_length=2)]
    """As interactions name them."""
    planned_units: Annotated[int, Field(ge=20)]
    """Units in all arms together by which a decision is wanted: intervals are narrowest there. Not to be changed on the
    way."""
    unit: UnitOf = "user"
    """What is drawn into arms."""
    alpha: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    """Error of each metric's interval over the whole experiment, however often one looks."""
    horizon: str = "90m"
    """At which edits count as kept: ``30m``, ``90m`` or ``1d``."""
    metrics: tuple[str, ...] = ()
    """Names of statistics (docs/statistics.md); without: those of `palomar.detectors.arms.metrics_of`."""
    traffic: Annotated[tuple[Traffic, ...], Field(min_length=1)] = ("production", "canary")
    """Kinds of traffic that belong to it."""
    first_cycle: Annotated[int, Field(ge=0)] | None = None
    """First cycle of it in the lake; without: all, and what has no cycle."""
    last_cycle: Annotated[int, Field(ge=0)] | None = None
    before: tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]] | None = None
    """First and last cycle of a time before it in which all users were served alike: what they were like then is taken
    out of the effects (CUPED)."""
    min_units: Annotated[int, Field(ge=10)] = 50
    """Units that each arm needs before a metric is known."""
    min_at_risk: Annotated[int, Field(ge=5)] = 30
    """Edits that must still be watched at the horizon, in each arm."""

    @model_validator(mode="after")
    def _consistent(self) -> Plan:
        total = sum(arm.share for arm in self.arms.values())
        if abs(total - 1) > 1e-6:
            raise _at(("arms",), f"shares add up to {total:g}, not to 1")
        roles = [arm.role for arm in self.arms.values()]
        if roles.count("control") != 1 or roles.count("anchor") > 1 or "treatment" not in roles:
            raise _at(("arms",), "needs one control, at least one treatment, and at most one anchor")
        if self.horizon not in {each.name for each in HORIZONS}:
            raise _at(("horizon",), f"no such horizon; there are: {', '.join(each.name for each in HORIZONS)}")
        if self.before is not None and self.first_cycle is not None and self.before[1] >= self.first_cycle:
            raise _at(("before",), "must end before the experiment begins")
        return self

    @property
    def lasting(self) -> Horizon:
        """The horizon with its seconds."""
        return next(each for each in HORIZONS if each.name == self.horizon)

    @property
    def comparisons(self) -> tuple[tuple[str, str], ...]:
        """(control, treatment) in the order they are shown: the control's first, then the anchor's."""
        treatments = [name for name, arm in self.arms.items() if arm.role == "treatment"]
        return tuple(
            (name, treatment)
            for role in ("control", "anchor")
            for name, arm in self.arms.items()
            if arm.role == role
            for treatment in treatments
        )


def _at(path: tuple[str, ...], problem: str) -> PydanticCustomError:
    return PydanticCustomError("experiment", "{problem}", {"path": path, "problem": problem})


# -- the report ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Effect:
    """One metric, treatment less control, with an interval that holds however often one looks.

    None where the status leaves no value. A value may come with ``immature`` and ``too_few``, to be looked at; only
    ``known`` is evidence.
    """

    metric: str
    better: Better
    """Which way is better for users; ``none`` where both extremes are bad or it depends."""
    control: str
    """Arm that it is compared with."""
    treatment: str
    effect: float | None
    """Treatment less control, in the metric's unit; not benefit-signed."""
    low: float | None
    """Of the confidence sequence at ``alpha``, two-sided."""
    high: float | None
    relative: float | None
    """The same over the control's value, 0.01 = 1 %; None where the control is too near 0."""
    relative_low: float | None
    relative_high: float | None
    units: Mapping[str, int]
    """Users that count, by arm."""
    alpha: float
    """Error of this interval over the whole experiment."""
    status: EffectStatus
    why: str
    """Why it is not known; empty where it is."""
    values: Mapping[str, float] | None = None
    """The metric by arm."""
    error: float | None = None
    """Standard error of ``effect``, over units."""
    planned: int | None = None
    """Units at which its intervals are narrowest."""

    def bounds(self, alpha: float) -> tuple[float, float] | None:
        """A lower and an upper confidence sequence of ``effect``, each of error ``alpha``; None unless it is known."""
        if self.status != "known" or self.effect is None or self.error is None or self.planned is None:
            return None
        contrast = Contrast(self.effect, self.error, sum(self.units.values()))
        return one_sided(contrast, tuned(self.planned, alpha, sides=1), alpha)

    def worse(self, alpha: float) -> bool:
        """Whether it is worse for users, at a one-sided error of ``alpha`` over the whole experiment."""
        limits = self.bounds(alpha)
        if limits is None or self.better == "none":
            return False
        return limits[1] < 0 if self.better == "up" else limits[0] > 0

    def improved(self, alpha: float) -> bool:
        """Whether it is better for users, likewise."""
        limits = self.bounds(alpha)
        if limits is None or self.better == "none":
            return False
        return limits[0] > 0 if self.better == "up" else limits[1] < 0


@dataclass(frozen=True)
class Validity:
    """One condition without which no effect may be believed."""

    name: str
    status: ValidityStatus
    value: float | None
    """What was measured; what it is depends on the check."""
    threshold: float | None
    """From which value on it fails."""
    why: str


@dataclass(frozen=True)
class ExperimentReport:
    """An experiment at one moment."""

    name: str
    arms: Mapping[str, str]
    """Checkpoint that each arm serves."""
    effects: tuple[Effect, ...]
    """Per metric and treatment, against each control."""
    validity: tuple[Validity, ...]
    as_of: datetime
    """What users had said by then is in it."""
    alpha: float = 0.05

    @property
    def valid(self) -> bool:
        """No condition fails."""
        return all(each.status != "fail" for each in self.validity)

    @property
    def judged(self) -> tuple[Effect, ...]:
        """Effects of metrics of which one way is better."""
        return tuple(each for each in self.effects if each.better != "none")

    @property
    def worse(self) -> tuple[Effect, ...]:
        """What is worse for users, at ``alpha`` for all metrics and comparisons together (Bonferroni)."""
        return tuple(each for each in self.judged if each.worse(self.alpha / len(self.judged)))

    @property
    def improved(self) -> tuple[Effect, ...]:
        """What is better for users, likewise."""
        return tuple(each for each in self.judged if each.improved(self.alpha / len(self.judged)))

    @property
    def unknown(self) -> tuple[Effect, ...]:
        """Judged metrics of which nothing is known yet."""
        return tuple(each for each in self.judged if each.status != "known")
