"""Claude Code sessions: answers in pieces, tools' answers in the person's role, refusals, side chains, live files."""

import json
from collections import Counter
from pathlib import Path

import pytest

from palomar.data.quarantine import Quarantined
from palomar.data.schema import Interaction, ToolCall
from palomar.data.sources import SourceFile, detect, read_path

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures" / "claude_code" / "session.jsonl"


def read(path: Path) -> tuple[list[Interaction], list[Quarantined]]:
    found = list(read_path(path))
    return (
        [item for item in found if isinstance(item, Interaction)],
        [item for item in found if isinstance(item, Quarantined)],
    )


@pytest.fixture(scope="module")
def session() -> list[Interaction]:
    return read(FIXTURE)[0]


@pytest.fixture(scope="module")
def calls(session: list[Interaction]) -> dict[str | None, ToolCall]:
    return {call.call_id: call for item in session for step in item.steps for call in step.tool_calls}


def test_it_is_recognised_by_its_lines(tmp_path: Path) -> None:
    disguised = tmp_path / "x.log"
    disguised.write_bytes(FIXTURE.read_bytes())
    reader = detect(SourceFile(disguised, "x.log").head)
    assert reader is not None
    assert reader.name == "claude-code"


def test_only_what_the_person_asks_starts_an_interaction(session: list[Interaction]) -> None:
    asked = [[step.text for step in item.steps if step.author == "person"] for item in session]
    assert asked == [
        ["<command-name>/model</command-name>", "rename total to amount"],
        ["yes, and print it", "[Request interrupted by user]", "<bash-input>ls</bash-input>"],
        ["do it differently"],
        ["do it with care"],
    ]
    assert len({item.conversation_id for item in session}) == 1
    assert len({item.interaction_id for item in session}) == 4


def test_a_line_cut_off_while_the_run_is_live_costs_only_itself(session: list[Interaction]) -> None:
    quarantine = read(FIXTURE)[1]
    assert [(entry.line, entry.kind) for entry in quarantine] == [(40, "damaged")]
    assert [f.text for f in session[-1].feedback if f.kind == "follow_up"] == ["thanks, perfect"]


def test_pieces_of_an_answer_are_one_step_with_the_last_token_count(session: list[Interaction]) -> None:
    agent = [step for step in session[0].steps if step.author == "agent" and step.branch is None]
    first = agent[0]
    assert (first.thinking, first.text) == ("look first", "I look.")
    assert [call.call_id for call in first.tool_calls] == ["t1", "t2"]
    assert (first.tokens_in, first.tokens_out) == (100, 40)
    assert session[0].tokens_out == 40 + 7 + 8 + 9 + 2 + 11
    assert [step.text for step in agent[1:]] == [None, None, "Renamed. Shall I fix the test as well?"]


def test_every_kind_of_tool_error_keeps_its_meaning(calls: dict[str | None, ToolCall]) -> None:
    seen = {identifier: (call.outcome, call.invalidity) for identifier, call in calls.items()}
    assert seen == {
        "t1": ("ok", None),
        "t2": ("not_run", "rejected"),
        "t3": ("ok", None),
        "t4": ("ok", None),
        "t5": ("failed", None),
        "t6": ("refused", None),
        "t7": ("not_run", "unknown_tool"),
        "t8": ("timed_out", None),
        "t9": ("ok", None),
    }
    assert calls["t5"].exit_code == 2
    assert calls["t1"].result == "x = total"


def test_edits_follow_what_came_of_their_calls(session: list[Interaction]) -> None:
    edits = [(edit.path, edit.form, edit.outcome) for item in session for step in item.steps for edit in step.edits]
    assert edits == [
        ("/w/a.py", "old_new", "failed"),
        ("/w/a.py", "old_new", "applied"),
        ("/w/b.py", "whole_file", "proposed"),
    ]


def test_refusal_interruption_and_answers_are_feedback_amid_the_work(session: list[Interaction]) -> None:
    assert [[(f.kind, f.text) for f in item.feedback] for item in session] == [
        [("answer", "yes, and print it")],
        [("refusal", "use a.py instead"), ("interruption", None), ("follow_up", "do it differently")],
        [("follow_up", "do it with care")],
        [("answer", "User has answered your questions: the first"), ("follow_up", "thanks, perfect")],
    ]
    assert all(f.at is not None for item in session for f in item.feedback)


def test_a_subagent_is_a_branch_and_its_prompt_is_no_persons(session: list[Interaction]) -> None:
    side = [(step.author, step.role) for step in session[0].steps if step.branch == "sidechain"]
    assert side == [("harness", "user"), ("agent", "assistant"), ("tool", "user"), ("agent", "assistant")]
    assert [step.text for step in session[0].steps if step.is_question] == ["Renamed. Shall I fix the test as well?"]


def test_a_request_the_person_went_back_from_is_marked(session: list[Interaction]) -> None:
    assert [{step.branch for step in item.steps} for item in session[1:]] == [{None}, {"abandoned"}, {None}]


def test_repeated_lines_and_lines_about_the_session_are_kept_apart(session: list[Interaction]) -> None:
    about = json.loads(session[0].extra_json or "")
    assert about["repeated_lines"] == 1
    assert [line["type"] for line in about["about"]] == ["file-history-snapshot", "summary"]
    assert (about["session"], about["cwd"], about["git_branch"]) == ("s1", "/w", "main")


def test_an_error_message_of_the_program_is_not_the_agents(session: list[Interaction]) -> None:
    last = session[-1].steps[-1]
    assert (last.author, last.text) == ("harness", "API Error: overloaded")
    assert session[-1].checkpoint == "claude-x"


def test_ask_user_question_is_a_question(session: list[Interaction]) -> None:
    (step,) = [step for step in session[3].steps if step.is_question]
    assert step.tool_calls[0].name == "AskUserQuestion"


def test_a_live_session_keeps_its_ids_when_read_again(tmp_path: Path, session: list[Interaction]) -> None:
    lines = FIXTURE.read_text().splitlines(keepends=True)
    earlier = tmp_path / "session.jsonl"
    earlier.write_text("".join(lines[:22]))
    ids = [item.interaction_id for item in read(earlier)[0]]
    assert ids == [item.interaction_id for item in session[:2]]


def test_all_62_sample_files_are_accounted_for(samples: Path) -> None:
    files = sorted((samples / "claude-code-messages").rglob("*.jsonl"))
    assert len(files) == 62
    seen: Counter[str] = Counter()
    for path in files:
        interactions, quarantine = read(path)
        assert interactions or quarantine, path
        lines = {json.loads(step.extra_json or "{}").get("uuid") for item in interactions for step in item.steps}
        seen["lines"] += len(lines - {None})
        seen["interactions"] += len(interactions)
        seen.update(entry.kind for entry in quarantine)
    assert seen == {"lines": 54, "interactions": 30, "no_interaction": 37, "schema": 6}


def test_ids_of_fragments_of_one_session_do_not_collide(samples: Path) -> None:
    ids = [item.interaction_id for item in read(samples / "claude-code-messages")[0]]
    assert len(ids) == len(set(ids)) == 30
