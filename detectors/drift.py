"""Which channels left the level of their reference cycles, at one stated rate of false alarms over all of them.

Training cycles differ from each other by more than their rows do: hours, users, weather. Tests on rows therefore alarm
on every cycle once there are enough rows. Here the unit is the cycle, and everything is learnt from the reference:

- **How much cycles differ.** A channel's variance is sampling variance, known from its sums, plus one between cycles,
  estimated from the reference and never below 0. For a slice it is put next to what the whole's would imply.
- **How sure that is.** Channels of one family (kind, and rate or amount) lend each other strength as in limma (Smyth
  2004): the more alike their overdispersion, the more degrees of freedom, and the closer they are drawn together.
- **How long a difference lasts.** The correlation of neighbouring cycles is pooled over channels. It widens the error
  of the reference's mean and of a moving average, corrects the variance, and costs degrees of freedom: where the
  reference is slow or wild, thresholds rise by themselves.

Each channel has two charts, the cycle itself (Shewhart) and an exponential average of what came after the reference
(EWMA), each a Student t. The budget is split evenly over all of them (Bonferroni), which holds under any dependence.

A cycle out warns. Two of three block, which is for the cycle's chart to say: the average remembers, so once it is out
it stays out, and two of three say no more than one. It counts for blocking where it is beyond the threshold of a
stricter budget (`STRICT`). What is no behaviour of the agent (reward, outcome) is watched and never blocks.

Blind to: a change that was there during the reference, one that fades in over hundreds of cycles, and which of two
organisations changed. Not for a reference of fewer than `SHORTEST` cycles.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from palomar.detectors.channels import Channels, Kind

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Status = Literal["steady", "warns", "blocks", "not_assessable"]
Chart = Literal["cycle", "average"]

BUDGET = 5.0
"""Alarms per 1000 cycles over all channels."""
STRICT = 0.1
"""Share of the budget that the average has to block."""
WEIGHT = 0.25
"""Of the newest cycle in the average."""
SHORTEST = 8
"""Reference cycles with a value that a channel needs."""
WITHIN = 5
"""Cycles within which `Finding.smallest_shift` would be seen."""
_LEAST = 0.05  # overdispersion that is told from none
_POINTS = 400  # of a chi-squared distribution
_MOST_BORROWED = 40.0  # degrees of freedom that a family may add, however alike its channels are
_USUAL_MEMORY, _MEMORY_WORTH = 0.3, 25.0  # prior of the correlation between cycles, and its weight in channel-cycles
_ALIKE = 3.0  # channels that say as much of it as one that is independent of the others
_PER_UNSURE = 5.0  # see `_memory`


@dataclass(frozen=True)
class Drift:
    """All channels of a run; arrays are (monitored cycles, channels) or (channels,), NaN is "not assessable"."""

    channels: Channels
    reference: int
    """Cycles that everything is compared with; the first monitored one has this number."""
    level: Floats
    """Mean of the reference, (channels,)."""
    deviation: Floats
    """Of each monitored cycle from it, or of the average: (charts, monitored, channels)."""
    error: Floats
    """Standard error of ``deviation``, same shape."""
    skewness: Floats
    """Of ``deviation``, from what its rare events say; same shape."""
    threshold: Floats
    """Of deviation / error in size, (channels,)."""
    strict: Floats
    """The same at the share `STRICT` of the budget."""
    freedom: Floats
    """Degrees of freedom of the threshold's t, (channels,)."""
    overdispersion: Floats
    """Variance of a reference cycle over that of its rows, as used, (channels,)."""
    memory: float
    """Correlation of neighbouring cycles' own differences, 0 to 0.9."""
    cycles_known: Ints
    """Reference cycles with a value, (channels,)."""

    @property
    def behaviour(self) -> Flags:
        """Which channels may block, (channels,)."""
        return np.array(self.channels.behaviour or (True,) * len(self.level), dtype=np.bool_)

    @property
    def statistic(self) -> Floats:
        """Deviation over its error, made symmetric: (charts, monitored, channels).

        On the side of the longer tail z is read as the z' of z = z' + skewness (z'^2 - 1) / 6 (Cornish and Fisher
        1938): with one event expected, six are not as rare as five standard errors are elsewhere.
        """
        with np.errstate(invalid="ignore", divide="ignore"):
            z = self.deviation / self.error
            skew = np.where(z * self.skewness > 0, np.abs(self.skewness), 0.0)
            root = np.sqrt(1 + 2 * skew / 3 * (np.abs(z) + skew / 6))
            straight: Floats = np.where(skew > 1e-6, np.sign(z) * np.maximum(3 * (root - 1) / skew, 0.0), z)
        return straight

    @property
    def out(self) -> Flags:
        """Where a channel is beyond its threshold on either chart, (monitored, channels)."""
        return np.asarray((np.abs(self.statistic) > self.threshold).any(axis=0), dtype=np.bool_)

    @property
    def blocks(self) -> Flags:
        """Where a channel counts as out for blocking in two of the last three cycles, this one included; its shape."""
        size = np.abs(self.statistic)
        out = (size[0] > self.threshold) | (size[1] > self.strict)
        recent = out.astype(np.int64)
        for back in (1, 2):
            recent[back:] += out[:-back]
        two: Flags = out & (recent >= 2) & self.behaviour
        return two


