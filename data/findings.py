"""What a detector says: findings, what it could not assess, and the evidence; plain records that the store keeps.

A finding is about one cycle (or one candidate), one statistic and one slice. It is told in a sentence with numbers, and
carries all that is needed to doubt it: effect and interval, test and threshold, how errors are controlled, n, maturity,
the smallest effect that would have been seen, and interactions to look at. What could not be assessed is said beside
it, with the reason: silence is no clearance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from palomar.data.schema import content_id
from palomar.data.slices import ALL

Severity = Literal["blocks", "warns", "notes"]
"""``blocks``: a checkpoint with it must not ship; ``warns``: a person should look; ``notes``: for the record."""

Reading = Literal[
    "reward_hack", "honest_learning", "outside_change", "forewarning", "measurement_fault", "not_assessable"
]
"""What a finding means; see the table in `palomar.detectors.reading`."""


@dataclass(frozen=True)
class Evidence:
    """Interactions to look at, by id."""

    carrying: tuple[str, ...] = ()
    """Those that carry most of the effect, the most first."""
    random: tuple[str, ...] = ()
    """Two drawn at random from the same place: what is usual there."""
    counter: tuple[str, ...] = ()
    """One that speaks against it."""


@dataclass(frozen=True)
class Finding:
    """One thing that a detector found. None is "not known" or "does not apply", never zero."""

    detector: str
    severity: Severity
    sentence: str
    """For people: what, from where to where, how sure, since when. Ends without a full stop."""
    statistic: str | None = None
    """Name of a registered statistic, or of what was tested in its place (``reward``, a column, a rule)."""
    slice: str = ALL
    unit: str | None = None
    before: float | None = None
    """Level it is compared with."""
    after: float | None = None
    """Level in the cycle."""
    effect: float | None = None
    """Usually ``after - before``; a detector may say otherwise in ``detail``."""
    low: float | None = None
    """Of the interval of the effect, at the level that ``error_control`` tells."""
    high: float | None = None
    test: float | None = None
    """The test's statistic; in size beyond ``threshold``."""
    threshold: float | None = None
    error_control: str = ""
    """Which error is held at what rate, and how: ``5 alarms per 1000 cycles over 212 channels``."""
    n: int = 0
    """Interactions that it rests on."""
    maturity: float | None = None
    """Share of them whose outcome is known; None where none is waited for."""
    smallest: float | None = None
    """Smallest effect that would have been seen with this n, in the effect's unit."""
    since: int | None = None
    """First cycle in which it showed."""
    reading: Reading | None = None
    causes: tuple[Cause, ...] = ()
    """What it is charged to, the largest share first."""
    evidence: Evidence = Evidence()
    detail: Mapping[str, object] = field(default_factory=dict)
    """Further figures, plain JSON values."""

    @property
    def key(self) -> str:
        """Names the thing found, the same in every cycle: detector, statistic and slice."""
        return content_id(self.detector, self.statistic or "", self.slice)


@dataclass(frozen=True)
class Cause:
    """A reward term or an inclusion rule in one slice, and its share of a pressure."""

    name: str
    """``term:<name>`` or ``rule:<name>``."""
    slice: str
    value: float
    """Its pressure, in the statistic's unit per unit step."""
    share: float
    """Of the sum of all that push the same way, 0 to 1."""


@dataclass(frozen=True)
class Unassessed:
    """What could not be tested, and what it would take."""

    what: str
    """A statistic and slice, a column, a rule, or everything that the detector does."""
    why: str


@dataclass(frozen=True)
class Report:
    """All that one detector says of one cycle."""

    detector: str
    findings: tuple[Finding, ...] = ()
    assessed: int = 0
    """Things tested, whatever came of it; 0 with nothing found is "not assessed", not "clear"."""
    unassessed: tuple[Unassessed, ...] = ()
    power: str = ""
    """The smallest effect it would have seen with this n, in a sentence; empty where it makes no test."""
