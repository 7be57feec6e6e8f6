"""A loop, put together from settings: the one place in `app/` that knows the trainer.

Imported only inside the commands that train, since it loads torch.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

from palomar.app.gate_exports import DECISION_FILE, write_decision_file
from palomar.app.notify import sending
from palomar.app.notify.sending import ways
from palomar.app.settings import LogSource, Settings, SimulatedSource, reward_text
from palomar.data.errors import ConfigError, StoreError
from palomar.data.followups import FollowUpClassifier
from palomar.data.lake import Lake
from palomar.data.production.simulation import SimulatedProduction
from palomar.data.store import Store
from palomar.data.store.records import Decision
from palomar.detectors.detector import load
from palomar.trainer import collecting
from palomar.trainer.clone import BASE
from palomar.trainer.cycle import Loop, Moment, Source, begin, run_cycle
from palomar.trainer.gate import EvaluationGate, Gate
from palomar.trainer.gate_policy import read_policy
from palomar.trainer.policy import Policy
from palomar.trainer.promotion_gate import PromotionGate
from palomar.trainer.registry import CheckpointFolder


@contextmanager
def open_loop(settings: Settings, home: Path, watch: Callable[[Moment], None] = lambda moment: None) -> Iterator[Loop]:
    """The run in `home`, begun if it is new.

    Raises StoreError where the home holds another run, other settings, or is being run by another process; ConfigError
    for a gate's policy that would hold everything, and for a channel whose address the environment does not have.
    """
    for extension in settings.extensions:
        load(Path(extension))
    chosen = ways(settings.notify, home)
    with ExitStack() as stack:
        stack.enter_context(_alone(home))
        store = stack.enter_context(Store.open(settings.store, home))
        for run in store.runs.read():
            if run.run_id != settings.name:
                raise StoreError(str(home), f"holds the run {run.run_id!r}; give {settings.name!r} a home of its own")
        path = str(BASE) if settings.policy.path == "base" else settings.policy.path
        loop = Loop(
            run_id=settings.name,
            seed=settings.seed,
            home=home,
            lake=Lake(home / "lake"),
            store=store,
            checkpoints=CheckpointFolder(home / "checkpoints"),
            source=stack.enter_context(_source(settings)),
            gate=_gate(settings, store, home),
            base=Policy.load(path, settings.policy.runtime, checkpoint="base"),
            policy=settings.policy.runtime,
            advantage=settings.advantage,
            update=settings.update,
            evaluation=settings.evaluation,
            response=settings.response,
            baseline_cycles=settings.baseline_cycles,
            checks=settings.checks,
            watch=watch,
            decided=lambda decision: _publish(home, decision),
        )
        text, source = reward_text(settings.reward)
        begin(loop, name=settings.name, config=settings.resolved(), spec_text=text, spec_source=source)
        if chosen:
            sending.begin(store, settings.name, chosen)
            loop.watch = lambda moment: _tell(watch, moment, store, settings.name, chosen)
            sending.deliver(store, settings.name, chosen)  # what happened while nothing ran
        yield loop


def _publish(home: Path, decision: Decision) -> None:
    write_decision_file(home / DECISION_FILE, decision)


def _tell(
    watch: Callable[[Moment], None], moment: Moment, store: Store, run_id: str, chosen: Sequence[sending.Way]
) -> None:
    watch(moment)
    if moment.state == "done":
        sending.deliver(store, run_id, chosen)


def _gate(settings: Settings, store: Store, home: Path) -> Gate:
    """Who decides. Raises ConfigError for a policy that could never let anything pass."""
    if not isinstance(settings.gate, str):
        return EvaluationGate(settings.evaluation.suites, settings.gate)
    text = read_policy(settings.gate)
    policy = text.policy
    problem = None
    if policy.check.cycle and settings.checks == "none":
        problem = "asks for the check of each cycle, and checks are none"
    elif policy.experiment is not None:
        problem = "asks for an experiment, and the loop makes none: ask `palomar gate` with a plan, or use `demo`"
    elif unknown := sorted(set(policy.suites) - set(settings.evaluation.suites)):
        problem = f"asks for the suite {', '.join(unknown)}, and evaluation.suites has none of that name"
    if problem is not None:
        raise ConfigError(text.source, None, None, f"{problem}: it would hold every candidate")
    return PromotionGate(text, store, home, settings.name)


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """Holds the home for this process; the kernel lets go of it when the process dies, however it dies."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / ".running").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise StoreError(str(home), "another process is running the loop in this home") from exc
        yield


@contextmanager
def _source(settings: Settings) -> Iterator[Source]:
    classifier = FollowUpClassifier()
    chosen = settings.source
    if isinstance(chosen, LogSource):
        yield collecting.LogSource(chosen.paths, chosen.format, classifier)
        return
    assert isinstance(chosen, SimulatedSource)
    with SimulatedProduction(chosen.production) as production:
        yield collecting.SimulatedSource(
            production=production,
            requests=chosen.requests,
            classifier=classifier,
            start=chosen.production.start,
            cycle_length=timedelta(hours=chosen.production.cycle_hours),
        )


def run_to(loop: Loop, cycles: int) -> None:
    """Runs cycles until `cycles` are complete, taking up one that was interrupted."""
    records = loop.store.cycles.read(loop.run_id)
    for cycle in range(sum(record.status == "complete" for record in records), cycles):
        run_cycle(loop, cycle)
    loop.store.runs.set_status(loop.run_id, "complete")
