"""Gate, incidents and audit log on a home with decisions and incidents, by the product's own functions."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from palomar.app import audit_trail, gate_view, gating, incidents
from palomar.app.console import acting
from palomar.app.console.options import STORE_VARIABLE
from palomar.app.console.plain import plain
from palomar.app.console.signing import Role
from palomar.app.console.views.incident_view import evidence_table
from palomar.app.service import Observatory
from palomar.data.findings import Cause, Evidence, Finding, Report
from palomar.data.slices import ALL
from palomar.data.store import Store
from palomar.detectors.incidents import open_incidents
from palomar.trainer.evaluation import Evaluation, TaskResult
from palomar.trainer.gate_policy import read_policy
from palomar.trainer.promotion import Check, Outcome
from tests.app.console.conftest import said, texts

Page = Callable[..., AppTest]
RUN = "seeded"
SUITE = "held-out-tasks"
BEACON = "http://beacon.invalid/x.png"
HOSTILE = (
    f"![beacon]({BEACON}) <script>document.title='owned'</script> [click](javascript:alert(1)) "
    ":red[directive] $\\LaTeX$ `tick` **bold** \u202egnissim\u202c \x1b[31m"
)
PAGES = ("gate", "incidents", "audit")
GOOD, WORSE, NEW = "good", "worse", "new"


def finding(statistic: str = "clarification_rate", slice: str = ALL, **more: Any) -> Finding:
    given: dict[str, Any] = {
        "severity": "blocks",
        "reading": "reward_hack",
        "sentence": f"{statistic} 14 % -> 63 %, n=699",
        "before": 0.14,
        "after": 0.63,
        "effect": 0.49,
        "low": 0.4,
        "high": 0.6,
        "n": 699,
        "causes": (Cause("term:function_size", "predicted_failure=low", 0.2, 0.7),),
        "evidence": Evidence(("seed-5-003",), ("seed-5-001",), ()),
        **more,
    }
    return Finding("behaviour", statistic=statistic, slice=slice, **given)


def checked(store: Store, cycle: int, verdict: str, *findings: Finding, candidate: str | None = None) -> None:
    report = Report("behaviour", findings, assessed=40)
    store.findings.write(RUN, cycle, findings, (report,), candidate=candidate)
    told: dict[str, Any] = {"reasons": [], "sentence": "nothing found", "findings": {}, "budget": "", "as_of": None}
    store.verdicts.write(RUN, cycle, verdict=verdict, candidate=candidate, **told)  # type: ignore[arg-type]
    if candidate is None:
        open_incidents(store, RUN, cycle)


def checkpoint(home: Path, store: Store, name: str, *, cycle: int | None, solved: float, parent: str | None) -> None:
    """A checkpoint with its folder and its results on 400 tasks of 20 families."""
    folder = home / "checkpoints" / name
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_text(name)
    manifest = json.dumps({"files": {"model.safetensors": hashlib.sha256(name.encode()).hexdigest()}})
    (folder / "manifest.json").write_text(manifest)
    sha256 = hashlib.sha256(manifest.encode()).hexdigest()
    store.checkpoints.add(RUN, name, cycle=cycle, parent_id=parent, path=name, sha256=sha256)
    results = tuple(
        TaskResult(
            f"t{index:03d}",
            f"family{index % 20}",
            {
                "solved": float((index * 7919) % 400 < solved * 400),
                "tests_pass": None,
                "invalid_call": 0.0,
                "asked_on_clear": 0.0,
                "functions_per_edit": 2.0 + (index + (name == "base")) % 3,
            },
        )
        for index in range(400)
    )
    kept = home / "evaluations" / name
    kept.mkdir(parents=True)
    (kept / f"{SUITE}.json").write_text(Evaluation(SUITE, name, 0, results).to_json(), encoding="utf-8")


@pytest.fixture(scope="session")
def decided_home(seeded: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The seeded run with a champion, three candidates of which one is not decided about, and two incidents."""
    home = Path(shutil.copytree(seeded, tmp_path_factory.mktemp("decided") / "home"))
    with Store.open(None, home) as store:
        checkpoint(home, store, "base", cycle=None, solved=0.5, parent=None)
        store.checkpoints.promote(RUN, "base", replacing=None, since_cycle=0, reason="first")
        for name, solved in ((WORSE, 0.3), (GOOD, 0.7), (NEW, 0.7)):
            checkpoint(home, store, name, cycle=7, solved=solved, parent="base")
        checked(store, 3, "pass")
        checked(store, 5, "block", finding(), finding("edit_rate", severity="warns"))
        checked(store, 6, "block", finding(after=0.8, effect=0.66))
        checked(store, 6, "block", finding(after=0.8, effect=0.66), finding("invalid_call_rate", sentence=HOSTILE))
        store.incidents.explain(2, actor=HOSTILE, words=HOSTILE, term="term:x", slice_=HOSTILE)
        store.incidents.comment(1, actor="ada", words=HOSTILE)
    observatory = Observatory(home)
    for name in (WORSE, GOOD):
        gating.ask(observatory, gating.Question(name, read_policy("demo"), "ada"))
    gating.request_override(observatory, GOOD, verdict_="promote", reason=HOSTILE, hours=3, actor="ada")
    observatory.store.close()
    return home


