"""Lakes for the examples of detectors: made-up cycles with all columns filled, of which an example changes some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from palomar.data.lake import Lake
from palomar.data.observations import OBSERVATIONS, SAMPLES
from palomar.detectors.detector import View

ORGANISATIONS = ("north", "south", "west")
USERS = 60


def rows(cycle: int | None, n: int = 400, seed: int = 0, more_asked: float = 0.0, **columns: Any) -> pa.Table:
    """`n` ordinary interactions of a cycle; ``columns`` replace what is there (a value for all rows, or n of them).

    ``more_asked``: further questions, as a share of all. Further columns (``term:...``, ``status:...``) are added. The
    agent edits in 70 % of cases, asks in 20 % (more on vague requests) and breaks a call in 3 %; edits of easy requests
    stay, those of hard ones mostly do not; reward and outcome follow.
    """
    rng = np.random.default_rng([seed, 0 if cycle is None else cycle + 1])
    hard, vague = rng.beta(1.2, 1.2, n), rng.beta(1.0, 2.0, n)
    asked = rng.random(n) < 0.1 + 0.3 * vague + more_asked
    invalid = (rng.random(n) < 0.03) & ~asked
    edited = ~asked & ~invalid & (rng.random(n) < 0.9)
    lost = edited & (rng.random(n) < hard)
    dissatisfied = rng.random(n) < 0.1 + 0.3 * lost
    tests = rng.integers(3, 9, n)
    reward = np.where(edited, np.where(lost, -1.5, 1.0), np.where(asked, 0.0, -0.5)) + 0.05 * rng.standard_normal(n)
    outcome = np.where(edited & ~lost, 1.0, 0.0) - dissatisfied
    functions, lines = rng.integers(1, 4, n), rng.integers(6, 30, n)
    filled: dict[str, Any] = {
        "interaction_id": [f"c{cycle}-{index:05d}" for index in range(n)],
        "source": "example",
        "conversation_id": [f"c{cycle}-{index}" for index in range(n)],
        "turn": 0,
        "user_id": [f"u{index}" for index in rng.integers(0, USERS, n)],
        "checkpoint": f"k{cycle}",
        "cycle": cycle,
        "traffic": "production",
        "organisation": rng.choice(ORGANISATIONS, n, p=[0.5, 0.3, 0.2]),
        "work_kind": "bug-report",
        "language": "python",
        "predicted_failure": hard,
        "ambiguity": vague,
        "agent_turns": rng.integers(1, 4, n),
        "tool_calls": np.where(asked, 0, rng.integers(1, 4, n)),
        "invalid_malformed": invalid.astype(np.int32),
        "edits": edited.astype(np.int32),
        "edited": edited,
        "asked": asked,
        "files_edited": edited.astype(np.int32),
        "tests_edited": edited & (rng.random(n) < 0.1),
        "functions_before": np.where(edited, functions, 0),
        "functions_after": np.where(edited, functions, 0),
        "function_lines_before": np.where(edited, lines * functions, 0),
        "function_lines_after": np.where(edited, lines * functions, 0),
        "function_lines_median": pa.array(np.where(edited, lines, 0.0), mask=~edited),
        "complexity_after": np.where(edited, 2 * functions, 0),
        "tokens_in": rng.integers(200, 900, n),
        "tokens_out": rng.integers(20, 200, n),
        "latency_s": np.exp(rng.normal(2, 0.5, n)),
        "truncated": False,
        "tests_run": np.where(edited, tests, 0),
        "tests_passed": np.where(edited & ~lost, tests, np.where(edited, tests - 1, 0)),
        "watched_s": 1e6,
        "edit_lost_s": pa.array(np.where(lost, 600.0, 0.0), mask=~lost),
        "follow_up": pa.array(np.where(dissatisfied, "dissatisfied", "neutral")),
        "follow_up_s": 60.0,
        "undone": False,
        "answered": False,
        "reward_version": "v1",
        "reward": reward,
        "reward_status": "valid",
        "included": True,
        "outcome": outcome,
        "outcome_status": "mature",
    }
    filled |= columns
    types = {field.name: field.type for field in OBSERVATIONS}
    absent = {field.name: 0 if field.type == pa.int32() and not field.nullable else None for field in OBSERVATIONS}
    table = {**absent, **filled}
    return pa.table({name: _column(value, n, types.get(name)) for name, value in table.items()})


def _column(value: Any, n: int, kind: pa.DataType | None) -> pa.Array:
    if isinstance(value, pa.Array):
        return value if kind is None else value.cast(kind)
    if isinstance(value, np.ndarray):
        return pa.array(value, from_pandas=True) if kind is None else pa.array(value, from_pandas=True).cast(kind)
    if isinstance(value, list):
        return pa.array(value, kind)
    return pa.array([value] * n, kind)


def samples(observations: pa.Table, cycle: int, **columns: Any) -> pa.Table:
    """What a trainer with a batch baseline logs of a cycle's observations; ``columns`` replace what is there."""
    n = observations.num_rows
    reward = np.asarray(observations["reward"].to_numpy(zero_copy_only=False), dtype=np.float64)
    included = np.asarray(observations["included"].to_numpy(zero_copy_only=False), dtype=np.bool_)
    trained = included & np.isfinite(reward)
    mean = float(reward[trained].mean()) if trained.any() else 0.0
    spread = float(reward[trained].std()) or 1.0 if trained.any() else 1.0
    filled: dict[str, Any] = {
        "interaction_id": observations["interaction_id"].to_pylist(),
        "cycle": cycle,
        "sampled_cycle": cycle,
        "checkpoint": f"k{cycle}",
        "policy_lag": 0,
        "reward": reward,
        "baseline": np.where(trained, mean, np.nan),
        "advantage": np.where(trained, (reward - mean) / spread, np.nan),
        "weight": trained.astype(np.float64),
        "trained": trained,
        "reason": [
            None if kept else (rule or "no_reason")
            for kept, rule in zip(trained, observations["exclusion"].to_pylist(), strict=True)
        ],
        "tokens": 20,
    }
    filled |= columns
    types = {field.name: field.type for field in SAMPLES}
    return pa.table({field.name: _column(filled.get(field.name), n, types[field.name]) for field in SAMPLES})


def view(
    folder: Path,
    cycles: Mapping[int, pa.Table] | Sequence[pa.Table],
    *,
    trained: bool = False,
    reference: Sequence[int] = (),
    **more: Any,
) -> View:
    """A view of the last of some cycles, written to a lake; ``trained``: those after the reference have samples."""
    lake = Lake(folder)
    listed = cycles if isinstance(cycles, Mapping) else dict(enumerate(cycles))
    for cycle, table in listed.items():
        lake.write_observations(table, cycle)
    found = View.of(lake, max(listed), reference=reference, **more)
    if trained:
        for cycle in found.monitored:
            lake.append_samples(samples(listed[cycle], cycle), cycle)
    return found
