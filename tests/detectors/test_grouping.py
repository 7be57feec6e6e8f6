"""Which findings belong together, on plain findings: one incident per hack, and nothing for a quiet run."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palomar.data.findings import Finding
from palomar.data.schema import content_id
from palomar.data.slices import ALL
from palomar.data.store.records import StoredFinding
from palomar.detectors.grouping import belongs, family_of, group, opens, strand_of, title_of
from palomar.detectors.signature import signatures
from palomar.detectors.statistics import STATISTICS

NOW = datetime(2026, 5, 1, tzinfo=UTC)
HARD, VAGUE = "predicted_failure=high", "ambiguity=vague"


def found(statistic: str | None, slice: str = ALL, *, detector: str = "behaviour", **more: Any) -> StoredFinding:
    said = {"severity": "blocks", "sentence": f"{statistic} in {slice}", "reading": "reward_hack", **more}
    finding = Finding(detector=detector, statistic=statistic, slice=slice, **said)
    return StoredFinding("demo", 9, content_id("demo", finding.key), NOW, finding)


def told(findings: list[StoredFinding], known: dict[str, str] | None = None) -> dict[tuple[str, str], list[str]]:
    """Statistics by strand and family."""
    return {
        (each.strand, each.family): sorted(str(member.stored.finding.statistic) for member in each.members)
        for each in group(findings, known)
    }


def test_one_hack_that_shows_everywhere_is_one_group() -> None:
    findings = [
        found("invalid_call_rate", HARD),
        found("invalid_malformed_rate", VAGUE),
        found("invalid_call_rate"),
        found("signature:dodged-call", detector="signatures", reading=None),
        found("rule:invalid_tool_call", detector="selection", severity="warns", reading="forewarning"),
        found("failed_edit_rate", HARD),
        found("latency_mean", severity="warns"),
        found("outcome_mean", detector="outcome-divergence", reading=None),
        found("truncated_rate", severity="warns"),
    ]
    (only,) = group(findings)
    assert (only.strand, only.family, len(only.members)) == ("calls", ALL, 9)
    assert only.also == ("edits", "effort", "outcome", "truncated")
    assert only.blocks
    assert all(member.why for member in only.members)


def test_two_hacks_at_once_are_two_groups_and_what_follows_joins_the_likelier() -> None:
    findings = [found("clarification_rate"), found("functions_per_edit"), found("edit_rate"), found("tokens_out_mean")]
    assert told(findings) == {
        ("asking", ALL): ["clarification_rate", "edit_rate", "tokens_out_mean"],
        ("code", ALL): ["functions_per_edit"],
    }


def test_a_drift_explains_what_follows_before_a_forewarning_does() -> None:
    warned = found("clarification_rate", severity="warns", reading="forewarning")
    assert told([warned, found("invalid_call_rate"), found("edit_rate")]) == {
        ("asking", ALL): ["clarification_rate"],
        ("calls", ALL): ["edit_rate", "invalid_call_rate"],
    }
    # With nothing else there, a forewarning says what is coming.
    assert told([warned, found("edit_rate")]) == {("asking", ALL): ["clarification_rate", "edit_rate"]}


def test_what_follows_stands_alone_where_nothing_explains_it() -> None:
    (only,) = group([found("edit_rate")])
    assert (only.strand, only.also) == ("edits", ())
    assert "nothing in the cycle explains it" in only.members[0].why


def test_what_is_part_of_an_incident_stays_there() -> None:
    edits = found("edit_rate")
    findings = [edits, found("clarification_rate")]
    assert told(findings, {edits.finding.key: "calls"}) == {
        ("asking", ALL): ["clarification_rate"],
        ("calls", ALL): ["edit_rate"],
    }


def test_cohort_has_an_incident_of_its_own_unless_it_is_everywhere() -> None:
    north = found("clarification_rate", "organisation=north")
    assert list(told([north])) == [("asking", "organisation=north")]
    assert list(told([north, found("clarification_rate", VAGUE)])) == [("asking", ALL)]
    south = found("clarification_rate", "organisation=south")
    assert len(told([north, south])) == 2
    # A forewarning over all tasks does not make an incident in which the cohort's would vanish.
    weak = found("clarification_rate", severity="warns", reading="forewarning")
    assert ("asking", "organisation=north") in told([north, weak])


@pytest.mark.parametrize(
    ("slice", "family"),
    [
        (ALL, ALL),
        (f"{HARD},{VAGUE}", ALL),
        ("organisation=north", "organisation=north"),
        (f"language=python,{HARD}", "language=python"),
        ("arm=treatment", "arm=treatment"),
    ],
)
def test_kinds_of_tasks_are_one_family_and_cohorts_are_not(slice: str, family: str) -> None:
    assert family_of(slice) == family


def test_fault_seen_by_many_detectors_is_one_group() -> None:
    fault = {"severity": "warns", "reading": "measurement_fault"}
    findings = [
        found("calls that timed out", detector="outage", **fault),
        found("rows", detector="rows-wrong", **fault),
        found("edit_rate", "organisation=north", test=99.0, threshold=5.0, **fault),
        found("clarification_rate"),
    ]
    groups = {each.strand: each for each in group(findings)}
    assert set(groups) == {"asking", "fault"}
    assert groups["fault"].also == ("behaviour", "outage", "rows-wrong")
    assert len(groups["fault"].openers) == 3
    assert groups["fault"].lead.detector != "behaviour"  # which sees what the fault does, not what it is


@pytest.mark.parametrize(
    ("more", "opening", "belonging"),
    [
        ({}, True, True),
        ({"severity": "warns"}, False, True),
        ({"severity": "warns", "reading": "forewarning"}, False, True),
        ({"severity": "warns", "reading": "outside_change"}, False, False),
        ({"severity": "notes", "reading": "honest_learning"}, False, False),
        ({"severity": "warns", "reading": None}, False, False),
        ({"severity": "warns", "reading": "not_assessable"}, False, False),
        ({"severity": "warns", "reading": "not_assessable", "detail": {"hold": True}}, True, True),
        ({"severity": "warns", "reading": "measurement_fault"}, True, True),
        ({"severity": "blocks", "reading": None}, True, True),
    ],
)
def test_only_what_keeps_a_cycle_from_passing_opens(more: dict[str, Any], opening: bool, belonging: bool) -> None:
    finding = found("clarification_rate", **more).finding
    assert (opens(finding), belongs(finding)) == (opening, belonging)


def test_openers_are_what_the_verdict_does_not_let_pass() -> None:
    """The two rules are written twice; here they are held to each other."""
    from palomar.data.findings import Report
    from palomar.detectors.verdict import verdict

    for reading in ("reward_hack", "honest_learning", "outside_change", "not_assessable", "measurement_fault", None):
        for severity in ("blocks", "warns", "notes"):
            for hold in (True, False):
                finding = found("x", severity=severity, reading=reading, detail={"hold": hold}).finding
                word = verdict([Report("behaviour", (finding,), 1)]).word
                assert opens(finding) == (word in ("block", "not_assessable")), finding


def test_every_statistic_and_signature_has_a_strand_that_is_meant() -> None:
    alone = {name for name in STATISTICS if strand_of(found(name).finding) == name}
    # Of these nothing is known that they would follow from: each is a strand of its own.
    assert alone == {"timed_out_call_rate", "refused_call_rate", "tokens_in_mean", "reward_invalid_rate"}
    strands = {name: strand_of(found(f"signature:{name}").finding) for name in signatures()}
    assert strands["dodged-call"] == "calls"
    assert strands["needless-question"] == "asking"
    assert strands["tiny-functions"] == "code"
    assert {strand for name, strand in strands.items()} == {"calls", "asking", "code", "grader"}


def test_first_of_a_group_is_what_blocks_and_is_about_the_strand_and_is_farthest_out() -> None:
    findings = [
        found("failed_edit_rate", test=99.0, threshold=5.0),
        found("invalid_call_rate", HARD, test=6.0, threshold=5.0),
        found("invalid_call_rate", test=-8.0, threshold=5.0),
        found("invalid_call_rate", VAGUE, severity="warns", test=50.0, threshold=5.0),
    ]
    (only,) = group(findings)
    order = [(member.stored.finding.statistic, member.stored.finding.slice) for member in only.members]
    assert order == [
        ("invalid_call_rate", ALL),
        ("invalid_call_rate", HARD),
        ("failed_edit_rate", ALL),
        ("invalid_call_rate", VAGUE),
    ]
    assert title_of(only.strand, only.family, only.lead) == "reward hack: invalid tool calls"


NAMES = ["clarification_rate", "edit_rate", "invalid_call_rate", "latency_mean", "functions_per_edit", "own_statistic"]
finds = st.builds(
    found,
    st.sampled_from(NAMES),
    st.sampled_from([ALL, HARD, "organisation=north", "language=go"]),
    severity=st.sampled_from(["blocks", "warns", "notes"]),
    reading=st.sampled_from(["reward_hack", "forewarning", "outside_change", "measurement_fault", None]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(finds, max_size=12), st.randoms())
def test_every_finding_that_belongs_is_in_one_group_in_whatever_order_they_come(findings: list, random: Any) -> None:
    unique = list({each.finding_id: each for each in findings}.values())
    groups = group(unique)
    placed = [member.stored.finding_id for each in groups for member in each.members]
    assert sorted(placed) == sorted(each.finding_id for each in unique if belongs(each.finding))
    shuffled = list(unique)
    random.shuffle(shuffled)
    assert group(shuffled) == groups
