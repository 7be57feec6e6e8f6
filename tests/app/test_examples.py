"""Examples: twins against a search by hand, steps set beside each other, labels added up, and who cites what."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from typer.testing import CliRunner

from palomar.app.cli import app
from palomar.app.examples import (
    MOST_STEPS,
    Examples,
    NoAlarm,
    aligned,
    citations,
    counted,
    examples,
    label_example,
    labels_of,
)
from palomar.app.incidents import detector_precision
from palomar.app.service import Observatory
from palomar.data.errors import StoreError
from palomar.data.findings import Evidence, Finding
from palomar.data.lake import Lake
from palomar.data.observations import OBSERVATIONS
from palomar.data.schema import Edit, Hunk, Interaction, Step, ToolCall
from palomar.data.store import Store
from palomar.data.store.incidents import Arrival
from palomar.data.store.records import AlarmVote, Label
from palomar.detectors.precision import precisions
from palomar.detectors.twins import twins

EMPTY = {
    field.name: None if field.nullable else 0 if pa.types.is_integer(field.type) else False for field in OBSERVATIONS
}


def row(name: str, cycle: int, **more: Any) -> dict[str, Any]:
    return {**EMPTY, "interaction_id": name, "source": "t", "traffic": "production", "cycle": cycle, **more}


def write(lake: Lake, rows: Sequence[dict[str, Any]]) -> None:
    for cycle in sorted({each["cycle"] for each in rows}):
        mine = [each for each in rows if each["cycle"] == cycle]
        lake.write_observations(pa.Table.from_pylist(mine, schema=OBSERVATIONS), cycle)


# -- twins -----------------------------------------------------------------------------------------------------------


def test_the_same_task_comes_before_a_nearer_request_of_another(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    asked = {"predicted_failure": 0.5, "ambiguity": 0.5, "organisation": "acme"}
    write(
        lake,
        [
            row("own", 5, task_id="core", **asked),
            row("near", 0, task_id="other", **asked),
            row("same", 0, task_id="core", predicted_failure=0.9, ambiguity=0.5, organisation="zeta"),
            row("later", 1, task_id="none", **asked),
        ],
    )
    found = twins(lake, ["own"], 5, [0, 1])["own"]
    assert (found.interaction_id, found.same_task, found.cycle) == ("same", True, 0)
    # Gower: predicted failure 0.4, ambiguity 0, organisation 1, traffic 0; kind of work and language are not known.
    assert found.distance == pytest.approx((0.4 + 0 + 1 + 0) / 4)
    assert found.differs == ("predicted_failure", "organisation")
    # Without the task's own, the nearest request; of two as near, that of the later cycle.
    found = twins(lake, ["own"], 5, [1])["own"]
    assert (found.interaction_id, found.same_task, found.distance, found.differs) == ("later", False, 0.0, ())
    write(lake, [row("own", 5, task_id="gone", **asked)])
    assert twins(lake, ["own"], 5, [0, 1])["own"].interaction_id == "later"


def test_twins_are_the_nearest_by_hand(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)

    def some(name: str, cycle: int) -> dict[str, Any]:
        number = lambda: None if rng.random() < 0.2 else float(rng.random())  # noqa: E731
        word = lambda: rng.choice([None, "a", "b"])  # noqa: E731
        return row(name, cycle, predicted_failure=number(), ambiguity=number(), organisation=word(), work_kind=word(),
                   language=word(), task_id=str(rng.integers(0, 40)))  # fmt: skip

    rows = [some(f"{cycle}-{number}", cycle) for cycle in (0, 1, 7) for number in range(60)]
    lake = Lake(tmp_path)
    write(lake, rows)

    def apart(one: dict[str, Any], other: dict[str, Any]) -> float:
        parts = []
        for name in ("predicted_failure", "ambiguity", "organisation", "work_kind", "language", "traffic"):
            a, b = one[name], other[name]
            if a is None and b is None:
                continue
            number = isinstance(a, float) and isinstance(b, float)
            parts.append(abs(a - b) if number else float(a != b))
        return float(np.mean(parts))

    own = [each for each in rows if each["cycle"] == 7]
    found = twins(lake, [each["interaction_id"] for each in own], 7, [0, 1])
    assert len(found) == 60
    by_id = {each["interaction_id"]: each for each in rows}
    same = 0
    for each in own:
        twin = found[each["interaction_id"]]
        before = [other for other in rows if other["cycle"] != 7]
        of_task = [other for other in before if other["task_id"] == each["task_id"]]
        nearest = min(apart(each, other) for other in of_task or before)
        assert twin.distance == pytest.approx(nearest)
        assert twin.same_task == bool(of_task)
        assert apart(each, by_id[twin.interaction_id]) == pytest.approx(nearest)
        same += twin.same_task
    assert 0 < same < 60


def test_without_a_row_or_a_baseline_there_is_no_twin(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    write(lake, [row("own", 5), row("other", 0)])
    assert twins(lake, ["own"], 5, []) == {}
    assert twins(lake, ["own"], 5, [3]) == {}
    assert twins(lake, ["gone"], 5, [0]) == {}
    # Traffic is all that is known of both.
    assert twins(lake, ["own"], 5, [0])["own"].distance == 0.0


# -- side by side ----------------------------------------------------------------------------------------------------


def agent(text: str = "", **more: Any) -> Step:
    return Step(author="agent", role="assistant", text=text, **more)


def of(*steps: Step) -> Interaction:
    return Interaction(interaction_id="x", source="t", origin="t", steps=steps)


PERSON = Step(author="person", role="user", text="fix it")
READ = agent(tool_calls=(ToolCall(call_id="1", name="read", arguments="{}", outcome="ok", result="text"),))
EDIT = agent(edits=(Edit(path="a.py", form="old_new", hunks=(Hunk(before="a", after="b"),), outcome="applied"),))


def test_steps_of_one_kind_stand_beside_each_other() -> None:
    together = aligned(of(PERSON, READ, agent("Which?", is_question=True)), of(PERSON, READ, EDIT))
    assert [(each.own, each.twin, each.same) for each in together.steps] == [(0, 0, True), (1, 1, True), (2, 2, False)]
    together = aligned(of(PERSON, EDIT), of(PERSON, READ, READ, EDIT))
    assert [(each.own, each.twin) for each in together.differ] == [(None, 1), (None, 2)]


def test_a_step_differs_by_what_a_reader_sees_and_not_by_ids() -> None:
    call = READ.tool_calls[0]
    renamed = READ.model_copy(update={"tool_calls": (call.model_copy(update={"call_id": "other"}),)})
    assert aligned(of(READ), of(renamed)).differ == ()
    for change in ({"arguments": "{"}, {"invalidity": "malformed"}, {"outcome": "failed"}, {"result": "other"}):
        other = READ.model_copy(update={"tool_calls": (call.model_copy(update=change),)})
        assert len(aligned(of(READ), of(other)).differ) == 1
    edit = EDIT.edits[0].model_copy(update={"hunks": (Hunk(before="a", after="c"),)})
    assert len(aligned(of(EDIT), of(EDIT.model_copy(update={"edits": (edit,)}))).differ) == 1


def test_long_interactions_are_aligned_as_far_as_is_said() -> None:
    long = of(*(agent(str(number % 7)) for number in range(MOST_STEPS + 30)))
    together = aligned(long, of(PERSON))
    assert together.left_out == 30
    assert sum(each.own is not None for each in together.steps) == MOST_STEPS


@given(st.lists(st.sampled_from([PERSON, READ, EDIT, agent("a"), agent("b")]), max_size=12),
       st.lists(st.sampled_from([PERSON, READ, EDIT, agent("a"), agent("b")]), max_size=12))  # fmt: skip
def test_every_step_is_there_once_and_in_order(own: list[Step], twin: list[Step]) -> None:
    rows = aligned(of(*own), of(*twin)).steps
    assert [each.own for each in rows if each.own is not None] == list(range(len(own)))
    assert [each.twin for each in rows if each.twin is not None] == list(range(len(twin)))
    for each in rows:
        assert each.own is not None or each.twin is not None
        if each.own is not None and each.twin is not None:
            assert each.same == (own[each.own] == twin[each.twin])
    assert all(each.same for each in aligned(of(*own), of(*own)).steps)


# -- labels ----------------------------------------------------------------------------------------------------------


def label(name: str, said: str, actor: str = "ada", detector: str = "behaviour", place: str = "carrying") -> Label:
    return Label("f", name, actor, "r", detector, place, said, datetime(2026, 1, 1, tzinfo=UTC))  # type: ignore[arg-type]


def test_labels_are_counted_by_interaction_and_majority() -> None:
    said = [
        label("a", "hack"), label("a", "hack", "bob"), label("a", "not", "eve"),
        label("b", "not"), label("b", "cannot_tell", "bob"),
        label("c", "hack"), label("c", "not", "bob"),
        label("d", "cannot_tell"),
    ]  # fmt: skip
    told = counted(said)
    assert (told.hack, told.not_hack, told.cannot_tell, told.disputed, told.labelled) == (1, 1, 1, 1, 4)
    assert counted([]).labelled == 0


def test_precision_of_examples_stands_beside_that_of_alarms_and_is_not_mixed_with_it() -> None:
    votes = [AlarmVote(1, "behaviour", "ada", "not_useful", datetime(2026, 1, 1, tzinfo=UTC))]
    labels = [label(name, "hack") for name in "abc"] + [label("d", "not"), label("e", "cannot_tell")]
    labels += [label("z", "hack", place="random"), label("q", "not", detector="joint")]
    found = {each.detector: each for each in precisions({1: ["behaviour"], 2: ["drift"]}, votes, labels)}
    told = found["behaviour"]
    # The vote says it was not worth the call, whatever its examples are.
    assert (told.alarms, told.rated, told.useful, told.value) == (1, 1, 0, 0.0)
    assert (told.labelled, told.hacks, told.hack_share) == (4, 3, 0.75)
    interval = stats.binomtest(3, 4).proportion_ci(method="wilson")
    assert (told.hack_low, told.hack_high) == (interval.low, interval.high)
    # Without labels and votes: not known, not 0.
    assert (found["drift"].value, found["drift"].labelled, found["drift"].hack_share) == (None, 0, None)
    assert (found["joint"].alarms, found["joint"].labelled, found["joint"].hack_share) == (0, 1, 0.0)


# -- of a home -------------------------------------------------------------------------------------------------------


def finding(**more: Any) -> Finding:
    evidence = Evidence(("own", "second"), ("third",), ("fourth",))
    said = {"statistic": "edit_rate", "evidence": evidence, "detail": {"direction": -1}, **more}
    return Finding("behaviour", "blocks", "edits less", **said)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("kept") / "home"
    lake = Lake(home / "lake")
    names = ("own", "second", "third", "fourth")
    write(lake, [*(row(name, 5, task_id="t") for name in names), row("before", 0, task_id="t"), row("b", 1)])
    lake.append_interactions([of(PERSON).model_copy(update={"interaction_id": name, "cycle": 5}) for name in names], 5)
    with Store.open(None, home) as store:
        store.runs.add("r", name="r", seed=0, config={})
        store.cycles.start("r", 5)
        store.baselines.move("r", from_cycle=2, cycles=[0, 1], reason="first", actor="test")
        store.findings.write("r", 5, [finding()])
        stored = store.findings.read("r", 5)
        arrival = Arrival(None, "open", "it blocks", "edits", ("edits",), "all", True, True, ((stored[0], "because"),))
        store.incidents.arrive("r", 5, lambda *_: [arrival])
    return home


def test_examples_of_an_incident_are_those_that_were_pinned(kept: Path, tmp_path: Path) -> None:
    home = Path(shutil.copytree(kept, tmp_path / "home"))
    found = examples(Observatory(home), "r", "1")
    assert isinstance(found, Examples)
    assert [(each.place, each.interaction_id) for each in found.pairs] == [
        ("carrying", "own"), ("carrying", "second"), ("random", "third"), ("counter", "fourth"),
    ]  # fmt: skip
    assert {each.twin.interaction_id for each in found.pairs if each.twin} == {"before"}
    assert (found.incident, found.baseline, found.picked_now, found.missing) == (1, (0, 1), False, ())
    finding_id = found.subject.finding_id
    with Store.open(None, home) as store:
        store.findings.write("r", 5, [finding(evidence=Evidence(("third",)))])
    again = examples(Observatory(home), "r", "1")
    assert isinstance(again, Examples)
    assert again.pairs == found.pairs
    now = examples(Observatory(home), "r", finding_id)
    assert isinstance(now, Examples)
    assert [each.interaction_id for each in now.pairs] == ["third"]
    # Either may be labelled: as it is kept now, or as it was pinned.
    observatory = Observatory(home)
    for name, place in (("third", "carrying"), ("second", "carrying"), ("fourth", "counter")):
        assert label_example(observatory, "r", finding_id, name, "hack", actor="ada").place == place


def test_an_alarm_of_another_run_or_of_none_is_unknown(kept: Path) -> None:
    observatory = Observatory(kept)
    assert examples(observatory, "other", "1") == NoAlarm("1", ())
    assert examples(observatory, "r", "12") == NoAlarm("12", (1,))
    assert examples(observatory, "r", "0" * 20) == NoAlarm("0" * 20, (1,))
    with pytest.raises(StoreError, match="no finding"):
        label_example(observatory, "r", "0" * 20, "own", "hack", actor="ada")


def test_only_an_example_can_be_labelled(kept: Path, tmp_path: Path) -> None:
    home = Path(shutil.copytree(kept, tmp_path / "home"))
    observatory = Observatory(home)
    found = examples(observatory, "r", "1")
    assert isinstance(found, Examples)
    with pytest.raises(StoreError, match=r"is no example of finding .*'own', 'second', 'third', 'fourth'"):
        label_example(observatory, "r", found.subject.finding_id, "before", "hack", actor="ada")
    label_example(observatory, "r", found.subject.finding_id, "own", "hack", actor="ada")
    label_example(observatory, "r", found.subject.finding_id, "third", "not", actor="ada")
    told = labels_of(observatory.store, finding_id=found.subject.finding_id)
    assert {place: (each.hack, each.not_hack) for place, each in told.items()} == {"carrying": (1, 0), "random": (0, 1)}
    assert labels_of(observatory.store, incident=1) == told
    assert labels_of(observatory.store, incident=2) == {}
    (of_detector,) = detector_precision(observatory.store)
    assert (of_detector.detector, of_detector.labelled, of_detector.hacks) == ("behaviour", 1, 1)


def test_who_cites_an_interaction_and_in_which_incident(kept: Path) -> None:
    observatory = Observatory(kept)
    item = observatory.lake.interaction("second")
    (cited,) = citations(observatory.store, "r", item)
    assert (cited.place, cited.incidents, cited.cycle, cited.steps) == ("carrying", (1,), 5, ())
    assert citations(observatory.store, "r", item.model_copy(update={"interaction_id": "nobody"})) == []


def test_a_signature_names_the_step(tmp_path: Path) -> None:
    item = of(
        Step(author="person", role="user", text="fix it"),
        agent(tool_calls=(ToolCall(name="read", arguments="{", invalidity="malformed", outcome="not_run"),)),
    ).model_copy(update={"interaction_id": "dodge", "cycle": 5, "predicted_failure": 0.9})
    with Store.open(None, tmp_path) as store:
        store.runs.add("r", name="r", seed=0, config={})
        store.cycles.start("r", 5)
        named = finding(statistic="signature:dodged-call", evidence=Evidence(("dodge",)))
        store.findings.write("r", 5, [named])
        (cited,) = citations(store, "r", item)
    assert [step for step, _ in cited.steps] == [1]


def test_the_commands_say_the_same(kept: Path, tmp_path: Path) -> None:
    home = Path(shutil.copytree(kept, tmp_path / "home"))
    runner = CliRunner()
    here = ["--home", str(home)]
    done = runner.invoke(app, ["label", "pairs", "1", *here, "--json"])
    assert done.exit_code == 0
    told = json.loads(done.stdout)
    found = examples(Observatory(home), "r", "1")
    assert isinstance(found, Examples)
    assert [each["interaction_id"] for each in told["pairs"]] == [each.interaction_id for each in found.pairs]
    assert told["pairs"][0]["twin"] == json.loads(json.dumps(asdict(found.pairs[0].twin)))  # type: ignore[call-overload]
    assert runner.invoke(app, ["label", "list", *here]).exit_code == 3
    words = ["label", "set", told["finding_id"], "own", "cannot-tell", "--actor", "ada", *here]
    assert runner.invoke(app, words).exit_code == 0
    done = runner.invoke(app, ["label", "list", "1", *here, "--json"])
    assert [(each["interaction_id"], each["label"], each["actor"]) for each in json.loads(done.stdout)["labels"]] == [
        ("own", "cannot_tell", "ada")
    ]
    assert "own" in runner.invoke(app, ["label", "list", *here]).stdout
    assert runner.invoke(app, ["label", "pairs", "1", "--home", str(tmp_path / "none")]).exit_code == 3
    with pytest.raises(StoreError, match="incidents 1"):
        runner.invoke(app, ["label", "pairs", "7", *here], catch_exceptions=False)
