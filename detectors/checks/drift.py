"""Tells which statistics left their level of the reference cycles, in which slice, since when and how far.

For: "has anything changed?", at one stated rate of false alarms over everything that is watched. What it means is for
`palomar.detectors.reading`: a drift is neither good nor bad, nor is it known from here what caused it. `charts` is what
the reading asks: the state of every chart, out or not, in the statistic's own unit.

Fires on a chart (`palomar.detectors.drift`) that is out of its band in the cycle in question: levels over everything
and in slices, spreads, and correlations with predicted failure. It warns when it is out, and blocks when it is out in
two of the last three cycles. Reward and outcome are charted over everything; they warn and never block. A statistic
that waits for users has no value in a cycle of which less than `RIPE` is ripe: the last cycle that is speaks for it.

Errors: 5 alarms per 1000 unchanged cycles over all charts (Bonferroni over Student t charts whose variance between
cycles, and its uncertainty, come from the reference); measured on made-up and on recorded runs, see docs/drift.md.

Blind to: a change that was there during the reference; one that fades in over hundreds of cycles; a change in one
organisation alone (it is diluted); a change of *which requests come*, on purpose: levels are put on the reference's
mix of organisations and of bands of predicted failure and ambiguity. Within a band, or where these are not known, a
change of requests looks like a change of behaviour.

Source: Smyth 2004 for the variances; DRIFT.md for what to chart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np

from palomar.data.findings import Evidence, Finding, Report, Unassessed
from palomar.detectors.channels import WHOLE, Channels, channels
from palomar.detectors.checks._examples import rows
from palomar.detectors.checks._examples import view as example_view
from palomar.detectors.detector import Example, View, detector
from palomar.detectors.drift import BUDGET, SHORTEST, Drift, findings
from palomar.detectors.drift import Finding as Chart
from palomar.detectors.drift import drift as drift_of
from palomar.detectors.evidence import evidence
from palomar.detectors.lake_sums import SLICES, metric_of, sums_of_lake
from palomar.detectors.statistics import STATISTICS

NAME = "drift"
RIPE = 0.95
"""Share of a cycle's rows whose reaction is known, below which what waits for it has no value."""
MOST_EVIDENCE = 8
"""Findings that get interactions to look at: those farthest out."""
_NAMED = 4  # statistics that are listed by name among what could not be assessed


def _asking(folder: Path, more: float, cycles: int = 11) -> View:
    return example_view(folder, [rows(cycle, 500, more_asked=more if cycle >= 9 else 0.0) for cycle in range(cycles)])


def _other_requests(folder: Path) -> View:
    """From cycle 9 on, twice as many vague requests; each is answered as before."""
    made = []
    for cycle in range(11):
        table = rows(cycle, 1000)
        vague = np.asarray(table["ambiguity"]) >= 0.5
        kept = np.random.default_rng(cycle).random(1000) < np.where(vague, 1.0, 0.3 if cycle >= 9 else 0.8)
        made.append(table.take(np.flatnonzero(kept)))
    return example_view(folder, made)


EXAMPLES = (
    Example("questions become more frequent", lambda folder: _asking(folder, 0.25), "fires"),
    Example("nothing changes", lambda folder: _asking(folder, 0.0), "clear"),
    Example("users come with vaguer requests, and so more questions are asked", _other_requests, "clear"),
    Example("too few cycles to compare with", lambda folder: _asking(folder, 0.0, SHORTEST - 1), "not_assessable"),
)


@dataclass(frozen=True)
class _Told:
    """What a chart says, and of which cycle: the last, or the last that is ripe."""

    chart: Chart
    cycle: int
    behaviour: bool


@lru_cache(maxsize=2)
def drifts(view: View) -> tuple[Drift, Channels]:
    """The charts of a view's cycles, compared with its reference; positions count from the first reference cycle.

    Raises ValueError with the reason where there is nothing to compare, or to compare with.
    """
    if view.cycle is None:
        raise ValueError("logs from outside a loop have no cycles to compare with")
    if len(view.reference) < SHORTEST:
        raise ValueError(f"{len(view.reference)} reference cycles, and it takes {SHORTEST}")
    if not view.monitored:
        raise ValueError(f"cycle {view.cycle} is of the reference; it takes one after it")
    reference = len(view.reference)
    series = channels(sums_of_lake(view.lake, (*view.reference, *view.monitored), reference), reference, RIPE)
    return drift_of(series, reference), series