@pytest.fixture
def home(decided_home: Path, tmp_path: Path) -> Path:
    """A copy to write to."""
    return Path(shutil.copytree(decided_home, tmp_path / "home"))


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Role], None]:
    """`user("bob", "decide")`: who sits at the console."""

    def be(name: str, role: Role) -> None:
        monkeypatch.setattr(acting, "person", lambda: acting.Person(name, frozenset((role,)), "test"))

    return be


# -- what all three share --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_what_is_there(page: Page, decided_home: Path, name: str) -> None:
    app = page(decided_home, name)
    assert not app.exception
    assert not app.error
    assert app.title[0].value.lower() == name
    assert "The same on the command line" in said(app)


@pytest.mark.parametrize("name", PAGES)
def test_an_empty_home_says_what_to_do(page: Page, tmp_path: Path, name: str) -> None:
    app = page(tmp_path / "nothing", name)
    assert not app.exception
    assert "palomar demo" in said(app)
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("name", PAGES)
def test_a_store_that_is_down_is_said(
    page: Page, decided_home: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STORE_VARIABLE, "postgresql://nobody:secret@127.0.0.1:1/none")
    app = page(decided_home, name)
    assert not app.exception
    assert "the store does not answer" in app.error[0].value
    assert "secret" not in said(app) + texts(app)


@pytest.mark.parametrize(
    ("name", "query", "words"),
    [
        ("gate", {"ckpt": f"![x]({BEACON})"}, "There is no candidate"),
        ("gate", {"ckpt": GOOD, "decision": "seeded:99"}, "There is no decision ` seeded:99 ` about this candidate"),
        ("gate", {"ckpt": GOOD, "check": "zzz"}, "There is no check ` zzz `"),
        ("incidents", {"id": "99"}, "There is no incident ` 99 `"),
        ("incidents", {"id": f"![x]({BEACON})"}, "There is no incident"),
        ("incidents", {"id": "²"}, "There is no incident"),
        ("incidents", {"state": "gone"}, "There is no state ` gone `"),
        ("audit", {"actor": "zorro"}, "There is no actor ` zorro `"),
        ("audit", {"page": "77"}, "There is no page ` 77 `"),
        ("audit", {"subject": "incident:99"}, "Nothing is about ` incident:99 `; the nearest:"),
    ],
)
def test_what_the_url_names_and_is_not_there_is_said(
    page: Page, decided_home: Path, name: str, query: dict[str, str], words: str
) -> None:
    app = page(decided_home, name, **query)
    assert not app.exception
    assert words in said(app)


