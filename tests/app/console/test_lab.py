"""The reward lab: proposals, a change by hand, replay by a job, apply and revert; and what it says when it cannot."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest
from typer.testing import CliRunner

from palomar.app import jobs, lab, patching
from palomar.app.cli import app as command
from palomar.app.console import signing
from palomar.app.console.charts.sides import SIDES, drawn, push_sides
from palomar.app.console.views import lab_replay
from palomar.app.patching import edited
from palomar.app.service import Observatory
from palomar.data.errors import StoreError
from palomar.data.findings import Evidence, Finding
from palomar.data.lake import Lake
from palomar.data.store import Store
from palomar.data.store.jobs import Jobs
from palomar.data.store.records import RewardProposal
from palomar.detectors.incidents import open_incidents
from palomar.reward.replay import replay
from palomar.reward.spec import bundled, bundled_text, parse_spec, version
from palomar.reward.versions import register

Page = Callable[..., AppTest]
NAIVE = version(bundled("naive"))
NEWEST = 3
PATIENCE_S = 180
FLAGGED = tuple(f"c{cycle}i{number}" for cycle in (2, 3) for number in range(40))


@pytest.fixture
def home(tmp_path: Path, lake_with_holes: Lake) -> Iterator[Path]:
    """Four cycles under the naive reward; the check of the newest opened an incident about questions."""
    home = tmp_path / "home"
    shutil.copytree(lake_with_holes.root, home / "lake")
    with Store.open(None, home) as store:
        naive = register(store, bundled("naive"), text=bundled_text("naive"), reason="first", actor="ann")
        store.runs.add("run", name="run", seed=0, config={})
        store.rewards.schedule("run", naive.version, from_cycle=0)
        for cycle in range(NEWEST + 1):
            store.cycles.start("run", cycle, reward_version=naive.version)
        finding = Finding(
            "behaviour", "blocks", "questions", statistic="clarification_rate", reading="reward_hack",
            evidence=Evidence(carrying=FLAGGED), detail={"direction": 1},
        )  # fmt: skip
        store.findings.write("run", NEWEST, [finding])
        store.verdicts.write(
            "run", NEWEST, verdict="block", reasons=[], sentence="", findings={}, budget="", as_of=None
        )
        open_incidents(store, "run", NEWEST)
        assert [each.number for each in store.incidents.read("run")] == [1]
    yield home
    jobs.close_runners()


def said(app: AppTest) -> str:
    kinds = ("markdown", "caption", "text", "info", "warning", "error", "success", "subheader", "code")
    return "\n".join(str(each.value) for kind in kinds for each in app.main.get(kind) if hasattr(each, "value"))


def do_all(home: Path) -> None:
    """What the worker would do, here."""
    observatory = Observatory(home)
    assert jobs.work(observatory, once=True) > 0
    observatory.reopen()


@pytest.fixture
def no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs wait until the test does them, so that it sees a page meanwhile."""
    monkeypatch.setattr(jobs.Runner, "look", lambda *_: None)


def first(app: AppTest, name: str) -> Any:
    value = app.query_params[name]
    return value[0] if isinstance(value, list) else value


def weight(app: AppTest, name: str) -> Any:
    return next(each for each in app.number_input if each.key and each.key.endswith(f"-{name}"))


