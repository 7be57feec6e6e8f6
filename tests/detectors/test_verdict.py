"""The worst decides, and doubt never becomes a pass."""

from __future__ import annotations

from dataclasses import replace

import pytest

from palomar.data.findings import Finding, Report, Unassessed
from palomar.detectors.verdict import verdict

CLEAR = Report("behaviour", assessed=200)
NOTE = Finding("anomaly", "notes", "something odd")
WARNING = Finding("drift", "warns", "edit rate 60 % -> 55 %", statistic="edit_rate", reading="outside_change")
BLOCK = Finding(
    "behaviour", "blocks", "questions 8 % -> 15 %", statistic="clarification_rate", slice="ambiguity=clear",
    reading="reward_hack",
)  # fmt: skip
FAULT = Finding("outage", "warns", "tools down", statistic="outage", reading="measurement_fault")
UNREAD = replace(WARNING, reading="not_assessable", detail={"hold": True})


def said(*findings: Finding) -> list[Report]:
    return [CLEAR, Report("others", findings=findings, assessed=1)]


@pytest.mark.parametrize(
    ("findings", "word", "first"),
    [
        ((), "pass", None),
        ((NOTE,), "pass", None),
        ((NOTE, WARNING), "warn", "outside_change:edit_rate"),
        ((WARNING, BLOCK), "block", "reward_hack:clarification_rate:ambiguity=clear"),
        ((FAULT, WARNING), "not_assessable", "fault:outage"),
        ((FAULT, BLOCK), "block", "reward_hack:clarification_rate:ambiguity=clear"),
        ((UNREAD, WARNING), "not_assessable", "not_assessable:edit_rate"),
    ],
)
def test_the_worst_decides(findings: tuple[Finding, ...], word: str, first: str | None) -> None:
    found = verdict(said(*findings))
    assert found.word == word
    assert found.reasons[:1] == (() if first is None else (first,))


def test_what_was_not_assessed_is_no_pass() -> None:
    nothing = Report("behaviour", unassessed=(Unassessed("everything", "the baseline has 3 cycles; 8 are needed"),))
    assert verdict([nothing]).word == "not_assessable"
    assert verdict([nothing]).sentence == "behaviour: the baseline has 3 cycles; 8 are needed"
    assert verdict([]).word == "not_assessable"
    assert verdict([Report("others", assessed=5)]).reasons == ("not_assessed:behaviour",)
    assert verdict([nothing, Report("others", findings=(BLOCK,))]).word == "block"
