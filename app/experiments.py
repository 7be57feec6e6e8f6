"""Experiments of a home: their plans, the report on one, and serving one in the simulated production.

A plan is a YAML file that is kept where its owner keeps it. What `serve` collects lies in the home's
``experiments/<name>/lake``, beside the plan as it was when it began; an experiment that a serving system ran is in the
home's own lake.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from palomar.data.config import read_config
from palomar.data.errors import ConfigError, StoreError
from palomar.data.facts import facts
from palomar.data.lake import Lake
from palomar.data.store import Store
from palomar.detectors.arms import metrics_of, report
from palomar.detectors.experiment import ExperimentReport, Plan

FOLDER = "experiments"
_PLAN = "plan.json"
_FREE = {"metrics", "first_cycle", "last_cycle"}
"""What may differ from the plan that an experiment began with: it decides what is looked at, and on no error rate."""


def read_plan(path: Path) -> Plan:
    """The plan in a file. Raises ConfigError with file, line and key."""
    plan = read_config(path, Plan)
    try:
        metrics_of(plan)
    except ValueError as exc:
        raise ConfigError(str(path), None, "metrics", str(exc)) from exc
    return plan


def lake_of(home: Path, plan: Plan) -> Lake:
    """Where its interactions are: its own lake if it was served here, else the home's."""
    own = home / FOLDER / plan.name / "lake"
    return Lake(own if own.is_dir() else home / "lake")


def report_of(home: Path, plan: Plan) -> ExperimentReport | None:
    """The experiment as it stands; None where nothing of it was collected.

    Raises ConfigError where it was served under another plan: one that is changed after looking holds no error rate.
    """
    _begun_as(home / FOLDER / plan.name / _PLAN, plan)
    return report(lake_of(home, plan), plan, before=Lake(home / "lake"))


@dataclass(frozen=True)
class PlanFile:
    """An experiment that a home knows of."""

    name: str
    """Of the plan; of a file that cannot be read, the file's own."""
    path: Path
    plan: Plan | None
    """None = the file cannot be read."""
    problem: str
    """Why; empty where it can."""
    served: bool
    """Whether it was served here, to simulated users."""


def plans(home: Path) -> list[PlanFile]:
    """The plans in the home's folder of experiments, by name: YAML files, and those that were served here without one.

    One that cannot be read is listed with the reason.
    """
    folder = home / FOLDER
    found: dict[str, PlanFile] = {}
    for path in sorted((*folder.glob("*.yaml"), *folder.glob("*.yml"))):
        try:
            plan = read_plan(path)
            listed = PlanFile(plan.name, path, plan, "", (folder / plan.name / "lake").is_dir())
        except ConfigError as exc:
            listed = PlanFile(path.stem, path, None, str(exc), False)
        found.setdefault(listed.name, listed)
    for path in sorted(folder.glob(f"*/{_PLAN}")):
        try:
            plan = Plan.model_validate_json(path.read_text(encoding="utf-8"))
            listed = PlanFile(plan.name, path, plan, "", True)
        except (OSError, ValueError) as exc:
            listed = PlanFile(path.parent.name, path, None, f"{path}: {exc}", True)
        found.setdefault(listed.name, listed)
    return [found[name] for name in sorted(found)]


def report_at(home: Path, plan: Plan) -> ExperimentReport | None:
    """As `report_of`; made anew only when the plan is another or a file of the lake has changed."""
    # By name and not by an open lake: opening one takes longer than all else here.
    roots = (home / FOLDER / plan.name / "lake", home / "lake")
    files = sorted(path for root in roots for path in (root / "observations").glob("*/*.parquet"))
    state = tuple((str(path), status.st_mtime_ns, status.st_size) for path in files for status in [path.stat()])
    key = (str(home.absolute()), plan.model_dump_json())
    with _lock:
        known = _reports.get(key)
        if known is not None and known[0] == state:
            _reports.move_to_end(key)
            return known[1]
    found = report_of(home, plan)
    with _lock:
        _reports[key] = (state, found)
        _reports.move_to_end(key)
        while len(_reports) > _KEPT:
            _reports.popitem(last=False)
    return found


_KEPT = 16
"""Reports that are remembered."""
_lock = threading.Lock()
_reports: OrderedDict[tuple[str, str], tuple[object, ExperimentReport | None]] = OrderedDict()