# -- from the alarm to the patch -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_worker")
def test_from_an_incident_to_an_applied_patch_on_one_page(page: Page, home: Path) -> None:
    app = page(home, "lab", incident="1")
    assert not app.exception
    assert "It asks for **less clarification rate**" in said(app)
    app.button(key="do-search").click().run()
    with Store.open(None, home) as store:
        (job,) = store.jobs.read()
        assert (job.kind, job.state, job.arguments["incident"]) == ("patch", "queued", 1)
    # It stands while the page runs again, and its button does not ask for a second one.
    app.run()
    assert "QUEUED" in json.dumps([each.proto.text for each in app.get("progress")])
    assert not [each for each in app.button if each.key == "do-search"]
    do_all(home)
    app.run()
    assert not app.exception
    assert "FOUND" in said(app)
    with Store.open(None, home) as store:
        assert len(store.jobs.read()) == 1
        best = store.rewards.proposals("run", NEWEST)[0]
    assert f"TURNS {len(best.detail['turned'])} OF 1" in said(app)  # type: ignore[arg-type]
    hurt = best.detail["honest_hurt"]
    assert f"Harm: **{100 * hurt:.1f} %**" in said(app)  # type: ignore[operator]
    (row,) = best.detail["pressures"]  # type: ignore[misc]
    assert f"{row['new']['value']:+.3g} ({row['new']['low']:+.3g} to {row['new']['high']:+.3g})" in said(app)

    app.button(key="do-replay").click().run()
    do_all(home)
    app.run()
    spec = parse_spec(best.text)
    direct = replay(Lake(home / "lake"), range(NEWEST + 1), bundled("naive"), spec, flagged=FLAGGED)
    assert lab_replay.sentence(json.loads(json.dumps(direct.to_dict()))) in said(app)
    assert direct.flagged is not None
    assert direct.flagged.lost is not None
    assert f"{100 * direct.flagged.lost:.0f} % lose their gain" in said(app)
    assert f"**{100 * (direct.flagged.honest_hurt or 0):.1f} %** are pushed no more" in said(app)

    app.button(key="do-apply").click().run()  # without a reason
    assert "say why first" in said(app)
    app.text_input(key="reason-apply").input("questions cost users").run()
    app.button(key="do-apply").click().run()
    assert not app.exception
    assert f"is in force from cycle {NEWEST + 1} on" in said(app)
    with Store.open(None, home) as store:
        record = store.rewards.effective("run", NEWEST + 1)
        assert record is not None
        assert (record.version, record.parent, record.reason) == (best.version, NAIVE, "questions cost users")
        incident = store.incidents.get(1)
        assert incident is not None
        assert incident.state == "mitigated"
        assert [entry.action for entry in store.audit_log.read(subject="incident:1")][-1] == "incident.action"


@pytest.mark.usefixtures("no_worker")
def test_an_older_reward_comes_back_with_a_reason(page: Page, home: Path) -> None:
    _, text = edited(bundled_text("naive"), {"latency": -0.02}, [], why="by hand")
    with Store.open(None, home) as store:
        run = store.runs.read()[0]
        kept = patching.propose_own(store, run, text, title="slower", actor="ann")
        patching.apply_stored(store, run, kept.proposal_id, reason="x", actor="ann")
    app = page(home, "lab")
    assert "(patch)" in said(app)
    app.text_input(key="reason-revert").input("it made things worse").run()
    app.button(key="do-revert").click().run()
    with Store.open(None, home) as store:
        assert [each.action for each in store.rewards.changes("run")] == ["patch", "revert"]
        assert store.rewards.effective("run", NEWEST + 1).version == NAIVE  # type: ignore[union-attr]


@pytest.mark.usefixtures("no_worker")
def test_a_change_by_hand_is_replayed_kept_and_applied(page: Page, home: Path) -> None:
    app = page(home, "lab", patch="own")
    assert "change a weight or a rule" in said(app)
    assert not [each for each in app.button if each.key == "do-apply"]
    weight(app, "function_size").set_value(0.35).run()
    assert "term function_size: weight 0.8 -> 0.35" in said(app)
    app.button(key="do-replay").click().run()
    # The address holds the change by hand: opened elsewhere it is there.
    job_id = str(first(app, "job"))
    do_all(home)
    elsewhere = page(home, "lab", job=job_id)
    assert "term function_size: weight 0.8 -> 0.35" in said(elsewhere)
    assert weight(elsewhere, "function_size").value == 0.35
    assert "the mean reward goes **from" in said(elsewhere)
    elsewhere.text_input(key="own-title").input("less for cutting").run()
    elsewhere.button(key="do-keep").click().run()
    with Store.open(None, home) as store:
        (kept,) = store.rewards.proposals("run")
        assert (kept.kind, kept.title) == ("own", "less for cutting")
        assert store.rewards.changes("run") == []
    assert first(elsewhere, "patch") == kept.proposal_id
    elsewhere.text_input(key="reason-apply").input("cutting is not what users want").run()
    elsewhere.button(key="do-apply").click().run()
    with Store.open(None, home) as store:
        (change,) = store.rewards.changes("run")
        assert (change.version, change.proposal_id) == (kept.version, kept.proposal_id)


