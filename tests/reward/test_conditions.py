"""Each named condition: the rows it holds for, those it does not, and those for which nobody can tell."""

import pytest

from palomar.data.observations import FACTS
from palomar.reward.conditions import CONDITIONS
from palomar.reward.rows import Rows

KINDS = ("malformed", "unparsed", "unknown_tool", "schema", "rejected")
HOLDS = {
    "invalid_tool_call": [{f"invalid_{kind}": 1} for kind in KINDS],
    "undecodable_tool_call": [{"invalid_malformed": 2}, {"invalid_unparsed": 1}],
    "truncated": [{"truncated": True}],
    "no_edit": [{}, {"edits": 1, "edits_failed": 1}, {"asked": True}],
    "failed_edit": [{"edits": 2, "edits_failed": 2}],
    "question": [{"asked": True}],
    "tests_edited": [{"tests_edited": True, "edits": 1, "edited": True}],
    "call_timed_out": [{"calls_timed_out": 1}],
    "call_refused": [{"calls_refused": 1}],
    "infrastructure_error": [{"logged_reward_infrastructure": True}],
    "not_production": [{"traffic": traffic} for traffic in ("shadow", "canary", "evaluation")],
}  # fmt: skip
HOLDS_NOT = {
    "invalid_tool_call": [{"calls_failed": 1, "calls_timed_out": 1, "calls_refused": 1}],
    "undecodable_tool_call": [{"invalid_unknown_tool": 1, "invalid_schema": 1, "invalid_rejected": 1}],
    "truncated": [{"truncated": False}, {"truncated": None}],
    "no_edit": [{"edits": 2, "edits_failed": 1, "edited": True}],
    "failed_edit": [{}, {"edits": 2, "edits_failed": 1, "edited": True}],
    "question": [{"asked": False}, {"asked": None}],
    "tests_edited": [{"tests_edited": False}, {"tests_edited": None}],
    "call_timed_out": [{"calls_failed": 1}],
    "call_refused": [{"refusals": 1}],
    "infrastructure_error": [{"logged_reward_infrastructure": False}, {"logged_reward_infrastructure": None}],
    "not_production": [{"traffic": "production"}],
}


@pytest.mark.parametrize("name", sorted(CONDITIONS))
def test_a_condition_holds_where_it_was_seen_to_hold_and_nowhere_else(facts, name) -> None:
    assert CONDITIONS[name](Rows(facts(*HOLDS[name]))).tolist() == [True] * len(HOLDS[name])
    assert CONDITIONS[name](Rows(facts(*HOLDS_NOT[name]))).tolist() == [False] * len(HOLDS_NOT[name])
    assert CONDITIONS[name](Rows(FACTS.empty_table())).tolist() == []


@pytest.mark.parametrize("name", sorted(CONDITIONS))
def test_a_condition_says_what_it_is(name) -> None:
    assert CONDITIONS[name].__doc__
