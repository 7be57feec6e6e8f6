"""The page of examples: pairs side by side, labels that are kept, and hostile text that stays text."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from palomar.app.console.options import STORE_VARIABLE
from palomar.app.examples import Examples, examples
from palomar.app.service import Observatory
from palomar.data.facts import facts
from palomar.data.findings import Evidence, Finding
from palomar.data.lake import Lake
from palomar.data.store import Store
from palomar.data.store.incidents import Arrival
from palomar.reward.scoring import score_logged
from tests.app.console.conftest import said

RUN = "seeded"
CYCLE = 7
FLAGGED = ("seed-7-000", "seed-7-003", "seed-7-006")
EVIDENCE = Evidence(FLAGGED, ("seed-7-010", "seed-7-011"), ("seed-7-004",))
SPAN = re.compile(r"(`+) .*? \1(?!`)")
Page = Callable[..., AppTest]


def finding(**more: object) -> Finding:
    said = {
        "statistic": "clarification_rate",
        "before": 0.1,
        "after": 0.7,
        "effect": 0.6,
        "n": 120,
        "reading": "reward_hack",
        "evidence": EVIDENCE,
        "detail": {"direction": 1},
    }
    return Finding("behaviour", "blocks", "asks more", **{**said, **more})  # type: ignore[arg-type]


def raise_alarm(home: Path, *findings: Finding) -> list[str]:
    """Keeps the findings in cycle 7 and opens incident 1 with them; their ids."""
    with Store.open(None, home) as store:
        store.baselines.move(RUN, from_cycle=2, cycles=[0, 1], reason="first cycles", actor="test")
        store.findings.write(RUN, CYCLE, findings or [finding()])
        stored = store.findings.read(RUN, CYCLE)
        arrival = Arrival(None, "open", "it blocks", "reward hack: asking", ("asking",), "all", True, True,
                          tuple((each, "because") for each in stored))  # fmt: skip
        store.incidents.arrive(RUN, CYCLE, lambda *_: [arrival])
        return [each.finding_id for each in stored]


@pytest.fixture(scope="module")
def alarmed(seeded: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = Path(shutil.copytree(seeded, tmp_path_factory.mktemp("alarmed") / "home"))
    raise_alarm(home)
    return home


def test_a_flagged_example_stands_beside_the_same_task_at_the_baseline(page: Page, alarmed: Path) -> None:
    app = page(alarmed, "examples", alarm="1")
    assert not app.exception
    assert not app.error
    words = said(app)
    assert "Alarm 1." in words
    assert "FLAGGED: CARRIES MOST" in words
    assert "` seed-7-000 `" in words
    assert "BASELINE: SAME TASK" in words
    found = examples(Observatory(alarmed), RUN, "1")
    assert isinstance(found, Examples)
    twin = found.pairs[0].twin
    assert twin is not None
    assert f"` {twin.interaction_id} `" in words
    assert "steps differ" in words
    assert "The baseline is cycles 0 to 1." in words
    # The flagged one asks and breaks its call; the twin edits, and its edit is shown as a diff.
    bodies = [item.value for item in app.code]
    assert any("-    return n\n+    return n + 1" in body for body in bodies)
    assert "INVALID: malformed" in words
    assert "Nobody has labelled any of these yet" in words


def test_the_five_are_two_that_carry_two_random_and_one_against(page: Page, alarmed: Path) -> None:
    for number, (badge, name) in enumerate(
        [
            ("FLAGGED: CARRIES MOST", "seed-7-000"),
            ("FLAGGED: CARRIES MOST", "seed-7-003"),
            ("RANDOM IN THE SLICE", "seed-7-010"),
            ("RANDOM IN THE SLICE", "seed-7-011"),
            ("COUNTER-EXAMPLE", "seed-7-004"),
        ],
        1,
    ):
        words = said(page(alarmed, "examples", alarm="1", i=str(number)))
        assert badge in words
        assert f"` {name} `" in words
    app = page(alarmed, "examples", alarm="1", i="6")
    assert "There is no i ` 6 ` (1 to 5); this is 5" in said(app)
    assert app.button(key="next").disabled
    assert not app.button(key="previous").disabled


def test_labels_are_kept_once_with_their_author_and_may_be_changed(page: Page, alarmed: Path, tmp_path: Path) -> None:
    home = Path(shutil.copytree(alarmed, tmp_path / "home"))
    app = page(home, "examples", alarm="1", i="2")
    (button,) = [each for each in app.button if each.label == "Hack"]
    app = button.click().run()
    assert not app.exception
    assert "Example 2 is labelled: hack." in said(app)
    assert "flagged: 1 of 1 hacks" in said(app).lower()
    assert [each.label for each in app.button if each.label.startswith("Hack")] == ["Hack ✓"]
    with Store.open(None, home) as store:
        (label,) = store.labels.read()
        assert (label.interaction_id, label.place, label.label, label.detector) == (
            "seed-7-003", "carrying", "hack", "behaviour",
        )  # fmt: skip
        assert store.audit_log.read(action="label.set")[0].actor == label.actor
    (button,) = [each for each in app.button if each.label == "Not a hack"]
    app = button.click().run()
    assert "flagged: 0 of 1 hacks (1 not)" in said(app).lower()
    with Store.open(None, home) as store:
        assert [each.label for each in store.labels.read()] == ["not"]
        assert [each.detail["was"] for each in store.audit_log.read(action="label.set")] == [None, "hack"]


def test_next_and_back_walk_through_the_pairs(page: Page, alarmed: Path) -> None:
    app = page(alarmed, "examples", alarm="1")
    assert app.button(key="previous").disabled
    app = app.button(key="next").click().run()
    assert app.query_params["i"] == ["2"] or app.query_params["i"] == "2"
    assert "` seed-7-003 `" in said(app)
    app = app.button(key="previous").click().run()
    assert "` seed-7-000 `" in said(app)


def test_a_finding_that_names_none_gets_examples_by_the_rule_of_the_check(page: Page, copied: Path) -> None:
    (finding_id,) = raise_alarm(copied, finding(evidence=Evidence()))
    words = said(page(copied, "examples", alarm=finding_id))
    assert "Picked now, by the rule of the check" in words
    found = examples(Observatory(copied), RUN, finding_id)
    assert isinstance(found, Examples)
    rows = Lake(copied / "lake").scan("observations", ["interaction_id", "asked"], cycles=[CYCLE]).to_pylist()
    asked = {row["interaction_id"]: row["asked"] for row in rows}
    assert [asked[pair.interaction_id] for pair in found.pairs if pair.place == "carrying"] == [True, True]
    assert [asked[pair.interaction_id] for pair in found.pairs if pair.place == "counter"] == [False]


def test_what_cannot_be_shown_says_why(page: Page, copied: Path) -> None:
    ids = raise_alarm(copied, finding(evidence=Evidence(), statistic=None), finding(evidence=Evidence(FLAGGED[:1])))
    app = page(copied, "examples", alarm=ids[0])
    assert not app.exception
    assert "is about no statistic to pick some by" in said(app)
    app = page(copied, "examples", alarm="1")
    # Of the incident's findings, the first that names interactions is shown.
    assert "` seed-7-000 `" in said(app)
    assert "no counter-example" in said(app)
    assert app.selectbox(key=f"finding-{ids[1]}").options[0].startswith("cycle 7 · clarification_rate")
    app = page(copied, "examples", alarm="1", finding="nowhere")
    assert "There is no finding ` nowhere ` in this alarm" in said(app)


def test_an_interaction_that_has_gone_is_said_and_the_rest_is_shown(page: Page, copied: Path) -> None:
    raise_alarm(copied, finding(evidence=replace(EVIDENCE, carrying=("gone", "seed-7-000"))))
    app = page(copied, "examples", alarm="1")
    assert not app.exception
    assert "` gone ` cannot be shown" in said(app)
    assert "NO TWIN" in said(app)
    assert "` seed-7-000 `" in said(page(copied, "examples", alarm="1", i="2"))


def test_an_unknown_alarm_is_said_with_the_nearest(page: Page, alarmed: Path) -> None:
    app = page(alarmed, "examples", alarm="77")
    assert not app.exception
    assert "There is no alarm ` 77 `" in said(app)
    assert "There is no alarm ` ![x](http://beacon.invalid) `" in said(
        page(alarmed, "examples", alarm="![x](http://beacon.invalid)")
    )
    assert "Examples of which alarm?" in said(page(alarmed, "examples"))


def test_empty_homes_and_runs_without_alarms_say_what_to_do(page: Page, seeded: Path, tmp_path: Path) -> None:
    assert "palomar demo" in said(page(tmp_path / "nothing", "examples", alarm="1"))
    assert "No examples yet" in said(page(seeded, "examples"))


def test_a_store_that_is_down_is_said(page: Page, alarmed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STORE_VARIABLE, "postgresql://nobody:secret@127.0.0.1:1/none")
    app = page(alarmed, "examples", alarm="1")
    assert not app.exception
    assert "the store does not answer" in app.error[0].value


def test_hostile_text_stays_text_on_both_sides(page: Page, copied: Path, logs: Path, hostile_id: str) -> None:
    lake = Lake(copied / "lake")
    attack = Lake(logs / "lake").interaction(hostile_id)
    for cycle in (1, CYCLE):
        name = f"{hostile_id}{cycle}"
        lake.append_interactions([attack.model_copy(update={"interaction_id": name, "cycle": cycle})], cycle)
        lake.write_observations(score_logged(facts(lake, cycle, datetime(2026, 3, 1, tzinfo=UTC))), cycle)
    own = f"{hostile_id}{CYCLE}"
    raise_alarm(copied, finding(evidence=Evidence((own,), (), ())))
    app = page(copied, "examples", alarm="1", steps="all steps")
    assert not app.exception
    found = examples(Observatory(copied), RUN, "1")
    assert isinstance(found, Examples)
    assert found.pairs[0].twin is not None
    assert found.pairs[0].twin.interaction_id == f"{hostile_id}1"
    assert "The two are the same" in said(app)
    bare = SPAN.sub("", said(app))
    options = [option for box in app.selectbox for option in box.options]
    for attack_word in ("beacon.invalid", "<script", "<iframe", "javascript:", "LaTeX", "\u202e", "\x1b"):
        assert attack_word not in bare
        assert not any(attack_word in item.label for item in (*app.button, *app.selectbox))
    assert not any("\u202e" in option or "\x1b" in option for option in options)
    bodies = [item.value for item in (*app.text, *app.code)]
    assert sum("<script>document.title='owned'</script>" in body for body in bodies) > 10
    assert not any(hidden in body for body in bodies for hidden in ("\u202e", "\x1b", "\x07", "\x00"))
    # A million characters of text on each side: what goes to the browser stays small.
    assert sum(len(body) for body in bodies) < 200_000
