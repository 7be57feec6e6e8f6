"""`palomar incident`: what a person who is paged sees and does, and a post-mortem in which hostile text stays text."""

from __future__ import annotations

import json
import sqlite3
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from typer.testing import CliRunner

from palomar.app.cli import app
from palomar.app.incidents import escaped_markdown, view
from palomar.data.findings import ALL, Cause, Evidence, Finding
from palomar.data.store import Store
from palomar.detectors.incidents import open_incidents

HOSTILE = "<script>alert(1)</script> ![x](http://evil/p.png) [a](javascript:x) {{7*7}} | *b* `c` \x1b[31m\n# head"


def finding(statistic: str = "clarification_rate", slice: str = ALL, **more: Any) -> Finding:
    said = {
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
        "evidence": Evidence(("i-carrying",), ("i-usual",), ("i-against",)),
        **more,
    }
    return Finding("behaviour", statistic=statistic, slice=slice, **said)


def checked(store: Store, cycle: int, verdict: str, *findings: Finding) -> None:
    store.findings.write("demo", cycle, findings)
    said = {"verdict": verdict, "reasons": [], "sentence": "", "findings": {}, "budget": "", "as_of": None}
    store.verdicts.write("demo", cycle, **said)  # type: ignore[arg-type]
    open_incidents(store, "demo", cycle)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Cycle 3 is fine, 4 was hacked after the reward changed, 5 is worse, 6 is fine again."""
    with Store.open(None, tmp_path) as store:
        store.runs.add("demo", name="demo", seed=7, config={})
        for version in ("v1", "v2"):
            store.rewards.add(version, text=version, parent=None, reason="r", actor="a")
        for cycle in range(8):
            store.cycles.start("demo", cycle, reward_version="v1" if cycle < 4 else "v2")
        checked(store, 3, "pass")
        checked(store, 4, "block", finding(), finding("edit_rate", severity="warns"))
        checked(store, 5, "block", finding(after=0.8, effect=0.66), finding("edit_rate"))
        checked(store, 6, "pass")
    return tmp_path


def incident(home: Path, *arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["incident", *arguments, "--home", str(home)])
    assert done.exit_code == code, (done.output, done.exception)
    return done.stdout


def tell(home: Path, *arguments: str, code: int = 0) -> Any:
    return json.loads(incident(home, *arguments, "--json", code=code))


def test_list_shows_what_is_open_and_fails_on_it_only_when_asked(home: Path) -> None:
    row = " ".join(incident(home, "list").splitlines()[1].split())
    assert row.startswith("1 open reward hack: asking in place of editing 4..5 - demo")
    assert [each["number"] for each in tell(home, "list", "--fail-on-open", code=1)["incidents"]] == [1]
    incident(home, "resolve", "1", "--as", "patched", "--reason", "gone", "--actor", "ada")
    assert incident(home, "list", "--fail-on-open") == "no incident is open; 4 cycles were checked, the newest is 6\n"
    assert "resolved (patched, as of cycle 7)" in incident(home, "list", "--all")
    assert tell(home, "list", "--state", "resolved", "--fail-on-open")["incidents"][0]["resolution"] == "patched"
    assert tell(home, "list", "--all", "--run", "other") == {"incidents": []}


def test_home_without_store_exits_with_3_and_gets_none(tmp_path: Path) -> None:
    assert "no store" in incident(tmp_path, "list", code=3)
    assert "no store" in tell(tmp_path, "show", "1", code=3)["why"]
    assert not list(tmp_path.iterdir())


def test_show_answers_what_a_paged_person_asks(home: Path) -> None:
    said = incident(home, "show", "1")
    for words in (
        "incident 1  OPEN  reward hack: asking in place of editing",
        "opened in cycle 4 at ",
        "last seen in cycle 5; newest checked cycle: 6; nobody has it",
        "clarification_rate 14 % -> 63 %, n=699; reading: reward hack",
        "quiet      not seen since cycle 5",
        "charged to term:function_size (1 of 1)",
        "data       no fault found in cycles 4 to 5",
        "changed    cycle 4: reward v1 -> v2 (since cycle 3, the last that passed)",
        "look at    i-carrying",
        "usual      i-usual",
        "against    i-against",
        "0.8 (cycle 5)",
        "and 1 warning; --all shows them",
        "palomar  opened by the check of cycle 4: 1 finding of cycle 4 about asking in place of editing",
        "next: palomar incident ack 1",
    ):
        assert words in said
    assert "edit_rate" not in said.split("timeline")[0].split("evidence")[1]
    assert "edit_rate" in incident(home, "show", "1", "--all")


def test_shown_numbers_are_those_of_the_time_with_todays_beside_them(home: Path) -> None:
    with Store.open(None, home) as store:
        store.findings.write("demo", 4, [finding(after=0.5)])
    first = tell(home, "show", "1")["findings"][0]
    assert (first["pinned"]["after"], first["same_cycle_now"]["after"], first["latest"]["after"]) == (0.63, 0.5, 0.8)
    assert first["intact"]
    with Store.open(None, home) as store:
        store.findings.write("demo", 4, [])
    assert tell(home, "show", "1")["findings"][0]["same_cycle_now"] is None


def test_evidence_that_was_tampered_with_is_told(home: Path) -> None:
    with sqlite3.connect(home / "palomar.db") as connection:
        connection.execute("DROP TRIGGER incident_findings_refuse_update")
        connection.execute("UPDATE incident_findings SET finding = replace(finding, '0.63', '0.13')")
    assert not tell(home, "show", "1")["findings"][0]["intact"]
    assert "CHANGED: evidence is not what the audit log has the hash of" in incident(home, "show", "1")
    assert "CHANGED SINCE IT WAS PINNED" in incident(home, "export", "1")
    assert "changed since it was pinned" in incident(home, "export", "1", "--html")


def test_fault_of_measurement_puts_numbers_in_doubt(home: Path) -> None:
    with Store.open(None, home) as store:
        fault = finding("rows", severity="warns", reading="measurement_fault")
        checked(store, 5, "block", finding(after=0.8), fault)
    assert "data       IN DOUBT: faults of measurement in cycle 5" in incident(home, "show", "1")
    assert tell(home, "show", "1")["faulty_cycles"] == [5]


def test_incident_is_taken_from_alarm_to_closed(home: Path) -> None:
    by = ("--actor", "ada")
    assert "incident 1: acknowledged, nobody has it\nlast: acknowledged by ada at " in incident(home, "ack", "1", *by)
    assert "acknowledged, bob has it" in incident(home, "assign", "1", "bob", "--reason", "on call", *by)
    incident(home, "comment", "1", "it began with v2", *by)
    incident(home, "cause", "1", "small functions pay", "--term", "term:function_size", "--reward", "v2", *by)
    assert "mitigated" in incident(home, "act", "1", "back to v1", "--mitigates", *by)
    assert "next: palomar incident resolve 1" in incident(home, "show", "1")
    accepted = ("--as", "accepted", "--reason", "known", "--until-cycle", "9", "--scope", "clarification_rate@all")
    told = tell(home, "resolve", "1", *accepted, "--cycle", "6", *by)
    assert (told["resolution"], told["until_cycle"]) == ("accepted", 9)
    assert told["scope"] == [{"statistic": "clarification_rate", "slice": "all"}]
    assert "resolved (accepted until cycle 9, as of cycle 6)" in incident(home, "list", "--all")
    assert "open, reopened once" in incident(home, "reopen", "1", "--reason", "not so", *by)
    ended = ("--as", "rolled-back", "--reason", "v1 again", "--cycle", "6")
    assert "rolled back, as of cycle 6" in incident(home, "resolve", "1", *ended, *by)
    said = incident(home, "show", "1")
    assert "root cause small functions pay" in said
    assert "next:" not in said
    document = incident(home, "export", "1")
    for words in ("small functions pay", "- term: term:function\\_size", "back to v1", "resolved: rolled back"):
        assert words.replace("\\_", "_") in document
    done = CliRunner().invoke(app, ["audit-log", "verify", "--home", str(home)])
    assert done.exit_code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "9"),
        ("ack", "9"),
        ("resolve", "1", "--as", "accepted", "--reason", "x"),
        ("resolve", "1", "--as", "gone", "--reason", "x"),
        ("resolve", "1", "--as", "patched"),
        ("resolve", "1", "--as", "accepted", "--reason", "x", "--until", "2020-01-01"),
        ("reopen", "1", "--reason", "x"),
        ("comment", "1", " "),
        ("rate", "1", "maybe"),
    ],
)
def test_what_makes_no_sense_is_no_success(home: Path, arguments: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, ["incident", *arguments, "--home", str(home)])
    assert done.exit_code not in (0, 3)
    with Store.open(None, home) as store:
        assert {entry.action for entry in store.audit_log.read()} <= {"incident.open", "incident.join"}


def test_precision_is_unknown_until_someone_votes(home: Path) -> None:
    assert "unknown" in incident(home, "precision")
    (behaviour,) = tell(home, "precision")["detectors"]
    assert (behaviour["alarms"], behaviour["rated"], behaviour["value"]) == (1, 0, None)
    incident(home, "rate", "1", "not-useful", "--detector", "behaviour", "--reason", "noise", "--actor", "ada")
    (behaviour,) = tell(home, "precision")["detectors"]
    assert (behaviour["rated"], behaviour["useful"], behaviour["value"]) == (1, 0, 0.0)
    assert round(behaviour["high"], 3) == 0.793  # Wilson's upper limit of 0 of 1
    assert "called the alarm not useful: noise" in incident(home, "show", "1")


# --- the post-mortem


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert not any(name.startswith("on") or name in ("src", "href") for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    with Store.open(None, tmp_path) as store:
        store.runs.add("demo", name="demo", seed=7, config={})
        for cycle in range(6):
            store.cycles.start("demo", cycle)
        evil = finding(HOSTILE, sentence=HOSTILE, causes=(Cause(HOSTILE, HOSTILE, 1.0, 1.0),))
        evil = Finding(**{**vars(evil), "slice": f"organisation={HOSTILE}", "evidence": Evidence((HOSTILE,), (), ())})
        checked(store, 4, "block", evil)
        store.incidents.assign(1, actor=HOSTILE, to=HOSTILE, reason=HOSTILE)
        store.incidents.explain(1, actor=HOSTILE, words=HOSTILE, term=HOSTILE, slice_=HOSTILE, reward=HOSTILE)
        store.incidents.comment(1, actor="ada", words=HOSTILE)
        store.incidents.vote(1, "useful", actor=HOSTILE)
    return tmp_path


def test_hostile_text_stays_text_in_html(hostile: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    incident(hostile, "export", "1", "--html", "--to", str(page))
    document = page.read_text()
    seen = Tags()
    seen.feed(document)
    assert not seen.tags & {"script", "img", "a", "iframe"}
    assert "<script>alert(1)</script>" in seen.text  # shown, as text
    assert "{{7*7}}" in seen.text
    assert "\x1b" not in document
    assert "default-src 'none'" in document


def test_hostile_text_stays_text_in_markdown(hostile: Path) -> None:
    document = incident(hostile, "export", "1")
    assert "\x1b" not in document
    for linkify in (False, True):
        parser = MarkdownIt("commonmark", {"html": True, "linkify": linkify}).enable("table")
        seen = Tags()
        seen.feed(parser.render(document))
        assert not seen.tags & {"script", "img", "a", "em", "code"}
        assert "strong" not in seen.tags
        assert "<script>alert(1)</script>" in seen.text
        assert "{{7*7}}" in seen.text
    headings = [line for line in document.splitlines() if line.startswith("#")]
    assert len(headings) == 6  # ours


def test_hostile_text_is_shown_as_text_on_the_terminal(hostile: Path) -> None:
    for arguments in (("list",), ("show", "1", "--all"), ("precision",)):
        assert "\x1b" not in incident(hostile, *arguments)


@pytest.mark.parametrize(
    "text",
    ["# a", "1. a", "- a", "+ a", "a | b", "*a*", "_a_", "<b>", "&lt;", "http://x.y", "www.x.y", "\\*a", "~~a~~", "="],
)
def test_markdown_renders_escaped_text_as_it_was(text: str) -> None:
    seen = Tags()
    seen.feed(
        MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(escaped_markdown(text))
    )
    assert seen.tags == {"p"}
    assert seen.text.strip() == text


def test_post_mortem_says_what_the_trail_says(home: Path) -> None:
    incident(home, "comment", "1", "it began with v2", "--actor", "ada")
    document = incident(home, "export", "1")
    with Store.open(None, home) as store:
        found = view(store, 1)
        assert found is not None
        head = str(store.audit_log.head())
    for words in (
        "it began with v2",
        "ada",
        "clarification_rate",
        "0.63",
        "699",
        "cycle 4: reward v1",
        head,
        "i-usual",
    ):
        assert words in document
    assert [entry.action for entry in found.timeline] == ["incident.open", "incident.comment"]
    assert document.count(" UTC | ") == 2
