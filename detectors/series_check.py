"""What can be said of aggregated series: drift, joint faults, and a proxy against what users get.

For teams that hand out counts or means per cycle and slice, and no interactions. Pure: a table of
`palomar.data.series` in, reports out. One rule for all slices and metrics:

1. **Joint faults.** In a cycle in which everything falls at once, something broke: a fall that long ago was ordinary in
   no slice (`EACH` times its usual change), and whose mean over slices is beyond what that mean did before. Such a
   cycle is read as a measurement fault and taken out of all that follows.
2. **What cannot be judged.** A slice whose proxy is the same in all cycles has a broken scorer or nothing that is ever
   solved: no reward can teach anything there, and what else moves is not judged.
3. **Drift**, by two tests that see different things, each metric in each slice:
   - the *trend* over all cycles so far: rank correlation with time, its p-value by permuting the cycles. Exact whatever
     the spread between cycles, as long as their order means nothing; sees a rise that began at once, or is slow;
   - the *charts* of `palomar.detectors.drift` against the first cycles: sees a jump in the cycle in which it comes.
4. **Proxy against outcome**, where both are named: the proxy drifted up and the outcome down in one slice.

**Errors.** Trend: at most `ALPHA` of runs without a change ever alarm over all slices and named metrics, however often
they are looked at (Holm over the tests of a cycle, `ALPHA` spent over the cycles). Charts: `BUDGET` alarms per 1000
cycles over all of them. Faults: `FAULTS` per 1000 cycles over all metrics. Metrics that are not named as worse in a
direction have a budget of their own, of the same size, and only warn.

**Blind to**: what the mix of requests does, which series do not show; an outcome that stays flat under a rising proxy
(without rows there is no slope to say what it should have gained); slow waves, which the trend takes for a change (see
docs/divergence.md for how often); faults in a run of one or two slices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy import special, stats

from palomar.data.findings import Finding, Report, Severity, Unassessed
from palomar.data.slices import ALL
from palomar.detectors.channels import Channels
from palomar.detectors.drift import SHORTEST, WEIGHT, Drift, drift
from palomar.detectors.verdict import Verdict, Word

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Direction = Literal["up", "down"]
DIRECTIONS: tuple[Direction, Direction] = ("up", "down")

ALPHA = 0.05
"""Share of runs without a change in which a trend ever alarms."""
BUDGET = 1.0
"""Alarms of charts per 1000 cycles."""
FAULTS = 1.0
"""Cycles in 1000 that are taken for a fault."""
EACH = 1.5
"""Usual changes by which every slice must fall in a joint fault."""
SLICES = 3
"""Slices that must be there to tell a joint fault from one slice's own."""
LEVEL_CYCLES = 3
"""Cycles before it that a fall is measured from."""
DRIFT, FAULT, DIVERGENCE = "series-drift", "series-fault", "series-divergence"
_DRAWS = 100_000
_CHUNK = 10_000
_STRAY = 0.25  # events that a share's variance gets on top, as in `palomar.detectors.channels`
_ORDER: tuple[Severity, ...] = ("blocks", "warns", "notes")
_CERTAIN = 1e-6  # of the variance between cycles: sampling variance of a mean whose spread was not exported


@dataclass(frozen=True)
class Roles:
    """What the metrics of a series are; nothing is guessed from their names."""

    proxy: str | None = None
    """What is trained on; higher is paid more."""
    outcome: str | None = None
    """What users get; higher is better."""
    worse: Mapping[str, Direction] = field(default_factory=dict)
    """Which way other metrics are worse: ``{"hacking": "up"}``."""

    def direction(self, metric: str) -> Direction | None:
        """In which direction a metric alarms; None: it is watched either way, and only warns."""
        return "down" if metric == self.outcome else self.worse.get(metric)

    @property
    def named(self) -> frozenset[str]:
        """Metrics whose worse direction is known."""
        return frozenset(self.worse) | ({self.outcome} if self.outcome else frozenset())


@dataclass(frozen=True)
class SeriesCheck:
    """What a series says as of its last cycle."""

    reports: tuple[Report, ...]
    alarmed: tuple[str, ...]
    """Slices in which something blocks."""
    clear: tuple[str, ...]
    """Slices in which all that was named was assessed and nothing blocks."""
    not_assessable: tuple[str, ...]
    faulty: tuple[int, ...]
    """Cycles in which everything fell at once, and that count nowhere."""
    history: Mapping[str, tuple[int, ...]]
    """By slice, the cycles in which it would have blocked, had one looked then."""
    verdict: Verdict


