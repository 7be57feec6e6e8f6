"""The drift layer alone: false alarms on streams where only the cycles differ, delays where the behaviour changes.

Streams are those of `palomar.app.streams`: 20 reference cycles and 60 more; thresholds come from a stream's own
reference and the stated budget, nothing else. Seeds 0-199 were looked at while the layer was built; all figures are
from others (`NULL_SEEDS`, `CHANGE_SEEDS`, `SIZE_SEEDS`).

An alarm is the first cycle of a stream in which any channel is out; the rate counts cycles up to it. The delay is that
of the changed metric's own channels, 1 = in the first changed cycle, and misses are streams without one in 30 cycles.
A run is blocked by mistake when two of three cycles are out at any time in the `FOLLOWED` cycles after the reference.

The cost is that of 10 million interactions in a lake, from rows to verdict with nothing kept of them before, in a
process of its own; its imports are not in it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from scipy import stats

from palomar.app.bench import Measure
from palomar.app.streams import CHANGED, REFERENCE, START, Change, Null, stream
from palomar.data.lake import Lake
from palomar.data.observations import OBSERVATIONS
from palomar.detectors.channels import ROLES, Sums, channels
from palomar.detectors.drift import drift, findings
from palomar.detectors.lake_sums import sums_of_lake
from palomar.detectors.statistics import STATISTICS

NULL_SEEDS = range(1000, 1200)
CHANGE_SEEDS = range(2000, 2100)
"""The same seeds for every change: only what is drawn of the changed metric differs."""
SIZE_SEEDS = {20_000: range(3000, 3100), 100_000: range(3000, 3020)}
QUICK = 6
FOLLOWED = 30
SHORT_REFERENCES = (8, 10)
BLOCKED_AIM = 0.05
LAKE_CYCLES, LAKE_ROWS, QUICK_ROWS = 80, 125_000, 5_000
"""10 million interactions; `QUICK_ROWS` a cycle with ``--quick``."""
LAKE_STATISTICS = (
    "edit_rate",
    "clarification_rate",
    "invalid_call_rate",
    "test_pass_share",
    "tool_calls_mean",
    "agent_turns_mean",
    "tokens_out_mean",
    "latency_mean",
    "function_lines_mean",
    "functions_per_edit",
    "dissatisfied_rate",
    "reward_mean",
)
CPU_AIM, MEMORY_AIM = 5.0, 1.0
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
    stopped: bool
    """One of the first `FOLLOWED` cycles was blocked."""


def measure(quick: bool) -> list[Measure]:
    """The benchmark; with `quick`, `QUICK` streams of each kind and no large ones."""
    with ProcessPoolExecutor(PROCESSES) as pool:
        measures = []
        seeds = NULL_SEEDS[:QUICK] if quick else NULL_SEEDS
        for null, aim in NULL_AIMS.items():
            watched = list(pool.map(partial(watch, null), seeds))
            measures += _rates(f"{NULL_WORDS[null]}, 2,000 a cycle", watched, seeds, aim)
        for length in SHORT_REFERENCES:
            watched = list(pool.map(partial(watch, "stationary", reference=length), seeds))
            measures += _rates(f"stationary, {length} reference cycles", watched, seeds, NULL_AIMS["stationary"])
        for size, large in () if quick else SIZE_SEEDS.items():
            watched = list(pool.map(partial(watch, "stationary", n=size), large))
            measures += _rates(f"stationary, {size:,} a cycle", watched, large, NULL_AIMS["stationary"])
        seeds = CHANGE_SEEDS[:QUICK] if quick else CHANGE_SEEDS
        for change, aim in CHANGE_AIMS.items():
            measures += _delays(change, list(pool.map(partial(delay, change), seeds)), seeds, aim)
    return measures + _cost(QUICK_ROWS if quick else LAKE_ROWS)


def watch(null: Null, seed: int, n: int = 2000, reference: int = REFERENCE) -> Watched:
    """Run the drift layer over an unchanged stream, on its last ``reference`` reference cycles."""
    result = drift(channels(_later(stream(seed, null, None, n), REFERENCE - reference), reference), reference)
    out = np.atleast_1d(result.out.any(axis=1))
    first = int(np.argmax(out)) + 1 if out.any() else len(out)
    blocked = np.atleast_1d(result.blocks.any(axis=1))
    return Watched(first, bool(out.any()), int(blocked.sum()), len(out), bool(blocked[:FOLLOWED].any()))


def delay(change: Change, seed: int) -> int | None:
    """Cycles from a change to the first alarm on its metric's channels; None if there is none in `FOLLOWED`."""
    series = channels(stream(seed, "stationary", change), REFERENCE)
    own = np.array([metric == CHANGED[change] for metric in series.metric])
    out = drift(series, REFERENCE).out[START : START + FOLLOWED, own].any(axis=1)
    return int(np.argmax(out)) + 1 if out.any() else None


def _later(sums: Sums, first: int) -> Sums:
    return replace(sums, **{role: getattr(sums, role)[first:] for role in ROLES})