def test_a_reward_as_text_is_checked_on_the_server_and_told_with_its_line(page: Page, home: Path) -> None:
    app = page(home, "lab", patch="own")
    next(each for each in app.toggle if each.key.startswith("as-text")).set_value(True).run()
    area = app.text_area[0]
    area.set_value(area.value.replace("weight: 0.8", "weight: lots")).run()
    assert "This is no reward" in said(app)
    assert "terms[5].weight" in said(app)
    assert not [each for each in app.button if each.key in ("do-apply", "do-keep", "do-replay")]
    rule = page(home, "lab", patch="own")
    next(each for each in rule.toggle if each.key.startswith("rule-")).set_value(False).run()
    assert "rule invalid_tool_call is gone" in said(rule)


# -- jobs and their deaths -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_worker_is_said_on_the_page_and_asking_again_does_it(page: Page, home: Path) -> None:
    app = page(home, "lab", incident="1")
    app.button(key="do-search").click().run()
    runner = jobs.runner_of(home)
    until = time.monotonic() + PATIENCE_S
    with Store.open(None, home) as store:
        while store.jobs.read()[0].state == "queued":
            assert time.monotonic() < until
            time.sleep(0.05)
        assert runner.pid is not None
        jobs.os.kill(runner.pid, signal.SIGKILL)
        while runner.pid is not None:
            time.sleep(0.05)
        app.run()
        app.run()  # the first look fails it, and the page runs anew
        assert "the job" in said(app)
        assert "killed by signal SIGKILL" in said(app)
        app.button(key="do-search").click().run()
        while store.jobs.read(newest=1)[0].state in ("queued", "running"):
            assert time.monotonic() < until
            app.run()
        app.run()
        assert [each.state for each in store.jobs.read()] == ["failed", "done"]
    assert "FOUND" in said(app)