@dataclass(frozen=True)
class _Grid:
    """The series as arrays (cycles, slices, metrics); NaN where a row is missing."""

    cycles: tuple[int, ...]
    slices: tuple[str, ...]
    metrics: tuple[str, ...]
    value: Floats
    variance: Floats
    """Of a value if its observations were independent; NaN where an ``sd`` was not exported."""
    third: Floats
    """Third cumulant of a share's value; 0 for a mean."""
    share: Floats
    """The value, where it is a share; NaN for a mean."""
    n: Floats

    @classmethod
    def of(cls, table: pa.Table) -> _Grid:
        columns = [table[name].to_pylist() for name in ("cycle", "slice", "metric")]
        axes = [tuple(sorted(set(column))) for column in columns]
        place = tuple(
            np.array([axis.index(value) for value in column]) for column, axis in zip(columns, axes, strict=True)
        )
        count, total, mean, sd, n = (
            table[name].to_numpy(zero_copy_only=False).astype(np.float64)
            for name in ("count", "total", "mean", "sd", "n")
        )

        def laid(values: Floats) -> Floats:
            grid = np.full([len(axis) for axis in axes], np.nan)
            grid[place] = values
            return grid

        shares = ~np.isnan(count)
        with np.errstate(divide="ignore", invalid="ignore"):
            events, observed = laid(np.where(shares, count, np.nan)), laid(np.where(shares, total, np.nan))
            level = np.nansum(events, axis=0) / np.nansum(observed, axis=0)  # over all cycles
            spread = level * (1 - level) / observed + _STRAY / observed**2
            third = level * (1 - level) * (1 - 2 * level) / observed**2 + _STRAY / observed**3
            value = laid(np.where(shares, np.where(total > 0, count / total, np.nan), mean))
            variance = np.where(np.isnan(observed), laid(sd**2 / n), spread)
        return cls(
            cycles=axes[0],
            slices=axes[1],
            metrics=axes[2],
            value=value,
            variance=variance,
            third=np.where(np.isnan(value), np.nan, np.nan_to_num(third, posinf=0.0)),
            share=np.where(np.isnan(observed), np.nan, value),
            n=laid(np.where(shares, total, n)),
        )


def check_series(table: pa.Table, roles: Roles = Roles(), *, reference: int = SHORTEST) -> SeriesCheck:
    """All that a series (`palomar.data.series.SERIES`) says as of its last cycle.

    ``reference``: first cycles, not counting faulty ones, that the charts compare with. Raises ValueError for a role
    whose metric is not in the series.
    """
    grid = _Grid.of(table)
    for metric in (roles.proxy, *roles.named):
        if metric is not None and metric not in grid.metrics:
            raise ValueError(f"no metric {metric!r} in the series; it has {', '.join(grid.metrics)}")
    stuck = _stuck(grid, roles)
    faults = _faults(grid, roles, stuck)
    clean = _without(grid, faults.cycles)
    judged = _judged(clean, roles, stuck, reference)
    reports = (faults.report, _drift_report(clean, roles, judged, stuck), _divergence_report(clean, roles, judged))
    return _summary(clean, roles, reports, judged, last=grid.cycles[-1], faulty=faults.cycles)


# -- faults ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Faults:
    cycles: tuple[int, ...]
    report: Report


def _stuck(grid: _Grid, roles: Roles) -> dict[str, str]:
    """Slices whose proxy never moves, with the reason why they are not judged."""
    if roles.proxy is None:
        return {}
    values = grid.value[:, :, grid.metrics.index(roles.proxy)]
    found = {}
    for index, name in enumerate(grid.slices):
        known = values[:, index][~np.isnan(values[:, index])]
        if len(known) >= 2 and np.ptp(known) == 0:
            found[name] = (
                f"{roles.proxy} is {known[0]:g} in all {len(known)} cycles: a scorer that says nothing, or nothing is "
                "ever solved, so that no reward can teach anything there; it takes one that varies"
            )
    return found


