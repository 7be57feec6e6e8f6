"""Behaviour, pressure, and slices and terms: each page seeded, empty, without a store, with unknown ids and attacks."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from palomar.app import pressing, why
from palomar.app.console.options import STORE_VARIABLE
from palomar.app.control import Band, controlled
from palomar.app.kept import Pending
from palomar.app.service import Observatory
from palomar.data.findings import Finding
from palomar.data.slices import ALL
from palomar.data.store import Store
from palomar.data.store.records import Forecast
from palomar.detectors.matrix import Matrix, matrix
from palomar.reward.charges import OUTCOME, REWARD
from tests.app.console.conftest import outside_code, said

RUN, HARD = "seeded", "predicted_failure=high"
BEACON = "http://beacon.invalid/x.png"
HOSTILE = f"![x]({BEACON}) <script>alert(1)</script> :red[x] $x$ \u202egnissim"
ATTACKS = ("beacon.invalid", "<script", ":red[x", "$x$", "\u202e")
PAGES = ("pressure", "why")
Page = Callable[..., AppTest]


@pytest.fixture(scope="session")
def told(seeded: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The seeded run with a finding, forecasts, and a hostile organisation among its statistics."""
    home = Path(shutil.copytree(seeded, tmp_path_factory.mktemp("told") / "home"))
    with Store.open(None, home) as store:
        finding = Finding(
            "behaviour", "blocks", f"asks {HOSTILE}", statistic="clarification_rate", slice=HARD, before=0.1, after=0.6,
            unit="share of interactions", reading="reward_hack", n=40, detail={"why": f"because {HOSTILE}"},
        )  # fmt: skip
        foreign = Finding("own", "warns", HOSTILE, statistic=HOSTILE, slice=f"organisation={HOSTILE}")
        store.findings.write(RUN, 7, [finding, foreign])
        store.verdicts.write(
            RUN, 7, verdict="block", reasons=[], sentence="", findings={}, budget="", as_of=None
        )  # fmt: skip
        made = [Forecast(cycle, cycle + 1, "clarification_rate", 0.5, 0.1, HARD, 0.3, 0.7) for cycle in range(4, 7)]
        for each in made:
            store.forecasts.write(RUN, each.made_in, [each])
        store.forecasts.score(RUN, 5, {("clarification_rate", HARD): 0.5})
        store.forecasts.score(RUN, 6, {("clarification_rate", HARD): 0.9})
    return home


def id_of(home: Path, position: int = 0) -> str:
    with Store.open(None, home) as store:
        return store.findings.read(RUN, 7)[position].finding_id


# -- all pages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAGES)
def test_a_page_of_a_seeded_run_shows_charts_and_how_the_command_says_the_same(
    page: Page, told: Path, name: str
) -> None:
    app = page(told, name)
    for _ in range(60):  # a machine that is busy may take a while to compute what is then kept
        if "PENDING" not in said(app):
            break
        time.sleep(1)
        app.run()
    assert not app.exception
    assert not app.error
    assert app.get("vega_lite_chart")
    assert f"palomar {name} " in said(app)


@pytest.mark.parametrize("name", PAGES)
def test_an_empty_home_says_what_to_do(page: Page, tmp_path: Path, name: str) -> None:
    app = page(tmp_path / "nothing", name)
    assert not app.exception
    assert "palomar demo" in said(app)


@pytest.mark.parametrize("name", PAGES)
def test_logs_outside_a_loop_say_why_there_is_nothing_to_show(page: Page, logs: Path, name: str) -> None:
    app = page(logs, name)
    assert not app.exception
    assert "holds logs outside a loop" in said(app)
    assert not app.get("vega_lite_chart")


@pytest.mark.parametrize("name", [*PAGES, "behaviour"])
def test_a_store_that_is_down_is_said(page: Page, told: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STORE_VARIABLE, "postgresql://nobody:secret@127.0.0.1:1/none")
    app = page(told, name, stat="clarification_rate")
    assert not app.exception
    assert "the store does not answer" in app.error[0].value
    assert "secret" not in said(app)


