"""Cohorts: their text and back, who is in them, and figures and differences against numbers computed another way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from typer.testing import CliRunner

from palomar.app.cli import app
from palomar.app.cohorts import NUMBERS, WORDS, Cohort, CohortError, compared_cycles, over_time, parse
from palomar.app.service import Observatory
from palomar.data.lake import Lake
from palomar.data.observations import OBSERVATIONS
from palomar.detectors.cohort import Condition, compare, sizes
from palomar.detectors.confidence import Arm, difference
from palomar.detectors.measure import measure

CYCLES = 3


def row(cycle: int, number: int, rng: np.random.Generator) -> dict[str, Any]:
    empty = {
        field.name: None if field.nullable else 0 if pa.types.is_integer(field.type) else False
        for field in OBSERVATIONS
    }
    organisation = ("acme", "ze;ta|%", None)[number % 3]
    user = rng.integers(0, 25)
    return {
        **empty,
        "interaction_id": f"{cycle}-{number}",
        "source": "test",
        "traffic": "production",
        "turn": 0,
        "user_id": f"{organisation}-{user}",
        "cycle": cycle,
        "organisation": organisation,
        "predicted_failure": number % 10 / 10 if number % 7 else None,
        "agent_turns": 1 + number % 3,
        "tool_calls": 2,
        "invalid_malformed": int(rng.random() < (0.4 if organisation == "acme" else 0.1)),
        "edited": bool(rng.random() < (0.3 + 0.02 * user)),
        "asked": False if number % 5 else None,
        "latency_s": float(rng.gamma(2.0, 3.0) + user),
    }


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    rng = np.random.default_rng(7)
    return [row(cycle, number, rng) for cycle in range(CYCLES) for number in range(400)]


@pytest.fixture(scope="module")
def home(rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("cohorts") / "home"
    lake = Lake(home / "lake")
    for cycle in range(CYCLES):
        mine = [each for each in rows if each["cycle"] == cycle]
        lake.write_observations(pa.Table.from_pylist(mine, schema=OBSERVATIONS), cycle)
    return home


words = st.dictionaries(
    st.sampled_from(list(WORDS)), st.lists(st.none() | st.text(max_size=12), min_size=1, max_size=4, unique=True)
)
limits = st.none() | st.floats(0, 1).map(lambda value: round(value, 6))
ranges = st.dictionaries(
    st.sampled_from(list(NUMBERS)), st.tuples(limits, limits).filter(lambda pair: None in pair or pair[0] <= pair[1])
)


@given(words, ranges, st.none() | st.integers(0, 500))
def test_a_cohort_is_its_text(words: Any, ranges: Any, first: int | None) -> None:
    ordered = {name: tuple(sorted(of, key=lambda word: (word is None, word or ""))) for name, of in words.items()}
    cohort = Cohort(ordered, ranges, (first, None))
    again = parse(cohort.id)
    assert again == cohort
    assert again.id == cohort.id


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("organization=acme", "did you mean organisation"),
        ("colour=red", "it has organisation"),
        ("organisation", "is no clause"),
        ("organisation=", "is no clause"),
        ("predicted_failure=high", "a range reads"),
        ("predicted_failure=0.6", "a range reads"),
        ("predicted_failure=0.6..nan", "a range reads"),
        ("ambiguity=0.9..0.1", "the range is empty"),
        ("cycle=9..2", "the range is empty"),
        ("cycle=-1", "cycles read"),
        ("did=asked;did=edited", "said twice"),
        ("organisation=" + "a" * 3000, "at most 2,000"),
    ],
)
def test_a_text_that_is_no_cohort_says_what_is_wrong(text: str, problem: str) -> None:
    with pytest.raises(CohortError, match=problem):
        parse(text)


def test_one_way_of_writing_it_is_its_id() -> None:
    assert (
        parse(" cycle = 4 ; did=edited|asked; organisation=b | a|? ").id
        == "organisation=a|b|?;did=asked|edited;cycle=4..4"
    )
    assert parse("").id == ""
    assert parse("predicted_failure=0.60..").id == "predicted_failure=0.6.."


def test_who_is_in_a_cohort(home: Path, rows: list[dict[str, Any]]) -> None:
    def told(text: str) -> int:
        return sum(each.n for each in sizes(Lake(home / "lake"), parse(text).condition))

    assert told("organisation=acme") == sum(each["organisation"] == "acme" for each in rows)
    assert told("organisation=ze%3Bta%7C%25") == sum(each["organisation"] == "ze;ta|%" for each in rows)
    assert told("organisation=?") == sum(each["organisation"] is None for each in rows)
    assert told("organisation=acme|?") == sum(each["organisation"] in (None, "acme") for each in rows)
    high = [each for each in rows if each["predicted_failure"] is not None and each["predicted_failure"] >= 0.6]
    assert told("predicted_failure=0.6..") == len(high)
    assert told("predicted_failure=0.6..;organisation=acme") == sum(each["organisation"] == "acme" for each in high)
    assert told("did=edited") == sum(each["edited"] for each in rows)
    assert told("did=no edit") == sum(not each["edited"] and each["asked"] is None for each in rows)
    assert told("invalid_call=yes") == sum(each["invalid_malformed"] for each in rows)
    assert told("") == len(rows)


@pytest.mark.parametrize("attack", ["' OR 1=1 --", "acme'); DROP TABLE observations; --", "?", "\\'", "acme\x00"])
def test_a_word_is_never_sql(home: Path, attack: str) -> None:
    of = Cohort({"organisation": (attack,)})
    assert parse(of.id) == of
    found = over_time(Observatory(home), of)
    assert isinstance(found, list)
    assert [each.n for each in found] == [0, 0, 0]
    assert [each.of for each in found] == [400, 400, 400]


def test_a_share_has_wilsons_interval(home: Path) -> None:
    found = sizes(Lake(home / "lake"), parse("organisation=acme").condition)[1]
    interval = stats.binomtest(found.n, found.of).proportion_ci(method="wilson")
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.share == found.n / 400


def test_figures_of_a_slice_are_the_slices_own(home: Path) -> None:
    lake = Lake(home / "lake")
    slices = {point.statistic: point for point in measure(lake, [1]) if point.slice == "organisation=acme"}
    found = compare(lake, [1], parse("organisation=acme").condition)
    for each in found.differences:
        if each.statistic in slices and each.own is not None:
            own, other = each.own, slices[each.statistic]
            assert (own.value, own.low, own.high, own.n) == (other.value, other.low, other.high, other.n)
    assert {"edit_rate", "latency_mean", "invalid_call_rate"} <= set(slices)


def test_the_difference_of_cohorts_without_a_common_user_is_that_of_two_arms(
    home: Path, rows: list[dict[str, Any]]
) -> None:
    """By users: a ratio of sums per user, linearised, and `confidence.difference` over the users' values."""
    found = compare(Lake(home / "lake"), range(CYCLES), parse("organisation=acme").condition)
    for name, top, bottom in (
        ("edit_rate", "edited", None),
        ("latency_mean", "latency_s", None),
        ("invalid_call_rate", "invalid_malformed", "agent_turns"),
    ):
        arms = []
        for inside in (False, True):
            sums: dict[str, list[float]] = {}
            for each in rows:
                if (each["organisation"] == "acme") is inside:
                    x, y = float(each[top]), 1.0 if bottom is None else float(each[bottom])
                    of = sums.setdefault(each["user_id"], [0.0, 0.0])
                    of[0], of[1] = of[0] + x, of[1] + y
            x, y = np.array(list(sums.values())).T
            arms.append(Arm.of(x.sum() / y.sum() + (x - x.sum() / y.sum() * y) / y.mean()))
        expected = difference(*arms)
        (told,) = [each for each in found.differences if each.statistic == name]
        assert told.value == pytest.approx(expected.value)
        assert told.high is not None
        assert told.low is not None
        assert (told.high - told.low) / 2 == pytest.approx(stats.norm.ppf(0.975) * expected.error)


