from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from palomar.trainer.config import GateConfig
from palomar.trainer.evaluation import SUITES, Evaluation, Metric, Suite, TaskResult
from palomar.trainer.gate import EvaluationGate, Evidence, p_value

CONFIG = GateConfig(metrics=("solved", "length"))


@pytest.fixture(autouse=True)
def _suite(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = (
        Metric("solved", "", "share", "up"),
        Metric("length", "", "mean", "down"),
        Metric("colour", "", "share", "none"),
    )
    monkeypatch.setitem(SUITES, "toy", Suite("toy", metrics, lambda agent, seed, n: []))


def evaluation(solved: list[float | None], length: list[float | None] | None = None) -> Evaluation:
    length = length or [3.0] * len(solved)
    pairs = zip(solved, length, strict=True)
    results = (
        TaskResult(f"t{i}", "", {"solved": one, "length": two, "colour": 0.0}) for i, (one, two) in enumerate(pairs)
    )
    return Evaluation("toy", "c", 0, tuple(results))


def decide(candidate: Evaluation | None, champion: Evaluation | None, config: GateConfig = CONFIG) -> Any:
    gate = EvaluationGate(("toy",), config)
    return gate.decide(
        Evidence({} if candidate is None else {"toy": candidate}, {} if champion is None else {"toy": champion})
    )


MIXED: list[float | None] = [1.0, 0.0] * 50


def test_an_equal_candidate_is_promoted() -> None:
    decision = decide(evaluation(MIXED), evaluation(MIXED))
    assert (decision.verdict, decision.reasons) == ("promote", ("no_regression",))


def test_a_clear_regression_is_blocked_with_its_metric_and_numbers() -> None:
    worse = [0.0 if index < 20 else value for index, value in enumerate(MIXED)]
    decision = decide(evaluation(worse), evaluation(MIXED))
    assert decision.verdict == "block"
    assert decision.reasons == ("evaluation_regression:toy:solved",)
    (row,) = [row for row in decision.evidence["comparisons"] if row["metric"] == "solved"]
    # 10 tasks lost, none won: 2^-10 one-sided.
    assert row["p_worse"] == pytest.approx(2**-10)
    assert (row["candidate"], row["champion"], row["tasks"]) == (0.4, 0.5, 100)


def test_the_same_change_the_other_way_is_no_regression() -> None:
    worse = [0.0 if index < 20 else value for index, value in enumerate(MIXED)]
    assert decide(evaluation(MIXED), evaluation(worse)).verdict == "promote"


def test_losses_balanced_by_wins_are_noise() -> None:
    swapped = [1.0 - (value or 0.0) if index < 20 else value for index, value in enumerate(MIXED)]
    assert decide(evaluation(swapped), evaluation(MIXED)).verdict == "promote"


def test_a_mean_that_rises_where_lower_is_better_is_a_regression() -> None:
    longer: list[float | None] = [3.0 + 0.1 * (index % 3) for index in range(100)]
    decision = decide(evaluation(MIXED, longer), evaluation(MIXED))
    assert decision.reasons == ("evaluation_regression:toy:length",)


@pytest.mark.parametrize("missing", ["candidate", "champion"])
def test_a_missing_evaluation_holds(missing: str) -> None:
    there = evaluation(MIXED)
    decision = decide(None if missing == "candidate" else there, None if missing == "champion" else there)
    assert (decision.verdict, decision.reasons) == ("hold", ("evaluation_missing:toy",))


def test_too_few_comparable_tasks_hold_and_say_which_metric() -> None:
    few: list[float | None] = [1.0] * 15 + [None] * 85
    decision = decide(evaluation(few), evaluation(MIXED))
    assert (decision.verdict, decision.reasons) == ("hold", ("evaluation_too_small:toy:solved",))
    assert next(row["p_worse"] for row in decision.evidence["comparisons"]) is None


def test_other_tasks_are_not_comparable() -> None:
    other = Evaluation("toy", "c", 1, tuple(TaskResult(f"x{i}", "", {"solved": 1.0}) for i in range(100)))
    assert decide(evaluation(MIXED), other).reasons == ("evaluation_not_comparable:toy",)


def test_a_gate_that_asks_nothing_holds() -> None:
    for config in (GateConfig(metrics=()), GateConfig(metrics=("colour",)), GateConfig(metrics=("unheard-of",))):
        assert decide(evaluation(MIXED), evaluation(MIXED), config).verdict == "hold"
    assert EvaluationGate((), CONFIG).decide(Evidence({}, {})).verdict == "hold"


def test_a_regression_is_blocked_even_where_something_else_is_missing() -> None:
    worse = evaluation([0.0] * 100, [None] * 100)
    decision = decide(worse, evaluation(MIXED))
    assert decision.verdict == "block"
    assert decision.reasons == ("evaluation_regression:toy:solved", "evaluation_too_small:toy:length")


def test_the_policy_names_the_rule() -> None:
    first = EvaluationGate(("toy",), CONFIG).policy
    assert EvaluationGate(("toy",), CONFIG).policy == first
    assert EvaluationGate(("toy",), GateConfig(alpha=0.02, metrics=CONFIG.metrics)).policy != first


def test_shares_follow_the_published_mcnemar_answer(known_answers: Path) -> None:
    cases = json.loads((known_answers / "paired_evals.json").read_text())["cases"]
    (case,) = [case for case in cases if case["id"] == "mcnemar"]
    (both, lost), (won, neither) = case["inputs"]["table"]
    old = [1.0] * both + [1.0] * lost + [0.0] * won + [0.0] * neither
    new = [1.0] * both + [0.0] * lost + [1.0] * won + [0.0] * neither
    # The published p is two-sided; more was won than lost, so that "worse" the other way round is half of it.
    assert 2 * p_value(old, new, True, "up") == pytest.approx(case["expected"]["p_exact"], abs=1e-9)
    assert p_value(new, old, True, "up") > 0.99


def test_means_follow_the_published_paired_t_answer(known_answers: Path) -> None:
    cases = json.loads((known_answers / "paired_evals.json").read_text())["cases"]
    (case,) = [case for case in cases if case["id"] == "paired_standard_error"]
    new, old = case["inputs"]["b"], case["inputs"]["a"]
    assert 2 * p_value(new, old, False, "up") == pytest.approx(case["expected"]["p"], abs=1e-9)


def test_the_chance_to_block_an_equal_candidate_is_at_most_alpha() -> None:
    # 400 pairs of equally good evaluations, alpha 5 %: the exact test is conservative, so fewer than 5 %.
    import random

    rng = random.Random(0)
    config = GateConfig(alpha=0.05, metrics=("solved",))
    blocked = 0
    for _ in range(400):
        first, second = ([float(rng.random() < 0.5) for _ in range(100)] for _ in range(2))
        blocked += decide(evaluation(list(first)), evaluation(list(second)), config).verdict == "block"
    assert blocked <= 28  # 99 % quantile of Binomial(400, 0.05) is 30


def test_a_hack_that_the_reward_pushes_blocks_and_a_changed_reward_holds() -> None:
    same = {"toy": evaluation(MIXED)}
    gate = EvaluationGate(("toy",), CONFIG)
    hacked = gate.decide(Evidence(same, same, hacks=("reward_hack:edit_rate",), holds=("reward_changed",)))
    assert (hacked.verdict, hacked.reasons) == ("block", ("reward_hack:edit_rate", "reward_changed"))
    changed = gate.decide(Evidence(same, same, holds=("reward_changed",)))
    assert (changed.verdict, changed.reasons) == ("hold", ("reward_changed",))
    # And what was missing before is still missing.
    nothing = gate.decide(Evidence({}, {}, holds=("reward_changed",)))
    assert nothing.verdict == "hold"
    assert "evaluation_missing:toy" in nothing.reasons
