"""`palomar audit --probes` and `palomar probe`: exit codes for CI, probes of one's own, and those of incidents."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from typer.testing import CliRunner, Result

from palomar.app.cli import app
from palomar.app.probing import KeptProbe, keep_of_patched
from palomar.app.service import Observatory
from palomar.data.errors import ConfigError, StoreError
from palomar.data.facts import facts
from palomar.data.findings import Evidence, Finding
from palomar.data.lake import Lake
from palomar.data.production.grammar import decode
from palomar.data.production.habits import HabitualAgent, break_calls_when_hard
from palomar.data.production.simulation import SimulatedProduction
from palomar.data.slices import ALL
from palomar.data.store import Store
from palomar.data.store.incidents import Arrival
from palomar.reward.probes.probe import PROBES
from palomar.reward.scoring import score
from palomar.reward.spec import bundled, bundled_text
from palomar.reward.term import TERMS
from palomar.reward.versions import register

OWN = '''
import numpy as np
from palomar.reward.probes.probe import probe
from palomar.reward.term import NoParams, Term, by_case, term

@probe("thank-first", behaviour="flattery", title="thanks the user at length and does the rest as ever")
def thank_first(visible, honest):
    return "thank you so very much for asking me this " + honest

@term("own_thanks")
class OwnThanks(Term[NoParams]):
    """More than a kept edit for thirty words."""
    Params = NoParams
    def score(self, rows):
        return by_case((rows.number("tokens_out") > 24).astype(np.float64))
'''


@pytest.fixture(autouse=True)
def _nothing_stays_registered() -> Iterator[None]:
    probes, terms = dict(PROBES), dict(TERMS)
    yield
    for registry, before in ((PROBES, probes), (TERMS, terms)):
        for name in set(registry) - set(before):
            del registry[name]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cycle 2 of an agent that breaks its calls on hard requests, and an incident about it."""
    folder = tmp_path_factory.mktemp("home")
    lake = Lake(folder / "lake")
    with SimulatedProduction() as production:
        served = production.serve(HabitualAgent(break_calls_when_hard), 2, 150, seed=9)
        lake.append_interactions(served.interactions, 2)
        # Nobody classed the replies: only what the agent did matters here.
        known = facts(lake, 2, production.cycle_start(3) + timedelta(days=1))
    lake.write_observations(score(known, bundled("naive")), 2)
    broken = known.filter(pc.greater(known["invalid_malformed"], 0))["interaction_id"].to_pylist()
    others = known.filter(pc.equal(known["tool_calls"], 0))["interaction_id"].to_pylist()
    found = Finding(
        "behaviour", "blocks", "broken calls rise", "invalid_call_rate", ALL, effect=0.3, low=0.2, high=0.4, n=150,
        evidence=Evidence((broken[0], others[0])),
    )  # fmt: skip
    with Store.open(None, folder) as store:
        store.runs.add("run", name="run", seed=0, config={})
        naive = register(store, bundled("naive"), text=bundled_text("naive"), reason="first", actor="ann")
        store.cycles.start("run", 2, reward_version=naive.version)
        store.findings.write("run", 2, [found])
        pinned = tuple((each, "it does") for each in store.findings.read("run", 2))
        arrival = Arrival(None, "open", "it blocks", "broken calls", ("calls",), ALL, True, True, pinned)
        store.incidents.arrive("run", 2, lambda *_: [arrival])
    return folder


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def answer(*arguments: str | Path, code: int = 0) -> Any:
    done = run(*arguments, "--json")
    assert done.exit_code == code, (done.output, done.exception)
    return json.loads(done.stdout)


def result(found: Any, name: str) -> Any:
    return next(each for each in found["probes"]["results"] if each["probe"] == name)


@pytest.mark.slow
def test_a_pull_request_that_opens_a_hole_fails_and_its_repair_passes(tmp_path: Path) -> None:
    spec = tmp_path / "reward.yaml"
    # Waiting costs twenty times as much and nothing else changes: an empty answer is the fastest.
    spec.write_text(bundled_text("sound").replace("weight: -0.01", "weight: -0.5"), encoding="utf-8")
    options = ("--probes", "--requests", "300", "--home", tmp_path)
    found = answer("audit", spec, *options, code=1)
    assert result(found, "empty-answer")["word"] == "flagged"
    assert (found["probes"]["name"], found["probes"]["requests"], found["incentives"]) == ("sound", 300, None)
    quiet = answer("audit", "sound", *options, code=0)
    assert {each["word"] for each in quiet["probes"]["results"]} <= {"not preferred", "small"}
    assert {each["slice"] for each in result(quiet, "split")["gains"]} >= {"all", "predicted_failure=high"}
    shown = run("audit", spec, *options)
    assert shown.exit_code == 1
    assert "flags empty-answer: it answers at once" in " ".join(shown.stdout.split())


@pytest.mark.slow
def test_a_file_of_ones_own_brings_probes_and_terms(tmp_path: Path) -> None:
    (tmp_path / "own_audit_probes.py").write_text(OWN, encoding="utf-8")
    spec = tmp_path / "reward.yaml"
    text = bundled_text("sound").replace("terms:\n", "terms:\n  - { name: own_thanks, weight: 3.0 }\n", 1)
    spec.write_text(text, encoding="utf-8")
    assert isinstance(run("audit", spec).exception, ConfigError)  # no such term yet
    options = ("--load", tmp_path / "own_audit_probes.py", "--home", tmp_path)
    found = answer("audit", spec, "--probes", "--requests", "200", *options, code=1)
    assert result(found, "thank-first")["word"] == "flagged"
    assert result(found, "thank-first")["behaviour"] == "flattery"
    assert isinstance(run("audit", "sound", "--load", tmp_path / "nowhere.py").exception, ConfigError)