@pytest.mark.parametrize(
    ("name", "query", "words"),
    [
        ("pressure", {"cycle": HOSTILE}, "There is no cycle"),
        ("pressure", {"slice": HOSTILE, "pool": "77", "cmp": "none such"}, "There is no slice"),
        ("why", {"alarm": HOSTILE}, "There is no alarm"),
        ("why", {"alarm": "424242"}, "There is no alarm ` 424242 `"),
        ("why", {"stat": HOSTILE, "to": "99", "from": "x", "by": "y"}, "There is no statistic"),
        ("why", {"stat": "edit_rate", "slice": HOSTILE}, "is no band of hard or vague"),
        ("behaviour", {"stat": "edit_rate", "from": HOSTILE, "to": "77", "cmp": HOSTILE}, "There is no from cycle"),
    ],
)
def test_unknown_and_hostile_values_of_the_url_are_said_and_stay_text(
    page: Page, told: Path, name: str, query: dict[str, str], words: str
) -> None:
    app = page(told, name, **query)
    assert not app.exception
    assert words in said(app)
    labels = [str(getattr(item, "label", "")) for kind in ("selectbox", "button") for item in app.get(kind)]
    for text in (outside_code(said(app)), *labels):
        assert not [attack for attack in ATTACKS if attack in text]


# -- pressure --------------------------------------------------------------------------------------------------------


def test_the_matrix_shows_the_services_numbers(page: Page, told: Path) -> None:
    pressing.pressed(Observatory(told), RUN, 7, HARD)
    app = page(told, "pressure", cycle="7", slice=HARD)
    found = pressing.pressed(Observatory(told), RUN, 7, HARD)
    assert isinstance(found, pressing.Pressed)
    assert isinstance(found.matrix, Matrix)
    table = app.dataframe[0].value
    assert list(table["reward per step"].dropna()) == [
        line.cells[REWARD].value for line in found.matrix.lines if line.cells[REWARD].value is not None
    ]
    asks = next(line for line in found.matrix.lines if line.statistic == "clarification_rate")
    assert asks.drifted
    assert asks.reading == "reward_hack"
    assert "■ REWARD HACK" in list(table["reading"])
    assert f"({found.matrix.rows:,} interactions" in said(app)
    assert "palomar pressure --cycle 7 --slice predicted_failure=high" in said(app)


def test_the_sentence_counts_what_is_pushed_now_apart_from_what_the_check_read() -> None:
    from palomar.app.console.views.pressure import headline

    def cell(kind: str, value: float) -> dict[str, object]:
        sure = abs(value) > 0.05
        verdict = "unclear" if not sure else "along_up" if value > 0 else "along_down"
        return {
            "kind": kind, "slice": ALL, "value": value, "low": value - 0.04, "high": value + 0.04, "z": 50 * value,
            "spread": 0.5, "signal_spread": 1.0, "status": "ok", "verdict": verdict, "needed_n": None, "clusters": 300,
            "rows": 1_000, "n": 900, "level": 0.4,
        }  # fmt: skip

    pressures = {"edit_rate": (-0.1, 0.1), "clarification_rate": (0.01, -0.1), "tool_calls_mean": (0.1, 0.1)}
    rows = [
        {"statistic": name, **cell(kind, value)}
        for name, pair in pressures.items()
        for kind, value in zip((REWARD, OUTCOME), pair, strict=True)
    ]
    read = Finding("behaviour", "blocks", "x", statistic="clarification_rate", reading="reward_hack")
    text = headline(matrix(ALL, rows, [read]), pressing.Pressed((7,), None))
    assert "surely pushes **2 of 3** behaviours; **1 of them not for users**: edit rate ▼." in text
    assert "The check of cycle 7 read **1 as reward hacks**" in text
    assert "What the reward does to users' outcome is not known yet" in text


def test_what_is_not_there_yet_is_pending(page: Page, told: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pressing, "pressed", lambda *_, **__: Pending(3.2))
    monkeypatch.setattr(pressing, "curves_of", lambda *_, **__: Pending(3.2))
    app = page(told, "pressure")
    assert not app.exception
    assert "PENDING.** Pressures of cycle 7 are being computed, for 3 s now" in said(app)
    assert "PENDING.** Incentive curves" in said(app)
    assert not app.get("vega_lite_chart")


# -- slices and terms ------------------------------------------------------------------------------------------------


