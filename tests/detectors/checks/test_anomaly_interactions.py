"""Interactions that do what none did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palomar.data.schema import Interaction, Invalidity, Step, ToolCall
from palomar.detectors.checks._examples import rows, view
from palomar.detectors.checks.anomaly_interactions import _calls, anomaly_interactions
from palomar.detectors.detector import View

N = 200


def interaction(identifier: str, cycle: int, *calls: str, broken: Invalidity | None = None) -> Interaction:
    made = tuple(ToolCall(name=name, arguments="{}", invalidity=broken) for name in calls)
    steps = (
        Step(author="person", role="user", text="do it", tool_calls=(ToolCall(name="typed by a person"),)),
        *(Step(author="agent", role="assistant", tool_calls=(call,)) for call in made),
        Step(author="agent", role="assistant", text="done"),
    )
    return Interaction(interaction_id=identifier, source="example", origin="example", cycle=cycle, steps=steps)


def with_calls(folder: Path, odd: int) -> View:
    """Eight cycles that read and edit; in the last, ``odd`` interactions use a tool nobody used."""
    seen = view(folder, [rows(cycle, N) for cycle in range(9)])
    for cycle in range(9):
        records = [
            interaction(
                f"c{cycle}-{index:05d}", cycle, "read", *(["curl"] if cycle == 8 and index < odd else []), "edit"
            )
            for index in range(N)
        ]
        seen.lake.append_interactions(records, cycle)
    return seen


def test_a_tool_nobody_used_is_told_with_who_used_it(tmp_path: Path) -> None:
    (finding,) = anomaly_interactions(with_calls(tmp_path, 6)).findings
    assert finding.statistic == "calls"
    assert finding.sentence.startswith("12 of 606 steps from one tool call to the next never came in the reference")
    assert finding.detail["alone_in"][0] == ["c8-00000", "is alone in: curl > edit"]  # type: ignore[index]
    assert finding.threshold == 2.0  # none before in 4,800 steps: 3 are too many
    assert finding.severity == "notes"


def test_calls_that_everyone_makes_are_clear(tmp_path: Path) -> None:
    report = anomaly_interactions(with_calls(tmp_path, 0))
    assert report.findings == ()
    assert report.assessed == 4
    assert "3 of 600 by calls (the reference's rate: 0.0)" in report.power


def test_steps_between_calls_are_counted_with_start_and_end(tmp_path: Path) -> None:
    seen = view(tmp_path, [rows(0, 3)])
    records = [
        interaction("one", 0, "read", "read", "edit"),
        interaction("two", 0),
        interaction("three", 0, "x" * 99, broken="unknown_tool"),
    ]
    seen.lake.append_interactions(records, 0)
    counted = {row["key"]: (row["count"], row["ids"]) for row in _calls(seen, 0).to_pylist()}
    assert counted == {
        "start > read": (1, ["one"]),
        "read > read": (1, ["one"]),
        "read > edit": (1, ["one"]),
        "edit > end": (1, ["one"]),
        "start > end": (1, ["two"]),
        "start > unknown_tool call": (1, ["three"]),  # what it calls itself is not counted
        "unknown_tool call > end": (1, ["three"]),
    }


def test_numbers_beyond_the_reference_name_the_furthest_first(tmp_path: Path) -> None:
    odd = np.where(np.arange(N) < 10, 1000 + np.arange(N), 1)
    last = rows(8, N, calls_failed=odd)
    seen = view(tmp_path, [*(rows(cycle, N, calls_failed=1 + np.arange(N) % 3) for cycle in range(8)), last])
    found = {finding.statistic: finding for finding in anomaly_interactions(seen).findings}
    assert set(found) == {"range"}
    # The ten, and one that was slower than all before.
    assert found["range"].sentence.startswith("11 of 200 interactions go beyond the reference's range")
    assert found["range"].evidence.carrying == tuple(f"c8-{index:05d}" for index in (9, 8, 7, 6, 5))
    first = found["range"].detail["alone_in"][0][1]  # type: ignore[index]
    assert first == "is alone in: calls_failed 1009 (reference 1 to 3)"


def test_rows_at_many_extremes_at_once_are_lonely_though_each_number_came_before(tmp_path: Path) -> None:
    columns = ("tokens_in", "tokens_out", "agent_turns", "calls_failed", "lines_added", "lines_removed", "tool_calls")

    def amounts(cycle: int) -> dict[str, Any]:
        rng = np.random.default_rng(cycle)
        return {name: np.minimum(rng.geometric(0.1, N), 60) for name in columns}

    odd = np.arange(N) < 10
    last: dict[str, Any] = {name: np.where(odd, 60, values) for name, values in amounts(8).items()}
    seen = view(tmp_path, [*(rows(cycle, N, **amounts(cycle)) for cycle in range(8)), rows(8, N, **last)])
    found = {finding.statistic: finding for finding in anomaly_interactions(seen).findings}
    assert set(found) == {"isolation"}
    assert found["isolation"].sentence.startswith("10 of 200 interactions (a sample) are lonelier")
    assert set(found["isolation"].evidence.carrying) <= {f"c8-{index:05d}" for index in range(10)}
    assert " 60 (" in found["isolation"].sentence


def test_one_strange_interaction_is_no_finding(tmp_path: Path) -> None:
    """Something new comes in every cycle; the docstring says that single ones are not told."""
    last = rows(8, N, calls_failed=(np.arange(N) == 0).astype(int))
    seen = view(tmp_path, [*(rows(cycle, N) for cycle in range(8)), last])
    assert anomaly_interactions(seen).findings == ()


def test_without_transcripts_calls_are_not_assessed(tmp_path: Path) -> None:
    report = anomaly_interactions(view(tmp_path, [rows(cycle, N) for cycle in range(9)]))
    assert [item.what for item in report.unassessed] == ["calls"]
    assert report.assessed == 3


@pytest.mark.slow
def test_unchanged_streams_seldom_alarm(tmp_path: Path) -> None:
    """30 unchanged streams over four kinds: 0 or 1 alarm (at 5 per 1000 cycles 2 or more come in 1 %)."""
    alarms = 0
    for seed in range(30):
        tables = [rows(cycle, N, 300 + seed) for cycle in range(9)]
        alarms += len(anomaly_interactions(view(tmp_path / str(seed), tables)).findings)
    assert alarms <= 1
