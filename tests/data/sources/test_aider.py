"""Aider chat histories: who spoke, what came of the edits, and turns numbered as the follow-up labels number them."""

import hashlib
import json
from pathlib import Path

import pytest

from palomar.data.edits import from_search_replace
from palomar.data.quarantine import Quarantined
from palomar.data.schema import Interaction
from palomar.data.sources import SourceFile, detect, read_path

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures" / "aider" / "history.md"


def read(path: Path) -> tuple[list[Interaction], list[Quarantined]]:
    found = list(read_path(path))
    return (
        [item for item in found if isinstance(item, Interaction)],
        [item for item in found if isinstance(item, Quarantined)],
    )


@pytest.fixture(scope="module")
def history() -> list[Interaction]:
    return read(FIXTURE)[0]


def typed(item: Interaction) -> list[str | None]:
    return [step.text for step in item.steps if step.author == "person"]


def test_a_history_is_recognised_by_its_content(tmp_path: Path) -> None:
    disguised = tmp_path / "notes.txt"
    disguised.write_bytes(FIXTURE.read_bytes())
    reader = detect(SourceFile(disguised, "notes.txt").head)
    assert reader is not None
    assert reader.name == "aider"


def test_every_session_ends_as_interactions_or_in_quarantine(history: list[Interaction]) -> None:
    _, quarantine = read(FIXTURE)
    assert [item.origin_record for item in history] == [1, 1, 1, 1, 1, 1, 3, 3]
    assert [(entry.line, entry.kind) for entry in quarantine] == [(2, "no_interaction")]
    assert [item.turn for item in history] == [0, 1, 2, 3, 4, 5, 0, 1]
    assert len({item.conversation_id for item in history}) == 2
    assert len({item.interaction_id for item in history}) == 8


def test_a_run_of_lines_is_one_request_and_keeps_its_session_and_turn(history: list[Interaction]) -> None:
    places = [json.loads(step.extra_json) for step in history[0].steps if step.author == "person" and step.extra_json]
    assert typed(history[0]) == ["/add app.py", "rename total to amount\n\neverywhere"]
    assert places == [{"session": 1, "turn": 1, "command": "/add"}, {"session": 1, "turn": 2}]


def test_a_heading_of_the_agent_is_its_text_but_counts_in_the_numbering(history: list[Interaction]) -> None:
    assert any("#### `Cart` Class" in (step.text or "") for step in history[0].steps if step.author == "agent")
    step = next(step for step in history[1].steps if step.text == "print it too")
    assert json.loads(step.extra_json or "")["turn"] == 4


def test_applied_and_unmatched_blocks_are_edits_and_no_invalid_calls(history: list[Interaction]) -> None:
    outcomes = [edit.outcome for step in history[1].steps for edit in step.edits]
    assert outcomes == ["failed", "applied", "applied"]
    assert [call for step in history[1].steps for call in step.tool_calls] == []
    first = next(edit for step in history[0].steps for edit in step.edits)
    assert (first.path, first.form, first.outcome, first.language) == ("app.py", "search_replace", "applied", "python")
    assert (first.hunks[0].before, first.hunks[0].after) == ("total = 1\n", "amount = 1\n")


def test_an_answer_that_could_not_be_parsed_is_an_invalid_call(history: list[Interaction]) -> None:
    (call,) = [call for step in history[7].steps for call in step.tool_calls]
    assert (call.invalidity, call.outcome) == ("unparsed", "not_run")
    assert call.problem == "The LLM did not conform to the edit format.\nExpected `=======`"


def test_lint_errors_sent_back_are_the_harness_and_start_no_interaction(history: list[Interaction]) -> None:
    sent_back = [step for step in history[1].steps if (step.text or "").startswith("# Fix any errors")]
    assert [(step.author, step.role) for step in sent_back] == [("harness", "user")]


def test_undo_is_feedback_on_the_interaction_whose_commit_it_removed(history: list[Interaction]) -> None:
    undone = {index: [f.text for f in item.feedback if f.kind == "undo"] for index, item in enumerate(history)}
    assert undone == {
        0: ["Removed: aaaaaaa refactor: rename total"],
        1: ["Removed: ccccccc style: fix lint", "Removed: bbbbbbb feat: print amount"],
        **{index: [] for index in range(2, 8)},
    }


def test_the_turn_that_repeats_ask_counts_once(history: list[Interaction]) -> None:
    assert typed(history[2]) == ["why does that fail on windows?"]
    place = json.loads(history[2].steps[0].extra_json or "")
    assert place == {"session": 1, "turn": 10, "command": "/ask", "command_turn": 9}


def test_a_reply_to_a_question_is_an_answer_and_any_other_a_follow_up(history: list[Interaction]) -> None:
    assert history[2].steps[1].is_question
    assert [(f.kind, f.text) for f in history[2].feedback] == [("answer", "version 11")]
    assert [(f.kind, f.text) for f in history[0].feedback if f.kind != "undo"] == [("follow_up", "print it too")]


def test_control_c_interrupts_an_answer_but_not_an_idle_prompt(history: list[Interaction]) -> None:
    assert [f.kind for f in history[2].feedback] == ["answer"]
    assert [f.kind for f in history[3].feedback] == ["interruption", "follow_up", "follow_up"]
    assert [f.kind for f in history[6].feedback] == ["follow_up"]


def test_output_of_a_command_is_not_the_agents_text(history: list[Interaction]) -> None:
    agent = [step.text for step in history[3].steps if step.author == "agent"]
    assert agent == ["I think it could be that"]
    assert any(step.author == "tool" and step.text == "platform linux" for step in history[3].steps)


