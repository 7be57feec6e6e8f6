"""TRL completions: groups from runs of equal prompts, null rewards, nulls that Arrow added, Python error texts."""

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from palomar.data.quarantine import Quarantined
from palomar.data.schema import Interaction
from palomar.data.sources import read_path


def written(path: Path, columns: dict[str, Any]) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def read(path: Path) -> tuple[list[Interaction], list[Quarantined]]:
    found = list(read_path(path))
    return (
        [item for item in found if isinstance(item, Interaction)],
        [item for item in found if isinstance(item, Quarantined)],
    )


def call(name: str, identifier: str | None = None, **arguments: Any) -> dict[str, Any]:
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return written(
        tmp_path / "completions_00003.parquet",
        {
            "step": [3] * 5,
            "prompt": ["add", "add", "sub", "sub", "add"],
            "completion": ["a", "b?", "c", "c", "d"],
            "tests_reward": pa.array([1.0, math.nan, None, 0.0, 0.5]),
            "format_reward": pa.array([1, 0, 1, 0, 1]),
            "never_ran": pa.nulls(5),
            "note": ["x", "y", "z", "w", "v"],
            "advantage": [0.5, -0.5, 0.0, 0.0, 0.1],
        },
    )


def test_a_run_of_one_prompt_is_a_group(plain: Path) -> None:
    rows, quarantine = read(plain)
    assert quarantine == []
    groups = [row.group_id for row in rows]
    assert groups[0] == groups[1]
    assert groups[2] == groups[3]
    assert len({groups[0], groups[2], groups[4]}) == 3
    assert rows[0].task_id == rows[4].task_id
    assert {row.cycle for row in rows} == {3}
    assert len({row.interaction_id for row in rows}) == 5


def test_a_null_or_nan_reward_is_invalid_and_a_zero_is_a_zero(plain: Path) -> None:
    rewards = [{reward.name: reward for reward in row.rewards} for row in read(plain)[0]]
    assert [row["tests_reward"].value for row in rewards] == [1.0, None, None, 0.0, 0.5]
    assert [row["tests_reward"].invalid_reason for row in rewards[1:3]] == ["the log says nan", "the log holds null"]
    assert [row["never_ran"].value for row in rewards] == [None] * 5
    assert set(rewards[0]) == {"tests_reward", "format_reward", "never_ran"}


def test_the_advantage_and_other_columns_are_kept(plain: Path) -> None:
    first = read(plain)[0][0]
    assert json.loads(first.extra_json or "") == {"advantage": 0.5, "note": "x"}
    assert [(step.author, step.text, step.is_question) for step in read(plain)[0][1].steps] == [
        ("person", "add", None),
        ("agent", "b?", True),
    ]


def test_tool_arguments_lose_the_nulls_that_arrow_added_and_errors_are_read_as_python(tmp_path: Path) -> None:
    conversation = [
        {"role": "assistant", "content": None, "tool_calls": [call("read", path="a.py")]},
        {"role": "tool", "name": "read", "content": "x = 1"},
        {"role": "assistant", "content": None, "tool_calls": [call("run", command="sed -i s/1/2/ a.py")]},
        {"role": "tool", "name": "run", "content": str({"error": "can't reach 'host'"})},
        {"role": "assistant", "content": None, "tool_calls": [call("fly", path="a.py")]},
        {"role": "tool", "name": "fly", "content": str({"error": str(KeyError("fly"))})},
        {"role": "assistant", "content": None, "tool_calls": [call("read", path=None, command="x")]},
        {
            "role": "tool",
            "name": "read",
            "content": "{'error': \"read() got an unexpected keyword argument 'command'\"}",
        },
        {"role": "assistant", "content": "done"},
    ]
    path = written(
        tmp_path / "completions_00001.parquet",
        {
            "step": ["1"],
            "prompt": [[{"role": "system", "content": "be brief"}, {"role": "user", "content": "fix a.py"}]],
            "completion": [conversation],
            "reward": [0.0],
            "advantage": [0.0],
        },
    )
    (row,), _ = read(path)
    assert row.cycle == 1  # older releases wrote the step as text
    calls = [item for step in row.steps for item in step.tool_calls]
    assert [item.arguments for item in calls] == [
        '{"path":"a.py"}',
        '{"command":"sed -i s/1/2/ a.py"}',
        '{"path":"a.py"}',
        '{"command":"x"}',
    ]
    assert [(item.outcome, item.invalidity) for item in calls] == [
        ("ok", None),
        ("failed", None),
        ("not_run", "unknown_tool"),
        ("not_run", "schema"),
    ]
    assert calls[1].problem == "can't reach 'host'"
    assert [step.author for step in row.steps[:2]] == ["harness", "person"]
    assert [(edit.path, edit.outcome) for step in row.steps for edit in step.edits] == [("a.py", "failed")]


def test_another_parquet_and_a_cut_off_one_are_said_to_be_so(tmp_path: Path, plain: Path) -> None:
    other = written(tmp_path / "prices.parquet", {"price": [1.0]})
    assert [(entry.kind, entry.problem) for entry in read(other)[1]] == [
        ("schema", "a Parquet file without the columns prompt, completion of TRL completions")
    ]
    cut = tmp_path / "completions_00009.parquet"
    cut.write_bytes(plain.read_bytes()[:-40])
    rows, quarantine = read(cut)
    assert rows == []
    assert [entry.kind for entry in quarantine] == ["damaged"]


def test_one_bad_row_does_not_cost_the_others(tmp_path: Path) -> None:
    path = written(
        tmp_path / "completions_00001.parquet",
        {"step": [1, 1], "prompt": [None, "p"], "completion": ["c", "c"], "advantage": [0.0, 0.0]},
    )
    rows, quarantine = read(path)
    assert [row.origin_record for row in rows] == [2]
    assert [(entry.line, entry.kind, entry.field) for entry in quarantine] == [(1, "schema", "prompt")]
