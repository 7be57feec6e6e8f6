"""The page of cohorts: what the URL names is what is shown, beside the rest or another one."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from palomar.app.console.options import STORE_VARIABLE
from palomar.data.lake import Lake
from tests.app.console.conftest import said

Page = Callable[..., AppTest]
SPAN = re.compile(r"(`+) .*? \1(?!`)")


def settled(app: AppTest) -> AppTest:
    """Once what the page computes is there; a busy machine takes its time."""
    for _ in range(60):
        if "PENDING" not in said(app):
            return app
        app = app.run()
    return app


def test_a_cohort_stands_beside_the_rest(page: Page, seeded: Path) -> None:
    app = settled(page(seeded, "cohorts", id="predicted_failure=0.6..;cycle=5..7"))
    assert not app.exception
    words = said(app)
    rows = Lake(seeded / "lake").scan("observations", ["cycle", "predicted_failure"]).to_pylist()
    hard = sum(row["predicted_failure"] >= 0.6 for row in rows)
    assert f"**{hard:,} of {len(rows):,} interactions** are of the cohort" in words
    assert "predicted failure ` 0.6 or more `" in words
    assert "in cycles 5 to 7" in words
    assert "statistics are told apart** from the rest" in words
    table = app.dataframe[0].value
    by = table.set_index("statistic")
    # Hard requests get broken calls, others none.
    assert by.loc["Invalid tool calls", "told apart"] == "▲ higher"
    assert by.loc["Invalid tool calls", "other"] == 0
    assert "p (Holm)" in table
    assert len(app.get("vega_lite_chart")) == 1


def test_two_cohorts_and_the_interactions_in_both(page: Page, seeded: Path) -> None:
    app = settled(page(seeded, "cohorts", id="organisation=acme;cycle=7", **{"with": "did=asked"}))
    assert not app.exception
    words = said(app)
    assert "Beside another cohort" in words
    assert "from what the agent did" not in words
    assert "are told apart** from did ` asked `" in words
    assert "interactions are in both" in words


def test_a_cohort_that_cannot_be_read_is_said(page: Page, seeded: Path) -> None:
    app = page(seeded, "cohorts", id="organization=acme")
    assert not app.exception
    assert "The cohort cannot be read" in said(app)
    assert "did you mean organisation?" in app.code[0].value
    assert "**Everything**" in said(app)


def test_nobody_in_it_and_no_such_cycles_are_no_data(page: Page, seeded: Path) -> None:
    app = settled(page(seeded, "cohorts", id="organisation=nobody"))
    assert "**0 of 960 interactions**" in said(app)
    assert "one of the two has no interaction" in said(app)
    assert "these are the newest 5" in said(app)
    app = page(seeded, "cohorts", id="organisation=acme;cycle=70..80")
    assert "no interactions in the cycles that the cohort names (70 to 80)" in said(app)
    assert not app.exception


def test_what_is_chosen_in_the_form_goes_into_the_url(page: Page, seeded: Path) -> None:
    app = page(seeded, "cohorts")
    (box,) = [each for each in app.multiselect if each.label == "Organisation" and each.key.startswith("id-")]
    assert box.options == ["acme", "zeta", "(not known)"]
    box.select("acme")
    (low,) = [
        each for each in app.number_input if each.label == "Predicted failure from" and each.key.startswith("id-")
    ]
    low.set_value(0.6)
    app = settled(app.button[0].click().run())
    assert not app.exception
    wanted = app.query_params["id"]
    assert (wanted if isinstance(wanted, str) else wanted[0]) == "organisation=acme;predicted_failure=0.6.."
    assert "organisation ` acme `" in said(app)


def test_the_empty_home_the_store_that_is_down_and_logs_without_a_run(
    page: Page, seeded: Path, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "palomar demo" in said(page(tmp_path / "nothing", "cohorts"))
    app = settled(page(logs, "cohorts", id="organisation=acme"))
    assert not app.exception
    assert "are told apart** from the rest in logs outside a loop" in said(app)
    monkeypatch.setenv(STORE_VARIABLE, "postgresql://nobody:secret@127.0.0.1:1/none")
    app = page(seeded, "cohorts", id="organisation=acme")
    assert not app.exception
    assert "the store does not answer" in app.error[0].value


def test_hostile_words_of_the_log_and_of_the_url_stay_text(page: Page, logs: Path) -> None:
    app = settled(page(logs, "cohorts", id="organisation=![x](http://beacon.invalid)<script>;did=asked"))
    assert not app.exception
    bare = SPAN.sub("", said(app))
    options = [option for box in app.multiselect for option in box.options]
    assert any("beacon.invalid" in option for option in options)
    assert not any(hidden in option for option in options for hidden in ("\u202e", "\x1b"))
    for attack in ("beacon.invalid", "<script", "\u202e", "\x1b"):
        assert attack not in bare


def test_cohorts_of_a_damaged_lake_are_said(page: Page, seeded: Path, tmp_path: Path) -> None:
    home = Path(shutil.copytree(seeded, tmp_path / "home"))
    (home / "lake" / "observations" / "cycle=000007" / "rows.parquet").write_bytes(b"nothing")
    app = page(home, "cohorts", id="organisation=acme")
    assert not app.exception
    assert "could not be read" in app.error[0].value