@pytest.mark.usefixtures("no_worker")
def test_a_request_whose_answer_was_lost_is_one_job_when_it_is_made_again(
    page: Page, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = Jobs.ask

    def lost(*given: Any, **named: Any) -> None:
        ask(*given, **named)
        raise StoreError("store", "the connection broke")

    monkeypatch.setattr(lab, "newest_job", lambda *_: None)  # the page does not see it either
    monkeypatch.setattr(Jobs, "ask", lost)
    app = page(home, "lab")
    app.button(key="do-search").click().run()
    assert "Not done" in said(app)
    monkeypatch.setattr(Jobs, "ask", ask)
    app.button(key="do-search").click().run()
    with Store.open(None, home) as store:
        assert len(store.jobs.read()) == 1
        # What was done is another request the next time.
    app.button(key="do-search").click().run()
    with Store.open(None, home) as store:
        assert len(store.jobs.read()) == 2


# -- when there is nothing, or something is wrong --------------------------------------------------------------------


@pytest.mark.usefixtures("no_worker")
def test_what_is_infeasible_is_said_with_what_stands_in_the_way(page: Page, home: Path) -> None:
    app = page(home, "lab", incident="1")
    app.button(key="do-search").click().run()
    with Store.open(None, home) as store:
        job = store.jobs.take("test")
        assert job is not None
        target = {"statistic": "clarification_rate", "slice": "all", "want": -1}
        result = {
            "status": "infeasible", "why": "no change within the limits turns it round", "num_rows": 2000,
            "targets": [target], "proposals": [], "unaimed": [],
            "refused": [{"change": "other weights", "target": "less clarification_rate in all",
                         "conflict": ["the weights keep half their size", "latency stays"]}],
        }  # fmt: skip
        store.jobs.finish(job.job_id, "test", result)
    app.run()
    assert "INFEASIBLE" in said(app)
    assert "together with: the weights keep half their size; latency stays" in said(app)


def test_an_empty_home_says_what_to_do(page: Page, tmp_path: Path) -> None:
    app = page(tmp_path / "nothing", "lab")
    assert not app.exception
    assert "Nothing here yet" in said(app)
    assert not app.button


def test_a_run_without_a_reward_or_without_interactions_says_so(page: Page, tmp_path: Path) -> None:
    home = tmp_path / "bare"
    with Store.open(None, home) as store:
        store.runs.add("bare", name="bare", seed=0, config={})
    app = page(home, "lab")
    assert not app.exception
    assert "No reward yet" in said(app)
    with Store.open(None, home) as store:
        naive = register(store, bundled("naive"), text=bundled_text("naive"), reason="first", actor="ann")
        store.rewards.schedule("bare", naive.version, from_cycle=0)
    app = page(home, "lab")
    assert not app.exception
    assert "No interactions yet" in said(app)


def test_a_store_that_is_down_is_said(page: Page, home: Path) -> None:
    (home / "palomar.db").write_bytes(b"no database")
    app = page(home, "lab")
    assert not app.exception
    assert "the store does not answer" in said(app)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"incident": "77"}, "has no such incident"),
        ({"incident": "one"}, "There is no incident ` one `"),
        ({"finding": "nothing"}, "the run has none whose key or id begins so"),
        ({"patch": "ffff"}, "There is no change ` ffff `"),
        ({"base": "ffff"}, "There is no version ` ffff `"),
        ({"job": "ffff"}, "There is no job ` ffff `"),
        ({"stat": "ffff"}, "There is no turn round ` ffff `"),
        ({"from": "9", "to": "2", "patch": "x"}, "There is no change"),
    ],
)
def test_what_is_not_known_is_said(page: Page, home: Path, query: dict[str, str], words: str) -> None:
    app = page(home, "lab", **query)
    assert not app.exception
    assert words in said(app)


def test_a_stale_proposal_is_said_and_cannot_be_applied(page: Page, home: Path) -> None:
    with Store.open(None, home) as store:
        run = store.runs.read()[0]
        _, text = edited(bundled_text("naive"), {"latency": -0.02}, [], why="by hand")
        old = patching.propose_own(store, run, text, title="old", actor="ann")
        _, other = edited(bundled_text("naive"), {"latency": -0.03}, [], why="by hand")
        new = patching.propose_own(store, run, other, title="new", actor="ann")
        patching.apply_stored(store, run, new.proposal_id, reason="x", actor="ann")
    app = page(home, "lab", patch=old.proposal_id)
    assert "it is stale" in said(app)
    assert not [each for each in app.button if each.key == "do-apply"]


@pytest.mark.usefixtures("no_worker")
def test_hostile_names_and_reasons_stay_text(page: Page, home: Path) -> None:
    """Titles, reasons, actors and results of jobs are what others wrote; a spec's own names cannot hold markup."""
    attack = "![beacon](http://beacon.invalid/x.png) <img src=http://beacon.invalid> **bold** :red[x]"
    with pytest.raises(Exception, match="pattern"):
        parse_spec(bundled_text("naive").replace("name: latency", f"name: '{attack}'"))
    _, text = edited(bundled_text("naive"), {"latency": -0.02}, [], why=attack)
    with Store.open(None, home) as store:
        rows = [{"statistic": attack, "slice": attack, "old": None, "new": None, "outcome": None}]
        detail = {"diff": attack, "changes": [attack], "turned": [attack], "targets": [], "unturned": [attack] * 9,
                  "lost": [attack], "honest_hurt": 0.1, "distance": 0.2, "pressures": rows * 3, "next_cycle": [],
                  "pushed_less": [{"behaviour": attack, "n": 3, "before": 0.4, "after": 0.2}]}  # fmt: skip
        proposal = RewardProposal(
            run_id="run", proposal_id="a" * 20, cycle=NEWEST, place=1, base=NAIVE, version=version(parse_spec(text)),
            kind=attack, title=attack, text=text, actor=attack, detail=detail,
            made_at=store.runs.read()[0].created_at,
        )  # fmt: skip
        store.rewards.propose([proposal])
        store.jobs.ask("replay", {"old": bundled_text("naive"), "new": text, "cycles": [0, 1, 2, 3], "flagged": []},
                       actor=attack)  # fmt: skip
        job = store.jobs.take("test")
        assert job is not None
        store.jobs.fail(job.job_id, "test", attack)
    app = page(home, "lab", patch="a" * 20)
    assert not app.exception
    read_as_markdown = [each.value for kind in ("markdown", "caption", "error", "warning") for each in app.get(kind)]
    read_as_markdown += [each.label for kind in ("expander", "button", "selectbox") for each in app.get(kind)]
    seen = 0
    for words in map(str, read_as_markdown):
        bare = words
        while "`" in bare:  # code spans hold what others wrote
            fence = bare[bare.index("`") :].split(" ")[0]
            head, _, rest = bare.partition(fence)
            bare = head + rest.partition(fence)[2]
        assert "beacon.invalid" not in bare, words
        seen += "beacon.invalid" in words
    assert seen > 3
    assert "**Not done**" in said(app)


