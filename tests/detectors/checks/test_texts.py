"""Drift of the agent's replies: measured once, then read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from palomar.data.schema import Interaction, Step
from palomar.detectors.checks._examples import rows, view
from palomar.detectors.checks.texts import MOST_REPLIES, measure, texts
from palomar.detectors.detector import View

N = 60


class Places:
    """Puts a text at the point that it names: ``"3 jitter"`` is near the third axis."""

    fingerprint = "places"

    def __init__(self) -> None:
        self.seen: list[str] = []

    def encode(self, said: Sequence[str]) -> npt.NDArray[np.float64]:
        self.seen += said
        vectors = np.zeros((len(said), 16))
        for row, text in enumerate(said):
            axis, jitter = text.split()
            vectors[row, int(axis)] = 1
            vectors[row, 15] = float(jitter)
        return vectors


def stream(folder: Path, last: Sequence[str], cycles: int = 9) -> View:
    seen = view(folder, [rows(cycle, N) for cycle in range(cycles)])
    for cycle in range(cycles):
        rng = np.random.default_rng(cycle)
        said = [f"{rng.integers(4)} {0.1 * rng.random():.3f}" for _ in range(N)]
        said = [*last, *said[len(last) :]] if cycle == cycles - 1 else said
        records = [
            Interaction(
                interaction_id=f"c{cycle}-{index:05d}",
                source="example",
                origin="example",
                cycle=cycle,
                steps=(
                    Step(author="agent", role="assistant", text="9 9"),
                    Step(author="agent", role="assistant", text=text),
                    Step(author="agent", role="assistant", text="8 8", branch="side"),
                    Step(author="person", role="user", text="thanks"),
                ),
            )
            for index, text in enumerate(said)
        ]
        seen.lake.append_interactions(records, cycle)
    return seen


def test_replies_of_a_new_kind_are_counted_and_one_is_shown(tmp_path: Path) -> None:
    seen = stream(tmp_path, ["7 0.02"] * 15)
    measure(seen, Places())
    found = {finding.statistic: finding for finding in texts(seen).findings}
    new = found["new_kinds"]
    assert new.after == 15 / 60
    assert new.before == pytest.approx(0.01, abs=0.015)  # "far" is beyond 99 % of the reference's own
    assert "15 of 60 lie far from all kinds" in new.sentence
    assert "15 of them are alike" in new.sentence
    assert set(new.evidence.carrying) <= {f"c8-{index:05d}" for index in range(15)}
    assert new.severity == "warns"


def test_a_shift_between_known_kinds_is_no_new_kind(tmp_path: Path) -> None:
    seen = stream(tmp_path, ["0 0.05"] * 45)
    measure(seen, Places())
    (finding,) = texts(seen).findings
    assert finding.statistic == "shift"
    # Mean moves from a quarter each to 1/16 thrice and 13/16: 0.65 where the rest is drawn anew.
    assert finding.after == pytest.approx(0.65, abs=0.05)
    moved = {f"c8-{index:05d}" for index in range(45)}
    assert len(moved.intersection(finding.evidence.carrying)) >= 4  # some of the others say the same


def test_only_the_last_words_on_the_main_line_are_embedded_and_equal_ones_once(tmp_path: Path) -> None:
    encoder = Places()
    measure(stream(tmp_path, ["7 0.02"] * 15), encoder)
    assert not {"9 9", "8 8", "thanks"} & set(encoder.seen)
    assert encoder.seen.count("7 0.02") == 1


def test_each_cycle_is_embedded_once(tmp_path: Path) -> None:
    seen = stream(tmp_path, ["7 0.02"] * 15)
    measure(seen, Places())
    again = Places()
    measure(seen, again)
    assert again.seen == []


def test_nothing_is_assessed_before_it_was_measured_or_after_texts_changed(tmp_path: Path) -> None:
    seen = stream(tmp_path, [])
    assert "palomar report --cycle 8" in texts(seen).unassessed[0].why
    measure(seen, Places())
    assert texts(seen).assessed == 2
    more = Interaction(interaction_id="late", source="example", origin="example", cycle=8, steps=())
    seen.lake.append_interactions([more], 8)
    assert texts(seen).assessed == 0


def test_few_replies_are_said_to_be_few(tmp_path: Path) -> None:
    seen = view(tmp_path, [rows(cycle, N) for cycle in range(9)])
    measure(seen, Places())
    assert texts(seen).unassessed[0].why.startswith("0 replies, and 0 reference cycles with 30")
    assert MOST_REPLIES == 200


@pytest.mark.slow
def test_the_bundled_encoder_tells_a_refusal_from_a_fix(tmp_path: Path) -> None:
    """Real texts, real weights: a sixth of the replies refuse; the exemplar is one of them."""
    names = [
        f"{verb} {noun}" for verb in ("fixed", "renamed", "moved", "cleaned up") for noun in ("loop", "test", "file")
    ]
    seen = view(tmp_path, [rows(cycle, 42) for cycle in range(6)], reference=range(5))
    for cycle in range(6):
        rng = np.random.default_rng(cycle)
        said = [f"I {rng.choice(names)} and ran the tests; they pass." for _ in range(42)]
        if cycle == 5:
            said[:14] = [f"I'm sorry, but I cannot help with request {index % 4}." for index in range(14)]
        records = [
            Interaction(
                interaction_id=f"c{cycle}-{index:05d}",
                source="example",
                origin="example",
                cycle=cycle,
                steps=(Step(author="agent", role="assistant", text=text),),
            )
            for index, text in enumerate(said)
        ]
        seen.lake.append_interactions(records, cycle)
    measure(seen)
    found = {finding.statistic: finding for finding in texts(seen).findings}
    assert set(found["new_kinds"].evidence.carrying) <= {f"c5-{index:05d}" for index in range(14)}
    assert found["shift"].test is not None
