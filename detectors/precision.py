"""How often a detector's alarms were useful, by the word of those who were called.

An alarm is one detector's part in one incident. People vote on it; where they disagree by halves it is disputed and
counts on neither side. A detector whose alarms nobody rated has no precision: not 0, not 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scipy import stats

from palomar.data.store.records import AlarmVote


@dataclass(frozen=True)
class Precision:
    """Of one detector."""

    detector: str
    alarms: int
    """Incidents in which it spoke."""
    rated: int
    """Of them, those with a majority of votes."""
    disputed: int
    """Of them, those with as many votes on either side."""
    useful: int
    value: float | None
    """Useful among those rated, 0 to 1; None where none was."""
    low: float | None
    """Of the 95 % interval by Wilson (1927), `scipy.stats.binomtest`."""
    high: float | None


def precisions(alarms: Mapping[int, Iterable[str]], votes: Sequence[AlarmVote]) -> list[Precision]:
    """Of every detector that spoke in an incident, by name. ``alarms``: the detectors that spoke, by incident."""
    spoke = Counter(detector for detectors in alarms.values() for detector in set(detectors))
    leaning: Counter[tuple[str, int]] = Counter()
    for vote in votes:
        leaning[vote.detector, vote.incident] += 1 if vote.vote == "useful" else -1
    return [
        _of(detector, spoke[detector], [balance for (name, _), balance in leaning.items() if name == detector])
        for detector in sorted(spoke)
    ]


def _of(detector: str, alarms: int, balances: Sequence[int]) -> Precision:
    rated, useful = sum(balance != 0 for balance in balances), sum(balance > 0 for balance in balances)
    disputed = len(balances) - rated
    if not rated:
        return Precision(detector, alarms, 0, disputed, 0, None, None, None)
    interval = stats.binomtest(useful, rated).proportion_ci(method="wilson")
    return Precision(
        detector, alarms, rated, disputed, useful, useful / rated, float(interval.low), float(interval.high)
    )
