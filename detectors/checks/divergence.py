"""Finds a training reward that rises while users get no more: the first thing that a played reward does.

Each cycle is compared with the reference on the same requests: both levels are split by predicted failure, ambiguity
and organisation, and only the part inside those segments counts (Kitagawa; `palomar.detectors.decomposition`), so that
an easier mix of requests is no progress. The mix is that of all requests: what the policy gets excluded from training
is its own doing, and does not pass for a change of mix.

It fires when two things are shown in one cycle, the later of them being the first for which the outcome is known:

1. the training reward is above the reference;
2. users' outcome has gained less than `SHARE` of what that rise would have brought at the slope that the reference's
   own rows have between reward and outcome. "Flat" is thus shown by an upper limit, never taken from a missing
   significance. Where the slope is not above 0, the outcome must be down.

**Errors.** Both must be beyond their limits (an intersection-union test), so that each is tested at the whole budget:
at most `BUDGET` alarms in 1000 cycles in which either is not so. The variance between cycles is estimated from the
reference with its few degrees of freedom, and each test has two charts, the cycle and a moving average
(`palomar.detectors.drift`).

**Blind to**: an outcome that falls while the reward does not rise (drift sees it); a divergence that was there during
the reference; one in a part of the traffic too small to move the whole; rewards of two versions, which are not
compared; what changes inside the segments for reasons of the users, which looks the same as what the policy does.

Source: over-optimisation of a proxy, Gao, Schulman and Hilton (arXiv 2210.10760); the shape over the distance from the
base policy is told with the finding, where the trainer logged that distance.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from palomar.data.findings import Evidence, Finding, Report, Unassessed
from palomar.detectors.checks._examples import rows
from palomar.detectors.checks._examples import view as example
from palomar.detectors.detector import Example, View, detector
from palomar.detectors.divergences import (
    BUDGET,
    MATURE,
    PLACED,
    SHARE,
    Cells,
    Judged,
    Lines,
    cells_of,
    judge,
    lines,
    shapes,
)
from palomar.detectors.drift import SHORTEST, WITHIN

NAME = "outcome-divergence"
NEWEST = 3
"""Cycles that the outcome may lag behind; further back says nothing of today's policy."""
SHOWN = 5
"""Interactions named as carrying the effect, and segments in the detail."""


def _played(cycle: int, gain: float, outcome_gain: float, **columns: Any) -> pa.Table:
    table = rows(cycle, **columns)
    paid = table["reward"].to_numpy() + (gain if cycle >= 8 else 0.0)
    served = table["outcome"].to_numpy() + (outcome_gain if cycle >= 8 else 0.0)
    names = table.column_names
    table = table.set_column(names.index("reward"), "reward", pa.array(paid))
    return table.set_column(names.index("outcome"), "outcome", pa.array(served))


def _easier(folder: Path) -> View:
    """The reward is paid for easy requests and the outcome does not depend on them; then only easy ones come."""
    cycles = []
    for cycle in range(13):
        drawn = rows(cycle, 1200)
        hard = drawn["predicted_failure"].to_numpy() >= 0.4
        noise = np.random.default_rng(cycle).normal(0, 1, (2, len(hard)))
        filled = rows(cycle, 1200, reward=np.where(hard, -1.0, 1.0) + noise[0], outcome=0.5 * noise[0] + noise[1])
        cycles.append(filled.filter(pa.array(~hard)) if cycle >= 8 else filled)
    return example(folder, cycles)


EXAMPLES = (
    Example(
        "the reward rises and users get no more",
        lambda folder: example(folder, [_played(cycle, 0.6, 0.0) for cycle in range(13)]),
        "fires",
    ),
    Example(
        "the reward rises as much and users get their share",
        lambda folder: example(folder, [_played(cycle, 0.6, 0.35) for cycle in range(13)]),
        "clear",
    ),
    Example("an easier mix is paid more and served no better", _easier, "clear"),
    Example(
        "the outcome falls with the reward: no divergence",
        lambda folder: example(folder, [_played(cycle, -0.6, -0.4) for cycle in range(13)]),
        "clear",
    ),
    Example(
        "no outcome is known",
        lambda folder: example(folder, [rows(cycle, outcome=None, outcome_status="immature") for cycle in range(13)]),
        "not_assessable",
    ),
    Example(
        "five cycles are no reference",
        lambda folder: example(folder, [_played(cycle, 0.6, 0.0) for cycle in range(6)], reference=range(5)),
        "not_assessable",
    ),
)


