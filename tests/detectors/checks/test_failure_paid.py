"""What is no failure that was paid, though it looks like one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from palomar.detectors.checks._examples import rows, view
from palomar.detectors.checks.failure_paid import failure_paid_as_zero

N = 400


def hit(cycle: int, share: float) -> np.ndarray:
    return np.random.default_rng(cycle + 70).random(N) < share


def timed_out(cycle: int, share: float, usual: float, value: float = 0.0) -> pa.Table:
    """A share of the calls times out and is paid `value`; of the others a share `usual` has that value too."""
    out = hit(cycle, share)
    reward = np.where(out | hit(cycle + 1, usual), value, np.random.default_rng(cycle).normal(0.5, 0.2, N))
    return rows(cycle, calls_timed_out=out.astype(int), reward=reward)


def test_a_value_that_most_have_says_nothing_of_failures(tmp_path: Path) -> None:
    """A sparse reward is 0 for 95 %: that time-outs are 0 as well is no sign that somebody decided so."""
    tables = [*(timed_out(cycle, 0.01, 0.95) for cycle in range(4)), timed_out(4, 0.3, 0.95)]
    assert not failure_paid_as_zero(view(tmp_path, tables)).findings


@pytest.mark.parametrize(("value", "fires"), [(-1.0, True), (1.0, True), (0.25, False)])
def test_other_constants_than_zero(tmp_path: Path, value: float, fires: bool) -> None:
    """0.25 is the blind spot that the detector states."""
    tables = [*(timed_out(cycle, 0.01, 0.0, value) for cycle in range(4)), timed_out(4, 0.3, 0.0, value)]
    assert bool(failure_paid_as_zero(view(tmp_path, tables)).findings) == fires


def test_time_outs_paid_zero_all_along_are_no_news(tmp_path: Path) -> None:
    tables = [timed_out(cycle, 0.3, 0.0) for cycle in range(5)]
    assert not failure_paid_as_zero(view(tmp_path, tables)).findings


@pytest.mark.parametrize("measured", [True, False])
def test_a_term_that_does_not_need_the_tests_is_not_accused(tmp_path: Path, measured: bool) -> None:
    """Three in four edits are kept. Where all of 30 untested ones are, that is chance (2 in 10,000), no default."""
    tables = []
    for cycle in range(5):
        edited = np.asarray(rows(cycle)["edited"])
        untested = np.zeros(N, dtype=bool)
        untested[np.flatnonzero(edited)[:30]] = True
        kept = np.where(untested & ~measured, 1.0, (~hit(cycle, 0.25)).astype(float))
        terms: dict[str, Any] = {"term:kept": np.where(edited, kept, np.nan)}
        tables.append(rows(cycle, tests_run=np.where(edited & ~untested, 5, 0), **terms))
    assert not failure_paid_as_zero(view(tmp_path, tables)).findings
