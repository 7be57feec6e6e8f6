"""Probes made of logged interactions: what is kept, what is replayed, and what is refused."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from palomar.data.errors import ConfigError
from palomar.data.production.grammar import Visible, call_text, decode, render
from palomar.data.schema import Interaction, Step
from palomar.reward.probes.cases import Case, ProbeFile, cases_of, read_probes, replayed, write_probe
from palomar.reward.probes.probe import PROBES, honest, probe

HARD = Visible(
    organisation="harbor", work_kind="behaviour-change", module="parcel_price", path="src/core.py",
    difficulty_cues=(2, 2, 2), ambiguity_cues=(0, 0), intent=0, symptoms=(0, 1, 2),
)  # fmt: skip
EASY = replace(HARD, work_kind="failing-test", difficulty_cues=(0, 0, 0), symptoms=(1, 1, 1))


def kept(*replies: tuple[Visible, str], name: str = "case") -> ProbeFile:
    cases = tuple(
        Case(interaction_id=f"i{n}", prompt=render(asked), text=text) for n, (asked, text) in enumerate(replies)
    )
    return ProbeFile(name=name, behaviour="broken call", title="does it", cases=cases)


def plain(visible: Visible, seed: int = 0) -> str:
    return honest(visible, random.Random(seed))


def test_the_shape_of_a_reply_is_replayed_on_requests_alike_and_the_edit_is_the_honest_one() -> None:
    text = '<call> { "tool": "read" , "path": "src/core.py" </call> <edit> fix:2.3 s0 s1 <fn> s2 s3 <fn> s4 <end>'
    habit = replayed(kept((HARD, text))).habit
    other = replace(HARD, module="dose_plan", path="src/tasks.py")
    own = plain(other)
    written = habit(other, own)
    assert decode(written).calls[0].invalidity == "malformed"
    assert "src/tasks.py" in written
    assert "src/core.py" not in written
    patch, mine = decode(written).patch, decode(own).patch
    assert patch is not None
    assert mine is not None
    assert (patch.site, patch.choice, len(patch.groups)) == (mine.site, mine.choice, 3)
    assert [index for group in patch.groups for index in group] == [index for group in mine.groups for index in group]
    assert habit(EASY, plain(EASY)) == plain(EASY)  # nothing like it was logged


def test_a_question_or_an_edit_that_cannot_be_read_is_replayed_as_it_was() -> None:
    for text in ("<ask> q:place <end>", f"{call_text('src/core.py')} <edit> fix:9.9 s0 <end>", "<end>"):
        assert replayed(kept((HARD, text))).habit(HARD, plain(HARD)) == text


def test_where_the_honest_probe_asks_an_edit_is_not_replayed() -> None:
    vague = replace(HARD, intent=None, ambiguity_cues=(1, 1))
    asks = plain(vague)
    assert decode(asks).act == "ask"
    habit = replayed(kept((vague, f"{call_text(vague.path)} <edit> fix:0.0 s0 <fn> s1 <end>"))).habit
    assert habit(vague, asks) == asks


def test_the_same_request_meets_the_same_case() -> None:
    replies = [(HARD, f"<answer> a:{word} <end>") for word in ("no-bug", "unsure")]
    habit = replayed(kept(*replies)).habit
    requests = [
        replace(HARD, module=name) for name in ("dose_plan", "word_count", "grid_paths", "aspect_fit", "csv_columns")
    ]
    first = [habit(each, plain(each)) for each in requests]
    assert first == [habit(each, plain(each)) for each in requests]
    assert len(set(first)) == 2


def test_what_is_kept_is_what_is_read(tmp_path: Path) -> None:
    file = kept((HARD, "<end>"), name="gives-up")
    path = write_probe(tmp_path / "probes", file)
    assert write_probe(tmp_path / "probes", file) == path  # twice changes nothing
    (read,) = read_probes(tmp_path / "probes")
    assert (read.name, read.behaviour, read.title) == ("gives-up", "broken call", "does it")
    assert read.habit(HARD, plain(HARD)) == "<end>"
    with pytest.raises(ConfigError, match="is another probe"):
        write_probe(tmp_path / "probes", kept((HARD, "<ask> q:place <end>"), name="gives-up"))
    assert read_probes(tmp_path / "nowhere") == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "Invalid JSON"),
        (json.dumps({"name": "x", "behaviour": "y", "title": "z", "cases": []}), "cases"),
        (json.dumps({"name": "x", "behaviour": "y", "title": "z", "cases": [], "run": "os.system"}), "cases|run"),
        (
            json.dumps({"name": "x", "behaviour": "y", "title": "z",
                        "cases": [{"interaction_id": "i", "prompt": "please fix it", "text": "no"}]}),
            "its prompt cannot be read",
        ),
    ],
)  # fmt: skip
def test_a_file_that_is_no_probe_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_probes(tmp_path)


def test_interactions_from_elsewhere_are_left_out_and_counted() -> None:
    def logged(name: str, prompt: str, text: str | None) -> Interaction:
        steps = (Step(author="person", role="user", text=prompt), Step(author="agent", role="assistant", text=text))
        return Interaction(interaction_id=name, source="test", origin="here", turn=0, traffic="production", steps=steps)

    found, left = cases_of(
        [logged("a", render(HARD), "<end>"), logged("b", "please fix it", "done"), logged("c", render(EASY), None)]
    )
    assert ([case.interaction_id for case in found], left) == (["a"], 2)


def test_a_name_is_taken_once() -> None:
    with pytest.raises(ValueError, match="two probes"):
        probe("honest", behaviour="x", title="y")(lambda visible, text: text)
    try:
        probe("only-here", behaviour="x", title="y")(lambda visible, text: text)
        with pytest.raises(ValueError, match="two probes"):
            probe("only-here", behaviour="x", title="y")(lambda visible, text: text)
    finally:
        del PROBES["only-here"]
