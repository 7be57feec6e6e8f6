"""Data health, experiments and settings: pages on a seeded home, an empty one, a failing store, unknown ids."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from palomar.app import experiments
from palomar.app.console.charts.base import Theme
from palomar.app.console.charts.forest import WIDEST, drawn, forest, relative, said
from palomar.app.console.charts.losses import drawn_losses, drawn_ripeness, loss_bars
from palomar.app.console.options import STORE_VARIABLE
from palomar.app.health import Loss, Ripeness, health
from palomar.app.service import Observatory
from palomar.data.findings import Finding
from palomar.data.lake import Lake
from palomar.data.slices import ALL
from palomar.data.store import Store
from palomar.data.store.records import LedgerRow, Place, QuarantinedRow
from palomar.detectors.experiment import Effect, ExperimentReport, Validity
from tests.app.console.conftest import said as words
from tests.app.console.conftest import texts

Page = Callable[..., AppTest]
RUN = "seeded"
BEACON = "http://beacon.invalid/x.png"
HOSTILE = f"![beacon]({BEACON}) <script>x</script> :red[directive] $\\LaTeX$ \u202eabc\x1b"
PAGES = {"health": "data health", "experiments": "experiments", "settings": "settings"}
CYCLE = timedelta(hours=5)
PLAN = """
name: ask-or-edit
planned_units: 20
min_units: 10
min_at_risk: 5
arms:
  champion: {checkpoint: checkpoint-0, share: 0.5, role: control}
  candidate: {checkpoint: checkpoint-7, share: 0.5, role: treatment}
"""


def ledger(cycle: int, broken: int, *, received: int = 120) -> list[LedgerRow]:
    counts: list[tuple[Place, str, int]] = [
        ("collected", "", received),
        ("trained", "", 120 - broken),
        ("excluded", "invalid_tool_call", broken),
    ]
    return [LedgerRow(cycle, stratum, *rest) for stratum in (ALL, "predicted failure 0-0.2") for rest in counts]


@pytest.fixture(scope="session")
def trusted_home(seeded: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The seeded run with ledgers, a fault, a record in quarantine, and plans of experiments."""
    home = Path(shutil.copytree(seeded, tmp_path_factory.mktemp("trusted") / "home"))
    told: dict[str, Any] = {"reasons": [], "sentence": "", "findings": {}, "budget": "", "as_of": None}
    with Store.open(None, home) as store:
        for cycle in range(8):
            store.ledger.write(RUN, ledger(cycle, 40 if cycle == 7 else 10 + cycle))
        store.ledger.write(RUN, ledger(3, 10, received=123))
        fault = Finding("outage", severity="warns", sentence=HOSTILE, reading="measurement_fault", slice=HOSTILE)
        for cycle, found in ((6, [fault]), (7, [])):
            store.findings.write(RUN, cycle, found)
            store.verdicts.write(RUN, cycle, verdict="pass", **told)
        store.quarantine.record([QuarantinedRow("1" * 20, HOSTILE, 3, None, "damaged", HOSTILE)], at=datetime.now(UTC))
        (outcome,) = store.statistics.series(RUN, statistics=["outcome_mean"], slices=[ALL], cycles=range(7, 8))
        store.statistics.write(RUN, [replace(outcome, maturity=0.7)])
        store.runs.add("old", name="old", seed=1, config={})
    folder = home / "experiments"
    folder.mkdir()
    (folder / "asked.yaml").write_text(PLAN, encoding="utf-8")
    (folder / "later.yaml").write_text(PLAN.replace("ask-or-edit", "not-begun"), encoding="utf-8")
    (folder / "broken.yaml").write_text("name: [", encoding="utf-8")
    _serve(home)
    return home


def _serve(home: Path) -> None:
    """An experiment of two arms, by the seeded interactions of cycle 0 and 7: users of one arm get the late agent."""
    from palomar.data.facts import facts
    from palomar.data.schema import Interaction
    from palomar.reward.scoring import score
    from palomar.reward.spec import bundled_text, parse_spec

    source = Lake(home / "lake", threads=1)
    made: list[Interaction] = []
    for cycle, arm in ((0, "champion"), (7, "candidate")):
        ids = source.scan("observations", ("interaction_id",), cycles=[cycle])["interaction_id"].to_pylist()
        for number, item in enumerate(source.interactions(ids)):
            made.append(
                item.model_copy(
                    update={
                        # Both arms at once: of users who come one arm after the other, nobody was drawn at random.
                        "started_at": item.started_at - cycle * CYCLE,
                        "ended_at": item.ended_at - cycle * CYCLE,
                        "feedback": tuple(
                            each.model_copy(update={"at": each.at - cycle * CYCLE}) for each in item.feedback
                        ),
                        "interaction_id": f"x-{cycle}-{number}",
                        "cycle": 0,
                        "arm": arm,
                        "user_id": f"{arm}-{number % 60}",
                        "checkpoint": f"checkpoint-{cycle}",
                    }
                )
            )
    lake = Lake(home / "experiments" / "ask-or-edit" / "lake", threads=1)
    lake.append_interactions(made, 0)
    as_of = datetime(2026, 1, 9, tzinfo=UTC)
    lake.write_observations(score(facts(lake, 0, as_of), parse_spec(bundled_text("naive"), source="naive"), as_of), 0)