def _rates(what: str, watched: Sequence[Watched], seeds: range, aim: float | None) -> list[Measure]:
    alarms, at_risk = sum(one.alarm for one in watched), sum(one.at_risk for one in watched)
    low, high = stats.chi2.ppf(0.025, 2 * alarms) / 2 if alarms else 0.0, stats.chi2.ppf(0.975, 2 * alarms + 2) / 2
    note = f"{alarms} alarms; Poisson 95 % {1000 * low / at_risk:.1f} to {1000 * high / at_risk:.1f}"
    blocked, cycles = sum(one.blocked for one in watched), sum(one.cycles for one in watched)
    ends = (seeds[0], seeds[-1])
    return [
        Measure(f"alarms: {what}", 1000 * alarms / at_risk, "per 1000 cycles", at_risk, ends, aim, note=note),
        Measure(f"blocked (two of three cycles): {what}", 1000 * blocked / cycles, "per 1000 cycles", cycles, ends),
        Measure(
            f"runs blocked within {FOLLOWED} cycles: {what}",
            sum(one.stopped for one in watched) / len(watched),
            "share",
            len(watched),
            ends,
            None if aim is None or aim > NULL_AIMS["stationary"] else BLOCKED_AIM,
            note=f"{sum(one.stopped for one in watched)} of {len(watched)}",
        ),
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


# -- cost ----------------------------------------------------------------------------------------------------------


def _cost(rows: int) -> list[Measure]:
    """CPU time and peak memory of a verdict on `LAKE_CYCLES` cycles of `rows` rows, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        _fill(Lake(Path(folder)), rows)
        code = f"from palomar.app.bench.drift import judge; judge({folder!r})"
        said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    spent: dict[str, Any] = json.loads(said.stdout)
    n = rows * LAKE_CYCLES
    what = f"{n:,} rows x {len(LAKE_STATISTICS)} in a lake to drift verdict"
    full = rows == LAKE_ROWS
    return [
        Measure(
            f"{what}: CPU", spent["cpu_s"], "s", n, aim=CPU_AIM if full else None, note=f"wall {spent['wall_s']:.1f} s"
        ),
        Measure(
            f"{what}: peak memory",
            spent["peak_gib"],
            "GiB",
            n,
            aim=MEMORY_AIM if full else None,
            note=f"{spent['imported_gib']:.2f} of it imports; {spent['channels']} channels",
        ),
        Measure(f"{what}, once one cycle is new: CPU", spent["again_cpu_s"], "s", n),
    ]


def judge(folder: str) -> None:
    """Judges the last cycle of a lake, twice, and prints what it took; run in a process of its own."""
    imported = _peak_gib()
    lake, cycles = Lake(folder), range(LAKE_CYCLES)
    statistics = [STATISTICS[name] for name in LAKE_STATISTICS]
    wall, cpu = time.perf_counter(), time.process_time()
    series = channels(sums_of_lake(lake, cycles, REFERENCE, statistics), REFERENCE)
    findings(drift(series, REFERENCE))
    spent = {"cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - wall, "peak_gib": _peak_gib()}
    for kept in (Path(folder) / "derived" / "drift" / str(LAKE_CYCLES - 1)).glob("*"):
        kept.unlink()
    cpu = time.process_time()
    findings(drift(channels(sums_of_lake(lake, cycles, REFERENCE, statistics), REFERENCE), REFERENCE))
    spent |= {"again_cpu_s": time.process_time() - cpu, "imported_gib": imported, "channels": len(series.kind)}
    print(json.dumps(spent))  # noqa: T201


def _peak_gib() -> float:
    """Of this process alone: what `getrusage` says has that of the one it was forked from in it."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 2**20


def _fill(lake: Lake, rows: int) -> None:
    """Cycles of made-up rows in which every charted column differs from row to row; four cycles, again and again."""
    made = [_cycle(np.random.default_rng(seed), rows) for seed in range(4)]
    for cycle in range(LAKE_CYCLES):
        table = made[cycle % len(made)]
        column = pa.array(np.full(rows, cycle), pa.int32())
        lake.write_observations(table.set_column(table.schema.get_field_index("cycle"), "cycle", column), cycle)


def _cycle(rng: np.random.Generator, rows: int) -> pa.Table:
    edited = rng.random(rows) < 0.6
    filled: dict[str, Any] = {
        "organisation": pa.array(rng.integers(0, 40, rows)).cast(pa.string()),
        "predicted_failure": rng.beta(1.2, 1.2, rows),
        "ambiguity": rng.beta(1, 2, rows),
        "edited": edited,
        "asked": ~edited & (rng.random(rows) < 0.3),
        "agent_turns": rng.poisson(3, rows) + 1,
        "tool_calls": rng.poisson(6, rows),
        "invalid_schema": rng.poisson(0.05, rows),
        "functions_after": rng.poisson(4, rows) + 1,
        "function_lines_after": rng.poisson(60, rows),
        "tokens_out": rng.lognormal(6, 1, rows).astype(np.int64),
        "latency_s": rng.lognormal(3, 0.7, rows),
        "tests_run": rng.integers(1, 9, rows),
        "tests_passed": rng.integers(0, 2, rows),
        "watched_s": np.full(rows, 1e7),
        "follow_up": pa.array(rng.choice(["neutral", "dissatisfied"], rows, p=[0.9, 0.1])),
        "reward": rng.normal(0, 1, rows),
        "interaction_id": pa.array(np.arange(rows)).cast(pa.string()),
        "source": pa.array(["made"] * rows),
        "traffic": pa.array(["production"] * rows),
    }

    def column(field: pa.Field) -> pa.Array:
        if field.name in filled:
            return pa.array(filled[field.name]).cast(field.type)
        if field.nullable:
            return pa.nulls(rows, field.type)
        return pa.array(np.zeros(rows)).cast(pa.int32()).cast(field.type)

    return pa.table([column(field) for field in OBSERVATIONS], schema=OBSERVATIONS)
