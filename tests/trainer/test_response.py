"""What the loop does about a hack: on a log with three holes, with what a check said put into the store."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pytest

from palomar.data.errors import StoreError
from palomar.data.findings import Finding
from palomar.data.lake import Lake
from palomar.data.observations import FACTS
from palomar.data.store import Store
from palomar.data.store.records import LedgerRow
from palomar.detectors.detector import BASELINE_CYCLES
from palomar.detectors.incidents import open_incidents
from palomar.reward import changes, versions
from palomar.reward.spec import RewardSpec, bundled, bundled_text, parse_spec, version
from palomar.trainer.config import ResponseConfig
from palomar.trainer.response import ACTOR, Response, Situation, outside, respond, touches, weakens

CYCLES = 4
"""Cycles in the log, the last of which is answered; all of them the baseline."""


@pytest.fixture(scope="module")
def lake(lake_with_holes: Lake) -> Lake:
    return lake_with_holes


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A run under the naive reward, all cycles of the log begun and their samples accounted for."""
    with Store.open(None, tmp_path) as opened:
        opened.runs.add("run", name="run", seed=0, config={"baseline_cycles": CYCLES})
        naive = versions.register(
            opened, bundled("naive"), text=bundled_text("naive"), reason="the run's first reward", actor="palomar run"
        )
        opened.rewards.schedule("run", naive.version, from_cycle=0)
        for cycle in range(CYCLES):
            opened.cycles.start("run", cycle, reward_version=naive.version)
            opened.ledger.write("run", [LedgerRow(cycle, "all", "collected", "", 500)])
        checked(opened, [FOREWARNING])
        yield opened


Side = Literal[1, -1]


def finding(statistic: str, side: Side, reading: Any = "forewarning", severity: Any = "warns", **more: Any) -> Finding:
    detail = {"direction": side, **more.pop("detail", {})}
    return Finding("behaviour", severity, "said", statistic=statistic, reading=reading, detail=detail, **more)


FOREWARNING = finding("clarification_rate", 1)
HACK = finding("functions_per_edit", 1, "reward_hack", "blocks")
FAULT = finding("outage", 1, "measurement_fault")


def checked(store: Store, findings: list[Finding], cycle: int = CYCLES - 1, **said: Any) -> None:
    """Puts a check of a cycle into the store."""
    store.findings.write("run", cycle, findings)
    given = {"verdict": "warn", "reasons": [], "sentence": "", "findings": {}, "budget": "", "as_of": None}
    store.verdicts.write("run", cycle, **{**given, **said})


def situation(store: Store, lake: Lake, *, cycle: int = CYCLES - 1, **config: Any) -> Situation:
    chosen = ResponseConfig(**{"mode": "apply", **config})
    return Situation.of(store, lake, "run", cycle, config=chosen, baseline_cycles=CYCLES)


def answered(store: Store, lake: Lake, **more: Any) -> Response:
    return respond(situation(store, lake, **more))


def in_force(store: Store, cycle: int) -> str:
    record = store.rewards.effective("run", cycle)
    assert record is not None
    return record.version


def after(store: Store, cycles: int) -> None:
    """Lets some cycles more begin and be accounted for."""
    newest = store.cycles.read("run", newest=1)[-1].cycle
    for cycle in range(newest + 1, newest + 1 + cycles):
        store.cycles.start("run", cycle, reward_version=in_force(store, cycle))
        store.ledger.write("run", [LedgerRow(cycle, "all", "collected", "", 500)])


NAIVE = version(bundled("naive"))


def test_a_forewarning_at_the_end_of_the_baseline_is_patched_from_the_next_cycle_on(store: Store, lake: Lake) -> None:
    done = answered(store, lake)
    assert (done.action, done.hacks) == ("patched", ())
    assert "less clarification_rate in all" in done.targets
    (change,) = store.rewards.changes("run")
    assert (change.action, change.actor, change.from_cycle, change.instead_of) == ("patch", ACTOR, CYCLES, NAIVE)
    assert (in_force(store, CYCLES - 1), in_force(store, CYCLES)) == (NAIVE, done.version)
    record = store.rewards.get(done.version or "")
    assert record is not None
    assert (record.parent, record.actor, record.reason) == (NAIVE, ACTOR, change.reason)
    assert change.proposal_id in done.proposals
    (entry,) = store.audit_log.read(action="reward.")
    assert (entry.actor, entry.subject) == (ACTOR, f"reward:{done.version}")