def test_a_user_in_both_cohorts_widens_or_narrows_by_what_they_share(home: Path) -> None:
    lake = Lake(home / "lake")
    everything = Condition("true")
    found = compare(lake, range(CYCLES), everything, everything)
    assert found.both == found.n == found.other_n == 1200
    # The same rows on both sides: there is no difference, and nothing is left that could vary.
    for each in found.differences:
        assert each.value is None or each.value == 0
        assert each.why


def test_without_cycles_the_newest_are_compared(home: Path) -> None:
    observatory = Observatory(home)
    assert compared_cycles(observatory, Cohort()) == (0, 1, 2)
    assert compared_cycles(observatory, parse("cycle=1..")) == (1, 2)
    assert compared_cycles(observatory, parse("cycle=1")) == (1,)
    assert compared_cycles(observatory, parse("cycle=77")) == ()


def test_the_command_says_the_same(home: Path) -> None:
    runner = CliRunner()
    done = runner.invoke(app, ["cohort", "organisation=acme", "--home", str(home), "--json"])
    assert done.exit_code == 0
    told = json.loads(done.stdout)
    found = compare(Lake(home / "lake"), range(CYCLES), parse("organisation=acme").condition)
    assert told["comparison"]["n"] == found.n
    clear = {each["statistic"] for each in told["comparison"]["differences"] if each["clear"]}
    assert clear == {each.statistic for each in found.differences if each.clear}
    assert "invalid_call_rate" in clear
    assert runner.invoke(app, ["cohort", "organisation=nobody", "--home", str(home)]).exit_code == 3
    assert runner.invoke(app, ["cohort", "organisation=acme", "--home", str(home / "none")]).exit_code == 3
    wrong = runner.invoke(app, ["cohort", "organization=acme", "--home", str(home)])
    assert wrong.exit_code == 2
    done = runner.invoke(app, ["cohort", "organisation=acme", "--sizes", "--home", str(home), "--json"])
    assert [each["of"] for each in json.loads(done.stdout)["sizes"]] == [400, 400, 400]
