"""How fast facts are scored: one million interactions under the sound reward."""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa

from palomar.app.bench import Measure
from palomar.data.observations import FACTS
from palomar.reward.scoring import score
from palomar.reward.spec import bundled

SEED = 1


def measure(quick: bool) -> list[Measure]:
    """Seconds and rows per second, one process; `quick` takes a tenth of the rows and sets no aim for the total."""
    rows = 100_000 if quick else 1_000_000
    facts = random_facts(rows, SEED)
    start = time.perf_counter()
    score(facts, bundled("sound"))
    elapsed_s = time.perf_counter() - start
    return [
        Measure("score interactions under the sound reward", elapsed_s, "s", rows, (SEED,), None if quick else 5.0),
        Measure("interactions scored per second", rows / elapsed_s, "1/s", rows, (SEED,), 200_000.0, "at_least"),
    ]


def random_facts(rows: int, seed: int) -> pa.Table:
    """Facts of a made-up but ordinary mix: edits, questions, broken calls, replies, gaps in what is known."""
    rng = np.random.default_rng(seed)
    edited = rng.random(rows) < 0.7
    watched_s = rng.uniform(0.0, 200_000.0, rows)
    given: dict[str, pa.Array] = {
        "interaction_id": pa.array(np.char.add("i", np.arange(rows).astype(np.str_))),
        "source": pa.array(np.full(rows, "bench")),
        "traffic": pa.array(np.full(rows, "production")),
        "conversation_id": pa.array(np.char.add("c", (np.arange(rows) // 2).astype(np.str_))),
        "turn": pa.array(np.arange(rows) % 2),
        "organisation": pa.array(rng.choice(["harbor", "lumen", "quill"], rows)),
        "ambiguity": _sometimes(rng, rng.random(rows), 0.001),
        "predicted_failure": _sometimes(rng, rng.random(rows), 0.001),
        "invalid_malformed": pa.array((rng.random(rows) < 0.03).astype(np.int32)),
        "edits": pa.array(edited.astype(np.int32)),
        "edited": pa.array(edited),
        "asked": pa.array(~edited & (rng.random(rows) < 0.8)),
        "functions_before": pa.array(rng.integers(1, 6, rows)),
        "functions_after": pa.array(rng.integers(1, 9, rows)),
        "function_lines_before": pa.array(rng.integers(8, 80, rows)),
        "function_lines_after": pa.array(rng.integers(8, 90, rows)),
        "latency_s": _sometimes(rng, rng.exponential(20.0, rows), 0.001),
        "tests_passed": pa.array(rng.integers(0, 6, rows)),
        "tests_run": pa.array(np.full(rows, 5)),
        "watched_s": pa.array(watched_s),
        "edit_lost_s": _sometimes(rng, watched_s * rng.random(rows), 0.7),
        "follow_up": _sometimes(rng, rng.choice(["dissatisfied", "satisfied", "neutral"], rows), 0.6),
        "follow_up_s": pa.array(watched_s * rng.random(rows)),
    }
    return pa.table([_column(field, given.get(field.name), rows) for field in FACTS], schema=FACTS)


def _sometimes(rng: np.random.Generator, values: np.ndarray, missing: float) -> pa.Array:
    """Values of which a share is not known."""
    return pa.array(values, mask=rng.random(len(values)) < missing)


def _column(field: pa.Field, values: pa.Array | None, rows: int) -> pa.Array:
    if values is not None:
        return values.cast(field.type)
    if field.nullable:
        return pa.nulls(rows, field.type)
    return pa.array(np.zeros(rows, dtype=np.int8)).cast(field.type)
