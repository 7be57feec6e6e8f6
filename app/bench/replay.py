"""How fast a changed reward is replayed: one million logged interactions in a lake, on two cores.

All of `palomar replay` is timed, from the files to the pressures: both rewards, the changes per term, slice and
behaviour, ranking flips, inclusion, and the pressure matrix before and after.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from palomar.app.bench import Measure
from palomar.app.bench.scoring import random_facts
from palomar.data.lake import Lake
from palomar.reward.replay import replay
from palomar.reward.scoring import score
from palomar.reward.spec import bundled

SEED = 1
CYCLES = 8
ROWS_PER_USER = 20
AIM_S = 5.0
TIMES = 3


def measure(quick: bool) -> list[Measure]:
    """Seconds of wall and of CPU, the median of `TIMES`; `quick` takes a tenth of the rows and sets no aim."""
    rows = 100_000 if quick else 1_000_000
    walls, cpus = [], []
    with tempfile.TemporaryDirectory() as folder:
        lake = lake_of(rows, Path(folder))
        for _ in range(TIMES):
            wall, cpu = time.perf_counter(), time.process_time()
            found = replay(lake, range(CYCLES), bundled("naive"), bundled("sound"))
            walls.append(time.perf_counter() - wall)
            cpus.append(time.process_time() - cpu)
            if found.num_rows != rows or not found.pressures or found.flips is None:
                raise RuntimeError("the replay left something out, so its time says nothing")
    aim = None if quick else AIM_S
    note = f"pressures on {found.pressure_rows:,} of them"
    return [
        Measure("replay interactions under a changed reward", float(np.median(walls)), "s", rows, (SEED,), aim,
                note=note),
        Measure("CPU time of that, both cores together", float(np.median(cpus)), "s", rows, (SEED,)),
    ]  # fmt: skip


def lake_of(rows: int, folder: Path) -> Lake:
    """A lake of made-up but ordinary rows of `CYCLES` cycles, paid by the naive reward."""
    rng = np.random.default_rng(SEED)
    table = random_facts(rows, SEED)
    users = pa.array(np.char.add("u", rng.integers(0, max(rows // ROWS_PER_USER, 1), rows).astype(np.str_)))
    table = table.set_column(table.schema.get_field_index("user_id"), "user_id", users)
    cycle = pa.array(rng.integers(0, CYCLES, rows), pa.int32())
    table = table.set_column(table.schema.get_field_index("cycle"), "cycle", cycle)
    scored = score(table, bundled("naive"))
    lake = Lake(folder)
    for number in range(CYCLES):
        lake.write_observations(scored.filter(pc.equal(scored["cycle"], number)), number)
    return lake
