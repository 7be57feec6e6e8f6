"""A candidate beside its champion and the base, on evaluations of which it is known how they differ."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from palomar.data.errors import StoreError
from palomar.data.store import Store
from palomar.data.store.records import Checkpoint
from palomar.detectors.checks._examples import rows
from palomar.detectors.checks._examples import view as lake_view
from palomar.detectors.detector import View
from palomar.trainer.candidate import candidate_report, compare_suites, others
from palomar.trainer.evaluation import Evaluation, TaskResult

SUITE = "held-out-tasks"
NOW = datetime(2026, 1, 5, tzinfo=UTC)


def checkpoint(name: str, cycle: int | None, parent: str | None) -> Checkpoint:
    return Checkpoint("r", name, cycle, parent, "", "", "candidate", None, None, NOW, NOW)


def evaluated(name: str, asked: float, solved: float = 0.5, tasks: int = 200) -> Evaluation:
    """Of `tasks` tasks in 20 families, the first shares of which are asked about and solved."""
    results = tuple(
        TaskResult(
            f"t{index:03d}",
            f"family{index % 20}",
            {
                "solved": float(index < solved * tasks),
                "tests_pass": None,
                "invalid_call": 0.0,
                "asked_on_clear": float(index < asked * tasks),
                "functions_per_edit": 2.0,
            },
        )
        for index in range(tasks)
    )
    return Evaluation(SUITE, name, 0, results)


def keep(home: Path, evaluation: Evaluation) -> None:
    folder = home / "evaluations" / evaluation.checkpoint
    folder.mkdir(parents=True)
    (folder / f"{SUITE}.json").write_text(evaluation.to_json(), encoding="utf-8")


def pushed(folder: Path, worth: float) -> View:
    """Cycles in which the reward pays questions, and they are `worth` so much to users."""
    made = []
    for cycle in range(9):
        table = rows(cycle, 600)
        asked = np.asarray(table["asked"].to_numpy(zero_copy_only=False), dtype=np.bool_)
        fared = np.asarray(table["outcome"].to_numpy())
        for name, value in (("reward", 1.0), ("outcome", worth)):
            place = table.schema.get_field_index(name)
            table = table.set_column(place, name, pa.array(np.where(asked, value, fared)))
        made.append(table)
    return lake_view(folder, made, trained=True)


@pytest.mark.parametrize(
    ("worth", "reading", "severity"), [(-1.0, "reward_hack", "blocks"), (1.0, "honest_learning", "warns")]
)
def test_a_difference_is_read_by_what_trained_it(tmp_path: Path, worth: float, reading: str, severity: str) -> None:
    for evaluation in (evaluated("base", 0.1), evaluated("new", 0.3)):
        keep(tmp_path, evaluation)
    compared = {"champion": checkpoint("base", None, None)}
    report = candidate_report(pushed(tmp_path / "lake", worth), tmp_path, checkpoint("new", 8, "base"), compared)
    (found,) = report.findings
    assert (found.statistic, found.slice, found.before, found.after) == ("asked_on_clear", "champion", 0.1, 0.3)
    assert (found.reading, found.severity) == (reading, severity)
    assert report.assessed == 4
    assert [item.what for item in report.unassessed] == ["tests_pass against the champion"]


def test_a_suite_that_got_worse_warns_though_no_pressure_is_known(tmp_path: Path) -> None:
    for evaluation in (evaluated("base", 0.1, solved=0.6), evaluated("new", 0.1, solved=0.4)):
        keep(tmp_path, evaluation)
    report = candidate_report(
        None, tmp_path, checkpoint("new", 8, "base"), {"champion": checkpoint("base", None, None)}
    )
    assert [(found.statistic, found.severity, found.reading) for found in report.findings] == [
        ("solved", "warns", None)
    ]


def test_the_same_policy_differs_in_nothing() -> None:
    comparison = compare_suites(evaluated("a", 0.2), evaluated("b", 0.2))
    assert comparison.pairs == 200
    assert not any(difference.differs for difference in comparison.differences)


def test_what_was_not_run_is_not_assessed(tmp_path: Path) -> None:
    compared = {"champion": checkpoint("base", None, None)}
    nothing = candidate_report(None, tmp_path, checkpoint("new", 8, "base"), compared)
    assert (nothing.assessed, nothing.unassessed[0].why) == (0, "checkpoint new was run on no suite")
    keep(tmp_path, evaluated("new", 0.1))
    assert (
        "the champion was not run on it"
        in candidate_report(None, tmp_path, checkpoint("new", 8, "base"), compared).unassessed[0].why
    )


def test_an_unknown_checkpoint_is_refused(tmp_path: Path) -> None:
    with Store.open(None, tmp_path) as store:
        store.runs.add("r", name="r", seed=0, config={})
        with pytest.raises(StoreError, match="has no checkpoint 'nobody'"):
            others(store, "r", "nobody")
