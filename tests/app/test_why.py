"""Why a figure moved, against sums that are made row by row in Python."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lifelines import KaplanMeierFitter
from scipy import stats
from typer.testing import CliRunner

from palomar.app import why
from palomar.app.cli import app
from palomar.app.kept import Kept, Pending
from palomar.app.service import Observatory
from palomar.data.findings import Finding
from palomar.data.lake import Lake
from palomar.data.observations import FACTS
from palomar.data.slices import ALL
from palomar.data.store import Store
from palomar.data.store.records import Statistic
from palomar.detectors.measure import measure
from palomar.detectors.pressure import pressures
from palomar.detectors.reward_change import UNATTRIBUTED, reward_change
from palomar.detectors.slice_changes import slice_changes
from palomar.detectors.survival import curve
from palomar.reward.scoring import score
from palomar.reward.spec import bundled, bundled_text, version
from palomar.reward.versions import register

NAIVE = version(bundled("naive"))
CYCLES = 4


@pytest.fixture
def home(tmp_path: Path, lake_with_holes: Lake) -> Observatory:
    """A run whose four cycles have been distilled."""
    shutil.copytree(lake_with_holes.root, tmp_path / "lake")
    with Store.open(None, tmp_path) as store:
        register(store, bundled("naive"), text=bundled_text("naive"), reason="first", actor="ann")
        store.runs.add("run", name="run", seed=0, config={})
        store.rewards.schedule("run", NAIVE, from_cycle=0)
        for cycle in range(CYCLES):
            store.cycles.start("run", cycle, reward_version=NAIVE)
    return Observatory(tmp_path)


def observed(home: Observatory, *cycles: int) -> list[dict[str, Any]]:
    """Rows as the lake has them."""
    with home.lake.connect(["observations"], list(cycles)) as connection:
        rows: list[dict[str, Any]] = connection.execute("SELECT * FROM observations").to_arrow_table().to_pylist()
    return rows


def cell(row: Mapping[str, Any]) -> str:
    failure = row["predicted_failure"]
    hard = "low" if failure < 0.4 else "mid" if failure < 0.6 else "high"
    return f"predicted_failure={hard},ambiguity={'clear' if row['ambiguity'] < 0.5 else 'vague'}"


# -- slices ----------------------------------------------------------------------------------------------------------


def test_shares_of_slices_are_those_of_a_sum_over_rows_and_add_up_with_the_mix(home: Observatory) -> None:
    found = why.slices_of(home, "run", "clarification_rate", 3, reference=(0, 1))
    assert found.excess is not None
    before, after = observed(home, 0, 1), observed(home, 3)

    def rates(rows: list[dict[str, Any]]) -> dict[str, tuple[float, float]]:
        """Share of the rows, and of these the share that ask."""
        by: dict[str, list[bool]] = {}
        for row in rows:
            by.setdefault(cell(row), []).append(row["asked"])
        return {name: (len(asked) / len(rows), sum(asked) / len(asked)) for name, asked in by.items()}

    old, new = rates(before), rates(after)
    total = sum(row["asked"] for row in after) / len(after) - sum(row["asked"] for row in before) / len(before)
    assert found.excess.total == pytest.approx(total)
    for item in found.excess.slices:
        (p, a), (q, b) = old[item.slice], new[item.slice]
        assert (item.before, item.after) == pytest.approx((a, b))
        assert item.part == pytest.approx((p + q) / 2 * (b - a))
        assert item.share == pytest.approx(item.part / total)
        assert item.n_after == sum(cell(row) == item.slice for row in after)
        assert item.n_before == sum(cell(row) == item.slice for row in before)
    assert {item.slice for item in found.excess.slices} == set(new)
    mix = sum((new[name][0] - old[name][0]) * (old[name][1] + new[name][1]) / 2 for name in new)
    assert found.excess.mix == pytest.approx(mix)
    assert found.excess.mix_share is not None
    shares = [item.share or 0.0 for item in found.excess.slices]
    assert sum(shares) + found.excess.mix_share == pytest.approx(1)
    assert shares == sorted(shares, reverse=True)


def test_what_has_no_split_says_why(home: Observatory) -> None:
    for statistic, cycle, words in (
        ("function_lines_median", 3, "does not add up"),
        ("nonsense", 3, "does not add up"),
        ("clarification_rate", 9, "cycle 9 is not in the lake"),
    ):
        found = why.slices_of(home, "run", statistic, cycle)
        assert found.excess is None
        assert words in found.why


def test_slices_are_counted_anew_when_the_lake_has_changed(home: Observatory) -> None:
    def edits() -> float:
        found = why.slices_of(home, "run", "edit_rate", 3, reference=(0,)).excess
        assert found is not None
        return found.after

    first = edits()
    with home.lake.connect(["observations"], [3]) as connection:
        table = connection.execute("SELECT * FROM observations WHERE edited").to_arrow_table()
    home.lake.write_observations(table, 3)
    assert first < edits() == 1


# -- terms -----------------------------------------------------------------------------------------------------------


def test_terms_of_a_slice_are_the_pressures_of_all_its_rows_and_add_up_to_the_reward(home: Observatory) -> None:
    place = ("clarification_rate", "predicted_failure=high")
    found = why.terms_of(home, "run", *place)
    assert isinstance(found, why.TermsOf)
    assert found.cycles == (0, 1, 2, 3)
    assert found.reward is not None
    assert found.outcome is not None
    table = pressures(home.lake, found.cycles, {NAIVE: bundled("naive")})
    known = {row["kind"]: row for row in table.to_pylist() if (row["statistic"], row["slice"]) == place}
    for push in (found.reward, found.outcome, *found.terms, *found.rules):
        # Pooled cycle by cycle: rates agree to the last digits, intervals nearly.
        if push.name != "outcome":
            assert push.value == pytest.approx(known[push.name]["value"], abs=1e-9)
        assert push.low == pytest.approx(known[push.name]["low"], abs=5e-3)
    assert {push.name for push in found.terms} == {name for name in known if name.startswith("term:")}
    assert sum(push.value or 0.0 for push in found.terms) == pytest.approx(found.reward.value)
    sizes = [abs(push.value or 0.0) for push in found.terms]
    assert sizes == sorted(sizes, reverse=True)


def test_a_statistic_without_pressure_says_so(home: Observatory) -> None:
    found = why.terms_of(home, "run", "dissatisfied_rate", ALL, 2)
    assert isinstance(found, why.TermsOf)
    assert found.reward is None
    assert "pressure is not taken" in found.why
    empty = why.terms_of(home, "run", "edit_rate", ALL, -1)
    assert isinstance(empty, why.TermsOf)
    assert "no cycle" in empty.why


# -- the mean reward -------------------------------------------------------------------------------------------------


def test_parts_of_the_mean_reward_add_up_to_its_change_exactly(home: Observatory) -> None:
    found = why.reward_between(home, "run", (0, 1), 3).change
    assert found is not None
    before, after = ([row for row in observed(home, *cycles) if row["reward"] is not None] for cycles in ((0, 1), (3,)))
    trained = [[row["reward"] for row in rows if row["included"] is not False] for rows in (before, after)]
    assert found.before == pytest.approx(sum(trained[0]) / len(trained[0]), abs=1e-12)
    assert found.after == pytest.approx(sum(trained[1]) / len(trained[1]), abs=1e-12)
    parts = [found.mix, *(item.part for item in found.terms), *(item.part for item in found.left_out)]
    assert sum(parts) == pytest.approx(found.total, abs=1e-12)
    assert abs(found.total) > 1e-3
    weights = {term.name: term.weight for term in bundled("naive").terms}
    assert {item.name for item in found.terms} == set(weights)
    shares = [{name: sum(cell(row) == name for row in rows) / len(rows) for name in map(cell, before + after)}
              for rows in (before, after)]  # fmt: skip
    for item in found.terms:

        def level(rows: list[dict[str, Any]], name: str, term: str = item.name) -> float:
            here = [weights[term] * (row[f"term:{term}"] or 0.0) for row in rows if cell(row) == name]
            return sum(here) / len(here)

        within = sum(
            (shares[0][name] + shares[1][name]) / 2 * (level(after, name) - level(before, name)) for name in shares[0]
        )
        assert item.part == pytest.approx(within, abs=1e-12)
        assert item.note == ""


def test_what_a_reason_leaves_out_is_what_the_mean_would_be_without_it(home: Observatory) -> None:
    found = why.reward_between(home, "run", (0, 1), 3).change
    assert found is not None
    (rule,) = found.left_out
    assert rule.reason == "invalid_tool_call"

    def added(*cycles: int) -> tuple[float, int]:
        rows = [row for row in observed(home, *cycles) if row["reward"] is not None]
        kept = [row["reward"] for row in rows if row["included"] is not False]
        everything = [row["reward"] for row in rows]
        return sum(kept) / len(kept) - sum(everything) / len(everything), len(rows) - len(kept)

    assert rule.part == pytest.approx(added(3)[0] - added(0, 1)[0], abs=1e-12)
    assert (rule.n_before, rule.n_after) == (added(0, 1)[1], added(3)[1])


def test_another_reward_is_said_beside_its_terms(home: Observatory) -> None:
    """Cycle 3 is scored anew by a reward with one weight changed and one term gone."""
    naive = bundled("naive")
    first, second, *rest = naive.terms
    other = naive.model_copy(update={"terms": (first.model_copy(update={"weight": first.weight * 3}), *rest)})
    with home.lake.connect(["observations"], [3]) as connection:
        facts = connection.execute("SELECT * FROM observations").to_arrow_table().select(FACTS.names)
    home.lake.write_observations(score(facts.cast(FACTS), other), 3)
    register(home.store, other, text=None, reason="try", actor="ann")
    found = why.reward_between(home, "run", (0, 1), 3).change
    assert found is not None
    notes = {item.name: item.note for item in found.terms}
    assert notes[first.name] == f"weight {first.weight:g} -> {first.weight * 3:g}"
    assert notes[second.name] == "gone"
    assert all(notes[term.name] == "" for term in rest)
    parts = [found.mix, *(item.part for item in found.terms), *(item.part for item in found.left_out)]
    assert sum(parts) == pytest.approx(found.total, abs=1e-12)


def test_rewards_that_no_spec_explains_are_unattributed_and_still_add_up(home: Observatory) -> None:
    found = reward_change(home.lake, [0], [3], {})
    assert found is not None
    assert [item.name for item in found.terms] == [UNATTRIBUTED]
    parts = [found.mix, *(item.part for item in found.terms), *(item.part for item in found.left_out)]
    assert sum(parts) == pytest.approx(found.total, abs=1e-12)


def test_a_mean_reward_without_an_end_says_so(home: Observatory) -> None:
    assert "not in the lake" in why.reward_between(home, "run", (0,), 9).why
    assert "not in the lake" in why.reward_between(home, "run", (3,), 3).why


# -- heat ------------------------------------------------------------------------------------------------------------


def test_a_heat_map_has_the_stores_values_less_the_slices_own_level(home: Observatory) -> None:
    points = measure(home.lake, range(CYCLES))
    home.store.statistics.write("run", points)
    found = why.heat_of(home, "run", "clarification_rate", 3, reference=(0, 1))
    assert found.cycles == (0, 1, 2, 3)
    assert found.slices[0] == ALL
    at = {(item.slice, item.cycle): item for item in found.cells}
    known = {(each.slice, each.cycle): each for each in points if each.statistic == "clarification_rate"}
    assert set(at) == set(known)
    for (slice_, cycle), item in at.items():
        base = [known[slice_, each] for each in (0, 1)]
        level = sum((each.value or 0.0) * each.n for each in base) / sum(each.n for each in base)
        assert item.change == pytest.approx((known[slice_, cycle].value or 0.0) - level)
        assert item.status == ("reference" if cycle < 2 else "ok")
        assert (item.p is None) == (cycle < 2)


def test_a_change_survives_where_it_is_large_and_a_small_slice_is_not_tested() -> None:
    def point(slice_: str, cycle: int, value: float, n: int = 400) -> Statistic:
        half = 1.96 * (value * (1 - value) / n) ** 0.5
        return Statistic(cycle, slice_, "edit_rate", value, value - half, value + half, n, "ok", None)

    base = [point(name, cycle, 0.5 + 0.01 * (-1) ** cycle) for name in ("a", "b", "c") for cycle in range(8)]
    late = [point("a", 8, 0.9), point("b", 8, 0.51), point("c", 8, 0.9, n=20)]
    none = Statistic(8, "d", "edit_rate", None, None, None, 0, "no data", None)
    found = {item.slice: item for item in slice_changes([*base, *late, none], range(8), [8])}
    assert found["a"].survives
    assert not found["b"].survives
    assert found["b"].p is not None
    assert (found["c"].status, found["c"].p, found["c"].survives) == ("few", None, False)
    assert (found["d"].status, found["d"].change) == ("no data", None)
    assert found["a"].change == pytest.approx(0.4)
    # t of 7 degrees of freedom: (0.9 - 0.5) / sqrt(0.015^2 + 0.025^2 / 8), from the binomial errors alone.
    own, base_error = (0.9 * 0.1 / 400) ** 0.5, (0.25 / 400 / 8) ** 0.5
    assert found["a"].p == pytest.approx(2 * stats.t.sf(0.4 / (own**2 + base_error**2) ** 0.5, 7), rel=0.01)


def test_noise_between_cycles_widens_the_error() -> None:
    def series(spread: float) -> list[Statistic]:
        values = [0.5 + spread * (-1) ** cycle for cycle in range(8)] + [0.6]
        return [Statistic(cycle, "a", "x", value, value - 0.02, value + 0.02, 400, "ok", None)
                for cycle, value in enumerate(values)]  # fmt: skip

    quiet, wild = (slice_changes(series(spread), range(8), [8])[0] for spread in (0.001, 0.08))
    assert quiet.survives
    assert not wild.survives


# -- what lasts ------------------------------------------------------------------------------------------------------


def test_a_curve_is_lifelines_and_its_interval_counts_users_once() -> None:
    rng = np.random.default_rng(3)
    until, lost = rng.exponential(1000.0, 300), rng.random(300) < 0.7
    users = np.arange(300)
    times = [0.0, 60.0, 500.0, 2000.0]
    found = curve(until, lost, users, times)
    fitted = KaplanMeierFitter().fit(until, lost)
    assert [step.share for step in found] == pytest.approx([float(fitted.predict(time)) for time in times])
    assert [step.at_risk for step in found] == [int((until >= time).sum()) for time in times]
    interval = fitted.confidence_interval_survival_function_.loc[:500.0].iloc[-1]
    assert (found[2].low, found[2].high) == pytest.approx(tuple(interval), abs=0.004)
    # The same rows twice, of the same users, say no more than once.
    twice = curve(np.tile(until, 2), np.tile(lost, 2), np.tile(users, 2), times)
    assert twice[2].share == pytest.approx(found[2].share)
    assert (twice[2].low, twice[2].high) == pytest.approx((found[2].low, found[2].high), rel=1e-6)
    assert found[0].low is None
    assert len(curve(until, lost, users, [until.max() + 1])) in (0, 1)


def test_persistence_of_a_slice_is_that_of_its_rows(home: Observatory) -> None:
    def expected(rows: list[dict[str, Any]]) -> float:
        until = [row["edit_lost_s"] if row["edit_lost_s"] is not None else row["watched_s"] for row in rows]
        fitted = KaplanMeierFitter().fit(until, [row["edit_lost_s"] is not None for row in rows])
        return float(fitted.predict(5400.0))

    edits = [row for row in observed(home, 2, 3) if row["edited"]]
    for slice_, rows in (
        (ALL, edits),
        (
            "predicted_failure=high,ambiguity=clear",
            [row for row in edits if cell(row) == "predicted_failure=high,ambiguity=clear"],
        ),
    ):
        found = why.persistence_of(home, (2, 3), slice_)
        assert found.edits == len(rows)
        assert {step.at: step.share for step in found.steps}[5400.0] == pytest.approx(expected(rows))
    assert why.persistence_of(home, (9,)) == why.Persistence((), 0, ())
    with pytest.raises(ValueError, match="no slice of bands"):
        why.persistence_of(home, (3,), "organisation=x' OR true --")


# -- alarms and the command ------------------------------------------------------------------------------------------


@pytest.fixture
def alarmed(home: Observatory) -> Observatory:
    """The same with a finding of cycle 3."""
    home.store.statistics.write("run", measure(home.lake, range(CYCLES)))
    finding = Finding("behaviour", "blocks", "questions rose", statistic="clarification_rate",
                      slice="predicted_failure=high", before=0.2, after=0.4, reading="reward_hack")  # fmt: skip
    home.store.findings.write("run", 3, [finding])
    return home


def test_an_alarm_is_found_by_its_id_and_by_the_start_of_it(alarmed: Observatory) -> None:
    (stored,) = alarmed.store.findings.read("run", 3)
    for name in (stored.finding_id, stored.finding_id[:8]):
        found = why.subject_of(alarmed, "run", name)
        assert found is not None
        assert (found.finding.statistic, found.cycle) == ("clarification_rate", 3)
    for name in ("1", "abc", "zzzzzzzz", "", "9" * 30, "³"):
        assert why.subject_of(alarmed, "run", name) is None
    assert why.subject_of(alarmed, "other", stored.finding_id) is None


def test_the_command_says_what_the_service_says(alarmed: Observatory) -> None:
    (stored,) = alarmed.store.findings.read("run", 3)
    arguments = ["why", stored.finding_id, "--from", "0", "--from", "1", "--home", str(alarmed.home)]
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0, (done.output, done.exception)
    told = json.loads(done.stdout)
    slices = why.slices_of(alarmed, "run", "clarification_rate", 3, reference=(0, 1)).excess
    assert slices is not None
    assert [item["share"] for item in told["slices"]["excess"]["slices"]] == [item.share for item in slices.slices]
    assert told["terms"]["slice"] == "predicted_failure=high"
    assert told["reward"]["change"]["mix"] == why.reward_between(alarmed, "run", (0, 1), 3).change.mix  # type: ignore[union-attr]
    assert told["persistence"][1]["cycles"] == [3]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0
    assert "other requests (mix)" in shown.stdout
    assert slices.slices[0].slice in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "code"),
    [([], 2), (["x", "--stat", "edit_rate"], 2), (["--stat", "edit_rate", "--by", "user"], 2), (["nobody"], 3),
     (["--stat", "no_such"], 3), (["--stat", "edit_rate", "--to", "99"], 3)],
)  # fmt: skip
def test_the_command_says_what_is_wrong(home: Observatory, arguments: list[str], code: int) -> None:
    done = CliRunner().invoke(app, ["why", *arguments, "--home", str(home.home)])
    assert done.exit_code == code, done.output


# -- what is kept ----------------------------------------------------------------------------------------------------


def test_a_slow_answer_is_pending_then_there_and_made_once() -> None:
    kept, go, made = Kept(2), threading.Event(), []

    def slow() -> int:
        go.wait(30)
        made.append(1)
        return 7

    assert isinstance(kept.ask("a", slow, wait_s=0.01), Pending)
    assert isinstance(kept.ask("a", slow, wait_s=0.0), Pending)
    go.set()
    assert kept.ask("a", slow, wait_s=None) == 7
    assert kept.ask("a", slow) == 7
    assert made == [1]


def test_what_fails_is_raised_and_tried_again_and_only_the_newest_answers_are_kept() -> None:
    kept, made = Kept(2), []

    def fail() -> int:
        made.append("fail")
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            kept.ask("bad", fail, wait_s=None)
    assert made == ["fail", "fail"]

    def make(name: str) -> str:
        made.append(name)
        return name

    for name in ("a", "b", "a", "c", "a", "b"):
        assert kept.ask(name, partial(make, name), wait_s=None) == name
    assert made[2:] == ["a", "b", "c", "b"]
