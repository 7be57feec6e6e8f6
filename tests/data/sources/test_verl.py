"""verl dumps: groups from the uid, and a scorer that failed is not a score of zero."""

import json
from pathlib import Path

import pytest

from palomar.data.quarantine import Quarantined
from palomar.data.schema import Interaction
from palomar.data.sources import SourceFile, detect, read_path

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures" / "verl" / "7.jsonl"


@pytest.fixture(scope="module")
def found() -> list[Interaction | Quarantined]:
    return list(read_path(FIXTURE))


@pytest.fixture(scope="module")
def rows(found: list[Interaction | Quarantined]) -> list[Interaction]:
    return [item for item in found if isinstance(item, Interaction)]


def test_it_is_recognised_by_its_keys() -> None:
    reader = detect(SourceFile(FIXTURE, "7.jsonl").head)
    assert reader is not None
    assert reader.name == "verl"


def test_every_line_is_an_interaction_or_in_quarantine(found: list[Interaction | Quarantined]) -> None:
    assert [item.origin_record for item in found if isinstance(item, Interaction)] == [1, 2, 3, 4, 5, 6]
    problems = [(item.line, item.kind, item.field) for item in found if isinstance(item, Quarantined)]
    assert problems == [(7, "schema", "output"), (8, "damaged", None)]


def test_samples_of_one_prompt_share_a_group_and_turns_of_one_rollout_a_conversation(rows: list[Interaction]) -> None:
    groups = [row.group_id for row in rows]
    assert groups[0] == groups[1] == groups[2] is not None
    assert groups[3] not in (None, groups[0])
    conversations = [row.conversation_id for row in rows]
    assert conversations[1] == conversations[2] != conversations[0]
    assert [row.turn for row in rows[:3]] == [0, 0, 1]
    assert {row.cycle for row in rows} == {7}


def test_a_timed_out_scorer_is_an_infrastructure_failure_and_no_zero(rows: list[Interaction]) -> None:
    score = rows[2].rewards[0]
    assert (score.name, score.value, score.infrastructure) == ("score", None, True)
    assert score.invalid_reason == "the scorer failed (timeout: true); the log says 0.0"
    honest_zero = rows[1].rewards[0]
    assert (honest_zero.value, honest_zero.infrastructure) == (0.0, False)


def test_nan_is_an_invalid_score(rows: list[Interaction]) -> None:
    assert (rows[3].rewards[0].value, rows[3].rewards[0].invalid_reason) == (None, "the log says nan")


def test_extra_keys_of_v0_are_metrics_or_kept(rows: list[Interaction]) -> None:
    assert [(reward.name, reward.value, reward.kind) for reward in rows[0].rewards] == [
        ("score", 1.0, "proxy"),
        ("acc", 1.0, "metric"),
    ]
    assert json.loads(rows[0].extra_json or "") == {"uid": "a1_b_0_0", "gts": "3", "acc": True, "pred": "3"}


def test_equal_samples_without_uid_stay_apart_and_ids_do_not_depend_on_the_place(
    rows: list[Interaction], tmp_path: Path
) -> None:
    assert rows[4].group_id is None
    assert rows[4].steps == rows[5].steps
    assert len({row.interaction_id for row in rows}) == len(rows)
    copy = tmp_path / "other.jsonl"
    copy.write_bytes(FIXTURE.read_bytes())
    assert [item.interaction_id for item in read_path(copy) if isinstance(item, Interaction)] == [
        row.interaction_id for row in rows
    ]


def test_an_output_that_asks_is_a_question(rows: list[Interaction]) -> None:
    assert [row.steps[-1].is_question for row in rows[:3]] == [False, True, False]
