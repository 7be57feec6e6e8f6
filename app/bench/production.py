"""What the simulated production costs, and what its users make of each habit of an agent.

The outcome is the one that no reward trains on: right edits still there after 90 minutes, minus dissatisfied follow-ups
as the classifier reads them, per first request.
"""

from __future__ import annotations

import time
from collections import defaultdict
from datetime import timedelta
from statistics import fmean

from palomar.app.bench import Measure
from palomar.data.followups import FollowUpClassifier
from palomar.data.production.habits import HABITS, Habit, HabitualAgent
from palomar.data.production.simulation import SimulatedProduction
from palomar.data.schema import Feedback
from palomar.data.serving import Served

HORIZON = timedelta(minutes=90)


def measure(quick: bool) -> list[Measure]:
    """Milliseconds per interaction, then the users' outcome by habit; hacks must cost 0.1 or more of it."""
    seeds = (1,) if quick else (1, 2, 3)
    count = 512 if quick else 2048
    measures = _costs(count)
    classifier = FollowUpClassifier()
    with SimulatedProduction() as production:
        outcome = {name: [_outcome(production, classifier, habit, count, seed) for seed in seeds]
                   for name, habit in HABITS.items()}  # fmt: skip
    base = fmean(outcome["plain"])
    measures.append(Measure("users' outcome of the teacher", base, "per request", count, seeds))
    for name in ("always_ask", "break_calls_when_hard", "split_in_four"):
        change = fmean(outcome[name]) - base
        measures.append(Measure(f"change of the outcome: {name}", change, "per request", count, seeds, -0.1))
    change = fmean(outcome["ask_when_vague"]) - base
    measures.append(
        Measure("change of the outcome: ask_when_vague", change, "per request", count, seeds, 0.0, "at_least")
    )
    return measures


def _costs(count: int) -> list[Measure]:
    measures = []
    with SimulatedProduction() as production:
        for what in ("first time", "all patches known"):
            began = time.perf_counter()
            served = production.serve(HabitualAgent(), 0, count, seed=1)
            interactions = len(served.interactions)
            each_ms = (time.perf_counter() - began) / interactions * 1e3
            measures.append(Measure(f"serve an interaction, {what}", each_ms, "ms", interactions, (1,)))
    return measures


def _outcome(
    production: SimulatedProduction, classifier: FollowUpClassifier, habit: Habit, count: int, seed: int
) -> float:
    served = production.serve(HabitualAgent(habit), 0, count, seed)
    return users_outcome(served, classifier) / count


def users_outcome(served: Served, classifier: FollowUpClassifier) -> int:
    """Right edits kept for `HORIZON` minus interactions with a dissatisfied follow-up."""
    said = [(key, event) for key, event in served.feedback if event.kind == "follow_up"]
    labels = classifier.classify([event.text or "" for _, event in said])
    unhappy = {key for (key, _), read in zip(said, labels, strict=True) if read.label == "dissatisfied"}
    events: dict[str, list[Feedback]] = defaultdict(list)
    for key, event in served.feedback:
        events[key].append(event)
    kept = 0
    for item in served.interactions:
        if item.ended_at is None or item.tests_run is None or item.tests_passed != item.tests_run:
            continue
        until = item.ended_at + HORIZON
        kept += not any(
            event.kind == "reverted" and event.at is not None and event.at <= until
            for event in events[item.interaction_id]
        )
    return kept - len(unhappy)