def test_the_same_answer_twice_changes_nothing(store: Store, lake: Lake) -> None:
    first = answered(store, lake)
    before = store.rewards.changes("run"), store.rewards.proposals("run"), store.rewards.read()
    assert answered(store, lake) == first
    assert (store.rewards.changes("run"), store.rewards.proposals("run"), store.rewards.read()) == before


def test_a_run_that_observes_does_nothing_and_one_that_proposes_changes_nothing(store: Store, lake: Lake) -> None:
    assert answered(store, lake, mode="observe") == Response("none", "the run only observes")
    assert store.rewards.proposals("run") == []
    done = answered(store, lake, mode="propose")
    assert done.action == "proposed"
    assert [each.proposal_id for each in store.rewards.proposals("run")] == list(done.proposals)
    assert store.rewards.changes("run") == []
    assert in_force(store, CYCLES) == NAIVE


def test_nothing_is_done_where_the_check_named_nothing(store: Store, lake: Lake) -> None:
    checked(store, [finding("latency_mean", 1, "outside_change")])
    assert answered(store, lake).action == "none"
    # Named, but not what the reward surely pays against users.
    checked(store, [finding("truncated_rate", 1)])
    assert answered(store, lake).action == "none"
    assert store.rewards.changes("run") == []


def test_before_the_baseline_is_over_nothing_is_changed(store: Store, lake: Lake) -> None:
    checked(store, [FOREWARNING], cycle=CYCLES - 2)
    done = answered(store, lake, cycle=CYCLES - 2)
    assert done.action == "none"
    assert "the baseline is not over" in done.why
    assert done.targets


@pytest.mark.parametrize(
    ("findings", "said", "why"),
    [
        ([FOREWARNING, FAULT], {}, "behaviour found a fault"),
        ([FOREWARNING], {"verdict": "not_assessable", "reasons": ["fault:outage"]}, "fault:outage"),
    ],
)
def test_never_while_data_health_is_bad(
    store: Store, lake: Lake, findings: list[Finding], said: dict[str, Any], why: str
) -> None:
    checked(store, findings, **said)
    done = answered(store, lake)
    assert (done.action, done.why) == ("none", f"data health: {why}")
    assert store.rewards.changes("run") == []


def test_a_cycle_without_a_check_or_without_samples_is_no_ground_for_a_patch(store: Store, lake: Lake) -> None:
    after(store, 1)
    assert answered(store, lake, cycle=CYCLES).why == "data health: the cycle was not checked"
    checked(store, [FOREWARNING], cycle=CYCLES)
    store.ledger.write("run", [LedgerRow(CYCLES, "all", "collected", "", 0)])
    assert answered(store, lake, cycle=CYCLES).why == "data health: the ledger has no samples"
    late = BASELINE_CYCLES
    after(store, late - CYCLES)
    checked(store, [FOREWARNING], cycle=late, verdict="not_assessable", reasons=["not_assessed:behaviour"])
    assert answered(store, lake, cycle=late).why == "data health: not_assessed:behaviour"


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"largest_change": 0.01}, "of their size"),
        ({"terms": ("latency",)}, "it touches"),
    ],
)
def test_what_is_outside_the_guardrails_is_proposed_and_not_applied(
    store: Store, lake: Lake, config: dict[str, Any], why: str
) -> None:
    done = answered(store, lake, **config)
    assert done.action == "none"
    assert "no proposal is within the guardrails" in done.why
    assert why in done.why
    assert store.rewards.proposals("run")
    assert store.rewards.changes("run") == []