def test_an_alarm_opens_its_statistic_slice_and_cycle_with_the_services_shares(page: Page, told: Path) -> None:
    app = page(told, "why", alarm=id_of(told))
    assert not app.exception
    assert "reward hack: the reward pushes it and users do not want it" in said(app)
    found = why.slices_of(Observatory(told), RUN, "clarification_rate", 7).excess
    assert found is not None
    table = app.dataframe[0].value
    assert list(table["share of the change"]) == pytest.approx(
        [*(item.share for item in found.slices), found.mix_share, 1.0]
    )
    assert list(table["slice"])[-2:] == ["other requests (mix)", "all"]
    change = why.reward_between(Observatory(told), RUN, range(7), 7).change
    assert change is not None
    assert f"**{change.before:.3g} → {change.after:.3g}**" in said(app)
    assert "What pushes it where predicted failure is high" in said(app)
    assert f"--to 7 --slice {HARD}" in said(app)


def test_an_alarm_about_no_statistic_says_so_and_shows_what_there_is(page: Page, told: Path) -> None:
    app = page(told, "why", alarm=id_of(told, 1))
    assert not app.exception
    assert "which is not measured by slice" in said(app)
    assert app.get("vega_lite_chart")
    assert not [attack for attack in ATTACKS if attack in outside_code(said(app))]


def test_one_cycle_is_compared_with_another_by_other_slices(page: Page, told: Path) -> None:
    app = page(told, "why", **{"stat": "edit_rate", "from": "2", "to": "6", "by": "organisation"})
    assert not app.exception
    found = why.slices_of(Observatory(told), RUN, "edit_rate", 6, by=("organisation",), reference=(2,)).excess
    assert found is not None
    assert "in cycle 6 against cycle 2" in said(app)
    assert list(app.dataframe[0].value["slice"])[:2] == [f"organisation is {item.slice[13:]}" for item in found.slices]
    assert "--from 2 --by organisation" in said(app)


def test_a_statistic_that_does_not_add_up_keeps_its_heat_map(page: Page, told: Path) -> None:
    app = page(told, "why", stat="function_lines_median")
    assert not app.exception
    assert "not split by slices" in said(app)
    assert "Change against" in said(app)


# -- behaviour -------------------------------------------------------------------------------------------------------


def test_one_statistic_shows_forecasts_findings_and_another_slice_beside_it(page: Page, told: Path) -> None:
    app = page(told, "behaviour", stat="clarification_rate", slice=HARD, cmp=f"slice:{ALL}", **{"from": "3", "to": "7"})
    assert not app.exception
    assert "what came lay inside the interval in **1 of 2** (50 %; 90 % would be right)" in said(app)
    assert "For cycle 7: 50.0 % (30.0 % to 70.0 %), not known yet" in said(app)
    assert "■ BLOCKS] cycle 7, ` behaviour ` · reward hack · 10.0 % → 60.0 %" in said(app)
    forecasts = app.dataframe[0].value
    assert list(forecasts["what came"]) == ["○ not known yet", "▲ outside", "● inside"]
    points = Observatory(told).series(RUN, ["clarification_rate"], [HARD])
    assert list(app.dataframe[1].value["cycle"]) == [7, 6, 5, 4, 3]
    assert list(app.dataframe[1].value["value"]) == [point.value for point in reversed(points)][:5]
    assert "■ dashed: what it is compared with" in said(app)


def test_a_run_of_the_baseline_says_that_it_has_no_band(told: Path) -> None:
    found = controlled(Observatory(told), RUN, "clarification_rate", HARD)
    assert isinstance(found.band, Band)
    assert found.band.low is None
    assert found.band.why
    assert set(found.states) <= {"no band", "immature"}
    assert (found.scored.known, found.scored.inside) == (2, 1)
    assert [each.cycle for each in found.findings] == [7]


def test_pages_leave_no_cache_between_homes(page: Page, told: Path, seeded: Path) -> None:
    """What is kept is kept by the lake's place and state: another home is another answer."""
    first = pressing.pressed(Observatory(told), RUN, 7)
    second = pressing.pressed(Observatory(seeded), RUN, 7)
    assert isinstance(first, pressing.Pressed)
    assert isinstance(second, pressing.Pressed)
    assert (first.checked, second.checked) == (True, False)
    assert OUTCOME in (first.matrix.kinds if first.matrix else ())