def charts(view: View) -> list[Chart]:
    """What every chart says of the view's last cycle, in units of the statistic; also those equal to another.

    ``first_out`` is a position among the reference and the monitored cycles. Raises ValueError as `drifts` does.
    """
    result, series = drifts(view)
    found = findings(result)
    same = [
        replace(found[index], kind=kind, metric=metric, slice=slice_)
        for (kind, metric, slice_), index in series.aliases.items()
    ]
    return [_in_units(chart) for chart in (*found, *same)]


@detector(NAME, examples=EXAMPLES)
def drift(view: View) -> Report:
    """One finding per chart that is out."""
    try:
        result, series = drifts(view)
    except ValueError as exc:
        return Report(NAME, unassessed=(Unassessed("drift", str(exc)),))
    cycles = (*view.reference, *view.monitored)
    told = [replace(each, chart=_in_units(each.chart), cycle=cycles[each.cycle]) for each in _told(result, series)]
    out = [each for each in told if each.chart.status in ("warns", "blocks")]
    out.sort(key=lambda each: (each.chart.status != "blocks", -_size(each.chart)))
    control = (
        f"{BUDGET:g} alarms per 1000 unchanged cycles over {len(told)} charts, Student t with the variance between "
        f"{len(view.reference)} reference cycles, Bonferroni"
    )
    return Report(
        NAME,
        tuple(
            _finding(each, cycles, control, _evidence(view, each) if place < MOST_EVIDENCE else Evidence())
            for place, each in enumerate(out)
        ),
        assessed=sum(each.chart.status != "not_assessable" for each in told),
        unassessed=tuple(_unassessed(each.chart for each in told)),
        power=_power([each.chart for each in told]),
    )


def _told(result: Drift, series: Channels) -> list[_Told]:
    """Charts as of the last cycle; those of what waits for users as of the last cycle that is ripe."""
    reference, last = result.reference, len(series.value) - 1
    by_cycle: dict[int, list[int]] = defaultdict(list)
    for index, metric in enumerate(series.metric):
        known = np.flatnonzero(~np.isnan(result.deviation[0, :, index]))
        waits = metric in series.maturity and len(known) > 0
        by_cycle[reference + int(known[-1]) if waits else last].append(index)
    found = []
    for cycle, members in by_cycle.items():
        said = findings(_until(result, cycle + 1))
        found += [_Told(said[index], cycle, bool(result.behaviour[index])) for index in members]
    return found


def _until(result: Drift, cycles: int) -> Drift:
    """The same charts, looked at some cycles earlier."""
    monitored = cycles - result.reference
    series = replace(result.channels, **{
        name: getattr(result.channels, name)[:cycles] for name in ("value", "variance", "third", "n", "unplaced")
    })  # fmt: skip
    cut = {name: getattr(result, name)[:, :monitored] for name in ("deviation", "error", "skewness")}
    return replace(result, channels=series, **cut)


def _size(chart: Chart) -> float:
    """How far out it is: its statistic as a multiple of its threshold."""
    return abs(chart.statistic or 0.0) / (chart.threshold or 1.0)


# -- units ---------------------------------------------------------------------------------------------------------


def _typical(chart: Chart) -> bool:
    """True for levels that are charted as log(1 + x)."""
    statistic = STATISTICS.get(chart.metric)
    return chart.kind in ("mean", "slice") and statistic is not None and metric_of(statistic).scale == "log"


def _in_units(chart: Chart) -> Chart:
    """Levels of what is charted as log(1 + x) as x: the typical value."""
    if chart.reference is None or not _typical(chart):
        return chart
    value, reference, low, high = (
        None if edge is None else float(np.expm1(edge))
        for edge in (chart.value, chart.reference, chart.low, chart.high)
    )
    shift, typical, moved, error = chart.smallest_shift, np.exp(chart.reference), chart.moved, chart.moved_error
    return replace(
        chart,
        value=value,
        reference=reference,
        low=low,
        high=high,
        effect=None if value is None or reference is None else value - reference,
        smallest_shift=None if shift is None else float(typical * np.expm1(shift)),
        moved=None if moved is None else float(typical * np.expm1(moved)),
        moved_error=None if moved is None or error is None else float(typical * np.exp(moved) * error),
    )


# -- findings ------------------------------------------------------------------------------------------------------