def test_who_may_be_hurt_is_bounded(store: Store, lake: Lake) -> None:
    done = answered(store, lake, most_hurt=0.0)
    hurt = {each.version: each.detail["honest_hurt"] for each in store.rewards.proposals("run")}
    assert done.action == "none" or hurt[done.version or ""] == 0.0
    kept = store.rewards.proposals("run")[0]
    some = replace(kept, text=bundled_text("naive"), detail={**kept.detail, "distance": 0.0})
    for share, why in ((0.1, None), (0.11, "it hurts 11 % of the honest"), (None, "it is not known whom it hurts")):
        hurting = replace(some, detail={**some.detail, "honest_hurt": share, "reversed": []})
        assert outside(situation(store, lake), hurting) == why
    reversing = replace(some, detail={**some.detail, "reversed": ["edit_rate in all"]})
    assert outside(situation(store, lake), reversing) == "it reverses edit_rate in all"


def test_a_term_that_stays_paid_loses_half_its_weight_at_most_and_one_that_is_played_may_go() -> None:
    naive = bundled("naive")

    def with_weights(**weights: float) -> RewardSpec:
        terms = tuple(term.model_copy(update={"weight": weights.get(term.name, term.weight)}) for term in naive.terms)
        return naive.model_copy(update={"terms": terms})

    assert weakens(naive, with_weights(edit_persistence=0.5, undelivered=-3.0)) == []
    assert weakens(naive, with_weights(edit_persistence=0.49, undelivered=-0.7)) == ["edit_persistence", "undelivered"]
    assert weakens(naive, with_weights(function_size=0.0)) == []
    assert weakens(naive, naive.model_copy(update={"terms": naive.terms[:-1]})) == []


def test_only_terms_that_may_be_touched_are(store: Store, lake: Lake) -> None:
    checked(store, [HACK])
    done = answered(store, lake, terms=("code_growth", "function_size", "clarification", "invalid_tool_call"))
    assert done.action == "patched"
    record = store.rewards.get(done.version or "")
    assert record is not None
    changed = touches(bundled("naive"), parse_spec(record.text))
    assert changed <= {"code_growth", "function_size", "clarification", "invalid_tool_call"}
    assert changed


def test_after_a_change_the_loop_waits(store: Store, lake: Lake) -> None:
    answered(store, lake)
    after(store, 1)
    # A check that names what is left: with a bar so high that a patch is always wanted, only the cool-down holds.
    now = situation(store, lake, cycle=CYCLES)
    assert now.history[-1].from_cycle == CYCLES
    checked(store, [FOREWARNING], cycle=CYCLES)
    old = replace(now, reward=store.rewards.effective("run", 0), findings=(FOREWARNING,))  # as if it had done nothing
    done = respond(old)
    assert (done.action, done.why) == ("none", f"cool-down: the reward was changed in cycle {CYCLES}")
    many = replace(old, config=ResponseConfig(mode="apply", cool_down=0, most_patches=1))
    assert "1 patches in 12 cycles are the most" in respond(many).why


def test_the_loop_stands_back_where_a_person_has_changed_the_reward(store: Store, lake: Lake) -> None:
    sound = versions.register(store, bundled("sound"), reason="holes", actor="ann", parent=NAIVE)
    store.rewards.change("run", sound.version, action="patch", reason="holes", actor="ann")
    done = answered(store, lake)
    assert (done.action, done.why) == ("none", f"a person has changed the reward from cycle {CYCLES} on")
    assert in_force(store, CYCLES) == sound.version


def test_a_hack_blocks_while_the_reward_pushes_it_and_not_once_it_is_patched(store: Store, lake: Lake) -> None:
    checked(store, [HACK, FOREWARNING], verdict="block")
    done = answered(store, lake)
    assert done.hacks == ("reward_hack:functions_per_edit",)
    assert done.action == "patched"
    after(store, 1)
    checked(store, [HACK], cycle=CYCLES, verdict="block")  # its band is still far away
    assert answered(store, lake, cycle=CYCLES).hacks == ()
    # What the bench does not measure blocks too, until a change has been given its time.
    unknown = finding("signature:sleeps", 1, None, "blocks")
    checked(store, [unknown], cycle=CYCLES, verdict="block")
    assert answered(store, lake, cycle=CYCLES).hacks == ()
    checked(store, [unknown], verdict="block")
    assert answered(store, lake, mode="propose").hacks == ("behaviour:signature:sleeps",)


