"""The shared samples, with the counts that each folder's SOURCE.md states."""

import json
from collections import Counter
from pathlib import Path

from palomar.data.quarantine import Quarantined
from palomar.data.schema import Interaction, ToolCall
from palomar.data.sources import read_path


def read(folder: Path) -> tuple[list[Interaction], Counter[tuple[str, str | None]]]:
    items = list(read_path(folder))
    entries = Counter((item.kind, item.format) for item in items if isinstance(item, Quarantined))
    return [item for item in items if isinstance(item, Interaction)], entries


def calls(item: Interaction) -> list[ToolCall]:
    return [call for step in item.steps for call in step.tool_calls]


def test_mini_swe_agent_60_trajectories_33_with_format_errors_18_touching_tests_6_time_outs(samples: Path) -> None:
    found, entries = read(samples / "mini-swe-agent" / "trajs")
    assert (len(found), entries) == (60, {})
    assert sum(any(call.invalidity for call in calls(item)) for item in found) == 33
    assert sum(any(call.outcome == "timed_out" for call in calls(item)) for item in found) == 6
    touching = [item for item in found if any("test" in (e.path or "") for s in item.steps for e in s.edits)]
    assert len(touching) == 18
    assert Counter(item.labels for item in found) == {("resolved=true",): 38, ("resolved=false",): 22}
    assert all(item.stop_reason == "Submitted" for item in found)
    assert all(edit.form == "unified_diff" and edit.hunks for item in found for s in item.steps for edit in s.edits)
    assert Counter(call.invalidity for item in found for call in calls(item) if call.invalidity) == {
        "malformed": 76, "unparsed": 1,
    }  # fmt: skip
    assert all(call.outcome != "unknown" for item in found for call in calls(item))


def test_mini_swe_agent_reports_and_both_version_2_fixtures_are_accounted_for(samples: Path) -> None:
    found, entries = read(samples / "mini-swe-agent")
    assert len(found) == 62
    assert entries == {("no_interaction", "mini-swe-agent"): 60, ("unknown_format", None): 2}  # SOURCE.md, licence


def test_swe_agent_22_files_mean_of_ten_and_a_half_steps(samples: Path) -> None:
    found, entries = read(samples / "swe-agent")
    assert len(found) == len({item.interaction_id for item in found}) == 22
    assert entries == {("unknown_format", None): 2}
    assert Counter(item.stop_reason for item in found) == {"submitted": 21, None: 1}  # one has only its history
    turns = [sum(step.author == "agent" for step in item.steps) for item in found]
    assert round(sum(turns) / len(turns), 1) == 10.5
    assert all(sum(step.author == "person" for step in item.steps) == 1 for item in found)
    patched = [item for item in found if any(e.form == "unified_diff" for s in item.steps for e in s.edits)]
    assert len(patched) == 12
    assert sum(any(call.outcome == "timed_out" for call in calls(item)) for item in found) == 3


def test_tinker_60_rollouts_and_16_reward_lists(samples: Path) -> None:
    found, entries = read(samples / "rl-rollouts-tinker")
    assert len(found) == 60
    assert entries[("no_interaction", "tinker-rollouts")] == 16
    assert Counter(r.infrastructure for item in found for r in item.rewards) == {False: 74, True: 46}
    unequal = [item for item in found if len({r.value for r in item.rewards}) == 2]
    broken = [item for item in found if json.loads(item.extra_json or "")["metrics"]["n_errors_parsing_tool_calls"]]
    assert len({item.interaction_id for item in (*unequal, *broken)}) == 10
    assert all(any(call.invalidity for call in calls(item)) for item in broken)
    assert Counter(call.invalidity for item in found for call in calls(item)) == {None: 150, "unparsed": 6}
    assert not any(call.outcome == "timed_out" for item in found for call in calls(item))  # n_tool_timeouts is 0
