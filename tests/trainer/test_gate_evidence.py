"""Whom a candidate is compared with, and what is gathered about it, from a real store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from palomar.data.errors import StoreError
from palomar.data.store import Store
from palomar.data.store.records import LedgerRow
from palomar.trainer.evaluation import Evaluation, TaskResult
from palomar.trainer.gate_evidence import compare_metrics, compared, digest, gather
from palomar.trainer.gate_policy import read_policy

POLICY = read_policy("demo").policy
SUITE = "held-out-tasks"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A run in which c1 to c4 were promoted after the base: neutral, improved, neutral, neutral; c5 waits."""
    with Store.open(None, tmp_path) as opened:
        opened.runs.add("r", name="r", seed=0, config={})
        opened.checkpoints.add("r", "base", cycle=None, parent_id=None, path="base", sha256="")
        opened.checkpoints.promote("r", "base", replacing=None, since_cycle=0, reason="x")
        before = "base"
        for cycle, kind in enumerate(["neutral", "improved", "neutral", "neutral", None], start=1):
            opened.cycles.start("r", cycle, checkpoint_id=before)
            opened.checkpoints.add("r", f"c{cycle}", cycle=cycle, parent_id=before, path=f"c{cycle}", sha256="")
            if kind is None:
                continue
            record(opened, f"c{cycle}", cycle, kind)
            opened.checkpoints.promote("r", f"c{cycle}", replacing=before, since_cycle=cycle + 1, reason="x")
            before = f"c{cycle}"
        yield opened


def record(store: Store, candidate: str, cycle: int, kind: Any, verdict: Any = "promote") -> None:
    store.decisions.record(
        "r", candidate, cycle=cycle, verdict=verdict, reasons=["x"], evidence={}, policy="p", kind=kind
    )


def names(store: Store, candidate: str, **more: Any) -> tuple[Any, ...]:
    asked = compared(store, "r", candidate, POLICY, **more)
    others = (asked.champion, asked.anchor, asked.milestone, asked.newer)
    return (*(each and each.checkpoint_id for each in others), asked.neutral_in_a_row)


def test_a_candidate_is_compared_with_champion_anchor_and_the_last_that_improved(store: Store) -> None:
    assert names(store, "c5") == ("c4", "base", "c2", None, 2)


def test_a_champion_asked_about_again_is_compared_with_the_one_it_replaced(store: Store) -> None:
    assert names(store, "c4") == ("c3", "base", "c2", "c5", 1)


def test_as_if_looks_from_where_the_candidate_was(store: Store) -> None:
    assert names(store, "c2", as_if=True) == ("c1", "base", "base", None, 1)


def test_what_was_rolled_back_is_no_milestone_and_spends_no_budget(store: Store) -> None:
    store.checkpoints.roll_back("r", "c4", to="c2", since_cycle=6, reason="worse")
    assert names(store, "c5") == ("c2", "base", "c2", None, 1)


def test_a_candidate_of_a_later_cycle_is_the_newer_one(store: Store) -> None:
    store.cycles.start("r", 6, checkpoint_id="c4")
    store.checkpoints.add("r", "c6", cycle=6, parent_id="c4", path="c6", sha256="")
    assert names(store, "c5")[3] == "c6"
    assert names(store, "c6")[3] is None
    store.checkpoints.block("r", "c6", "no good")
    assert names(store, "c5")[3] is None


def test_an_anchor_may_be_named_and_an_unknown_one_is_none(store: Store) -> None:
    for name, found in (("c1", "c1"), ("gone", None)):
        asked = compared(store, "r", "c5", POLICY.model_copy(update={"anchor": name}))
        assert (asked.anchor and asked.anchor.checkpoint_id) == found


def test_an_unknown_candidate_is_refused_with_the_nearest(store: Store) -> None:
    with pytest.raises(StoreError, match="has no checkpoint 'base2'; there is base"):
        compared(store, "r", "base2", POLICY)


