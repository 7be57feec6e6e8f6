"""Sources of the cycle's collect stage: the simulated production, or logs that something else writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from palomar.data.errors import IngestError
from palomar.data.followups import FollowUpClassifier
from palomar.data.ingest import ingest
from palomar.data.lake import Lake
from palomar.data.schema import Feedback, Interaction
from palomar.data.serving import Agent, Production
from palomar.trainer.cycle import Collected


@dataclass
class SimulatedSource:
    """Users of a simulated production, on its simulated clock."""

    production: Production
    requests: int
    """First requests a cycle."""
    classifier: FollowUpClassifier
    start: datetime
    cycle_length: timedelta

    def collect(self, lake: Lake, agent: Agent, cycle: int, seed: int) -> Collected:
        """Serves the cycle. Reactions are stored with the times users have them, some after the cycle's end.

        Who reads them says ``as_of``, so that nothing is known before a user would have said it.
        """
        served = self.production.serve(agent, cycle, self.requests, seed)
        lake.append_interactions(served.interactions, cycle)
        lake.append_feedback(self.classifier.label(served.feedback), cycle)
        return Collected(received=len(served.interactions), quarantined={}, detail={"reactions": len(served.feedback)})

    def collect_arms(
        self, lake: Lake, agents: Mapping[str, Agent], arm_of: Callable[[str], str], cycle: int, seed: int
    ) -> Collected:
        """Serves the cycle with an agent for each arm; `arm_of` draws each user into one. Requests are as in `collect`.

        Not a cycle that is trained on: what one arm's users get must not teach the other arm.
        """
        interactions: list[Interaction] = []
        feedback: list[tuple[str, Feedback]] = []
        for arm, agent in agents.items():

            def in_arm(user: str, arm: str = arm) -> bool:
                return arm_of(user) == arm

            served = self.production.serve(agent, cycle, self.requests, seed, in_arm)
            interactions += [item.model_copy(update={"arm": arm}) for item in served.interactions]
            feedback += served.feedback
        interactions.sort(key=lambda item: (item.started_at or self.start, item.interaction_id))
        lake.append_interactions(interactions, cycle)
        lake.append_feedback(self.classifier.label(feedback), cycle)
        return Collected(received=len(interactions), quarantined={}, detail={"reactions": len(feedback)})

    def now(self, cycle: int) -> datetime:
        """The end of the cycle."""
        return self.start + (cycle + 1) * self.cycle_length


@dataclass
class LogSource:
    """Logs that a serving system writes: each cycle takes in what is new since the last."""

    paths: Sequence[str]
    """Files, folders or globs."""
    format: str
    classifier: FollowUpClassifier

    def collect(self, lake: Lake, agent: Agent, cycle: int, seed: int) -> Collected:
        """Reads the logs; interactions that an earlier cycle took in stay in that cycle.

        Raises IngestError where there are no logs, or nothing new in them: a cycle without data would teach nothing
        and look like one in which nothing happened.
        """
        report = ingest(self.paths, lake, format=self.format, cycle=cycle, classify=self.classifier)
        here = lake.scan("interactions", ["interaction_id"], cycles=[cycle]).num_rows
        if here == 0:
            problem = f"nothing new for cycle {cycle}: {report.known:,} interactions are known already"
            raise IngestError(", ".join(self.paths), None, None, problem, "empty")
        return Collected(
            received=here + sum(report.quarantined.values()),
            quarantined=report.quarantined,
            detail={"files": report.files, "reactions": report.feedback_new},
        )

    def now(self, cycle: int) -> datetime:
        """The present: what users have said by now is known."""
        return datetime.now(UTC)
