"""What a cycle costs beside sampling, the update and running tests: the observatory's own share of the wall time."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from palomar.app.bench import Measure
from palomar.app.settings import DEMO
from palomar.data.store.runs import STAGES

CYCLES, QUICK_CYCLES = 12, 5
WARM_UP = 2
"""Cycles left out: the first ones load the encoder and meet every message and patch for the first time."""
AIM = 0.10


def measure(quick: bool) -> list[Measure]:
    """Runs the demo's loop in a temporary home, with a clock around the three parts that any loop must pay for."""
    from palomar.app.loop import open_loop
    from palomar.data.followups import FollowUpClassifier
    from palomar.data.production.sandbox import Sandbox
    from palomar.data.production.simulation import SimulatedProduction
    from palomar.trainer import cycle as stages
    from palomar.trainer.cycle import run_cycle
    from palomar.trainer.policy import Policy

    cycles = QUICK_CYCLES if quick else CYCLES
    spent: dict[str, float] = {}
    by_stage: dict[str, float] = dict.fromkeys(STAGES, 0.0)
    total = 0.0
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        for name, owner, attribute in (
            ("sampling", Policy, "respond"),
            ("update", stages, "update"),
            ("tests", Sandbox, "run"),
            ("follow-ups", FollowUpClassifier, "classify"),
            ("production", SimulatedProduction, "serve"),
            ("production", SimulatedProduction, "evaluate"),
        ):
            stack.enter_context(_clocked(owner, attribute, name, spent))
        loop = stack.enter_context(open_loop(DEMO, Path(folder)))
        for cycle in range(cycles):
            if cycle == WARM_UP:
                spent.clear()
            began = time.perf_counter()
            record = run_cycle(loop, cycle)
            if cycle >= WARM_UP:
                total += time.perf_counter() - began
                for stage in record.stages:
                    by_stage[stage.stage] += stage.elapsed_s
    measured = cycles - WARM_UP
    # What stands in for users is inside "production" together with the sampling and the tests that it asks for.
    users = spent.pop("production") - spent["sampling"] - spent["tests"]
    follow_ups = spent.pop("follow-ups")
    inside = sum(spent.values())

    def per_cycle(name: str, seconds: float) -> Measure:
        return Measure(name, seconds / measured, "s", measured, (DEMO.seed,))

    def share(name: str, seconds: float, aim: float | None = None) -> Measure:
        return Measure(name, seconds / total, "fraction", measured, (DEMO.seed,), aim)

    return [
        per_cycle("cycle", total),
        *(per_cycle(f"cycle: {name}", seconds) for name, seconds in spent.items()),
        *(per_cycle(f"stage {name}", seconds) for name, seconds in by_stage.items()),
        share("share of a cycle outside sampling, update and tests", total - inside, AIM),
        share("of it: simulated users, patches applied and measured", users),
        share("of it: classing follow-ups", follow_ups),
        share(
            "of it: lake, store, facts, reward, ledger, statistics, checkpoints", total - inside - users - follow_ups
        ),
    ]


@contextmanager
def _clocked(owner: Any, attribute: str, name: str, spent: dict[str, float]) -> Iterator[None]:
    """Adds up the wall time of a function while the context is open."""
    original: Callable[..., Any] = getattr(owner, attribute)

    def clocked(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            spent[name] = spent.get(name, 0.0) + time.perf_counter() - began

    setattr(owner, attribute, clocked)
    try:
        yield
    finally:
        setattr(owner, attribute, original)
