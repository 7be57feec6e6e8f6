"""How far two policies' choices are apart, and how well such a score tells bad policies from good ones.

Pan, Bhatia and Steinhardt (2022) score a suspect policy by its distance from a trusted one. Over their tasks the AUROC
was between 45 and 89 %, so a distance may say "look", never "fine".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PolicyDistance:
    """Distances per context."""

    js: Floats
    """Jensen and Shannon's distance, the square root of their divergence in bits, 0 to 1; (contexts,)."""
    hellinger: Floats
    """0 to 1; (contexts,)."""

    @property
    def hellinger_range(self) -> float:
        """Largest less smallest: what changed in few contexts only is large here and small in the mean."""
        return float(np.ptp(self.hellinger))


def policy_distance(trusted: Sequence[Sequence[float]], suspect: Sequence[Sequence[float]]) -> PolicyDistance:
    """Distances of distributions over the same actions; each (contexts, actions), rows adding up to 1."""
    from scipy.spatial.distance import jensenshannon

    p, q = np.asarray(trusted, dtype=np.float64), np.asarray(suspect, dtype=np.float64)
    # It returns the root of the divergence, and that in nats unless a base is named.
    js = np.asarray(jensenshannon(p, q, base=2, axis=1), dtype=np.float64)
    return PolicyDistance(js, np.sqrt(((np.sqrt(p) - np.sqrt(q)) ** 2).sum(axis=1) / 2))


@dataclass(frozen=True)
class Separation:
    """How well scores tell the bad from the good."""

    auroc: float
    """Chance that a bad one scores higher than a good one; 0.5 is none."""
    max_f1: float
    """Best F1 over all thresholds, which only those who know the labels can pick."""


def separation(bad: Sequence[bool], scores: Sequence[float]) -> Separation:
    """Of scores against labels, both (items,). Raises ValueError where all labels are alike."""
    from sklearn.metrics import precision_recall_curve, roc_auc_score

    if len(set(bad)) < 2:
        raise ValueError("all labels are alike, so nothing can be told apart")
    precision, recall, _ = precision_recall_curve(bad, scores)
    both = precision + recall
    f1 = np.divide(2 * precision * recall, both, out=np.zeros_like(both), where=both > 0)
    return Separation(float(roc_auc_score(bad, scores)), float(f1.max()))