def _finding(told: _Told, cycles: tuple[int, ...], control: str, looked: Evidence) -> Finding:
    chart = told.chart
    since = None if chart.first_out is None else cycles[chart.first_out]
    return Finding(
        detector=NAME,
        severity="blocks" if chart.status == "blocks" else "warns",
        sentence=_sentence(told, cycles, since),
        # A spread or a correlation is another thing than the level, though of the same statistic.
        statistic=chart.metric if chart.kind in ("mean", "slice") else f"{chart.kind}:{chart.metric}",
        slice=chart.slice,
        unit=_unit(chart),
        before=chart.reference,
        after=chart.value,
        effect=chart.effect,
        low=_less(chart.effect, chart.high, chart.reference),
        high=_less(chart.effect, chart.low, chart.reference),
        test=chart.statistic,
        threshold=chart.threshold,
        error_control=control,
        n=chart.n,
        smallest=chart.smallest_shift,
        since=since,
        evidence=looked,
        detail={
            "kind": chart.kind,
            "metric": chart.metric,
            "direction": _side(chart),
            "band": [chart.low, chart.high],
            "chart": chart.chart,
            "freedom": chart.freedom,
            "reference_cycles": chart.reference_cycles,
            "as_of": told.cycle,
            "behaviour": told.behaviour,
            "typical_value": _typical(chart),
        },
    )


def _sentence(told: _Told, cycles: tuple[int, ...], since: int | None) -> str:
    chart = told.chart
    what = f"{_named(chart)} {_figure(chart, chart.reference)} -> {_figure(chart, chart.value)}"
    low = (
        chart.low
        if chart.low is None or not told.behaviour or chart.kind not in ("mean", "slice")
        else max(chart.low, 0.0)
    )
    band = f"(band {_figure(chart, low)}..{_figure(chart, chart.high)})"
    first = "" if since is None else f", first out in cycle {since}"
    when = "" if told.cycle == cycles[-1] else f"; as of cycle {told.cycle}, the last that is ripe"
    inside = chart.value is not None and (chart.low or 0.0) <= chart.value <= (chart.high or 0.0)
    how = ", by its average over cycles" if inside else ""
    often = "; out in two of the last three cycles" if chart.status == "blocks" else ""
    return f"{what} {band}, n={chart.n:,}{first}{how}{often}{when}"


def _named(chart: Chart) -> str:
    title = STATISTICS[chart.metric].title.lower() if chart.metric in STATISTICS else chart.metric
    where = "" if chart.slice == WHOLE else f" where {chart.slice}"
    match chart.kind:
        case "spread":
            return f"spread of {title}"
        case "association":
            return f"correlation of {title} with predicted failure"
        case _:
            typical = "typical " if _typical(chart) else ""
            return f"{typical}{title}{where}"


def _unit(chart: Chart) -> str:
    match chart.kind:
        case "spread":
            return "log of the standard deviation"
        case "association":
            return "Fisher's z of the correlation"
        case _:
            return STATISTICS[chart.metric].unit if chart.metric in STATISTICS else ""


def _figure(chart: Chart, value: float | None) -> str:
    if value is None:
        return "-"
    if chart.kind == "spread":
        return f"{np.exp(value):.3g}"
    if chart.kind == "association":
        return f"{np.tanh(value):+.2f}"
    if chart.metric in STATISTICS and STATISTICS[chart.metric].kind == "rate":
        return f"{100 * value:.1f} %"
    return f"{value:.3g}"


def _side(chart: Chart) -> Literal[1, -1]:
    return 1 if (chart.statistic or 0.0) > 0 else -1


def _less(effect: float | None, edge: float | None, level: float | None) -> float | None:
    """End of the effect's interval: the band's half on the other side, turned round."""
    return None if effect is None or edge is None or level is None else effect - (edge - level)


def _evidence(view: View, told: _Told) -> Evidence:
    chart = told.chart
    if chart.kind not in ("mean", "slice") or chart.metric not in STATISTICS:
        return Evidence()
    bands = SLICES.get(chart.slice, {})
    return evidence(view.lake, told.cycle, STATISTICS[chart.metric], bands, _side(chart), seed=0)


def _unassessed(said: Iterable[Chart]) -> list[Unassessed]:
    """By slice and reason, so that a slice without rows is told once."""
    grouped: dict[tuple[str, str], list[str]] = defaultdict(list)
    for chart in said:
        if chart.status == "not_assessable":
            kind = "" if chart.kind in ("mean", "slice") else f"{chart.kind} of "
            grouped[chart.slice, chart.reason].append(f"{kind}{chart.metric}")
    found = []
    for (slice_, reason), names in grouped.items():
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        where = "" if slice_ == WHOLE else f" in {slice_}"
        found.append(Unassessed(f"{', '.join(names[:_NAMED])}{more}{where}", reason))
    return found


def _power(said: Iterable[Chart]) -> str:
    shown = [
        f"{_named(chart)} {_figure(chart, chart.smallest_shift)}"
        for chart in said
        if chart.kind == "mean" and chart.smallest_shift is not None
    ]
    return f"would have seen a lasting shift within five cycles, of: {'; '.join(shown)}" if shown else ""
