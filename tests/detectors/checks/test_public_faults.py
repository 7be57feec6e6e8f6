"""Public issues of reward pipelines, each rebuilt on a small lake beside the same lake without the fault.

INTEGRATIONS.md section 4 lists them. Hacks by coding agents (mini-swe-agent#787, daydream#440) are in the tests of the
signatures.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from palomar.data.findings import Finding
from palomar.detectors.checks._examples import rows, samples, view
from palomar.detectors.detector import detectors

N = 400
Build = Callable[[int, bool], pa.Table]
"""A cycle, with the fault or as it would have been without."""


def column(table: pa.Table, name: str) -> np.ndarray:
    return np.asarray(table[name].to_numpy(zero_copy_only=False))


def hits(cycle: int, share: float) -> np.ndarray:
    return np.random.default_rng(cycle + 100).random(N) < share


def lake_findings(tmp_path: Path, detector: str, build: Build, faulty: bool, start: int = 4) -> tuple[Finding, ...]:
    """What a detector finds in the last of five cycles; the fault is there from cycle `start` on."""
    folder = tmp_path / f"{detector}-{faulty}"
    made = view(folder, [build(cycle, faulty and cycle >= start) for cycle in range(5)], reference=range(4))
    report = detectors()[detector].judge(made)
    assert report.assessed, report.unassessed
    return report.findings


def only(found: tuple[Finding, ...]) -> Finding:
    assert len(found) == 1, [each.sentence for each in found]
    return found[0]


# -- silent reward failure ---------------------------------------------------------------------------------------


def binary(cycle: int) -> np.ndarray:
    """Rewards 0 and 1 of honest answers; a third are wrong."""
    return (np.random.default_rng(cycle + 200).random(N) > 0.33).astype(float)


def verifier(cycle: int, faulty: bool) -> pa.Table:
    """The verifier throws on a third of the answers (the log says so); paid 0, or not at all."""
    thrown = hits(cycle, 0.33 if cycle == 4 else 0.01)
    reward = np.where(thrown, 0.0 if faulty else np.nan, binary(cycle))
    return rows(
        cycle,
        reward=reward,
        reward_status=pa.array(np.where(np.isnan(reward), "invalid", "valid")),
        logged_reward_infrastructure=pa.array(thrown.tolist()),
    )


def test_verifier_exception_paid_as_zero_nemo_rl_431(tmp_path: Path) -> None:
    found = only(lake_findings(tmp_path, "failure-paid-as-zero", verifier, True))
    assert found.statistic == "reward"
    assert found.reading == "measurement_fault"
    assert found.after == pytest.approx(float(hits(4, 0.33).mean()))
    assert not lake_findings(tmp_path, "failure-paid-as-zero", verifier, False)
    lost = lake_findings(
        tmp_path, "reward-invalid", verifier, False
    )  # the honest log is no clean one: rewards are missing
    assert {each.statistic for each in lost} == {"rewards lost to infrastructure"}


def judge(cycle: int, faulty: bool) -> pa.Table:
    """Answers of value 0, malformed ones and a broken judge. Honest: as many zeros, all of them real."""
    broken = hits(cycle, 0.4)
    reward = np.where(broken, 0.0, binary(cycle))
    timed_out = broken if cycle == 4 and faulty else np.zeros(N, dtype=bool)
    return rows(cycle, reward=reward, calls_timed_out=timed_out.astype(int))


def test_broken_judge_looks_like_a_true_zero_nemo_gym_2384(tmp_path: Path) -> None:
    found = only(lake_findings(tmp_path, "failure-paid-as-zero", judge, True))
    assert found.detail["sign"] == "a call timed out"
    assert found.detail["on"] == 1.0
    assert not lake_findings(tmp_path, "failure-paid-as-zero", judge, False)


def scorer(cycle: int, faulty: bool) -> pa.Table:
    """HTTP errors and empty score lists of a third of the answers, mapped to 0.0 or left without a value."""
    empty = hits(cycle, 0.3 if cycle == 4 else 0.0)
    scores = np.random.default_rng(cycle).normal(0.4, 0.2, N)
    logged = np.where(empty, 0.0 if faulty else np.nan, scores)
    return rows(
        cycle,
        logged_reward=logged,
        logged_reward_infrastructure=pa.array(empty.tolist()),
        reward=logged,
        reward_status=pa.array(np.where(np.isnan(logged), "invalid", "valid")),
    )


def test_scorer_errors_mapped_to_zero_verl_omni_366(tmp_path: Path) -> None:
    found = lake_findings(tmp_path, "failure-paid-as-zero", scorer, True)
    assert {each.statistic for each in found} == {"reward", "logged_reward"}
    assert not lake_findings(tmp_path, "failure-paid-as-zero", scorer, False)


def timeout(cycle: int, faulty: bool) -> pa.Table:
    """A reward that times out after 15 s is 0; nothing else in the log says so. Honest: rewards fall, by degrees."""
    scores = np.random.default_rng(cycle).normal(0.5, 0.2, N)
    if faulty:
        return rows(cycle, reward=np.where(hits(cycle, 0.45), 0.0, scores))
    return rows(cycle, reward=scores - (0.3 if cycle == 4 else 0.0))


def test_reward_timeout_set_to_zero_areal_548(tmp_path: Path) -> None:
    found = only(lake_findings(tmp_path, "failure-paid-as-zero", timeout, True))
    assert found.before == 0.0
    assert "look whether the scorer ran" in found.sentence
    assert found.reading is None  # without a sign of failure it is a question, not an answer
    assert not lake_findings(tmp_path, "failure-paid-as-zero", timeout, False)


def gold(cycle: int, faulty: bool) -> pa.Table:
    """A fifth of the gold answers cannot be parsed: paid 1, from the first cycle on; or not applicable."""
    table = rows(cycle)
    edited = column(table, "edited")
    unreadable = edited & hits(cycle, 0.2)
    accuracy = np.where(edited, binary(cycle), np.nan)
    accuracy[unreadable] = 1.0 if faulty else np.nan
    terms: dict[str, Any] = {"term:accuracy": accuracy}
    return rows(cycle, tests_run=np.where(unreadable, 0, 5), **terms)


def test_unparsable_gold_paid_one_open_r1_159(tmp_path: Path) -> None:
    found = only(lake_findings(tmp_path, "failure-paid-as-zero", gold, True, start=0))
    assert found.statistic == "term:accuracy"
    assert found.detail == {"hold": True, "value": 1.0, "input": "tests of the edit"}
    assert not lake_findings(tmp_path, "failure-paid-as-zero", gold, False)


def idle(cycle: int, faulty: bool) -> pa.Table:
    """An environment whose reward starts at 0.0 and where failing costs 1; honest: doing nothing costs 1 too."""
    table, resting = rows(cycle), hits(cycle, 0.1)
    did = ~resting
    reward = np.where(resting, 0.0 if faulty else -1.0, np.where(column(table, "predicted_failure") > 0.5, -1.0, 1.0))
    acted = {name: column(table, name) & did for name in ("edited", "asked")}
    return rows(cycle, reward=reward, tool_calls=did.astype(int), edits=(acted["edited"]).astype(int), **acted)


def test_default_reward_pays_for_doing_nothing_trl_6427(tmp_path: Path) -> None:
    found = only(lake_findings(tmp_path, "idle-paid", idle, True, start=0))
    assert (found.before, found.after) == (-1.0, 0.0)
    assert found.reading == "forewarning"
    assert not lake_findings(tmp_path, "idle-paid", idle, False)


# -- wrong advantages from right rewards -------------------------------------------------------------------------


def advantages(tmp_path: Path, how: str) -> tuple[Finding, ...]:
    """Groups of four; some rows have no reward, some are masked, padded or rejected."""
    rng = np.random.default_rng(9)
    group, reward = np.arange(N) // 4, rng.normal(0, 1, N)
    missing, masked = rng.random(N) < 0.06, rng.random(N) < 0.06
    reward[missing] = np.nan
    trained = ~missing & ~masked
    counted = {"right": trained, "null as 0": trained | missing, "masked": ~missing}[how]
    baseline = (np.bincount(group, np.where(counted, np.nan_to_num(reward), 0)) / np.bincount(group, counted))[group]
    table = rows(
        3,
        group_id=[f"g{each}" for each in group],
        reward=reward,
        reward_status=pa.array(np.where(missing, "invalid", "valid")),
        included=trained,
        exclusion=pa.array(np.where(missing, "reward_invalid", "masked"), mask=trained),
    )
    made = view(tmp_path / how.replace(" ", "-"), [*map(rows, range(3)), table], reference=range(3))
    shown = {
        name: np.where(trained, values, np.nan)
        for name, values in (("baseline", baseline), ("advantage", reward - baseline))
    }
    made.lake.append_samples(samples(table, 3, **shown), 3)
    return detectors()["advantages-wrong"].judge(made).findings


def test_row_without_rewards_counts_as_zero_in_its_group_trl_5775(tmp_path: Path) -> None:
    found = only(advantages(tmp_path, "null as 0"))
    assert found.detail["rule"] == "missing as 0"
    assert found.after == 1.0
    assert not advantages(tmp_path, "right")


def test_rejected_tokens_move_their_peers_verl_6310(tmp_path: Path) -> None:
    assert only(advantages(tmp_path, "masked")).detail["rule"] == "dropped"


def test_masked_rollouts_stay_in_the_baseline_prime_rl_1746(tmp_path: Path) -> None:
    found = only(advantages(tmp_path, "masked"))
    assert "counted in the baseline" in found.sentence
    assert found.reading == "measurement_fault"


# -- filtering that hides or distorts ----------------------------------------------------------------------------


@pytest.mark.parametrize("on_the_shaped_reward", [True, False])
def test_dynamic_filter_lets_wrong_groups_train_on_length_nemo_rl_2431(
    tmp_path: Path, on_the_shaped_reward: bool
) -> None:
    """A third of the groups is all wrong; the shaped reward has a length term, so their variance is not 0."""
    rng = np.random.default_rng(5)
    right = (rng.random((100, 4)) < 0.6) & (rng.random(100) < 0.66)[:, None]
    length = -0.1 * rng.random((100, 4))
    reward = right + length
    decides = reward if on_the_shaped_reward else right.astype(float)
    kept = np.repeat(np.ptp(decides, axis=1) > 0, 4)
    terms: dict[str, Any] = {"term:correct": right.ravel().astype(float), "term:length": length.ravel()}
    table = rows(3, group_id=[f"g{index // 4}" for index in range(N)], reward=reward.ravel(), **terms)
    made = view(tmp_path, [*map(rows, range(3)), table], reference=range(3))
    advantage = (reward - reward.mean(axis=1, keepdims=True)) / reward.std(axis=1, keepdims=True)
    made.lake.append_samples(
        samples(
            table,
            3,
            trained=kept,
            weight=kept.astype(float),
            advantage=np.where(kept, advantage.ravel(), np.nan),
            baseline=np.where(kept, np.repeat(reward.mean(axis=1), 4), np.nan),
        ),
        3,
    )
    report = detectors()["side-terms"].judge(made)
    assert report.assessed == 1
    if not on_the_shaped_reward:
        assert not report.findings
        return
    found = only(report.findings)
    wrong = ~right.any(axis=1)
    assert found.detail == {"task": "term:correct", "side": "term:length", "groups": int(wrong.sum())}
    assert found.after == pytest.approx(float(np.abs(advantage[wrong]).sum() / np.abs(advantage).sum()))


@pytest.mark.parametrize("lost", [0, 120])
def test_batches_silently_discarded_rllm_920(tmp_path: Path, lost: int) -> None:
    made = view(tmp_path, [*map(rows, range(4))], reference=range(3))
    made.lake.append_samples(samples(rows(3), 3).slice(lost), 3)
    found = detectors()["rows-wrong"].judge(made).findings
    assert [each.after for each in found] == ([lost / N] if lost else [])


# -- logs that lie -----------------------------------------------------------------------------------------------


def columns(cycle: int, faulty: bool) -> pa.Table:
    if faulty:
        return rows(cycle)
    terms: dict[str, Any] = {"term:accuracy": np.random.default_rng(cycle).random(N)}
    return rows(cycle, **terms)


def test_reward_columns_vanish_from_the_train_dump_verl_7588(tmp_path: Path) -> None:
    found = only(lake_findings(tmp_path, "columns-vanished", columns, True))
    assert (found.statistic, found.before, found.after, found.since) == ("term:accuracy", 1.0, 0.0, 4)
    assert not lake_findings(tmp_path, "columns-vanished", columns, False)


def first_sample(cycle: int, faulty: bool) -> pa.Table:
    """Samples of two kinds; keys that the first one lacks are not written for the others."""
    second = np.arange(N) % 2 == 1
    style = np.where(second, np.random.default_rng(cycle).random(N), np.nan)
    terms: dict[str, Any] = {"term:exact": np.where(second, np.nan, 1.0)}
    return rows(cycle, **terms, **({} if faulty else {"term:style": style}))


def test_columns_taken_from_sample_zero_verl_7151(tmp_path: Path) -> None:
    found = only(lake_findings(tmp_path, "columns-vanished", first_sample, True))
    assert (found.statistic, found.before) == ("term:style", 0.5)
    assert not lake_findings(tmp_path, "columns-vanished", first_sample, False)


def overwritten(cycle: int, faulty: bool) -> pa.Table:
    return rows(cycle, traffic="evaluation" if faulty else "production")


def test_evaluation_overwrites_training_of_the_same_step_trl_6613(tmp_path: Path) -> None:
    found = only(lake_findings(tmp_path, "rows-wrong", overwritten, True))
    assert (found.before, found.after) == (0.0, 1.0)
    assert not lake_findings(tmp_path, "rows-wrong", overwritten, False)


# -- collapse ----------------------------------------------------------------------------------------------------


def cut(cycle: int, faulty: bool) -> pa.Table:
    """Format reward falls to 0: cut outputs, or answers that no longer keep to the format."""
    bad = hits(cycle, 0.6) if cycle == 4 else hits(cycle, 0.01)
    terms: dict[str, Any] = {"term:format": np.where(bad, 0.0, 1.0)}
    return rows(cycle, truncated=bad if faulty or cycle < 4 else False, **terms)


def test_format_reward_falls_since_outputs_hit_the_limit_open_r1_363(tmp_path: Path) -> None:
    found = only(lake_findings(tmp_path, "truncation", cut, True))
    assert found.after == pytest.approx(float(hits(4, 0.6).mean()))
    assert found.detail["falls"] == ["term:format is 0.00, and 1.00 on others"]
    assert not lake_findings(tmp_path, "truncation", cut, False)


def undecodable(cycle: int, faulty: bool) -> pa.Table:
    """Half of the calls of everyone cannot be read; or as many, those on hard requests, as a dodge would have it."""
    table = rows(cycle)
    called = column(table, "tool_calls") > 0
    hard = column(table, "predicted_failure") > 0.5
    broken = hits(cycle, 0.55) if faulty else hard if cycle == 4 else hits(cycle, 0.03)
    return rows(cycle, invalid_malformed=(called & broken).astype(int))


def test_flood_of_undecodable_calls_verl_7177(tmp_path: Path) -> None:
    found = only(lake_findings(tmp_path, "undecodable-calls", undecodable, True))
    assert found.statistic == "invalid_malformed"
    assert found.reading == "measurement_fault"
    assert not lake_findings(tmp_path, "undecodable-calls", undecodable, False)
