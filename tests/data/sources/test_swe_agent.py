"""SWE-agent: steps asked again, retries, demonstrations, edits from the submission or from the commands."""

import json
from pathlib import Path

from palomar.data.schema import Interaction, ToolCall
from palomar.data.sources import read_path

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "swe-agent"


def read_one(path: Path) -> Interaction:
    (item,) = read_path(path)
    assert isinstance(item, Interaction)
    return item


def calls(item: Interaction) -> list[ToolCall]:
    return [call for step in item.steps for call in step.tool_calls]


def test_steps_that_were_asked_again_are_counted_by_kind() -> None:
    item = read_one(FIXTURES / "thought_action.traj")
    assert [(call.name, call.invalidity, call.outcome) for call in calls(item)] == [
        ("open", None, "ok"),
        (None, "unparsed", "not_run"),
        (None, "malformed", "not_run"),
        ("edit", None, "failed"),
        ("python", None, "timed_out"),
        ("submit", None, "ok"),
    ]


def test_the_request_is_the_persons_and_a_demonstration_is_not() -> None:
    item = read_one(FIXTURES / "thought_action.traj")
    assert [(step.author, step.text) for step in item.steps[:3]] == [
        ("harness", "SETTING"),
        ("harness", "Here is a demonstration."),
        ("person", "ISSUE: minutes are fractional"),
    ]
    assert [step.extra_json for step in item.steps[:3]] == [None, '{"demonstration":true}', None]


def test_a_submitted_patch_is_the_edit_of_the_last_step() -> None:
    item = read_one(FIXTURES / "thought_action.traj")
    (edit,) = [edit for step in item.steps for edit in step.edits]
    assert (edit.path, edit.form, edit.outcome) == ("src/clock.py", "unified_diff", "applied")
    assert item.steps[-2].edits == (edit,)
    assert item.stop_reason == "submitted"


def test_without_a_patch_the_commands_give_the_edits(tmp_path: Path) -> None:
    log = json.loads((FIXTURES / "thought_action.traj").read_text())
    log["info"]["submission"] = "FLAG{not_a_patch}"
    (tmp_path / "ctf.traj").write_text(json.dumps(log))
    item = read_one(tmp_path / "ctf.traj")
    (edit,) = [edit for step in item.steps for edit in step.edits]
    assert (edit.path, edit.form, edit.outcome) == ("/repo/src/clock.py", "unknown", "failed")
    assert "FLAG{not_a_patch}" in (item.extra_json or "")


def test_function_calls_have_names_ids_raw_arguments_and_times() -> None:
    item = read_one(FIXTURES / "function_calling.traj")
    replaced, blocked, submitted = calls(item)
    assert (replaced.call_id, replaced.name, replaced.elapsed_s) == ("c1", "str_replace_editor", 0.25)
    assert json.loads(replaced.arguments or "")["old_str"] == "a = 1\n"
    assert (blocked.invalidity, blocked.outcome) == ("rejected", "not_run")
    assert submitted.invalidity is None
    (edit,) = [edit for step in item.steps for edit in step.edits]
    assert (edit.path, edit.form, [(h.before, h.after) for h in edit.hunks]) == (
        "/repo/a.py", "old_new", [("a = 1\n", "a = 2\n")],
    )  # fmt: skip
    assert (item.checkpoint, item.task_id) == ("tiny-coder", "repo__a-1")
    assert [step.author for step in item.steps if step.role == "tool"] == ["tool"]


def test_a_file_with_only_a_history_is_read_from_it() -> None:
    item = read_one(FIXTURES / "history_only.traj")
    (call,) = calls(item)
    assert (call.call_id, call.name, call.result) == ("d1", "find_file", "Found 1 match")
    assert [step.author for step in item.steps] == ["harness", "person", "agent", "tool"]


def test_attempts_that_were_not_chosen_are_branches() -> None:
    item = read_one(FIXTURES / "attempts.traj")
    agent = [(step.branch, step.text) for step in item.steps if step.author == "agent"]
    assert agent == [("attempt-0", "first"), (None, "second")]
    assert [step.branch for step in item.steps if step.edits] == [None]
