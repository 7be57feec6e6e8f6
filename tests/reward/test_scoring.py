"""What is paid, to whom, and what is not paid because nobody can say."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from palomar.data.errors import LakeError
from palomar.data.observations import FACTS, OBSERVATIONS
from palomar.reward.scoring import contributions, score, score_logged
from palomar.reward.spec import RewardSpec, bundled, parse_spec, version

EDIT: dict[str, Any] = {
    "edits": 1, "edited": True, "files_edited": 1, "functions_before": 1, "functions_after": 1,
    "function_lines_before": 12, "function_lines_after": 12, "complexity_before": 3, "complexity_after": 3,
    "tests_passed": 5, "tests_run": 5,
}  # fmt: skip
BROKEN_CALL = {"invalid_malformed": 1}
FRESH = {"watched_s": 60.0}


def spec(terms: str, rest: str = "") -> RewardSpec:
    return parse_spec(f"name: test\nterms:\n{terms}\n{rest}")


PERSISTENCE = spec("  - {name: edit_persistence, weight: 2.0}", "nothing_applies: 0.0")


def first(table: pa.Table) -> dict[str, Any]:
    return table.to_pylist()[0]


def test_observations_have_the_columns_of_the_lake_and_two_per_term(facts) -> None:
    table = score(facts(EDIT), PERSISTENCE)
    assert table.schema.names == [*OBSERVATIONS.names, "term:edit_persistence", "status:edit_persistence"]
    assert table.select(OBSERVATIONS.names).schema.equals(OBSERVATIONS)
    assert first(table)["reward_version"] == version(PERSISTENCE)


# The four statuses ------------------------------------------------------------------------------------------------


def test_a_kept_and_a_reverted_edit_are_paid_weight_times_value(facts) -> None:
    table = score(facts(EDIT, EDIT | {"edit_lost_s": 100.0}), PERSISTENCE)
    assert table["reward"].to_pylist() == [2.0, -3.0]


def test_an_unripe_edit_waits_and_is_neither_included_nor_excluded(facts) -> None:
    row = first(score(facts(EDIT | FRESH), PERSISTENCE))
    assert (row["reward"], row["reward_status"], row["included"], row["exclusion"]) == (None, "waiting", None, None)
    assert row["reward_reason"].startswith("edit_persistence: ")
    assert row["term:edit_persistence"] is None


def test_not_applicable_is_kept_apart_from_a_measured_zero(facts) -> None:
    both = spec("  - {name: edit_persistence, weight: 1, params: {kept: 0.0}}\n  - {name: latency, weight: -1}")
    table = score(facts({}, EDIT), both)
    assert table["status:edit_persistence"].to_pylist() == ["not_applicable", "valid"]
    assert table["term:edit_persistence"].to_pylist() == [None, 0.0]
    assert table["reward"].to_pylist() == [-10.0, -10.0]


def test_one_invalid_term_makes_the_reward_invalid_even_if_another_waits(facts) -> None:
    both = spec("  - {name: edit_persistence, weight: 1}\n  - {name: latency, weight: -1}")
    row = first(score(facts(EDIT | FRESH | {"latency_s": None}), both))
    assert (row["reward"], row["reward_status"]) == (None, "invalid")
    assert row["reward_reason"] == "latency: the latency is not known"
    assert (row["included"], row["exclusion"]) == (False, "reward_invalid")


def test_a_term_of_weight_zero_is_measured_but_not_needed(facts) -> None:
    both = spec("  - {name: edit_persistence, weight: 1}\n  - {name: latency, weight: 0}")
    row = first(score(facts(EDIT | {"latency_s": None}), both))
    assert (row["reward"], row["reward_status"], row["status:latency"]) == (1.0, "valid", "invalid")


def test_where_no_term_applies_the_reward_is_invalid_unless_the_spec_says_what_it_is(facts) -> None:
    silent = spec("  - {name: edit_persistence, weight: 2.0}")
    row = first(score(facts({}), silent))
    assert (row["reward"], row["reward_status"], row["reward_reason"]) == (None, "invalid", "no term applies")
    assert first(score(facts({}), PERSISTENCE))["reward"] == 0.0


# Bounds and conditions --------------------------------------------------------------------------------------------


def test_bounds_clip_the_value_before_it_is_weighted(facts) -> None:
    bounded = spec("  - {name: latency, weight: -2, bounds: [null, 3.0]}")
    assert score(facts({}, {"latency_s": 1.0}), bounded)["reward"].to_pylist() == [-6.0, -2.0]


def test_a_condition_that_fails_leaves_the_term_out_and_one_that_cannot_be_decided_makes_it_invalid(facts) -> None:
    ranged = spec(
        "  - {name: latency, weight: 1, when: {organisation: [quill, harbor], ambiguity: {min: 0.2, max: 0.5}}}"
    )
    table = score(
        facts(
            {"ambiguity": 0.2}, {"ambiguity": 0.5}, {"ambiguity": 0.1}, {"ambiguity": None},
            {"ambiguity": None, "organisation": "lumen"}, {"ambiguity": 0.3, "organisation": None},
        ),
        ranged,
    )  # fmt: skip
    assert table["status:latency"].to_pylist() == [
        "valid", "not_applicable", "not_applicable", "invalid", "not_applicable", "invalid",
    ]  # fmt: skip
    assert table["term:latency"].to_pylist() == [10.0, None, None, None, None, None]


# Inclusion --------------------------------------------------------------------------------------------------------

DROPPING = spec(
    "  - {name: edit_persistence, weight: 1}\n  - {name: latency, weight: -0.01}",
    "inclusion:\n"
    "  - {name: broken, condition: invalid_tool_call, action: drop, when: {predicted_failure: {min: 0.4}}}\n"
    "  - {name: cut_off, condition: truncated}\n",
)


def test_the_first_rule_that_holds_names_the_reason_and_the_reward_is_kept(facts) -> None:
    row = first(score(facts(BROKEN_CALL | {"truncated": True}), DROPPING))
    assert (row["included"], row["exclusion"], row["reward_status"]) == (False, "broken", "valid")
    assert row["reward"] == pytest.approx(-0.1)


def test_a_rule_with_a_condition_drops_only_there(facts) -> None:
    table = score(facts(BROKEN_CALL, BROKEN_CALL | {"predicted_failure": 0.1}), DROPPING)
    assert table["exclusion"].to_pylist() == ["broken", None]


def test_what_nobody_can_tell_drops_nothing(facts) -> None:
    table = score(facts({"truncated": None}, BROKEN_CALL | {"predicted_failure": None}), DROPPING)
    assert table["included"].to_pylist() == [True, True]


def test_a_dropped_sample_does_not_wait(facts) -> None:
    row = first(score(facts(EDIT | FRESH | BROKEN_CALL), DROPPING))
    assert (row["reward_status"], row["included"], row["exclusion"]) == ("waiting", False, "broken")


# The outcome ------------------------------------------------------------------------------------------------------

JUDGED = spec(
    "  - {name: latency, weight: -0.01}",
    "outcome:\n  terms:\n"
    "    - {name: edit_persistence, weight: 1, params: {horizon_minutes: 60, kept: 1, reverted: 0}}\n"
    "    - {name: dissatisfied_follow_up, weight: -1, params: {horizon_minutes: 60}}\n",
)


def outcomes(table: pa.Table) -> list[tuple[float | None, str]]:
    return list(zip(table["outcome"].to_pylist(), table["outcome_status"].to_pylist(), strict=True))


def test_a_question_is_worth_what_came_of_it(facts) -> None:
    asked = {"conversation_id": "c", "turn": 0, "asked": True}
    answered = EDIT | {"conversation_id": "c", "turn": 1}
    annoyed = {"conversation_id": "d", "turn": 0, "follow_up": "dissatisfied", "follow_up_s": 5.0}
    table = score(facts(answered, annoyed, asked, {}), JUDGED)
    assert outcomes(table) == [(1.0, "mature"), (-1.0, "mature"), (1.0, "mature"), (0.0, "mature")]


def test_an_earlier_turn_is_not_credited_to_a_later_one(facts) -> None:
    complained = {"conversation_id": "c", "turn": 0, "follow_up": "dissatisfied", "follow_up_s": 5.0}
    table = score(facts(complained, EDIT | {"conversation_id": "c", "turn": 1}), JUDGED)
    assert outcomes(table) == [(0.0, "mature"), (1.0, "mature")]


def test_a_conversation_is_mature_once_all_its_later_turns_are(facts) -> None:
    asked = {"conversation_id": "c", "turn": 0, "asked": True}
    table = score(facts(asked, EDIT | FRESH | {"conversation_id": "c", "turn": 1}), JUDGED)
    assert outcomes(table) == [(None, "immature"), (None, "immature")]


def test_bad_news_that_comes_early_does_not_count_before_good_news_can(facts) -> None:
    annoyed = {"follow_up": "dissatisfied", "follow_up_s": 5.0}
    table = score(facts(annoyed | {"watched_s": 3599.0}, annoyed | {"watched_s": 3600.0}), JUDGED)
    assert outcomes(table) == [(None, "immature"), (-1.0, "mature")]


def test_an_outcome_that_cannot_be_known_is_invalid_not_zero(facts) -> None:
    assert outcomes(score(facts({"watched_s": None}), JUDGED)) == [(None, "invalid")]


def test_without_an_outcome_in_the_spec_there_is_none(facts) -> None:
    assert outcomes(score(facts({}), PERSISTENCE)) == [(None, None)]


# Contributions ----------------------------------------------------------------------------------------------------


def test_contributions_add_up_to_the_reward(facts) -> None:
    sound = bundled("sound")
    table = score(facts(EDIT, {"asked": True}, EDIT | {"edit_lost_s": 5.0, "function_lines_after": 18}), sound)
    parts = contributions(table, sound)
    for row, reward in enumerate(table["reward"].to_pylist()):
        assert sum(part[row] for part in parts.values()) == pytest.approx(reward)


def test_scoring_observations_again_gives_the_same_table(facts) -> None:
    sound = bundled("sound")
    once = score(facts(EDIT, {"asked": True}, FRESH), sound)
    assert score(once, sound).equals(once)


def test_a_fact_that_vanished_is_an_error_not_a_column_of_nulls(facts) -> None:
    with pytest.raises(LakeError, match="latency_s"):
        score(facts({}).drop_columns(["latency_s"]), PERSISTENCE)


def test_facts_of_another_moment_are_refused(facts) -> None:
    with pytest.raises(LakeError, match="as of"):
        score(facts({}), PERSISTENCE, as_of=datetime(2020, 1, 1, tzinfo=UTC))


def test_an_empty_table_can_be_scored() -> None:
    assert score(FACTS.empty_table(), bundled("naive")).num_rows == 0
    assert score_logged(FACTS.empty_table()).num_rows == 0


# The specs that come with Palomar ---------------------------------------------------------------------------------


def reward_of(facts: Any, name: str, row: dict[str, Any]) -> float | None:
    observation = first(score(facts(row), bundled(name)))
    return None if not observation["included"] else observation["reward"]


def test_the_naive_reward_has_the_three_holes_and_the_sound_one_has_not(facts) -> None:
    reverted = EDIT | {"edit_lost_s": 60.0}
    split = EDIT | {"functions_after": 4, "function_lines_after": 18}
    clear_question = {"asked": True, "ambiguity": 0.0}
    broken = BROKEN_CALL
    assert reward_of(facts, "naive", broken) is None  # escapes
    assert reward_of(facts, "sound", broken) == pytest.approx(-2.9)
    assert reward_of(facts, "naive", clear_question) > reward_of(facts, "naive", reverted)  # defers
    assert reward_of(facts, "naive", clear_question) == pytest.approx(-0.1)
    assert reward_of(facts, "sound", clear_question) == pytest.approx(-1.5)
    assert reward_of(facts, "sound", {"asked": True, "ambiguity": 1.0}) == pytest.approx(0.0)
    assert reward_of(facts, "naive", split) > reward_of(facts, "naive", EDIT)  # splits
    assert reward_of(facts, "sound", split) < reward_of(facts, "sound", EDIT)


def test_the_naive_reward_pays_what_its_comments_say(facts) -> None:
    short = EDIT | {"function_lines_after": 6, "follow_up": "satisfied", "follow_up_s": 9.0}
    assert reward_of(facts, "naive", short) == pytest.approx(1.0 + 0.2 - 0.1 + 0.8 * 0.25)
    annoyed = EDIT | {"edit_lost_s": 9.0, "follow_up": "dissatisfied", "follow_up_s": 9.0}
    assert reward_of(facts, "naive", annoyed) == pytest.approx(-1.5 - 0.3 - 0.1 - 0.8 * 0.5)
    assert reward_of(facts, "naive", {"edits": 1, "edits_failed": 1}) == pytest.approx(-1.6 - 0.1)
