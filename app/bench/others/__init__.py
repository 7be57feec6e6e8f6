"""Other tools, each behind the same adapter: what a run looks like to them, and their score for each cycle.

All are given what their users would have: the registered statistics by cycle, or the rows of the observations. A score
is high where a tool is sure of a change; at its own defaults it alarms from ``Comparator.default`` on, so that the same
numbers tell what it says at any other setting. Their packages are development-only and imported where they are used.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from palomar.data.lake import Lake

Floats = npt.NDArray[np.float64]

ROWS = {
    "edited": "edited::INT",
    "asked": "asked::INT",
    "invalid": "(invalid_malformed + invalid_unparsed + invalid_unknown_tool + invalid_schema > 0)::INT",
    "edit_failed": "(edits_failed > 0)::INT",
    "dissatisfied": "(coalesce(follow_up = 'dissatisfied', false))::INT",
    "tool_calls": "tool_calls::DOUBLE",
    "tokens_out": "tokens_out::DOUBLE",
    "latency_s": "latency_s",
    "functions": "CASE WHEN edited THEN functions_after::DOUBLE END",
    "function_lines": "function_lines_median",
    "tests_share": "CASE WHEN tests_run > 0 THEN tests_passed / tests_run END",
    "reward": "reward",
    "outcome": "outcome",
}
"""Columns of the rows that are fed, as SQL over the observations."""

BINARY = ("asked", "invalid", "edit_failed", "dissatisfied")
"""Those that say yes or no, and of which more is worse."""


@dataclass(frozen=True)
class Recording:
    """One recorded run as other tools see it."""

    home: Path
    reference: tuple[int, ...]
    monitored: tuple[int, ...]
    channels: tuple[str, ...]
    """Statistics of the main slices that every reference cycle has and that are not the same in all."""
    series: Floats = field(repr=False)
    """(reference and monitored cycles, channels); NaN where a cycle has no value."""
    weights: Mapping[str, float]
    """Of the reward's terms, by name."""

    @cached_property
    def scaled(self) -> Floats:
        """The series less the reference's mean, in its standard deviations."""
        own = self.series[: len(self.reference)]
        return np.asarray((self.series - own.mean(axis=0)) / own.std(axis=0, ddof=1), dtype=np.float64)

    @cached_property
    def rows(self) -> dict[int, pd.DataFrame]:
        """Rows by cycle, in the order in which they came, with the columns `ROWS`."""
        cycles = (*self.reference, *self.monitored)
        chosen = ", ".join(f"{sql} AS {name}" for name, sql in ROWS.items())
        with Lake(self.home / "lake").connect(["observations"], cycles) as connection:
            frame = connection.execute(
                f"SELECT cycle, {chosen} FROM observations ORDER BY cycle, started_at, interaction_id"
            ).fetch_df()
        return {int(cycle): part.drop(columns="cycle") for cycle, part in frame.groupby("cycle")}

    @cached_property
    def scaled_rows(self) -> dict[int, Floats]:
        """Rows by cycle, each column less its mean over the reference's rows and in their standard deviations."""
        before = pd.concat([self.rows[cycle] for cycle in self.reference]).astype(np.float64)
        spread = before.std().replace(0.0, 1.0)
        return {cycle: ((part - before.mean()) / spread).to_numpy(np.float64) for cycle, part in self.rows.items()}

    @cached_property
    def paid(self) -> dict[int, Floats]:
        """What each of the reward's terms paid (weight included), (rows, terms) by cycle; 0 where it did not apply."""
        cycles = (*self.reference, *self.monitored)
        chosen = ", ".join(f'coalesce("term:{name}", 0) * {weight}' for name, weight in self.weights.items())
        with Lake(self.home / "lake").connect(["observations"], cycles) as connection:
            frame = connection.execute(
                f"SELECT cycle, {chosen} FROM observations ORDER BY cycle, started_at, interaction_id"
            ).fetch_df()
        return {int(cycle): part.drop(columns="cycle").to_numpy(np.float64) for cycle, part in frame.groupby("cycle")}


@dataclass(frozen=True)
class Comparator:
    """One other tool, with one way of using it."""

    name: str
    package: str
    """Of which it is part, by its name on PyPI."""
    module: str
    scores: Callable[[Recording], Floats]
    """(monitored cycles,); one alarm at each that is at least the threshold."""
    default: float
    """Threshold that its own defaults come to."""
    fed: str
    """What it is given, in words."""

    @property
    def version(self) -> str | None:
        """Of its package; None where it is not installed."""
        if importlib.util.find_spec(self.module) is None:
            return None
        return importlib.metadata.version(self.package)

    def alarms(self, recording: Recording, threshold: float | None = None) -> list[int]:
        """Cycles with an alarm, at its defaults or at another threshold."""
        return alarms(recording.monitored, self.scores(recording), self.default if threshold is None else threshold)


def alarms(cycles: tuple[int, ...], scores: Floats, threshold: float) -> list[int]:
    """Cycles whose score is at least the threshold."""
    return [cycle for cycle, score in zip(cycles, scores, strict=True) if score >= threshold - 1e-9]