@pytest.mark.parametrize(
    ("name", "query"),
    [
        ("gate", {"ckpt": GOOD}),
        ("gate", {"ckpt": WORSE}),
        ("incidents", {}),
        ("incidents", {"id": "1"}),
        ("incidents", {"id": "2"}),
        ("audit", {}),
        ("audit", {"subject": HOSTILE}),
    ],
)
def test_hostile_text_is_never_markdown(page: Page, decided_home: Path, name: str, query: dict[str, str]) -> None:
    app = page(decided_home, name, **query)
    assert not app.exception
    labels = [item.label for kind in ("selectbox", "button", "expander", "text_input") for item in app.get(kind)]
    spans = said(app).splitlines()
    for line in (*spans, *labels):
        outside = _outside_code(line)
        for attack in ("beacon.invalid", "<script", "javascript:", "LaTeX", ":red[directive", "\u202e", "\x1b"):
            assert attack not in outside, line
    assert "\u202e" not in texts(app)


def _outside_code(text: str) -> str:
    import re

    return re.sub(r"(`+) .*? \1(?!`)", "", text)


# -- gate ------------------------------------------------------------------------------------------------------------


def test_the_blocking_check_comes_first_with_its_arithmetic(page: Page, decided_home: Path) -> None:
    app = page(decided_home, "gate", ckpt=WORSE)
    decision = Observatory(decided_home).store.decisions.get(RUN, WORSE)
    assert decision is not None
    assert decision.verdict == "block"
    assert "■ BLOCK" in said(app)
    assert decision.sentence in texts(app)
    table = app.dataframe[0].value
    assert table["code"][0] == decision.reasons[0]
    assert table["result"][0] == "■ FAIL"
    order = [word.split()[-1] for word in table["result"]]
    assert order == sorted(order, key=["FAIL", "UNKNOWN", "DATA", "PASS", "SHOWN"].index)
    first = next(each for each in gate_view.view(*_of(decided_home, WORSE)).checks)
    assert first.benefit is not None
    assert f"benefit **{first.benefit:+.4g}**" in said(app)
    assert f"n {first.n:,} tasks of 20 families" in said(app)


def test_what_decided_stands_first_whatever_else_failed_or_passed() -> None:
    def check(code: str, part: str, result: str) -> Check:
        return Check.model_validate({"code": code, "part": part, "result": result, "sentence": code})

    def outcome(verdict: str, reasons: tuple[str, ...], *checks: Check) -> Outcome:
        said = {"verdict": verdict, "kind": None, "reasons": reasons, "sentence": "", "checks": checks}
        return Outcome.model_validate({**said, "needed": (), "expires_at": None, "risks": {}})

    improved = outcome(
        "promote",
        ("improved:solved",),
        check("ledger", "validity", "pass"),
        check("speed", "success", "unknown"),
        check("solved", "success", "pass"),
    )
    assert [each.code for each in gate_view.ordered(improved)] == ["solved", "ledger", "speed"]
    held = outcome(
        "hold",
        ("second", "first"),
        check("ledger", "validity", "pass"),
        check("first", "require", "fail"),
        check("second", "require", "unknown"),
        check("speed", "success", "fail"),
    )
    assert [each.code for each in gate_view.ordered(held)] == ["second", "first", "ledger", "speed"]


def _of(home: Path, name: str) -> tuple[Store, str, Any]:
    store = Observatory(home).store
    found = store.checkpoints.get(RUN, name)
    assert found is not None
    return store, RUN, found


def test_a_hold_says_what_is_needed_and_until_when(page: Page, decided_home: Path) -> None:
    app = page(decided_home, "gate", ckpt=GOOD)
    decision = Observatory(decided_home).store.decisions.get(RUN, GOOD)
    assert decision is not None
    assert decision.verdict == "hold"
    assert decision.expires_at is not None
    assert "▲ HOLD" in said(app)
    assert f"until {decision.expires_at:%Y-%m-%d %H:%M} UTC" in said(app)
    needed = decision.evidence["outcome"]["needed"]  # type: ignore[index]
    assert needed
    for each in needed:
        assert f"– {each}" in texts(app)


