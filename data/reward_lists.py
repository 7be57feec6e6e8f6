"""Reward lists: an evaluation's rewards without its transcripts, as tinker-cookbook runs cache them.

``{"rewards": [...], "metadata": {"checkpoint", "env_name", ...}}``, one file per checkpoint and environment. There is
no behaviour in them, so they give no interaction (the source ``tinker-rollouts`` says so in quarantine); what they do
give is a point of an aggregated series.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pyarrow as pa

from palomar.data.errors import IngestError
from palomar.data.series import SERIES
from palomar.data.sources._chat import reward_of
from palomar.data.sources._json import loads

_CHECKPOINT = re.compile(r"://(?P<run>[^:/]+).*?(?P<step>\d+)$")


def read_reward_lists(paths: Iterable[Path]) -> pa.Table:
    """One row of the metric ``reward`` per file, with the columns of `palomar.data.series.SERIES`.

    The cycle is the number at the end of the checkpoint's name, 0 for the untrained model (``null``); the slice is the
    environment, and the run where the checkpoint names one. Rewards that are null or no finite number are left out of
    mean and n: a scorer that failed is not a zero. Raises IngestError for a file that is no reward list.
    """
    return pa.Table.from_pylist([_row(path) for path in paths], schema=SERIES)


def _row(path: Path) -> dict[str, Any]:
    value = loads(path.read_bytes(), str(path))
    rewards = value.get("rewards") if isinstance(value, dict) else None
    about = value.get("metadata") if isinstance(value, dict) else None
    if not isinstance(rewards, list) or not isinstance(about, dict):
        raise IngestError(str(path), None, None, 'expected {"rewards": [...], "metadata": {...}}', "schema")
    environment, checkpoint = about.get("env_name"), about.get("checkpoint")
    if not isinstance(environment, str):
        raise IngestError(str(path), None, "metadata.env_name", "expected the name of the environment", "schema")
    found = _CHECKPOINT.search(checkpoint) if isinstance(checkpoint, str) else None
    if checkpoint is not None and found is None:
        raise IngestError(str(path), None, "metadata.checkpoint", "expected a name that ends in a number", "schema")
    valid = [reward.value for reward in (reward_of("reward", item) for item in rewards) if reward.value is not None]
    return {
        "cycle": int(found["step"]) if found else 0,
        "slice": f"{environment} {found['run']}" if found else environment,
        "metric": "reward",
        "mean": fmean(valid) if valid else None,
        "sd": stdev(valid) if len(valid) > 1 else None,
        "n": len(valid),
    }
