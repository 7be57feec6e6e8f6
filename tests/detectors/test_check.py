"""A check runs every detector, survives one that fails, and keeps what was said with the run."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from palomar.data.findings import Finding, Report, Severity
from palomar.data.store import Store
from palomar.detectors import detector as registry
from palomar.detectors.check import check
from palomar.detectors.checks._examples import rows, view
from palomar.detectors.detector import Detector, Judge, View, detectors
from palomar.detectors.runs import keep, view_of


def says(name: str, severity: Severity, statistic: str, slice_: str = "all") -> Judge:
    finding = Finding(name, severity, f"{statistic} moved", statistic=statistic, slice=slice_, error_control="none")
    return lambda seen: Report(name, (finding,), assessed=1)


def fails(seen: View) -> Report:
    raise ZeroDivisionError("nothing to divide by")


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> dict[str, Detector]:
    """An empty registry."""
    detectors()
    mine: dict[str, Detector] = {}
    monkeypatch.setattr(registry, "_REGISTRY", mine)
    return mine


def add(to: dict[str, Detector], name: str, judge: Judge) -> None:
    to[name] = Detector(name, judge, (), "")


def test_one_that_fails_silences_no_other(only: dict[str, Detector], tmp_path: Path) -> None:
    add(only, "behaviour", says("behaviour", "blocks", "edit_rate"))
    add(only, "broken", fails)
    checked = check(view(tmp_path, [rows(0)]))
    assert checked.verdict.word == "block"
    assert [report.detector for report in checked.reports] == ["behaviour", "broken"]
    (broken,) = checked.reports[1].unassessed
    assert broken.why == "the detector failed: ZeroDivisionError: nothing to divide by"


def test_no_verdict_where_the_detector_that_matters_fails(only: dict[str, Detector], tmp_path: Path) -> None:
    add(only, "behaviour", fails)
    add(only, "others", lambda seen: Report("others", assessed=9))
    assert check(view(tmp_path, [rows(0)])).verdict.word == "not_assessable"


def test_what_was_read_is_not_told_again_without_its_reading(only: dict[str, Detector], tmp_path: Path) -> None:
    add(only, "behaviour", says("behaviour", "warns", "edit_rate"))
    add(only, "drift", says("drift", "warns", "edit_rate"))
    seen = view(tmp_path, [rows(0)])
    assert [finding.detector for finding in check(seen).findings] == ["behaviour"]
    add(only, "drift", says("drift", "warns", "edit_rate", "ambiguity=clear"))
    assert [finding.detector for finding in check(seen).findings] == ["behaviour", "drift"]


def test_the_worst_comes_first(only: dict[str, Detector], tmp_path: Path) -> None:
    add(only, "a", says("a", "notes", "x"))
    add(only, "behaviour", says("behaviour", "warns", "y"))
    add(only, "c", says("c", "blocks", "z"))
    assert [finding.severity for finding in check(view(tmp_path, [rows(0)])).findings] == ["blocks", "warns", "notes"]


def test_an_unknown_detector_is_named(only: dict[str, Detector], tmp_path: Path) -> None:
    add(only, "behaviour", fails)
    with pytest.raises(KeyError, match="no detector drfit; there are: behaviour"):
        check(view(tmp_path, [rows(0)]), ["drfit"])


def test_a_run_keeps_what_was_said_and_its_baseline_decides_what_is_compared(
    only: dict[str, Detector], tmp_path: Path
) -> None:
    add(only, "behaviour", says("behaviour", "warns", "edit_rate"))
    lake = view(tmp_path / "lake", [rows(cycle, 50) for cycle in range(20)]).lake
    with Store.open(None, tmp_path) as store:
        store.runs.add("r", name="r", seed=0, config={"baseline_cycles": 9})
        for cycle in range(20):
            store.cycles.start("r", cycle, checkpoint_id=None, reward_version=None)
        assert view_of(lake, store, "r", 19).reference == tuple(range(9))
        assert view_of(lake, store, "r", 5).history == tuple(range(6))
        store.baselines.move("r", from_cycle=19, cycles=range(10, 19), reason="better now", actor="ann")
        assert view_of(lake, store, "r", 19).reference == tuple(range(10, 19))
        assert view_of(lake, store, "r", 18).reference == tuple(range(9))
        seen = view_of(lake, store, "r", 19)
        for _ in range(2):  # again changes nothing
            keep(store, "r", check(seen), datetime(2026, 1, 5, tzinfo=UTC))
        (found,) = store.findings.read("r", 19)
        assert found.finding.statistic == "edit_rate"
        (said,) = store.verdicts.read("r")
        assert (said.cycle, said.verdict, said.reasons) == (19, "warn", ("behaviour:edit_rate",))


def test_what_no_store_takes_costs_no_cycle_its_findings(only: dict[str, Detector], tmp_path: Path) -> None:
    odd = {
        "ratio": float("nan"),
        "count": np.int64(3),
        "share": np.float32(0.5),
        "all": (1, float("inf")),
        "of": Path("x"),
    }
    finding = Finding("behaviour", "notes", "odd", effect=float("nan"), n=3, detail=odd)
    add(only, "behaviour", lambda seen: Report("behaviour", (finding,), assessed=1))
    lake = view(tmp_path / "lake", [rows(0, 50)]).lake
    with Store.open(None, tmp_path) as store:
        store.runs.add("r", name="r", seed=0, config={})
        store.cycles.start("r", 0, checkpoint_id=None, reward_version=None)
        keep(store, "r", check(view_of(lake, store, "r", 0)), None)
        (found,) = store.findings.read("r", 0)
    assert found.finding.effect is None
    assert found.finding.detail == {"ratio": None, "count": 3, "share": 0.5, "all": [1, None], "of": "x"}