def _faults(grid: _Grid, roles: Roles, stuck: Mapping[str, str]) -> _Faults:
    """Cycles in which a metric that is better when high falls in all slices at once."""
    watched = [name for name in grid.metrics if roles.direction(name) != "up"]
    rows = [index for index, name in enumerate(grid.slices) if name not in stuck]
    if not watched:
        why = "every metric is worse when it rises; it takes one that an outage makes fall, such as the reward"
        return _Faults((), Report(FAULT, unassessed=(Unassessed("joint faults", why),)))
    if len(rows) < SLICES:
        why = f"{len(rows)} slices can be judged; {SLICES} are needed to tell a fall of all from one slice's own"
        return _Faults((), Report(FAULT, unassessed=(Unassessed("joint faults", why),)))
    out: dict[int, list[tuple[str, _Step]]] = {}
    assessed = 0
    limit_of = FAULTS / 1000 / len(watched)
    for name in watched:
        values = grid.value[:, rows, grid.metrics.index(name)]
        fallen = _falls(values, limit_of)
        assessed += fallen.looks
        for time, step in fallen.found.items():
            out.setdefault(time, []).append((name, step))
    last = len(grid.cycles) - 1
    findings = [
        replace(_fault_finding(grid, rows, time, name, step), severity="warns" if time == last else "notes")
        for time, told in sorted(out.items())
        for name, step in told
    ]
    if not assessed:
        why = f"no metric has {SHORTEST} cycles of changes in {SLICES} slices to tell what is usual"
        return _Faults((), Report(FAULT, unassessed=(Unassessed("joint faults", why),)))
    power = f"a fall of {EACH:g} usual changes in every slice at once, and of far more than usual in their mean"
    return _Faults(
        tuple(grid.cycles[time] for time in sorted(out)), Report(FAULT, tuple(findings), assessed, (), power)
    )


@dataclass(frozen=True)
class _Step:
    change: Floats
    """From the cycles before, (slices,)."""
    statistic: float
    threshold: float


@dataclass(frozen=True)
class _Falls:
    found: Mapping[int, _Step]
    """By position of the cycle."""
    looks: int
    """Cycles that could be looked at."""


def _falls(values: Floats, limit: float) -> _Falls:
    """Joint falls of one metric, (cycles, slices), judged in order and by what came before only.

    A cycle's change is from the mean of the up to `LEVEL_CYCLES` clean cycles before; slices without a value or
    without any variation take no part.
    """
    past: list[Floats] = []
    changes: list[Floats] = []
    found: dict[int, _Step] = {}
    looks = 0
    for time, now in enumerate(values):
        if not past:
            past.append(now)
            continue
        change = now - _mean(np.array(past[-LEVEL_CYCLES:]))
        if len(changes) >= SHORTEST:
            before = np.array(changes)
            with np.errstate(invalid="ignore", divide="ignore"):
                usual = np.sqrt(_mean(before**2))
                steps, scaled = change / usual, before / usual
            there = np.isfinite(steps) & np.isfinite(scaled).all(axis=0) & (usual > 0)
            if int(there.sum()) >= SLICES:
                looks += 1
                together = scaled[:, there].mean(axis=1)
                spread = float(np.sqrt((together**2).mean()))
                statistic = float(steps[there].mean()) / spread if spread > 0 else 0.0
                threshold = float(stats.t.ppf(limit, len(changes)))
                if (steps[there] < -EACH).all() and statistic < threshold:
                    found[time] = _Step(change, statistic, threshold)
                    continue
        past.append(now)
        changes.append(change)
    return _Falls(found, looks)


def _mean(values: Floats) -> Floats:
    """Over the known values of the first axis; NaN where none is."""
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        found: Floats = np.where(known, values, 0.0).sum(axis=0) / known.sum(axis=0)
    return found


def _fault_finding(grid: _Grid, rows: Sequence[int], time: int, name: str, step: _Step) -> Finding:
    after = grid.value[time, rows, grid.metrics.index(name)]
    told = ", ".join(
        f"{grid.slices[row]} {value - moved:.3g} -> {value:.3g}"
        for row, value, moved in zip(rows, after, step.change, strict=True)
        if np.isfinite(moved)
    )
    return Finding(
        detector=FAULT,
        severity="notes",
        sentence=f"{name} fell in every slice at once in cycle {grid.cycles[time]}: {told}; a fault of measurement or "
        "an outage, neither a hack nor an improvement",
        statistic=name,
        effect=float(np.nanmean(step.change)),
        test=step.statistic,
        threshold=step.threshold,
        error_control=f"{FAULTS:g} cycle in 1000 over all metrics; Student's t of the mean fall of the slices",
        n=int(np.nansum(grid.n[time, rows, grid.metrics.index(name)])),
        since=grid.cycles[time],
        reading="measurement_fault",
        detail={"slices": {grid.slices[row]: float(moved) for row, moved in zip(rows, step.change, strict=True)}},
    )


