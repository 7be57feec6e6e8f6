"""mini-swe-agent: what the harness said apart from what people said, invalid turns, time-outs, the submission."""

import json
from pathlib import Path

import pytest

from palomar.data.quarantine import Quarantined
from palomar.data.schema import Interaction, ToolCall
from palomar.data.sources import read_path

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "mini-swe-agent"


def read_one(path: Path) -> Interaction:
    (item,) = read_path(path)
    assert isinstance(item, Interaction)
    return item


def calls(item: Interaction) -> list[ToolCall]:
    return [call for step in item.steps for call in step.tool_calls]


@pytest.fixture(scope="module")
def first() -> Interaction:
    return read_one(FIXTURES / "v1.traj.json")


@pytest.fixture(scope="module")
def second() -> Interaction:
    return read_one(FIXTURES / "v2.traj.json")


def test_after_the_request_the_role_user_is_the_harness(first: Interaction) -> None:
    assert [step.author for step in first.steps if step.role == "user"] == ["person"] + ["harness"] * 7
    assert first.steps[1].text is not None
    assert first.steps[1].text.startswith("The cart forgets")
    assert first.feedback == ()


def test_each_command_has_its_fate(first: Interaction) -> None:
    assert [(call.invalidity, call.outcome, call.exit_code) for call in calls(first)] == [
        (None, "ok", 0),
        ("malformed", "not_run", None),
        ("unparsed", "not_run", None),
        (None, "ok", 0),
        (None, "timed_out", None),
        (None, "failed", 1),
        (None, "ok", None),
    ]
    assert calls(first)[0].arguments == "cat shop/cart.py"
    assert "found 2" in (calls(first)[1].problem or "")
    assert calls(first)[-1].result is not None
    assert calls(first)[-1].result.startswith("diff --git")


def test_the_submission_gives_the_edits_once(first: Interaction) -> None:
    edits = [(index, edit) for index, step in enumerate(first.steps) for edit in step.edits]
    assert [edit.path for _, edit in edits] == ["shop/cart.py", "tests/test_cart.py"]
    assert {index for index, _ in edits} == {14}  # the agent's last step; sed before it is not counted again
    assert {edit.outcome for _, edit in edits} == {"applied"}
    code, test = (edit for _, edit in edits)
    assert (code.lines_added, code.lines_removed, test.lines_added) == (1, 1, 3)
    assert test.functions_after is not None
    assert [f.name for f in test.functions_after] == ["test_total", "test_two"]


def test_tokens_reasoning_and_length_limits_are_read(first: Interaction) -> None:
    agent = [step for step in first.steps if step.author == "agent"]
    assert first.tokens_out == 20 + 40 + 6 + 18 + 9 + 12 + 25
    assert (agent[0].thinking, agent[0].model) == ("Let me look.", "tiny-coder-1")
    assert [step.truncated for step in agent] == [False, False, True, False, False, False, False]
    assert (first.checkpoint, first.task_id, first.stop_reason) == ("tiny-coder", "shop__cart-1", "Submitted")
    assert first.latency_s is None  # the request has no time


def test_version_2_calls_are_read_from_their_fields(second: Interaction) -> None:
    assert [(call.call_id, call.invalidity, call.outcome, call.exit_code) for call in calls(second)] == [
        ("t1", None, "ok", 0),
        (None, "unparsed", "not_run", None),
        ("t2", None, "timed_out", None),
        ("t3", None, "refused", None),
        ("t4", None, "failed", 2),
    ]
    (edit,) = [edit for step in second.steps for edit in step.edits]
    assert (edit.path, edit.form, edit.outcome, edit.text) == (
        "util.py", "heredoc", "applied", "def helper():\n    return 1\n",
    )  # fmt: skip


def test_a_person_who_rejects_a_command_is_a_refusal_amid_the_same_interaction(second: Interaction) -> None:
    assert [(f.kind, f.text) for f in second.feedback] == [("refusal", "leave build alone")]
    assert calls(second)[3].problem == "leave build alone"
    assert [step.author for step in second.steps].count("person") == 2
    assert second.turn == 0


def test_a_new_task_starts_a_new_interaction_and_is_the_reaction(tmp_path: Path) -> None:
    log = json.loads((FIXTURES / "bare.traj.json").read_text())
    log += [
        {"role": "user", "content": "The user added a new task: now add a test"},
        {"role": "assistant", "content": "```mswea_bash_command\npytest\n```"},
        {"role": "user", "content": "Interrupted by user: stop that"},
        {"role": "assistant", "content": "```mswea_bash_command\nls\n```"},
        {"role": "user", "content": "<returncode>0</returncode>"},
    ]
    (tmp_path / "log").write_text(json.dumps(log))
    one, two = (item for item in read_path(tmp_path / "log") if isinstance(item, Interaction))
    assert one.conversation_id == two.conversation_id
    assert [f.kind for f in one.feedback] == ["follow_up"]
    assert [(f.kind, f.text) for f in two.feedback] == [("interruption", "stop that")]


def test_a_report_beside_the_trajectory_gives_the_verdict(tmp_path: Path) -> None:
    (tmp_path / "trajs").mkdir()
    (tmp_path / "reports").mkdir()
    (tmp_path / "trajs" / "x.traj.json").write_bytes((FIXTURES / "v1.traj.json").read_bytes())
    status = {
        "FAIL_TO_PASS": {"success": ["a"], "failure": []},
        "PASS_TO_PASS": {"success": ["b", "c"], "failure": ["d"]},
    }
    report = {"resolved": False, "tests_status": status}
    (tmp_path / "reports" / "x.report.json").write_text(json.dumps(report))
    entry, item = read_path(tmp_path)
    assert isinstance(item, Interaction)
    assert item.labels == ("resolved=false",)
    assert (item.tests_passed, item.tests_run) == (3, 4)
    assert [(r.name, r.value, r.kind) for r in item.rewards] == [("resolved", 0.0, "held_out")]
    assert isinstance(entry, Quarantined)
    assert (entry.kind, entry.format) == ("no_interaction", "mini-swe-agent")
    assert item.interaction_id == read_one(FIXTURES / "v1.traj.json").interaction_id