def test_who_may_only_read_sees_all_and_changes_nothing(
    page: Page, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = page(home, "lab", incident="1")
    assert [each.key for each in app.button if each.key and each.key.startswith("do-")]
    how = signing.SignIn(mode="oidc", roles=signing.Roles(people={"bo@x.org": ("read",)}))
    monkeypatch.setenv(signing.VARIABLE, how.model_dump_json())
    app.user = {"is_logged_in": True, "email": "bo@x.org"}
    # The button that was there is pressed all the same, as a client that was changed might do.
    app.button(key="do-search").click().run()
    assert not app.exception
    assert not [each.key for each in app.button if each.key and each.key.startswith("do-")]
    with Store.open(None, home) as store:
        assert store.jobs.read() == []


# -- the picture, and the command line -------------------------------------------------------------------------------


def test_the_picture_has_each_side_of_each_statistic_and_no_zero_for_what_is_missing() -> None:
    def row(statistic: str, kind: str, z: float | None) -> dict[str, Any]:
        return {"statistic": statistic, "slice": "all", "kind": kind, "value": z, "low": z, "high": z, "z": z, "n": 9}

    rows = [row("a", "old", -40.0), row("a", "new", 2.5), row("a", "outcome", None), row("b", "old", 1.0)]
    table = drawn(rows, {"a": "Edits", "b": "Questions"})
    assert [(each["statistic"], each["side"], each["z"]) for each in table.to_pylist()] == [
        ("Edits", SIDES[0], -40.0), ("Edits", SIDES[1], 2.5), ("Questions", SIDES[0], 1.0),
    ]  # fmt: skip
    for theme in ("light", "dark"):
        spec = push_sides(table, ["Edits", "Questions"], theme)
        x = spec["layer"][1]["encoding"]["x"]
        assert x["scale"]["domain"] == [-46.0, 46.0]
        assert x["axis"]["values"] == [-30, -10, -3, 0, 3, 10, 30]
        assert spec["layer"][1]["encoding"]["y"]["sort"] == ["Edits", "Questions"]


def test_a_reward_of_ones_own_is_proposed_on_the_command_line_too(home: Path, tmp_path: Path) -> None:
    _, text = edited(bundled_text("naive"), {"latency": -0.02}, [], why="by hand")
    (tmp_path / "own.yaml").write_text(text)
    words = ["reward", "propose", str(tmp_path / "own.yaml"), "--title", "slower costs more", "--actor", "bo"]
    done = CliRunner().invoke(command, [*words, "--home", str(home), "--json"])
    made = json.loads(done.stdout)
    assert (made["kind"], made["title"], made["base"], made["actor"]) == ("own", "slower costs more", NAIVE, "bo")
    applied = CliRunner().invoke(
        command, ["patch", "--apply", made["proposal_id"], "--reason", "x", "--home", str(home), "--json"]
    )
    assert json.loads(applied.stdout)["change"]["version"] == made["version"]
