"""Helpers that formats share: validity, questions, odd rewards, pairing, times."""

from datetime import UTC, datetime
from typing import Any

import pytest

from palomar.data.schema import Step, ToolCall
from palomar.data.sources._chat import (
    Tools,
    Transcript,
    content_of,
    extra,
    interactions,
    looks_like_question,
    reward_of,
    time_of,
    validity,
)

TOOLS = Tools(
    {
        "run": {
            "properties": {
                "cmd": {"type": "string"},
                "limit": {"type": ["integer", "null"]},
                "mode": {"enum": ["a", "b"]},
            },
            "required": ["cmd"],
            "additionalProperties": False,
        },
        "free": None,
    }
)


@pytest.mark.parametrize(
    ("name", "arguments", "kind"),
    [
        ("run", '{"cmd": "ls"}', None),
        ("run", {"cmd": "ls", "limit": None}, None),
        ("run", {"cmd": "ls", "limit": 3.0}, None),
        ("run", {"cmd": "ls", "limit": True}, "schema"),
        ("run", {"cmd": "ls", "limit": "3"}, "schema"),
        ("run", {"cmd": "ls", "mode": "c"}, "schema"),
        ("run", {"cmd": "ls", "other": 1}, "schema"),
        ("run", '["ls"]', "schema"),
        ("run", None, "schema"),
        ("run", "", "schema"),
        ("run", '{"cmd": "ls"', "malformed"),
        ("free", None, None),
        ("free", "{}", None),
        ("absent", "{}", "unknown_tool"),
        ("", "{}", "malformed"),
        (None, None, "malformed"),
    ],
)
def test_a_call_is_invalid_by_kind(name: str | None, arguments: Any, kind: str | None) -> None:
    found, problem = validity(name, arguments, TOOLS)
    assert found == kind
    assert (problem is None) == (kind is None)


def test_without_a_list_of_tools_no_name_is_unknown() -> None:
    assert validity("anything", "{}", None) == (None, None)
    assert Tools.from_definitions([]) is None


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("Which database do you use?", True),
        ("I see two ways.\n\nWhich one shall I take?**", True),
        ("Soll ich die Tests anpassen?", True),
        ("要我继续吗？", True),
        ("Done. Is there anything else?", False),
        ("Why does it fail? Because of the index.", False),
        ("Fixed.\n```python\nx = y if ok? else z\n```", False),
        ("Is this it?\n```\nls\n```", True),
        ("", False),
        (None, False),
    ],
)
def test_the_last_words_decide_whether_the_agent_asks(text: str | None, asks: bool) -> None:
    assert looks_like_question(text) is asks


def test_a_call_in_the_same_step_means_the_agent_goes_on() -> None:
    person = Step(author="person", role="user", text="go")
    agent = Step(author="agent", role="assistant", text="Shall I?", tool_calls=(ToolCall(name="run"),))
    (item,) = interactions([person, agent], conversation_id="c", common={"source": "s", "origin": "o"})
    assert item.steps[1].is_question is False


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), "0.5", {}, 10**400])
def test_what_is_no_finite_number_is_an_invalid_reward(value: Any) -> None:
    reward = reward_of("r", value)
    assert reward.value is None
    assert reward.invalid_reason


def test_a_verdict_is_a_reward_of_one_or_zero() -> None:
    assert [reward_of("r", value).value for value in (True, False, 2, -0.5)] == [1.0, 0.0, 2.0, -0.5]


def test_answers_without_ids_go_to_the_latest_calls_in_order() -> None:
    transcript = Transcript()
    step = Step(author="tool", role="tool")
    call = ToolCall(name="x")
    transcript.add(Step(author="agent", role="assistant", tool_calls=(call,)))
    transcript.add(Step(author="agent", role="assistant", tool_calls=(call, call)))
    assert [transcript.answer(None, text, step) for text in ("first", "second", "third")] == [True, True, False]
    assert [call.result for item in transcript.steps for call in item.tool_calls] == [None, "first", "second"]
    assert [item.text for item in transcript.steps if item.author == "tool"] == [None, None, "third"]


def test_a_tree_keeps_its_parents_within_each_interaction() -> None:
    def step(author: str, parent: int | None = None) -> Step:
        return Step.model_validate({"author": author, "role": "x", "text": author, "parent": parent})

    steps = [step("person"), step("agent", 0), step("person", 1), step("agent", 2), step("agent", 3)]
    _, second = interactions(steps, conversation_id="c", common={"source": "s", "origin": "o"})
    assert [item.parent for item in second.steps] == [None, 0, 1]


@pytest.mark.parametrize(
    ("value", "moment"),
    [
        (0, datetime(1970, 1, 1, tzinfo=UTC)),
        (1_767_225_600_000, datetime(2026, 1, 1, tzinfo=UTC)),
        ("2026-01-01T01:00:00+01:00", datetime(2026, 1, 1, tzinfo=UTC)),
        ("2026-01-01 00:00:00", datetime(2026, 1, 1, tzinfo=UTC)),
        ("yesterday", None),
        (float("nan"), None),
        (1e300, None),
        (True, None),
        (None, None),
    ],
)
def test_times_are_read_in_utc_or_not_at_all(value: Any, moment: datetime | None) -> None:
    assert time_of(value) == moment


def test_content_is_taken_apart_without_losing_parts() -> None:
    assert content_of(["a", {"type": "text", "text": "b"}]).text == "a\nb"
    assert content_of({"type": "text", "text": "b"}).text == "b"
    assert content_of(7).text == "7"
    assert content_of([{"type": "text"}]).rest == ({"type": "text"},)
    assert content_of(None).text is None


def test_extra_leaves_out_what_is_empty_and_keeps_zero_and_false() -> None:
    assert extra(a=None, b=0, c=False, d=[], e=float("nan")) == '{"b":0,"c":false,"e":"nan"}'
    assert extra(a=None) is None