def _without(grid: _Grid, cycles: Sequence[int]) -> _Grid:
    kept = [index for index, cycle in enumerate(grid.cycles) if cycle not in cycles]
    return replace(
        grid,
        cycles=tuple(grid.cycles[index] for index in kept),
        **{name: getattr(grid, name)[kept] for name in ("value", "variance", "third", "share", "n")},
    )


# -- drift -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Judged:
    """One metric in one slice."""

    slice: str
    metric: str
    worse: Direction | None
    why: str
    """Why it could not be judged; else empty."""
    trend: Mapping[Direction, Flags] = field(default_factory=dict)
    """Looks at which a trend that way alarmed; (cycles,)."""
    trend_p: Mapping[Direction, float] = field(default_factory=dict)
    """As of the last cycle."""
    trend_level: float = 0.0
    """Level at which the last cycle's smallest p-value is tested."""
    chart: Drift | None = None
    charts: Mapping[Direction, Flags] = field(default_factory=dict)
    """Cycles in which a chart was out that way; (cycles,)."""

    def out(self, direction: Direction) -> Flags:
        """Cycles in which either test says "moved that way"; (cycles,)."""
        both: Flags = self.trend[direction] | self.charts[direction]
        return both


def spent(cycles: int) -> float:
    """Share of `ALPHA` that the look after so many cycles may spend; over all looks they add up to 1."""
    return 0.0 if cycles < SHORTEST else SHORTEST / (cycles * (cycles + 1))


def _judged(grid: _Grid, roles: Roles, stuck: Mapping[str, str], reference: int) -> list[_Judged]:
    found: list[_Judged] = []
    tests = [(slice_, metric) for slice_ in grid.slices for metric in grid.metrics if slice_ not in stuck]
    for family in (True, False):
        members = [(slice_, metric) for slice_, metric in tests if (metric in roles.named) == family]
        found += _family(grid, roles, members, reference)
    for slice_, why in stuck.items():
        found += [_Judged(slice_, metric, roles.direction(metric), why) for metric in grid.metrics]
    return found


def _family(grid: _Grid, roles: Roles, members: Sequence[tuple[str, str]], reference: int) -> list[_Judged]:
    """Tests that share one budget."""
    found: list[_Judged] = []
    live: list[Floats] = []
    for slice_, metric in members:
        place = grid.slices.index(slice_), grid.metrics.index(metric)
        value, worse = grid.value[:, *place], roles.direction(metric)
        known = int((~np.isnan(value)).sum())
        level = ALPHA * spent(known) / len(members)
        rarest = _rarest(value) * (1 if worse else 2)
        chart = _chart(grid, place, worse, reference, BUDGET / len(members))
        why = _few(value, grid.n[:, *place], known, rarest, level) if rarest > level and chart is None else ""
        charts = _charted(chart, len(value), reference)
        found.append(_Judged(slice_, metric, worse, why, trend_level=level, chart=chart, charts=charts))
        if not why:
            live.append(value)
    trends = iter(_trends(live, [each.worse for each in found if not each.why], len(grid.cycles)))
    return [each if each.why else next(trends).put(each) for each in found]


def _few(value: Floats, n: Floats, known: int, rarest: float, level: float) -> str:
    if known < SHORTEST:
        return f"{known} cycles have a value; {SHORTEST} are needed"
    if np.nanmax(value) == np.nanmin(value):
        return f"the same ({np.nanmax(value):g}) in all {known} cycles, which leaves no scale to judge a change by"
    return (
        f"counts are too small ({np.nanmedian(n):g} a cycle): even the clearest order of its {known} cycles would have "
        f"p = {rarest:.1g}, and {level:.1g} is needed"
    )