def test_no_decision_is_pending_and_the_gate_can_be_asked(page: Page, home: Path) -> None:
    app = page(home, "gate", ckpt=NEW)
    assert "○ PENDING" in said(app)
    assert not app.dataframe
    app.button(key="do-ask").click().run()
    assert not app.exception
    assert "The gate has answered." in said(app)
    decision = Observatory(home).store.decisions.get(RUN, NEW)
    assert decision is not None
    assert decision.actor == acting.person().name
    assert f"Decision {plain(decision.decision_id)}" in said(app)


def test_asked_again_it_decides_by_what_is_known_now(page: Page, home: Path) -> None:
    store = Observatory(home).store
    before = store.decisions.get(RUN, GOOD)
    checked(store, 7, "pass")
    app = page(home, "gate", ckpt=GOOD)
    app.button(key="do-ask").click().run()
    assert not app.exception
    after = store.decisions.get(RUN, GOOD)
    assert before is not None
    assert after is not None
    assert after.supersedes == before.decision_id


def test_who_may_only_read_is_offered_no_act(page: Page, home: Path, user: Callable[[str, Role], None]) -> None:
    user("eve", "read")
    app = page(home, "gate", ckpt=NEW)
    assert "needs the role decide, which ` eve ` has not" in said(app)
    assert not [button for button in app.button if button.key.startswith("do-")]


def test_an_override_is_made_by_two_people_and_never_by_one(
    page: Page, home: Path, user: Callable[[str, Role], None]
) -> None:
    user("Ada ", "decide")  # the same person, however she writes herself
    app = page(home, "gate", ckpt=GOOD)
    app.text_input(key="reason-approve-1").input("it is fine").run()
    app.button(key="do-approve-1").click().run()
    assert "**Not done.**" in said(app)
    assert "another person must approve it" in texts(app)
    store = Observatory(home).store
    assert store.decisions.get(RUN, GOOD).verdict == "hold"  # type: ignore[union-attr]
    user("bob", "decide")
    app.run()
    app.text_input(key="reason-approve-1").input("saw the rerun").run()
    app.button(key="do-approve-1").click().run()
    assert not app.exception
    assert "Approved: the override stands." in said(app)
    made = store.decisions.get(RUN, GOOD)
    assert made is not None
    assert (made.verdict, made.kind, made.actor) == ("promote", "override", "bob")
    assert made.expires_at is not None
    assert f"until {made.expires_at:%Y-%m-%d %H:%M} UTC" in said(app)
    assert "The rule said" in said(app)
    assert store.audit_log.read(action="gate.override.approve")[-1].actor == "bob"


def test_an_override_needs_a_verdict_and_a_reason_and_stands_no_longer_than_the_policy_allows(
    page: Page, home: Path
) -> None:
    app = page(home, "gate", ckpt=WORSE)
    app.button(key="do-override").click().run()
    assert "say why first" in said(app)
    app.text_input(key="reason-override").input("graders were down").run()
    app.button(key="do-override").click().run()
    assert "say first what is to be decided instead" in said(app)
    assert app.number_input(key="hours").max == 24
    app.radio(key="to").set_value("hold").run()
    app.button(key="do-override").click().run()
    asked = [each for each in Observatory(home).store.overrides.read(RUN) if each.candidate == WORSE]
    assert [(each.verdict, each.reason, each.made) for each in asked] == [("hold", "graders were down", None)]
    assert "WAITS FOR A SECOND PERSON" in said(app)


def test_a_decision_is_replayed_and_a_changed_one_is_noticed(page: Page, home: Path) -> None:
    app = page(home, "gate", ckpt=WORSE)
    app.button(key="replay").click().run()
    assert "THE SAME" in said(app)
    decision = Observatory(home).store.decisions.get(RUN, WORSE)
    assert decision is not None
    with sqlite3.connect(home / "palomar.db") as database:
        for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            database.execute(f"DROP TRIGGER {name}")
        database.execute("UPDATE decisions SET verdict = 'promote' WHERE decision_id = ?", (decision.decision_id,))
    app = page(home, "gate", ckpt=WORSE)
    app.button(key="replay").click().run()
    assert "DIFFERS" in said(app)
    assert "verdict: promote, now block" in texts(app)


