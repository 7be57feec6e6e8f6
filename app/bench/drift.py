"""The drift layer alone: false alarms on streams where only the cycles differ, delays where the behaviour changes.

Streams are those of `palomar.app.streams`: 20 reference cycles and 60 more; thresholds come from a stream's own
reference and the stated budget, nothing else. Seeds 0-199 were looked at while the layer was built; all figures are
from others (`NULL_SEEDS`, `CHANGE_SEEDS`, `SIZE_SEEDS`).

An alarm is the first cycle of a stream in which any channel is out; the rate counts cycles up to it. The delay is that
of the changed metric's own channels, 1 = in the first changed cycle, and misses are streams without one in 30 cycles.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy import stats

from palomar.app.bench import Measure
from palomar.app.streams import CHANGED, REFERENCE, START, Change, Null, stream
from palomar.detectors.channels import Sums, channels
from palomar.detectors.drift import drift

NULL_SEEDS = range(1000, 1200)
CHANGE_SEEDS = range(2000, 2100)
"""The same seeds for every change: only what is drawn of the changed metric differs."""
SIZE_SEEDS = range(3000, 3020)
QUICK = 6
FOLLOWED = 30
SHORT_REFERENCE = 10
PROCESSES = 2
NULL_AIMS: dict[Null, float] = {"stationary": 6, "heavy": 15, "growth": 6}
CHANGE_AIMS: dict[Change, float] = {"E": 7, "C": 3, "I": 4, "L": 3, "V": 1, "J": 1}
NULL_WORDS: dict[Null, str] = {
    "stationary": "stationary",
    "heavy": "heavy-tailed and slow",
    "growth": "one organisation growing for good",
}
CHANGE_WORDS: dict[Change, str] = {
    "E": "slow fall of edits",
    "C": "questions on the hard slice",
    "I": "invalid calls on the hard slice",
    "L": "function length",
    "V": "spread of the reward only",
    "J": "association of questions with difficulty only",
}


@dataclass(frozen=True)
class Watched:
    """What one unchanged stream did."""

    at_risk: int
    """Cycles up to the first alarm, or all."""
    alarm: bool
    blocked: int
    """Cycles in which a channel was out in two of three."""
    cycles: int


def measure(quick: bool) -> list[Measure]:
    """The benchmark; with `quick`, `QUICK` streams of each kind and no large ones."""
    with ProcessPoolExecutor(PROCESSES) as pool:
        measures = []
        seeds = NULL_SEEDS[:QUICK] if quick else NULL_SEEDS
        for null, aim in NULL_AIMS.items():
            watched = list(pool.map(partial(watch, null), seeds))
            measures += _rates(f"{NULL_WORDS[null]}, 2,000 a cycle", watched, seeds, aim)
        short = list(pool.map(partial(watch, "stationary", reference=SHORT_REFERENCE), seeds))
        measures += _rates(f"stationary, {SHORT_REFERENCE} reference cycles", short, seeds, None)
        for size in () if quick else (20_000, 100_000):
            watched = list(pool.map(partial(watch, "stationary", n=size), SIZE_SEEDS))
            measures += _rates(f"stationary, {size:,} a cycle", watched, SIZE_SEEDS, NULL_AIMS["stationary"])
        seeds = CHANGE_SEEDS[:QUICK] if quick else CHANGE_SEEDS
        for change, aim in CHANGE_AIMS.items():
            measures += _delays(change, list(pool.map(partial(delay, change), seeds)), seeds, aim)
    return measures


def watch(null: Null, seed: int, n: int = 2000, reference: int = REFERENCE) -> Watched:
    """Run the drift layer over an unchanged stream, on its last ``reference`` reference cycles."""
    result = drift(channels(_later(stream(seed, null, None, n), REFERENCE - reference), reference), reference)
    out = np.atleast_1d(result.out.any(axis=1))
    first = int(np.argmax(out)) + 1 if out.any() else len(out)
    return Watched(first, bool(out.any()), int(result.blocks.any(axis=1).sum()), len(out))


def delay(change: Change, seed: int) -> int | None:
    """Cycles from a change to the first alarm on its metric's channels; None if there is none in `FOLLOWED`."""
    series = channels(stream(seed, "stationary", change), REFERENCE)
    own = np.array([metric == CHANGED[change] for metric in series.metric])
    out = drift(series, REFERENCE).out[START : START + FOLLOWED, own].any(axis=1)
    return int(np.argmax(out)) + 1 if out.any() else None


def _later(sums: Sums, first: int) -> Sums:
    return replace(sums, **{role: getattr(sums, role)[first:] for role in ("n", "x", "xx", "d", "dd", "xd")})


def _rates(what: str, watched: Sequence[Watched], seeds: range, aim: float | None) -> list[Measure]:
    alarms, at_risk = sum(one.alarm for one in watched), sum(one.at_risk for one in watched)
    low, high = stats.chi2.ppf(0.025, 2 * alarms) / 2 if alarms else 0.0, stats.chi2.ppf(0.975, 2 * alarms + 2) / 2
    note = f"{alarms} alarms; Poisson 95 % {1000 * low / at_risk:.1f} to {1000 * high / at_risk:.1f}"
    blocked, cycles = sum(one.blocked for one in watched), sum(one.cycles for one in watched)
    ends = (seeds[0], seeds[-1])
    return [
        Measure(f"alarms: {what}", 1000 * alarms / at_risk, "per 1000 cycles", at_risk, ends, aim, note=note),
        Measure(f"blocked (two of three cycles): {what}", 1000 * blocked / cycles, "per 1000 cycles", cycles, ends),
    ]


def _delays(change: Change, delays: Sequence[int | None], seeds: range, aim: float) -> list[Measure]:
    reached = [FOLLOWED + 1 if one is None else one for one in delays]
    missed = sum(one is None for one in delays)
    note = f"quartiles {np.percentile(reached, 25):.1f} to {np.percentile(reached, 75):.1f}, latest {max(reached)}"
    ends = (seeds[0], seeds[-1])
    what = CHANGE_WORDS[change]
    return [
        Measure(f"median delay: {what}", float(np.median(reached)), "cycles", len(delays), ends, aim, note=note),
        Measure(f"missed in {FOLLOWED} cycles: {what}", float(missed), "streams", len(delays), ends, 0.0),
    ]
