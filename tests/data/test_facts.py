"""Facts counted by hand on small records, and what is known when."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from palomar.data.facts import facts
from palomar.data.lake import Lake
from palomar.data.observations import FACTS
from palomar.data.schema import (
    Cohort,
    Edit,
    Feedback,
    FunctionMeasure,
    Interaction,
    Reward,
    Step,
    ToolCall,
)

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(hours=5)


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def agent(*calls: ToolCall, **fields: Any) -> Step:
    return Step(author="agent", role="assistant", tool_calls=calls, **fields)


def edit(path: str | None = "src/sum.py", **fields: Any) -> Edit:
    return Edit(**({"path": path, "form": "unified_diff", "outcome": "applied"} | fields))


def functions(*sizes: tuple[int, int]) -> tuple[FunctionMeasure, ...]:
    """Functions of (lines, complexity)."""
    return tuple(FunctionMeasure(name="f", lines=lines, complexity=cc, parameters=0) for lines, cc in sizes)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def fact(lake: Lake, *steps: Step, as_of: datetime = LATER, late: tuple[Feedback, ...] = (), **fields: Any) -> Any:
    """The one row of facts of an interaction that ended at noon."""
    values = {"source": "test", "origin": "x", "cycle": 0, "ended_at": NOON, "steps": steps} | fields
    lake.append_interactions([Interaction(interaction_id="a", **values)], 0)
    lake.append_feedback([("a", item) for item in late], 0)
    (row,) = facts(lake, 0, as_of).to_pylist()
    return row


def test_the_table_has_exactly_the_columns_of_facts_even_without_rows(lake: Lake) -> None:
    assert facts(lake, 0, LATER).schema == FACTS
    fact(lake)
    assert facts(lake, 0, LATER).schema == FACTS


def test_identity_is_copied_and_times_keep_their_zone(lake: Lake) -> None:
    cohort = Cohort(organisation="acme", work_kind="fix", language="python")
    row = fact(lake, cohort=cohort, turn=2, user_id="u", arm="b", predicted_failure=0.25, traffic="canary")
    assert (row["organisation"], row["work_kind"], row["language"], row["arm"]) == ("acme", "fix", "python", "b")
    assert (row["turn"], row["user_id"], row["predicted_failure"], row["traffic"]) == (2, "u", 0.25, "canary")
    assert row["ended_at"] == NOON
    assert row["as_of"] == LATER
    assert row["ambiguity"] is None


def test_calls_are_counted_by_the_kind_of_invalidity_and_by_fate(lake: Lake) -> None:
    row = fact(
        lake,
        Step(author="person", role="user"),
        agent(
            ToolCall(invalidity="malformed", outcome="not_run"),
            ToolCall(invalidity="malformed", outcome="not_run"),
            ToolCall(invalidity="unparsed", outcome="not_run"),
            ToolCall(invalidity="unknown_tool", outcome="not_run"),
            ToolCall(outcome="ok"),
        ),
        agent(
            ToolCall(invalidity="schema", outcome="not_run"),
            ToolCall(invalidity="rejected", outcome="failed"),  # turned down by the tool: invalid, not a failed run
            ToolCall(outcome="failed"),
            ToolCall(outcome="timed_out"),
            ToolCall(outcome="timed_out"),
            ToolCall(outcome="refused"),
            branch="subagent",
        ),
        Step(author="harness", role="user", tool_calls=(ToolCall(outcome="failed"),)),  # not the agent's
    )
    assert row["agent_turns"] == 2
    assert row["tool_calls"] == 11
    counts = {name: value for name, value in row.items() if name.startswith(("invalid_", "calls_"))}
    assert counts == {
        "invalid_malformed": 2,
        "invalid_unparsed": 1,
        "invalid_unknown_tool": 1,
        "invalid_schema": 1,
        "invalid_rejected": 1,
        "calls_failed": 1,
        "calls_timed_out": 2,
        "calls_refused": 1,
    }


def test_edits_count_when_tried_and_make_it_edited_when_one_did_not_fail(lake: Lake) -> None:
    row = fact(
        lake,
        agent(edits=(edit(outcome="failed"), edit("a.py"), edit("a.py"), edit(None, outcome="proposed"))),
        Step(author="tool", role="tool", edits=(edit("b.py", outcome="unknown"),)),
        Step(author="person", role="user", edits=(edit("by_hand.py"),)),
    )
    assert (row["edits"], row["edits_failed"], row["edited"], row["files_edited"]) == (5, 1, True, 2)


def test_only_failed_edits_leave_it_unedited(lake: Lake) -> None:
    row = fact(lake, agent(edits=(edit(outcome="failed"),)))
    assert (row["edits"], row["edited"], row["files_edited"], row["lines_added"]) == (1, False, 0, 0)


@pytest.mark.parametrize(
    ("steps", "asked"),
    [
        ((agent(is_question=True),), True),
        ((agent(is_question=True), agent(is_question=False)), False),
        ((agent(is_question=False), agent(is_question=True, branch="subagent")), False),  # the main line decides
        ((agent(is_question=True, branch="subagent"),), True),  # there is no main line
        ((agent(is_question=True, edits=(edit(),)),), False),  # it did edit
        ((agent(is_question=True, edits=(edit(outcome="failed"),)),), True),
        ((agent(is_question=None),), None),
        ((agent(is_question=None, edits=(edit(),)),), False),
        ((Step(author="person", role="user", is_question=True),), None),  # nothing of the agent
    ],
)
def test_asked_is_how_it_ended_without_an_edit(lake: Lake, steps: tuple[Step, ...], asked: bool | None) -> None:
    assert fact(lake, *steps)["asked"] is asked


def test_lines_add_up_only_when_all_are_known(lake: Lake) -> None:
    known, unknown = edit(lines_added=3, lines_removed=1), edit(lines_added=4, lines_removed=None)
    failed = edit(outcome="failed", lines_added=100)
    row = fact(lake, agent(edits=(known, unknown, failed)))
    assert (row["lines_added"], row["lines_removed"]) == (7, None)


@pytest.mark.parametrize(
    ("paths", "touched"),
    [
        ((), False),
        (("src/sum.py",), False),
        (("src/sum.py", "tests/helpers.txt"), True),
        (("pkg/test_sum.py",), True),
        (("test_sum.py",), True),
        (("conftest.py",), True),
        (("C:\\repo\\tests\\a.cs",), True),
        (("web/sum.test.ts",), True),
        (("go/sum_test.go",), True),
        (("src/SumTest.java",), True),
        (("src/contest.py", "latest.py", "src/testament.py"), False),
        ((None,), None),
        ((None, "src/sum.py"), False),
    ],
)
def test_edited_tests_are_known_by_their_paths(lake: Lake, paths: tuple[str | None, ...], touched: bool | None) -> None:
    assert fact(lake, agent(edits=tuple(edit(path) for path in paths)))["tests_edited"] is touched


def test_a_failed_edit_of_a_test_touches_no_test(lake: Lake) -> None:
    assert fact(lake, agent(edits=(edit("tests/a.py", outcome="failed"),)))["tests_edited"] is False


def test_functions_are_summed_over_files_as_first_found_and_last_left(lake: Lake) -> None:
    """a.py: {10} -> {4, 7} -> {4, 5, 6}; b.py is not measured before; c.py was measured but has no function."""
    row = fact(
        lake,
        agent(edits=(edit("a.py", functions_before=functions((10, 3)), functions_after=functions((4, 1), (7, 2))),)),
        agent(
            edits=(
                edit(
                    "a.py",
                    functions_before=functions((4, 1), (7, 2)),
                    functions_after=functions((4, 1), (5, 1), (6, 5)),
                ),
                edit("b.py", functions_after=functions((20, 2))),
                edit("c.py", functions_before=(), functions_after=()),
                edit("d.py", outcome="failed", functions_after=functions((99, 99))),
            )
        ),
    )
    assert (row["functions_before"], row["function_lines_before"], row["complexity_before"]) == (1, 10, 3)
    assert (row["functions_after"], row["function_lines_after"], row["complexity_after"]) == (4, 35, 9)
    assert row["function_lines_median"] == 5.5  # of 4, 5, 6, 20
    assert row["complexity_max"] == 5


def test_edits_without_a_path_count_as_files_of_their_own(lake: Lake) -> None:
    one = edit(None, functions_before=functions((2, 1)), functions_after=functions((3, 1)))
    row = fact(lake, agent(edits=(one, one)))
    assert (row["functions_before"], row["functions_after"], row["files_edited"]) == (2, 2, 0)


def test_functions_not_measured_are_null_and_none_found_is_zero(lake: Lake) -> None:
    row = fact(lake, agent(edits=(edit(functions_before=()),)))
    assert (row["functions_before"], row["function_lines_before"]) == (0, 0)
    assert (row["functions_after"], row["function_lines_after"], row["function_lines_median"]) == (None, None, None)
    assert row["complexity_max"] is None


def test_tokens_are_the_logs_total_or_the_sum_of_turns_that_are_all_known(lake: Lake, tmp_path: Path) -> None:
    turns = (agent(tokens_out=5, tokens_in=7), agent(tokens_out=6), Step(author="person", role="user", tokens_out=99))
    row = fact(lake, *turns)
    assert (row["tokens_out"], row["tokens_in"]) == (11, None)
    assert fact(Lake(tmp_path / "other"), *turns, tokens_out=40)["tokens_out"] == 40
    assert fact(Lake(tmp_path / "third"))["tokens_out"] is None  # no turn at all is not zero tokens


@pytest.mark.parametrize(
    ("marks", "truncated"), [((None, True), True), ((None, False), False), ((None, None), None), ((), None)]
)
def test_truncated_is_null_only_where_no_turn_says(
    lake: Lake, marks: tuple[bool | None, ...], truncated: bool | None
) -> None:
    assert fact(lake, *(agent(truncated=mark) for mark in marks))["truncated"] is truncated


def test_logged_reward_weighs_the_proxies_and_one_invalid_leaves_none(lake: Lake, tmp_path: Path) -> None:
    proxies = (
        Reward(name="kept", value=1.0, weight=0.5, kind="proxy"),
        Reward(name="short", value=0.25, kind="proxy"),
        Reward(name="gold", value=9.0, kind="held_out"),
    )
    row = fact(lake, rewards=proxies)
    assert (row["logged_reward"], row["logged_reward_invalid"]) == (0.75, None)

    broken = Reward(name="judge", value=None, kind="proxy", invalid_reason="timed out")
    row = fact(Lake(tmp_path / "broken"), rewards=(*proxies, broken))
    assert (row["logged_reward"], row["logged_reward_invalid"]) == (None, "judge: timed out")

    row = fact(Lake(tmp_path / "none"), rewards=(proxies[2],))
    assert (row["logged_reward"], row["logged_reward_invalid"]) == (None, None)


def test_nothing_known_of_a_reaction_is_null_not_zero(lake: Lake) -> None:
    row = fact(lake)
    assert row["watched_s"] == 5 * 3600
    assert {name: row[name] for name in ("edit_lost_s", "kept_share", "follow_up", "follow_up_s")} == dict.fromkeys(
        ("edit_lost_s", "kept_share", "follow_up", "follow_up_s")
    )
    assert (row["undone"], row["refusals"], row["answered"]) == (False, 0, False)


def test_the_end_is_start_and_latency_where_the_log_has_no_end(lake: Lake, tmp_path: Path) -> None:
    undo = (Feedback(kind="undo", at=after(70)),)
    row = fact(lake, ended_at=None, started_at=NOON, latency_s=10.0, feedback=undo)
    assert (row["watched_s"], row["edit_lost_s"]) == (5 * 3600 - 10, 60)
    row = fact(Lake(tmp_path / "timeless"), ended_at=None, started_at=NOON, feedback=undo)
    assert (row["watched_s"], row["edit_lost_s"], row["undone"]) == (None, None, True)


def test_an_edit_is_lost_at_the_earliest_of_revert_and_undo(lake: Lake) -> None:
    row = fact(
        lake,
        feedback=(Feedback(kind="reverted", at=after(90)),),
        late=(Feedback(kind="undo", at=after(60.5)), Feedback(kind="undo", at=after(80))),
    )
    assert (row["edit_lost_s"], row["undone"]) == (60.5, True)


def test_a_loss_without_a_time_is_known_but_not_when(lake: Lake) -> None:
    row = fact(lake, feedback=(Feedback(kind="reverted"), Feedback(kind="undo", at=after(30))))
    assert (row["edit_lost_s"], row["undone"]) == (30, True)


def test_a_reaction_before_the_end_comes_after_zero_seconds(lake: Lake) -> None:
    assert fact(lake, feedback=(Feedback(kind="undo", at=after(-5)),))["edit_lost_s"] == 0


def test_what_comes_after_the_moment_is_not_known_yet(lake: Lake) -> None:
    late = (
        Feedback(kind="reverted", at=after(100)),
        Feedback(kind="follow_up", at=after(100), label="dissatisfied"),
        Feedback(kind="answer", at=after(100)),
        Feedback(kind="refusal", at=after(99)),
    )
    row = fact(lake, late=late, as_of=after(99))
    assert (row["watched_s"], row["edit_lost_s"], row["undone"]) == (99, None, False)
    assert (row["follow_up"], row["answered"], row["refusals"]) == (None, False, 1)
    (later,) = facts(lake, 0, after(100)).to_pylist()  # at the very moment it is known
    assert (later["edit_lost_s"], later["follow_up"], later["answered"]) == (100, "dissatisfied", True)


def test_the_first_follow_up_counts_and_unclassified_is_its_own_word(lake: Lake, tmp_path: Path) -> None:
    late = (
        Feedback(kind="follow_up", at=after(50), label="satisfied"),
        Feedback(kind="follow_up", at=after(20), label="dissatisfied"),
    )
    row = fact(lake, late=late)
    assert (row["follow_up"], row["follow_up_s"]) == ("dissatisfied", 20)
    row = fact(Lake(tmp_path / "new"), late=(Feedback(kind="follow_up", at=after(20)),))
    assert (row["follow_up"], row["follow_up_s"]) == ("unclassified", 20)


def test_a_follow_up_without_a_time_comes_first(lake: Lake) -> None:
    stored = (Feedback(kind="follow_up", at=after(1), label="neutral"), Feedback(kind="follow_up", label="satisfied"))
    row = fact(lake, feedback=stored)
    assert (row["follow_up"], row["follow_up_s"]) == ("satisfied", None)


def test_kept_share_is_that_of_the_last_look(lake: Lake) -> None:
    looks = (
        Feedback(kind="kept", at=after(900), value=0.4),
        Feedback(kind="kept", at=after(300), value=0.9),
        Feedback(kind="kept", at=after(950)),
    )
    assert fact(lake, late=looks)["kept_share"] == 0.4


def test_a_reaction_told_twice_counts_once_and_two_refusals_count_twice(lake: Lake) -> None:
    first = Feedback(kind="refusal", at=after(1), text="no")
    second = Feedback(kind="refusal", at=after(2), text="no")
    again = first.model_copy(update={"label": "dissatisfied", "label_by": "ada"})
    assert fact(lake, feedback=(first, second), late=(again, second))["refusals"] == 2


def test_reactions_delivered_in_later_cycles_and_outside_a_loop_are_joined(lake: Lake) -> None:
    lake.append_interactions(
        [
            Interaction(interaction_id=f"i{n}", source="t", origin="x", cycle=1, steps=(), ended_at=NOON)
            for n in range(3)
        ],
        1,
    )
    lake.append_feedback([("i1", Feedback(kind="undo", at=after(9))), ("elsewhere", Feedback(kind="undo"))], 4)
    lake.append_feedback([("i2", Feedback(kind="answer", at=after(9)))], None)
    rows = facts(lake, 1, LATER).to_pylist()
    assert [(row["interaction_id"], row["undone"], row["answered"]) for row in rows] == [
        ("i0", False, False),
        ("i1", True, False),
        ("i2", False, True),
    ]


def test_interactions_of_several_files_do_not_mix(lake: Lake) -> None:
    for start in range(0, 6, 2):
        records = [
            Interaction(
                interaction_id=f"i{n}", source="t", origin="x", cycle=0, steps=(agent(*[ToolCall(name="r")] * n),) * n
            )
            for n in range(start, start + 2)
        ]
        lake.append_interactions(records, 0)
    rows = {row["interaction_id"]: row for row in facts(lake, 0, LATER).to_pylist()}
    assert {name: (row["agent_turns"], row["tool_calls"]) for name, row in rows.items()} == {
        f"i{n}": (n, n * n) for n in range(6)
    }


def test_an_older_file_without_some_columns_is_counted_all_the_same(lake: Lake) -> None:
    row = fact(lake, agent(ToolCall(name="r", outcome="failed"), truncated=True, edits=(edit(),)), user_id="u")
    assert row["truncated"] is True
    (file,) = lake.files("interactions")
    stored = pq.read_table(file, partitioning=None)
    steps = [
        [{k: v for k, v in s.items() if k not in ("truncated", "edits")} for s in r]
        for r in stored["steps"].to_pylist()
    ]
    step = pa.struct([f for f in stored.schema.field("steps").type.value_type if f.name not in ("truncated", "edits")])
    older = stored.drop_columns(["steps", "user_id", "rewards"]).append_column("steps", pa.array(steps, pa.list_(step)))
    pq.write_table(older, file)
    (row,) = facts(lake, 0, LATER).to_pylist()
    assert (row["calls_failed"], row["truncated"], row["edits"], row["user_id"]) == (1, None, 0, None)


def test_counting_reads_no_transcript(lake: Lake) -> None:
    """The texts are overwritten on disk: facts do not notice."""
    row = fact(lake, agent(ToolCall(name="read", arguments="{}" * 50, result="x" * 500), text="long " * 200))
    (file,) = lake.files("interactions")
    group = pq.ParquetFile(file).metadata.row_group(0)
    content = bytearray(file.read_bytes())
    for index in range(group.num_columns):
        column = group.column(index)
        if column.path_in_schema.endswith(("element.text", "element.result", "element.arguments", "element.thinking")):
            if column.path_in_schema.startswith("feedback"):
                continue
            start = column.dictionary_page_offset or column.data_page_offset
            content[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    file.write_bytes(content)
    assert facts(lake, 0, LATER).to_pylist() == [row]
