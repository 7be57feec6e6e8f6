"""Reads the weights of the reward in force, as ``palomar reward weights --file`` writes them. Standard library only.

{"format": "palomar-weights/1", "run_id": "demo", "from_cycle": 7, "reward_version": "3f0c...",
 "weights": {"edit_persistence": 1.0, "clarification": -0.2}}
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

WEIGHTS_FORMAT = "palomar-weights/1"
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Weights:
    """The reward from a cycle on."""

    reward_version: str
    from_cycle: int
    weights: Mapping[str, float]
    """By term; all finite."""


class WeightsFile:
    """The file, read so that doubt changes nothing."""

    def __init__(self, path: Path | str, run_id: str) -> None:
        self.path = Path(path)
        self._run_id = run_id
        self._newest = -1

    def read(self) -> Weights | str:
        """The weights, or why there are none to be used: then the weights that are in use stay."""
        try:
            with self.path.open("rb") as file:
                raw = file.read(_MOST_BYTES + 1)
            said = json.loads(raw) if len(raw) <= _MOST_BYTES else None
        except (OSError, ValueError, RecursionError) as exc:
            return f"cannot be read ({type(exc).__name__})"
        if not isinstance(said, dict) or said.get("format") != WEIGHTS_FORMAT:
            return f"not in the format {WEIGHTS_FORMAT}"
        if said.get("run_id") != self._run_id:
            return f"of the run {said.get('run_id')!r}"
        version, since, weights = said.get("reward_version"), said.get("from_cycle"), said.get("weights")
        if not isinstance(version, str) or type(since) is not int or not isinstance(weights, dict) or not weights:
            return "it lacks its version, its cycle, or its weights"
        for name, value in weights.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                return f"the weight of {name} is no number"
        if since < self._newest:
            return f"it begins in cycle {since}, and one from cycle {self._newest} on was read before"
        self._newest = since
        return Weights(version, since, {name: float(value) for name, value in weights.items()})


def placed(found: Weights, names: Sequence[str], now: Sequence[float], called: Mapping[str, str]) -> list[float] | str:
    """The weights in the order of a trainer's reward functions; or why they do not fit, and then none is changed.

    ``names`` and ``now``: the trainer's functions and their present weights. ``called``: what the trainer calls a term,
    where it has another name. A function that the reward does not know keeps its weight; a term that is paid and that
    the trainer does not have is a misfit.
    """
    if len(set(names)) != len(names):
        return f"two reward functions share a name: {', '.join(names)}"
    wanted: dict[str, float] = {}
    for term, weight in found.weights.items():
        name = called.get(term, term)
        if name not in names:
            if weight == 0:
                continue  # measured and not paid
            return f"the trainer has no reward function {name!r}; it has {', '.join(names)}"
        if name in wanted:
            return f"two terms are called {name!r}"
        wanted[name] = weight
    if not wanted:
        return f"none of its terms is a reward function of the trainer, which has {', '.join(names)}"
    return [wanted.get(name, before) for name, before in zip(names, now, strict=True)]