def test_what_nobody_kept_is_not_known(store: Store, tmp_path: Path) -> None:
    found = gather(store, tmp_path, "r", "c5", POLICY)
    assert (found.cycle.ledger_adds_up, found.cycle.offered, found.cycle.largest_lag) == (None, None, None)
    assert (found.digests_match, found.cycle_check.verdict, found.candidate_check.verdict) == (None, None, None)
    assert found.incidents == ()
    assert {each.why for each in found.suites} == {"the candidate was not run on it"}


def test_the_ledger_must_add_up_on_both_sides_and_in_each_stratum(store: Store, tmp_path: Path) -> None:
    def adds_up(**counts: int) -> bool | None:
        rows = [LedgerRow(5, stratum, place, "", n) for (stratum, place), n in _places(counts).items()]
        store.ledger.write("r", rows)
        return gather(store, tmp_path, "r", "c5", POLICY).cycle.ledger_adds_up

    assert adds_up(all_collected=10, all_trained=8, all_waiting=2) is True
    assert adds_up(all_collected=10, all_trained=8) is False
    assert adds_up(all_collected=10, all_trained=11) is False
    assert adds_up(all_collected=10, all_trained=10, hard_collected=4, hard_trained=3) is False


def _places(counts: dict[str, int]) -> dict[tuple[str, Any], int]:
    return {(name.split("_")[0], name.split("_")[1]): n for name, n in counts.items()}


def test_the_same_evidence_has_the_same_digest_whenever_it_is_gathered(store: Store, tmp_path: Path) -> None:
    first, again = (gather(store, tmp_path, "r", "c5", POLICY) for _ in range(2))
    assert first.at != again.at
    assert digest(first) == digest(again)
    store.ledger.write("r", [LedgerRow(5, "all", "collected", "", 1), LedgerRow(5, "all", "trained", "", 1)])
    assert digest(gather(store, tmp_path, "r", "c5", POLICY)) != digest(first)


# -- suites --------------------------------------------------------------------------------------------------------


def evaluation(solved: list[float | None], first: int = 0, suite: str = SUITE) -> Evaluation:
    blank = {"tests_pass": None, "invalid_call": 0.0, "asked_on_clear": None, "functions_per_edit": 2.0}
    results = tuple(
        TaskResult(f"t{first + at}", f"f{at % 20}", {"solved": value, **blank}) for at, value in enumerate(solved)
    )
    return Evaluation(suite, "x", 0, results)


def one(before: Evaluation | None, after: Evaluation | None, metric: str = "solved", suite: str = SUITE) -> Any:
    (found,) = compare_metrics(suite, [metric], "champion", "old", before=before, after=after)
    return found


HALF: list[float | None] = [1.0, 0.0] * 100


def test_two_that_never_disagree_are_not_known_to_be_equal() -> None:
    found = one(evaluation(HALF), evaluation(HALF))
    assert (found.effect, found.tasks, found.clusters) == (0.0, 200, 20)
    # Half a disagreement more on either side: sqrt(1) / 202.
    assert found.error == pytest.approx(1 / 202)


@pytest.mark.parametrize(
    ("before", "after", "metric", "suite", "why"),
    [
        (None, evaluation(HALF), "solved", SUITE, "the champion was not run on it"),
        (evaluation(HALF), None, "solved", SUITE, "the candidate was not run on it"),
        (evaluation(HALF), evaluation(HALF, first=1), "solved", SUITE, "they were run on different tasks"),
        (evaluation(HALF), evaluation(HALF[:100]), "solved", SUITE, "they were run on different tasks"),
        (evaluation(HALF), evaluation(HALF), "speed", SUITE, "the suite has no such metric"),
        (evaluation(HALF), evaluation(HALF), "tests_pass", SUITE, "no task counts on both sides"),
        (evaluation(HALF), evaluation(HALF), "solved", "nowhere", "no such suite is registered here"),
    ],
)
def test_what_cannot_be_compared_says_why(before: Any, after: Any, metric: str, suite: str, why: str) -> None:
    found = one(before, after, metric, suite)
    assert (found.why, found.error) == (why, None)
