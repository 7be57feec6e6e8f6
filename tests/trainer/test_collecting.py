"""A cycle takes in what a serving system has logged since the last one, and nothing twice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from palomar.data.errors import IngestError
from palomar.data.lake import Lake
from palomar.data.serving import Response
from palomar.trainer.collecting import LogSource


class Nobody:
    """The agent of a cycle that only reads logs."""

    checkpoint = "served-elsewhere"

    def respond(self, prompts: Sequence[str], seed: int) -> list[Response]:
        raise AssertionError("logs are read, nobody is asked")


class Unread:
    """A classifier that must not be asked: these logs hold no follow-up."""

    label_by = "nobody"

    def classify(self, texts: Sequence[str]) -> list[Any]:
        assert not texts
        return []


def line(name: str) -> str:
    steps = [
        {"author": "person", "role": "user", "text": name},
        {"author": "agent", "role": "assistant", "text": "done"},
    ]
    return json.dumps({"interaction_id": name, "steps": steps, "source": "palomar", "origin": "x"}) + "\n"


def test_a_growing_log_gives_each_cycle_its_new_interactions(tmp_path: Path) -> None:
    log, lake = tmp_path / "log.jsonl", Lake(tmp_path / "lake")
    source = LogSource([str(log)], "auto", Unread())  # type: ignore[arg-type]
    log.write_text(line("a") + line("b") + "{damaged\n", encoding="utf-8")
    first = source.collect(lake, Nobody(), 0, seed=0)
    assert (first.received, first.quarantined) == (3, {"damaged": 1})
    # A cycle that died and is resumed takes in the same.
    assert source.collect(lake, Nobody(), 0, seed=0) == first

    log.write_text(log.read_text("utf-8") + line("c"), encoding="utf-8")
    second = source.collect(lake, Nobody(), 1, seed=0)
    assert second.received - sum(second.quarantined.values()) == 1
    assert "conflict" not in second.quarantined
    stored = lake.scan("interactions", ["interaction_id", "cycle"]).to_pylist()
    assert sorted((row["interaction_id"], row["cycle"]) for row in stored) == [("a", 0), ("b", 0), ("c", 1)]


def test_a_cycle_without_anything_new_says_so(tmp_path: Path) -> None:
    log, lake = tmp_path / "log.jsonl", Lake(tmp_path / "lake")
    source = LogSource([str(log)], "auto", Unread())  # type: ignore[arg-type]
    log.write_text(line("a"), encoding="utf-8")
    source.collect(lake, Nobody(), 0, seed=0)
    with pytest.raises(IngestError, match="nothing new for cycle 1: 1 interactions are known already"):
        source.collect(lake, Nobody(), 1, seed=0)
