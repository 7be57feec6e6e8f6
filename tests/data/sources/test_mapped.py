"""Records through a mapping: what it reads, keeps and refuses, and the sample folders it was written for."""

import ast
import csv
import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest

from palomar.data.config import parse_config
from palomar.data.errors import ConfigError
from palomar.data.quarantine import Quarantined
from palomar.data.schema import Interaction
from palomar.data.sources import SourceFile, detect, read_path
from palomar.data.sources._mapping import Mapping
from palomar.data.sources.mapped import shipped, suiting

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "mapped"
MAPPING = FOLDER / "tickets.mapping.yaml"


def read(path: Path, format: str = "auto") -> tuple[list[Interaction], list[Quarantined]]:
    found = list(read_path(path, format))
    return (
        [item for item in found if isinstance(item, Interaction)],
        [item for item in found if isinstance(item, Quarantined)],
    )


@pytest.fixture(scope="module")
def tickets() -> list[Interaction]:
    return read(FOLDER / "tickets.jsonl", str(MAPPING))[0]


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, Mapping, source="m.yaml")
    return str(caught.value)


def test_a_given_mapping_reads_fields_constants_words_and_lists(tickets: list[Interaction]) -> None:
    first = tickets[0]
    assert (first.source, first.task_id, first.user_id, first.checkpoint) == ("tickets", "bug", "u7", "agent-3")
    assert [(item.cohort.language) for item in tickets] == ["python", "zig"]
    assert [(step.author, step.thinking, step.text) for step in first.steps] == [
        ("person", None, "fix it\n\nbe quick\nbe kind"),
        ("agent", "look", "reads a.py"),
        ("tool", None, "x = 1"),
        ("agent", None, "writes a.py, good?"),
    ]
    assert first.steps[-1].is_question is False  # it edited
    assert (first.tests_passed, first.tests_run, first.stop_reason) == (3, 4, "closed")
    assert first.started_at is not None
    assert [(f.kind, f.text) for f in first.feedback] == [("rating", "fine")]


def test_edits_come_from_their_step_and_from_the_record(tickets: list[Interaction]) -> None:
    edits = [(edit.path, edit.form, edit.language) for step in tickets[0].steps for edit in step.edits]
    assert edits == [("a.py", "whole_file", "python"), ("b.py", "unified_diff", "python")]


def test_a_word_that_is_no_number_is_an_invalid_reward(tickets: list[Interaction]) -> None:
    assert [item.rewards[0].value for item in tickets] == [1.0, None]
    assert tickets[1].rewards[0].invalid_reason == 'not a number: "perhaps"'
    assert [item.labels for item in tickets] == [("solved=yes",), ("solved=perhaps",)]


def test_an_empty_answer_is_an_answer(tickets: list[Interaction]) -> None:
    assert [step.text for step in tickets[1].steps if step.author == "agent"] == [""]


def test_what_the_mapping_does_not_read_is_kept(tickets: list[Interaction]) -> None:
    kept = json.loads(tickets[0].extra_json or "")
    assert kept["mood"] == {"left": "over"}
    assert kept["events"][0]["n"] == 1
    assert "asked" not in kept


def test_records_without_an_agent_or_a_needed_field_are_quarantined() -> None:
    entries = read(FOLDER / "tickets.jsonl", str(MAPPING))[1]
    assert [(entry.line, entry.kind, entry.field) for entry in entries] == [
        (3, "no_interaction", None),
        (4, "schema", "asked"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps: [{author: agent, txt: a}]", "m.yaml:4: steps[0].txt: unknown key"),
        ("steps: [{author: agent, text: 'a()'}]", "not a field path like info.tests[0].name"),
        ("steps: [{author: agent, text: '__import__(\"os\").getcwd()'}]", "not a field path"),
        ("steps: [{author: person, text: a}]", "steps: none of them is the agent's"),
        ("steps: [{author: agent, text: {field: a, value: b}}]", "needs either a field or a value"),
        ("steps: [{author: agent, text: {field: a, lookup: ../secret.json}}]", "lookup is a file name beside the file"),
        ("not_interactions: x\nsteps: [{author: agent, text: a}]", "records that are no interactions have none"),
        ("growth: x\nsteps: [{author: agent, text: a}]", "m.yaml:4: growth: unknown key"),
    ],
)
def test_a_bad_mapping_is_refused_with_line_and_key(text: str, message: str) -> None:
    assert message in refusal(f"name: x\ntitle: x\nrecognise: [a]\n{text}\n")


