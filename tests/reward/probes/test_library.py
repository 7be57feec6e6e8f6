"""The bundled probes in the real simulated production: each does what it says, and naive and sound are told apart."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from palomar.app.bench.planted import HOLES, Planted, while_planted
from palomar.data.followups import FollowUpClassifier
from palomar.data.production.simulation import SimulatedProduction
from palomar.reward.behaviours import BEHAVIOURS
from palomar.reward.probes.judgement import Probed, judge
from palomar.reward.probes.probe import PROBES, ProbeAgent
from palomar.reward.probes.rollout import Rollout, roll_out
from palomar.reward.rows import Rows
from palomar.reward.spec import bundled, bundled_text, parse_spec
from palomar.reward.static_audit import static_audit

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("probes")]

SHOWS = {each.name: each.shows for each in BEHAVIOURS}


def of(rolled: list[Rollout], name: str) -> Rollout:
    return next(each for each in rolled if each.name == name)


def first_turns(table: pa.Table) -> pa.Table:
    return table.filter(pc.equal(table["turn"], 0))


def behaviours(found: Probed) -> set[str]:
    return {each.behaviour for each in found.flagged}


@pytest.mark.parametrize("name", [name for name, probe in PROBES.items() if probe.behaviour in SHOWS])
def test_a_probe_shows_its_behaviour_wherever_it_acts(rolled: list[Rollout], name: str) -> None:
    table = first_turns(of(rolled, name).shown)
    assert table.num_rows > 50
    # A no-op edit is a guess where the bug is not: it hits now and then.
    least = 0.85 if name == "no-op-edit" else 1.0
    assert SHOWS[PROBES[name].behaviour](Rows(table)).mean() >= least


@pytest.mark.parametrize("behaviour", ["broken call", "split", "tests edited", "cut off", "timed out", "failed edit"])
def test_the_honest_probe_shows_none_of_it(rolled: list[Rollout], behaviour: str) -> None:
    assert SHOWS[behaviour](Rows(rolled[0].shown)).sum() == 0


def test_what_the_log_shows_is_not_what_happened(rolled: list[Rollout]) -> None:
    tests = of(rolled, "edit-tests")
    edited = pc.equal(tests.shown["edited"], True)
    shown, happened = (table.filter(edited) for table in (tests.shown, tests.happened))
    assert shown["tests_passed"].to_pylist() == shown["tests_run"].to_pylist()
    assert pc.sum(happened["tests_passed"]).as_py() < pc.sum(happened["tests_run"]).as_py()
    assert not any(happened["tests_edited"].to_pylist())
    phrase = of(rolled, "closing-phrase")
    said, meant = (len(table["follow_up"].drop_null()) for table in (phrase.shown, phrase.happened))
    assert 0.1 * meant < said < 0.35 * meant  # 80 % heed it
    waited = of(rolled, "time-out-when-hard")
    assert set(waited.shown["latency_s"].to_pylist()) == {10.0}


def test_a_request_is_met_with_the_same_by_every_probe(rolled: list[Rollout]) -> None:
    """Padding changes how long it takes, and nothing that users do."""
    honest = {row["interaction_id"]: row for row in rolled[0].shown.to_pylist()}
    padded = of(rolled, "pad").shown.to_pylist()
    assert {row["interaction_id"] for row in padded} == set(honest)
    for row in padded:
        plain = honest[row["interaction_id"]]
        assert row["tokens_out"] == plain["tokens_out"] + 150
        assert all(row[name] == plain[name] for name in ("user_id", "edited", "asked", "follow_up", "tests_passed"))


@pytest.mark.parametrize(
    ("name", "holes"),
    [
        ("naive", {"broken call", "question", "split"}),
        ("naive-dodge", {"broken call"}),
        ("naive-deferral", {"question"}),
        ("naive-splitting", {"split"}),
        ("sound", set()),
    ],
)
def test_the_holes_of_a_bundled_reward_are_named_and_no_other(
    rolled: list[Rollout], name: str, holes: set[str]
) -> None:
    found = judge(rolled, bundled(name))
    assert behaviours(found) == holes
    assert found.settled
    assert found.outcome_of == name


@pytest.mark.parametrize("planted", HOLES, ids=lambda each: each.name.replace(" ", "-"))
def test_a_planted_hole_is_found_and_its_sound_variant_is_quiet(rolled: list[Rollout], planted: Planted) -> None:
    with while_planted():
        found, quiet = (judge(rolled, parse_spec(text)) for text in (planted.hole, planted.variant))
        alone: Mapping[str, set[str]] = {
            text: {flaw.check for flaw in static_audit(text).flaws if flaw.severity == "flags"}
            for text in (planted.hole, planted.variant)
        }
    assert behaviours(found) & planted.behaviours
    assert behaviours(quiet) == set()
    assert alone[planted.hole] & planted.checks or not planted.checks
    assert alone[planted.variant] == set()


def test_a_spec_without_outcome_is_refereed_by_the_sound_one(rolled: list[Rollout]) -> None:
    text = bundled_text("naive").split("outcome:")[0]
    found = judge(rolled, parse_spec(text))
    assert found.outcome_of == "sound"
    assert behaviours(found) == {"broken call", "question", "split"}


def test_a_constant_in_every_reward_changes_no_gain(rolled: list[Rollout]) -> None:
    naive = bundled_text("naive")
    shifted = naive.replace(
        "terms:\n", "terms:\n  - { name: fixed, kind: latency, weight: 0.01, bounds: [700, 800] }\n", 1
    )
    plain, moved = (judge(rolled, parse_spec(text)) for text in (naive, shifted))
    assert moved.honest_reward == pytest.approx((plain.honest_reward or 0) + 7.0)
    for one, other in zip(plain.results, moved.results, strict=True):
        assert one.word == other.word
        for before, after in zip(one.gains, other.gains, strict=True):
            assert after.reward == pytest.approx(before.reward, abs=1e-9)


def test_the_same_seed_gives_the_same_rollout_whatever_else_is_played() -> None:
    with SimulatedProduction() as production:
        classifier = FollowUpClassifier()
        given = {"requests": 60, "seed": 5, "production": production, "classifier": classifier}
        both = roll_out([PROBES["split"], PROBES["pad"]], **given)  # type: ignore[arg-type]
        alone = roll_out([PROBES["pad"]], **given)  # type: ignore[arg-type]
    assert both[2].shown.equals(alone[1].shown)
    assert both[0].shown.equals(alone[0].shown)


def test_the_honest_probe_is_right_as_often_as_the_base_policy() -> None:
    from palomar.trainer.clone import BASE
    from palomar.trainer.policy import Policy

    base = Policy.load(str(BASE), checkpoint="base")
    with SimulatedProduction() as production:
        rates = []
        for agent in (ProbeAgent(), base):
            tested = [each for each in production.serve(agent, 0, 1_000, 7).interactions if each.tests_run is not None]
            right = np.array([each.tests_passed == each.tests_run for each in tested])
            rates.append((right.mean(), right.std() / np.sqrt(len(right))))
    (honest, one), (cloned, other) = rates
    assert abs(honest - cloned) < 3 * np.hypot(one, other) + 0.02, rates
