"""Scanning a lake counts each interaction once per signature, in whatever batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from palomar.data.lake import Lake
from palomar.detectors import scan as scanning
from palomar.detectors.scan import scan
from palomar.detectors.signature import signatures


def stored(folder: Path) -> Lake:
    """Examples of two signatures, half of them in each of two cycles."""
    lake = Lake(folder)
    items = [item for name in ("early-exit", "always-equal") for item, _ in signatures()[name].examples]
    for cycle in (1, 2):
        lake.append_interactions(
            [
                item.model_copy(update={"interaction_id": f"{cycle}-{place}", "cycle": cycle})
                for place, item in enumerate(items)
                if place % 2 == cycle - 1
            ],
            cycle,
        )
    return lake


def test_tallies_are_those_of_the_examples(tmp_path: Path) -> None:
    lake = stored(tmp_path)
    early, equal = scan(lake, ["early-exit", "always-equal"])
    examples = [status for _, status in signatures()["early-exit"].examples]
    assert early.flagged == examples.count("flagged")
    assert early.flagged + early.clear + early.not_assessed == len(lake.scan("interactions", ["interaction_id"]))
    assert equal.flagged == 2
    assert [one.verdict.score for one in equal.first] == [1.0, 1.0]
    assert early.why_not == "no code in it"


def test_batches_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = stored(tmp_path)
    whole = scan(lake, list(signatures()))
    monkeypatch.setattr(scanning, "BATCH", 2)
    assert scan(lake, list(signatures())) == whole


def test_cycles_add_up(tmp_path: Path) -> None:
    lake = stored(tmp_path)
    (both,), (first,), (second,) = (scan(lake, ["early-exit"], cycles) for cycles in (None, [1], [2]))
    assert both.clear == first.clear + second.clear
    assert both.flagged == first.flagged + second.flagged > 0


def test_an_empty_lake_gives_no_tally(tmp_path: Path) -> None:
    assert scan(Lake(tmp_path), ["early-exit"]) == []