def test_what_the_person_says_to_a_commands_output_is_a_request(history: list[Interaction]) -> None:
    assert typed(history[4]) == ["/run pytest -x", "the path is wrong", "/drop app.py"]
    assert [step.text for step in history[4].steps if step.author == "agent"] == ["Then I'd use `Path`."]
    assert [(f.kind, f.text) for f in history[3].feedback] == [
        ("interruption", None),
        ("follow_up", "/run pytest -x"),
        ("follow_up", "the path is wrong"),
    ]


def test_a_command_that_the_agent_answers_is_the_request(history: list[Interaction]) -> None:
    assert typed(history[5]) == ["/web https://example.org"]
    assert [step.text for step in history[5].steps if step.author == "agent"] == ["A page about examples."]


def test_whole_file_answers_are_edits_with_the_models_name_and_tokens(history: list[Interaction]) -> None:
    (edit,) = [edit for step in history[6].steps for edit in step.edits]
    assert (edit.path, edit.form, edit.text, edit.outcome) == ("hello.py", "whole_file", 'print("hello")\n', "applied")
    assert history[6].checkpoint == "gpt-4o-mini"
    assert (history[0].tokens_in, history[0].tokens_out) == (1200, 1500)


def test_times_without_a_zone_are_kept_as_text(history: list[Interaction]) -> None:
    assert history[0].started_at is None
    assert json.loads(history[0].extra_json or "")["started_local"] == "2024-08-05 19:33:02"


def test_a_request_nobody_answered_is_only_the_reaction_to_the_one_before(history: list[Interaction]) -> None:
    assert [f.text for f in history[7].feedback if f.kind == "follow_up"] == ["hm"]
    assert typed(history[7]) == ["and good bye", "hm"]


def test_ids_do_not_change_when_the_session_goes_on(tmp_path: Path, history: list[Interaction]) -> None:
    text = FIXTURE.read_text()
    longer = tmp_path / "history.md"
    longer.write_text(text + "\n#### more  \n\nDone.\n\n> Tokens: 1 sent, 1 received. \n")
    again = read(longer)[0]
    assert [item.interaction_id for item in again[:8]] == [item.interaction_id for item in history]
    assert len(again) == 9


def test_one_session_of_bad_bytes_does_not_cost_the_others(tmp_path: Path) -> None:
    damaged = tmp_path / "history.md"
    damaged.write_bytes(FIXTURE.read_bytes().replace(b"say hello", b"say \xff"))
    interactions, quarantine = read(damaged)
    assert [item.origin_record for item in interactions] == [1] * 6
    assert [(entry.line, entry.kind) for entry in quarantine] == [(2, "no_interaction"), (3, "encoding")]


def test_blocks_of_older_releases_and_other_fences_are_edits() -> None:
    text = "```python\na.py\n<<<<<<< ORIGINAL\n1\n=======\n2\n>>>>>>> UPDATED\n```\n\nb.py\n<source>python\n"
    text += "<<<<<<< SEARCH\n=======\n3\n>>>>>>> REPLACE\n</source>\n"
    edits = [(edit.path, edit.hunks[0].before, edit.hunks[0].after) for edit in from_search_replace(text)]
    assert edits == [("a.py", "1\n", "2\n"), ("b.py", "", "3\n")]


def test_blocks_left_open_are_no_edits_and_cost_no_more_than_their_length() -> None:
    # A pattern over the whole text needs cubic time here: hours, where one pass takes milliseconds.
    assert from_search_replace("a.py\n<<<<<<< SEARCH\nx\n=======\n" * 20_000) == ()


def test_all_450_sessions_and_12_examples_are_accounted_for(samples: Path) -> None:
    interactions, quarantine = read(samples / "aider-chat" / "chat-history.sessions-0001-0450.md")
    assert len({item.origin_record for item in interactions}) + len(quarantine) == 450
    assert {entry.kind for entry in quarantine} == {"no_interaction"}
    assert (len(interactions), len(quarantine)) == (296, 281)  # as docs/formats.md says
    assert len({item.interaction_id for item in interactions}) == len(interactions)
    examples, rest = read(samples / "aider-chat" / "examples")
    assert (len({item.origin for item in examples}), rest) == (12, [])
    assert len(examples) == 53
    # Every block in the examples is an edit of the agent's, and no HTML around them is its text.
    assert sum(len(step.edits) for item in examples for step in item.steps) == 55
    assert not any(
        (step.text or "").startswith("<") for item in examples for step in item.steps if step.author == "agent"
    )


def test_every_labelled_follow_up_is_found_by_its_reference(samples: Path) -> None:
    folder = samples / "aider-chat"
    steps = {}
    reactions = set()
    for item in read(folder)[0]:
        name = str(Path(item.origin).relative_to(folder))
        for step in item.steps:
            place = json.loads(step.extra_json or "{}") if step.author == "person" else {}
            if "turn" in place:
                steps[name, place["session"], place["turn"]] = step.text or ""
        reactions |= {(name, f.text) for f in item.feedback if f.kind in ("follow_up", "answer")}
    labels = (samples / "follow-up-labels" / "labels.jsonl").read_text().splitlines()
    references = [label["ref"] for label in map(json.loads, labels) if label["source"] == "aider-chat"]
    assert len(references) == 128
    for ref in references:
        text = steps[ref["file"], ref["session"], ref["turn"]]
        assert hashlib.sha256(text.encode()).hexdigest()[:12] == ref["text_sha256_12"]
        assert (ref["file"], text) in reactions