def _chart(grid: _Grid, place: tuple[int, int], way: Direction | None, reference: int, budget: float) -> Drift | None:
    """Charts of one series; None where it has too short a reference, does not vary, or could not show any change."""
    value, variance, third, share = (
        part[:, place[0], place[1]] for part in (grid.value, grid.variance, grid.third, grid.share)
    )
    if not 0 < reference < len(value):
        return None
    first = value[:reference]
    if np.isnan(variance[:reference]).all() and (~np.isnan(first)).sum() > 1:
        variance = np.full(len(value), _CERTAIN * float(np.nanvar(first)))
    known = ~np.isnan(value)
    one = Channels(
        kind=("mean",),
        metric=("value",),
        slice=(ALL,),
        value=value[:, None],
        variance=np.where(known, variance, np.nan)[:, None],
        third=np.where(known, third, np.nan)[:, None],
        n=known[:, None].astype(np.float64),
        unplaced=np.zeros(len(value)),
    )
    result = drift(one, reference, budget)
    if np.isnan(result.threshold[0]):
        return None
    level, reach = float(result.level[0]), _reach(result)
    return result if np.isnan(share).all() or (level + reach < 1 if way != "down" else level - reach > 0) else None


def _reach(chart: Drift) -> float:
    """Smallest lasting change that either chart would show by now."""
    looks = chart.error.shape[1]
    seen = chart.error[:, :, 0] / np.array([np.ones(looks), 1 - (1 - WEIGHT) ** np.arange(1, looks + 1)])
    return float(chart.threshold[0] * np.nanmin(seen)) if np.isfinite(seen).any() else float("inf")


def _charted(chart: Drift | None, cycles: int, reference: int) -> dict[Direction, Flags]:
    found: dict[Direction, Flags] = {"up": np.zeros(cycles, dtype=bool), "down": np.zeros(cycles, dtype=bool)}
    if chart is not None:
        statistic, threshold = chart.statistic[:, :, 0], chart.threshold[0]
        with np.errstate(invalid="ignore"):
            found["up"][reference:] = (statistic > threshold).any(axis=0)
            found["down"][reference:] = (statistic < -threshold).any(axis=0)
    return found


@dataclass(frozen=True)
class _Trend:
    alarmed: Mapping[Direction, Flags]
    p: Mapping[Direction, float]

    def put(self, judged: _Judged) -> _Judged:
        """Into what the charts said."""
        return replace(judged, trend=self.alarmed, trend_p=self.p)


def _trends(series: Sequence[Floats], worse: Sequence[Direction | None], cycles: int) -> list[_Trend]:
    """Trends of a family in every cycle, Holm over the family; a metric without a direction is tested in both."""
    sides: list[tuple[int, Direction]] = []
    for index, direction in enumerate(worse):
        sides += [(index, way) for way in DIRECTIONS if direction in (None, way)]
    alarmed = np.zeros((len(sides), cycles), dtype=bool)
    p = np.ones(len(sides))
    for look in range(SHORTEST, cycles + 1):
        level = ALPHA * spent(look)
        p = np.array([trend_p(_signed(series[index][:look], way), level / len(sides)) for index, way in sides])
        # Holm: the smallest at level / m, the next at level / (m - 1), until one is not below.
        order = np.argsort(p, kind="stable")
        passed = p[order] <= level / np.arange(len(sides), 0, -1)
        first = int(np.argmin(passed)) if not passed.all() else len(sides)
        alarmed[order[:first], look - 1] = True
    found = []
    for index in range(len(series)):
        flags: dict[Direction, Flags] = {"up": np.zeros(cycles, dtype=bool), "down": np.zeros(cycles, dtype=bool)}
        values: dict[Direction, float] = {}
        for side, (owner, way) in enumerate(sides):
            if owner == index:
                flags[way], values[way] = alarmed[side], float(p[side])
        found.append(_Trend(flags, values))
    return found


def _signed(value: Floats, way: Direction) -> Floats:
    return value if way == "up" else -value


