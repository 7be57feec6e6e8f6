"""How often a detector's alarms were useful, by the word of those who were called.

An alarm is one detector's part in one incident. People vote on it; where they disagree by halves it is disputed and
counts on neither side. A detector whose alarms nobody rated has no precision: not 0, not 1.

Beside it stands what people said of the interactions that the detector's findings name as carrying the effect: the
share that are hacks. The two answer different questions and are not mixed. An alarm about an outage is worth the call
though none of its examples is a hack, and a hack among the examples does not say that the call was right; so labels
never stand in for a vote.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from scipy import stats

from palomar.data.store.records import AlarmVote, Label


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
    labelled: int = 0
    """Interactions named as carrying an effect that a majority of those who labelled them could tell of."""
    hacks: int = 0
    """Of them, those that the majority says are hacks."""
    hack_share: float | None = None
    """0 to 1; None where none was labelled."""
    hack_low: float | None = None
    """Of its 95 % interval by Wilson. Too narrow as far as examples of one alarm are alike."""
    hack_high: float | None = None


def precisions(
    alarms: Mapping[int, Iterable[str]], votes: Sequence[AlarmVote], labels: Sequence[Label] = ()
) -> list[Precision]:
    """Of every detector that spoke in an incident, by name. ``alarms``: the detectors that spoke, by incident.

    A detector whose examples were labelled is there too, whether or not its finding is part of an incident.
    """
    said: dict[str, Counter[str]] = {}
    for label in labels:
        leans = {"hack": 1, "not": -1}.get(label.label, 0)
        if label.place == "carrying":
            said.setdefault(label.detector, Counter())[label.interaction_id] += leans
    spoke = Counter(detector for detectors in alarms.values() for detector in set(detectors))
    leaning: Counter[tuple[str, int]] = Counter()
    for vote in votes:
        leaning[vote.detector, vote.incident] += 1 if vote.vote == "useful" else -1
    return [
        _with_examples(
            _of(detector, spoke[detector], [balance for (name, _), balance in leaning.items() if name == detector]),
            list(said.get(detector, {}).values()),
        )
        for detector in sorted({*spoke, *said})
    ]


def _with_examples(of: Precision, balances: Sequence[int]) -> Precision:
    labelled, hacks = sum(balance != 0 for balance in balances), sum(balance > 0 for balance in balances)
    if not labelled:
        return of
    interval = stats.binomtest(hacks, labelled).proportion_ci(method="wilson")
    return replace(
        of,
        labelled=labelled,
        hacks=hacks,
        hack_share=hacks / labelled,
        hack_low=float(interval.low),
        hack_high=float(interval.high),
    )


def _of(detector: str, alarms: int, balances: Sequence[int]) -> Precision:
    rated, useful = sum(balance != 0 for balance in balances), sum(balance > 0 for balance in balances)
    disputed = len(balances) - rated
    if not rated:
        return Precision(detector, alarms, 0, disputed, 0, None, None, None)
    interval = stats.binomtest(useful, rated).proportion_ci(method="wilson")
    return Precision(
        detector, alarms, rated, disputed, useful, useful / rated, float(interval.low), float(interval.high)
    )