def test_an_earlier_decision_is_shown_and_said_to_stand_no_more(page: Page, home: Path) -> None:
    observatory = Observatory(home)
    first = observatory.store.decisions.get(RUN, GOOD)
    assert first is not None
    checked(observatory.store, 7, "pass")
    gating.ask(observatory, gating.Question(GOOD, read_policy("demo"), "ada", again=True))
    second = observatory.store.decisions.get(RUN, GOOD)
    assert second is not None
    assert second.decision_id != first.decision_id
    app = page(home, "gate", ckpt=GOOD, decision=first.decision_id)
    assert f"**It stands no more**; {plain(second.decision_id)} does" in said(app)
    history = app.dataframe[-1].value
    assert list(history[""]) == ["stands", ""]


# -- incidents -------------------------------------------------------------------------------------------------------


def test_the_list_is_filtered_and_counts_all(page: Page, home: Path) -> None:
    store = Observatory(home).store
    store.incidents.resolve(1, "patched", actor="ada", reason="gone")
    app = page(home, "incidents")
    assert list(app.dataframe[0].value["number"]) == [2]
    assert "■ OPEN] 1 ·" in said(app)
    assert "● RESOLVED] 1" in said(app)
    app.selectbox(key="state-not resolved").select("all").run()
    assert list(app.dataframe[0].value["number"]) == [2, 1]
    assert list(app.dataframe[0].value["state"]) == ["■ OPEN", "● RESOLVED: patched"]
    app = page(home, "incidents", state="all", owner="nobody", kind="holds")
    assert "None of 2 incidents is like that" in said(app)


def test_evidence_stands_as_it_was_beside_what_is_known_now(page: Page, decided_home: Path) -> None:
    app = page(decided_home, "incidents", id="1")
    assert not app.exception
    found = incidents.view(Observatory(decided_home).store, 1)
    assert found is not None
    table = evidence_table(found.evidence)
    # Pinned in cycle 5 at 0.63; by cycle 6 it was 0.8.
    assert (table["after"][0], table["same cycle, now"][0], table["newest"][0], table["newest in cycle"][0]) == (
        0.63,
        0.63,
        0.8,
        6,
    )
    assert "● INTACT" in said(app)
    assert app.get("vega_lite_chart")
    assert "Charged first to** ` term:function_size `" in said(app)


def test_a_cycle_that_was_checked_again_shows_both_numbers(home: Path) -> None:
    store = Observatory(home).store
    checked(store, 5, "block", finding(after=0.7))  # more feedback is known by now; the warning is gone
    found = incidents.view(store, 1)
    assert found is not None
    table = evidence_table(found.evidence).set_index("cycle").loc[[5]]
    assert list(table["after"]) == [0.63, 0.63]
    now = dict(zip(table["statistic"], table["same cycle, now"], strict=True))
    assert now["Clarification rate"] == 0.7
    assert now["Edit rate"] != now["Edit rate"]  # not kept any more: no number


def test_evidence_that_somebody_changed_is_said(page: Page, home: Path) -> None:
    with sqlite3.connect(home / "palomar.db") as database:
        for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            database.execute(f"DROP TRIGGER {name}")
        database.execute("UPDATE incident_findings SET finding = replace(finding, '0.63', '0.15') WHERE incident = 1")
    app = page(home, "incidents", id="1")
    assert "■ CHANGED" in said(app)
    assert "■ CHANGED" in list(app.dataframe[0].value["hash"])


