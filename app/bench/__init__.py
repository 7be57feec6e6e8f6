"""Benchmarks: ``palomar bench NAME`` measures, prints one record per measure, and exits 1 when an aim is not met.

One benchmark is one module here with a function ``measure(quick: bool) -> list[Measure]``; nothing else to edit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Literal

SAMPLES = Path(__file__).resolve().parents[2].parent / "shared" / "samples"
"""Real labelled logs, beside the project; a benchmark that needs them says so where they are absent."""


SHARED = ("scored", "planted")
"""Modules here that benchmarks share and that are none."""


@dataclass(frozen=True)
class Measure:
    """One measured figure, next to what was aimed at."""

    measure: str
    """What was measured, in words that stand alone."""
    value: float | None
    """The figure; None where it could not be measured (then ``met`` is False if there is an aim)."""
    unit: str
    n: int
    """Units that the figure rests on: rows, interactions, runs."""
    seeds: tuple[int, ...] = ()
    aim: float | None = None
    """The bar, in the same unit; None = no bar, the figure is for information."""
    better: Literal["at_most", "at_least"] = "at_most"
    """Which side of the aim is good."""
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the aim is met; None where there is none."""
        if self.aim is None:
            return None
        if self.value is None:
            return False
        return self.value <= self.aim if self.better == "at_most" else self.value >= self.aim

    def to_dict(self) -> dict[str, Any]:
        """The record as ``--json`` prints it."""
        return {**asdict(self), "met": self.met}


def benchmarks() -> dict[str, str]:
    """Name of each benchmark -> its module; the folder is walked, nothing is imported."""
    modules = [info.name for info in iter_modules(__path__) if not info.ispkg and info.name not in SHARED]
    return {name.replace("_", "-"): name for name in modules}


def load(name: str) -> Callable[[bool], list[Measure]]:
    """The ``measure`` function of a benchmark. KeyError with the known names where there is none."""
    known = benchmarks()
    if name not in known:
        raise KeyError(f"no benchmark {name!r}; there are: {', '.join(sorted(known))}")
    measure: Callable[[bool], list[Measure]] = import_module(f"{__name__}.{known[name]}").measure
    return measure
