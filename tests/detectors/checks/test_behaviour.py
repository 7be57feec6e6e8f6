"""The four readings on lakes where it is known what the reward pays, what users want and what moved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from palomar.data.findings import Finding
from palomar.detectors.checks._examples import rows, view
from palomar.detectors.checks.behaviour import behaviour
from palomar.detectors.detector import View

CYCLES, CHANGE = 13, 9


def lake(folder: Path, *, asks: float, paid: float, worth: float, cycles: int = CYCLES, n: int = 700) -> View:
    """Questions become more frequent by `asks` from cycle `CHANGE` on; each is paid `paid` and `worth` to its user.

    Everything else is paid as its user fares.
    """
    made = []
    for cycle in range(cycles):
        table = rows(cycle, n, more_asked=asks if cycle >= CHANGE else 0.0)
        asked = np.asarray(table["asked"].to_numpy(zero_copy_only=False), dtype=np.bool_)
        fared = np.asarray(table["outcome"].to_numpy())
        for name, value in (("reward", paid), ("outcome", worth)):
            place = table.schema.get_field_index(name)
            table = table.set_column(place, name, pa.array(np.where(asked, value, fared)))
        made.append(table)
    return view(folder, made, trained=True)


def about(seen: View, statistic: str, slice_: str = "all") -> Finding | None:
    found = [
        finding for finding in behaviour(seen).findings if (finding.statistic, finding.slice) == (statistic, slice_)
    ]
    assert len(found) <= 1
    return found[0] if found else None


def test_paid_for_and_minded_is_a_reward_hack_that_blocks(tmp_path: Path) -> None:
    found = about(lake(tmp_path, asks=0.3, paid=1.0, worth=-1.0), "clarification_rate")
    assert found is not None
    assert (found.reading, found.severity, found.since) == ("reward_hack", "blocks", CHANGE)
    assert found.before == pytest.approx(0.2, abs=0.02)
    assert found.after == pytest.approx(0.5, abs=0.05)
    assert found.effect == pytest.approx((found.after or 0) - (found.before or 0))
    assert found.low is not None
    assert found.high is not None
    assert found.low < (found.effect or 0) < found.high
    assert found.low > 0
    assert "users' outcome is against" in found.sentence
    assert f"first out in cycle {CHANGE}" in found.sentence
    assert len(found.evidence.carrying) == 5
    assert len(found.evidence.random) == 2


def test_paid_for_and_wanted_is_honest_learning(tmp_path: Path) -> None:
    found = about(lake(tmp_path, asks=0.3, paid=1.0, worth=1.0), "clarification_rate")
    assert found is not None
    assert (found.reading, found.severity) == ("honest_learning", "notes")


def test_not_paid_for_is_an_outside_change(tmp_path: Path) -> None:
    found = about(lake(tmp_path, asks=0.3, paid=-1.0, worth=-1.0), "clarification_rate")
    assert found is not None
    assert (found.reading, found.severity) == ("outside_change", "warns")
    assert found.causes == ()


def test_paid_for_and_minded_is_a_forewarning_before_anything_moves(tmp_path: Path) -> None:
    seen = lake(tmp_path, asks=0.0, paid=1.0, worth=-1.0, cycles=8)
    report = behaviour(seen)
    assert report.assessed == 0  # no cycle after the baseline: drift is not assessable
    found = next(finding for finding in report.findings if finding.statistic == "clarification_rate")
    assert (found.reading, found.severity) == ("forewarning", "warns")
    assert found.effect is not None
    assert found.effect > 0
    assert "will rise" in found.sentence


def test_nothing_is_forewarned_where_the_reward_pays_as_users_fare(tmp_path: Path) -> None:
    assert not behaviour(lake(tmp_path, asks=0.0, paid=-0.3, worth=-0.3)).findings


def test_a_drift_in_an_outage_is_a_measurement_fault(tmp_path: Path) -> None:
    seen = lake(tmp_path, asks=0.3, paid=1.0, worth=-1.0)
    last = seen.scan(sorted(seen.columns()))
    down = np.asarray(last["tool_calls"].to_numpy())
    place = last.schema.get_field_index("calls_timed_out")
    seen.lake.write_observations(last.set_column(place, "calls_timed_out", pa.array(down, pa.int32())), CYCLES - 1)
    found = about(View.of(seen.lake, CYCLES - 1), "clarification_rate")
    assert found is not None
    assert found.reading == "measurement_fault"
    assert found.severity != "blocks"
