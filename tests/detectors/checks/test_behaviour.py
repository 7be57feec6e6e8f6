"""The four readings on lakes where it is known what the reward pays, what users want and what moved."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from palomar.data.findings import Finding
from palomar.data.slices import ALL
from palomar.detectors.checks._examples import rows, view
from palomar.detectors.checks.behaviour import _Out, _Pooled, _severity, behaviour
from palomar.detectors.detector import View
from palomar.detectors.drift import Finding as Chart
from palomar.detectors.drift import Status
from palomar.detectors.reading import Read
from palomar.detectors.worth import Worth
from palomar.reward.charges import OUTCOME

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


def placed(folder: Path, *, on_clear: float, on_vague: float) -> View:
    """Questions are paid everywhere. Users want them on vague requests and mind them on clear ones, and mind them more.

    From cycle `CHANGE` on there are more of them, by so much on clear and on vague requests.
    """
    made = []
    for cycle in range(CYCLES):
        table = rows(cycle, 700)
        rng = np.random.default_rng([11, cycle])
        vague = np.asarray(table["ambiguity"].to_numpy()) >= 0.5
        more = np.where(vague, on_vague, on_clear) if cycle >= CHANGE else 0.0
        asked = rng.random(len(vague)) < 0.25 + more
        fared = np.asarray(table["outcome"].to_numpy())
        columns = {
            "asked": asked,
            "reward": np.where(asked, 1.0, fared),
            "outcome": np.where(asked, np.where(vague, 0.8, -1.5), fared),
        }
        for name, values in columns.items():
            table = table.set_column(table.schema.get_field_index(name), name, pa.array(values))
        made.append(table)
    return view(folder, made, trained=True)


def test_what_users_want_is_asked_where_it_moved(tmp_path: Path) -> None:
    """On average questions are minded. All that moved are those that users want, and then those that they mind."""
    wanted = about(placed(tmp_path / "a", on_clear=0.0, on_vague=0.6), "clarification_rate")
    minded = about(placed(tmp_path / "b", on_clear=0.4, on_vague=0.0), "clarification_rate")
    assert wanted is not None
    assert minded is not None
    outcome = wanted.detail["outcome"]
    assert isinstance(outcome, dict)
    assert outcome["high"] < 0  # the whole's own pressure is against
    assert wanted.reading == "honest_learning"
    assert (minded.reading, minded.severity) == ("reward_hack", "blocks")


def effort(folder: Path, *, asks: float, longer: float) -> View:
    """Tokens and questions are paid, and users mind both; from cycle `CHANGE` on there are more of either."""
    made = []
    for cycle in range(CYCLES):
        after = cycle >= CHANGE
        table = rows(cycle, 700, more_asked=asks if after else 0.0)
        rng = np.random.default_rng([12, cycle])
        asked = np.asarray(table["asked"].to_numpy(zero_copy_only=False), dtype=np.bool_)
        length = rng.normal(0, 1, len(asked)) + 2.0 * asked + (longer if after else 0.0)
        fared = np.asarray(table["outcome"].to_numpy())
        columns = {
            "tokens_out": (100 + 20 * length).clip(1).astype(np.int32),
            "reward": 0.7 * length + asked,
            "outcome": fared - 0.7 * length - asked,
        }
        for name, values in columns.items():
            table = table.set_column(table.schema.get_field_index(name), name, pa.array(values))
        made.append(table)
    return view(folder, made, trained=True)


def test_effort_that_moves_by_itself_blocks(tmp_path: Path) -> None:
    found = about(effort(tmp_path, asks=0.0, longer=1.5), "tokens_out_mean")
    assert found is not None
    assert (found.reading, found.severity) == ("reward_hack", "blocks")


def test_effort_that_moves_with_a_choice_leaves_the_verdict_to_it(tmp_path: Path) -> None:
    seen = effort(tmp_path, asks=0.4, longer=0.0)
    tokens, questions = about(seen, "tokens_out_mean"), about(seen, "clarification_rate")
    assert tokens is not None
    assert questions is not None
    assert (questions.reading, questions.severity) == ("reward_hack", "blocks")
    assert (tokens.reading, tokens.severity) == ("reward_hack", "warns")
    assert "which is read by itself" in tokens.sentence


@pytest.mark.parametrize(("loss", "rows", "hold"), [(-0.2, 500, True), (-0.2, 100, False), (-0.02, 1000, False)])
def test_a_doubt_holds_only_where_users_might_lose_much(loss: float, rows: int, hold: bool) -> None:
    """By what is not excluded in the slice, over all 1,000 interactions."""
    place = ("clarification_rate", "ambiguity=vague")
    told = Read("not_assessable", "the reward pushes it; too few rows to say what users want", 1)
    pooled = _Pooled({at: {OUTCOME: {"low": 0.0, "rows": n}} for at, n in ((place, rows), ((place[0], ALL), 1000))}, ())
    worth = Worth(0.0, -loss / float(stats.t.isf(0.025, 50)), 50.0)
    assert worth.low == pytest.approx(loss)
    assert _severity(_Out(place, chart("blocks"), told, worth), pooled) == ("warns", hold)
    assert _severity(_Out(place, chart("warns"), told, worth), pooled) == ("notes", False)
    assert _severity(_Out(place, chart("blocks"), told, None), pooled) == ("warns", True)


def chart(status: Status) -> Chart:
    """A chart of which nothing matters but the status."""
    nothing = {field.name: None for field in fields(Chart)}
    return Chart(**{**nothing, "status": status})  # type: ignore[arg-type]
