"""How fast a cycle of logged samples becomes pressures: all statistics, signals and slices, from scored rows."""

from __future__ import annotations

import resource
import tempfile
import time

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from palomar.app.bench import Measure
from palomar.app.bench.scoring import random_facts
from palomar.data.lake import Lake
from palomar.data.observations import FACTS, SAMPLES
from palomar.data.slices import SLICES
from palomar.detectors.pressure import measured_statistics, pressures
from palomar.reward.charges import WAITING
from palomar.reward.scoring import score
from palomar.reward.spec import bundled, version

SEED = 1
ROWS = 1_000_000
_USERS = 50_000
_CYCLE = 3


def measure(quick: bool) -> list[Measure]:
    """Seconds and rows per second for one cycle, two threads; `quick` takes a tenth of the rows and has no aims."""
    rows = ROWS // 10 if quick else ROWS
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(folder, memory_limit="3GB", threads=2)
        observations = _observations(rows)
        lake.write_observations(observations, _CYCLE)
        lake.append_samples(_samples(observations), _CYCLE)
        spec = bundled("sound")
        specs = {version(spec): spec}
        del observations
        start, start_cpu = time.perf_counter(), time.process_time()
        found = pressures(lake, [_CYCLE], specs)
        elapsed_s, cpu_s = time.perf_counter() - start, time.process_time() - start_cpu
    peak_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    kinds = len(set(found["kind"].to_pylist()))
    note = f"{len(measured_statistics())} statistics, {kinds} signals, {len(SLICES)} slices, {_USERS:,} users"
    aim = None if quick else 200_000.0
    return [
        Measure("scored rows to pressure", elapsed_s, "s", rows, (SEED,), None if quick else 5.0, note=note),
        Measure("rows per second, scored rows to pressure", rows / elapsed_s, "1/s", rows, (SEED,), aim, "at_least"),
        Measure("scored rows to pressure, processor time", cpu_s, "s", rows, (SEED,)),
        Measure("peak memory, making the rows included", peak_gib, "GiB", rows, (SEED,)),
    ]


def _observations(rows: int) -> pa.Table:
    """Scored rows of one cycle, in which nearly every statistic has something to count."""
    rng = np.random.default_rng(SEED)
    facts = random_facts(rows, SEED)
    edited = facts["edited"].to_numpy()
    given = {
        "cycle": np.full(rows, _CYCLE),
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


def _samples(observations: pa.Table) -> pa.Table:
    """What a trainer with one baseline for the batch logs of them."""
    reward = observations["reward"].to_numpy()
    trained = pc.fill_null(observations["included"], False).to_numpy() & np.isfinite(reward)
    kept = pa.scalar(None, pa.string())
    centred = reward - reward[trained].mean()
    known = {
        "interaction_id": observations["interaction_id"],
        "cycle": np.full(len(reward), _CYCLE),
        "sampled_cycle": np.full(len(reward), _CYCLE),
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
