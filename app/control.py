"""One statistic of a slice over the cycles, with all that a control chart shows: band, states, versions, forecasts.

The band is the check's (`palomar.detectors.checks.drift`), as of the newest cycle whose feedback is in: where the
statistic would not be out, on the reference's mix of requests. It takes a moment on a long run, and is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from palomar.app.kept import Kept, Pending, state
from palomar.app.service import Observatory, definition
from palomar.data.findings import Finding
from palomar.data.slices import ALL
from palomar.data.store.records import Forecast, Statistic, StoredFinding
from palomar.detectors.checks.drift import charts
from palomar.detectors.departure import Departure, base_level, departures
from palomar.detectors.detector import View
from palomar.detectors.drift import Finding as Chart
from palomar.detectors.lake_sums import metric_of
from palomar.detectors.runs import baseline_of

RIPE = 0.999
"""A point of which a smaller share than this is mature may still move."""
TELL = ("behaviour", "drift", "divergence", "joint")
"""Detectors that speak of a statistic in a slice."""
MOST_FINDINGS = 12

PointState = Literal["reference", "inside", "outside", "immature", "no band"]

_BANDS = Kept(8)


@dataclass(frozen=True)
class Band:
    """Where the check expects a statistic, as of one cycle."""

    cycle: int
    low: float | None
    """None: see ``why``."""
    high: float | None
    level: float | None
    """Mean of the reference."""
    status: str
    """``steady``, ``warns``, ``blocks`` or ``not_assessable``."""
    first_out: int | None
    """Cycle; None if it never was."""
    reference: tuple[int, ...]
    same_scale: bool
    """False where the check charts another figure than the points show: the typical value (exp of the mean log)."""
    why: str
    """Why there is no band; else empty."""


@dataclass(frozen=True)
class VersionChange:
    """A cycle from which on another reward was in force."""

    cycle: int
    version: str


@dataclass(frozen=True)
class Scored:
    """How forecasts fared."""

    known: int
    """Forecasts with an interval of which it is known what came."""
    inside: int
    """Of them, those whose interval held it."""


@dataclass(frozen=True)
class Control:
    """All of it."""

    statistic: str
    slice: str
    points: tuple[Statistic, ...]
    """By cycle."""
    states: tuple[PointState, ...]
    """Of the points."""
    band: Band | Pending
    versions: tuple[VersionChange, ...]
    """Not the first one."""
    forecasts: tuple[Forecast, ...]
    """One a cycle, the newest that was made; by the cycle they are for."""
    scored: Scored
    """Over all cycles of the run, whichever are shown."""
    findings: tuple[StoredFinding, ...]
    """On this statistic in this slice, newest first."""
    base: float | None
    """Level of the run's first cycles; None where none has one."""
    departure: Departure | None
    """That it has left that level: a first look, for where there is no band."""


def controlled(
    observatory: Observatory,
    run_id: str,
    statistic: str,
    slice_: str = ALL,
    *,
    cycles: range | None = None,
    wait_s: float | None = None,
) -> Control:
    """Of some cycles, or all. ``wait_s``: how long to wait for the band; None: until it is there."""
    store = observatory.store
    every = store.statistics.series(run_id, statistics=[statistic], slices=[slice_])
    points = [point for point in every if cycles is None or point.cycle in cycles]
    band = band_of(observatory, run_id, statistic, slice_, points, wait_s=wait_s)
    made = store.forecasts.read(run_id, statistic=statistic, slice=slice_)
    newest = {each.for_cycle: each for each in made}  # by the cycle they were made in, so the last one stays
    judged = [each for each in newest.values() if each.inside is not None]
    schedule = store.rewards.scheduled(run_id)
    changes = [VersionChange(each.from_cycle, each.version) for each in schedule[1:]]
    return Control(
        statistic=statistic,
        slice=slice_,
        points=tuple(points),
        states=tuple(_state(point, band) for point in points),
        band=band,
        versions=tuple(each for each in changes if cycles is None or each.cycle in cycles),
        forecasts=tuple(each for each in newest.values() if cycles is None or each.for_cycle in _and_next(cycles)),
        scored=Scored(len(judged), sum(each.inside is True for each in judged)),
        findings=tuple(_findings(observatory, run_id, statistic, slice_)),
        base=base_level(every),
        departure=next(iter(departures(every)), None),
    )


def _and_next(cycles: range) -> range:
    """A forecast is about the cycle after the last."""
    return range(cycles.start, cycles.stop + 1)


def band_of(
    observatory: Observatory,
    run_id: str,
    statistic: str,
    slice_: str,
    points: Sequence[Statistic],
    *,
    wait_s: float | None = None,
) -> Band | Pending:
    """The check's band for the newest of the points whose feedback is in."""
    ripe = [point.cycle for point in points if point.value is not None and not _waits(point)]
    if not ripe:
        return _no_band(points[-1].cycle if points else 0, "no point of it has all its feedback")
    cycle = ripe[-1]
    watched = [each for each in observatory.lake.numbered("observations") if each <= cycle]
    reference = baseline_of(observatory.store, run_id, cycle)
    key = (state(observatory.lake, ("observations", watched)), cycle, reference)

    def make() -> _Charts | str:
        view = View.of(observatory.lake, cycle, reference=reference)
        try:
            said = charts(view)
        except ValueError as exc:
            return str(exc)
        at = {(chart.metric, chart.slice): chart for chart in said if chart.kind in ("mean", "slice")}
        return _Charts(at, view.reference, (*view.reference, *view.monitored))

    found = _BANDS.ask(key, make, wait_s=wait_s)
    if isinstance(found, Pending):
        return found
    if isinstance(found, str):
        return _no_band(cycle, found)
    chart = found.at.get((statistic, slice_))
    if chart is None:
        return _no_band(cycle, "the check does not chart it in this slice")
    known = definition(statistic)
    return Band(
        cycle=cycle,
        low=chart.low,
        high=chart.high,
        level=chart.reference,
        status=chart.status,
        first_out=None if chart.first_out is None else found.cycles[chart.first_out],
        reference=found.reference,
        same_scale=known is None or metric_of(known).scale == "plain",
        why=chart.reason,
    )


@dataclass(frozen=True)
class _Charts:
    """What the drift layer says in a cycle, by statistic and slice."""

    at: Mapping[tuple[str, str], Chart]
    reference: tuple[int, ...]
    cycles: tuple[int, ...]
    """The reference and what came after it, which charts count by position."""


def _no_band(cycle: int, why: str) -> Band:
    return Band(cycle, None, None, None, "not_assessable", None, (), True, why)


def _waits(point: Statistic) -> bool:
    return point.maturity is not None and point.maturity < RIPE


def _state(point: Statistic, band: Band | Pending) -> PointState:
    if _waits(point):
        return "immature"
    if isinstance(band, Pending) or band.low is None or band.high is None or not band.same_scale:
        return "no band"
    if point.cycle in band.reference:
        return "reference"
    return "inside" if point.value is not None and band.low <= point.value <= band.high else "outside"


def _findings(observatory: Observatory, run_id: str, statistic: str, slice_: str) -> list[StoredFinding]:
    """By their keys, which have an index: a long run has tens of thousands."""
    found: list[StoredFinding] = []
    for detector in TELL:
        key = Finding(detector, "notes", "", statistic=statistic, slice=slice_).key
        found += observatory.store.findings.read(run_id, key=key, newest=MOST_FINDINGS)
    return sorted(found, key=lambda each: -each.cycle)[:MOST_FINDINGS]
