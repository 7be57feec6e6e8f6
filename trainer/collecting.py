"""Sources of the cycle's collect stage: the simulated production, or logs that something else writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from palomar.data.followups import FollowUp
from palomar.data.ingest import ingest
from palomar.data.lake import Lake
from palomar.data.schema import Feedback
from palomar.data.serving import Agent, Production
from palomar.trainer.cycle import Collected

Classify = Callable[[Sequence[str]], Sequence[FollowUp]]
"""Labels of follow-up messages, in order."""


@dataclass
class SimulatedSource:
    """Users of a simulated production, on its simulated clock."""

    production: Production
    requests: int
    """First requests a cycle."""
    classify: Classify
    label_by: str
    """What labelled the follow-ups, as kept with each label."""
    start: datetime
    cycle_length: timedelta

    def collect(self, lake: Lake, agent: Agent, cycle: int, seed: int) -> Collected:
        """Serves the cycle. Reactions are stored with the times users have them, some after the cycle's end.

        Who reads them says ``as_of``, so that nothing is known before a user would have said it.
        """
        served = self.production.serve(agent, cycle, self.requests, seed)
        lake.append_interactions(served.interactions, cycle)
        lake.append_feedback(self._labelled(served.feedback), cycle)
        return Collected(received=len(served.interactions), quarantined={}, detail={"reactions": len(served.feedback)})

    def now(self, cycle: int) -> datetime:
        """The end of the cycle."""
        return self.start + (cycle + 1) * self.cycle_length

    def _labelled(self, feedback: Sequence[tuple[str, Feedback]]) -> list[tuple[str, Feedback]]:
        texts = [item.text or "" for _, item in feedback if item.kind == "follow_up"]
        labels = iter(self.classify(texts))
        labelled = []
        for owner, item in feedback:
            if item.kind == "follow_up":
                found = next(labels)
                item = item.model_copy(
                    update={"label": found.label, "label_by": self.label_by, "label_probability": found.p}
                )
            labelled.append((owner, item))
        return labelled