@pytest.fixture
def home(trusted_home: Path, tmp_path: Path) -> Path:
    """A copy to write to."""
    return Path(shutil.copytree(trusted_home, tmp_path / "home"))


# -- what all share --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_what_is_there(page: Page, trusted_home: Path, name: str) -> None:
    app = page(trusted_home, name, run=RUN)
    assert not app.exception
    assert app.title[0].value.lower() == PAGES[name]
    assert "The same on the command line" in words(app)


@pytest.mark.parametrize("name", PAGES)
def test_an_empty_home_says_what_to_do(page: Page, tmp_path: Path, name: str) -> None:
    app = page(tmp_path / "nothing", name)
    assert not app.exception
    assert "palomar demo" in words(app)
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("name", PAGES)
def test_a_store_that_is_down_is_said(
    page: Page, trusted_home: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STORE_VARIABLE, "postgresql://nobody:secret@127.0.0.1:1/none")
    app = page(trusted_home, name)
    assert not app.exception
    assert "the store does not answer" in app.error[0].value
    assert "secret" not in words(app) + texts(app)


@pytest.mark.parametrize(
    ("name", "query", "expected"),
    [
        ("health", {"cycle": "99"}, "There is no cycle ` 99 `"),
        ("health", {"cycle": f"![x]({BEACON})"}, "There is no cycle"),
        ("experiments", {"plan": f"![x]({BEACON})"}, "There is no experiment"),
        ("settings", {"show": "zzz"}, "There is no show ` zzz `"),
        ("settings", {"run": "zzz"}, "There is no run ` zzz `"),
    ],
)
def test_what_the_url_names_and_is_not_there_is_said(
    page: Page, trusted_home: Path, name: str, query: dict[str, str], expected: str
) -> None:
    app = page(trusted_home, name, **({"run": RUN} | query))
    assert not app.exception
    assert expected in words(app)


@pytest.mark.parametrize(
    ("name", "query"),
    [("health", {"cycle": "6"}), ("health", {"cycle": f"![x]({BEACON})"}), ("experiments", {}), ("settings", {})],
)
def test_hostile_text_is_never_markdown(page: Page, trusted_home: Path, name: str, query: dict[str, str]) -> None:
    app = page(trusted_home, name, **({"run": RUN} | query))
    assert not app.exception
    for line in words(app).splitlines():
        outside = re.sub(r"(`+) .*? \1(?!`)", "", line)
        for attack in ("beacon.invalid", "<script", "LaTeX", ":red[directive", "\u202e", "\x1b"):
            assert attack not in outside, line


# -- data health -----------------------------------------------------------------------------------------------------


def test_the_ledger_that_adds_up_is_said_and_unusual_losses_are_named(page: Page, trusted_home: Path) -> None:
    app = page(trusted_home, "health", run=RUN)
    assert "▲ WARN" in words(app)
    assert "Cycle 7: all 120 samples are accounted for; no fault was found; 1 loss is outside" in words(app)
    assert "● ADDS UP" in words(app)
    assert "` excluded: invalid tool call ` **33.3 %** (40 samples), usually 10 %" in words(app)
    assert "in the 7 cycles before 8.13 to 13.3 %" in words(app)
    table = app.dataframe[0].value
    assert list(table.iloc[0])[:4] == ["all", 120, 80, 40]
    assert table["difference"].sum() == 0


def test_a_ledger_that_does_not_add_up_is_said_first(page: Page, trusted_home: Path) -> None:
    app = page(trusted_home, "health", run=RUN, cycle="3")
    assert "■ FAIL" in words(app)
    assert "Cycle 3: its ledger does not add up" in words(app)
    assert "■ DOES NOT ADD UP] ` all `: 3 samples that went nowhere" in words(app)
    assert "NOT CHECKED" in words(app)


