"""Which slices a change of a level comes from: their shares of it, the largest first, with the mix shift apart.

Each slice's part is what its own change of level makes of the whole's, at the mean of its shares before and after; what
other shares of the slices make is told once, for all of them together (`palomar.detectors.decomposition.kitagawa`). A
part of the mix that is charged to one slice says little: a slice that grows takes its room from all the others.

Blind to: what moved inside a slice; statistics that do not add up over slices (medians, persistence).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from palomar.data.slices import BANDS
from palomar.detectors.decomposition import mix_within
from palomar.detectors.detector import View

REQUESTS = tuple(BANDS)
"""How hard and how vague a request is: the slices in which a reward is played first."""
FEW = 30
"""Rows (calls, turns) of a slice below which its level says little."""


@dataclass(frozen=True)
class SliceShare:
    """A slice and what it has to do with a change."""

    slice: str
    """``predicted_failure=high,ambiguity=clear``; of a single dimension as the store names its slices."""
    before: float | None
    """Level; None where nothing was there."""
    after: float | None
    n_before: int
    """What the level is per: rows, or the calls of a ratio."""
    n_after: int
    part: float
    """What its own change makes of the whole's, in the statistic's unit."""
    share: float | None
    """The same as a share of the whole change; negative where it went the other way; None where nothing changed."""

    @property
    def few(self) -> bool:
        """Whether one end has fewer than `FEW`."""
        return min(self.n_before, self.n_after) < FEW


@dataclass(frozen=True)
class Excess:
    """A change of a statistic by slices. Parts and ``mix`` add up to ``total``, shares and ``mix_share`` to 1."""

    statistic: str
    by: tuple[str, ...]
    """Dimensions that the slices are made of."""
    before: float
    after: float
    total: float
    mix: float
    """What other shares of the slices make, in the statistic's unit."""
    mix_share: float | None
    slices: tuple[SliceShare, ...]
    """The largest share first; without a change, the largest part."""


def excess(view: View, statistic: str, by: Sequence[str] = REQUESTS) -> Excess | None:
    """The change from the view's reference to its cycle; None where an end has no rows that count.

    Raises ValueError for a statistic that does not add up, and for an unknown dimension.
    """
    split = mix_within(view, statistic, by)
    if split is None:
        return None
    # Below the rounding of the two levels there is no change to have shares of.
    changed = not math.isclose(split.before, split.after, rel_tol=1e-12, abs_tol=0.0)
    slices = [
        SliceShare(
            slice=",".join(
                f"{name}={value}" for name, value in zip(by, segment.split(" | ", len(by) - 1), strict=False)
            ),
            before=_known(split.levels[0][index]),
            after=_known(split.levels[1][index]),
            n_before=round(split.amounts[0][index]),
            n_after=round(split.amounts[1][index]),
            part=float(split.within_by_segment[index]),
            share=float(split.within_by_segment[index] / split.total) if changed else None,
        )
        for index, segment in enumerate(split.segments)
    ]
    slices.sort(key=lambda item: (-(item.share or 0.0), -abs(item.part), item.slice))
    mix_share = split.mix / split.total if changed else None
    return Excess(
        statistic, tuple(by), split.before, split.after, split.total, split.mix, mix_share, tuple(slices)
    )  # fmt: skip


def _known(level: np.float64) -> float | None:
    return None if np.isnan(level) else float(level)
