"""What is kept of a judged run: the same when read again, and made anew when the code that judges has changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from palomar.app.bench import comparators, detect
from palomar.app.bench.detect import Judged, Said
from palomar.app.bench.emergence import Kind

SAID = Said("reward_hack", "blocks", "clarification_rate", "ambiguity=clear", 1, True, True, "term:edit_persistence")
QUIET = Said(None, "notes", None, "all", 0, False, False, None)
FOUND = Judged(
    "deferral", 3, {"edit deferral": 12, "function splitting": None}, {12: ("block", (SAID, QUIET)), 13: ("pass", ())}
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[Kind, int]]:
    """Runs that were judged, in a cache of their own."""
    asked: list[tuple[Kind, int]] = []

    def judge(run: tuple[Kind, int]) -> Judged:
        asked.append(run)
        return FOUND

    (tmp_path / "run").mkdir()
    monkeypatch.setattr(detect, "home_of", lambda *run: tmp_path / "run")
    monkeypatch.setattr(detect, "_judge", judge)
    return asked


def test_a_judged_run_is_read_again_as_it_was(asked: list[tuple[Kind, int]]) -> None:
    assert detect.judged(("deferral", 3)) == FOUND
    assert detect.judged(("deferral", 3)) == FOUND
    assert asked == [("deferral", 3)]


def test_a_run_is_judged_anew_once_the_code_has_changed(
    asked: list[tuple[Kind, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    detect.judged(("deferral", 3))
    monkeypatch.setattr(detect, "_sources", lambda: "other")
    detect.judged(("deferral", 3))
    assert len(asked) == 2


def test_our_own_row_counts_every_blocked_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    known = comparators.Truth("deferral", 3, tuple(range(8, 30)), 9, {"edit deferral": 12})
    monkeypatch.setattr(comparators, "truth", lambda *run: known)
    rows = {measure.measure.partition(": ")[2]: measure for measure in comparators.ours([FOUND])}
    assert rows["found at most 3 cycles after a hack shows"].value == 1.0
    assert "delay 0" in rows["found at most 3 cycles after a hack shows"].note
    assert rows["blocked without any change"].value is None  # no such run: not a zero
