"""How fast a cycle of logged samples becomes pressures, and a verdict, from scored rows.

Pressures: all statistics, signals and slices. Verdict: every detector that the loop runs, on a cycle after `BEFORE`
smaller ones of which everything is known; with two threads for the lake and one for the rest.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from palomar.app.bench import Measure
from palomar.app.bench.scoring import random_facts
from palomar.data.lake import Lake
from palomar.data.observations import FACTS, SAMPLES
from palomar.data.slices import SLICES
from palomar.detectors.check import check
from palomar.detectors.detector import BASELINE_CYCLES, View, detectors
from palomar.detectors.pressure import measured_statistics, pressures
from palomar.reward.charges import WAITING
from palomar.reward.scoring import score
from palomar.reward.spec import RewardSpec, bundled, version

SEED = 1
ROWS = 1_000_000
_USERS = 50_000
BEFORE = BASELINE_CYCLES
"""Cycles before the one that is judged, each with a hundredth of its rows."""


def measure(quick: bool) -> list[Measure]:
    """Seconds and rows per second for one cycle, two threads; `quick` takes a tenth of the rows and has no aims."""
    rows = ROWS // 10 if quick else ROWS
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(folder, memory_limit="3GB", threads=2)
        for cycle in range(BEFORE):
            _write(lake, rows // 100, cycle)
        _write(lake, rows, BEFORE)
        spec = bundled("sound")
        specs = {version(spec): spec}
        start, start_cpu = time.perf_counter(), time.process_time()
        found = pressures(lake, [BEFORE], specs)
        elapsed_s, cpu_s = time.perf_counter() - start, time.process_time() - start_cpu
        judged_s, judging_cpu_s = _judged(lake, specs)
    peak_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    kinds = len(set(found["kind"].to_pylist()))
    note = f"{len(measured_statistics())} statistics, {kinds} signals, {len(SLICES)} slices, {_USERS:,} users"
    aim = None if quick else 200_000.0
    return [
        Measure("scored rows to pressure", elapsed_s, "s", rows, (SEED,), None if quick else 5.0, note=note),
        Measure("rows per second, scored rows to pressure", rows / elapsed_s, "1/s", rows, (SEED,), aim, "at_least"),
        Measure("scored rows to pressure, processor time", cpu_s, "s", rows, (SEED,)),
        Measure(
            "scored rows to verdict", judged_s, "s", rows, (SEED,), None if quick else 5.0,
            note=f"the detectors of the loop; {BEFORE} earlier cycles of {rows // 100:,} rows",
        ),
        Measure("scored rows to verdict, processor time", judging_cpu_s, "s", rows, (SEED,)),
        Measure("peak memory, making the rows included", peak_gib, "GiB", rows, (SEED,)),
    ]  # fmt: skip


def _judged(lake: Lake, specs: Mapping[str, RewardSpec]) -> tuple[float, float]:
    """Seconds and processor seconds of the check of the last cycle, once that of the one before was made."""
    names = [name for name, each in detectors().items() if not each.costly]
    reference = tuple(range(BEFORE))
    check(replace(View.of(lake, BEFORE - 1, specs=specs), reference=reference), names)
    start, start_cpu = time.perf_counter(), time.process_time()
    check(replace(View.of(lake, BEFORE, specs=specs), reference=reference), names)
    return time.perf_counter() - start, time.process_time() - start_cpu


def _write(lake: Lake, rows: int, cycle: int) -> None:
    observations = _observations(rows, cycle)
    lake.write_observations(observations, cycle)
    lake.append_samples(_samples(observations, cycle), cycle)


def _observations(rows: int, cycle: int) -> pa.Table:
    """Scored rows of one cycle, in which nearly every statistic has something to count."""
    rng = np.random.default_rng((SEED, cycle))
    facts = random_facts(rows, SEED + cycle)
    edited = facts["edited"].to_numpy()
    given = {
        "interaction_id": np.char.add(f"c{cycle}-", np.arange(rows).astype(np.str_)),
        "cycle": np.full(rows, cycle),
        "user_id": np.char.add("u", rng.integers(0, _USERS, rows).astype(np.str_)),
        "agent_turns": rng.integers(1, 6, rows),
        "tool_calls": rng.integers(0, 6, rows),
        **{f"invalid_{kind}": rng.random(rows) < 0.01 for kind in ("unparsed", "unknown_tool", "schema", "rejected")},
        **{f"calls_{fate}": rng.random(rows) < 0.03 for fate in ("failed", "timed_out", "refused")},
        "edits_failed": rng.random(rows) < 0.02,
        "tokens_in": rng.integers(100, 10_000, rows),
        "tokens_out": rng.integers(10, 500, rows),
        "complexity_after": rng.integers(1, 30, rows),
        "truncated": rng.random(rows) < 0.01,
        "tests_edited": pa.array(rng.random(rows) < 0.02, mask=~edited),
    }
    for name, values in given.items():
        column = pa.array(values, from_pandas=True).cast(FACTS.field(name).type)
        facts = facts.set_column(facts.column_names.index(name), FACTS.field(name), column)
    return score(facts, bundled("sound"))


def _samples(observations: pa.Table, cycle: int) -> pa.Table:
    """What a trainer with one baseline for the batch logs of them."""
    reward = observations["reward"].to_numpy()
    trained = pc.fill_null(observations["included"], False).to_numpy() & np.isfinite(reward)
    kept = pa.scalar(None, pa.string())
    centred = reward - reward[trained].mean()
    known = {
        "interaction_id": observations["interaction_id"],
        "cycle": np.full(len(reward), cycle),
        "sampled_cycle": np.full(len(reward), cycle),
        "policy_lag": np.zeros(len(reward)),
        "reward": reward,
        "baseline": np.where(trained, reward[trained].mean(), np.nan),
        "advantage": np.where(trained, centred / reward[trained].std(), np.nan),
        "weight": trained.astype(np.float64),
        "trained": trained,
        "reason": pc.if_else(pa.array(trained), kept, pc.fill_null(observations["exclusion"], WAITING)),
        "tokens": np.full(len(reward), 50),
    }
    columns = []
    for field in SAMPLES:
        values = known.get(field.name)
        if values is None:
            columns.append(pa.nulls(len(reward), field.type))
        elif isinstance(values, np.ndarray):
            columns.append(pa.array(values, from_pandas=True).cast(field.type))
        else:
            columns.append(values.cast(field.type))
    return pa.table(columns, schema=SAMPLES)