def test_an_incident_goes_from_open_to_resolved_and_back_with_actor_and_reason(
    page: Page, home: Path, user: Callable[[str, Role], None]
) -> None:
    user("bob", "decide")
    store = Observatory(home).store
    app = page(home, "incidents", id="1")
    app.button(key="do-ack-1").click().run()
    assert store.incidents.get(1).state == "acknowledged"  # type: ignore[union-attr]
    app = page(home, "incidents", id="1", do="Assign")
    app.text_input(key="to-1").input("carol").run()
    app.text_input(key="reason-assign-1").input("on call").run()
    app.button(key="do-assign-1").click().run()
    assert store.incidents.get(1).assignee == "carol"  # type: ignore[union-attr]
    app = page(home, "incidents", id="1", do="Name the root cause")
    app.selectbox(key="term-1").select("term:function_size").run()
    app.text_input(key="reason-cause-1").input("asking costs nothing").run()
    app.button(key="do-cause-1").click().run()
    assert store.incidents.get(1).cause["term"] == "term:function_size"  # type: ignore[union-attr, index]
    app = page(home, "incidents", id="1", do="Note an action")
    app.checkbox(key="mitigates-1").check().run()
    app.text_input(key="reason-action-1").input("patched from cycle 8 on").run()
    app.button(key="do-action-1").click().run()
    assert store.incidents.get(1).state == "mitigated"  # type: ignore[union-attr]
    app = page(home, "incidents", id="1", do="Resolve")
    app.text_input(key="reason-resolve-1").input("gone for three cycles").run()
    app.button(key="do-resolve-1").click().run()
    assert "say first how it ended" in said(app)
    app.radio(key="as-1").set_value("accepted").run()
    app.multiselect(key="scope-1").select("clarification_rate@all").run()
    app.button(key="do-resolve-1").click().run()
    assert not app.exception
    ended = store.incidents.get(1)
    assert ended is not None
    assert (ended.state, ended.resolution, ended.resolved_cycle, ended.until_cycle) == ("resolved", "accepted", 7, 17)
    assert [(each.statistic, each.slice) for each in ended.scope] == [("clarification_rate", "all")]
    assert "no cycle after cycle 7 was checked yet" in said(app)
    app.text_input(key="reason-reopen-1").input("it is back").run()
    app.button(key="do-reopen-1").click().run()
    assert "REGRESSED ×1" in said(app)
    trail = store.audit_log.read(subject="incident:1", actor="bob")
    assert [entry.action.partition(".")[2] for entry in trail] == [
        "ack",
        "assign",
        "cause",
        "action",
        "resolve",
        "reopen",
    ]
    assert [entry.reason for entry in trail[1:3]] == ["on call", "asking costs nothing"]


def test_what_is_seen_again_after_the_resolution_is_said(page: Page, home: Path) -> None:
    store = Observatory(home).store
    store.incidents.resolve(1, "patched", actor="ada", reason="gone", cycle=5)
    found = incidents.view(store, 1)
    assert found is not None
    assert (found.checked, found.again) == (6, 6)  # pinned before, and nothing has looked since
    assert "SEEN AGAIN] what is pinned here keeps cycle 6 from passing" in said(page(home, "incidents", id="1"))
    checked(store, 6, "pass")
    quiet = incidents.view(store, 1)
    assert quiet is not None
    assert quiet.again is None
    assert "checked up to cycle 6, 1 after the resolution: nothing of it was found again" in said(
        page(home, "incidents", id="1")
    )


def test_votes_are_counted_by_detector(page: Page, home: Path) -> None:
    app = page(home, "incidents", id="1", do="Rate the alarm")
    app.radio(key="vote-1").set_value("useful").run()
    app.button(key="do-rate-1").click().run()
    assert not app.exception
    assert "USEFUL] ` behaviour ` 1 to 0" in said(app)


def test_the_words_to_hand_over_say_what_was_done_and_hold_no_control_characters(decided_home: Path) -> None:
    found = incidents.view(Observatory(decided_home).store, 1)
    assert found is not None
    text = incidents.hand_over(found)
    assert text.startswith("Incident 1: reward hack: asking in place of editing\nopen, nobody has it")
    keeping = [each for each in found.evidence if each.pin.finding.severity == "blocks"]
    assert f"Charged first to: term:function_size ({len(keeping)} of {len(keeping)})" in text
    assert "ada: commented: ![beacon]" in text
    assert not any(hidden in text for hidden in ("\u202e", "\x1b"))
    assert text.count("\n") == len(text.splitlines())


# -- audit -----------------------------------------------------------------------------------------------------------


