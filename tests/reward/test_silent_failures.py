"""Faults of public reward pipelines in which a failure was paid as if it were a score; each must stay visible here.

Each test reads the log line as the pipeline wrote it, and follows it to what it would be trained with. The names of the
tests are the public issues.
"""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from palomar.data.facts import facts as facts_of
from palomar.data.lake import Lake
from palomar.data.schema import Interaction, Reward, Step
from palomar.data.sources import read_path
from palomar.reward.ledger import ledger
from palomar.reward.scoring import score, score_logged
from palomar.reward.spec import bundled, parse_spec

LOGGED = parse_spec(
    "name: logged\n"
    "terms: [{name: logged_reward, weight: 1.0}]\n"
    "inclusion: [{name: infrastructure, condition: infrastructure_error, action: drop}]\n"
)
NOW = datetime(2026, 3, 1, tzinfo=UTC)

Paid = tuple[float | None, str | None, bool | None, str | None]
"""Reward, its status, whether it is trained on, and why not."""


@pytest.fixture
def paid(tmp_path: Path) -> Callable[[Any], list[Paid]]:
    """What each interaction of a list, or of a log file, is paid, in their order."""

    def of(logged: list[Interaction] | Path) -> list[Paid]:
        read = list(read_path(logged)) if isinstance(logged, Path) else logged
        interactions = [item.model_copy(update={"cycle": None}) for item in read if isinstance(item, Interaction)]
        assert len(interactions) == len(read), read
        lake = Lake(tmp_path / "lake")
        lake.append_interactions(interactions, None)
        facts = facts_of(lake, None, NOW)
        table = score(facts, LOGGED)
        # Without a spec the same holds for the reward; nobody then says what was trained on.
        plain = score_logged(facts)
        for name in ("reward", "reward_status"):
            assert plain[name].equals(table[name])
        columns = ("reward", "reward_status", "included", "exclusion")
        return list(zip(*(table[name].to_pylist() for name in columns), strict=True))

    return of


def answer(name: str, *rewards: Reward) -> Interaction:
    return Interaction(
        interaction_id=name,
        source="test",
        origin="log",
        steps=(Step(author="person", role="user", text="?"), Step(author="agent", role="assistant", text="42")),
        rewards=rewards,
    )


def proxy(value: float | None, reason: str | None = None, infrastructure: bool = False) -> Reward:
    return Reward(name="r", value=value, kind="proxy", invalid_reason=reason, infrastructure=infrastructure)


