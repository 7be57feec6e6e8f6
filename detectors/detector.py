"""Detectors: what looks at a cycle and reports findings.

A detector is one file in ``detectors/checks`` that registers a function with its examples::

    @detector("reward-constant", examples=EXAMPLES)
    def reward_constant(view: View) -> Report: ...

Nothing else needs an edit: the folder is walked, `palomar check` runs it, and the shared suite runs its examples, of
which at least one must fire and one, which looks alike, must not. A team's own are loaded from the paths in its
settings (`load`).

A detector reads what was logged, never the simulator's hidden state, and changes nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from palomar.data.errors import ConfigError
from palomar.data.findings import Report
from palomar.data.lake import Lake, Table
from palomar.reward.spec import RewardSpec

Expected = Literal["fires", "clear", "not_assessable"]
BASELINE_CYCLES = 8
"""Cycles that later ones are compared with, where nobody named others."""


@dataclass(frozen=True, eq=False)
class View:
    """What a detector may look at: a lake, the cycle in question, and the cycles before it.

    A view is itself and equal to no other, so that what several detectors ask of it can be remembered.
    """

    lake: Lake
    cycle: int | None
    """The cycle to judge; None: logs from outside a loop."""
    history: tuple[int, ...] = ()
    """All cycles up to this one, ascending; empty for logs outside a loop."""
    reference: tuple[int, ...] = ()
    """Cycles that it is compared with, ascending: the baseline."""
    specs: Mapping[str, RewardSpec] = field(default_factory=dict)
    """Reward specs by version."""
    updates: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """What the trainer reported of each cycle's update (`trainer.update.UpdateReport`, plain); empty: not known."""

    @classmethod
    def of(
        cls,
        lake: Lake,
        cycle: int | None,
        *,
        reference: Sequence[int] = (),
        specs: Mapping[str, RewardSpec] | None = None,
        updates: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> View:
        """A view of a cycle; without a reference its first `BASELINE_CYCLES` cycles are taken."""
        history = tuple(each for each in lake.numbered("observations") if cycle is not None and each <= cycle)
        chosen = tuple(sorted(reference)) or history[:BASELINE_CYCLES]
        return cls(lake, cycle, history, chosen, specs or {}, updates or {})

    @property
    def monitored(self) -> tuple[int, ...]:
        """The cycles after the reference, the one in question the last."""
        last = self.reference[-1] if self.reference else -1
        return tuple(each for each in self.history if each > last)

    def columns(self, table: Table = "observations", cycles: Iterable[int | None] | None = None) -> frozenset[str]:
        """Columns that the table has in some cycles; without, in the one in question."""
        with self.lake.connect([table], [self.cycle] if cycles is None else list(cycles)) as connection:
            return frozenset(
                name for name, *_ in connection.execute(f"SELECT * FROM {table} LIMIT 0").description or ()
            )

    def scan(self, columns: Sequence[str], cycles: Iterable[int | None] | None = None) -> pa.Table:
        """Columns of the observations of some cycles; without, of the one in question. Read anew at every call."""
        return self.lake.scan("observations", columns, cycles=[self.cycle] if cycles is None else list(cycles))

    def query(
        self, sql: str, cycles: Iterable[int | None] | None = None, parameters: Sequence[object] = ()
    ) -> pa.Table:
        """A query over the view ``observations`` of some cycles; without, of the one in question."""
        with self.lake.connect(["observations"], [self.cycle] if cycles is None else list(cycles)) as connection:
            return connection.execute(sql, list(parameters)).to_arrow_table()


Judge = Callable[[View], Report]


@dataclass(frozen=True)
class Example:
    """A lake on which a detector must fire, or must not."""

    name: str
    make: Callable[[Path], View]
    """Fills a lake in an empty folder."""
    expects: Expected
    """``fires``: a finding; ``clear``: something assessed and nothing found; ``not_assessable``: nothing assessed."""


@dataclass(frozen=True)
class Detector:
    """A registered detector."""

    name: str
    judge: Judge
    examples: tuple[Example, ...]
    about: str
    """Its module's docstring: what it is for, how its errors are controlled, what it is blind to, the source."""
    costly: bool = False
    """Takes more than a second for a thousand interactions: left out in the loop, unless the settings want all."""


_REGISTRY: dict[str, Detector] = {}


def detector(name: str, *, examples: Sequence[Example], costly: bool = False) -> Callable[[Judge], Judge]:
    """Decorator that registers a detector. Raises ValueError for a name that is taken."""

    def register(judge: Judge) -> Judge:
        if name in _REGISTRY:
            raise ValueError(f"two detectors are called {name!r}")
        about = sys.modules[judge.__module__].__doc__ or ""
        _REGISTRY[name] = Detector(name, judge, tuple(examples), about, costly)
        return judge

    return register


def detectors() -> dict[str, Detector]:
    """All detectors by name, in alphabetical order: those that come with Palomar, and what was loaded."""
    _walk()
    return dict(sorted(_REGISTRY.items()))


@cache
def _walk() -> None:
    package = importlib.import_module("palomar.detectors.checks")
    for module in pkgutil.iter_modules(package.__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"{package.__name__}.{module.name}")


@cache
def load(path: Path) -> None:
    """Runs a Python file of the user's own, which registers statistics, detectors or signatures; once per process.

    Raises ConfigError where it cannot be read, or fails.
    """
    name = f"palomar_own_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ConfigError(str(path), None, None, "is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as exc:
        del sys.modules[name]
        raise ConfigError(str(path), None, None, f"fails when it is loaded: {type(exc).__name__}: {exc}") from exc
