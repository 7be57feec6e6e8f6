"""Episodes: trees, raw arguments, rewards that did not run, and the same episode logged twice."""

import json
from pathlib import Path

import pytest

from palomar.data.quarantine import Quarantined
from palomar.data.schema import Interaction
from palomar.data.sources import SourceFile, detect, read_path

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures" / "verifiers" / "traces.jsonl"


@pytest.fixture(scope="module")
def episodes() -> list[Interaction]:
    return [item for item in read_path(FIXTURE) if isinstance(item, Interaction)]


def test_it_is_recognised_by_an_episodes_keys() -> None:
    reader = detect(SourceFile(FIXTURE, "traces.jsonl").head)
    assert reader is not None
    assert reader.name == "verifiers"


def test_every_episode_is_an_interaction_or_in_quarantine(episodes: list[Interaction]) -> None:
    assert [item.origin_record for item in episodes] == [1, 2, 3]
    entries = [item for item in read_path(FIXTURE) if isinstance(item, Quarantined)]
    assert [(entry.line, entry.kind) for entry in entries] == [(4, "no_interaction")]


def test_nodes_off_the_path_to_the_last_one_are_a_branch(episodes: list[Interaction]) -> None:
    steps = episodes[0].steps
    assert [step.branch for step in steps] == [None, None, "to node 2", None, None, None, None]
    assert [step.parent for step in steps] == [None, None, None, 1, None, None, None]


def test_a_malformed_call_is_seen_in_its_raw_arguments(episodes: list[Interaction]) -> None:
    broken, good = (call for step in episodes[0].steps for call in step.tool_calls)
    assert (broken.invalidity, broken.outcome, broken.arguments) == (
        "malformed",
        "not_run",
        '{"path": "a.py", "old_str": "1"',
    )
    assert (good.invalidity, good.result) == (None, "edited")
    assert [(edit.path, edit.form) for step in episodes[0].steps for edit in step.edits] == [("a.py", "old_new")]


def test_the_environment_is_no_person(episodes: list[Interaction]) -> None:
    authors = [step.author for step in episodes[0].steps]
    assert authors == ["harness", "person", "agent", "agent", "tool", "harness", "agent"]


def test_rewards_keep_weight_and_null_is_invalid(episodes: list[Interaction]) -> None:
    rewards = {reward.name: reward for reward in episodes[0].rewards}
    assert (rewards["tests"].value, rewards["tests"].weight, rewards["tests"].kind) == (0.0, 0.5, "proxy")
    assert (rewards["num_turns"].value, rewards["num_turns"].kind) == (3.0, "metric")
    (crashed,) = episodes[1].rewards
    assert (crashed.value, crashed.infrastructure) == (None, True)
    assert crashed.invalid_reason == "scoring did not run (SandboxError: pod gone)"
    silent, odd = episodes[2].rewards
    assert (silent.value, silent.infrastructure, silent.invalid_reason) == (None, False, "scoring did not run")
    assert (odd.value, odd.invalid_reason) == (None, "the log says nan")


def test_sampled_tokens_go_by_the_mask_and_lengths_that_do_not_fit_are_kept_aside(episodes: list[Interaction]) -> None:
    masked, plain, odd = (episodes[0].steps[index] for index in (2, 3, 6))
    assert (masked.token_ids, masked.logprobs) == ((6, 7), (-0.5, -0.25))
    assert (plain.token_ids, plain.logprobs, plain.tokens_in, plain.tokens_out) == ((8, 9), (-0.1, -0.2), 40, 2)
    assert json.loads(plain.extra_json or "") == {"advantages": [0.3, 0.3]}
    assert (odd.token_ids, odd.truncated) == (None, True)
    assert json.loads(odd.extra_json or "") == {"token_ids": [3], "logprobs": [-1.0, -2.0]}
    assert json.loads(episodes[0].steps[1].extra_json or "") == {"token_ids": [1, 2], "mask": [0, 0]}


def test_the_run_names_cycle_group_policy_versions_and_traffic(episodes: list[Interaction]) -> None:
    first, _, third = episodes
    assert (first.cycle, first.group_id, first.task_id, first.checkpoint) == (12, "g1", "t-1", "qwen@11-12")
    assert (first.stop_reason, first.latency_s, first.cohort.work_kind) == ("max_turns", 5.0, "fix-bugs")
    assert (first.traffic, third.traffic) == ("production", "evaluation")
    assert first.labels == ("ok=true", "is_timeout=false")


def test_the_same_episode_in_all_and_effective_has_one_identity(tmp_path: Path, episodes: list[Interaction]) -> None:
    for folder, lines in (("all", slice(None)), ("effective", slice(1, 2))):
        (tmp_path / folder).mkdir()
        kept = FIXTURE.read_text().splitlines(keepends=True)[lines]
        (tmp_path / folder / "traces.jsonl").write_text("".join(kept))
    found = [item.interaction_id for item in read_path(tmp_path) if isinstance(item, Interaction)]
    assert len(found) == 4
    assert set(found) == {item.interaction_id for item in episodes}
