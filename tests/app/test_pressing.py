"""The matrix and the curves as pages ask for them, and control charts, against what they are made from."""

from __future__ import annotations

import json
import shutil

import pytest
from typer.testing import CliRunner

from palomar.app import pressing
from palomar.app.cli import app
from palomar.app.control import Band, controlled
from palomar.app.kept import Kept, Pending
from palomar.app.service import Observatory
from palomar.data.lake import Lake
from palomar.data.slices import ALL
from palomar.data.store import Store
from palomar.data.store.records import Forecast
from palomar.detectors.checks._examples import rows as example_rows
from palomar.detectors.checks.drift import charts
from palomar.detectors.measure import measure
from palomar.detectors.pressure import combined, cycle_pressures
from palomar.detectors.runs import view_of
from palomar.reward.behaviours import Logged
from palomar.reward.incentives import incentives
from palomar.reward.spec import bundled, bundled_text, version
from palomar.reward.versions import register

NAIVE = version(bundled("naive"))
HARD = "predicted_failure=high"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, lake_with_holes: Lake) -> Observatory:
    """A run of four cycles under the naive reward; tests only read it."""
    path = tmp_path_factory.mktemp("pressing")
    shutil.copytree(lake_with_holes.root, path / "lake")
    with Store.open(None, path) as store:
        register(store, bundled("naive"), text=bundled_text("naive"), reason="first", actor="ann")
        store.runs.add("run", name="run", seed=0, config={})
        store.rewards.schedule("run", NAIVE, from_cycle=0)
        for cycle in range(4):
            store.cycles.start("run", cycle, reward_version=NAIVE)
    return Observatory(path)


def test_the_matrix_of_one_cycle_is_what_the_command_prints(home: Observatory) -> None:
    found = pressing.pressed(home, "run", 3, HARD)
    assert isinstance(found, pressing.Pressed)
    assert found.matrix is not None
    done = CliRunner().invoke(app, ["pressure", "--cycle", "3", "--slice", HARD, "--home", str(home.home), "--json"])
    told = {(row["statistic"], row["kind"]): row for row in json.loads(done.stdout)["rows"]}
    cells = {(line.statistic, kind): cell for line in found.matrix.lines for kind, cell in line.cells.items()}
    assert set(cells) == set(told)
    for place, cell in cells.items():
        assert (cell.value, cell.low, cell.high, cell.verdict) == tuple(
            told[place][name] for name in ("value", "low", "high", "verdict")
        )


def test_pooled_cycles_are_each_cycles_own_put_together_here_and_in_the_command(home: Observatory) -> None:
    found = pressing.pressed(home, "run", 3, ALL, last=3)
    assert isinstance(found, pressing.Pressed)
    assert found.matrix is not None
    assert found.cycles == (1, 2, 3)
    specs = {NAIVE: bundled("naive")}
    table = combined([cycle_pressures(home.lake, cycle, specs) for cycle in (1, 2, 3)]).to_pylist()
    known = {(row["statistic"], row["kind"]): row["value"] for row in table if row["slice"] == ALL}
    assert {
        (line.statistic, kind): cell.value for line in found.matrix.lines for kind, cell in line.cells.items()
    } == known
    arguments = ["pressure", "--cycle", "3", "--last", "3", "--slice", ALL, "--home", str(home.home), "--json"]
    told = json.loads(CliRunner().invoke(app, arguments).stdout)
    assert told["cycles"] == [1, 2, 3]
    assert {(row["statistic"], row["kind"]): row["value"] for row in told["rows"]} == known
    assert CliRunner().invoke(app, [*arguments, "--cycle", "2"]).exit_code == 2


def test_a_cycle_that_is_not_there_has_no_matrix_and_no_curves(home: Observatory) -> None:
    found, curves = pressing.pressed(home, "run", 9), pressing.curves_of(home, "run", 9)
    assert isinstance(found, pressing.Pressed)
    assert isinstance(curves, pressing.Curves)
    assert found.matrix is None
    assert "not in the lake" in found.why
    assert "not in the lake" in curves.why


