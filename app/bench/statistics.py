"""How fast all behaviour statistics are measured in all slices, next to a bare scan of the columns they read."""

from __future__ import annotations

import re
import resource
import tempfile
import time
from collections.abc import Callable, Sequence

import duckdb
import numpy as np
import pyarrow as pa

from palomar.app.bench import Measure
from palomar.app.bench.scoring import random_facts
from palomar.data.lake import Lake
from palomar.data.observations import FACTS
from palomar.detectors.cube import DIMENSIONS, Cube, cube
from palomar.detectors.measure import series
from palomar.reward.scoring import score
from palomar.reward.spec import bundled

SEED = 1
_CYCLE_ROWS = 250_000


def measure(quick: bool) -> list[Measure]:
    """Seconds of one pass over a lake of made-up cycles, two threads; `quick` takes a tenth of the rows.

    Best of three: whatever else the machine does only adds time. Processor time is told too, for busy machines.
    """
    cycles = 4 if quick else 40
    rows = cycles * _CYCLE_ROWS
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(folder, memory_limit="3GB", threads=2)
        observations = _observations(_CYCLE_ROWS)
        for cycle in range(cycles):
            # The same rows under another number: as much is read and counted as if they differed.
            number = pa.repeat(pa.scalar(cycle, pa.int32()), _CYCLE_ROWS)
            place = observations.column_names.index("cycle")
            lake.write_observations(observations.set_column(place, "cycle", number), cycle)
        with lake.connect(["observations"]) as connection:
            measured = cube(connection)
            columns = _read_columns(measured, observations.column_names)
            elapsed_s, cpu_s = _best(lambda: series(cube(connection)))
            bare_s, bare_cpu_s = _best(lambda: _bare_scan(connection, columns))
    peak_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    note = f"{len(measured.statistics)} statistics, {len(measured.cells)} cells, {len(columns)} columns"
    return [
        Measure("all statistics in all slices", elapsed_s, "s", rows, (SEED,), None if quick else 15.0, note=note),
        Measure("bare scan of the same columns", bare_s, "s", rows, (SEED,)),
        Measure("all statistics against the bare scan, elapsed", elapsed_s / bare_s, "x", rows, (SEED,), 5.0),
        Measure("all statistics against the bare scan, processor time", cpu_s / bare_cpu_s, "x", rows, (SEED,)),
        Measure("all statistics, processor time", cpu_s, "s", rows, (SEED,)),
        Measure("peak memory, making the rows included", peak_gib, "GiB", rows, (SEED,), 6.0),
    ]


def _best(work: Callable[[], object]) -> tuple[float, float]:
    """Least elapsed and processor seconds of three runs."""
    elapsed, processor = [], []
    for _ in range(3):
        start, start_cpu = time.perf_counter(), time.process_time()
        work()
        elapsed.append(time.perf_counter() - start)
        processor.append(time.process_time() - start_cpu)
    return min(elapsed), min(processor)


def _bare_scan(connection: duckdb.DuckDBPyConnection, columns: Sequence[str]) -> None:
    """Sum of every number and count of every word: the least that reading these columns can cost."""
    kinds = {name: kind for name, kind, *_ in connection.execute("DESCRIBE observations").fetchall()}
    listed = (f'count("{name}")' if kinds[name] in ("VARCHAR", "BOOLEAN") else f'sum("{name}")' for name in columns)
    connection.execute(f"SELECT {', '.join(listed)} FROM observations").fetchall()


def _read_columns(measured: Cube, known: Sequence[str]) -> list[str]:
    """Columns of observations that the statistics and their slices name."""
    texts = [
        text
        for statistic in measured.statistics
        for text in (statistic.numerator, statistic.denominator, statistic.where, statistic.unripe or "")
    ]
    words = set(re.findall(r"\w+:\w+|\w+", " ".join(texts)))
    return sorted((words | {"cycle", *DIMENSIONS}) & set(known))


def _observations(rows: int) -> pa.Table:
    """Scored rows in which every column that is measured holds something."""
    rng = np.random.default_rng(SEED)
    facts = random_facts(rows, SEED)
    edited = facts["edited"].to_numpy()
    given = {
        "work_kind": rng.choice(["fix", "add", "explain"], rows),
        "language": rng.choice(["go", "python"], rows),
        "arm": rng.choice(["a", "b"], rows),
        "agent_turns": rng.integers(1, 6, rows),
        "tool_calls": rng.integers(0, 6, rows),
        **{f"invalid_{kind}": rng.random(rows) < 0.01 for kind in ("unparsed", "unknown_tool", "schema", "rejected")},
        **{f"calls_{fate}": rng.random(rows) < 0.03 for fate in ("failed", "timed_out", "refused")},
        "tokens_in": rng.integers(100, 10_000, rows),
        "tokens_out": rng.integers(10, 500, rows),
        "complexity_after": rng.integers(1, 30, rows),
        "logged_reward": rng.normal(0.0, 1.0, rows),
        "truncated": rng.random(rows) < 0.01,
        "tests_edited": rng.random(rows) < 0.02,
        "function_lines_median": np.where(edited, rng.integers(6, 60, rows) / 2, np.nan),
    }
    for name, values in given.items():
        column = pa.array(values, from_pandas=True).cast(FACTS.field(name).type)
        facts = facts.set_column(facts.column_names.index(name), FACTS.field(name), column)
    return score(facts, bundled("sound"))
