from __future__ import annotations

import math

import pytest

from palomar.data.serving import Response
from palomar.trainer.clone import BASE
from palomar.trainer.config import PolicyConfig
from palomar.trainer.evaluation import Evaluation, Metric, TaskResult, evaluate, load_suites, paired, suite, summarise
from palomar.trainer.policy import Policy

SHARE = Metric("m", "", "share", "up")
MEAN = Metric("m", "", "mean", "none")


def test_a_share_has_wilsons_interval() -> None:
    # Newcombe 1998, table I: 81 of 263 gives 0.2553 to 0.3662.
    result = summarise(SHARE, [1.0] * 81 + [0.0] * 182)
    assert (result.value, result.n) == (81 / 263, 263)
    assert result.low == pytest.approx(0.2553, abs=5e-5)
    assert result.high == pytest.approx(0.3662, abs=5e-5)


def test_a_mean_has_students_interval_and_what_does_not_apply_is_left_out() -> None:
    # 1, 2, 3: mean 2, sd 1, t(0.975, 2) = 4.302653.
    result = summarise(MEAN, [1.0, None, 2.0, 3.0])
    assert (result.value, result.n) == (2.0, 3)
    assert result.high == pytest.approx(2 + 4.302653 / math.sqrt(3), abs=1e-5)
    assert result.low == pytest.approx(2 - 4.302653 / math.sqrt(3), abs=1e-5)


def test_a_metric_that_applied_to_nothing_is_not_zero() -> None:
    result = summarise(SHARE, [None, None])
    assert (result.value, result.low, result.high, result.n) == (None, None, None, 0)
    assert summarise(MEAN, [5.0]).low is None


def test_pairs_are_of_the_same_task_and_need_both_sides() -> None:
    def made(values: dict[str, float | None]) -> Evaluation:
        return Evaluation("s", "c", 0, tuple(TaskResult(name, "", {"m": value}) for name, value in values.items()))

    first, second = made({"a": 1.0, "b": 2.0, "c": None}), made({"c": 3.0, "b": 4.0, "a": None, "d": 5.0})
    assert paired("m", first, second) == ([2.0], [4.0])


def test_two_suites_cannot_share_a_name() -> None:
    load_suites()
    with pytest.raises(ValueError, match="two suites"):
        suite("held-out-tasks", metrics=())(lambda agent, seed, n: [])


class Teacher:
    """Reads the file and, by its number, solves, breaks a call, asks, or splits; knows nothing of what is right."""

    checkpoint = "teacher"

    def __init__(self, answer: str) -> None:
        self.answer = answer
        self.prompts: list[str] = []

    def respond(self, prompts: list[str], seed: int) -> list[Response]:
        self.prompts = list(prompts)
        texts = [
            self.answer.replace("PATH", next(w for w in prompt.split() if w.startswith('"'))) for prompt in prompts
        ]
        return [Response(text, (1,), (2,), (-0.1,)) for text in texts]


@pytest.mark.slow
def test_the_suite_measures_what_agents_do() -> None:
    read = '<call> { "tool": "read" , "path": PATH } </call>'
    metrics = {}
    for name, answer in {
        "asks": f"{read} <ask> q:meaning <end>",
        "breaks": '<call> { "tool": "read" , PATH } </call> <ask> q:meaning <end>',
        "edits": f"{read} <edit> fix:0.0 s0 s1 <fn> s2 s3 <end>",
    }.items():
        found = evaluate(Teacher(answer), ["held-out-tasks"], seed=0, n=40)["held-out-tasks"]  # type: ignore[arg-type]
        metrics[name] = {item.metric: item for item in found.summaries()}
    assert metrics["asks"]["asked_on_clear"].value == 1.0
    assert metrics["asks"]["tests_pass"].n == 0
    assert metrics["asks"]["solved"].value == 0.0
    assert metrics["asks"]["invalid_call"].value == 0.0
    assert metrics["breaks"]["invalid_call"].value == 1.0
    assert metrics["edits"]["functions_per_edit"].value == 2.0
    assert metrics["edits"]["asked_on_clear"].value == 0.0
    assert metrics["edits"]["asked_on_clear"].n < 40


@pytest.mark.slow
def test_every_agent_gets_the_same_tasks_and_the_base_solves_some() -> None:
    first, other = Teacher("x"), Teacher("y")
    for agent in (first, other):
        evaluate(agent, ["held-out-tasks"], seed=3, n=30)  # type: ignore[arg-type]
    assert first.prompts == other.prompts
    evaluate(first, ["held-out-tasks"], seed=4, n=30)  # type: ignore[arg-type]
    assert first.prompts != other.prompts
    base = Policy.load(BASE, PolicyConfig(device="cpu"))
    found = evaluate(base, ["held-out-tasks"], seed=0, n=150)["held-out-tasks"]
    assert found == evaluate(base, ["held-out-tasks"], seed=0, n=150)["held-out-tasks"]
    assert Evaluation.from_json(found.to_json()) == found
    values = {item.metric: item.value for item in found.summaries()}
    assert 0.25 < (values["solved"] or 0) < 0.6
    assert (values["invalid_call"] or 0) < 0.1
