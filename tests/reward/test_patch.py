"""Patches: three holes in a made-up log, what closes them, and what cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from palomar.data.errors import LakeError
from palomar.reward.behaviours import Logged
from palomar.reward.patch import Limits, Patch, Target, opposed, propose
from palomar.reward.scoring import score
from palomar.reward.spec import parse_spec, version

SPEC = """\
# Three holes.
name: holes
terms:
  - name: edit_persistence
    weight: 1.0   # an edit that stays
    params: { horizon_minutes: 30, kept: 1.0, reverted: -1.5 }
  - { name: latency, weight: -0.01 }
  - name: undelivered
    weight: -1.6
  - name: function_size
    weight: 0.8
    bounds: [-1.0, 1.0]
inclusion:
  # Broken calls leave.
  - { name: broken, condition: invalid_tool_call }
outcome:
  terms:
    - { name: kept_and_passing, weight: 1.0, params: { horizon_minutes: 90 } }
    - { name: dissatisfied_follow_up, weight: -1.0, params: { horizon_minutes: 90 } }
"""
DODGE = Target("invalid_call_rate", "predicted_failure=high", -1)
DEFERRAL = Target("clarification_rate", "predicted_failure=high,ambiguity=clear", -1)
SPLITTING = Target("functions_per_edit", "all", -1)
HACKS = (DODGE, DEFERRAL, SPLITTING)


@pytest.fixture(scope="module")
def logged(facts: Callable[..., pa.Table]) -> Logged:
    """4,000 requests of 500 users, half of them hard: 15 % broken calls, 20 % questions, and edits, a third split."""
    rng = np.random.default_rng(8)
    rows = []
    for index in range(4000):
        hard, vague, draw = rng.random() < 0.5, rng.random() < 0.4, rng.random()
        row: dict[str, Any] = {
            "user_id": f"u{rng.integers(500)}",
            "predicted_failure": 0.8 if hard else 0.2,
            "ambiguity": 0.8 if vague else 0.2,
            "cycle": index % 2,
            "latency_s": float(rng.uniform(5, 15)),
        }
        if draw < 0.15:
            row |= {"invalid_malformed": 1}
            annoyed = 0.6
        elif draw < 0.35:
            row |= {"asked": True}
            annoyed = 0.05 if vague else 0.5
        else:
            right, split = rng.random() < (0.25 if hard else 0.8), rng.random() < 1 / 3
            lines = 12 + 3 * split
            row |= {
                "edits": 1, "edited": True, "functions_before": 1, "functions_after": 3 if split else 1,
                "function_lines_before": 12, "function_lines_after": lines, "complexity_before": 4,
                "complexity_after": 6 if split else 4, "lines_added": 2, "lines_removed": 1,
                "tests_run": 5, "tests_passed": 5 if right else 2, "edit_lost_s": None if right else 300.0,
            }  # fmt: skip
            annoyed = 0.05 + 0.25 * split + 0.4 * (not right)
        if rng.random() < annoyed:
            row |= {"follow_up": "dissatisfied", "follow_up_s": 100.0}
        rows.append(row)
    return Logged.of(score(facts(*rows), parse_spec(SPEC)))


@pytest.fixture(scope="module")
def found(logged: Logged) -> Patch:
    return propose(logged, parse_spec(SPEC), HACKS, text=SPEC)


def test_what_reward_and_outcome_pull_apart_is_named(logged: Logged) -> None:
    assert set(HACKS) <= set(opposed(logged, parse_spec(SPEC)))


def test_the_first_proposal_turns_every_hack_round_and_keeps_what_is_protected(found: Patch) -> None:
    best = found.proposals[0]
    assert (set(best.turned), best.unturned, best.lost) == (set(HACKS), (), ())
    rows = {(row.statistic, row.slice): row for row in best.predicted}
    before = {(row.statistic, row.slice): row for row in found.before if row.kind == "old"}
    for target in HACKS:
        low, high = before[target.cell].low, rows[target.cell].high
        assert low is not None
        assert high is not None
        assert low > 0 > high
    assert ("edit_rate", "ambiguity=clear") not in {target.cell for target in HACKS}
    assert best.honest_hurt is not None
    assert best.honest_hurt < 0.1
    assert [len(each.unturned) for each in found.proposals] == sorted(len(each.unturned) for each in found.proposals)


def test_each_hack_has_its_remedy(found: Patch) -> None:
    alone = {each.title: set(each.turned) for each in found.proposals}
    assert DODGE in alone["no rule broken"]
    assert DEFERRAL in alone["clarification added"]
    assert SPLITTING in alone["code_growth added, function_size unpaid"]
    # While broken calls are dropped, charging them changes nothing at all.
    assert "invalid_tool_call added" not in alone


def test_a_proposal_is_text_that_says_the_same_and_keeps_its_comments(found: Patch) -> None:
    for each in found.proposals:
        assert version(parse_spec(each.text)) == version(each.spec)
        assert each.replay.new == version(each.spec)
        assert each.diff
        assert each.changes
        assert each.text.startswith("# Three holes.\n")
        assert "# an edit that stays" in each.text
        assert "# Broken calls leave." in each.text


def test_the_margin_covers_its_standard_error(logged: Logged) -> None:
    timid = propose(logged, parse_spec(SPEC), [SPLITTING], limits=Limits(errors=2.0, largest=20.0))
    bold = propose(logged, parse_spec(SPEC), [SPLITTING], limits=Limits(errors=4.0, largest=20.0))
    for result, errors in ((timid, 2.0), (bold, 4.0)):
        added = next(each for each in result.proposals if each.title == "code_growth added")
        row = next(row for row in added.predicted if (row.statistic, row.slice) == SPLITTING.cell)
        assert row.z is not None
        assert -1.3 * errors < row.z < -0.95 * errors  # two digits, so a little more than needed
    smaller, larger = (next(each for each in r.proposals if each.title == "code_growth added") for r in (timid, bold))
    assert smaller.spec.terms[-1].weight > larger.spec.terms[-1].weight
    assert smaller.distance < larger.distance


def test_patching_twice_changes_nothing(logged: Logged, found: Patch) -> None:
    assert propose(logged, found.proposals[0].spec, HACKS, text=found.proposals[0].text).proposals == ()


def test_the_same_log_gives_the_same_patch(logged: Logged, found: Patch) -> None:
    again = propose(logged, parse_spec(SPEC), HACKS, text=SPEC)
    assert [each.text for each in again.proposals] == [each.text for each in found.proposals]


def test_bounds_signs_and_frozen_terms_are_kept(logged: Logged) -> None:
    limits = Limits(frozen=("edit_persistence",), bounds={"function_size": (0.5, None), "undelivered": (-1.7, None)})
    for each in propose(logged, parse_spec(SPEC), HACKS, limits=limits).proposals:
        weights = {term.name: term.weight for term in each.spec.terms}
        assert weights["edit_persistence"] == 1.0
        assert weights["function_size"] >= 0.5 or "function_size unpaid" in each.title
        assert -1.7 <= weights["undelivered"] <= 0.0
        assert weights["latency"] <= 0.0


def test_what_weights_cannot_do_is_said_with_what_stands_in_the_way(logged: Logged) -> None:
    narrow = propose(logged, parse_spec(SPEC), [DEFERRAL], limits=Limits(largest=0.05))
    refused = next(each for each in narrow.refused if each.change == "other weights")
    assert refused.target == DEFERRAL
    assert refused.conflict[0] == str(DEFERRAL)
    assert "the bounds of edit_persistence" in refused.conflict
    # With all but one term frozen no weight of that one would do: nothing but the demand itself is to blame.
    frozen = Limits(frozen=("edit_persistence", "undelivered", "latency"))
    alone = propose(logged, parse_spec(SPEC), [DODGE], limits=frozen)
    assert next(each for each in alone.refused if each.change == "other weights").conflict == (str(DODGE),)


def test_nothing_to_turn_gives_nothing_and_an_unknown_statistic_is_refused(logged: Logged) -> None:
    assert propose(logged, parse_spec(SPEC), []).proposals == ()
    with pytest.raises(LakeError, match=r"no statistic sadness on the bench; there are: edit_rate"):
        propose(logged, parse_spec(SPEC), [Target("sadness", "all", -1)])
