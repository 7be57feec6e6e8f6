"""The audit of a spec without data: planted holes are named with their line, matched sound specs are not flagged."""

from __future__ import annotations

import pytest

from palomar.data.errors import ConfigError
from palomar.reward.spec import bundled_text
from palomar.reward.static_audit import Flaw, static_audit

SOUND = bundled_text("sound")


def flags(text: str) -> dict[str, Flaw]:
    return {flaw.check: flaw for flaw in static_audit(text).flaws if flaw.severity == "flags"}


def notes(text: str) -> dict[str, Flaw]:
    return {flaw.check: flaw for flaw in static_audit(text).flaws if flaw.severity == "notes"}


def test_the_sound_spec_is_not_flagged() -> None:
    audit = static_audit(SOUND)
    assert flags(SOUND) == {}
    assert not audit.flagged
    assert audit.unpaid == ()


@pytest.mark.parametrize(
    ("name", "checks"),
    [
        ("naive", {"selective rule", "needless questions free", "splitting paid"}),
        ("naive-dodge", {"selective rule"}),
        ("naive-deferral", {"needless questions free"}),
        ("naive-splitting", {"splitting paid"}),
    ],
)
def test_each_bundled_hole_is_named_and_no_other(name: str, checks: set[str]) -> None:
    assert set(flags(bundled_text(name))) == checks


def test_a_flag_says_the_line_and_the_key() -> None:
    text = bundled_text("naive")
    found = flags(text)
    lines = text.splitlines()
    assert lines[(found["selective rule"].line or 0) - 1].strip() == "- name: invalid_tool_call"
    assert found["selective rule"].key == "inclusion[invalid_tool_call]"
    assert lines[(found["splitting paid"].line or 0) - 1].strip() == "- name: function_size"
    assert found["splitting paid"].key == "terms[function_size]"


TERMS = "terms:\n"


def with_term(line: str) -> str:
    return SOUND.replace("terms:\n", f"terms:\n  - {line}\n", 1)


@pytest.mark.parametrize(
    ("text", "check"),
    [
        (SOUND.replace("weight: -1.2", "weight: 1.2"), "broken calls paid"),
        (SOUND.replace("weight: -0.01", "weight: 0.01"), "waiting paid"),
        (SOUND.replace("weight: -0.3", "weight: 0.3").replace("weight: 0.2", "weight: -0.2"), "complaints paid"),
        (SOUND.replace("reverted: -1.5", "reverted: 1.5"), "reverted edits paid"),
        (SOUND.replace("weight: -1.6", "weight: 4"), "doing nothing paid"),
        (SOUND.replace("weight: -1.6", "weight: -0.1"), "giving up paid"),
        (SOUND.replace("clear: -1.4", "clear: 0.1"), "needless questions free"),
        (SOUND.replace("    bounds: [0.0, 3.0]\n", ""), "unbounded term"),
        (with_term("{ name: logged_reward, weight: 0.1 }"), "unbounded term"),
        (with_term("{ name: fixed, kind: latency, weight: 1.0, bounds: [700, 800] }"), "constant term"),
        (with_term("{ name: tests, weight: 0.5 }"), "edited tests"),
        (with_term("{ name: tests, weight: -3.5 }"), "failing tests paid"),
        (SOUND.replace("terms:\n", "nothing_applies: 0\nterms:\n", 1), "silence paid"),
        *(
            (SOUND.replace("inclusion: []", f"inclusion: [{{ name: r, condition: {condition} }}]"), "selective rule")
            for condition in ("truncated", "question", "no_edit", "failed_edit", "tests_edited", "call_timed_out")
        ),
    ],
)
def test_a_planted_hole_is_flagged(text: str, check: str) -> None:
    assert check in flags(text)


@pytest.mark.parametrize(
    "text",
    [
        SOUND.replace("weight: -0.01", "weight: -0.02"),
        SOUND.replace("clear: -1.4", "clear: -1.2"),
        with_term("{ name: decision_growth, weight: -0.05, bounds: [-5, 5] }"),
        *(
            SOUND.replace("inclusion: []", f"inclusion: [{{ name: r, condition: {condition} }}]")
            for condition in ("call_refused", "infrastructure_error", "not_production")
        ),
    ],
)
def test_what_is_alike_and_sound_is_not(text: str) -> None:
    assert flags(text) == {}


def test_what_is_worth_knowing_is_noted() -> None:
    assert "unpaid term" in notes(with_term("{ name: tests, weight: 0 }"))
    assert "dominated term" in notes(SOUND.replace("weight: 0.2", "weight: 0.001"))
    assert "one term rules" in notes(
        SOUND.replace("weight: 1.0\n    params: { horizon_minutes: 30", "weight: 99\n    params: { horizon_minutes: 30")
    )
    assert "no outcome" in notes(SOUND.split("# The referee")[0])
    assert "narrow term" in notes(
        with_term("{ name: latency2, kind: latency, weight: -1, when: { organisation: [x] } }")
    )


def test_a_scene_without_a_reward_is_told_and_not_compared() -> None:
    audit = static_audit(
        "name: x\nterms:\n  - { name: edit_persistence, weight: 1, params: { horizon_minutes: 30 } }\n"
    )
    assert "nothing" in audit.unpaid
    assert "edit" not in audit.unpaid


def test_no_spec_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"bad.yaml:1"):
        static_audit("name: 3\n", source="bad.yaml")
