"""The same requests served by each probe: facts of what the log shows, and of what happened.

The simulated production draws users and their reactions by request, so two probes that write the same are met with the
same, and their difference is that of what they do. A rollout knows no reward: one serves any number of specs.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from palomar.data.facts import facts
from palomar.data.followups import FollowUpClassifier
from palomar.data.lake import Lake
from palomar.data.production.grammar import read_prompt
from palomar.data.production.simulation import SimulatedProduction
from palomar.data.schema import Feedback, Interaction
from palomar.data.serving import Served
from palomar.reward.probes.probe import HONEST, Probe, ProbeAgent, Shown

REQUESTS = 2000
"""First requests that the honest probe is given, and each other one those in which it acts otherwise."""
WATCHED = timedelta(days=2)
"""From the end of the cycle to when reactions are counted: all that will come has come."""


@dataclass(frozen=True)
class Rollout:
    """One probe's work: on all requests if it is the honest one, else on those in which it does something else."""

    probe: Probe | None
    """None: the honest one."""
    shown: pa.Table
    """Facts as the log has them, with exactly the columns of FACTS: what a reward is paid by."""
    happened: pa.Table
    """Facts of what happened, the same rows in the same order: what the outcome is taken from."""

    @property
    def name(self) -> str:
        """Of the probe."""
        return HONEST if self.probe is None else self.probe.name


def roll_out(
    probes: Sequence[Probe],
    *,
    requests: int = REQUESTS,
    seed: int = 0,
    production: SimulatedProduction | None = None,
    classifier: FollowUpClassifier | None = None,
) -> list[Rollout]:
    """The honest probe's work, then that of each given one, on the same requests of cycle 0."""
    if production is None:
        with SimulatedProduction() as own:
            return roll_out(probes, requests=requests, seed=seed, production=own, classifier=classifier)
    reader = FollowUpClassifier() if classifier is None else classifier
    served = production.serve(ProbeAgent(), 0, requests, seed)
    as_of = production.cycle_start(1) + WATCHED
    happened = _facts(served.interactions, reader.label(served.feedback), as_of)
    rollouts = [Rollout(None, happened, happened)]
    first = sorted((item for item in served.interactions if item.turn == 0), key=lambda item: item.interaction_id)
    written = [(read_prompt(item.steps[0].text or ""), item.steps[1].text or "") for item in first]
    for probe in probes:
        acting = [index for index, (asked, plain) in enumerate(written) if probe.habit(asked, plain) != plain]
        agent = ProbeAgent(probe.habit, probe.name)
        served = production.serve(agent, 0, requests, seed, only=acting)
        rollouts.append(_rollout(probe, agent, Served(served.interactions, reader.label(served.feedback)), as_of))
    return rollouts


def _rollout(probe: Probe, agent: ProbeAgent, served: Served, as_of: datetime) -> Rollout:
    happened = _facts(served.interactions, served.feedback, as_of)
    if probe.shows is None:
        return Rollout(probe, happened, happened)
    acting = {item.interaction_id for item in served.interactions if item.steps[0].text in agent.acted}
    shown = _facts(*_as_shown(probe, served, acting), as_of)
    order = pc.index_in(happened["interaction_id"], value_set=shown["interaction_id"].combine_chunks())
    return Rollout(probe, shown.take(order), happened)


def _as_shown(probe: Probe, served: Served, acting: set[str]) -> tuple[list[Interaction], list[tuple[str, Feedback]]]:
    reactions: dict[str, list[Feedback]] = {}
    for owner, item in served.feedback:
        reactions.setdefault(owner, []).append(item)
    interactions: list[Interaction] = []
    feedback: list[tuple[str, Feedback]] = []
    for happened in served.interactions:
        name = happened.interaction_id
        shown: Shown = happened, reactions.get(name, [])
        if probe.shows is not None and name in acting:
            shown = probe.shows(*shown, random.Random(f"{name}/{probe.name}"))
        interactions.append(shown[0])
        feedback += [(name, item) for item in shown[1]]
    return interactions, feedback


def _facts(interactions: Sequence[Interaction], feedback: Sequence[tuple[str, Feedback]], as_of: datetime) -> pa.Table:
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(Path(folder))
        lake.append_interactions(interactions, 0)
        lake.append_feedback(feedback, 0)
        return facts(lake, 0, as_of)
