"""The Arrow schema follows the records: every field has its column, and what goes in comes out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from palomar.data.arrow import INTERACTION_SCHEMA, arrow_schema, from_arrow, to_arrow
from palomar.data.schema import Interaction, Record, Reward, Step, content_id


def test_every_field_of_an_interaction_has_a_column_and_only_optional_ones_may_be_null() -> None:
    assert INTERACTION_SCHEMA.names == list(Interaction.model_fields)
    assert not INTERACTION_SCHEMA.field("interaction_id").nullable
    assert INTERACTION_SCHEMA.field("predicted_failure").nullable
    step = INTERACTION_SCHEMA.field("steps").type.value_type
    assert [step.field(i).name for i in range(step.num_fields)] == list(Step.model_fields)


def test_a_field_type_outside_the_mapping_is_an_error_at_once() -> None:
    class Odd(Record):
        anything: dict[str, int]

    with pytest.raises(TypeError, match="no Arrow type"):
        arrow_schema(Odd)


# Any text that UTF-8 can hold; surrogates cannot be stored and are refused by the sources.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
# Microseconds are what Arrow keeps; the years are those of datetime that survive every zone shift.
TIMES = st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001

STEPS = st.builds(
    Step,
    author=st.sampled_from(["person", "agent", "tool", "harness"]),
    role=TEXT,
    text=st.none() | TEXT,
    token_ids=st.none() | st.lists(st.integers(0, 2**31), max_size=3).map(tuple),
    at=st.none() | TIMES,
)
INTERACTIONS = st.builds(
    Interaction,
    interaction_id=TEXT,
    source=TEXT,
    origin=TEXT,
    started_at=st.none() | TIMES,
    predicted_failure=st.none() | st.floats(0, 1),
    labels=st.lists(TEXT, max_size=2).map(tuple),
    steps=st.lists(STEPS, max_size=3).map(tuple),
)


@settings(max_examples=60, deadline=None)
@given(INTERACTIONS)
def test_what_is_stored_is_what_is_read(interaction: Interaction) -> None:
    table = to_arrow([interaction], Interaction)
    assert table.schema.equals(INTERACTION_SCHEMA)
    assert from_arrow(table, Interaction) == [interaction]


def test_a_time_without_a_zone_is_refused_and_others_become_utc() -> None:
    with pytest.raises(ValidationError, match="no zone"):
        Step(author="agent", role="assistant", at=datetime(2026, 1, 1))  # noqa: DTZ001
    east = datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    assert Step(author="agent", role="assistant", at=east).at == datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_reward_that_is_not_a_number_is_refused(value: float) -> None:
    with pytest.raises(ValidationError):
        Reward(name="r", value=value)


def test_a_reward_has_a_value_or_a_reason_never_both_never_neither() -> None:
    with pytest.raises(ValidationError, match="either a value or an invalid_reason"):
        Reward(name="r", value=None)
    with pytest.raises(ValidationError, match="either a value or an invalid_reason"):
        Reward(name="r", value=0.0, invalid_reason="timeout")
    assert Reward(name="r", value=None, invalid_reason="timeout").value is None


def test_content_ids_frame_their_parts() -> None:
    assert content_id("ab", "c") != content_id("a", "bc")
    assert content_id("ab", "c") == content_id("ab", "c")


def test_a_table_without_a_needed_column_is_refused() -> None:
    with pytest.raises(KeyError):
        from_arrow(pa.table({"interaction_id": ["a"]}), Interaction)