def drift(series: Channels, reference: int, budget: float = BUDGET) -> Drift:
    """Compare all cycles after the first ``reference`` with these; ``budget`` in alarms per 1000 cycles.

    Raises ValueError for a budget that is not between 0 and 1000, or a reference without a cycle after it.
    """
    if not 0 < budget < 1000:
        raise ValueError(f"a budget of {budget} alarms per 1000 cycles is not between 0 and 1000")
    if not 0 < reference < len(series.value):
        raise ValueError(f"a reference of {reference} cycles leaves nothing of {len(series.value)} to compare")
    known = ~np.isnan(series.value)
    base = known[:reference]
    count = base.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        level = np.where(base, series.value[:reference], 0).sum(axis=0) / count
        rows = np.where(base, series.variance[:reference], 0).sum(axis=0) / count
        usable = (count >= SHORTEST) & (rows > 0)
        from_level = np.where(base, series.value[:reference] - level, 0.0)
        squares = (from_level**2).sum(axis=0)
        past = _Reference(squares, rows, count, usable)
        memory = _memory(from_level, past)
        excess, freedom = _between(series, past, memory)
    deviation, error, skewness = _charts(series, known & usable, reference, excess, memory)
    tests = 2 * max(int(usable.sum()), 1)
    return Drift(
        channels=series,
        reference=reference,
        level=np.where(usable, level, np.nan),
        deviation=deviation,
        error=error,
        skewness=skewness,
        threshold=_threshold(budget / tests, freedom, usable),
        strict=_threshold(STRICT * budget / tests, freedom, usable),
        freedom=np.where(usable, freedom, np.nan),
        overdispersion=np.where(usable, 1 + excess / np.where(usable, rows, 1), np.nan),
        memory=memory,
        cycles_known=count,
    )


def _threshold(budget: float, freedom: Floats, usable: Flags) -> Floats:
    """Size of a t that is passed ``budget`` times in 1000 looks, on either side, (channels,)."""
    return np.where(usable, stats.t.isf(budget / 1000 / 2, np.maximum(freedom, 1)), np.nan)


@dataclass(frozen=True)
class _Reference:
    """Moments of the reference cycles, (channels,)."""

    squares: Floats
    """Sum about the level."""
    rows: Floats
    """Mean variance of a cycle if rows were independent draws."""
    count: Ints
    usable: Flags