def test_entries_are_filtered_and_counted(page: Page, decided_home: Path) -> None:
    log = Observatory(decided_home).store.audit_log
    app = page(decided_home, "audit", subject="incident:1", action="incident.")
    expected = log.read(subject="incident:1")
    assert list(app.dataframe[0].value["entry"]) == [entry.number for entry in reversed(expected)]
    assert f"**{len(expected)} entries**" in said(app)
    app = page(decided_home, "audit", actor="ada")
    assert set(app.dataframe[0].value["by"]) == {"ada"}


def test_pages_hold_all_entries_once(page: Page, home: Path) -> None:
    store = Observatory(home).store
    for number in range(120):
        store.audit_log.append(actor="loop", action="test.write", subject=f"thing:{number}", reason="")
    total = store.audit_log.head().entries
    seen: list[int] = []
    for at in range(1, -(-total // 50) + 1):
        seen += list(page(home, "audit", page=str(at)).dataframe[0].value["entry"])
    assert seen == list(range(total, 0, -1))


def test_the_chain_is_verified_and_the_first_bad_entry_is_named(page: Page, home: Path) -> None:
    app = page(home, "audit")
    head = Observatory(home).store.audit_log.head()
    assert f"● PASS] **{head.entries:,} entries, each follows the one before**" in said(app)
    assert str(head) in texts(app)
    with sqlite3.connect(home / "palomar.db") as database:
        for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            database.execute(f"DROP TRIGGER {name}")
        database.execute("UPDATE audit_log SET reason = 'nothing' WHERE number = 3")
    app.button(key="verify").click().run()
    assert "■ FAIL] **The log is broken at entry 3**" in said(app)
    assert "its content does not have its hash" in texts(app)


def test_a_head_that_was_kept_is_checked(page: Page, decided_home: Path) -> None:
    log = Observatory(decided_home).store.audit_log
    app = page(decided_home, "audit")
    app.text_input(key="pinned").input("what").run()
    app.button(key="check-pinned").click().run()
    assert "is not of the form ENTRIES:HASH" in said(app)
    entry = log.read()[1]
    app.text_input(key="pinned").input(f"2:{entry.hash}").run()
    app.button(key="check-pinned").click().run()
    assert "The log leads through the head after entry 2" in said(app)
    app.text_input(key="pinned").input(f"2:{'0' * 64}").run()
    app.button(key="check-pinned").click().run()
    assert "■ FAIL" in said(app)


def test_a_log_is_verified_again_only_when_it_has_grown(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Observatory(home).store
    reads: list[int] = []
    whole = store.audit_log.verify
    monkeypatch.setattr(store.audit_log, "verify", lambda pinned=None: (reads.append(1), whole(pinned))[1])
    first = audit_trail.last_verified(store, store.audit_log.head())
    assert audit_trail.last_verified(store, store.audit_log.head()) is first
    assert len(reads) == 1
    store.audit_log.append(actor="ada", action="test.write", subject="thing:1", reason="")
    assert audit_trail.last_verified(store, store.audit_log.head()) is not first
    # A long log is not read in a rerun: what is known of it is what was verified last.
    monkeypatch.setattr(audit_trail, "AT_ONCE", 3)
    store.audit_log.append(actor="ada", action="test.write", subject="thing:2", reason="")
    stale = audit_trail.last_verified(store, store.audit_log.head())
    assert stale is not None
    assert stale.head != store.audit_log.head()
    assert len(reads) == 2


def test_exports_hold_every_entry_with_what_its_hash_is_over(decided_home: Path) -> None:
    entries = Observatory(decided_home).store.audit_log.read()
    lines = audit_trail.json_lines(entries).splitlines()
    assert [json.loads(line)["hash"] for line in lines] == [entry.hash for entry in entries]
    # As docs/incidents.md has it.
    for line in lines:
        entry = json.loads(line)
        content = {name: value for name, value in entry.items() if name != "hash"}
        content["detail"] = json.dumps(content["detail"], ensure_ascii=False, sort_keys=True)
        plain_text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        assert hashlib.sha256(plain_text.encode()).hexdigest() == entry["hash"]
    assert audit_trail.rows(entries)[0]["detail"] == json.dumps(entries[0].detail, sort_keys=True)