def test_curves_are_the_rewards_incentives_and_made_once(home: Observatory, monkeypatch: pytest.MonkeyPatch) -> None:
    found = pressing.curves_of(home, "run", 1)
    assert isinstance(found, pressing.Curves)
    made = incentives(Logged.read(home.lake, [0, 1]), bundled("naive"))
    assert (found.cycles, found.num_rows, found.reward) == ((0, 1), 1_000, NAIVE)
    for ours, theirs in zip(found.estimates, made.estimates, strict=True):
        assert ours == theirs
    assert any(each.status == "ok" for each in found.estimates)
    # Another process finds them beside the lake.
    monkeypatch.setattr(pressing, "_CURVES", Kept(4))
    monkeypatch.setattr(pressing, "incentives", lambda *_: pytest.fail("they are kept"))
    again = pressing.curves_of(home, "run", 1)
    assert again == found


def test_curves_rest_on_the_newest_cycles_that_fit(home: Observatory, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(pressing, "MOST_ROWS", 1_100)
    monkeypatch.setattr(pressing, "_curves", lambda _, cycles, *__: asked.append(cycles))
    pressing.curves_of(home, "run", 3)
    monkeypatch.setattr(pressing, "MOST_ROWS", 10)
    pressing.curves_of(home, "run", 3)
    assert asked == [(2, 3), (3,)]


def test_what_is_slow_is_pending(home: Observatory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pressing, "_curves", lambda *_: __import__("time").sleep(0.5))
    monkeypatch.setattr(pressing, "MOST_ROWS", 999)
    assert isinstance(pressing.curves_of(home, "run", 2, wait_s=0.01), Pending)


# -- control charts --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Observatory:
    """Twelve cycles; questions rise in the last two, and the reward changed for cycle 9."""
    path = tmp_path_factory.mktemp("long")
    lake = Lake(path / "lake")
    for cycle in range(12):
        lake.write_observations(example_rows(cycle, 600, more_asked=0.3 if cycle > 9 else 0.0), cycle)
    with Store.open(None, path) as store:
        register(store, bundled("naive"), text=bundled_text("naive"), reason="first", actor="ann")
        register(store, bundled("sound"), text=bundled_text("sound"), reason="better", actor="ann")
        store.runs.add("run", name="run", seed=0, config={})
        store.rewards.schedule("run", NAIVE, from_cycle=0)
        store.rewards.schedule("run", version(bundled("sound")), from_cycle=9)
        for cycle in range(12):
            store.cycles.start("run", cycle, reward_version=NAIVE if cycle < 9 else version(bundled("sound")))
        store.statistics.write("run", measure(lake, range(12)))
        for cycle in range(9, 12):
            made = Forecast(cycle, cycle + 1, "clarification_rate", 0.2, 0.0, ALL, 0.1, 0.3)
            store.forecasts.write("run", cycle, [made])
        store.forecasts.score("run", 10, {("clarification_rate", ALL): 0.25})
        store.forecasts.score("run", 11, {("clarification_rate", ALL): 0.5})
    return Observatory(path)


def test_a_control_chart_has_the_checks_band_and_says_which_points_lie_outside(long: Observatory) -> None:
    found = controlled(long, "run", "clarification_rate")
    said = {(each.metric, each.slice): each for each in charts(view_of(long.lake, long.store, "run", 11))
            if each.kind == "mean"}["clarification_rate", ALL]  # fmt: skip
    assert isinstance(found.band, Band)
    assert (found.band.low, found.band.high, found.band.level) == (said.low, said.high, said.reference)
    assert (found.band.status, found.band.first_out, found.band.cycle) == ("blocks", 10, 11)
    assert found.band.reference == tuple(range(8))
    assert found.states == ("reference",) * 8 + ("inside",) * 2 + ("outside",) * 2
    assert [(each.cycle, each.version) for each in found.versions] == [(9, version(bundled("sound")))]
    assert (found.scored.known, found.scored.inside) == (2, 1)


def test_a_window_cuts_what_is_shown_and_not_what_is_scored(long: Observatory) -> None:
    found = controlled(long, "run", "clarification_rate", cycles=range(10, 11))
    assert [point.cycle for point in found.points] == [10]
    assert [each.for_cycle for each in found.forecasts] == [10, 11]
    assert found.versions == ()
    assert found.scored.known == 2


def test_what_the_check_charts_on_another_scale_has_a_band_in_words_only(long: Observatory) -> None:
    found = controlled(long, "run", "latency_mean")
    assert isinstance(found.band, Band)
    assert not found.band.same_scale
    assert set(found.states) == {"no band"}
    none = controlled(long, "run", "function_lines_median")
    assert isinstance(none.band, Band)
    assert (none.band.low, none.band.why) == (None, "the check does not chart it in this slice")