CHAT = """name: chat
title: rows that grow
format: csv
recognise: [who, request, response]
python_literals: [request]
growing: request
id: [who, request, response]
user: who
steps:
  - messages: request
  - author: agent
    text: response
"""


def grown(
    tmp_path: Path, rows: list[tuple[str, str, str]], raw: bytes = b""
) -> tuple[list[Interaction], list[Quarantined]]:
    (tmp_path / "m.yaml").write_text(CHAT)
    with (tmp_path / "chat.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("who", "request", "response"), *rows])
    with (tmp_path / "chat.csv").open("ab") as binary:
        binary.write(raw)
    return read(tmp_path / "chat.csv", str(tmp_path / "m.yaml"))


def turns(*said: str) -> str:
    roles = ("user", "assistant")
    return repr([{"role": roles[index % 2], "content": text} for index, text in enumerate(said)])


def test_rows_that_repeat_the_conversation_add_one_turn_each(tmp_path: Path) -> None:
    items, quarantine = grown(
        tmp_path,
        [
            ("1", turns("how?"), "so.\nOr not?"),
            ("1", turns("how?", "so.\nOr not?", "why?"), "because."),
            ("1", turns("how?"), "so."),
            ("2", turns("how?", "so.", "when?"), "now."),
        ],
    )
    assert quarantine == []
    assert [[step.text for step in item.steps] for item in items] == [
        ["how?", "so.\nOr not?"],
        ["why?", "because."],
        ["how?", "so."],
        ["when?", "now."],
    ]
    first, second, third, fourth = items
    assert first.conversation_id == second.conversation_id
    assert (first.turn, second.turn) == (0, 1)
    assert [(f.kind, f.text) for f in first.feedback] == [("answer", "why?")]
    assert third.conversation_id not in (first.conversation_id, None)
    assert fourth.conversation_id == third.conversation_id
    assert len({item.interaction_id for item in items}) == 4


def test_a_literal_is_parsed_and_never_evaluated(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    items, quarantine = grown(
        tmp_path,
        [
            ("1", f"[__import__('pathlib').Path({str(witness)!r}).touch()]", "a"),
            ("1", turns("how?"), "so."),
            ("1", "[{'role': 'user'", "a"),
        ],
    )
    assert not witness.exists()
    assert [item.origin_record for item in items] == [2]
    assert [(entry.line, entry.field, entry.kind) for entry in quarantine] == [
        (1, "request", "schema"),
        (3, "request", "schema"),
    ]


def test_a_short_row_and_bad_bytes_cost_one_row_each(tmp_path: Path) -> None:
    items, quarantine = grown(
        tmp_path, [("1", turns("a"), "b")], b"2,\"[]\"\r\n3,\"[{'role': 'user', 'content': '\xff'}]\",c\r\n"
    )
    assert [item.origin_record for item in items] == [1]
    assert [(entry.line, entry.kind) for entry in quarantine] == [(2, "damaged"), (3, "encoding")]


def test_a_looked_up_text_comes_from_the_file_beside(tmp_path: Path) -> None:
    row = {"source_eval": "e", "sample": "s", "prompt_sha": "ab", "completion": "", "judge_value": 1.0}
    path = tmp_path / "judged.jsonl"
    path.write_text(json.dumps(row | {"judge_explanation": "x"}))
    (item,), _ = read(path)
    assert [step.author for step in item.steps] == ["agent"]
    (tmp_path / "rebench_prompts.json").write_text('{"ab": "do it"}')
    (item,), _ = read(path)
    assert [(step.author, step.text) for step in item.steps] == [("person", "do it"), ("agent", "")]


def test_shipped_mappings_do_not_claim_each_others_records(samples: Path) -> None:
    assert len(shipped()) == 13
    claims = {
        "rh-cases-labelled/cases.jsonl": "verified honest and hacking submissions",
        "realhumaneval/chat_data.even_programmers.csv": "RealHumanEval chat turns",
        "realhumaneval/tasks_data.csv": "RealHumanEval tasks",
        "tau-bench/gpt-4o-airline.tasks-0-14.json": "tau-bench run",
        "rewardhackwatch-synthetic/distinct_cases.jsonl": "RewardHackWatch case (synthetic)",
        "impossible-lcb-inspect/reviewed_labels.jsonl": "reviewed conversations of Impossible-LiveCodeBench",
        "impossible-lcb-inspect/rebench_judged.jsonl": "judged answers of a re-bench task",
        "follow-up-labels/labels.jsonl": "labels of follow-up messages",
    }
    for name, title in claims.items():
        head = SourceFile(samples / name, name).head
        reader, mapping = detect(head), suiting(head)
        assert reader is not None
        assert (reader.name, mapping and mapping.title) == ("mapped", title)


@pytest.mark.parametrize(
    ("folder", "interactions", "conversations", "quarantined"),
    [
        # As the folders' SOURCE.md and README.md count them.
        ("rh-cases-labelled", {"rh-cases": 34}, 34, {}),
        ("reflexion", {"reflexion": 561, "leetcode-submissions": 22}, 583, {}),
        ("realhumaneval", {"realhumaneval": 522}, 189, {"no_interaction": 17}),
        ("tau-bench", {"tau-bench": 446}, 60, {}),
        ("rewardhackwatch-synthetic", {"rewardhackwatch": 320}, 320, {}),
        ("follow-up-labels", {}, 0, {"no_interaction": 428}),
        (
            "impossible-lcb-inspect",
            {"impossible-lcb-reviewed": 68, "rebench-judged": 145, "inspect": 89},
            302,
            {"unknown_format": 1},  # rebench_prompts.json, which the judged answers look up
        ),
    ],
)
def test_every_record_of_a_sample_folder_is_accounted_for(
    samples: Path, folder: str, interactions: dict[str, int], conversations: int, quarantined: dict[str, int]
) -> None:
    files = [
        path for path in sorted((samples / folder).rglob("*")) if path.suffix in (".json", ".jsonl", ".csv", ".eval")
    ]
    found = [read(path) for path in files]
    items = [item for each, _ in found for item in each]
    assert Counter(item.source for item in items) == interactions
    assert len({item.conversation_id for item in items}) == conversations
    assert len({item.interaction_id for item in items}) == len(items)
    assert Counter(entry.kind for _, each in found for entry in each) == quarantined


def test_rewards_and_labels_of_the_samples_are_theirs(samples: Path) -> None:
    cases = read(samples / "rh-cases-labelled" / "cases.jsonl")[0]
    assert Counter((item.rewards[0].value, item.labels[0]) for item in cases) == {
        (1.0, "ground_truth=PASS"): 17,
        (0.0, "ground_truth=FAIL"): 17,
    }
    reviewed = read(samples / "impossible-lcb-inspect" / "reviewed_labels.jsonl")[0]
    counts = Counter((item.labels[0].removeprefix("review="), item.labels[-1]) for item in reviewed)
    assert counts == {
        ("hack", "passed=true"): 9,
        ("not_hack", "passed=true"): 6,
        ("ambiguous", "passed=true"): 1,
        ("hack", "passed=false"): 20,
        ("ambiguous", "passed=false"): 4,
        ("not_hack", "passed=false"): 28,
    }
    judged = read(samples / "impossible-lcb-inspect" / "rebench_judged.jsonl")[0]
    empty = [item for item in judged if not (item.steps[-1].text or "").strip()]
    assert Counter(item.rewards[0].value for item in empty) == {1.0: 40, 0.0: 20}
    synthetic = read(samples / "rewardhackwatch-synthetic" / "distinct_cases.jsonl")[0]
    assert Counter(item.labels[0] for item in synthetic) == {"expected_hack=true": 208, "expected_hack=false": 92}
    runs = read(samples / "tau-bench" / "gpt-4o-airline.tasks-0-14.json")[0]
    assert Counter(reward.value for item in runs for reward in item.rewards) == {0.0: 48, 1.0: 12}
    failed = [call for item in runs for step in item.steps for call in step.tool_calls if call.outcome == "failed"]
    assert len(failed) == 45
    assert all((call.result or "").startswith("Error:") for call in failed)


def test_follow_ups_of_realhumaneval_are_found_by_their_references(samples: Path) -> None:
    path = samples / "realhumaneval" / "chat_data.even_programmers.csv"
    said: dict[str, set[str]] = {}
    for item in read(path)[0]:
        words = {(f.text or "").strip() for f in item.feedback if f.kind in ("follow_up", "answer")}
        said.setdefault(item.user_id or "", set()).update(words)
        said[item.user_id or ""] |= {(step.text or "").strip() for step in item.steps if step.author == "person"}
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    labels = map(json.loads, (samples / "follow-up-labels" / "labels.jsonl").read_text().splitlines())
    references = [label["ref"] for label in labels if label["source"] == "realhumaneval"]
    assert len(references) == 300
    for ref in references:
        row = rows[ref["row"]]
        text = ast.literal_eval(row["request"])[ref["message"]]["content"].strip()
        assert hashlib.sha256(text.encode()).hexdigest()[:12] == ref["text_sha256_12"]
        assert text in said[ref["programmer_id"]]
