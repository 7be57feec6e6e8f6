"""Checks of a run's cycles: what the store knows goes into the view, and what was found goes back into the store."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow.compute as pc

from palomar.data.findings import Finding
from palomar.data.lake import Lake
from palomar.data.store import Store
from palomar.data.store.records import Baseline, Cycle, Forecast
from palomar.detectors.check import Checked
from palomar.detectors.detector import BASELINE_CYCLES, View
from palomar.detectors.forecast import forecast, history
from palomar.reward.spec import RewardSpec
from palomar.reward.versions import stored_spec

LOOP = "palomar loop"
"""Who moves a baseline where no person does."""
LOOKED_BACK = 24
"""Cycles that a step size is learnt from; the oldest of them count for next to nothing."""
FIRST_CYCLES = "first cycles"
"""Reason of a reference that nobody chose."""


def view_of(lake: Lake, store: Store, run_id: str, cycle: int) -> View:
    """What detectors may look at to judge a cycle of a run: compared with the baseline that is in force for it."""
    baseline = store.baselines.current(run_id, cycle)
    records = {record.cycle: record for record in store.cycles.read(run_id) if record.cycle <= cycle}
    return View.of(
        lake,
        cycle,
        reference=_first(store, run_id) if baseline is None else baseline.cycles,
        specs=specs_of(store),
        updates={number: trained for number, record in records.items() if (trained := _trained(record))},
    )


def baseline_of(store: Store, run_id: str, cycle: int) -> tuple[int, ...]:
    """Cycles that a cycle of a run is compared with; none of them is the cycle itself or a later one."""
    baseline = store.baselines.current(run_id, cycle)
    cycles = _first(store, run_id) if baseline is None else baseline.cycles
    return tuple(each for each in cycles if each < cycle)


def specs_of(store: Store) -> dict[str, RewardSpec]:
    """All reward specs in the store, by version."""
    return {record.version: stored_spec(record) for record in store.rewards.read()}


def keep(store: Store, run_id: str, checked: Checked, as_of: datetime | None) -> None:
    """Writes findings, reports and verdict of a cycle in place of those it had."""
    assert checked.cycle is not None
    store.findings.write(run_id, checked.cycle, [storable(finding) for finding in checked.findings], checked.reports)
    store.verdicts.write(
        run_id,
        checked.cycle,
        verdict=checked.verdict.word,
        reasons=checked.verdict.reasons,
        sentence=checked.verdict.sentence,
        findings=checked.verdict.counts,
        budget=checked.budget,
        as_of=as_of,
    )


def foresee(store: Store, run_id: str, view: View) -> list[Forecast]:
    """Writes what came of the forecasts for the view's cycle, and what the next cycle is expected to be like.

    Returns the latter: none where no step was seen yet, or no pressure is known (`palomar.detectors.forecast`).
    """
    if view.cycle is None:
        return []
    cycles = [cycle for cycle in view.history if cycle is not None][-LOOKED_BACK:]
    past = history(view.lake, cycles, view.specs)
    now = past.filter(pc.equal(past["cycle"], view.cycle)).to_pylist()
    store.forecasts.score(run_id, view.cycle, {(row["statistic"], row["slice"]): row["level"] for row in now})
    made = [
        Forecast(row["made_in"], row["for_cycle"], row["statistic"], row["value"], row["change"], row["slice"],
                 row["low"], row["high"], row["step"])
        for row in forecast(past).to_pylist()
        if row["value"] is not None
    ]  # fmt: skip
    store.forecasts.write(run_id, view.cycle, made)
    return made


def follow(store: Store, run_id: str, cycle: int) -> Baseline | None:
    """Moves the baseline to the last cycles where what moved in all of them was learnt honestly; None where it stays.

    `BASELINE_CYCLES` cycles after the baseline in force, each with a verdict that lets pass, in which one statistic and
    slice at least was read as honest learning throughout, and nothing as a hack, a fault, or a change from outside that
    would block. Their policies were promoted, else they would not have served. Cycles from the next one on are judged
    by them. Saying it again changes nothing.
    """
    last = tuple(range(cycle - BASELINE_CYCLES + 1, cycle + 1))
    now = store.baselines.current(run_id, cycle)
    if last[0] <= (max(_first(store, run_id)) if now is None else max(now.cycles)):
        return None
    learnt: list[dict[tuple[str, str], Finding]] = []
    for each in last:
        verdict = store.verdicts.get(run_id, each)
        found = [stored.finding for stored in store.findings.read(run_id, each)]
        if verdict is None or verdict.verdict not in ("pass", "warn") or any(map(_forbids, found)):
            return None
        learnt.append({(it.statistic or "", it.slice): it for it in found if it.reading == "honest_learning"})
    throughout = [place for place in learnt[-1] if all(place in those for those in learnt)]
    if not throughout:
        return None
    newest = learnt[-1][throughout[0]]
    others = f"; and {len(throughout) - 1} more" if len(throughout) > 1 else ""
    reason = f"honest learning, promoted, in cycles {last[0]} to {cycle}: {newest.sentence}{others}"
    return store.baselines.move(run_id, from_cycle=cycle + 1, cycles=last, reason=reason, actor=LOOP)


def _forbids(finding: Finding) -> bool:
    """Whether a finding speaks against taking its cycle for normal."""
    if finding.reading == "outside_change":
        return finding.severity != "notes"
    return finding.reading in ("reward_hack", "measurement_fault") or finding.severity == "blocks"


def storable(finding: Finding) -> Finding:
    """The finding with plain values only: a number that is not finite is "not known", NumPy's are Python's.

    A team's own detector may leave some; that must not cost the cycle its findings.
    """
    plain = {name: _plain(value) for name, value in vars(finding).items() if name not in ("causes", "evidence")}
    return replace(finding, **plain)


def _plain(value: Any) -> Any:
    match value:
        case bool() | str() | int() | None:
            return value
        case np.generic() | float():
            known = value.item() if isinstance(value, np.generic) else value
            return known if not isinstance(known, float) or math.isfinite(known) else None
        case Mapping():
            return {str(name): _plain(item) for name, item in value.items()}
        case list() | tuple() | set() | frozenset() | np.ndarray():
            return [_plain(item) for item in value]
        case _:
            return str(value)


def _first(store: Store, run_id: str) -> tuple[int, ...]:
    """The first cycles: those in which nothing was trained yet, and `BASELINE_CYCLES` at least."""
    run = store.runs.get(run_id)
    watched = run.config.get("baseline_cycles", 0) if run is not None else 0
    return tuple(range(max(BASELINE_CYCLES, int(watched))))  # type: ignore[call-overload]


def _trained(record: Cycle) -> Mapping[str, Any]:
    return next((stage.detail for stage in record.stages if stage.stage == "train"), {})
