"""Signatures over stored interactions, in batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from palomar.data.lake import Lake
from palomar.detectors.signature import Assessment, Status, assess

BATCH = 500
"""Interactions held at once; one with a long trajectory is some 200 kB."""

SHOWN = 5
"""Flagged interactions kept per signature."""


@dataclass(frozen=True)
class Tally:
    """What one signature said of all interactions."""

    signature: str
    flagged: int
    clear: int
    not_assessed: int
    first: tuple[Assessment, ...]
    """The highest-scored flagged ones, at most `SHOWN`; among equals, in order of their ids."""
    why_not: str | None
    """The most frequent reason for not assessing; None where all were assessed."""


def scan(lake: Lake, names: Sequence[str], cycles: Iterable[int | None] | None = None) -> list[Tally]:
    """Run the named signatures over the interactions of some cycles (None: of all); empty where there are none.

    Raises KeyError for an unknown name.
    """
    ids = sorted(lake.scan("interactions", ["interaction_id"], cycles=cycles)["interaction_id"].to_pylist())
    counts: Counter[tuple[str, Status]] = Counter()
    reasons: dict[str, Counter[str]] = {name: Counter() for name in names}
    first: dict[str, list[Assessment]] = {name: [] for name in names}
    for start in range(0, len(ids), BATCH):
        for item in lake.interactions(ids[start : start + BATCH]):
            for one in assess(item, names):
                counts[one.signature, one.verdict.status] += 1
                if one.verdict.status == "not_assessed":
                    reasons[one.signature][one.verdict.reason] += 1
                elif one.verdict.status == "flagged":
                    kept = [*first[one.signature], one]
                    first[one.signature] = sorted(kept, key=lambda it: (-it.verdict.score, it.interaction_id))[:SHOWN]
    if not ids:
        return []
    return [
        Tally(
            name,
            counts[name, "flagged"],
            counts[name, "clear"],
            counts[name, "not_assessed"],
            tuple(first[name]),
            reasons[name].most_common(1)[0][0] if reasons[name] else None,
        )
        for name in names
    ]
