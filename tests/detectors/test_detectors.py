"""Every detector on its own examples: one on which it must fire, and one that looks alike, on which it must not."""

from __future__ import annotations

from pathlib import Path

import pytest

from palomar.data.errors import ConfigError
from palomar.data.findings import Report
from palomar.data.lake import Lake
from palomar.detectors.detector import Example, View, detector, detectors, load

CASES = [(name, example) for name, found in detectors().items() for example in found.examples]


@pytest.mark.parametrize(("name", "example"), CASES, ids=[f"{name}: {example.name}" for name, example in CASES])
def test_examples(name: str, example: Example, tmp_path: Path) -> None:
    view = example.make(tmp_path)
    report = detectors()[name].judge(view)
    assert report.detector == name
    if example.expects == "fires":
        assert report.findings, report
    elif example.expects == "clear":
        assert not report.findings, [finding.sentence for finding in report.findings]
        assert report.assessed, report.unassessed
    else:
        assert not report.findings
        assert not report.assessed
        assert report.unassessed
    for finding in report.findings:
        assert finding.detector == name
        assert finding.sentence
        assert not finding.sentence.endswith(".")
        assert finding.severity == "notes" or finding.error_control
    for unassessed in report.unassessed:
        assert unassessed.what
        assert unassessed.why
    assert report == detectors()[name].judge(view), "the same twice"


@pytest.mark.parametrize("name", list(detectors()))
def test_each_must_fire_and_must_not(name: str) -> None:
    expected = {example.expects for example in detectors()[name].examples}
    assert {"fires", "clear"} <= expected


@pytest.mark.parametrize("name", list(detectors()))
def test_each_says_what_it_is_blind_to(name: str) -> None:
    assert "blind" in detectors()[name].about.lower()


OWN = '''
"""Ours. Blind to everything."""
from palomar.data.findings import Finding, Report
from palomar.detectors.detector import detector

@detector("{name}", examples=())
def ours(view):
    return Report("{name}", (Finding("{name}", "notes", f"cycle {{view.cycle}}"),), assessed=1)
'''


def test_a_team_s_own_file_is_loaded_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palomar.detectors.detector._REGISTRY", dict(detectors()))
    path = tmp_path / "ours.py"
    path.write_text(OWN.format(name="ours"))
    load(path)
    assert detectors()["ours"].judge(View(Lake(tmp_path), 3)).findings[0].sentence == "cycle 3"


@pytest.mark.parametrize(
    ("text", "said"),
    [("raise RuntimeError('no')", "RuntimeError: no"), ("def", "SyntaxError"), (None, "no Python file")],
)
def test_a_file_that_cannot_be_loaded_is_named(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / f"broken{len(said)}.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=said) as raised:
        load(path)
    assert str(path) in str(raised.value)


def test_two_detectors_of_one_name_are_refused() -> None:
    taken = next(iter(detectors()))

    def judge(view: View) -> Report:
        return Report("x")

    with pytest.raises(ValueError, match=taken):
        detector(taken, examples=())(judge)
