"""Chat messages as steps, and the edits that tool calls make."""

import json

import pytest

from palomar.data.errors import IngestError
from palomar.data.schema import ToolCall
from palomar.data.sources._messages import Distinct, Judged, chat_steps, edits_of_call


def message(role: str, content: str | None = None, **more: object) -> dict[str, object]:
    return {"role": role, "content": content, **more}


def call(name: str, arguments: object, outcome: str = "ok") -> ToolCall:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return ToolCall.model_validate({"name": name, "arguments": text, "outcome": outcome})


def test_an_invalid_call_never_ran_whatever_its_answer_says() -> None:
    steps = chat_steps(
        [
            message("assistant", tool_calls=[{"id": "a", "function": {"name": "f", "arguments": "{"}}]),
            message("tool", "boom", tool_call_id="a"),
        ],
        judge=lambda call, result, message: Judged("failed", result),
    )
    (made,) = steps[0].tool_calls
    assert (made.invalidity, made.outcome, made.result) == ("malformed", "not_run", "boom")
    assert made.problem is not None
    assert made.problem.startswith("arguments are not JSON")


def test_without_a_judge_the_outcome_stays_unknown_and_an_answer_to_no_call_keeps_its_text() -> None:
    steps = chat_steps(
        [
            message("assistant", tool_calls=[{"id": "a", "function": {"name": "f", "arguments": "{}"}}]),
            message("tool", "fine", tool_call_id="a"),
            message("tool", "whose?", tool_call_id="z"),
        ]
    )
    assert (steps[0].tool_calls[0].outcome, steps[0].tool_calls[0].result) == ("unknown", "fine")
    assert [step.text for step in steps[1:]] == [None, "whose?"]


def test_only_the_step_before_the_person_speaks_can_ask() -> None:
    steps = chat_steps([message("assistant", "one?"), message("assistant", "two?"), message("user", "yes")])
    assert [step.is_question for step in steps] == [False, True, None]


def test_keys_the_schema_does_not_name_are_kept() -> None:
    (step,) = chat_steps([message("user", "hi", name="ann", weight=0)])
    assert json.loads(step.extra_json or "") == {"name": "ann", "weight": 0}


def test_a_message_that_is_none_is_named() -> None:
    with pytest.raises(IngestError, match=r"messages\[1\]\.role: expected str, found NoneType"):
        chat_steps([message("user", "a"), {"content": "b"}])


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (call("str_replace_editor", {"command": "str_replace", "path": "a.py", "old_str": "1", "new_str": "2"}),
         [("a.py", "old_new", "applied")]),
        (call("str_replace_editor", {"command": "create", "path": "a.py", "file_text": "1"}),
         [("a.py", "whole_file", "applied")]),
        (call("str_replace_editor", {"command": "view", "path": "a.py"}), []),
        (call("MultiEdit", {"file_path": "a.py", "edits": [{"old_string": "1", "new_string": "2"}, {"new_string": ""}]},
              "failed"), [("a.py", "old_new", "failed")] * 2),
        (call("Write", {"file_path": "a.py", "content": "1"}, "refused"), [("a.py", "whole_file", "proposed")]),
        (call("send_message", {"path": "a.py", "content": "1"}), []),
        (call("apply_patch", {"input": "--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-1\n+2\n"}),
         [("a.py", "unified_diff", "applied")]),
        (call("bash", {"command": "sed -i s/1/2/ a.py"}, "unknown"), [("a.py", "unknown", "unknown")]),
        (call("Edit", '{"file_path": "a.py", "old_str'), []),
        (call("Edit", "[1]"), []),
    ],
)  # fmt: skip
def test_edits_are_read_from_the_names_of_a_calls_arguments(
    made: ToolCall, expected: list[tuple[str, str, str]]
) -> None:
    assert [(edit.path, edit.form, edit.outcome) for edit in edits_of_call(made)] == expected


def test_equal_records_get_different_ids_and_the_same_ones_each_time() -> None:
    def ids() -> list[str]:
        distinct = Distinct()
        return [distinct.id(*parts) for parts in (("a", "b"), ("a", "b"), ("ab",), ("a", "b"))]

    assert len(set(ids())) == 4
    assert ids() == ids()