def trend_p(value: Floats, level: float) -> float:
    """Chance that cycles in a random order rise as steadily as these, (cycles,): the sum of rank times position.

    Near ``level`` from `_DRAWS` orders drawn with a fixed seed; far from it from the normal tail with the sum's exact
    variance, which below about 0.02 is larger than the chance itself (the sum is bounded), and so never alarms early.
    """
    known = value[~np.isnan(value)]
    ranks = stats.rankdata(known)
    position = np.arange(len(known)) - (len(known) - 1) / 2
    seen = float(position @ ranks)
    if len(known) < 2 or seen <= 0:
        return 1.0
    normal = float(stats.norm.sf(seen / np.sqrt((position @ position) * ranks.var(ddof=1))))
    if normal <= level or normal > max(50 * level, 0.02):
        return normal
    rng = np.random.default_rng(len(known))
    above = 0
    for _ in range(_DRAWS // _CHUNK):
        orders = rng.permuted(np.broadcast_to(ranks, (_CHUNK, len(ranks))), axis=1)
        above += int((orders @ position >= seen - 1e-9).sum())
    return (above + 1) / (_DRAWS + 1)


def _rarest(value: Floats) -> float:
    """Smallest p-value that any order of these cycles has: how many orders look alike, over how many there are."""
    known = value[~np.isnan(value)]
    _, ties = np.unique(known, return_counts=True)
    return float(np.exp(special.gammaln(ties + 1).sum() - special.gammaln(len(known) + 1)))


def _drift_report(grid: _Grid, roles: Roles, judged: Sequence[_Judged], stuck: Mapping[str, str]) -> Report:
    findings, unassessed = [], [Unassessed(name, why) for name, why in stuck.items()]
    for each in judged:
        if each.slice in stuck:
            continue
        if each.why:
            unassessed.append(Unassessed(f"{each.metric} in {each.slice}", each.why))
            continue
        for way in DIRECTIONS:
            severity = _severity(roles, each, way) if each.out(way)[-1] else None
            if severity is not None:
                findings.append(_drift_finding(grid, each, way, severity))
    findings.sort(key=lambda finding: (_ORDER.index(finding.severity), finding.slice, finding.statistic or ""))
    assessed = sum(not each.why for each in judged)
    return Report(DRIFT, tuple(findings), assessed, tuple(unassessed), _power(judged))


def _severity(roles: Roles, each: _Judged, way: Direction) -> Severity | None:
    if each.worse is not None:
        return "blocks" if way == each.worse else None
    if each.metric == roles.proxy:
        return "notes" if way == "up" else "warns"
    return "notes" if roles.named else "warns"


def _power(judged: Sequence[_Judged]) -> str:
    shifts = [_reach(each.chart) for each in judged if each.chart is not None and each.worse is not None]
    return (
        f"a lasting change of {np.median(shifts):.2f}, in the median of the charts; slow ones by the trend"
        if shifts
        else ""
    )


def _drift_finding(grid: _Grid, each: _Judged, way: Direction, severity: Severity) -> Finding:
    place = (slice(None), grid.slices.index(each.slice), grid.metrics.index(each.metric))
    value, n = grid.value[place], grid.n[place]
    known = np.flatnonzero(~np.isnan(value))
    chart = each.chart
    by_chart = bool(each.charts[way][-1])
    before = float(chart.level[0]) if chart is not None else float(value[known[: max(len(known) // 3, 1)]].mean())
    out = each.out(way)
    quiet = np.flatnonzero(~out & ~np.isnan(value))
    since = grid.cycles[int(quiet[-1]) + 1 if len(quiet) else 0]
    half = chart.threshold[0] * float(chart.error[0, -1, 0]) if chart is not None else np.nan
    after = float(value[known[-1]])
    rises = "rises" if way == "up" else "falls"
    test, threshold = each.trend_p.get(way), each.trend_level
    if by_chart and chart is not None:
        statistic = chart.statistic[:, -1, 0]
        test, threshold = float(statistic[np.argmax(np.abs(statistic))]), float(chart.threshold[0])
    how = " and ".join(
        said
        for said, yes in (("beyond the first cycles' spread", by_chart), ("steadily over the run", each.trend[way][-1]))
        if yes
    )
    return Finding(
        detector=DRIFT,
        severity=severity,
        sentence=f"{each.metric} {rises} in {each.slice}: {before:.3g} -> {after:.3g}, {how}, n={n[known[-1]]:.0f} in "
        f"cycle {grid.cycles[known[-1]]}, first out in cycle {since}",
        statistic=each.metric,
        slice=each.slice,
        before=before,
        after=after,
        effect=after - before,
        low=after - before - half if np.isfinite(half) else None,
        high=after - before + half if np.isfinite(half) else None,
        test=test,
        threshold=threshold,
        error_control=f"trend: {ALPHA:.0%} of runs ever, Holm over slices and metrics, exact under permutation; "
        f"charts: {BUDGET:g} alarm per 1000 cycles over all",
        n=int(np.nansum(n)),
        since=since,
        detail={"trend_p": each.trend_p.get(way), "trend_level": each.trend_level, "by_chart": by_chart},
    )


# -- proxy against outcome, and the summary ------------------------------------------------------------------------


def _divergence_report(grid: _Grid, roles: Roles, judged: Sequence[_Judged]) -> Report:
    if roles.proxy is None or roles.outcome is None:
        absent = " and ".join(name for name in ("proxy", "outcome") if getattr(roles, name) is None)
        return Report(DIVERGENCE, unassessed=(Unassessed("proxy against outcome", f"no {absent} is named"),))
    by_name = {(each.slice, each.metric): each for each in judged}
    findings, unassessed, assessed = [], [], 0
    for slice_ in grid.slices:
        proxy, outcome = by_name[slice_, roles.proxy], by_name[slice_, roles.outcome]
        why = proxy.why or outcome.why
        if why:
            unassessed.append(Unassessed(f"proxy against outcome in {slice_}", why))
            continue
        assessed += 1
        both = proxy.out("up") & outcome.out("down")
        if both[-1]:
            findings.append(_divergence_finding(grid, proxy, outcome, both))
    power = "as the drift of the two; an outcome that stays flat is not seen"
    return Report(DIVERGENCE, tuple(findings), assessed, tuple(unassessed), power)


def _divergence_finding(grid: _Grid, proxy: _Judged, outcome: _Judged, both: Flags) -> Finding:
    up, down = _drift_finding(grid, proxy, "up", "blocks"), _drift_finding(grid, outcome, "down", "blocks")
    quiet = np.flatnonzero(~both)
    since = grid.cycles[int(quiet[-1]) + 1 if len(quiet) else 0]
    return Finding(
        detector=DIVERGENCE,
        severity="blocks",
        sentence=f"{proxy.metric} rises ({up.before:.3g} -> {up.after:.3g}) while {outcome.metric} falls "
        f"({down.before:.3g} -> {down.after:.3g}) in {proxy.slice}, both since cycle {since}",
        statistic=outcome.metric,
        slice=outcome.slice,
        before=down.before,
        after=down.after,
        effect=down.effect,
        low=down.low,
        high=down.high,
        test=down.test,
        threshold=down.threshold,
        error_control=f"both must alarm; {down.error_control}",
        n=down.n,
        since=since,
        detail={"proxy_before": up.before, "proxy_after": up.after, "proxy": proxy.metric},
    )


def _summary(
    grid: _Grid,
    roles: Roles,
    reports: tuple[Report, ...],
    judged: Sequence[_Judged],
    *,
    last: int,
    faulty: Sequence[int],
) -> SeriesCheck:
    findings = [finding for report in reports for finding in report.findings]
    of = {severity: [each for each in findings if each.severity == severity] for severity in _ORDER}
    alarmed = {finding.slice for finding in of["blocks"]}
    asked = [each for each in judged if each.metric in roles.named or not roles.named]
    unclear = {each.slice for each in asked if each.why} - alarmed
    told: list[Finding] = []
    word: Word = "pass"
    sentence = "nothing found"
    if of["blocks"]:
        word, told = "block", of["blocks"]
    elif last in faulty:
        word, told = "not_assessable", [each for each in findings if each.since == last and each.reading]
    elif all(each.why for each in asked):
        word, sentence = "not_assessable", asked[0].why if asked else "nothing to judge"
    elif of["warns"]:
        word, told = "warn", of["warns"]
    return SeriesCheck(
        reports=reports,
        alarmed=tuple(name for name in grid.slices if name in alarmed),
        clear=tuple(name for name in grid.slices if name not in alarmed | unclear),
        not_assessable=tuple(name for name in grid.slices if name in unclear),
        faulty=tuple(faulty),
        history={name: _history(grid, judged, name) for name in grid.slices},
        verdict=Verdict(
            word,
            tuple(f"{each.reading or each.detector}:{each.statistic}:{each.slice}" for each in told),
            told[0].sentence if told else sentence,
            {severity: len(each) for severity, each in of.items() if each},
        ),
    )


def _history(grid: _Grid, judged: Sequence[_Judged], slice_: str) -> tuple[int, ...]:
    out = np.zeros(len(grid.cycles), dtype=bool)
    for each in judged:
        if each.slice == slice_ and each.worse is not None and not each.why:
            out |= each.out(each.worse)
    return tuple(np.array(grid.cycles)[out].tolist())