def test_a_fault_is_shown_with_its_words_as_text(page: Page, trusted_home: Path) -> None:
    app = page(trusted_home, "health", run=RUN, cycle="6")
    assert "■ MEASUREMENT FAULT" in words(app)
    faults = next(frame.value for frame in app.dataframe if "what" in frame.value)
    assert faults["detector"][0] == "outage"
    assert "\u202e" not in faults["what"][0]
    assert "**1** records could not be read" in words(app)


def test_a_cycle_without_a_ledger_shows_no_data_and_never_zeros(page: Page, home: Path) -> None:
    with Store.open(None, home) as store:
        store.cycles.start(RUN, 8)
    app = page(home, "health", run=RUN, cycle="8")
    assert not app.exception
    assert "◌ NO DATA] Cycle 8: it has no ledger yet" in words(app)
    assert "**NO DATA**: this cycle has no ledger" in words(app)
    assert not [frame for frame in app.dataframe if "received" in frame.value]


def test_a_run_without_a_cycle_says_so(page: Page, trusted_home: Path) -> None:
    app = page(trusted_home, "health", run="old")
    assert not app.exception
    assert "**No cycle yet.**" in words(app)


def test_feedback_that_is_still_coming_says_when_it_will_be_in(page: Page, trusted_home: Path) -> None:
    found = health(Observatory(trusted_home), RUN)
    assert found is not None
    coming = [each for each in found.ripeness if each.share is not None and each.share < 1]
    assert coming
    app = page(trusted_home, "health", run=RUN)
    for each in coming[-3:]:
        assert each.ready_at is not None
        assert f"cycle {each.cycle}: **{100 * (each.share or 0):.0f} %**" in words(app)
        assert f"in by {each.ready_at:%Y-%m-%d %H:%M} UTC" in words(app)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_loss_bars_have_a_tick_where_something_is_usual_and_none_where_nothing_is(theme: Theme) -> None:
    known = Loss("excluded", "invalid_tool_call", 40, 0.4, usual=0.1, low=0.05, high=0.2)
    new = Loss("waiting", "", 3, 0.03, usual=None, low=None, high=None)
    table = drawn_losses([known, new])
    assert table["reason"].to_pylist() == ["excluded: invalid tool call", "waiting"]
    assert table["usual"].to_pylist() == [0.1, None]
    assert table["state"].to_pylist() == ["unusual", "nothing to compare"]
    assert table["label"].to_pylist() == ["40 % (40) unusual", "3 % (3)"]
    spec = loss_bars([known, new], theme)
    tick = next(layer for layer in spec["layer"] if layer["mark"]["type"] == "tick")
    assert tick["transform"] == [{"filter": "isValid(datum.usual)"}]
    assert spec["layer"][0]["encoding"]["y"]["sort"] == table["reason"].to_pylist()
    many = [Loss("excluded", f"r{number}", 1, 0.01, usual=None, low=None, high=None) for number in range(50)]
    assert drawn_losses(many).num_rows == 15


def test_a_cycle_of_which_nothing_is_known_is_a_gap() -> None:
    points = [Ripeness(0, 1.0, 10, None), Ripeness(1, None, 0, None), Ripeness(2, 0.5, 4, None)]
    table = drawn_ripeness(points)
    assert table["cycle"].to_pylist() == [0, 2]
    assert table["state"].to_pylist() == ["in", "still coming"]


# -- experiments -----------------------------------------------------------------------------------------------------


def test_validity_stands_above_results_and_figures_are_the_reports(page: Page, trusted_home: Path) -> None:
    app = page(trusted_home, "experiments", run=RUN, plan="ask-or-edit")
    assert not app.exception
    plan = experiments.read_plan(trusted_home / "experiments" / "asked.yaml")
    found = experiments.report_of(trusted_home, plan)
    assert found is not None
    assert found.valid
    assert "clarification_rate_clear" in {each.metric for each in found.worse}
    heads = [item.value for item in app.subheader]
    assert heads.index("May it be believed?") < heads.index("What each arm's users got")
    assert "■ WORSE" in words(app)
    validity, effects = (frame.value for frame in app.dataframe)
    assert len(validity) == len(found.validity)
    assert list(effects["treatment"].astype(object).where(effects["treatment"].notna(), None)) == [
        (each.values or {}).get(each.treatment) for each in found.effects
    ]
    known = relative(found.effects)
    assert len(app.get("vega_lite_chart")) == (1 if known else 0)


def test_an_experiment_that_has_not_begun_is_pending(page: Page, trusted_home: Path) -> None:
    app = page(trusted_home, "experiments", run=RUN, plan="not-begun")
    assert not app.exception
    assert "○ PENDING] Nothing of ` not-begun ` was collected yet" in words(app)
    assert not app.dataframe
    assert not app.get("vega_lite_chart")


