"""The rule on evidence of which it is known what must come out."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palomar.data.errors import ConfigError
from palomar.detectors.experiment import Effect, ExperimentReport, Validity
from palomar.trainer.gate_policy import PolicyText, read_policy
from palomar.trainer.promotion import (
    Case,
    CheckEvidence,
    CycleEvidence,
    Evidence,
    Outcome,
    Paired,
    Told,
    _judged,
    decide,
    not_worse,
    same,
)

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
POLICY = """
name: toy
suites:
  s:
    guardrails:
      solved: {champion: 0.05, anchor: 0.10}
    two_way:
      size: {champion: 0.5}
success:
  - {suite: s, metric: solved, against: milestone}
neutral_in_a_row: 2
"""
LIVE = """
name: live
check: {cycle: false, candidate: false}
incidents: false
experiment:
  guardrails:
    kept: {champion: 0.02, anchor: 0.04}
  two_way:
    asked: {champion: 0.1, relative: true}
success:
  - {metric: kept}
"""


def pair(
    metric: str = "solved", against: str = "champion", effect: float = 0.0, error: float | None = 0.01, **more: Any
) -> Paired:
    given: dict[str, Any] = {
        "suite": "s",
        "metric": metric,
        "against": against,
        "other": f"the-{against}",
        "better": "none" if metric == "size" else "up",
        "kind": "mean" if metric == "size" else "share",
        "tasks": 400,
        "clusters": 40,
        "candidate_value": 0.5 + effect,
        "other_value": 0.5,
        "effect": effect,
        "error": error,
    }
    return Paired(**{**given, **more})


def suites(**effects: float) -> tuple[Paired, ...]:
    given = {"champion": 0.0, "anchor": 0.0, "milestone": 0.0, "size": 0.0, **effects}
    solved = [pair(against=name, effect=given[name]) for name in ("champion", "anchor", "milestone")]
    return (*solved, pair("size", effect=given["size"]))


def evidence(**change: Any) -> Evidence:
    given: dict[str, Any] = {
        "run_id": "r",
        "candidate": "new",
        "status": "candidate",
        "champion": "old",
        "anchor": "base",
        "milestone": "base",
        "digests_match": True,
        "cycle": CycleEvidence(
            cycle=9, ledger_adds_up=True, offered=100, reward_invalid=0, reward_waiting=5, largest_lag=1
        ),
        "cycle_check": CheckEvidence(verdict="pass"),
        "candidate_check": CheckEvidence(verdict="pass", assessed=5),
        "incidents": (),
        "suites": suites(),
        "at": NOW,
    }
    return Evidence(**{**given, **change})


def ask(policy: str = POLICY, **change: Any) -> Outcome:
    return decide(evidence(**change), PolicyText(policy, "p.yaml").policy)


def test_nothing_worse_is_promoted_as_neutral_and_not_as_an_improvement() -> None:
    said = ask()
    assert (said.verdict, said.kind, said.reasons) == ("promote", "neutral", ("neutral",))
    assert all(check.result == "pass" for check in said.checks if check.part != "success")
    assert said.expires_at is None


def test_a_success_makes_it_improved_and_needs_no_budget() -> None:
    said = ask(suites=suites(milestone=0.03), neutral_in_a_row=99)
    assert (said.verdict, said.kind, said.reasons) == ("promote", "improved", ("improved:s:solved:milestone",))


def test_a_success_is_shown_by_its_bound_and_its_error_is_shared() -> None:
    assert ask(suites=suites(milestone=0.001)).kind == "neutral"
    # 1.85 standard errors: t(39) is 1.685 at 5 % and 2.023 at 2.5 %.
    assert ask(suites=suites(milestone=0.0185)).kind == "improved"
    two = POLICY.replace("success:", "success:\n  - {suite: s, metric: solved}")
    assert ask(two, suites=suites(milestone=0.0185)).kind == "neutral"
    assert ask(two, suites=suites(milestone=0.0205)).kind == "improved"


def test_neutral_promotions_in_a_row_end() -> None:
    assert ask(neutral_in_a_row=1).verdict == "promote"
    said = ask(neutral_in_a_row=2)
    assert (said.verdict, said.reasons) == ("hold", ("neutral_budget_spent",))
    assert said.expires_at == NOW + timedelta(hours=5)


def test_not_significantly_worse_is_not_shown_to_be_no_worse() -> None:
    # -0.02 with an error of 0.03: far from significant, and a loss of the margin (0.05) cannot be excluded.
    said = ask(suites=(pair(effect=-0.02, error=0.03), *suites()[1:]))
    assert (said.verdict, said.reasons) == ("hold", ("not_worse:s:solved:champion",))
    check = next(check for check in said.checks if check.code == "not_worse:s:solved:champion")
    assert (check.result, check.margin, check.n) == ("unknown", 0.05, 400)
    # t(39) at 5 % is 1.685: bound -0.0705, room 0.03 -> (0.0505/0.03)^2 - 1 = 1.84 times as many more.
    assert check.low == pytest.approx(-0.02 - 1.6849 * 0.03, abs=1e-4)
    assert check.more == math.ceil(400 * ((1.684875 * 0.03 / 0.03) ** 2 - 1))
    assert said.needed == (check.needed,)
    # With that many more tasks and the same difference, it is shown.
    grown = math.sqrt(400 / (400 + check.more))
    enough = pair(effect=-0.02, error=0.03 * grown, tasks=400 + check.more)
    assert ask(suites=(enough, *suites()[1:])).verdict == "promote"


def test_a_loss_that_is_shown_blocks_and_says_the_numbers() -> None:
    said = ask(suites=suites(champion=-0.04, anchor=-0.04))
    assert (said.verdict, said.reasons) == ("block", ("worse:s:solved:champion",))
    assert "50.0 % of the champion -> 46.0 % on the same 400 tasks (-4.0 points): a loss is shown" in said.sentence


def test_a_champion_that_is_shown_to_be_worse_is_to_be_rolled_back() -> None:
    said = ask(suites=suites(champion=-0.04), status="promoted")
    assert (said.verdict, said.reasons) == ("block", ("rollback", "worse:s:solved:champion"))
    assert said.sentence.startswith("it serves, and should be rolled back: solved")


def test_a_loss_to_the_anchor_within_its_margin_does_not_block_for_ever() -> None:
    # 20 standard errors below the anchor: certain, and harmless by the policy.
    assert ask(suites=suites(anchor=-0.08)).verdict == "promote"
    said = ask(suites=suites(anchor=-0.14))
    assert (said.verdict, said.reasons) == ("block", ("worse:s:solved:anchor",))
    assert ask(suites=suites(anchor=-0.105)).reasons == ("not_worse:s:solved:anchor",)


def test_the_error_of_blocking_by_suites_is_shared_by_all_comparisons() -> None:
    # One-sided p of 0.007 at t(39): below 1 %, and not below half of it, since two comparisons are made.
    said = ask(suites=suites(champion=-0.0257))
    check = next(check for check in said.checks if check.code == "worse:s:solved:champion")
    assert check.p == pytest.approx(2 * 0.0070, abs=2e-4)
    assert said.verdict == "promote"
    assert ask(suites=suites(champion=-0.028)).verdict == "block"


def test_a_tests_degrees_of_freedom_are_its_families_less_one() -> None:
    said = ask(suites=(pair(effect=-0.03, clusters=10), *suites()[1:]))
    found = {check.code: check for check in said.checks}
    assert found["worse:s:solved:champion"].p == pytest.approx(2 * 0.00747818, abs=1e-7)  # t(9) at -3, two comparisons
    assert found["not_worse:s:solved:champion"].low == pytest.approx(-0.03 - 1.833113 * 0.01, abs=1e-7)


def test_as_much_as_is_asked_for_is_enough() -> None:
    assert ask(suites=(pair(tasks=50, clusters=10, error=0.005), *suites()[1:])).verdict == "promote"
    edge = evidence().cycle.model_copy(update={"reward_invalid": 2, "reward_waiting": 20, "largest_lag": 1})
    assert ask(cycle=edge).verdict == "promote"


def test_what_a_policy_does_not_ask_does_not_count() -> None:
    fault = CheckEvidence(verdict="warn", findings=(FAULT,))
    assert ask(cycle_check=fault).verdict == "hold"
    assert ask(POLICY + "check: {cycle: false}\n", cycle_check=fault).verdict == "promote"
    noted = CheckEvidence(verdict="warn", findings=(FAULT.model_copy(update={"fault": False}),), assessed=5)
    assert ask(cycle_check=noted, candidate_check=noted).verdict == "promote"


def test_of_a_candidate_that_is_not_what_was_registered_no_suite_speaks() -> None:
    said = ask(digests_match=False, suites=suites(milestone=0.05))
    spoken = {check.code: check.result for check in said.checks if ":solved:" in check.code or ":size:" in check.code}
    assert set(spoken.values()) == {"unknown"}
    assert len(spoken) == 4


def test_lower_is_better_turns_the_sides() -> None:
    for change, verdict in ((0.02, "hold"), (-0.02, "promote")):
        wide = pair(effect=change, error=0.03, better="down")
        assert ask(suites=(wide, *suites()[1:])).verdict == verdict
    worse = tuple(each.model_copy(update={"better": "down"}) for each in suites(champion=0.04)[:3])
    assert ask(suites=(*worse, suites()[3])).reasons == ("worse:s:solved:champion",)
    better = tuple(each.model_copy(update={"better": "down"}) for each in suites(milestone=-0.04)[:3])
    assert ask(suites=(*better, suites()[3])).kind == "improved"


@pytest.mark.parametrize("change", [-0.6, 0.6])
def test_a_two_way_metric_must_stay_the_same_on_both_sides(change: float) -> None:
    assert ask(suites=suites(size=change)).reasons == ("not_same:s:size:champion",)
    assert ask(suites=suites(size=change / 2)).verdict == "promote"


FAULT = Told(id="f", code="c", sentence="outage", blocks=False, fault=True)
MISSING: list[tuple[str, Mapping[str, Any], str]] = [
    ("no pair", {"suites": suites()[1:]}, "not_worse:s:solved:champion"),
    ("no anchor", {"suites": (suites()[0], *suites()[2:])}, "not_worse:s:solved:anchor"),
    ("no error", {"suites": (pair(error=None), *suites()[1:])}, "not_worse:s:solved:champion"),
    ("no spread", {"suites": (pair(error=0.0), *suites()[1:])}, "not_worse:s:solved:champion"),
    ("few tasks", {"suites": (pair(tasks=49), *suites()[1:])}, "not_worse:s:solved:champion"),
    ("few families", {"suites": (pair(clusters=9), *suites()[1:])}, "not_worse:s:solved:champion"),
    ("other tasks", {"suites": (pair(why="other tasks"), *suites()[1:])}, "not_worse:s:solved:champion"),
    ("no direction", {"suites": (pair(better="none"), *suites()[1:])}, "not_worse:s:solved:champion"),
    ("no two-way", {"suites": suites()[:3]}, "not_same:s:size:champion"),
    ("no check", {"cycle_check": CheckEvidence(verdict=None)}, "check:cycle"),
    ("check in doubt", {"cycle_check": CheckEvidence(verdict="not_assessable")}, "check:cycle"),
    ("no candidate check", {"candidate_check": CheckEvidence(verdict=None)}, "check:candidate"),
    ("nothing assessed", {"candidate_check": CheckEvidence(verdict="pass", assessed=0)}, "check:candidate"),
    ("a check that blocks", {"cycle_check": CheckEvidence(verdict="block")}, "check:cycle"),
    ("incidents not asked", {"incidents": None}, "incidents"),
    ("an open incident", {"incidents": (Told(id="3", code="i", sentence="a hack", blocks=True),)}, "incidents"),
    ("held by the loop", {"held_by": ("reward_changed",)}, "reward_changed"),
    ("no ledger", {"cycle": evidence().cycle.model_copy(update={"ledger_adds_up": None})}, "invalid:ledger"),
    ("lost samples", {"cycle": evidence().cycle.model_copy(update={"ledger_adds_up": False})}, "invalid:ledger"),
    ("lag not known", {"cycle": evidence().cycle.model_copy(update={"largest_lag": None})}, "invalid:max_lag"),
    ("stale", {"cycle": evidence().cycle.model_copy(update={"largest_lag": 2})}, "invalid:max_lag"),
    ("scorers fail", {"cycle": evidence().cycle.model_copy(update={"reward_invalid": 3})}, "invalid:reward_valid"),
    ("immature", {"cycle": evidence().cycle.model_copy(update={"reward_waiting": 21})}, "invalid:reward_known_share"),
    ("size not known", {"cycle": evidence().cycle.model_copy(update={"offered": None})}, "invalid:reward_valid_share"),
    ("digest differs", {"digests_match": False}, "invalid:digests"),
    ("digest not known", {"digests_match": None}, "invalid:digests"),
    ("retired", {"status": "superseded"}, "invalid:retired"),
    ("no champion", {"champion": None}, "invalid:champion"),
    (
        "a fault",
        {"cycle_check": CheckEvidence(verdict="warn", findings=(FAULT,))},
        "invalid:measurement",
    ),
    ("a newer one and doubt", {"newer": "c10", "incidents": None}, "superseded"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "reason"), [row[1:] for row in MISSING], ids=[row[0] for row in MISSING])
def test_doubt_holds_and_never_passes(change: Mapping[str, Any], reason: str) -> None:
    said = ask(**change)
    assert said.verdict == "hold"
    assert said.reasons[0].startswith(reason)
    assert said.expires_at is not None
    better = ask(**{**change, "suites": change.get("suites", suites(milestone=0.05))})
    assert better.verdict == "hold", "no success makes up for doubt"


def test_what_was_seen_in_a_faulty_cycle_is_not_used_but_a_suite_is() -> None:
    hack = Told(id="f1", code="reward_hack:edit_rate", sentence="edits fell", blocks=True)
    check = CheckEvidence(verdict="block", findings=(hack,))
    assert ask(cycle_check=check).reasons[0] == "finding:reward_hack:edit_rate"
    faulty = evidence().cycle.model_copy(update={"ledger_adds_up": False})
    assert ask(cycle_check=check, cycle=faulty).reasons[0] == "invalid:ledger"
    assert ask(suites=suites(champion=-0.05), cycle=faulty).verdict == "block"
    assert ask(suites=suites(champion=-0.05), digests_match=False).verdict == "hold"


def test_a_candidates_own_finding_and_the_loops_block() -> None:
    hack = Told(id="f2", code="reward_hack:asked", sentence="asks more", blocks=True)
    assert ask(candidate_check=CheckEvidence(verdict="block", findings=(hack,), assessed=4)).verdict == "block"
    said = ask(blocked_by=(hack, hack))
    assert (said.verdict, said.reasons, said.sentence) == ("block", ("finding:reward_hack:asked",), "asks more")


@pytest.mark.parametrize(("value", "verdict"), [(1.0, "promote"), (0.5, "block"), (0.0, "block"), (None, "hold")])
def test_a_task_that_must_pass(value: float | None, verdict: str) -> None:
    policy = POLICY.replace("    two_way:", "    must_pass: {solved: [t1]}\n    two_way:")
    assert ask(policy, cases=(Case(suite="s", metric="solved", task="t1", value=value),)).verdict == verdict
    assert ask(policy).verdict == "hold"
    failed = (Case(suite="s", metric="solved", task="t1", value=0.0),)
    assert ask(policy, cases=failed, digests_match=False).verdict == "hold", "it is not known whose failure it is"
    assert ask(policy, cases=(Case(suite="s", metric="size", task="t1", value=1.0),)).verdict == "hold"


def test_a_newer_candidate_takes_the_place_of_a_hold_only() -> None:
    assert ask(newer="c10").verdict == "promote"


def test_a_loss_beyond_the_margin_is_failed_and_not_only_not_shown() -> None:
    results = {check.code: check.result for check in ask(suites=suites(anchor=-0.14, size=0.7)).checks}
    assert results["not_worse:s:solved:anchor"] == "fail"
    assert results["not_same:s:size:champion"] == "fail"
    # At the margin itself nothing is shown, on either side.
    assert [_judged(0.0, -0.05, high, 0.05, two_way=way) for high, way in ((0.01, False), (0.01, True))] == 2 * [
        "unknown"
    ]
    assert _judged(0.0, -0.01, 0.05, 0.05, two_way=True) == "unknown"
    assert _judged(-0.1, -0.2, -0.05, 0.05, two_way=False) == "unknown"


def test_each_kind_of_check_has_its_own_error() -> None:
    errors = "errors: {guardrail: 0.04, equivalence: 0.03, success: 0.02, suites: 0.015}\n"
    alphas = {check.code: check.alpha for check in ask(POLICY + errors).checks if check.alpha is not None}
    assert alphas == {
        "worse:s:solved:champion": 0.015,
        "worse:s:solved:anchor": 0.015,
        "not_worse:s:solved:champion": 0.04,
        "not_worse:s:solved:anchor": 0.04,
        "not_same:s:size:champion": 0.03,
        "s:solved:milestone": 0.02,
    }
    live = "errors: {guardrail: 0.04, equivalence: 0.03, success: 0.02, deterioration: 0.008}\n"
    found = ask(LIVE + live, experiment=report(), suites=()).checks
    assert {check.code: check.alpha for check in found if check.alpha is not None} == {
        "deteriorated:kept:champion": 0.004,
        "deteriorated:kept:anchor": 0.004,
        "not_worse:kept:champion": 0.04,
        "not_worse:kept:anchor": 0.04,
        "not_same:asked:champion": 0.03,
        "kept:champion": 0.02,
    }


# -- an experiment -------------------------------------------------------------------------------------------------


def effect(metric: str, control: str = "champion", value: float = 0.0, **more: Any) -> Effect:
    given: dict[str, Any] = {
        "metric": metric,
        "better": "none" if metric == "asked" else "up",
        "control": control,
        "treatment": "candidate",
        "effect": value,
        "low": None,
        "high": None,
        "relative": None,
        "relative_low": None,
        "relative_high": None,
        "units": {"champion": 10_000, "candidate": 10_000},
        "alpha": 0.05,
        "status": "known",
        "why": "",
        "values": {"champion": 0.5, "anchor": 0.5, "candidate": 0.5 + value},
        "error": 0.004,
        "planned": 20_000,
    }
    return Effect(**{**given, **more})


def report(*effects: Effect, **validity: str) -> ExperimentReport:
    given: dict[str, Any] = {"sample_ratio": "pass", **validity}
    checks = tuple(Validity(name, status, None, None, "") for name, status in given.items())
    arms = {"champion": "old", "anchor": "base", "candidate": "new"}
    whole = {(each.metric, each.control): each for each in (*EFFECTS, *effects)}
    return ExperimentReport("ab", arms, tuple(whole.values()), checks, NOW)


EFFECTS = (effect("kept"), effect("kept", "anchor"), effect("asked"))


def test_an_experiment_without_loss_passes_and_a_gain_is_a_success() -> None:
    assert ask(LIVE, experiment=report(), suites=()).kind == "neutral"
    assert ask(LIVE, experiment=report(effect("kept", value=0.02)), suites=()).kind == "improved"


@pytest.mark.parametrize(
    ("found", "verdict", "reason"),
    [
        (effect("kept", value=-0.03), "block", "deteriorated:kept:champion"),
        (effect("kept", value=-0.012), "hold", "not_worse:kept:champion"),
        (effect("kept", "anchor", value=-0.03), "hold", "not_worse:kept:anchor"),
        (effect("kept", "anchor", value=-0.07), "block", "deteriorated:kept:anchor"),
        (effect("kept", status="immature", why="2 % of edits are old enough"), "hold", "not_worse:kept:champion"),
        (effect("kept", status="too_few"), "hold", "not_worse:kept:champion"),
        (effect("kept", better="none"), "hold", "not_worse:kept:champion"),
        (effect("asked", value=0.06), "hold", "not_same:asked:champion"),
        (effect("asked", values=None), "hold", "not_same:asked:champion"),
    ],
)
def test_an_experiment_that_shows_or_does_not_show(found: Effect, verdict: str, reason: str) -> None:
    said = ask(LIVE, experiment=report(found), suites=())
    assert (said.verdict, said.reasons[0]) == (verdict, reason)


def test_a_metric_of_success_that_got_worse_blocks_though_it_is_no_guardrail() -> None:
    policy = LIVE.replace("- {metric: kept}", "- {metric: extra}")
    said = ask(policy, experiment=report(effect("extra", value=-0.05)), suites=())
    assert (said.verdict, said.reasons) == ("block", ("deteriorated:extra:champion",))
    assert [check.alpha for check in said.checks if check.part == "block"] == pytest.approx([0.01 / 3] * 3)


def test_a_hold_over_an_experiment_says_how_many_more_users_it_needs() -> None:
    checks = ask(LIVE, experiment=report(effect("kept", value=-0.012)), suites=()).checks
    found = next(check for check in checks if check.code == "not_worse:kept:champion")
    assert found.low is not None
    assert found.high is not None
    # What is between the effect and the bound must fall to what is between the effect and the margin: with the root.
    reach, room = (found.high - found.low) / 2, 0.02 - 0.012
    assert found.more == math.ceil(20_000 * ((reach / room) ** 2 - 1))
    assert found.needed == f"{found.more} more users, if the difference stays"


def test_a_relative_margin_is_of_the_controls_value() -> None:
    found = effect("asked", values={"champion": 0.3, "candidate": 0.9})
    checks = {check.code: check for check in ask(LIVE, experiment=report(found), suites=()).checks}
    assert checks["not_same:asked:champion"].margin == pytest.approx(0.03)
    assert checks["not_worse:kept:champion"].margin == 0.02


def test_an_experiments_metric_of_which_less_is_better() -> None:
    for value, verdict in ((0.03, "block"), (0.012, "hold"), (-0.03, "promote")):
        found = report(effect("kept", value=value, better="down"), effect("kept", "anchor", better="down"))
        assert ask(LIVE, experiment=found, suites=()).verdict == verdict


def test_an_experiment_that_is_missing_or_invalid_holds_whatever_it_says() -> None:
    assert ask(LIVE, suites=()).reasons[0] == "not_worse:kept:champion"
    worse = effect("kept", value=-0.05)
    assert ask(LIVE, experiment=report(worse, sample_ratio="fail"), suites=()).reasons[0] == "invalid:sample_ratio"
    assert ask(LIVE, experiment=report(exposure="unknown"), suites=()).reasons[0] == "invalid:exposure"
    gain = effect("kept", value=0.02)
    checks = ask(LIVE, experiment=report(gain, sample_ratio="fail"), suites=()).checks
    assert {check.result for check in checks if "kept" in check.code or "asked" in check.code} == {"unknown"}
    unchecked = replace(report(gain), validity=())
    assert ask(LIVE, experiment=unchecked, suites=()).reasons[0] == "invalid:experiment_validity"
    third = replace(report(), arms={"champion": "old", "anchor": "base", "candidate": "somebody"})
    assert ask(LIVE, experiment=third, suites=()).verdict == "hold", "somebody else was measured"
    other = ExperimentReport("ab", {"champion": "somebody", "candidate": "new"}, EFFECTS, report().validity, NOW)
    assert ask(LIVE, experiment=other, suites=()).verdict == "hold", "it compared with someone else"


def test_the_error_of_blocking_is_shared_by_the_metrics() -> None:
    said = ask(LIVE, experiment=report(), suites=())
    alphas = {check.code: check.alpha for check in said.checks if check.part == "block"}
    assert alphas == {"deteriorated:kept:champion": 0.005, "deteriorated:kept:anchor": 0.005}


# -- laws ----------------------------------------------------------------------------------------------------------

EFFECT = st.floats(-0.3, 0.3)


@settings(max_examples=150, deadline=None)
@given(champion=EFFECT, anchor=EFFECT, milestone=EFFECT, size=st.floats(-1, 1), error=st.floats(1e-4, 0.2))
def test_frozen_evidence_asked_again_gives_the_same_answer(**drawn: float) -> None:
    error = drawn.pop("error")
    pairs = tuple(each.model_copy(update={"error": error}) for each in suites(**drawn))
    given_ = evidence(suites=pairs)
    policy = PolicyText(POLICY, "p").policy
    said = decide(given_, policy)
    again = decide(Evidence.model_validate_json(given_.model_dump_json()), policy)
    assert again == said
    assert Outcome.model_validate_json(said.model_dump_json()) == said
    if said.verdict == "promote":
        assert all(check.result == "pass" for check in said.checks if check.part != "success")


@settings(max_examples=100, deadline=None)
@given(champion=EFFECT, loss=st.floats(0, 0.2), error=st.floats(1e-3, 0.1))
def test_a_worse_candidate_never_fares_better(champion: float, loss: float, error: float) -> None:
    rank = {"block": 0, "hold": 1, "promote": 2}

    def fares(value: float) -> int:
        return rank[ask(suites=(pair(effect=value, error=error), *suites()[1:])).verdict]

    assert fares(champion - loss) <= fares(champion)


def test_an_experiment_is_frozen_whole() -> None:
    given_ = evidence(experiment=report(effect("kept", value=0.01)))
    assert Evidence.model_validate_json(given_.model_dump_json()) == given_


# -- published answers ---------------------------------------------------------------------------------------------


def _known(folder: Path, file: str, name: str) -> dict[str, Any]:
    cases = json.loads((folder / f"{file}.json").read_text())["cases"]
    found: dict[str, Any] = next(case for case in cases if case["id"] == name)
    return found


def test_a_bound_of_a_guardrail_is_the_published_one(known_answers: Path) -> None:
    case = _known(known_answers, "non_inferiority", "ni_z_test_relative_margin")
    old, new = (case["inputs"][arm] for arm in ("control", "treatment"))
    shares = [arm["sum"] / arm["n"] for arm in (old, new)]
    error = math.sqrt(sum(p * (1 - p) / arm["n"] for p, arm in zip(shares, (old, new), strict=True)))
    low, shown = not_worse(shares[1] - shares[0], error, case["inputs"]["nim_relative"] * shares[0], 0.05)
    assert low == pytest.approx(case["expected"]["lower"], abs=1e-6)
    assert shown is case["expected"]["non_inferior"]


def test_equivalence_is_the_published_one(known_answers: Path) -> None:
    case = _known(known_answers, "non_inferiority", "tost_equivalence")
    gap = np.subtract(case["inputs"]["a"], case["inputs"]["b"])
    p = same(gap.mean(), gap.std(ddof=1) / math.sqrt(len(gap)), case["inputs"]["margin"], len(gap) - 1)
    assert p == pytest.approx((case["expected"]["p_lower"], case["expected"]["p_upper"]), abs=1e-9)


# -- policies ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["demo", "production"])
def test_a_bundled_policy_reads_and_its_version_is_what_it_says(name: str) -> None:
    first = read_policy(name)
    assert first.policy.version.startswith(f"{name}-")
    again = PolicyText(f"# another comment\n{first.text}", "x.yaml").policy
    assert again.version == first.policy.version
    assert PolicyText(first.text.replace("guardrail: 0.05", "guardrail: 0.04"), "x").policy.version != again.version
    assert "solved" in first.text.splitlines()[first.line("suites", "held-out-tasks", "guardrails", "solved") - 1]


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        (POLICY.replace("champion: 0.05", "champoin: 0.05"), 6, "suites.s.guardrails.solved.champoin"),
        (POLICY.replace("0.05", "-0.05"), 6, "suites.s.guardrails.solved.champion"),
        (POLICY.replace("{champion: 0.05, anchor: 0.10}", "{}"), 6, "suites.s.guardrails.solved"),
        (POLICY.replace("neutral_in_a_row: 2", "neutral_in_a_row: many"), 11, "neutral_in_a_row"),
        (POLICY.replace("{suite: s,", "{suite: t,"), 10, "success[0].suite"),
        (POLICY + "hold_hors: 3\n", 12, "hold_hors"),
        (LIVE.replace("  - {metric: kept}", "  - {metric: kept, against: milestone}"), 11, "success[0].against"),
    ],
)
def test_a_wrong_policy_is_refused_with_line_and_key(text: str, line: int, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        PolicyText(text, "p.yaml")
    assert (caught.value.line, caught.value.key) == (line, key)


def test_a_policy_that_asks_nothing_or_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="asks for no guardrail"):
        PolicyText("name: empty\nsuites: {s: {}}\n", "p.yaml")
    with pytest.raises(ConfigError, match="there are: demo, production"):
        read_policy("nothing")
