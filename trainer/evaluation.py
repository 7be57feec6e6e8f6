"""Evaluation suites: tasks that nobody trains on, with metrics that know nothing of the reward.

A suite is one file in ``trainer/suites/`` that registers one function::

    @suite("held-out-tasks", metrics=(Metric("tests_pass", "...", "share", "up"),))
    def run(agent: Agent, seed: int, n: int) -> list[TaskResult]: ...

It gives one result per task, not a total, so that a candidate and the champion can be compared task by task: the same
seed and n must give the same tasks, in the same order, whoever the agent is.
"""

from __future__ import annotations

import importlib
import json
import math
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from scipy import stats

import palomar.trainer.suites
from palomar.data.serving import Agent

Kind = Literal["share", "mean"]
Direction = Literal["up", "down", "none"]


@dataclass(frozen=True)
class Metric:
    """One figure of a suite."""

    name: str
    title: str
    kind: Kind
    """``share``: each task gives 0 or 1; ``mean``: each gives a number."""
    better: Direction
    """Which way is better; ``none``: neither is."""
    measures: tuple[str, str] | None = None
    """Behaviour statistic and slice (`palomar.detectors.statistics`) that it is a held-out measure of, if it is one."""


@dataclass(frozen=True)
class TaskResult:
    """How one task went."""

    task_id: str
    cluster: str
    """Tasks that are alike (one module, one repository) share it."""
    metrics: Mapping[str, float | None]
    """By metric; None = it does not apply to what the agent did here, or could not be measured."""


@dataclass(frozen=True)
class Summary:
    """One metric over all tasks to which it applies, with its 95 % interval."""

    metric: str
    value: float | None
    """None = it applied to no task."""
    low: float | None
    high: float | None
    """Wilson's interval for a share, Student's for a mean; None with fewer than two tasks for a mean."""
    n: int
    """Tasks to which it applied."""


@dataclass(frozen=True)
class Evaluation:
    """What one suite measured of one checkpoint."""

    suite: str
    checkpoint: str
    seed: int
    results: tuple[TaskResult, ...]

    def summaries(self) -> list[Summary]:
        """One per metric of the suite."""
        return [summarise(metric, [result.metrics[metric.name] for result in self.results]) for metric in self.metrics]

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The suite's metrics."""
        return load_suites()[self.suite].metrics

    def to_json(self) -> str:
        """As text that `from_json` reads back; equal evaluations give equal text."""
        return json.dumps(asdict(self), sort_keys=True, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Evaluation:
        """The evaluation that `to_json` wrote."""
        fields = json.loads(text)
        return cls(**fields | {"results": tuple(TaskResult(**result) for result in fields["results"])})


Run = Callable[[Agent, int, int], list[TaskResult]]


@dataclass(frozen=True)
class Suite:
    """A registered suite."""

    name: str
    metrics: tuple[Metric, ...]
    run: Run


SUITES: dict[str, Suite] = {}
"""All suites by name, once `load_suites` has walked the folder."""


def suite(name: str, *, metrics: Sequence[Metric]) -> Callable[[Run], Run]:
    """Registers a suite."""

    def register(run: Run) -> Run:
        if name in SUITES:
            raise ValueError(f"two suites are called {name!r}")
        SUITES[name] = Suite(name, tuple(metrics), run)
        return run

    return register


def load_suites() -> dict[str, Suite]:
    """Imports every module of ``trainer/suites/``, and gives all suites by name."""
    for module in pkgutil.iter_modules(palomar.trainer.suites.__path__):
        importlib.import_module(f"{palomar.trainer.suites.__name__}.{module.name}")
    return SUITES


def evaluate(agent: Agent, suites: Sequence[str], *, seed: int, n: int) -> dict[str, Evaluation]:
    """Runs suites on an agent, `n` tasks each. Raises KeyError for a suite that nobody registered."""
    known = load_suites()
    return {name: Evaluation(name, agent.checkpoint, seed, tuple(known[name].run(agent, seed, n))) for name in suites}


def summarise(metric: Metric, values: Sequence[float | None]) -> Summary:
    """One metric over tasks."""
    known = np.array([value for value in values if value is not None], dtype=np.float64)
    n = len(known)
    if n == 0:
        return Summary(metric.name, None, None, None, 0)
    mean = float(known.mean())
    if metric.kind == "share":
        interval = stats.binomtest(int(known.sum()), n).proportion_ci(method="wilson")
        return Summary(metric.name, mean, float(interval.low), float(interval.high), n)
    if n < 2:
        return Summary(metric.name, mean, None, None, n)
    margin = float(stats.t.ppf(0.975, n - 1) * known.std(ddof=1) / math.sqrt(n))
    return Summary(metric.name, mean, mean - margin, mean + margin, n)


def paired(metric: str, first: Evaluation, second: Evaluation) -> tuple[list[float], list[float]]:
    """Values of a metric on the tasks to which it applies in both, in the order of `first`."""
    others = {result.task_id: result.metrics.get(metric) for result in second.results}
    pairs: list[tuple[Any, Any]] = [
        (result.metrics.get(metric), others.get(result.task_id)) for result in first.results
    ]
    both = [(a, b) for a, b in pairs if a is not None and b is not None]
    return [a for a, _ in both], [b for _, b in both]