def _begun_as(path: Path, plan: Plan) -> None:
    if not path.exists():
        return
    begun = Plan.model_validate_json(path.read_text(encoding="utf-8"))
    for name in sorted(Plan.model_fields.keys() - _FREE):
        if getattr(begun, name) != getattr(plan, name):
            problem = f"was {getattr(begun, name)!r} when the experiment began; a new plan is a new experiment (name)"
            raise ConfigError(plan.name, None, name, problem)


def plain(found: ExperimentReport) -> dict[str, Any]:
    """A report as JSON prints it."""
    effects = [
        asdict(effect) | {"worse": effect in found.worse, "improved": effect in found.improved}
        for effect in found.effects
    ]
    return asdict(found) | {"valid": found.valid, "effects": effects}


def arm_of(plan: Plan) -> Callable[[str], str]:
    """Draws a unit into an arm: by a hash of the plan's name and the unit, so that it is always the same one."""
    edges: list[tuple[float, str]] = []
    reached = 0.0
    for name, arm in plan.arms.items():
        reached += arm.share
        edges.append((reached, name))

    def draw(unit: str) -> str:
        digest = hashlib.sha256(f"{plan.name}\0{unit}".encode()).digest()
        at = int.from_bytes(digest[:8]) / 2**64
        return next((name for edge, name in edges if at < edge), edges[-1][1])

    return draw


def serve(
    home: Path,
    plan: Plan,
    cycles: int,
    *,
    actor: str,
    reason: str,
    store_url: str | None = None,
    requests: int | None = None,
    watch: Callable[[int], None] = lambda cycle: None,
) -> None:
    """Serves ``cycles`` of the experiment to the users of the home's simulated run, after its last cycle.

    ``requests``: first requests a cycle, for all arms; without: as in the run. Cycles that were served before stay and
    are not served again. Nothing is trained on. Raises StoreError where the home holds no simulated run, ConfigError
    where the experiment began under another plan, and CheckpointError for a checkpoint that is not there.
    """
    # The policy is loaded here and nowhere else: reports need no torch.
    from palomar.app.settings import Settings, SimulatedSource
    from palomar.data.followups import FollowUpClassifier
    from palomar.data.production.simulation import SimulatedProduction
    from palomar.reward import versions
    from palomar.reward.scoring import score
    from palomar.trainer.collecting import SimulatedSource as Source
    from palomar.trainer.registry import CheckpointFolder

    if plan.unit != "user":
        raise ConfigError(plan.name, None, "unit", "the simulated production draws users")
    with Store.open(store_url, home) as store:
        runs = store.runs.read()
        if not runs:
            raise StoreError(str(home), "holds no run whose checkpoints could be served")
        run = runs[0]
        settings = Settings.model_validate(run.config)
        begun = [record.cycle for record in store.cycles.read(run.run_id)]
        first = max(begun, default=-1) + 1 if plan.first_cycle is None else plan.first_cycle
        spec = versions.effective(store, run.run_id, first)
        kept = home / FOLDER / plan.name / _PLAN
        _begun_as(kept, plan)
        store.audit_log.append(
            actor=actor,
            action="experiment.serve",
            subject=f"experiment:{plan.name}",
            reason=reason,
            detail={"arms": {name: arm.checkpoint for name, arm in plan.arms.items()}, "cycles": cycles},
        )
    if not isinstance(settings.source, SimulatedSource):
        raise StoreError(str(home), "its users are not simulated; an experiment there is served by what serves them")
    chosen = settings.source
    folder = CheckpointFolder(home / "checkpoints")
    agents = {name: folder.load(arm.checkpoint, settings.policy.runtime) for name, arm in plan.arms.items()}
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(plan.model_dump_json(indent=1), encoding="utf-8")
    lake = Lake(kept.parent / "lake")
    last = first + cycles - 1
    with SimulatedProduction(chosen.production) as production:
        source = Source(
            production=production,
            requests=requests or chosen.requests,
            classifier=FollowUpClassifier(),
            start=chosen.production.start,
            cycle_length=timedelta(hours=chosen.production.cycle_hours),
        )
        there = set(lake.cycles("feedback"))  # written last: a cycle without was not finished
        for cycle in range(first, last + 1):
            if cycle not in there:
                seed = int.from_bytes(hashlib.sha256(f"{plan.name}/{settings.seed}/{cycle}".encode()).digest()[:4])
                source.collect_arms(lake, agents, arm_of(plan), cycle, seed)
            watch(cycle)
        as_of = source.now(last)
        for cycle in range(first, last + 1):
            lake.write_observations(score(facts(lake, cycle, as_of), spec, as_of), cycle)