def _memory(from_level: Floats, past: _Reference) -> float:
    """Correlation rho of neighbouring cycles' own differences, pooled.

    A channel whose cycles differ by a share w of its variance shows a correlation of rho w, so rho is the slope over
    channels; short series show less than there is (by about (1 + 3 rho) / m, Kendall 1954). What is made of rho bends
    upwards, so that being unsure of it by a variance v costs as much as a rho that is larger by a multiple of v.
    """
    usable = past.usable
    if not usable.any():
        return _USUAL_MEMORY
    length = float(past.count[usable].mean())
    squares = np.maximum(past.squares[usable], 1e-300)
    shown = (from_level[1:] * from_level[:-1]).sum(axis=0)[usable] / squares
    share = np.clip(1 - past.rows[usable] * (past.count[usable] - 1) / squares, 0, 1)
    slope = ((shown + 1 / length) * share).sum() / (1 - 3 / length)
    prior = _MEMORY_WORTH / length
    weight = float((share**2).sum())
    unsure = _PER_UNSURE / (length * (weight / _ALIKE + prior))
    return float(np.clip((slope + prior * _USUAL_MEMORY) / (weight + prior) + unsure, 0, 0.9))


def _between(series: Channels, past: _Reference, memory: float) -> tuple[Floats, Floats]:
    """Variance between cycles and the degrees of freedom it is known with, (channels,)."""
    count, usable = past.count, past.usable
    rows = np.where(usable, past.rows, 1.0)
    length = max(int(count.max(initial=1)), 1)
    lasting = memory ** np.abs(np.subtract.outer(np.arange(length), np.arange(length)))
    lost = float(lasting.sum()) / length  # of the squares, about a mean that follows the cycles; 1 without memory
    excess = np.where(usable, (past.squares - rows * (count - 1)) / np.maximum(count - lost, 1), 0.0)
    own = np.maximum(excess, 0)
    seen = memory * own / (own + rows)  # correlation of the channel's neighbouring cycles
    free = np.where(usable, (count - 1) * (1 - seen**2) / (1 + seen**2), 0.0)

    ratio, freedom = np.ones(len(own)), free.copy()
    amounts = {metric for kind, metric in zip(series.kind, series.metric, strict=True) if kind == "spread"}
    families: dict[tuple[bool, Kind, bool], list[int]] = {}
    for index in np.flatnonzero(usable).tolist():
        kind = series.kind[index]
        families.setdefault((kind == "slice", kind, series.metric[index] in amounts), []).append(index)
    wholes = _wholes(series)
    implied, shared = np.ones(len(own)), np.zeros(len(own))
    for (is_slice, *_), members in sorted(families.items()):  # slices after the wholes that they look to
        if is_slice:
            # Cycles differ in a slice about as much as in the whole, which leaves less to know of its own, and no more.
            of = wholes[members]
            beyond = (ratio * implied - 1)[of].clip(0) * rows[of] / rows[members]
            implied[members] = 1 + beyond
            shared[members] = (beyond / (1 + beyond)) ** 2 / freedom[of]
        # Not cut at 1 yet: that would make channels look more alike, and more uneven, than they are.
        ratio[members] = np.maximum(1 + excess[members] / rows[members], _LEAST) / implied[members]
        if len(members) >= 3:
            extra, centre = _family(ratio[members], float(free[members].mean()))
            ratio[members] = (free[members] * ratio[members] + extra * centre) / (free[members] + extra)
            freedom[members] += extra
        freedom[members] = 1 / (1 / np.maximum(freedom[members], 1e-9) + shared[members])
    return np.maximum(ratio * implied - 1, 0) * rows, freedom


def _wholes(series: Channels) -> Ints:
    """Position of the ``mean`` of each channel's metric, (channels,)."""
    place = {metric: index for index, metric in enumerate(series.metric) if series.kind[index] == "mean"}
    place |= {metric: index for (kind, metric, _), index in series.aliases.items() if kind == "mean"}
    return np.array([place.get(metric, index) for index, metric in enumerate(series.metric)], dtype=np.int64)


