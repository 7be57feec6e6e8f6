"""Chat messages: validity of calls, results by id, who spoke, turns of a conversation."""

import json
from pathlib import Path
from typing import Any

import pytest

from palomar.data.quarantine import Quarantined
from palomar.data.schema import Interaction, ToolCall
from palomar.data.sources import read_path

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures" / "openai-chat" / "chat.jsonl"


@pytest.fixture(scope="module")
def chat() -> list[Interaction]:
    items = list(read_path(FIXTURE))
    assert not [item for item in items if isinstance(item, Quarantined)]
    return [item for item in items if isinstance(item, Interaction)]


def read_one(tmp_path: Path, messages: list[dict[str, Any]], **more: Any) -> list[Interaction]:
    log = tmp_path / "chat.jsonl"
    log.write_text(json.dumps({"messages": messages, **more}))
    return [item for item in read_path(log, "openai-chat") if isinstance(item, Interaction)]


def calls(item: Interaction) -> list[ToolCall]:
    return [call for step in item.steps for call in step.tool_calls]


def test_three_person_turns_give_two_interactions_and_two_reactions(chat: list[Interaction]) -> None:
    first, second = chat[:2]
    assert first.conversation_id == second.conversation_id
    assert (first.turn, second.turn) == (0, 1)
    assert [(f.kind, f.text) for f in first.feedback] == [("follow_up", "No, I asked for a module that shouts.")]
    assert [(f.kind, f.text) for f in second.feedback] == [("answer", "yes")]  # the agent had asked
    assert second.steps[0].author == "person"
    assert [step.is_question for step in second.steps if step.author == "agent"] == [False, True]


def test_what_is_said_of_the_conversation_goes_to_its_ends(chat: list[Interaction]) -> None:
    first, second = chat[:2]
    assert json.loads(first.extra_json or "")["id"] == "chat-1"
    assert second.extra_json is None
    assert first.rewards == ()
    assert [(reward.name, reward.value) for reward in second.rewards] == [("reward", 0.5)]
    assert {first.checkpoint, second.checkpoint} == {"tiny-coder"}
    assert {first.user_id, second.user_id} == {"u1"}


def test_results_find_their_calls_by_id_in_any_order(chat: list[Interaction]) -> None:
    listed, written = calls(chat[0])
    assert (listed.name, listed.arguments, listed.invalidity, listed.result) == ("list_files", None, None, "README.md")
    assert (written.result, written.outcome) == ("written", "unknown")
    tools = [step for step in chat[0].steps if step.author == "tool"]
    assert [step.text for step in tools] == [None, None]


def test_calls_are_invalid_by_kind(chat: list[Interaction]) -> None:
    cut, unknown, wrong, timed_out = calls(chat[1])
    assert (cut.invalidity, cut.outcome, cut.arguments) == ("malformed", "not_run", '{"path": "greet.py", "content": ')
    assert (unknown.invalidity, unknown.outcome) == ("unknown_tool", "not_run")
    assert (wrong.invalidity, wrong.problem) == ("schema", "'cmd' is required")
    assert (timed_out.invalidity, timed_out.outcome) == (None, "timed_out")
    assert json.loads(timed_out.arguments or "") == {"cmd": "python greet.py"}  # logged as an object


def test_an_orphan_result_keeps_its_words(chat: list[Interaction]) -> None:
    orphan = [step for step in chat[1].steps if step.author == "tool" and step.text is not None]
    assert [(step.text, json.loads(step.extra_json or "")) for step in orphan] == [
        ("from nowhere", {"orphan_tool_call_id": "zz"})
    ]


def test_edits_come_from_the_calls_with_functions_measured(chat: list[Interaction]) -> None:
    (edit,) = [edit for step in chat[0].steps for edit in step.edits]
    assert (edit.path, edit.form, edit.language, edit.lines_added) == ("greet.py", "whole_file", "python", 2)
    assert edit.functions_after is not None
    assert [(f.name, f.lines, f.parameters) for f in edit.functions_after] == [("greet", 2, 1)]
    assert edit.functions_before is None  # what was there is not known


def test_image_parts_are_kept(chat: list[Interaction]) -> None:
    request = chat[0].steps[1]
    assert request.text == "Make a greeting module."
    assert json.loads(request.extra_json or "")["parts"][0]["type"] == "image_url"


def test_a_call_written_as_text_is_valid_only_if_it_was_run(chat: list[Interaction]) -> None:
    run, unrun = calls(chat[3])
    assert (run.name, run.invalidity, run.result) == (
        "list_files",
        None,
        "<tool_response>\nREADME.md\n</tool_response>",
    )
    assert (unrun.invalidity, unrun.outcome) == ("unparsed", "not_run")
    assert [step.author for step in chat[3].steps] == ["person", "agent", "harness", "agent"]


def test_a_sound_call_written_as_text_that_nobody_ran_is_unparsed(tmp_path: Path) -> None:
    text = '<tool_call>{"name": "list_files", "arguments": {}}</tool_call>'
    (item,) = read_one(tmp_path, [{"role": "user", "content": "go"}, {"role": "assistant", "content": text}])
    assert [(call.invalidity, call.problem) for call in calls(item)] == [("unparsed", "no one ran it")]


def test_a_result_that_blames_the_call_makes_it_rejected(tmp_path: Path) -> None:
    (item,) = read_one(
        tmp_path,
        [
            {"role": "user", "content": "go"},
            {"role": "assistant", "tool_calls": [
                {"id": name, "function": {"name": "f", "arguments": "{}"}} for name in ("a", "b", "c", "d")
            ]},
            {"role": "tool", "tool_call_id": "a", "content": "Error: missing 1 required positional argument: 'x'"},
            {"role": "tool", "tool_call_id": "b", "content": "Error: file not found"},
            {"role": "tool", "tool_call_id": "c", "content": "an error is described here"},
        ],
    )  # fmt: skip
    rejected, failed, answered, open_ = calls(item)
    assert (rejected.invalidity, rejected.outcome) == ("rejected", "failed")
    assert (failed.invalidity, failed.outcome) == (None, "failed")
    assert (answered.invalidity, answered.outcome) == (None, "unknown")
    assert (open_.outcome, open_.result) == ("unknown", None)


def test_tool_parts_of_other_vendors_are_calls_and_results_too(tmp_path: Path) -> None:
    (item,) = read_one(
        tmp_path,
        [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "I run it."},
                {"type": "tool_use", "id": "t", "name": "run", "input": {"cmd": "ls"}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t", "content": "boom", "is_error": True}]},
            {"role": "assistant", "content": "It failed."},
        ],
    )  # fmt: skip
    (call,) = calls(item)
    assert (call.name, call.arguments, call.outcome, call.result) == ("run", '{"cmd":"ls"}', "failed", "boom")
    assert item.steps[1].thinking == "hm"
    assert len([step for step in item.steps if step.author == "person"]) == 1


def test_a_conversation_without_an_answer_is_no_interaction(tmp_path: Path) -> None:
    log = tmp_path / "chat.jsonl"
    log.write_text('{"messages": [{"role": "user", "content": "anyone?"}]}\n{"messages": []}\n')
    assert [item.kind for item in read_path(log, "openai-chat") if isinstance(item, Quarantined)] == [
        "no_interaction"
    ] * 2


def test_a_conversation_logged_twice_is_one(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    log = tmp_path / "chat.jsonl"
    log.write_text(json.dumps(messages) + "\n" + json.dumps({"messages": messages}) + "\n")
    assert len({item.interaction_id for item in read_path(log) if isinstance(item, Interaction)}) == 1
