"""Tinker cookbook rollouts: calls that could not be parsed, rewards that could not be computed."""

import json
from pathlib import Path
from typing import Any

import pytest

from palomar.data.quarantine import Quarantined
from palomar.data.schema import Interaction, ToolCall
from palomar.data.sources import read_path

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "tinker-rollouts"


def read_one(path: Path) -> Interaction:
    (item,) = read_path(path)
    assert isinstance(item, Interaction)
    return item


def calls(item: Interaction) -> list[ToolCall]:
    return [call for step in item.steps for call in step.tool_calls]


def with_metrics(tmp_path: Path, **metrics: Any) -> Interaction:
    log = json.loads((FIXTURES / "good.json").read_text())
    log["metrics"].update(metrics)
    (tmp_path / "log.json").write_text(json.dumps(log))
    return read_one(tmp_path / "log.json")


def test_calls_results_and_exit_codes_are_paired_without_ids() -> None:
    item = read_one(FIXTURES / "good.json")
    assert [(call.name, call.invalidity, call.outcome, call.exit_code) for call in calls(item)] == [
        ("write_file", None, "ok", 0),
        (None, "unparsed", "not_run", None),
        ("run", None, "failed", 1),  # its output speaks of a time-out; the exit code decides
    ]
    assert calls(item)[1].problem == "Invalid JSON: Unterminated string"
    assert [step.author for step in item.steps] == ["harness", "person"] + ["agent", "harness"] * 3 + ["agent"]


def test_the_tools_are_read_from_the_system_prompt() -> None:
    (call,) = calls(read_one(FIXTURES / "container_failed.json"))
    assert (call.invalidity, call.problem) == ("schema", "'content' is required")


def test_a_turn_that_the_harness_complained_about_is_unparsed(tmp_path: Path) -> None:
    log = json.loads((FIXTURES / "good.json").read_text())
    log["rollouts"][4] = {"role": "assistant", "content": "I will write it now."}
    (tmp_path / "log.json").write_text(json.dumps(log))
    assert [call.invalidity for call in calls(read_one(tmp_path / "log.json"))] == [None, "unparsed", None]


def test_public_is_what_was_trained_on_and_private_is_held_out() -> None:
    rewards = {r.name: (r.value, r.kind, r.infrastructure) for r in read_one(FIXTURES / "good.json").rewards}
    assert rewards == {"public_reward": (1.0, "proxy", False), "private_reward": (0.25, "held_out", False)}


@pytest.mark.parametrize("fault", ["docker_error", "could_not_run_tests", "failed_startup_commands"])
def test_a_scorer_that_could_not_run_gives_no_reward_whatever_was_logged(tmp_path: Path, fault: str) -> None:
    for reward in with_metrics(tmp_path, **{fault: 1.0}).rewards:
        assert (reward.value, reward.infrastructure) == (None, True)
        assert reward.invalid_reason


def test_a_solution_that_hangs_keeps_its_reward(tmp_path: Path) -> None:
    item = with_metrics(tmp_path, tests_timed_out=1.0, public_reward=0.0)
    assert [reward.value for reward in item.rewards] == [0.0, 0.25]
    assert item.labels == ("tests_timed_out=true",)


def test_a_reward_that_is_nan_is_invalid_but_not_by_infrastructure(tmp_path: Path) -> None:
    public, private = with_metrics(tmp_path, public_reward=float("nan"), private_reward=None).rewards
    assert (public.value, public.infrastructure, public.invalid_reason) == (None, False, "the log says nan")
    assert (private.value, private.invalid_reason) == (None, "the log holds null")


def test_a_reward_list_has_no_interaction(tmp_path: Path) -> None:
    (tmp_path / "cache.json").write_text(json.dumps({"rewards": [1.0, 0.0], "metadata": {"n": 2}}))
    (entry,) = read_path(tmp_path / "cache.json")
    assert isinstance(entry, Quarantined)
    assert (entry.kind, entry.format) == ("no_interaction", "tinker-rollouts")
    assert "2 rewards" in entry.problem