@detector(NAME, examples=EXAMPLES)
def divergence(view: View) -> Report:
    """Judge the newest cycle whose outcome is known."""
    monitored = view.monitored
    if view.cycle is None or not monitored:
        return _nothing("all cycles are reference, or the logs are from outside a loop; it takes cycles after one")
    cycles = [*view.reference, *monitored]
    cells = cells_of(view, cycles, len(view.reference))
    why = _missing(cells)
    if why:
        return _nothing(why)
    series = lines(cells)
    usable = (cells.maturity >= MATURE) & (series.placed >= PLACED)
    series = series.only(usable)
    judged_cycles = np.flatnonzero(usable[cells.reference :])
    if not len(judged_cycles):
        return _nothing(_immature(cells, series))
    place = int(judged_cycles[-1])
    behind = len(monitored) - 1 - place
    if behind > NEWEST:
        return _nothing(
            f"the newest cycle with a known outcome is {monitored[place]}, {behind} before this one; at most {NEWEST} "
            "are waited for"
        )
    few = int((~np.isnan(series.reward[: cells.reference])).sum())
    if few < SHORTEST:
        return _nothing(f"{few} reference cycles have reward and outcome; {SHORTEST} are needed")
    judged = judge(series)
    if np.isnan(judged.reward.threshold) or np.isnan(judged.shortfall.threshold):
        return _nothing("reward or outcome is constant over the reference, which leaves no scale to judge a change by")
    late = (
        (
            Unassessed(
                f"outcome of cycle {view.cycle}",
                f"{_percent(cells.maturity[-1])} of it is known and {MATURE:.0%} are needed; judged is cycle "
                f"{monitored[place]}",
            ),
        )
        if behind
        else ()
    )
    found = (_finding(view, cells, series, judged, place),) if judged.alarms[place] else ()
    return Report(NAME, found, assessed=1, unassessed=late, power=_power(series, judged))


def _nothing(why: str) -> Report:
    return Report(NAME, unassessed=(Unassessed("reward against outcome", why),))


def _missing(cells: Cells) -> str:
    for what, name in (("o", "users' outcome"), ("r", "training reward")):
        known = cells.sums[f"n_{what}"]
        if not known[: cells.reference].any():
            version = " of the version that is paid now" if what == "r" else ""
            return f"the reference has no {name}{version}"
        if not known[cells.reference :].any():
            return f"no cycle after the reference has a {name}"
    return ""


def _immature(cells: Cells, series: Lines) -> str:
    placed = series.placed[cells.reference :]
    if (placed < PLACED).all():
        return f"{_percent(placed[-1])} of the requests lie where the reference has any; {PLACED:.0%} are needed"
    best = np.nanmax(np.nan_to_num(cells.maturity[cells.reference :]))
    return f"at most {_percent(best)} of a cycle's outcome is known so far; {MATURE:.0%} are needed"


def _percent(share: float) -> str:
    return f"{np.nan_to_num(share):.0%}"