def test_a_plan_that_cannot_be_read_is_said_with_its_line(page: Page, trusted_home: Path) -> None:
    app = page(trusted_home, "experiments", run=RUN, plan="broken")
    assert not app.exception
    assert "cannot be read" in app.error[0].value
    assert "broken.yaml" in texts(app)


def test_a_home_without_plans_says_where_they_belong(page: Page, seeded: Path) -> None:
    app = page(seeded, "experiments")
    assert "**No experiment is planned here.**" in words(app)
    assert texts(app).splitlines()[0] == str(seeded / "experiments")


def test_a_report_is_made_once_until_plan_or_lake_change(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    real = experiments.report_of
    monkeypatch.setattr(experiments, "report_of", lambda home, plan: (made.append(1), real(home, plan))[1])
    plan = experiments.read_plan(home / "experiments" / "asked.yaml")
    first = experiments.report_at(home, plan)
    assert experiments.report_at(home, plan) is first
    assert len(made) == 1
    experiments.report_at(home, plan.model_copy(update={"alpha": 0.1}))
    assert len(made) == 2
    file = experiments.lake_of(home, plan).files("observations")[0]
    file.touch()
    assert experiments.report_at(home, plan) == first
    assert len(made) == 3


def effect(metric: str, change: float | None, low: float | None, high: float | None, **more: Any) -> Effect:
    given: dict[str, Any] = {
        "better": "up",
        "control": "a",
        "treatment": "b",
        "effect": change,
        "low": low,
        "high": high,
        "relative": change,
        "relative_low": low,
        "relative_high": high,
        "units": {"a": 100, "b": 100},
        "alpha": 0.05,
        "status": "known",
        "why": "",
        "error": 0.01,
        "planned": 200,
        **more,
    }
    return Effect(metric, **given)


def test_the_forest_draws_what_is_known_and_cuts_what_would_flatten_it() -> None:
    effects = (
        effect("worse", -0.5, -0.6, -0.4),
        effect("same", 0.0, -0.05, 0.05),
        effect("far", 12.0, 8.0, 35.0),
        effect("unripe", 0.2, 0.1, 0.3, status="immature", why="not yet"),
        effect("nothing", None, None, None, status="too_few", why="few"),
    )
    report = ExperimentReport("x", {"a": "1", "b": "2"}, effects, (), datetime.now(UTC))
    table = drawn(report, effects)
    assert table["metric"].to_pylist() == ["worse", "same", "far"]
    assert table["state"].to_pylist() == ["worse", "not shown", "better"]
    assert table["change"].to_pylist() == [-0.5, 0.0, WIDEST]
    assert table["label"].to_pylist() == ["-50.0% worse", "+0.0%", "+1200.0% better (cut)"]
    spec = forest(report, effects, "dark")
    assert spec["layer"][1]["encoding"]["y"]["sort"] == ["worse", "same", "far"]
    assert said(effects).startswith("worse -50.0% (-60.0% to -40.0%)")
    assert drawn(report, effects[3:]).num_rows == 0


def test_a_broken_comparison_shows_no_effect(page: Page, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = experiments.read_plan(home / "experiments" / "asked.yaml")
    real = experiments.report_of(home, plan)
    assert real is not None
    broken = ExperimentReport(
        real.name,
        real.arms,
        real.effects,
        (Validity("assignment", "fail", 2000.0, 1000.0, HOSTILE), *real.validity[1:]),
        real.as_of,
    )
    monkeypatch.setattr(experiments, "report_at", lambda *_: broken)
    app = page(home, "experiments", run=RUN, plan="ask-or-edit")
    assert "■ BROKEN] 1 conditions fail: no effect may be believed" in words(app)
    assert not app.get("vega_lite_chart")
    assert app.dataframe[0].value[""][0] == "■ FAIL"


# -- settings --------------------------------------------------------------------------------------------------------


def test_settings_are_shown_with_what_was_set(page: Page, trusted_home: Path) -> None:
    app = page(trusted_home, "settings", run=RUN)
    table = app.dataframe[0].value
    assert list(table["setting"]) == ["reward"]
    assert list(table[""]) == ["default"]
    app.selectbox(key="show-all").select("set").run()
    assert "None: everything is as it stands without settings." in words(app)
    frames = [frame.value for frame in app.dataframe]
    assert any("library" in frame and "streamlit" in list(frame["library"]) for frame in frames)
    assert any("detector" in frame and len(frame) > 15 for frame in frames)
    assert str(trusted_home / "palomar.db") in list(next(frame for frame in frames if "where" in frame)["where"])
