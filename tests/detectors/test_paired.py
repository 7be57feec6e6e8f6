from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from palomar.detectors.checks._examples import rows
from palomar.detectors.paired import (
    Difference,
    agresti_min,
    clustered_error,
    compare,
    holm,
    mid_p,
    sign_flip,
)
from palomar.detectors.statistics import STATISTICS


def known(folder: Path, case: str) -> dict[str, Any]:
    """Inputs and expected values that were published, or computed with other libraries."""
    cases = json.loads((folder / "paired_evals.json").read_text(encoding="utf-8"))["cases"]
    return next(each for each in cases if each["id"] == case)


def table(asked: list[bool], tasks: list[str] | None = None, **columns: Any) -> pa.Table:
    """A row per task, on which the agent asked or not."""
    n = len(asked)
    return rows(0, n, task_id=tasks or [f"t{index}" for index in range(n)], asked=np.array(asked), **columns)


def asking(champion: pa.Table, candidate: pa.Table, **more: Any) -> Difference:
    statistics = [STATISTICS["clarification_rate"]]
    return compare(champion, candidate, statistics=statistics, **more).differences[0]


def squares(counts: list[list[int]]) -> tuple[list[bool], list[bool]]:
    """Answers of both sides with these counts: [[both, only the first], [only the second, neither]]."""
    (both, first), (second, neither) = counts
    return [True] * (both + first) + [False] * (second + neither), (
        [True] * both + [False] * first + [True] * second + [False] * neither
    )


# -- known answers -------------------------------------------------------------------------------------------------


def test_paired_error_t_and_p_are_those_of_the_published_example(known_answers: Path) -> None:
    case = known(known_answers, "paired_standard_error")
    a, b = ([value == 1.0 for value in case["inputs"][side]] for side in ("a", "b"))
    # Three disagreements would go to McNemar; as two answers a task they go to the t, which the case is about.
    found = asking(
        table(a * 2, [f"t{index % len(a)}" for index in range(2 * len(a))]),
        table(b * 2, [f"t{index % len(b)}" for index in range(2 * len(b))]),
    )
    expected = case["expected"]
    assert (found.method, found.n, found.clusters) == ("t", 12, 12)
    assert found.effect == pytest.approx(-expected["diff"])
    assert found.p == pytest.approx(expected["p"], abs=1e-9)
    reach = stats.t.ppf(0.975, 11) * expected["se_paired"]
    assert (found.low, found.high) == pytest.approx((-0.25 - reach, -0.25 + reach), abs=1e-9)


def test_mcnemar_is_that_of_agresti_and_of_r(known_answers: Path) -> None:
    case = known(known_answers, "mcnemar")
    (_, lost), (gained, _) = case["inputs"]["table"]
    point = float(stats.binom.pmf(lost, lost + gained, 0.5))
    assert mid_p(lost, gained) + point == pytest.approx(case["expected"]["p_exact"], rel=1e-9)
    first, second = squares(case["inputs"]["table"])
    found = asking(table(first), table(second))
    assert found.effect == pytest.approx((gained - lost) / 1600)
    # With 236 disagreements the t is near McNemar's chi-squared.
    assert found.method == "t"
    assert found.p == pytest.approx(case["expected"]["p"], rel=0.15)


def test_flipping_signs_gives_fishers_count_of_darwins_plants(known_answers: Path) -> None:
    case = known(known_answers, "paired_sign_flip_exact")
    differences = np.array(case["inputs"]["differences"], dtype=float)
    expected = case["expected"]["p_two_sided"]  # of all 2^15 flips
    assert sign_flip(differences) == pytest.approx(expected, abs=0.005)  # drawn: 15 are one too many to try all
    halved = differences[:13]
    every = np.array([[1 - 2 * (number >> place & 1) for place in range(13)] for number in range(2**13)])
    exact = (np.abs(every @ np.abs(halved)) >= abs(halved.sum())).mean()
    assert sign_flip(halved) == pytest.approx(exact)


def test_clustered_errors_are_those_of_the_published_formula(known_answers: Path) -> None:
    case = known(known_answers, "clustered_standard_error")
    clusters = case["inputs"]["clusters"]
    values = np.concatenate([np.array(of, dtype=float) for of in clusters.values()])
    codes = np.repeat(np.arange(len(clusters)), [len(of) for of in clusters.values()])
    assert clustered_error(values, codes) == pytest.approx(case["expected"]["se_clustered_finite"], abs=1e-9)


def test_holm_is_that_of_statsmodels() -> None:
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    p_values = [0.01, 0.04, 0.03, 0.005, 0.5, 0.03]
    assert holm(p_values) == pytest.approx(list(multitest.multipletests(p_values, method="holm")[1]))


def test_mid_p_and_interval_by_hand() -> None:
    # 1 lost, 7 gained: exact 2 (1 + 8) / 256, less the chance of exactly one, 8 / 256.
    assert mid_p(1, 7) == pytest.approx(18 / 256 - 8 / 256)
    assert mid_p(0, 0) == 1.0
    low, high = agresti_min(1, 7, 100)
    centre, size = 6 / 102, 102
    reach = 1.959964 * np.sqrt(9 - 36 / size) / size
    assert (low, high) == pytest.approx((centre - reach, centre + reach))


