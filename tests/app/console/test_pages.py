"""Every page on a seeded home, an empty one, one whose store is down, one with logs only, and with hostile text."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from palomar.app.console import frame
from palomar.app.console.options import STORE_VARIABLE
from palomar.app.service import Observatory
from palomar.data.store import Store
from tests.app.console.conftest import said

RUN = "seeded"
BEACON = "http://beacon.invalid/x.png"
Page = Callable[..., AppTest]
PAGES = ("overview", "behaviour", "trajectory")


@pytest.mark.parametrize("name", PAGES)
def test_a_seeded_page_shows_the_run_without_an_exception(page: Page, seeded: Path, name: str) -> None:
    app = page(seeded, name)
    assert not app.exception
    assert app.title[0].value.lower() == name
    assert "COMPLETE" in said(app)
    assert "8 cycles done" in said(app)
    assert not app.error


@pytest.mark.parametrize("name", PAGES)
def test_an_empty_home_says_what_to_do_and_is_left_empty(page: Page, tmp_path: Path, name: str) -> None:
    home = tmp_path / "nothing"
    app = page(home, name)
    assert not app.exception
    assert "palomar demo" in said(app)
    assert "palomar ingest PATH" in said(app)
    assert not home.exists()


@pytest.mark.parametrize("name", PAGES)
def test_a_store_that_is_down_is_said_on_the_page(
    page: Page, seeded: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STORE_VARIABLE, "postgresql://nobody:secret@127.0.0.1:1/none")
    app = page(seeded, name)
    assert not app.exception
    assert "STORE NOT REACHABLE" in said(app)
    if name != "trajectory":  # which needs no store: its list and its records are in the lake
        assert "the store does not answer" in app.error[0].value
        assert "127.0.0.1" in app.code[0].value
    assert "secret" not in said(app) + "".join(block.value for block in app.code)


@pytest.mark.parametrize("name", PAGES)
def test_a_damaged_store_is_said_on_the_page(page: Page, copied: Path, name: str) -> None:
    (copied / "palomar.db").write_bytes(b"not a database" * 100)
    app = page(copied, name)
    assert not app.exception
    assert "STORE NOT REACHABLE" in said(app)


def test_a_store_that_is_begun_afresh_is_taken_up(page: Page, copied: Path) -> None:
    assert "8 cycles done" in said(page(copied))
    for file in copied.glob("palomar.db*"):
        file.unlink()
    assert "NO RUN" in said(page(copied))
    with Store.open(None, copied) as store:
        store.runs.add("new", name="new", seed=1, config={})
        # The console may still hold the old file open; it says so once, then opens the new one.
        page(copied)
        app = page(copied)
        assert not app.exception
        assert "run ` new `" in said(app)
        assert "The first cycle is being collected" in said(app)


@pytest.mark.parametrize("name", PAGES)
def test_logs_without_a_run_are_shown(page: Page, logs: Path, name: str) -> None:
    app = page(logs, name)
    assert not app.exception
    assert not app.error
    assert "NO RUN" in said(app)
    if name == "overview":
        assert "31 interactions from 1 format" in said(app)
        assert "1 records could not be read: damaged 1" in said(app)
    elif name == "behaviour":
        assert "31 interactions outside a loop" in said(app)
        # What cannot be measured is named, not drawn and not a row.
        assert "NO DATA" in said(app)
        assert "Reward" not in list(app.dataframe[0].value["statistic"])
    else:
        assert "31 interactions in logs outside a loop" in said(app)
        assert app.selectbox(key="cycle-none").options == ["logs outside a loop"]


def test_statistics_of_logs_are_measured_again_only_when_a_file_has_changed(copied: Path) -> None:
    observatory = Observatory(copied)
    first = observatory.measured()
    assert first
    assert observatory._measured is not None
    kept = observatory._measured[1]
    observatory.measured()
    assert observatory._measured[1] is kept
    observatory.lake.write_observations(observatory.lake.scan("observations", _columns(observatory), cycles=[3]), 3)
    observatory.measured()
    assert observatory._measured[1] is not kept


def _columns(observatory: Observatory) -> list[str]:
    return [row[0] for row in observatory.lake.connect(["observations"]).execute("DESCRIBE observations").fetchall()]


# -- overview --------------------------------------------------------------------------------------------------------


def test_the_overview_says_first_what_is_wrong_with_the_stores_numbers(page: Page, seeded: Path) -> None:
    app = page(seeded)
    seen = Observatory(seeded).seen(RUN)
    dodge, deferral = seen["invalid-call dodge"], seen["edit deferral"]
    assert dodge is not None
    assert deferral is not None
    assert app.warning
    assert "known hacks show" in app.warning[0].value
    assert f"{dodge.base:.3g} → {dodge.latest:.3g} calls per assistant turn" in said(app)
    assert f"away since cycle {deferral.since_cycle}" in said(app)
    table = app.dataframe[0].value
    assert list(table["cycle"]) == list(range(7, -1, -1))
    figures = Observatory(seeded).cycles(RUN)[-1].figures
    assert table["edit rate"][0] == figures["edit_rate"].value
    assert table["interactions"][0] == figures["edit_rate"].n == 120
    assert set(table["gate"]) == {"● PROMOTED"}
    assert len(app.get("vega_lite_chart")) == 1


def test_a_hack_that_cannot_be_assessed_yet_is_not_said_to_be_absent(page: Page, copied: Path) -> None:
    with sqlite3.connect(copied / "palomar.db") as store:
        store.execute("UPDATE statistics SET value = NULL, status = 'no data' WHERE cycle > 2")
    app = page(copied)
    assert "NOT SEEN" not in said(app)
    assert said(app).count("NOT ASSESSED]") == 3
    assert "NOT ASSESSED, for want of data: invalid-call dodge" in said(app)


def test_a_run_that_has_just_begun_says_so(page: Page, tmp_path: Path) -> None:
    with Store.open(None, tmp_path) as store:
        store.runs.add("begun", name="begun", seed=0, config={})
        store.cycles.start("begun", 0)
    app = page(tmp_path)
    assert "RUNNING" in said(app)
    assert "cycle 0 is at **collect**" in said(app)
    assert "being collected" in app.info[0].value


def test_a_stopped_run_says_why_and_a_silent_one_that_it_is_quiet(seeded: Path) -> None:
    observatory = Observatory(seeded)
    run = observatory.run()
    assert run is not None
    views = observatory.cycles(RUN)
    now = max(stage.finished_at for view in views for stage in view.record.stages)
    going = type(run)(**{**vars(run), "status": "running"})
    assert "RUNNING" in frame.standing(going, views, now + timedelta(minutes=4))
    assert "QUIET] for 6 min" in frame.standing(going, views, now + timedelta(minutes=6))
    last = views[-1]
    stopped = type(last.record)(**{**vars(last.record), "status": "stopped", "problem": "samples do **not** add up"})
    views[-1] = type(last)(**{**vars(last), "record": stopped})
    assert "STOPPED] in cycle 7: ` samples do **not** add up `" in frame.standing(going, views, now)


# -- behaviour -------------------------------------------------------------------------------------------------------


def test_behaviour_follows_the_slice_in_the_url(page: Page, seeded: Path) -> None:
    app = page(seeded, "behaviour", slice="predicted_failure=high")
    assert not app.exception
    assert app.selectbox(key="slice-predicted_failure=high").value == "predicted_failure=high"
    value = Observatory(seeded).series(RUN, ["invalid_call_rate"], ["predicted_failure=high"])[-1].value
    assert f"**{value:.3g}** calls per assistant turn · n 40" in said(app)
    assert "--slice predicted_failure=high" in said(app)
    app.selectbox(key="slice-predicted_failure=high").select("all").run()
    assert app.query_params["slice"] == "all"
    assert app.selectbox(key="slice-all").value == "all"


def test_behaviour_says_which_values_of_the_url_it_does_not_know(page: Page, seeded: Path) -> None:
    app = page(seeded, "behaviour", slice=f"![x]({BEACON})", stat="zzz", group="yyy")
    warnings = [item.value for item in app.warning]
    assert f"There is no slice ` ![x]({BEACON}) ` here; this is ` all interactions `." in warnings
    assert any("There is no statistic ` zzz `" in text for text in warnings)
    assert any("There is no statistics ` yyy `" in text for text in warnings)
    assert app.get("vega_lite_chart")


def test_one_statistic_is_shown_large_with_its_meaning(page: Page, seeded: Path) -> None:
    app = page(seeded, "behaviour", slice="all", stat="invalid_call_rate")
    assert not app.exception
    assert app.subheader[0].value == "Invalid tool calls"
    assert "away from the level of the first cycles since cycle" in app.warning[0].value
    assert "a policy that makes no calls does not hide it" in app.text[0].value
    assert len(app.get("vega_lite_chart")) == 1
    points = Observatory(seeded).series(RUN, ["invalid_call_rate"], ["all"])
    assert list(app.dataframe[-1].value["value"]) == [point.value for point in reversed(points)]


@pytest.mark.parametrize("group", ["all", "all that moved", "users"])
def test_every_group_is_shown_and_statistics_without_data_are_named_not_drawn(
    page: Page, seeded: Path, group: str
) -> None:
    app = page(seeded, "behaviour", group=group)
    assert not app.exception
    charts = app.get("vega_lite_chart")
    assert charts
    if group == "all":
        found = Observatory(seeded).behaviour(RUN)
        empty = [name for name, points in found.series.items() if all(point.value is None for point in points)]
        assert empty
        assert len(charts) == len(found.series) - len(empty)
        assert "Logged reward" in next(item.value for item in app.caption if item.value.startswith("NO DATA"))


# -- trajectory ------------------------------------------------------------------------------------------------------


def test_the_list_is_paged_filtered_and_never_reads_a_transcript(
    page: Page, seeded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("palomar.data.lake.Lake.interaction", lambda *_: pytest.fail("a list reads no transcript"))
    app = page(seeded, "trajectory", cycle="2", page="3")
    assert "120 interactions in cycle 2**; these are 101 to 120" in said(app)
    assert app.dataframe[0].value["id"][0] == "seed-2-100"
    app = page(seeded, "trajectory", cycle="7", only="invalid call")
    assert set(app.dataframe[0].value["invalid calls"]) == {1}
    app.selectbox(key="only-invalid call").select("asked").run()
    assert app.query_params["only"] == "asked"
    assert set(app.dataframe[0].value["did"]) == {"asked"}


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"cycle": "99"}, "no cycle ` 99 `"),
        ({"only": "x"}, "no only ` x `"),
        ({"page": "77"}, "no page ` 77 `"),
        ({"page": "-1"}, "no page"),
        ({"page": "²"}, "no page"),
    ],
)
def test_the_list_says_which_values_of_the_url_it_does_not_know(
    page: Page, seeded: Path, query: dict[str, str], words: str
) -> None:
    app = page(seeded, "trajectory", **query)
    assert not app.exception
    assert words in app.warning[0].value
    assert len(app.dataframe[0].value) > 0


def test_an_id_that_is_typed_opens_that_trajectory(page: Page, seeded: Path) -> None:
    app = page(seeded, "trajectory", cycle="1")
    app.selectbox(key="open-1-everything-1").set_value("seed-1-004").run()
    assert app.query_params["id"] == "seed-1-004"
    assert "**Interaction** ` seed-1-004 `" in said(app)


def test_a_trajectory_shows_calls_edits_reactions_and_what_was_paid(page: Page, seeded: Path) -> None:
    app = page(seeded, "trajectory", id="seed-6-003")  # hard, so its call is broken by then
    assert not app.exception
    known = Observatory(seeded).trajectory("seed-6-003")
    assert "INVALID: malformed" in said(app)
    assert f"reward **{known.observation['reward']:+.3g}**" in said(app)
    assert "LEFT OUT OF TRAINING] ` invalid_tool_call `" in said(app)
    assert '{"path": "core.py"' in [block.value for block in app.code]
    app = page(seeded, "trajectory", id="seed-0-001")
    assert "+    return n + 1" in "\n".join(block.value for block in app.code)
    assert "trained on with advantage +0.5" in said(app)
    assert "person: kept" in said(app)
    assert "UTC" in said(app)


def test_an_unknown_id_is_said_with_the_nearest_ones(page: Page, seeded: Path) -> None:
    app = page(seeded, "trajectory", id="seed-0-0")
    assert not app.exception
    assert "cannot be shown**: ` seed-0-0 `" in app.warning[0].value
    assert "seed-0-00" in app.code[0].value.split("nearest")[1]


def test_a_step_in_the_url_is_marked_on_its_own_part_and_an_unknown_one_is_said(
    page: Page, logs: Path, hostile_id: str
) -> None:
    app = page(logs, "trajectory", id=hostile_id, step="77")
    assert not app.exception
    assert "THIS STEP] · **77" in said(app)
    assert "**0 ·" not in said(app)
    app = page(logs, "trajectory", id=hostile_id, step="5000")
    assert "There is no step ` 5000 ` here; they are numbered 0 to 119" in app.warning[0].value


def test_damage_in_the_lake_is_said_and_takes_no_page_down(page: Page, copied: Path) -> None:
    for file in (copied / "lake" / "observations").glob("*/*.parquet"):
        file.write_bytes(b"PAR1 not really")
    app = page(copied, "trajectory")
    assert not app.exception
    assert "could not be read" in app.error[0].value


def test_times_are_said_to_be_utc_everywhere(page: Page, seeded: Path) -> None:
    app = page(seeded)
    created = Observatory(seeded).run()
    assert created is not None
    assert created.created_at.tzinfo is not None
    assert datetime.now(UTC) - created.created_at < timedelta(hours=1)
    assert "UTC" in said(app)


def test_the_console_reads_a_store_while_it_is_written(page: Page, copied: Path) -> None:
    with sqlite3.connect(copied / "palomar.db", isolation_level=None) as writer:
        writer.execute("BEGIN IMMEDIATE")
        app = page(copied)
        writer.execute("ROLLBACK")
    assert not app.exception
    assert "8 cycles done" in said(app)