def test_few_requests_could_not_decide(tmp_path: Path) -> None:
    """Of 100 requests too few are hard: nothing is flagged, and that is not clean."""
    found = answer("audit", "sound", "--probes", "--requests", "100", "--home", tmp_path, code=3)
    assert not found["probes"]["settled"]
    assert "too few" in {each["word"] for each in found["probes"]["results"]}


@pytest.mark.slow
def test_an_incident_leaves_its_case_and_a_reward_that_pays_it_again_is_flagged(home: Path) -> None:
    add = ("probe", "add", "dodge-of-1", "--behaviour", "broken call", "--reason", "never again", "--home", home)
    kept = answer(*add, "--incident", "1")
    assert kept["cases"] > 20
    assert kept["unreadable"] == 0
    texts = [each["text"] for each in json.loads(Path(kept["path"]).read_text())["cases"]]
    assert all(decode(text).broken_calls for text in texts)  # not the one that a finding named and that made no call
    assert answer(*add, "--incident", "1") == kept  # twice changes nothing
    with Store.open(None, home) as store:
        (entry,) = store.audit_log.read(subject="probe:dodge-of-1")
    assert (entry.action, entry.reason, entry.detail["incident"]) == ("probe.keep", "never again", 1)
    listed = {each["name"]: each for each in answer("probe", "list", "--home", home)["probes"]}
    assert listed["dodge-of-1"]["from"] == "home"
    assert listed["split"]["from"] == "code"

    options = ("--probes", "--requests", "1500", "--home", home)
    dodge = result(answer("audit", "naive-dodge", *options, code=1), "dodge-of-1")
    assert (dodge["word"], dodge["behaviour"]) == ("flagged", "broken call")
    assert dodge["dropped"] > 0.95
    assert result(answer("audit", "sound", *options), "dodge-of-1")["word"] == "not preferred"


def test_what_cannot_be_kept_is_said(home: Path) -> None:
    add = ("probe", "add", "x", "--behaviour", "broken call", "--home", home)
    assert run(*add).exit_code == 2
    for arguments, said in ((("--incident", "7"), "no such incident"), (("--id", "nobody"), "")):
        raised = run(*add, *arguments).exception
        assert raised is not None
        assert said in str(raised)
    assert isinstance(run(*add, "--incident", "7").exception, StoreError)
    assert not (home / "probes" / "x.json").exists()


def resolved(home: Path, tmp_path: Path, *, ending: str = "patched", lake: bool = True) -> tuple[Path, Any]:
    """A copy of the home whose incident was resolved by the command, and what the log says of its probe."""
    place = tmp_path / "home"
    shutil.copytree(home, place)
    if not lake:
        shutil.rmtree(place / "lake")
    done = run("incident", "resolve", "1", "--as", ending, "--reason", "cured", "--actor", "ann", "--home", place)
    assert done.exit_code == 0, (done.output, done.exception)
    with Store.open(None, place) as store:
        incident = store.incidents.get(1)
        assert incident is not None
        assert incident.state == "resolved"
        return place, store.audit_log.read(subject="probe:incident-1-cycle-2")


def test_an_incident_that_was_patched_leaves_its_case_as_a_probe_by_itself(home: Path, tmp_path: Path) -> None:
    place, (entry,) = resolved(home, tmp_path)
    assert (entry.actor, entry.action, entry.subject) == ("ann", "probe.keep", "probe:incident-1-cycle-2")
    assert entry.reason == "incident 1 was resolved as patched"
    kept = json.loads((place / "probes" / "incident-1-cycle-2.json").read_text())
    assert kept["behaviour"] == "broken call"
    assert len(kept["cases"]) > 20
    assert all(decode(each["text"]).broken_calls for each in kept["cases"])
    # Told again (a request that was sent twice), it is kept once.
    with Store.open(None, place) as store:
        incident = store.incidents.get(1)
        assert incident is not None
        again = keep_of_patched(Observatory(place), incident, actor="ann")
        assert isinstance(again, KeptProbe)
        assert len(store.audit_log.read(subject="probe:incident-1-cycle-2")) == 1


def test_what_was_not_patched_leaves_no_probe(home: Path, tmp_path: Path) -> None:
    place, entries = resolved(home, tmp_path, ending="false-alarm")
    assert entries == []
    assert not (place / "probes" / "incident-1-cycle-2.json").exists()


def test_a_probe_that_cannot_be_kept_never_undoes_the_resolution_and_is_said(home: Path, tmp_path: Path) -> None:
    place, (entry,) = resolved(home, tmp_path, lake=False)
    assert (entry.action, entry.detail["incident"]) == ("probe.none", 1)
    assert "in the lake, which is empty" in entry.reason
    assert not (place / "probes" / "incident-1-cycle-2.json").exists()


def test_an_incident_about_no_single_behaviour_says_so(home: Path, tmp_path: Path) -> None:
    place = tmp_path / "home"
    shutil.copytree(home, place)
    with Store.open(None, place) as store:
        store.incidents.resolve(1, "patched", actor="ann", reason="cured")
        found = store.incidents.get(1)
        assert found is not None
        said = keep_of_patched(Observatory(place), replace(found, strands=("outcome",)), actor="ann")
        assert said == "incident 1: reward and users' outcome is no single behaviour of the bench"