def test_after_a_change_only_what_began_after_it_blocks(store: Store, lake: Lake) -> None:
    worse_patch(store)
    for since, hacks in ((CYCLES, ()), (CYCLES + 2, ("reward_hack:clarification_rate",))):
        taught = finding("clarification_rate", 1, "reward_hack", "blocks", since=since)
        checked(store, [taught], cycle=CYCLES + 2, verdict="block")
        assert answered(store, lake, cycle=CYCLES + 2, mode="propose").hacks == hacks


def worse_patch(store: Store) -> str:
    """The run was under the sound reward, and the loop has put the naive one in its place."""
    sound = versions.register(store, bundled("sound"), reason="at first", actor="ann")
    store.rewards.change("run", sound.version, action="patch", reason="holes", actor="ann")
    after(store, 1)
    store.rewards.change("run", NAIVE, action="patch", reason="a bad idea", actor=ACTOR)
    after(store, 2)
    return sound.version


def test_a_patch_of_the_loops_own_that_teaches_a_hack_is_taken_back(store: Store, lake: Lake) -> None:
    sound = worse_patch(store)
    taught = finding("clarification_rate", 1, "reward_hack", "blocks", since=CYCLES + 2)
    checked(store, [taught], cycle=CYCLES + 2, verdict="block")
    done = answered(store, lake, cycle=CYCLES + 2)
    assert (done.action, done.version) == ("reverted", sound)
    assert done.why == "it pushes what the reward before it did not: clarification_rate in all"
    last = store.rewards.changes("run")[-1]
    assert (last.action, last.actor, last.version, last.reason) == ("revert", ACTOR, sound, done.why)
    assert in_force(store, CYCLES + 3) == sound
    assert answered(store, lake, cycle=CYCLES + 2) == done
    assert len(store.rewards.changes("run")) == 3


@pytest.mark.parametrize(
    ("since", "cycle", "actor"),
    [(CYCLES - 1, CYCLES + 2, ACTOR), (CYCLES + 2, CYCLES + 2, "ann")],
    ids=["the hack was there before the patch", "a person's patch is a person's"],
)
def test_a_patch_is_not_taken_back_for_what_it_did_not_do(
    store: Store, lake: Lake, since: int, cycle: int, actor: str
) -> None:
    worse_patch(store)
    taught = finding("clarification_rate", 1, "reward_hack", "blocks", since=since)
    checked(store, [taught], cycle=cycle, verdict="block")
    now = situation(store, lake, cycle=cycle)
    *earlier, last = now.history
    done = respond(replace(now, history=(*earlier, replace(last, actor=actor))))
    assert done.action != "reverted"


def test_a_patch_is_not_taken_back_for_what_the_reward_before_it_taught_too(store: Store, lake: Lake) -> None:
    text = bundled_text("naive").replace("weight: -0.01", "weight: -0.02")
    other = versions.register(store, parse_spec(text), reason="waiting costs more", actor=ACTOR, parent=NAIVE)
    store.rewards.change("run", other.version, action="patch", reason="waiting costs more", actor=ACTOR)
    after(store, 2)
    taught = finding("clarification_rate", 1, "reward_hack", "blocks", since=CYCLES + 1)
    checked(store, [taught], cycle=CYCLES + 1, verdict="block")
    done = answered(store, lake, cycle=CYCLES + 1, cool_down=9)
    assert (done.action, done.hacks) == ("none", ("reward_hack:clarification_rate",))


def test_an_outcome_that_left_its_band_takes_a_patch_back_unless_the_reward_pushes_it_up(
    store: Store, lake: Lake
) -> None:
    sound = worse_patch(store)
    fallen = Finding(
        "drift", "warns", "users' outcome 0.2 -> 0.1", statistic="outcome_mean", effect=-0.1, since=CYCLES + 2,
        detail={"would_block": True},
    )  # fmt: skip
    checked(store, [fallen], cycle=CYCLES + 2)
    now = situation(store, lake, cycle=CYCLES + 2)
    kind = replace(now, reward=store.rewards.get(sound))  # the sound reward pushes users' outcome up
    assert respond(kind).action == "none"
    assert respond(replace(now, findings=(replace(fallen, effect=0.1),))).action != "reverted"
    # Paid for broken calls and nothing else, training pushes the outcome down.
    hostile = versions.register(
        store, parse_spec("name: hostile\nterms: [{name: invalid_tool_call, weight: 1.0}]"), reason="r", actor="a"
    )
    specs = {**now.specs, hostile.version: parse_spec(hostile.text)}
    done = respond(replace(now, reward=hostile, specs=specs))
    assert done.action == "reverted"
    assert done.why.startswith("users' outcome has left its band since")