# -- what it is for ------------------------------------------------------------------------------------------------


def test_few_disagreements_go_to_mcnemar_and_with_families_to_their_signs() -> None:
    first, second = squares([[10, 1], [7, 82]])
    alone = asking(table(first), table(second))
    assert (alone.method, alone.p) == ("mcnemar_mid_p", pytest.approx(10 / 256))
    families = {"work_kind": [f"f{index // 5}" for index in range(100)]}
    together = asking(table(first, **families), table(second), cluster="work_kind")
    assert (together.method, together.clusters) == ("sign_flip", 20)
    assert together.p > alone.p  # the seven lie in two families


def test_tasks_of_one_family_count_as_one() -> None:
    """Each answer copied five times over: with the family named, nothing is surer than without the copies."""
    rng = np.random.default_rng(3)
    first, second = rng.random(120) < 0.3, rng.random(120) < 0.5
    alone = asking(table(list(first)), table(list(second)))
    names = {"work_kind": [f"f{index // 5}" for index in range(600)]}
    copied = asking(table(list(np.repeat(first, 5)), **names), table(list(np.repeat(second, 5))), cluster="work_kind")
    naive = asking(table(list(np.repeat(first, 5))), table(list(np.repeat(second, 5))))
    assert copied.p == pytest.approx(alone.p, rel=1e-6)
    assert naive.p < alone.p / 10


def test_all_statistics_share_one_error_and_the_one_that_changed_is_found() -> None:
    rng = np.random.default_rng(5)
    n = 400
    champion = table(list(rng.random(n) < 0.2))
    tokens = np.asarray(champion["tokens_out"])
    more = np.rint(30 + 20 * rng.standard_normal(n)).astype(int)
    candidate = rows(
        0, n, task_id=champion["task_id"].to_pylist(), asked=np.asarray(champion["asked"]), tokens_out=tokens + more
    )
    comparison = compare(champion, candidate)
    named = {item.statistic: item for item in comparison.differences}
    assert (comparison.pairs, comparison.unpaired) == (n, 0)
    assert [name for name, item in named.items() if item.differs] == ["tokens_out_mean"]
    assert named["tokens_out_mean"].effect == pytest.approx(more.mean())
    assert all(item.p_adjusted >= item.p for item in named.values() if item.p is not None)
    assert named["clarification_rate"].effect == 0
    assert named["clarification_rate"].low < 0 < named["clarification_rate"].high
    assert named["clarification_rate"].smallest > 0


def test_when_every_task_moves_by_the_same_there_is_still_a_p_value() -> None:
    champion = table([False] * 20)
    candidate = table([False] * 20, tokens_out=np.asarray(champion["tokens_out"]) + 3)
    (found,) = compare(champion, candidate, statistics=[STATISTICS["tokens_out_mean"]]).differences
    assert (found.effect, found.p, found.method) == (pytest.approx(3.0), 2.0**-19, "sign_flip")


def test_the_smallest_effect_is_seen_four_times_of_five() -> None:
    seen, smallest = 0, 0.0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        first = rng.random(300) < 0.3
        shift = 0.125
        second = np.where(rng.random(300) < 0.5, first, rng.random(300) < 0.3)
        second = np.where(~second & (rng.random(300) < shift / 0.7), True, second)
        found = asking(table(list(first)), table(list(second)))
        seen += found.differs
        smallest += found.smallest / 100
    assert smallest == pytest.approx(0.09, abs=0.02)
    assert seen >= 80  # a shift above the smallest is seen more often than 80 in 100


def test_ratios_are_compared_as_ratios_and_what_does_not_count_is_no_zero() -> None:
    n = 60
    champion = table([False] * n, edited=True, functions_before=1, functions_after=2)
    edited = np.arange(n) % 2 == 0
    candidate = table(
        [False] * n, edited=edited, functions_before=np.where(edited, 1, 0), functions_after=np.where(edited, 3, 0)
    )
    named = {item.statistic: item for item in compare(champion, candidate).differences}
    growth, functions = named["function_growth"], named["functions_per_edit"]
    assert (growth.champion, growth.candidate) == (2.0, 3.0)
    assert (functions.champion, functions.candidate) == (2.0, 3.0)


def test_the_same_policy_is_told_apart_at_most_at_the_stated_rate() -> None:
    wrong = 0
    for seed in range(60):
        made = [rows(0, 150, seed=2 * seed + side, task_id=[f"t{index}" for index in range(150)]) for side in (0, 1)]
        wrong += any(item.differs for item in compare(*made).differences)
    assert wrong <= 8  # 3 expected; the 99.5 % quantile of a binomial is 8


def test_tasks_of_one_side_alone_are_told_and_few_clusters_are_no_test() -> None:
    comparison = compare(
        table([True] * 12),
        table([False] * 12, [f"t{index}" for index in range(4, 16)]),
        statistics=[STATISTICS["clarification_rate"]],
    )
    (found,) = comparison.differences
    assert (comparison.pairs, comparison.unpaired) == (8, 8)
    assert (found.status, found.effect, found.p, found.differs) == ("too_few", -1.0, None, False)
    none = compare(table([True]), table([True], ["other"]), statistics=[STATISTICS["clarification_rate"]])
    assert (none.pairs, none.differences[0].status) == (0, "no_pairs")
