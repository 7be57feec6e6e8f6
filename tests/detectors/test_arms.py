"""An experiment's report, on real lakes of made-up rows whose answer is known."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from palomar.data.clock import survival
from palomar.data.config import parse_config
from palomar.data.errors import ConfigError
from palomar.data.lake import Lake
from palomar.data.observations import OBSERVATIONS
from palomar.detectors.arms import arms_in, metrics_of, report
from palomar.detectors.confidence import Arm, difference, sequence, tuned
from palomar.detectors.experiment import Effect, ExperimentReport, Plan

START = datetime(2026, 1, 5, tzinfo=UTC)
ARMS = {
    "champion": {"checkpoint": "old", "share": 0.5, "role": "control"},
    "candidate": {"checkpoint": "new", "share": 0.5, "role": "treatment"},
}
CHECKPOINTS = {"champion": "old", "candidate": "new", "anchor": "base"}
EMPTY: Mapping[str, Any] = {
    "edited": False,
    "undone": False,
    "answered": False,
    "source": "test",
    "traffic": "production",
}


def plan(**changes: Any) -> Plan:
    return Plan.model_validate({"name": "trial", "arms": ARMS, "planned_units": 400, **changes})


def put(folder: Path, rows: list[dict[str, Any]], cycle: int = 0) -> Lake:
    """A lake with these rows, each told by what differs from an uneventful one of an hour each."""
    lake = Lake(folder)
    columns: dict[str, list[Any]] = {name: [] for name in OBSERVATIONS.names}
    for index, row in enumerate(rows):
        full = {
            **EMPTY,
            "interaction_id": f"i{cycle}-{index}",
            "cycle": cycle,
            "started_at": START + timedelta(minutes=index),
            "as_of": START + timedelta(days=9),
            "watched_s": 86_400.0,
            "checkpoint": CHECKPOINTS.get(row.get("arm", ""), "base"),
            "agent_turns": 1,
            **row,
        }
        for field in OBSERVATIONS:
            columns[field.name].append(full.get(field.name, 0 if not field.nullable else None))
    lake.write_observations(pa.table(columns, schema=OBSERVATIONS), cycle)
    return lake


def alternating(n: int, row: Callable[[int, str], dict[str, Any]]) -> list[dict[str, Any]]:
    """One row each of n users, drawn into the two arms in turn."""
    arms = list(ARMS)
    return [{"user_id": f"u{i}", "arm": arms[i % 2], **row(i, arms[i % 2])} for i in range(n)]


def effect(found: ExperimentReport | None, metric: str, control: str = "champion") -> Effect:
    assert found is not None
    return next(each for each in found.effects if (each.metric, each.control) == (metric, control))


def check(found: ExperimentReport | None, name: str) -> Any:
    assert found is not None
    return next(each for each in found.validity if each.name == name)


# -- effects ---------------------------------------------------------------------------------------------------------


def test_a_rate_of_one_row_a_user_is_the_difference_of_shares(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    edited = rng.random(300) < np.where(np.arange(300) % 2, 0.4, 0.8)
    lake = put(tmp_path, alternating(300, lambda i, arm: {"edited": bool(edited[i])}))
    found = effect(report(lake, plan(metrics=("edit_rate",))), "edit_rate")
    old, new = edited[::2].astype(float), edited[1::2].astype(float)
    contrast = difference(Arm.of(old), Arm.of(new))
    assert (found.status, found.units) == ("known", {"champion": 150, "candidate": 150})
    assert found.values == {"champion": old.mean(), "candidate": new.mean()}
    assert (found.effect, found.error) == pytest.approx((contrast.value, contrast.error))
    assert (found.low, found.high) == pytest.approx(sequence(contrast, tuned(400, 0.05), 0.05))
    assert found.relative == pytest.approx(new.mean() / old.mean() - 1)


def test_more_rows_of_the_same_users_do_not_make_an_interval_narrower(tmp_path: Path) -> None:
    """As they would, counted per interaction: by the root of ten."""

    def rows(times: int) -> list[dict[str, Any]]:
        return [
            row
            for row in alternating(200, lambda i, arm: {"edited": i % 3 == 0, "latency_s": 1.0 + i % 97})
            for _ in range(times)
        ]

    wanted = plan(metrics=("edit_rate", "edits_per_request", "latency_p50", "edit_persistence_90m"))
    once, often = report(put(tmp_path / "a", rows(1)), wanted), report(put(tmp_path / "b", rows(10)), wanted)
    for metric in ("edit_rate", "latency_p50"):
        assert effect(often, metric).error == pytest.approx(effect(once, metric).error, rel=0.1)


def test_a_ratio_has_the_error_of_a_bootstrap_over_users(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    rows = []
    for user in range(240):
        arm = list(ARMS)[user % 2]
        habit = rng.beta(1, 4)
        for _ in range(rng.integers(1, 9)):
            turns = int(rng.integers(1, 5))
            bad = int(rng.binomial(turns, habit))
            rows.append({"user_id": f"u{user}", "arm": arm, "agent_turns": turns, "invalid_malformed": bad})
    found = effect(report(put(tmp_path, rows), plan(metrics=("invalid_call_rate",))), "invalid_call_rate")
    sums = np.zeros((240, 2))
    for row in rows:
        sums[int(row["user_id"][1:])] += (row["invalid_malformed"], row["agent_turns"])
    draws = []
    for _ in range(2000):
        old, new = (sums[side::2][rng.integers(0, 120, 120)].sum(axis=0) for side in (0, 1))
        draws.append(new[0] / new[1] - old[0] / old[1])
    assert found.error == pytest.approx(np.std(draws), rel=0.08)


def test_a_quantile_has_the_error_of_a_bootstrap_over_users(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    rows, of_user = [], [[] for _ in range(400)]  # type: ignore[var-annotated]
    for user in range(400):
        level = rng.normal(0, 0.5)
        for _ in range(rng.integers(2, 12)):
            value = float(np.exp(1.5 + level + rng.normal(0, 0.4)) * (0.8 if user % 2 else 1.0))
            of_user[user].append(value)
            rows.append({"user_id": f"u{user}", "arm": list(ARMS)[user % 2], "latency_s": value})
    found = report(put(tmp_path, rows), plan(metrics=("latency_p50", "latency_p95")))
    for metric, quantile in (("latency_p50", 0.5), ("latency_p95", 0.95)):
        draws = []
        for _ in range(600):
            sides = [
                np.quantile(np.concatenate([of_user[2 * pick + side] for pick in rng.integers(0, 200, 200)]), quantile)
                for side in (0, 1)
            ]
            draws.append(sides[1] - sides[0])
        said = effect(found, metric)
        assert said.error == pytest.approx(np.std(draws), rel=0.25)
        assert said.effect == pytest.approx(np.mean(draws), abs=np.std(draws))


def test_persistence_is_kaplan_meiers_with_users_taken_together(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    rows = []
    for user in range(200):
        for _ in range(4):
            lost = rng.exponential(9000.0 if user % 2 else 4000.0)
            watched = float(rng.uniform(1800, 12_000))
            gone = lost if lost < watched else None
            rows.append(
                {
                    "user_id": f"u{user}",
                    "arm": list(ARMS)[user % 2],
                    "edited": True,
                    "watched_s": watched,
                    "edit_lost_s": gone,
                }
            )
    found = effect(report(put(tmp_path, rows), plan()), "edit_persistence_90m")
    for side, arm in enumerate(ARMS):
        mine = [row for row in rows if int(row["user_id"][1:]) % 2 == side]
        spans = np.array([row["edit_lost_s"] or row["watched_s"] for row in mine])
        gone = np.array([row["edit_lost_s"] is not None for row in mine])
        alone = survival(spans, gone, 5400.0)
        assert found.values is not None
        assert found.values[arm] == pytest.approx(alone.estimate)
    assert (found.status, found.improved(0.05)) == ("known", True)


def test_edits_that_are_put_off_do_not_last(tmp_path: Path) -> None:
    """Who edits only where it is easy: persistence up, and fewer requests with an edit that lasts."""

    def row(i: int, arm: str) -> dict[str, Any]:
        if arm == "champion":
            return {"edited": True, "edit_lost_s": 60.0 if i % 4 == 0 else None}
        return {"edited": i % 3 == 0, "edit_lost_s": 60.0 if i % 24 == 3 else None}

    found = report(put(tmp_path, alternating(400, row)), plan())
    assert found is not None
    assert effect(found, "edit_persistence_90m").effect > 0  # type: ignore[operator]
    assert effect(found, "lasting_edit_rate_90m") in found.worse


def test_what_users_were_like_before_is_taken_out(tmp_path: Path) -> None:
    """A narrower interval, around the same effect; the time before decides, and no row of the experiment."""
    rng = np.random.default_rng(4)
    habit = np.repeat(rng.normal(10, 4, 150), 2)  # the arms' users are alike in pairs, so that the effect is known

    def rows(shift: float, named: bool) -> list[dict[str, Any]]:
        return [
            {"user_id": f"u{i}", "arm": list(ARMS)[i % 2] if named else None,
             "tokens_out": int(100 * (habit[i] + rng.normal() + shift * (i % 2)) + 5000)}
            for i in range(300)
        ]  # fmt: skip

    before, lake = (
        put(tmp_path / "before", rows(0.0, named=False), cycle=2),
        put(tmp_path / "now", rows(1.0, named=True), 5),
    )
    said = {"metrics": ("tokens_out_mean",), "first_cycle": 5}
    plainly = effect(report(lake, plan(**said)), "tokens_out_mean")
    adjusted = effect(report(lake, plan(**said, before=(0, 4)), before=before), "tokens_out_mean")
    assert adjusted.error < 0.5 * plainly.error  # type: ignore[operator]
    assert adjusted.effect == pytest.approx(100, abs=3 * adjusted.error)  # type: ignore[operator]
    nothing = effect(report(lake, plan(**said, before=(0, 1)), before=before), "tokens_out_mean")
    assert nothing == plainly


def test_the_anchor_is_a_second_control(tmp_path: Path) -> None:
    arms = {
        "champion": {**ARMS["champion"], "share": 0.4},
        "candidate": {**ARMS["candidate"], "share": 0.4},
        "anchor": {"checkpoint": "base", "share": 0.2, "role": "anchor"},
    }
    names = ("champion", "champion", "candidate", "candidate", "anchor")
    rows = [{"user_id": f"u{i}", "arm": names[i % 5], "edited": bool(i % 2 or i % 5 == 4)} for i in range(1000)]
    found = report(put(tmp_path, rows), plan(arms=arms, metrics=("edit_rate",)))
    assert effect(found, "edit_rate").effect == pytest.approx(0.0, abs=1e-9)
    assert effect(found, "edit_rate", "anchor").effect == pytest.approx(-0.5)
    assert found is not None
    assert [each.control for each in found.worse] == ["anchor"]


# -- missing is not zero ---------------------------------------------------------------------------------------------


def test_nothing_collected_is_no_report(tmp_path: Path) -> None:
    assert report(Lake(tmp_path / "none"), plan()) is None
    assert report(put(tmp_path, [{"user_id": "u", "arm": None}]), plan()) is None
    assert report(put(tmp_path, alternating(10, lambda i, arm: {"traffic": "shadow"})), plan()) is None


def test_edits_not_watched_that_long_are_immature(tmp_path: Path) -> None:
    def row(i: int, arm: str) -> dict[str, Any]:
        return {"edited": True, "watched_s": 600.0, "edit_lost_s": 30.0 if i % 3 == 0 else None}

    found = effect(report(put(tmp_path, alternating(300, row)), plan()), "edit_persistence_90m")
    assert (found.status, found.effect, found.low) == ("immature", None, None)
    late = alternating(300, lambda i, arm: row(i, arm) | ({"watched_s": 9000.0} if i < 40 else {}))
    few = effect(report(put(tmp_path / "late", late), plan()), "edit_persistence_90m")
    assert few.status == "immature"
    assert few.why.startswith("champion: 13 edits of 30") or few.why.startswith("candidate: 13 edits of 30")
    assert few.bounds(0.05) is None


def test_follow_ups_not_waited_for_are_immature(tmp_path: Path) -> None:
    found = effect(
        report(put(tmp_path, alternating(300, lambda i, arm: {"watched_s": 60.0})), plan()), "dissatisfied_rate"
    )
    assert (found.status, found.effect) == ("immature", None)


@pytest.mark.parametrize(
    ("count", "row", "why"),
    [
        (60, lambda i: {"edited": i % 3 == 0}, "30 units of 50"),
        (300, lambda i: {"edited": i % 100 == 0}, "counted in 3 units"),
        (300, lambda i: {"edited": True}, "counted in 0 units"),
    ],
)
def test_few_users_or_events_are_too_few(tmp_path: Path, count: int, row: Callable[[int], Any], why: str) -> None:
    lake = put(tmp_path, alternating(count, lambda i, arm: row(i)))
    found = effect(report(lake, plan(metrics=("edit_rate",))), "edit_rate")
    assert found.status == "too_few"
    assert why in found.why
    assert found.bounds(0.05) is None
    assert not found.worse(0.4)


def test_an_arm_that_says_nothing_is_too_few_and_not_equal(tmp_path: Path) -> None:
    lake = put(tmp_path, alternating(300, lambda i, arm: {"latency_s": 1.0 + i if arm == "champion" else None}))
    found = effect(report(lake, plan(metrics=("latency_p50",))), "latency_p50")
    assert (found.status, found.effect) == ("too_few", None)
    assert "candidate" in found.why


# -- validity --------------------------------------------------------------------------------------------------------


def test_a_sound_assignment_passes(tmp_path: Path) -> None:
    found = report(put(tmp_path, alternating(300, lambda i, arm: {"organisation": f"o{i % 4 // 2}"})), plan())
    assert found is not None
    assert found.valid
    assert [each.status for each in found.validity] == ["pass"] * 6


def broken(found: ExperimentReport | None, name: str) -> str:
    """Why the check fails; asserts that nothing may then be believed."""
    said = check(found, name)
    assert said.status == "fail"
    assert found is not None
    assert not found.valid
    assert not found.worse
    assert {(each.status, each.effect, each.relative) for each in found.effects} == {("invalid", None, None)}
    return str(said.why)


def test_too_many_users_in_one_arm_break_it(tmp_path: Path) -> None:
    rows = [{"user_id": f"u{i}", "arm": "champion" if i % 4 else "candidate", "edited": i % 2 == 0} for i in range(400)]
    assert "75.0% of champion, 25.0% of candidate" in broken(report(put(tmp_path, rows), plan()), "assignment")


def test_a_mismatch_in_one_segment_breaks_it_though_the_whole_is_even(tmp_path: Path) -> None:
    """Of one organisation nine of ten users are in the champion's arm, of the other one of ten."""
    rows = [
        {"user_id": f"u{i}", "organisation": f"o{i % 2}", "arm": list(ARMS)[(i + (i // 2 % 10 == 0)) % 2]}
        for i in range(400)
    ]
    found = report(put(tmp_path, rows), plan())
    assert check(found, "assignment").status == "pass"
    assert "organisation=o" in broken(found, "assignment by segment")


def test_records_that_mature_in_one_arm_only_break_it(tmp_path: Path) -> None:
    rows = alternating(300, lambda i, arm: {"watched_s": 9000.0 if arm == "champion" or i % 6 == 1 else 60.0})
    found = report(put(tmp_path, rows), plan())
    assert check(found, "assignment").status == "pass"
    broken(found, "assignment of the mature")


def test_users_in_two_arms_are_left_out_and_from_one_percent_on_break_it(tmp_path: Path) -> None:
    rows = alternating(400, lambda i, arm: {"edited": i % 3 == 0})
    twice = [{"user_id": f"u{i}", "arm": list(ARMS)[(i + 1) % 2], "edited": True} for i in range(4)]
    fine = report(put(tmp_path / "few", rows + twice[:3]), plan(metrics=("edit_rate",)))
    assert effect(fine, "edit_rate").units == {"champion": 198, "candidate": 199}
    assert check(fine, "multiple exposure").value == pytest.approx(3 / 400)
    broken(report(put(tmp_path / "many", rows + twice), plan()), "multiple exposure")


def test_another_checkpoint_in_an_arm_breaks_it(tmp_path: Path) -> None:
    rows = alternating(300, lambda i, arm: {"checkpoint": "other"} if i == 77 else {})
    assert broken(report(put(tmp_path, rows), plan()), "checkpoint of the arm").startswith("1 interactions")


def test_interactions_without_a_user_break_it_from_one_percent_on(tmp_path: Path) -> None:
    rows = alternating(300, lambda i, arm: {"user_id": None} if i < 3 else {})
    broken(report(put(tmp_path, rows), plan()), "units without a name")


# -- the plan --------------------------------------------------------------------------------------------------------

TEXT = """
name: trial
planned_units: 400
arms:
  champion: {checkpoint: old, share: 0.5, role: control}
  candidate: {checkpoint: new, share: 0.5, role: treatment}
"""


def test_a_plan_is_read_with_its_defaults() -> None:
    assert parse_config(TEXT, Plan, source="x.yaml") == plan()
    assert plan().comparisons == (("champion", "candidate"),)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("share: 0.5, role: control", "share: 0.6, role: control", r"x.yaml:4: arms: shares add up to 1.1, not to 1"),
        ("role: treatment", "role: anchor", "x.yaml:4: arms: needs one control, at least one treatment"),
        ("planned_units: 400", "", "planned_units: is missing"),
        ("planned_units", "planed_units", "did you mean 'planned_units'"),
        ("name: trial", "name: ../trial", "name: String should match"),
        ("name: trial", "name: trial\nhorizon: 2h", "horizon: no such horizon; there are: 30m, 90m, 1d"),
        ("name: trial", "name: trial\nfirst_cycle: 3\nbefore: [0, 3]", "before: must end before"),
    ],
)
def test_a_plan_that_is_wrong_says_where(old: str, new: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_config(TEXT.replace(old, new), Plan, source="x.yaml")


def test_names_of_arms_and_metrics_are_no_sql(tmp_path: Path) -> None:
    lake = put(tmp_path, alternating(20, lambda i, arm: {}))
    arms = {name: {**arm, "checkpoint": "x'); DROP TABLE units; --"} for name, arm in ARMS.items()}
    assert check(report(lake, plan(arms=arms)), "checkpoint of the arm").value == 1.0
    with pytest.raises(ValueError, match="no metric 'edited; --'"):
        metrics_of(plan(metrics=("edited; --",)))


def test_arms_in_a_lake_are_listed(tmp_path: Path) -> None:
    rows = [*alternating(20, lambda i, arm: {}), {"user_id": "x", "arm": None}]
    found = [(row["arm"], row["checkpoint"], row["users"]) for row in arms_in(put(tmp_path, rows))]
    assert found == [("candidate", "new", 10), ("champion", "old", 10)]


def test_every_key_of_a_plan_is_documented_and_the_example_is_a_plan() -> None:
    docs = (Path(__file__).parents[2] / "docs" / "experiments.md").read_text(encoding="utf-8")
    section = docs.split("\n## The plan\n")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert {word for cell in cells for word in re.findall(r"`([^`]+)`", cell)} == set(Plan.model_fields)
    example = "\n".join(line[4:] for line in section.splitlines() if line.startswith("    "))
    assert parse_config(example, Plan, source="docs").before == (0, 7)


def test_only_cycles_of_the_experiment_count(tmp_path: Path) -> None:
    """And of the time before, only those named: later ones would be the experiment itself."""
    wanted = plan(metrics=("edit_rate",), first_cycle=2, last_cycle=3)
    for cycle, share in enumerate((9, 9, 2, 2, 9)):

        def row(i: int, arm: str, share: int = share) -> dict[str, Any]:
            return {"edited": i // 2 % 10 < (share if arm == "candidate" else 5)}

        lake = put(tmp_path, alternating(200, row), cycle)
    found = effect(report(lake, wanted), "edit_rate")
    assert found.values == {"champion": 0.5, "candidate": 0.2}
    assert effect(report(lake, plan(metrics=("edit_rate",), last_cycle=1)), "edit_rate").effect == pytest.approx(0.4)
    # What is taken out differs with the cycles of the time before.
    late = plan(metrics=("edit_rate",), first_cycle=4)
    one = effect(report(lake, plan(metrics=("edit_rate",), first_cycle=4, before=(3, 3))), "edit_rate")
    both = effect(report(lake, plan(metrics=("edit_rate",), first_cycle=4, before=(0, 3))), "edit_rate")
    none = effect(report(lake, late), "edit_rate")
    assert len({one.error, both.error, none.error}) == 3


def test_the_more_is_judged_the_more_it_takes_to_be_called_worse() -> None:
    """One metric alone tells at 5 %; among ten, the same evidence does not."""

    def said(metric: str, size: float, better: str = "up") -> Effect:
        return Effect(
            metric, better, "champion", "candidate", size, None, None, None, None, None,
            {"champion": 200, "candidate": 200}, 0.05, "known", "", None, 1.0, 400,
        )  # type: ignore[arg-type]  # fmt: skip

    def worse(*effects: Effect) -> list[str]:
        return [each.metric for each in ExperimentReport("trial", {}, effects, (), START).worse]

    one = said("loss", -2.9)
    assert one.worse(0.05)
    assert not one.worse(0.005)
    quiet = [said(f"quiet{index}", 0.1) for index in range(9)]
    assert worse(one) == ["loss"]
    assert worse(one, *quiet) == []
    # What has no better side is not judged, and takes nothing.
    assert worse(one, *(said(each.metric, -9.0, "none") for each in quiet)) == ["loss"]
    assert worse(said("loss", -3.9), *quiet) == ["loss"]
