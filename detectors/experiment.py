"""What an experiment says: the effect of each metric between two arms, and whether the comparison may be believed.

An experiment serves two checkpoints (or a checkpoint and a frozen anchor) to users drawn at random. Its report is what
the gate reads. Everything is counted per *unit* of randomisation, the user, never per interaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

Better = Literal["up", "down", "none"]
EffectStatus = Literal["known", "immature", "too_few", "invalid"]
ValidityStatus = Literal["pass", "fail", "unknown"]


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
    """Error of the interval over the whole experiment."""
    status: EffectStatus
    why: str
    """Why it is not known; empty where it is."""


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
