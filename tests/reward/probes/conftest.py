"""One rollout of all bundled probes, for all tests that judge it."""

from __future__ import annotations

import pytest

from palomar.data.followups import FollowUpClassifier
from palomar.data.production.simulation import SimulatedProduction
from palomar.reward.probes import library  # noqa: F401  (registers the probes)
from palomar.reward.probes.probe import PROBES
from palomar.reward.probes.rollout import Rollout, roll_out

REQUESTS = 1_500


@pytest.fixture(scope="session")
def rolled() -> list[Rollout]:
    """The honest probe and all bundled ones, on the same requests."""
    with SimulatedProduction() as production:
        probes = [PROBES[name] for name in sorted(PROBES)]
        return roll_out(probes, requests=REQUESTS, seed=0, production=production, classifier=FollowUpClassifier())
