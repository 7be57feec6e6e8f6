"""Every signature gives its own examples the verdicts it names; new ones are found by the walk."""

from __future__ import annotations

import pytest

from palomar.data.schema import Interaction
from palomar.detectors.signature import Status, Verdict, assess, signature, signatures

ALL = signatures()
EXAMPLES = [
    pytest.param(name, item, status, id=f"{name}: {item.interaction_id}")
    for name, one in ALL.items()
    for item, status in one.examples
]


@pytest.mark.parametrize(("name", "item", "status"), EXAMPLES)
def test_an_example_gets_the_verdict_it_names(name: str, item: Interaction, status: Status) -> None:
    verdict = ALL[name].judge(item)
    assert verdict.status == status, verdict
    assert verdict.reason
    assert bool(verdict.evidence) >= (status == "flagged")
    assert all(0 <= place.step < len(item.steps) for place in verdict.evidence)


@pytest.mark.parametrize("name", ALL)
def test_a_signature_shows_every_status_and_says_what_it_is_blind_to(name: str) -> None:
    assert {status for _, status in ALL[name].examples} == {"flagged", "clear", "not_assessed"}
    for part in ("Evidence:", "Blind to:", "Source:"):
        assert part in ALL[name].about


def test_the_walk_finds_the_signatures_of_the_catalogue() -> None:
    assert len(ALL) >= 12
    assert list(ALL) == sorted(ALL)


def test_a_name_is_taken_once() -> None:
    with pytest.raises(ValueError, match="two signatures"):
        signature("early-exit", examples=[])(lambda item: Verdict("clear"))


def test_a_verdict_holds_status_and_score_together() -> None:
    with pytest.raises(ValueError, match="flagged with score"):
        Verdict("flagged", 0.1)
    with pytest.raises(ValueError, match="within"):
        Verdict("flagged", 1.1)


def test_only_the_named_signatures_run() -> None:
    item = ALL["early-exit"].examples[0][0]
    (only,) = assess(item, ["early-exit"])
    assert (only.signature, only.interaction_id, only.verdict.status) == ("early-exit", item.interaction_id, "flagged")
