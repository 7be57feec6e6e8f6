from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from palomar.detectors.checks._examples import rows, view
from palomar.detectors.checks.drift import charts, drift, drifts
from palomar.detectors.detector import View

CYCLES = 11


def with_column(table: pa.Table, name: str, values: object) -> pa.Table:
    place = table.schema.get_field_index(name)
    return table.set_column(place, name, pa.array(values, table.schema.field(name).type))


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> View:
    """500 interactions a cycle; from cycle 9 on a quarter more of them end in a question, and tokens double."""
    made = []
    for cycle in range(CYCLES):
        table = rows(cycle, 500, more_asked=0.25 if cycle >= 9 else 0.0)
        tokens = np.asarray(table["tokens_out"]) * (2 if cycle >= 9 else 1)
        made.append(with_column(table, "tokens_out", tokens))
    return view(tmp_path_factory.mktemp("lake"), made)


def test_a_finding_says_from_where_to_where_how_sure_and_since_when(asking: View) -> None:
    report = drift(asking)
    found = {(finding.statistic, finding.slice): finding for finding in report.findings}
    asked = found["clarification_rate", "all"]
    assert asked.severity == "blocks"
    assert asked.since == 9
    assert asked.n == 500
    assert asked.before == pytest.approx(0.20, abs=0.02)
    assert asked.after == pytest.approx(0.45, abs=0.04)
    assert asked.effect == pytest.approx(asked.after - asked.before)
    assert 0 < asked.low < asked.effect < asked.high
    assert abs(asked.test) > asked.threshold
    assert asked.sentence.startswith("clarification rate 20.")
    assert "first out in cycle 9; out in two of the last three cycles" in asked.sentence
    assert asked.detail["direction"] == 1
    assert found["edit_rate", "all"].detail["direction"] == -1
    assert asked.evidence.carrying
    assert "5 alarms per 1000 unchanged cycles" in asked.error_control
    assert "clarification rate" in report.power


def test_levels_of_logs_are_told_as_the_typical_value(asking: View) -> None:
    told = next(each for each in charts(asking) if (each.metric, each.slice) == ("tokens_out_mean", "all"))
    before = np.concatenate([np.asarray(asking.scan(["tokens_out"], [cycle])["tokens_out"]) for cycle in range(8)])
    assert told.reference == pytest.approx(np.expm1(np.log1p(before).mean()), rel=0.01)
    assert told.value == pytest.approx(2 * told.reference, rel=0.1)
    assert told.low < told.reference < told.high < told.value
    assert told.effect == pytest.approx(told.value - told.reference)


def test_the_spread_of_a_statistic_is_another_finding_than_its_level(asking: View) -> None:
    made = []
    for cycle in range(CYCLES):
        table = rows(cycle, 500)
        if cycle >= 9:  # the same mean, twice the spread
            noise = np.random.default_rng(cycle).normal(0, 1.0, 500)
            table = with_column(table, "reward", np.asarray(table["reward"]) + 2 * noise)
        made.append(table)
    report = drift(view(asking.lake.root.parent / "spread", made))
    found = {finding.statistic: finding for finding in report.findings}
    assert "spread:reward_mean" in found
    assert "reward_mean" not in found
    assert found["spread:reward_mean"].severity == "warns"  # no behaviour: never blocks


def test_reward_and_outcome_warn_and_never_block(tmp_path: Path) -> None:
    made = [
        with_column(table, "outcome", np.asarray(table["outcome"]) - (3.0 if cycle >= 8 else 0.0))
        for cycle, table in enumerate(rows(cycle, 400) for cycle in range(CYCLES))
    ]
    report = drift(view(tmp_path, made))
    assert [(finding.statistic, finding.severity) for finding in report.findings] == [("outcome_mean", "warns")]


def test_what_waits_for_users_is_judged_in_its_last_ripe_cycle(tmp_path: Path) -> None:
    """Only the lost half is known of the last cycle, and it says nothing; the cycle before has fallen, and does."""
    made = []
    for cycle in range(CYCLES):
        table = rows(cycle, 400)
        outcome = np.asarray(table["outcome"]) - (1.0 if cycle == CYCLES - 2 else 0.0)
        if cycle == CYCLES - 1:
            known = outcome < 0.5
            table = with_column(table, "outcome_status", np.where(known, "mature", "immature"))
            table = with_column(
                table, "outcome", [value if yes else None for value, yes in zip(outcome, known, strict=True)]
            )
        else:
            table = with_column(table, "outcome", outcome)
        made.append(table)
    (finding,) = drift(view(tmp_path, made)).findings
    assert (finding.statistic, finding.since, finding.detail["as_of"]) == ("outcome_mean", 9, 9)
    assert finding.sentence.endswith("as of cycle 9, the last that is ripe")
    chart = next(each for each in charts(view(tmp_path, made)) if (each.kind, each.metric) == ("mean", "outcome_mean"))
    assert chart.status == "not_assessable"


def test_charts_name_also_those_that_are_equal_to_another(asking: View) -> None:
    _, series = drifts(asking)
    # Broken calls are all malformed here, so that two statistics are one channel.
    named = {(each.metric, each.slice): each for each in charts(asking)}
    assert ("mean", "invalid_malformed_rate", "all") in series.aliases
    one, other = named["invalid_call_rate", "all"], named["invalid_malformed_rate", "all"]
    assert (one.value, one.status) == (other.value, other.status)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"cycle": None}, "outside a loop"),
        ({"reference": range(7)}, "7 reference cycles, and it takes 8"),
        ({"cycle": 7}, "is of the reference"),
    ],
)
def test_without_something_to_compare_it_says_what_it_takes(asking: View, given: dict[str, object], says: str) -> None:
    at = View.of(asking.lake, **{"cycle": CYCLES - 1, **given})  # type: ignore[arg-type]
    report = drift(at)
    assert (report.findings, report.assessed) == ((), 0)
    assert says in report.unassessed[0].why
    with pytest.raises(ValueError, match=says):
        drifts(at)
