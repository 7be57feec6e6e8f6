"""One trajectory: reward by step, findings that name it, labels, the way back, and the whole of what is cut."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from palomar.app.console.charts.steps import MOST_STEPS, reward_chart, rewards
from palomar.app.console.options import STORE_VARIABLE
from palomar.data.facts import facts
from palomar.data.findings import Evidence, Finding
from palomar.data.lake import Lake
from palomar.data.schema import Interaction, Step, ToolCall
from palomar.data.store import Store
from palomar.data.store.incidents import Arrival
from palomar.reward.scoring import score_logged
from tests.app.console.conftest import said

Page = Callable[..., AppTest]
RUN, CYCLE = "seeded", 7
LONG = "x" * 20_000
ITEM = Interaction(
    interaction_id="long",
    source="palomar",
    origin="test",
    cycle=CYCLE,
    predicted_failure=0.9,
    steps=(
        Step(author="person", role="user", text="fix it"),
        Step(
            author="agent",
            role="assistant",
            reward=-0.5,
            tool_calls=(ToolCall(name="run", arguments="{}", outcome="ok", result=LONG),),
        ),
        *(Step(author="tool", role="tool", text=f"line {number}") for number in range(2, 70)),
        Step(
            author="agent",
            role="assistant",
            reward=2.0,
            tool_calls=(ToolCall(name="edit", arguments="{", invalidity="malformed", outcome="not_run"),),
        ),
    ),
)


@pytest.fixture(scope="module")
def told(seeded: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The seeded home with one long interaction, which two findings name and two people have labelled."""
    home = Path(shutil.copytree(seeded, tmp_path_factory.mktemp("told") / "home"))
    lake = Lake(home / "lake")
    lake.append_interactions([ITEM], CYCLE)
    lake.write_observations(score_logged(facts(lake, CYCLE, datetime(2026, 3, 1, tzinfo=UTC))), CYCLE)
    with Store.open(None, home) as store:
        found = [
            Finding("signatures", "blocks", "dodges", "signature:dodged-call", reading="reward_hack",
                    before=0.1, after=0.4, evidence=Evidence(("long",))),
            Finding("behaviour", "warns", "asks", "clarification_rate", before=0.1, after=0.4,
                    evidence=Evidence(("seed-7-000",), ("long",))),
        ]  # fmt: skip
        store.findings.write(RUN, CYCLE, found)
        stored = store.findings.read(RUN, CYCLE)
        arrival = Arrival(None, "open", "it blocks", "calls", ("calls",), "all", True, True, ((stored[0], "because"),))
        store.incidents.arrive(RUN, CYCLE, lambda *_: [arrival])
        store.labels.set(stored[0].finding_id, "long", "hack", place="carrying", actor="ada")
        store.labels.set(stored[0].finding_id, "long", "cannot_tell", place="carrying", actor="`bob` **b**")
    return home


def test_findings_labels_rewards_and_the_way_back(page: Page, told: Path) -> None:
    app = page(told, "trajectory", id="long", alarm="1", i="2")
    assert not app.exception
    assert not app.error
    words = said(app)
    assert "**Named by 2 findings** of cycle 7, which belong to incident 1." in words
    assert "CARRIES IT" in words
    assert "USUAL THERE" in words
    assert "HACK] by ` ada `" in words
    assert "CANNOT TELL] by `` `bob` **b** ``" in words
    assert (
        "**2 of 71 steps have a reward**, +1.5 in all; the most in step 70 (+2), the least in step 1 (-0.5)." in words
    )
    (chart,) = app.get("vega_lite_chart")
    assert '"reward"' in chart.proto.spec
    links = {link.proto.label: link.proto for link in app.get("page_link")}
    assert links["Back to the alarm"].query_string.endswith("id=1")
    assert "alarm=1&i=2" in links["Back to its examples"].query_string
    # The signature names the step in which the call was broken.
    assert "step=70" in links["Step 70"].query_string
    assert links["Alarm 1"].query_string.endswith("id=1")


def test_what_is_cut_can_be_downloaded_whole(page: Page, told: Path) -> None:
    app = page(told, "trajectory", id="long")
    assert f"{len(LONG) - 6_000:,} more characters" in said(app)
    buttons = [each.proto for each in app.get("download_button") if each.proto.label == "Download raw"]
    assert [each.id.rpartition("-")[2] for each in buttons] == ["raw"]
    assert all(len(body.value) <= 6_000 for body in app.code)


def test_a_step_of_the_second_part_is_shown_and_marked(page: Page, told: Path) -> None:
    app = page(told, "trajectory", id="long", step="70")
    assert not app.exception
    assert "THIS STEP" in said(app)
    assert "INVALID: malformed" in said(app)
    assert "line 3" not in [text.value for text in app.text]
    app = page(told, "trajectory", id="long")
    assert "INVALID: malformed" not in said(app)


def test_one_that_nobody_names_says_so_and_has_no_chart(page: Page, told: Path) -> None:
    app = page(told, "trajectory", id="seed-6-001")
    words = said(app)
    assert "No finding of its cycle names it" in words
    assert "NOBODY LABELLED IT" in words
    assert "steps have a reward" not in words
    assert not app.get("vega_lite_chart")


def test_a_store_that_is_down_leaves_the_transcript_readable(
    page: Page, told: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STORE_VARIABLE, "postgresql://nobody:secret@127.0.0.1:1/none")
    app = page(told, "trajectory", id="seed-7-001")
    assert not app.exception
    assert "**Findings and labels**: the store does not answer" in app.error[0].value
    assert any("Totals are off by one" in text.value for text in app.text)


def test_an_unknown_id_and_a_hostile_alarm_are_said_as_text(page: Page, told: Path) -> None:
    app = page(told, "trajectory", id="lng", alarm="![x](http://beacon.invalid)")
    assert not app.exception
    assert "This interaction cannot be shown" in said(app)
    assert "'long'" in app.code[0].value
    assert "beacon.invalid" not in re.sub(r"(`+) .*? \1(?!`)", "", said(app))


def test_bars_are_drawn_from_zero_and_never_for_a_step_without_a_reward() -> None:
    table = rewards([(1, -0.5), (70, 2.0)])
    assert table.to_pylist() == [
        {"step": 1, "reward": -0.5, "side": "below 0"},
        {"step": 70, "reward": 2.0, "side": "0 or above"},
    ]
    assert rewards([(number, 1.0) for number in range(2_000)]).num_rows == MOST_STEPS
    light, dark = (reward_chart(theme, last=70, marked=1) for theme in ("light", "dark"))  # type: ignore[arg-type]
    assert light["layer"][0]["mark"]["type"] == "bar"
    assert light["layer"][1]["data"] == {"values": [{"step": 1}]}
    assert light["layer"][0]["encoding"]["color"]["scale"] != dark["layer"][0]["encoding"]["color"]["scale"]
    assert dark["config"]["axis"]["labelColor"] == "#FAFAFA"
