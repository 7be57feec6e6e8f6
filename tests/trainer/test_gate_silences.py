"""A silence never makes a bad checkpoint pass: the gate takes what it holds back for an open incident."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from palomar.data.findings import Finding
from palomar.data.store import Store
from palomar.detectors.incidents import open_incidents
from palomar.trainer.gate_evidence import gather
from palomar.trainer.gate_policy import Policy, read_policy
from palomar.trainer.promotion import Check, decide

POLICY = read_policy("demo").policy
CYCLES = 6


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A run whose candidates c1 to c5 were trained in the cycles 1 to 5."""
    with Store.open(None, tmp_path) as opened:
        opened.runs.add("r", name="r", seed=0, config={})
        opened.checkpoints.add("r", "base", cycle=None, parent_id=None, path="base", sha256="")
        opened.checkpoints.promote("r", "base", replacing=None, since_cycle=0, reason="x")
        for cycle in range(1, CYCLES):
            opened.cycles.start("r", cycle, checkpoint_id="base")
            opened.checkpoints.add("r", f"c{cycle}", cycle=cycle, parent_id="base", path=f"c{cycle}", sha256="")
        opened.silences.add("r", "behaviour", actor="ada", reason="known", until_cycle=7)
        yield opened


def hack(store: Store, cycle: int, *, severity: Any = "blocks") -> None:
    found = Finding("behaviour", severity, "asks more", "clarification_rate", reading="reward_hack", effect=0.3)
    store.findings.write("r", cycle, [found])
    word = "block" if severity == "blocks" else "warn"
    store.verdicts.write(
        "r", cycle, verdict=word, reasons=[], sentence="asks more", findings={severity: 1}, budget="", as_of=None
    )  # fmt: skip
    open_incidents(store, "r", cycle)


def asked(store: Store, home: Path, candidate: str, code: str, policy: Policy = POLICY) -> Check:
    outcome = decide(gather(store, home, "r", candidate, policy), policy)
    return next(check for check in outcome.checks if check.code == code)


def test_finding_that_is_silenced_blocks_the_checkpoint_of_its_cycle(store: Store, tmp_path: Path) -> None:
    hack(store, 3)
    assert store.incidents.read() == []
    assert asked(store, tmp_path, "c3", "check:cycle").result == "fail"
    assert decide(gather(store, tmp_path, "r", "c3", POLICY), POLICY).verdict != "promote"


def test_later_candidates_are_blocked_as_by_an_open_incident_while_the_silence_holds(
    store: Store, tmp_path: Path
) -> None:
    hack(store, 3)
    said = asked(store, tmp_path, "c5", "incidents")
    assert (said.result, said.sentence, said.evidence) == ("fail", "1 silenced alarm: asks more", ("silence:1",))
    # An open incident beside it is counted apart.
    store.silences.end(1, actor="ada", reason="no more")
    assert asked(store, tmp_path, "c5", "incidents").result == "pass"
    assert asked(store, tmp_path, "c3", "incidents").result == "fail"
    hack(store, 5)
    said = asked(store, tmp_path, "c5", "incidents")
    assert said.sentence.startswith("1 open incident: reward hack")
    assert asked(store, tmp_path, "c3", "incidents").sentence.startswith("1 open incident and 1 silenced alarm: ")


def test_gate_says_the_same_with_the_silence_as_without_it(store: Store, tmp_path: Path) -> None:
    """Also by a policy that asks for incidents and for no check of the cycle."""
    lax = POLICY.model_copy(update={"check": POLICY.check.model_copy(update={"cycle": False})})

    def results() -> list[str]:
        return [asked(store, tmp_path, f"c{cycle}", "incidents", lax).result for cycle in range(1, CYCLES)]

    before = results()
    hack(store, 3)
    silent = results()
    store.silences.end(1, actor="ada", reason="to compare")
    hack(store, 3)  # checked again: now it opens one
    assert [each.opened_cycle for each in store.incidents.read()] == [3]
    assert (before, silent, results()) == (["pass"] * 5, ["fail"] * 5, ["fail"] * 5)


def test_what_does_not_block_or_is_not_found_any_more_is_not_held_against_it(store: Store, tmp_path: Path) -> None:
    hack(store, 3)
    store.findings.write("r", 3, [])
    assert asked(store, tmp_path, "c5", "incidents").result == "pass"
    hack(store, 4, severity="warns")
    assert asked(store, tmp_path, "c5", "incidents").result == "pass"
