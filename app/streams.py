"""Made-up streams of training cycles for the drift benchmark and its tests: interactions, reduced to sums.

A stream has ``REFERENCE`` cycles and ``MONITORED`` more. Cycles differ without any change of behaviour: effects with
memory (one shared by all metrics, one each), time of day, weekends, the mix of eight organisations with levels of
their own, sessions of five rows that are alike, and a spread that wobbles. `Null` says of which kind these differences
are; `Change` what then happens to the behaviour, from monitored cycle `START` on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import special

from palomar.detectors.channels import Metric, Rows, Sums, sums_of_rows

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Null = Literal["stationary", "heavy", "growth"]
"""``heavy``: t4 shocks that last (rho 0.7 and 0.85); ``growth``: one organisation gains 15 points for good."""
Change = Literal["E", "C", "I", "L", "V", "J"]
"""E edits fall slowly, C questions and I invalid calls on hard requests, L shorter functions, V reward's spread alone,
J questions follow difficulty at an unchanged rate."""
CHANGED = {
    "E": "edit",
    "C": "clarification",
    "I": "invalid_call",
    "L": "function_lines",
    "V": "reward",
    "J": "clarification",
}
"""Metric that a change is of."""

REFERENCE, MONITORED, START = 20, 60, 10
SESSION = 5
SLICES = ("easy", "hard")
_DIFFICULTY = (0.9, 0.7)  # Beta
HARD = float(special.betaincinv(*_DIFFICULTY, 0.85))
"""Difficulty from which a request is hard: 15 % are."""
ORGANISATIONS = tuple(f"org{index}" for index in range(8))
_SHARES = np.array([0.24, 0.19, 0.15, 0.12, 0.10, 0.08, 0.07, 0.05])
_CHUNK = 250_000  # rows in memory at once


@dataclass(frozen=True)
class _Shape:
    """How one metric is drawn; effects are on the logit, the log (or, for reward, the raw) scale."""

    name: str
    base: float
    """Probability, or mean on the scale of effects."""
    excess: float
    """Variance of cycle means over that of row sampling, less 1, at 2000 rows."""
    family: Literal["binary", "normal", "lines", "poisson", "negative_binomial", "gamma"]
    sd: float = 1.0
    """Within a cycle, on the scale of effects; for counts and gamma, an equivalent."""
    difficulty: float = 0.0
    """Effect of difficulty 1 against 0."""


SHAPES = (
    _Shape("edit", 0.61, 1.8, "binary", difficulty=-0.8),
    _Shape("clarification", 0.11, 1.7, "binary"),
    _Shape("invalid_call", 0.0117, 0.4, "binary"),
    _Shape("tests_passed", 0.69, 2.1, "binary", difficulty=-1.2),
    _Shape("accepted", 0.55, 2.4, "binary", difficulty=-0.5),
    _Shape("function_lines", float(np.log(22)), 6.0, "lines", 0.8, 0.2),
    _Shape("latency", float(np.log(20)), 20.0, "normal", 0.7, 0.3),
    _Shape("tool_latency", float(np.log(2)), 8.2, "normal", 0.9),
    _Shape("tool_calls", float(np.log(6)), 7.3, "negative_binomial", 0.7, 0.3),
    _Shape("turns", float(np.log(3)), 7.2, "poisson", 0.6, 0.2),
    _Shape("reward", 0.4, 4.2, "normal", 1.0, -0.4),
    _Shape("length_penalty", float(np.log(0.2)), 4.4, "gamma", 0.7),
)
METRICS = tuple(Metric(shape.name, shape.family != "binary") for shape in SHAPES)
"""Function lines, latency and tool latency are drawn and summed as logs."""
_NAMES = tuple(shape.name for shape in SHAPES)


def stream(seed: int, null: Null = "stationary", change: Change | None = None, n: int = 2000) -> Sums:
    """Sums of one stream of ``n`` interactions a cycle (a multiple of `SESSION`); the same arguments, the same sums."""
    total: Sums | None = None
    for chunk in rows(seed, null, change, n):
        part = sums_of_rows(METRICS, ORGANISATIONS, SLICES, REFERENCE + MONITORED, chunk)
        total = part if total is None else total + part
    assert total is not None
    return total


def rows(seed: int, null: Null, change: Change | None, n: int) -> Iterator[Rows]:
    """The stream's interactions, in chunks of whole cycles."""
    rng = np.random.default_rng(seed)
    world = _world(rng, null)
    per_chunk = max(1, _CHUNK // n)
    cycles = np.arange(REFERENCE + MONITORED)
    for first in range(0, len(cycles), per_chunk):
        yield _chunk(rng, world, cycles[first : first + per_chunk], change, n)


@dataclass(frozen=True)
class _World:
    """What holds for a whole stream."""

    effect: Floats
    """(cycles, metrics)"""
    wobble: Floats
    """Factor of the spread, (cycles, metrics)."""
    mix: Floats
    """(cycles, organisations)"""
    level: Floats
    """(organisations, metrics)"""


def _world(rng: np.random.Generator, null: Null) -> _World:
    cycles = REFERENCE + MONITORED
    heavy = null == "heavy"
    common = _memory(rng, cycles, 1, 0.85 if heavy else 0.6, heavy)
    own = _memory(rng, cycles, len(SHAPES), 0.7 if heavy else 0.4, heavy)
    hours = np.arange(cycles) * 5.0  # a cycle every five hours
    daily = np.sqrt(2) * np.sin(2 * np.pi * hours / 24 + rng.uniform(0, 2 * np.pi))
    weekend = ((hours // 24 + rng.integers(7)) % 7 >= 5) * 1.0
    signs = rng.choice([-1.0, 1.0], (3, len(SHAPES)))
    unit = np.sqrt(0.25) * common * signs[0] + np.sqrt(0.55) * own
    unit += np.sqrt(0.12) * daily[:, None] * signs[1] + np.sqrt(0.08) * (weekend[:, None] - 2 / 7) / 0.45 * signs[2]
    # Effects do not shrink with n: what a cycle is like has nothing to do with how many rows it has.
    scale = np.array([np.sqrt(shape.excess / 2000) * _row_sd(shape) for shape in SHAPES])
    shares = _SHARES
    mix = np.stack([rng.dirichlet(shares * 80) for _ in range(cycles)])
    if null == "growth":
        grown = mix * 0.85
        grown[:, 5] += 0.15
        mix = np.where((np.arange(cycles) >= REFERENCE + START)[:, None], grown, mix)
    level = rng.normal(0, [_like(shape) for shape in SHAPES], (len(ORGANISATIONS), len(SHAPES)))
    level -= shares @ level
    return _World(unit * scale, np.exp(rng.normal(0, 0.012, unit.shape)), mix, level)


def _row_sd(shape: _Shape) -> float:
    """Spread of one row on the scale of effects: for a probability p, 1 / sqrt(p (1 - p)) on the logit."""
    return 1 / float(np.sqrt(shape.base * (1 - shape.base))) if shape.family == "binary" else shape.sd


def _like(shape: _Shape) -> float:
    """Spread of organisations' levels and of sessions, on the scale of effects."""
    return 0.35 if shape.family == "binary" else 0.2 * shape.sd


def _memory(rng: np.random.Generator, cycles: int, count: int, rho: float, heavy: bool) -> Floats:
    """Stationary AR(1) of variance 1, (cycles, count); ``heavy``: its shocks are t with 4 degrees of freedom."""
    warm = 60
    shape = (warm + cycles, count)
    shocks = rng.standard_t(4, shape) / np.sqrt(2) if heavy else rng.standard_normal(shape)
    series = np.empty(shape)
    last = shocks[0]
    for time in range(len(series)):
        last = rho * last + np.sqrt(1 - rho**2) * shocks[time]
        series[time] = last
    return series[warm:]


def _chunk(rng: np.random.Generator, world: _World, cycles: Ints, change: Change | None, n: int) -> Rows:
    sessions = n // SESSION
    cycle = np.repeat(cycles, n)
    # Per cycle, by the inverse of the mix's distribution function: sessions belong to one organisation.
    edges = np.cumsum(world.mix[cycles], axis=1)
    drawn = (rng.random((len(cycles), sessions, 1)) > edges[:, None, :]).sum(axis=2).clip(max=len(ORGANISATIONS) - 1)
    organisation = np.repeat(drawn.ravel(), SESSION)
    difficulty = rng.beta(*_DIFFICULTY, len(cycle))
    hard = difficulty >= HARD
    since = np.maximum(cycle - (REFERENCE + START) + 1, 0)  # 1 in the first cycle of a change
    values = np.empty((len(cycle), len(SHAPES)))
    for index, shape in enumerate(SHAPES):
        session = np.repeat(rng.standard_normal(len(cycles) * sessions), SESSION)
        place = world.effect[cycle, index] + world.level[organisation, index] + _like(shape) * session
        place += shape.difficulty * (difficulty - 0.5625)
        wobble = world.wobble[cycle, index]
        values[:, index] = _draw(rng, shape, place, wobble, _changed(shape.name, change, since, hard, difficulty))
    return Rows(cycle, organisation, hard.astype(np.int64), difficulty, values)


def _changed(
    name: str, change: Change | None, since: Ints, hard: npt.NDArray[np.bool_], difficulty: Floats
) -> Floats | None:
    """The changed probability before other effects; for L the shift of the log, for V the factor of the spread."""
    if change is None or CHANGED[change] != name:
        return None
    match change:
        case "E":
            return 0.61 - (0.61 - 0.445) * np.minimum(since / 15, 1)
        case "C":
            return np.where(hard, 0.11 + (0.45 - 0.11) * np.minimum(since / 10, 1), 0.11)
        case "I":
            return np.where(hard & (since > 0), 0.0345, 0.0117)
        case "L":
            shift: Floats = np.log(9 / 22) * np.minimum(since / 10, 1)
            return shift
        case "V":
            return np.where(since > 0, 1.25, 1.0)
        case "J":
            return np.where(since > 0, 0.02 + 0.16 * difficulty, 0.11)


def _draw(rng: np.random.Generator, shape: _Shape, place: Floats, wobble: Floats, changed: Floats | None) -> Floats:
    size = len(place)
    match shape.family:
        case "binary":
            base = shape.base if changed is None else changed
            chance: Floats = special.expit(special.logit(base) + place)
            return (rng.random(size) < chance).astype(np.float64)
        case "normal":
            noise = shape.sd * wobble * rng.standard_normal(size)
            return shape.base + place + noise * (1.0 if changed is None else changed)
        case "lines":
            body = place + shape.sd * wobble * rng.standard_normal(size) + (0.0 if changed is None else changed)
            tail = rng.random(size) < 0.03
            body[tail] += np.log1p(rng.pareto(1.5, int(tail.sum())))
            return shape.base + body
        case "poisson":
            return rng.poisson(np.exp(shape.base + place)).astype(np.float64)
        case "negative_binomial":
            rate = np.exp(shape.base + place) * rng.standard_gamma(3.0, size) / 3.0
            return rng.poisson(rate).astype(np.float64)
        case "gamma":
            drawn: Floats = np.exp(shape.base + place) * rng.standard_gamma(2.0, size) / 2.0
            return drawn