def _finding(view: View, cells: Cells, series: Lines, judged: Judged, place: int) -> Finding:
    index = cells.reference + place
    cycle, n = cells.cycles[index], int(cells.sums["n"][index].sum())
    since = cells.cycles[cells.reference + judged.since(place)]
    reward, outcome = (
        _Moved(level, float(side.chart.deviation[0, place, 0]), side.threshold * float(side.chart.error[0, place, 0]))
        for level, side in ((cells.level("r"), judged.reward), (cells.level("o"), judged.outcome))
    )
    expected = series.slope * reward.gain
    statistic = judged.shortfall.statistic[:, place]
    shape = shapes(series, cells.cycles, view.updates)
    lost = cells.outcome_split(index)
    worst = [each for each in np.argsort(lost.within_by_segment)[:SHOWN] if lost.within_by_segment[each] < 0]
    sentence = (
        f"training reward {reward} on the same requests, users' outcome {outcome}, where the reference's rows would "
        f"let such a rise bring {expected:+.2f}; cycle {cycle}, n={n:,}, outcome known for "
        f"{_percent(cells.maturity[index])}, first in cycle {since}"
    )
    if "outcome" in shape and shape["outcome"].status == "past_peak":
        sentence += f"; the outcome is past its peak over the distance from the base, {shape['outcome'].now:.2f} today"
    return Finding(
        detector=NAME,
        severity="blocks",
        sentence=sentence,
        statistic="outcome_mean",
        unit="outcome per interaction",
        before=outcome.before,
        after=outcome.before + outcome.gain,
        effect=outcome.gain,
        low=outcome.gain - outcome.half,
        high=outcome.gain + outcome.half,
        test=float(np.nanmin(statistic)),
        threshold=-judged.shortfall.threshold,
        error_control=f"{BUDGET:g} alarm per 1000 cycles in which the reward is not up or the outcome has followed; "
        f"Student's t with {float(judged.shortfall.chart.freedom[0]):.1f} degrees of freedom, two charts",
        n=n,
        maturity=float(cells.maturity[index]),
        smallest=judged.shortfall.smallest,
        since=since,
        evidence=_evidence(view, cycle),
        detail={
            "cycle": cycle,
            "reward_before": reward.before,
            "reward_gain": reward.gain,
            "reward_low": reward.gain - reward.half,
            "reward_high": reward.gain + reward.half,
            "reward_statistic": float(np.nanmax(judged.reward.statistic[:, place])),
            "reward_threshold": judged.reward.threshold,
            "reward_mix": cells.raw("r", index) - reward.gain,
            "outcome_mix": cells.raw("o", index) - outcome.gain,
            "outcome_expected": expected,
            "slope": series.slope,
            "share": SHARE,
            "segments": [
                {"segment": cells.segments[each], "outcome": float(lost.within_by_segment[each])} for each in worst
            ],
            "over_optimisation": {name: asdict(each) for name, each in shape.items()},
        },
    )


@dataclass(frozen=True)
class _Moved:
    """A level inside the segments."""

    before: float
    gain: float
    half: float
    """Of the gain's interval, at the test's own level."""

    def __str__(self) -> str:
        low, high = self.gain - self.half, self.gain + self.half
        return f"{self.before:.2f} -> {self.before + self.gain:.2f} ({self.gain:+.2f}, limits {low:+.2f}..{high:+.2f})"


def _evidence(view: View, cycle: int) -> Evidence:
    """Those paid most beyond what users got, two at random, and one that was paid and served well."""
    counted = "FROM observations WHERE included IS NOT FALSE AND reward IS NOT NULL AND outcome IS NOT NULL"
    scaled = "(reward - m.r) / nullif(m.sr, 0) {} (outcome - m.o) / nullif(m.so, 0)"
    moments = (
        f"(SELECT avg(reward) AS r, stddev_pop(reward) AS sr, avg(outcome) AS o, stddev_pop(outcome) AS so {counted})"
    )
    listed = f"SELECT interaction_id FROM (SELECT * {counted}), {moments} AS m ORDER BY"
    order = {
        "carrying": f"{scaled.format('-')} DESC NULLS LAST, interaction_id LIMIT {SHOWN}",
        "random": "hash(interaction_id) LIMIT 2",
        "counter": f"{scaled.format('+')} DESC NULLS LAST, interaction_id LIMIT 1",
    }
    found = {
        role: tuple(view.query(f"{listed} {by}", [cycle])["interaction_id"].to_pylist()) for role, by in order.items()
    }
    return Evidence(**found)


def _power(series: Lines, judged: Judged) -> str:
    rise = judged.reward.smallest
    if series.slope > 0:
        rise = max(rise, judged.shortfall.smallest / (SHARE * series.slope))
    return (
        f"a reward that rises by {rise:.2f} for good while the outcome stays would be seen within {WITHIN} cycles in "
        f"every second run; with an outcome that falls by {judged.shortfall.smallest:.2f}, from a rise of "
        f"{judged.reward.smallest:.2f} on"
    )
