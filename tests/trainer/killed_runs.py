"""Runs a small loop that is killed with SIGKILL at every kill point, and each time resumed. A script, not a test.

    python killed_runs.py HOME [KILL] [guarded | gated | fallen]

Each attempt is a forked child, so that the heavy imports are paid once. KILL is ``stages`` (before each stage, and
after its outputs but before its record), ``writes`` (at the 1st, 3rd, 5th ... sync to disk of an attempt), ``response``
(around every write of a response to a forewarning), ``decision`` (around every write of the gate, and of a rollback) or
``never``. A guarded run may patch its reward, a gated one is decided on by the promotion gate, and in a fallen one a
person has the champion blocked while it serves. Prints the number of kills.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from palomar.app.loop import open_loop, run_to
from palomar.app.settings import Settings, SimulatedSource
from palomar.data.production.config import ProductionConfig
from palomar.data.store.checkpoints import Checkpoints
from palomar.data.store.decisions import Decisions
from palomar.data.store.findings import Findings
from palomar.data.store.incidents import Incidents
from palomar.data.store.rewards import Rewards
from palomar.data.store.runs import STAGES, Cycles
from palomar.data.store.verdicts import Verdicts
from palomar.trainer.config import EvaluationConfig, GateConfig, ResponseConfig
from palomar.trainer.cycle import Loop, Moment

CYCLES = 2
SETTINGS = Settings(
    name="killed",
    seed=5,
    cycles=CYCLES,
    baseline_cycles=0,
    source=SimulatedSource(kind="simulated", requests=48, production=ProductionConfig(workers=1)),
    evaluation=EvaluationConfig(tasks=32),
    gate=GateConfig(min_tasks=5),
)
GUARDED = SETTINGS.model_copy(
    update={
        "baseline_cycles": 1,
        # Enough that one cycle shows surely what the naive reward pays against users.
        "source": SETTINGS.source.model_copy(update={"requests": 400}),
        "response": ResponseConfig(mode="apply"),
    }
)
POLICY = Path(__file__).with_name("killed_runs.yaml")
GATED = SETTINGS.model_copy(update={"gate": str(POLICY), "evaluation": EvaluationConfig(tasks=96)})
FALLEN = SETTINGS.model_copy(update={"gate": GateConfig(min_tasks=5, alpha=1e-9)})


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def attempt(settings: Settings, home: Path, prepare: Callable[[], Callable[[Moment], None]]) -> bool:
    """One process; True when it was killed."""
    child = os.fork()
    if child == 0:
        watch = prepare()
        with open_loop(settings, home, watch) as loop:
            if settings is FALLEN:
                loop.watch = lambda moment: (someone_blocks(loop, moment), watch(moment))[-1]
            run_to(loop, CYCLES)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "the run failed"
    return False


def someone_blocks(loop: Loop, moment: Moment) -> None:
    """In cycle 1, while the champion serves: as `palomar gate CHAMPION` does by an experiment."""
    if (moment.cycle, moment.stage, moment.state) != (1, "distil", "begins"):
        return
    champion = loop.store.checkpoints.champion("killed")
    assert champion is not None
    name = champion.checkpoint.checkpoint_id
    decisions = loop.store.decisions
    standing = decisions.get("killed", name)
    if champion.checkpoint.cycle == 0 and (standing is None or standing.verdict != "block"):
        decisions.take(
            "killed",
            name,
            after=decisions.highest("killed", name),
            cycle=1,
            verdict="block",
            kind=None,
            reasons=["rollback", "deteriorated:edits"],
            sentence="users keep less of what it writes",
            evidence={},
            inputs=None,
            policy="ab-1",
            policy_text=None,
            expires_at=None,
            actor="ada",
        )


def nothing() -> Callable[[Moment], None]:
    return lambda moment: None


def before(cycle: int, stage: str) -> Callable[[], Callable[[Moment], None]]:
    def prepare() -> Callable[[Moment], None]:
        def watch(moment: Moment) -> None:
            if (moment.cycle, moment.stage, moment.state) == (cycle, stage, "begins"):
                die()

        return watch

    return prepare


def unrecorded(cycle: int, stage: str) -> Callable[[], Callable[[Moment], None]]:
    def prepare() -> Callable[[Moment], None]:
        record = Cycles.finish_stage

        def finish_stage(self: Cycles, run_id: str, at: int, done: str, **values: object) -> object:
            if (at, done) == (cycle, stage):
                die()
            return record(self, run_id, at, done, **values)  # type: ignore[arg-type]

        Cycles.finish_stage = finish_stage  # type: ignore[method-assign,assignment]
        return nothing()

    return prepare


def around(method: str, *, after: bool) -> Callable[[], Callable[[Moment], None]]:
    """At a call of the store's rewards by the loop's response: before it, or after it has written."""

    def prepare() -> Callable[[Moment], None]:
        done = getattr(Rewards, method)

        def call(self: Rewards, *given: object, **named: object) -> object:
            if named.get("actor") == "palomar run":  # which is how a run begins
                return done(self, *given, **named)
            if not after:
                die()
            done(self, *given, **named)
            return die()

        setattr(Rewards, method, call)
        return nothing()

    return prepare


def at(owner: type, method: str, cycle: int, *, after: bool) -> Callable[[], Callable[[Moment], None]]:
    """At the first call of a method of the store in the last stages of a cycle: before it, or after it has written."""

    def prepare() -> Callable[[Moment], None]:
        done, armed = getattr(owner, method), [False]

        def call(self: object, *given: object, **named: object) -> object:
            if not armed[0]:
                return done(self, *given, **named)
            if not after:
                die()
            done(self, *given, **named)
            return die()

        def watch(moment: Moment) -> None:
            armed[0] = moment.cycle == cycle and moment.stage in ("decide", "deploy")

        setattr(owner, method, call)
        return watch

    return prepare


_BOTH = (False, True)
DECISION: dict[str, tuple[Callable[[], Callable[[Moment], None]], ...]] = {
    "gated": (
        before(0, "decide"),
        *(at(Verdicts, "write", 0, after=after) for after in _BOTH),
        *(at(Decisions, "take", 0, after=after) for after in _BOTH),
        unrecorded(0, "decide"),
        *(at(Checkpoints, "promote", 0, after=after) for after in _BOTH),
        unrecorded(0, "deploy"),
        *(at(Decisions, "take", 1, after=after) for after in _BOTH),
        unrecorded(1, "decide"),
    ),
    "fallen": (
        before(1, "decide"),
        *(at(Decisions, "take", 1, after=after) for after in _BOTH),
        unrecorded(1, "decide"),
        before(1, "deploy"),
        *(at(Checkpoints, "roll_back", 1, after=after) for after in _BOTH),
        *(at(Findings, "write", 1, after=after) for after in _BOTH),
        *(at(Incidents, "arrive", 1, after=after) for after in _BOTH),
        *(at(Incidents, "act", 1, after=after) for after in _BOTH),
        *(at(Checkpoints, "supersede", 1, after=after) for after in _BOTH),
        unrecorded(1, "deploy"),
    ),
}
RESPONSE = (
    before(0, "respond"),
    *(around(method, after=after) for method in ("propose", "add", "change") for after in (False, True)),
    unrecorded(0, "respond"),
)


def at_write(number: int) -> Callable[[], Callable[[Moment], None]]:
    def prepare() -> Callable[[Moment], None]:
        sync, left = os.fsync, [number]

        def fsync(descriptor: int) -> None:
            left[0] -= 1
            if left[0] == 0:
                die()
            sync(descriptor)

        os.fsync = fsync
        return nothing()

    return prepare


def main(home: Path, kill: str, settings: Settings = SETTINGS) -> None:
    kills = 0
    if kill == "stages":
        for stage in STAGES:
            for point in (before(1, stage), unrecorded(1, stage)):
                assert attempt(settings, home, point), f"was not killed at {stage}"
                kills += 1
    elif kill == "response":
        for point in RESPONSE:
            assert attempt(settings, home, point), "was not killed"
            kills += 1
    elif kill == "decision":
        for point in DECISION["fallen" if settings is FALLEN else "gated"]:
            assert attempt(settings, home, point), f"was not killed at point {kills}"
            kills += 1
    elif kill == "writes":
        number = 1
        while attempt(settings, home, at_write(number)):
            kills += 1
            number += 2
    attempt(settings, home, nothing)
    print(kills)  # noqa: T201


if __name__ == "__main__":
    chosen = {"guarded": GUARDED, "gated": GATED, "fallen": FALLEN}
    main(Path(sys.argv[1]), sys.argv[2], chosen[sys.argv[3]] if sys.argv[3:] else SETTINGS)