def verl(path: Path, *rows: dict[str, Any]) -> Path:
    common = {"input": "2+2?", "output": "4", "gts": "4", "step": 3}
    lines = [json.dumps(common | {"uid": f"{index}_0_0"} | row) for index, row in enumerate(rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


TRUE_ZERO: Paid = (0.0, "valid", True, None)
FAILED: Paid = (None, "invalid", False, "infrastructure")
UNREADABLE: Paid = (None, "invalid", False, "reward_invalid")


def test_nemo_rl_431_a_verifier_that_raised_is_not_a_wrong_answer(paid) -> None:
    raised = proxy(None, "verifier raised ZeroDivisionError", infrastructure=True)
    assert paid([answer("wrong", proxy(0.0)), answer("raised", raised)]) == [TRUE_ZERO, FAILED]


def test_nemo_gym_2384_a_broken_judge_a_malformed_answer_and_a_true_zero_are_three_things(paid) -> None:
    broken = proxy(None, "judge: HTTP 500", infrastructure=True)
    malformed = proxy(None, "the answer holds no \\boxed{}")
    rows = paid([answer("broken", broken), answer("malformed", malformed), answer("zero", proxy(0.0))])
    assert rows == [FAILED, UNREADABLE, TRUE_ZERO]


def test_verl_omni_366_http_errors_and_empty_score_lists_are_not_zero(paid, tmp_path) -> None:
    log = verl(
        tmp_path / "3.jsonl",
        {"score": 0.0, "error": "HTTP 503 from the scorer"},
        {"score": []},
        {"score": None},
        {"score": ""},
        {"score": 0.0},
    )
    assert paid(log) == [FAILED, UNREADABLE, UNREADABLE, UNREADABLE, TRUE_ZERO]


def test_areal_548_a_timed_out_reward_is_not_zero_however_often_it_comes(paid, tmp_path) -> None:
    log = verl(tmp_path / "3.jsonl", *({"score": 0.0, "timeout": True, "output": f"{n}"} for n in range(20)))
    assert paid(log) == [FAILED] * 20


def test_open_r1_159_a_gold_answer_that_cannot_be_read_is_not_paid_one(paid, facts) -> None:
    assert paid([answer("gold", proxy(None, "gold answer could not be parsed", infrastructure=True))]) == [FAILED]
    # Our own share of tests passed: none of none is neither all nor nothing.
    tests = parse_spec("name: t\nterms: [{name: tests, weight: 1.0}]\n")
    edit = {"edits": 1, "edited": True, "tests_passed": 0, "tests_run": 0}
    row = score(facts(edit), tests).to_pylist()[0]
    assert (row["reward"], row["reward_reason"]) == (None, "tests: there was no test to run")


def test_trl_6427_doing_nothing_is_not_paid_a_default_of_zero(facts) -> None:
    silent = parse_spec("name: s\nterms: [{name: edit_persistence, weight: 1.0}]\n")
    row = score(facts({}), silent).to_pylist()[0]
    assert (row["reward"], row["reward_status"], row["reward_reason"]) == (None, "invalid", "no term applies")


@pytest.mark.parametrize("name", ["naive", "sound"])
def test_trl_6427_doing_nothing_is_paid_less_than_honest_attempts_that_mostly_fail(facts, name) -> None:
    measured = {
        "functions_before": 1, "functions_after": 1, "function_lines_before": 12, "function_lines_after": 12,
        "tests_passed": 5, "tests_run": 5,
    }  # fmt: skip
    edit = {"edits": 1, "edited": True} | measured
    reverted = edit | {"edit_lost_s": 60.0, "follow_up": "dissatisfied", "follow_up_s": 60.0}
    nothing, kept, lost = score(facts({}, edit, reverted), bundled(name))["reward"].to_pylist()
    assert nothing < 0.3 * kept + 0.7 * lost


def test_trl_none_and_nan_rewards_are_no_rewards(paid, tmp_path) -> None:
    log = tmp_path / "completions_00001.parquet"
    table = pa.table({
        "step": [1, 1, 1], "prompt": ["a", "b", "c"], "completion": ["x", "y", "z"],
        "accuracy": pa.array([None, float("nan"), 0.0]), "advantage": [0.0, 0.0, 0.0],
    })  # fmt: skip
    pq.write_table(table, log)
    assert paid(log) == [UNREADABLE, UNREADABLE, TRUE_ZERO]


def test_one_failed_scorer_of_several_leaves_no_sum(paid) -> None:
    """Their sum over the rest would be a reward for the scorer's failure."""
    failed = Reward(name="lint", value=None, kind="proxy", invalid_reason="timed out", infrastructure=True)
    assert paid([answer("both", proxy(1.0), failed)]) == [FAILED]


def test_a_log_without_any_reward_is_not_paid_zero(tmp_path) -> None:
    lake = Lake(tmp_path / "lake")
    lake.append_interactions([answer("none")], None)
    facts = facts_of(lake, None, NOW)
    row = score_logged(facts).to_pylist()[0]
    assert (row["reward"], row["reward_status"], row["included"]) == (None, None, None)
    row = score(facts, LOGGED).to_pylist()[0]
    assert (row["reward"], row["reward_reason"]) == (None, "logged_reward: the log has no reward")


def test_the_ledger_shows_each_failure_under_its_own_reason(tmp_path) -> None:
    lake = Lake(tmp_path / "lake")
    failed, unread, zero = (
        answer("failed", proxy(None, "judge down", infrastructure=True)),
        answer("unread", proxy(None, "no answer found")),
        answer("zero", proxy(0.0)),
    )
    lake.append_interactions([item.model_copy(update={"cycle": 0}) for item in (failed, unread, zero)], 0)
    observations = score(facts_of(lake, 0, NOW), LOGGED)
    samples = pa.table({
        "interaction_id": ["zero"], "cycle": [0], "sampled_cycle": [0], "trained": [True],
        "reason": pa.array([None], pa.string()),
    })  # fmt: skip
    collected = lake.scan("interactions", ["interaction_id", "predicted_failure"], cycles=[0])
    book = ledger(0, collected, observations, samples, {})
    book.check()
    counted = [
        book.count("excluded", "infrastructure"),
        book.count("excluded", "reward_invalid"),
        book.count("trained"),
    ]
    assert counted == [1, 1, 1]