def test_incidents_that_a_patch_answers_are_told_of_it_once(store: Store, lake: Lake) -> None:
    checked(store, [HACK, FOREWARNING], verdict="block")
    (incident,) = open_incidents(store, "run", CYCLES - 1)
    answered(store, lake)
    answered(store, lake)
    (entry,) = store.audit_log.read(subject=f"incident:{incident.number}", action="incident.action")
    assert entry.actor == ACTOR
    assert entry.reason.startswith(f"reward patched from cycle {CYCLES} on")
    (now,) = store.incidents.read("run")
    assert now.state == "mitigated"


def test_the_loop_never_brings_back_a_reward_that_it_left(store: Store, lake: Lake) -> None:
    first = answered(store, lake)
    proposal = next(each for each in store.rewards.proposals("run") if each.version == first.version)
    changes.revert(store, "run", NAIVE, reason="no", actor="ann")
    after(store, 4)
    checked(store, [FOREWARNING], cycle=CYCLES + 3)
    now = situation(store, lake, cycle=CYCLES + 3)
    # Once it was in force, and is not any more.
    left = replace(store.rewards.changes("run")[0], version=NAIVE, instead_of=first.version, action="revert")
    again = respond(replace(now, history=(replace(left, from_cycle=0),)))
    assert again.version != proposal.version


def test_a_stale_proposal_is_refused_and_one_in_force_changes_nothing(store: Store, lake: Lake) -> None:
    answered(store, lake, mode="propose")
    best, other = store.rewards.proposals("run")[:2]
    assert changes.apply(store, best, reason="good", actor="ann") is not None
    assert changes.apply(store, best, reason="good", actor="ann") is None
    with pytest.raises(StoreError, match="is stale"):
        changes.apply(store, other, reason="better", actor="ann")
    with pytest.raises(StoreError, match="stale"):  # and so says the store itself, to two who apply at once
        store.rewards.change("run", NAIVE, action="patch", reason="r", actor="a", expected=other.base)
    assert len(store.rewards.changes("run")) == 1
    with pytest.raises(StoreError, match="needs a reason and an actor"):
        changes.revert(store, "run", NAIVE, reason=" ", actor="ann")


def test_no_figure_of_a_detector_reaches_a_reward(store: Store, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a finding measured, the patch is the same: it says where, and nothing else."""
    first = answered(store, lake)
    louder = replace(
        FOREWARNING, effect=99.0, test=1e9, low=98.0, high=100.0, sentence="shout", detector="another",
        detail={"direction": 1, "reward": {"value": 12.0}},
    )  # fmt: skip
    store.rewards.change("run", NAIVE, action="revert", reason="again", actor="ann")
    monkeypatch.setattr(store.rewards, "changes", lambda run_id: [])
    checked(store, [louder])
    assert answered(store, lake).version == first.version


def test_rewards_and_terms_import_no_detector() -> None:
    """Neither scoring nor a patch can see what a detector says: nothing of them is even loaded."""
    code = (
        "import sys, palomar.reward.scoring, palomar.reward.patch, palomar.reward.changes, palomar.reward.terms\n"
        "sys.exit(any(name.startswith(('palomar.detectors', 'palomar.trainer')) for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_column_of_a_detector_is_a_fact() -> None:
    """Terms read `FACTS`; none of these is something that a detector writes."""
    written = {"finding", "reading", "verdict", "severity", "signature", "flagged", "anomaly", "drift", "hack"}
    assert not {name for name in FACTS.names if any(word in name for word in written)}
    spec: Callable[[str], Any] = parse_spec
    with pytest.raises(Exception, match="term"):
        spec("name: x\nterms: [{name: signature, weight: 1.0}]")


def test_times_are_not_part_of_what_is_decided(store: Store, lake: Lake) -> None:
    first = answered(store, lake, mode="propose")
    assert datetime.now(UTC) > store.rewards.proposals("run")[0].made_at
    assert answered(store, lake, mode="propose") == first
