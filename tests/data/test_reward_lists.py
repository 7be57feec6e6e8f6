"""Reward lists as series: against the mean and standard error that the files themselves state."""

import json
import math
from pathlib import Path

import pytest

from palomar.data.errors import IngestError
from palomar.data.reward_lists import read_reward_lists


def write(path: Path, rewards: object, **metadata: object) -> Path:
    path.write_text(json.dumps({"rewards": rewards, "metadata": metadata}))
    return path


def test_a_list_becomes_one_point_and_invalid_rewards_are_not_zeros(tmp_path: Path) -> None:
    place = write(
        tmp_path / "a", [1.0, 0.0, None, float("nan")], env_name="e", checkpoint="tinker://run-1:t:0/w/000072"
    )
    (row,) = read_reward_lists([place]).to_pylist()
    assert (row["cycle"], row["slice"], row["metric"], row["n"], row["mean"]) == (72, "e run-1", "reward", 2, 0.5)
    assert row["sd"] == pytest.approx(math.sqrt(0.5))


def test_without_a_valid_reward_there_is_no_mean(tmp_path: Path) -> None:
    (row,) = read_reward_lists([write(tmp_path / "a", [None], env_name="e", checkpoint=None)]).to_pylist()
    assert (row["cycle"], row["n"], row["mean"], row["sd"]) == (0, 0, None, None)


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ("[]", None),
        ('{"rewards": [1]}', None),
        ('{"rewards": [1], "metadata": {}}', "metadata.env_name"),
        ('{"rewards": [1], "metadata": {"env_name": "e", "checkpoint": "latest"}}', "metadata.checkpoint"),
    ],
)
def test_what_is_no_reward_list_is_refused_by_field(tmp_path: Path, content: str, field: str | None) -> None:
    (tmp_path / "a").write_text(content)
    with pytest.raises(IngestError) as caught:
        read_reward_lists([tmp_path / "a"])
    assert caught.value.field == field


def test_the_16_lists_of_the_samples_have_the_mean_and_error_that_they_state(samples: Path) -> None:
    paths = sorted((samples / "rl-rollouts-tinker" / "eval_cache").glob("*.json"))
    rows = read_reward_lists(paths).to_pylist()
    assert len(rows) == 16
    for path, row in zip(paths, rows, strict=True):
        stated = json.loads(path.read_text())["metadata"]
        assert row["n"] == stated["n"] or stated["n"] is None
        assert row["mean"] == pytest.approx(stated["avg_reward"])
        assert row["sd"] / math.sqrt(row["n"]) == pytest.approx(stated["std_error"], rel=0.1)
    assert len({(row["cycle"], row["slice"]) for row in rows}) == 16