def _family(ratio: Floats, freedom: float) -> tuple[float, float]:
    """Degrees of freedom and value that variances of a family lend each other (Smyth 2004, section 6.2).

    Only what lies above the lower quarter is looked at: channels steadier than their rows allow (requests drawn in
    fixed shares, events that hardly occur) say nothing on how unsteady the others may be. How much variances differ is
    itself known from so many channels only, so two standard errors are added to it: seven that look alike over eight
    cycles need not be.
    """
    chance = stats.chi2.ppf((np.arange(_POINTS) + 0.5) / _POINTS, freedom) / freedom
    quarter = float(np.quantile(chance, 0.25))
    floor = quarter * max(float(np.median(ratio) / np.median(chance)), 1.0)
    by_chance = np.log(np.maximum(chance, quarter))
    logs = np.log(np.maximum(ratio, floor)) - by_chance.mean()
    unsure = 2 * by_chance.var() * np.sqrt(2 / (len(ratio) - 1))
    apart = max(logs.var(ddof=1) - by_chance.var() + unsure, special.polygamma(1, _MOST_BORROWED / 2))
    half = 0.5 + 1 / apart
    for _ in range(30):  # Newton's steps for trigamma(half) = apart
        now = special.polygamma(1, half)
        half += now * (1 - now / apart) / special.polygamma(2, half)
    return float(2 * half), float(np.exp(logs.mean() + special.digamma(half) - np.log(half)))


def _charts(
    series: Channels, known: Flags, reference: int, excess: Floats, memory: float
) -> tuple[Floats, Floats, Floats]:
    """Deviations, their errors and skewness on both charts, (charts, monitored, channels)."""
    cycles, num_channels = series.value.shape
    lasting = memory ** np.abs(np.subtract.outer(np.arange(cycles), np.arange(cycles)))
    deviation = np.full((2, cycles - reference, num_channels), np.nan)
    error, skewness = np.full_like(deviation, np.nan), np.full_like(deviation, np.nan)
    patterns, of_channel = np.unique(known, axis=1, return_inverse=True)
    for number, pattern in enumerate(patterns.T):
        if not pattern[:reference].any():
            continue
        members = np.flatnonzero(of_channel.ravel() == number)
        weights = _weights(pattern, reference)
        between = np.einsum("kti,kti->kt", weights @ lasting, weights)
        value, variance, third = (
            np.where(pattern[:, None], part[:, members], 0) for part in (series.value, series.variance, series.third)
        )
        deviation[:, :, members] = weights @ value
        error[:, :, members] = np.sqrt(between[..., None] * excess[members] + weights**2 @ variance)
        with np.errstate(invalid="ignore", divide="ignore"):
            skewness[:, :, members] = weights**3 @ third / error[:, :, members] ** 3
    absent = ~known[reference:]
    deviation[:, absent] = np.nan
    error[:, absent] = np.nan
    return deviation, error, skewness


def _weights(known: Flags, reference: int) -> Floats:
    """What each statistic is of the cycles' values: (charts, monitored, cycles). Cycles without a value are passed."""
    monitored = np.flatnonzero(known[reference:])
    weights = np.zeros((2, len(known) - reference, len(known)))
    weights[0, monitored, reference + monitored] = 1
    for place, time in enumerate(monitored):
        weights[1, time, reference + monitored[: place + 1]] = WEIGHT * (1 - WEIGHT) ** np.arange(place, -1, -1)
    weights[:, :, :reference] = -weights.sum(axis=2, keepdims=True) * known[:reference] / known[:reference].sum()
    return weights


