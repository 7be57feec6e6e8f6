"""Palomar's own JSON Lines: the schema file, odd rewards, late reactions."""

import json
from pathlib import Path

import jsonschema
import pytest

from palomar.data.quarantine import Quarantined
from palomar.data.schema import Interaction
from palomar.data.sources import Item, LateFeedback, read_path
from palomar.data.sources import palomar as reader

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures" / "palomar" / "log.jsonl"
STEPS = [{"author": "person", "role": "user", "text": "hi"}, {"author": "agent", "role": "assistant", "text": "ho"}]


def read(tmp_path: Path, *lines: str) -> list[Item]:
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(lines))
    return list(read_path(log, "palomar"))


def test_the_schema_file_is_what_the_records_say() -> None:
    shipped = Path(reader.__file__).with_name("palomar.schema.json").read_text()
    assert shipped == reader.schema_text(), (
        "run: python -m palomar.data.sources.palomar > data/sources/palomar.schema.json"
    )


def test_the_fixture_and_what_we_write_ourselves_are_valid_by_the_schema() -> None:
    validator = jsonschema.Draft202012Validator(reader.json_schema())
    for line in FIXTURE.read_text().splitlines():
        record = json.loads(line)
        if any(reward["value"] is None and "invalid_reason" not in reward for reward in record.get("rewards", [])):
            continue  # tolerated, not recommended
        validator.validate(record)
    for item in read_path(FIXTURE):
        if isinstance(item, Interaction):
            validator.validate(item.model_dump(mode="json"))
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({"interaction_id": "a"})


def test_an_interaction_written_by_us_is_read_back_equal(tmp_path: Path) -> None:
    items = [item for item in read_path(FIXTURE) if isinstance(item, Interaction)]
    again = read(tmp_path, *(item.model_dump_json() for item in items))
    place = {"origin": "", "origin_record": None}
    assert [item.model_copy(update=place) for item in again if isinstance(item, Interaction)] == [
        item.model_copy(update=place) for item in items
    ]


@pytest.mark.parametrize(
    ("value", "says"), [("NaN", "nan"), ("Infinity", "inf"), ("-Infinity", "-inf"), ("null", "null")]
)
def test_a_reward_without_a_number_is_invalid_with_a_reason_and_not_zero(tmp_path: Path, value: str, says: str) -> None:
    line = json.dumps({"steps": STEPS}).removesuffix("}")
    (item,) = read(tmp_path, f'{line}, "rewards": [{{"name": "r", "value": {value}}}, {{"name": "s", "value": 1}}]}}')
    assert isinstance(item, Interaction)
    broken, sound = item.rewards
    assert broken.value is None
    assert says in (broken.invalid_reason or "")
    assert sound.value == 1.0


def test_a_step_reward_that_is_nan_is_unknown_and_kept_in_words(tmp_path: Path) -> None:
    steps = json.dumps([STEPS[0], {**STEPS[1], "reward": 1.5}]).replace("1.5", "NaN")
    (item,) = read(tmp_path, f'{{"steps": {steps}}}')
    assert isinstance(item, Interaction)
    assert item.steps[1].reward is None
    assert json.loads(item.steps[1].extra_json or "") == {"reward": "nan"}


def test_a_line_without_an_id_gets_one_from_its_content(tmp_path: Path) -> None:
    first, second, third = read(
        tmp_path, json.dumps({"steps": STEPS}), json.dumps({"steps": STEPS}), json.dumps({"steps": STEPS, "turn": 1})
    )
    assert isinstance(first, Interaction)
    assert isinstance(second, Interaction)
    assert isinstance(third, Interaction)
    assert first.interaction_id == second.interaction_id != third.interaction_id
    assert first.source == "palomar"


def test_a_late_reaction_has_a_line_of_its_own(tmp_path: Path) -> None:
    late, wrong, extra = read(
        tmp_path,
        '{"interaction_id": "a", "feedback": {"kind": "reverted", "at": "2026-01-01T00:00:00Z"}}',
        '{"feedback": {"kind": "reverted"}}',
        '{"interaction_id": "a", "feedback": {"kind": "reverted"}, "colour": 1}',
    )
    assert isinstance(late, LateFeedback)
    assert (late.interaction_id, late.feedback.kind, late.origin_record) == ("a", "reverted", 1)
    assert isinstance(wrong, Quarantined)
    assert (wrong.kind, wrong.field) == ("schema", "interaction_id")
    assert isinstance(extra, Quarantined)
    assert extra.field == "colour"


def test_a_field_that_is_wrong_is_named(tmp_path: Path) -> None:
    broken = [STEPS[0], {**STEPS[1], "tool_calls": [{"name": "x", "invalidity": "odd"}]}]
    (entry,) = read(tmp_path, json.dumps({"steps": broken}))
    assert isinstance(entry, Quarantined)
    assert (entry.kind, entry.field) == ("schema", "steps.1.tool_calls.0.invalidity")
    (entry,) = read(tmp_path, json.dumps({"steps": STEPS, "started_at": "2026-01-01T00:00:00"}))
    assert isinstance(entry, Quarantined)
    assert (entry.field, "zone" in entry.problem) == ("started_at", True)
