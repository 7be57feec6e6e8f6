"""Each term by hand: what it pays, and when it does not say."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from palomar.data.observations import FACTS
from palomar.reward.rows import Rows
from palomar.reward.scoring import score, term_scores
from palomar.reward.spec import TermSpec, bundled
from palomar.reward.term import STATUSES, TERMS, VALID, NoParams, Term, by_case, term

EDIT = {"edits": 1, "edited": True}
MEASURED = EDIT | {
    "functions_before": 1, "function_lines_before": 12, "complexity_before": 5,
    "functions_after": 1, "function_lines_after": 12, "complexity_after": 5,
}  # fmt: skip
HOUR = 3600.0
DAY = 24 * HOUR
NA, WAITING, INVALID = "not_applicable", "waiting", "invalid"

CASES: list[tuple[str, dict[str, Any], dict[str, Any], float | str]] = [
    # kind, params, row, value or status
    ("edit_persistence", {}, {}, NA),
    ("edit_persistence", {}, {"edits": 1, "edits_failed": 1}, NA),
    ("edit_persistence", {}, EDIT, 1.0),
    ("edit_persistence", {}, EDIT | {"watched_s": 5399.0}, WAITING),
    ("edit_persistence", {}, EDIT | {"watched_s": 5400.0}, 1.0),
    ("edit_persistence", {}, EDIT | {"watched_s": 60.0, "edit_lost_s": 50.0}, -1.5),
    ("edit_persistence", {}, EDIT | {"edit_lost_s": 5400.0}, -1.5),
    ("edit_persistence", {}, EDIT | {"edit_lost_s": 5401.0}, 1.0),
    ("edit_persistence", {}, EDIT | {"watched_s": None}, INVALID),
    ("edit_persistence", {}, EDIT | {"watched_s": None, "undone": True}, -1.5),
    ("edit_persistence", {}, EDIT | {"kept_share": 0.5}, -0.25),
    ("edit_persistence", {"horizon_minutes": 1, "kept": 3, "reverted": 0}, EDIT | {"edit_lost_s": 61.0}, 3.0),
    ("kept_and_passing", {}, {}, NA),
    ("kept_and_passing", {}, EDIT | {"tests_passed": 5, "tests_run": 5}, 1.0),
    ("kept_and_passing", {}, EDIT | {"tests_passed": 4, "tests_run": 5}, 0.0),
    ("kept_and_passing", {}, EDIT | {"tests_passed": 4, "tests_run": 5, "watched_s": 1.0}, 0.0),
    ("kept_and_passing", {}, EDIT | {"tests_passed": 5, "tests_run": 5, "watched_s": HOUR}, WAITING),
    ("kept_and_passing", {}, EDIT | {"tests_passed": 5, "tests_run": 5, "edit_lost_s": 2 * HOUR}, 0.0),
    ("kept_and_passing", {}, EDIT | {"tests_passed": 5, "tests_run": 5, "edit_lost_s": 2 * DAY}, 1.0),
    ("kept_and_passing", {}, EDIT | {"tests_passed": 5, "tests_run": 5, "watched_s": None}, INVALID),
    ("kept_and_passing", {}, EDIT | {"tests_passed": 0, "tests_run": 0}, INVALID),
    ("kept_and_passing", {}, EDIT, INVALID),
    ("length", {}, {"tokens_out": 500}, 0.5),
    ("length", {"cap_tokens": 200}, {"tokens_out": 500}, 0.2),
    ("length", {}, {"tokens_out": None}, INVALID),
    ("tests_edited", {}, {"tests_edited": False}, NA),
    ("tests_edited", {}, EDIT | {"tests_edited": False}, 0.0),
    ("tests_edited", {}, EDIT | {"tests_edited": True}, 1.0),
    ("tests_edited", {}, EDIT | {"tests_edited": None}, INVALID),
    ("dissatisfied_follow_up", {}, {}, 0.0),
    ("dissatisfied_follow_up", {}, {"watched_s": 60.0}, WAITING),
    ("dissatisfied_follow_up", {}, {"watched_s": 60.0, "follow_up": "dissatisfied", "follow_up_s": 9.0}, 1.0),
    ("dissatisfied_follow_up", {}, {"follow_up": "dissatisfied", "follow_up_s": 2 * HOUR}, 0.0),
    ("dissatisfied_follow_up", {}, {"watched_s": None, "follow_up": "dissatisfied"}, 1.0),
    ("dissatisfied_follow_up", {}, {"watched_s": None, "follow_up": "neutral"}, 0.0),
    ("dissatisfied_follow_up", {}, {"watched_s": None}, INVALID),
    ("dissatisfied_follow_up", {}, {"follow_up": "unclear", "follow_up_s": 9.0}, INVALID),
    ("dissatisfied_follow_up", {}, {"follow_up": "unclassified", "follow_up_s": 9.0}, INVALID),
    ("dissatisfied_follow_up", {"only_after": "edit"}, {"follow_up": "dissatisfied", "follow_up_s": 9.0}, NA),
    ("dissatisfied_follow_up", {"only_after": "edit"}, EDIT | {"follow_up": "dissatisfied", "follow_up_s": 9.0}, 1.0),
    ("satisfied_follow_up", {}, {"follow_up": "satisfied", "follow_up_s": 9.0}, 1.0),
    ("satisfied_follow_up", {}, {"follow_up": "dissatisfied", "follow_up_s": 9.0}, 0.0),
    ("latency", {}, {"latency_s": 12.5}, 12.5),
    ("latency", {"cap_s": 10}, {"latency_s": 12.5}, 10.0),
    ("latency", {}, {"latency_s": 0.0}, 0.0),
    ("latency", {}, {"latency_s": None}, INVALID),
    ("latency", {}, {"latency_s": -1.0}, INVALID),
    ("function_size", {}, {}, NA),
    ("function_size", {}, EDIT, INVALID),
    ("function_size", {}, MEASURED, 0.0),
    ("function_size", {}, MEASURED | {"functions_after": 3, "function_lines_after": 18}, 0.5),
    ("function_size", {"reference_lines": 24}, MEASURED, 0.5),
    ("function_size", {}, MEASURED | {"functions_after": 0, "function_lines_after": 0}, NA),
    ("code_growth", {}, {}, NA),
    ("code_growth", {}, EDIT, INVALID),
    ("code_growth", {}, MEASURED | {"function_lines_after": 18}, 0.5),
    ("code_growth", {}, MEASURED | {"function_lines_after": 6}, 0.0),
    ("code_growth", {}, MEASURED | {"functions_before": 0, "function_lines_before": 0}, NA),
    ("decision_growth", {}, {}, NA),
    ("decision_growth", {}, EDIT, INVALID),
    ("decision_growth", {}, MEASURED | {"complexity_after": 7}, 2.0),
    ("decision_growth", {}, MEASURED | {"complexity_after": 4}, -1.0),
    ("clarification", {}, {}, NA),
    ("clarification", {}, {"asked": None}, INVALID),
    ("clarification", {}, {"asked": True, "ambiguity": 0.0}, -1.4),
    ("clarification", {}, {"asked": True, "ambiguity": 1.0}, 0.1),
    ("clarification", {}, {"asked": True, "ambiguity": 0.5}, -0.65),
    ("clarification", {}, {"asked": True, "ambiguity": None}, INVALID),
    ("clarification", {"assumed_ambiguity": 0.5}, {"asked": True, "ambiguity": None}, -0.65),
    ("clarification", {}, {"asked": False, "ambiguity": None}, NA),
    ("invalid_tool_call", {}, {}, 0.0),
    ("invalid_tool_call", {}, {"invalid_malformed": 3}, 1.0),
    ("invalid_tool_call", {}, {"invalid_rejected": 1}, 1.0),
    ("invalid_tool_call", {"kinds": ["malformed"]}, {"invalid_rejected": 1}, 0.0),
    ("undelivered", {}, {}, 1.0),
    ("undelivered", {}, {"edits": 1, "edits_failed": 1}, 1.0),
    ("undelivered", {}, EDIT, 0.0),
    ("undelivered", {}, {"asked": True}, 0.0),
    ("undelivered", {}, {"asked": None}, INVALID),
    ("undelivered", {}, EDIT | {"asked": None}, 0.0),
    ("tests", {}, EDIT | {"tests_passed": 3, "tests_run": 4}, 0.75),
    ("tests", {}, EDIT | {"tests_passed": 0, "tests_run": 4}, 0.0),
    ("tests", {}, EDIT, INVALID),
    ("tests", {}, EDIT | {"tests_passed": 0, "tests_run": 0}, INVALID),
    ("tests", {}, EDIT | {"tests_run": 4}, INVALID),
    ("tests", {}, EDIT | {"tests_passed": 5, "tests_run": 4}, INVALID),
    ("tests", {}, {}, NA),
    ("tests", {}, {"tests_passed": 0, "tests_run": 4}, 0.0),
    ("logged_reward", {}, {"logged_reward": 0.25}, 0.25),
    ("logged_reward", {}, {"logged_reward": 0.0}, 0.0),
    ("logged_reward", {}, {"logged_reward": float("nan")}, INVALID),
    ("logged_reward", {}, {"logged_reward": float("inf")}, INVALID),
    ("logged_reward", {}, {}, INVALID),
]


def scored(facts: Any, kind: str, params: dict[str, Any], row: dict[str, Any]) -> tuple[float | None, str, str | None]:
    one = term_scores(Rows(facts(row)), TermSpec(name=kind, kind=kind, weight=1.0, params=params))
    value = None if np.isnan(one.value[0]) else float(one.value[0])
    return value, STATUSES[one.status[0]], one.reason[0].as_py()


@pytest.mark.parametrize(("kind", "params", "row", "expected"), CASES)
def test_a_term_says_what_it_should(facts, kind, params, row, expected) -> None:
    value, status, reason = scored(facts, kind, params, row)
    if isinstance(expected, str):
        assert (value, status) == (None, expected)
        assert reason
    else:
        assert (value, status, reason) == (pytest.approx(expected), "valid", None)


def test_every_term_is_tried_above() -> None:
    assert {case[0] for case in CASES} == set(TERMS)


def test_splitting_moves_the_size_of_functions_but_no_decision_and_makes_the_code_grow(facts) -> None:
    split = MEASURED | {"functions_after": 3, "function_lines_after": 16, "complexity_after": 5 + 2}
    assert scored(facts, "function_size", {}, split)[0] > scored(facts, "function_size", {}, MEASURED)[0]
    assert scored(facts, "decision_growth", {}, split)[0] == scored(facts, "decision_growth", {}, MEASURED)[0]
    assert scored(facts, "code_growth", {}, split)[0] > scored(facts, "code_growth", {}, MEASURED)[0]


def test_a_logged_reward_that_failed_keeps_the_words_of_the_log(facts) -> None:
    _, status, reason = scored(facts, "logged_reward", {}, {"logged_reward_invalid": "judge: HTTP 503"})
    assert (status, reason) == (INVALID, "judge: HTTP 503")


@pytest.mark.parametrize("kind", sorted(TERMS))
def test_a_term_says_in_its_docstring_its_range_when_it_is_silent_and_how_it_is_gamed(kind) -> None:
    text = TERMS[kind].__doc__ or ""
    for part in ("Range: ", "Gamed by: "):
        assert part in text, f"{kind} does not say {part!r}"
    assert "worse" in text or "better" in text or "higher means" in text


@pytest.mark.parametrize("kind", sorted(TERMS))
def test_a_term_answers_for_no_rows_and_never_gives_a_value_with_another_status(facts, kind) -> None:
    for table in (FACTS.empty_table(), pa.concat_tables(facts(row) for _, _, row, _ in CASES)):
        one = TERMS[kind](TERMS[kind].Params()).score(Rows(table))
        assert len(one.value) == len(one.status) == len(one.reason) == table.num_rows
        assert np.array_equal(np.isfinite(one.value), one.status == VALID)
        assert np.array_equal(one.reason.is_null(), one.status == VALID)


def test_a_value_that_is_no_number_is_invalid_though_the_term_forgot_to_say_so() -> None:
    one = by_case(np.array([1.0, np.nan, np.inf]))
    assert [STATUSES[code] for code in one.status] == ["valid", "invalid", "invalid"]


def test_two_terms_cannot_share_a_kind() -> None:
    with pytest.raises(ValueError, match="two terms are called 'latency'"):

        @term("latency")
        class Another(Term[NoParams]):
            Params = NoParams


def test_a_term_cannot_read_the_reward_the_outcome_or_another_term(facts) -> None:
    rows = Rows(score(facts({}), bundled("sound")))
    for name in ("reward", "outcome", "term:latency"):
        with pytest.raises(KeyError, match="facts only"):
            rows.number(name)