@dataclass(frozen=True)
class Finding:
    """What the drift layer says of one channel after the last cycle.

    Units: of the metric for means; log (0.1 = 10 % more) for spreads; Fisher's z (about the correlation) for
    associations.
    """

    kind: Kind
    metric: str
    slice: str
    status: Status
    """As of the last cycle; ``not_assessable`` is no "steady"."""
    reason: str
    """Why it could not be assessed, with what it needs; else empty."""
    value: float | None
    """Of the last cycle."""
    reference: float | None
    """Mean of the reference cycles."""
    effect: float | None
    """Value less reference."""
    low: float | None
    """Band in which the last cycle's value would not be out; and its upper end below."""
    high: float | None
    chart: Chart | None
    """The one whose statistic is larger."""
    statistic: float | None
    """Deviation over its error, made symmetric (`Drift.statistic`), signed."""
    threshold: float | None
    """Of the statistic's size; from a t with ``freedom`` at this channel's share of the budget."""
    freedom: float | None
    first_out: int | None
    """First cycle out, counted from the first reference cycle; None if it never was."""
    n: int
    """Rows of the last cycle."""
    reference_cycles: int
    smallest_shift: float | None
    """Lasting shift that would be seen within `WITHIN` cycles in every second run."""
    moved: float | None
    """Average of the monitored cycles less reference, the newest with weight `WEIGHT`, those before fading alike."""
    moved_error: float | None
    """Its standard error, between cycles and within."""


def findings(result: Drift) -> list[Finding]:
    """One finding per channel, in the order of the channels."""
    out, blocks = result.out, result.blocks
    return [_finding(result, index, out[:, index], blocks[:, index]) for index in range(out.shape[1])]


def _finding(result: Drift, index: int, out: Flags, blocks: Flags) -> Finding:
    series, rows = result.channels, result.channels.n[-1, index]
    nothing = Finding(
        kind=series.kind[index],
        metric=series.metric[index],
        slice=series.slice[index],
        status="not_assessable",
        reason=_reason(result, index),
        value=None,
        reference=None,
        effect=None,
        low=None,
        high=None,
        chart=None,
        statistic=None,
        threshold=None,
        freedom=None,
        first_out=result.reference + int(np.argmax(out)) if out.any() else None,
        n=int(rows) if np.isfinite(rows) else 0,
        reference_cycles=int(result.cycles_known[index]),
        smallest_shift=None,
        moved=None,
        moved_error=None,
    )
    if nothing.reason:
        return nothing
    deviation, error = result.deviation[:, -1, index], result.error[:, -1, index]
    statistic = result.statistic[:, -1, index]
    level, threshold = float(result.level[index]), float(result.threshold[index])
    larger = int(np.argmax(np.abs(statistic)))
    # Where the statistic's limit lies on either side, in errors: farther on that of the longer tail.
    bend = float(result.skewness[0, -1, index]) * (threshold**2 - 1) / 6
    later = min(WITHIN, len(out)) - 1
    filled = 1 - (1 - WEIGHT) ** int(np.isfinite(series.value[result.reference :, index]).sum())
    seen = result.error[:, later, index] / np.array([1, 1 - (1 - WEIGHT) ** (later + 1)])
    return replace(
        nothing,
        status="blocks" if blocks[-1] else "warns" if out[-1] else "steady",
        value=level + float(deviation[0]),
        reference=level,
        effect=float(deviation[0]),
        low=level - (threshold + max(-bend, 0.0)) * float(error[0]),
        high=level + (threshold + max(bend, 0.0)) * float(error[0]),
        chart="average" if larger else "cycle",
        statistic=float(statistic[larger]),
        threshold=threshold,
        freedom=float(result.freedom[index]),
        smallest_shift=threshold * float(np.nanmin(seen)) if np.isfinite(seen).any() else None,
        moved=float(deviation[1]) / filled,
        moved_error=float(error[1]) / filled,
    )


def _reason(result: Drift, index: int) -> str:
    has = int(result.cycles_known[index])
    if has < SHORTEST:
        return f"{has} reference cycles have a value; {SHORTEST} are needed"
    if np.isnan(result.level[index]):
        return "constant over the reference, which leaves no scale to judge a change by"
    if np.isnan(result.deviation[0, -1, index]):
        return "no value in the last cycle"
    return ""
