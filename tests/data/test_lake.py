"""The lake: what is stored is what is read, twice is once, and half is never seen."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args, get_origin

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from palomar.data.errors import ConflictError, LakeError
from palomar.data.lake import TABLES, Appended, Lake
from palomar.data.observations import FACTS
from palomar.data.schema import Feedback, Interaction, Reward, Step, ToolCall

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def interaction(name: str, cycle: int | None = 0, text: str = "done", **fields: Any) -> Interaction:
    steps = (
        Step(author="person", role="user", text="please"),
        Step(author="agent", role="assistant", text=text, tool_calls=(ToolCall(name="read", arguments='{"path": 1}'),)),
    )
    values = {"source": "test", "origin": "here.jsonl", "cycle": cycle, "steps": steps} | fields
    return Interaction(interaction_id=name, **values)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def ids(lake: Lake) -> list[str]:
    return sorted(lake.scan("interactions", ["interaction_id"])["interaction_id"].to_pylist())


def test_appending_twice_writes_nothing_and_says_so(lake: Lake) -> None:
    records = [interaction("a"), interaction("b")]
    assert lake.append_interactions(records, 0) == Appended(new=2, known=0)
    before = lake.files("interactions")
    assert lake.append_interactions([*records, interaction("c")], 0) == Appended(new=1, known=2)
    assert lake.append_interactions(records, 0) == Appended(new=0, known=2)
    assert len(lake.files("interactions")) == len(before) + 1
    assert ids(lake) == ["a", "b", "c"]


def test_moved_logs_and_new_classifier_labels_are_the_same_content(lake: Lake) -> None:
    said = Feedback(kind="follow_up", text="no!", label="dissatisfied", label_by="classifier:1", label_probability=0.9)
    again = said.model_copy(update={"label": "neutral", "label_by": "classifier:2"})
    lake.append_interactions([interaction("a", origin="old/x.jsonl", origin_record=1, feedback=(said,))], 0)
    moved = interaction("a", origin="new/x.jsonl", origin_record=7, feedback=(again,))
    assert lake.append_interactions([moved], 0) == Appended(new=0, known=1)


def test_a_persons_label_is_content(lake: Lake) -> None:
    said = Feedback(kind="follow_up", text="no!", label="dissatisfied", label_by="ada")
    lake.append_interactions([interaction("a", feedback=(said,))], 0)
    with pytest.raises(ConflictError):
        lake.append_interactions([interaction("a", feedback=(said.model_copy(update={"label": "neutral"}),))], 0)


def test_same_id_with_other_content_is_named_and_nothing_is_written(lake: Lake) -> None:
    lake.append_interactions([interaction("a"), interaction("b")], 0)
    with pytest.raises(ConflictError, match="'b'") as caught:
        lake.append_interactions([interaction("new"), interaction("b", text="something else")], 0)
    assert caught.value.interaction_ids == ("b",)
    assert ids(lake) == ["a", "b"]


def test_one_batch_may_repeat_an_interaction_but_not_contradict_itself(lake: Lake) -> None:
    assert lake.append_interactions([interaction("a"), interaction("a")], 0) == Appended(new=1, known=1)
    with pytest.raises(ConflictError, match="'b'"):
        lake.append_interactions([interaction("b"), interaction("b", text="other")], 0)
    assert ids(lake) == ["a"]


def test_a_record_of_another_cycle_is_refused(lake: Lake) -> None:
    with pytest.raises(LakeError, match="'a' is of cycle 3, not of 4"):
        lake.append_interactions([interaction("a", cycle=3)], 4)


def test_partitions_are_by_cycle_and_none_comes_last(lake: Lake) -> None:
    assert lake.cycles("interactions") == ()
    for cycle in (12, None, 3):
        lake.append_interactions([interaction(f"i{cycle}", cycle=cycle)], cycle)
    assert lake.cycles("interactions") == (3, 12, None)
    assert [path.parent.name for path in lake.files("interactions", [12, None])] == ["cycle=000012", "cycle=none"]
    found = lake.scan("interactions", ["interaction_id", "cycle"], cycles=[12, None])
    assert sorted(found.to_pylist(), key=str) == [
        {"interaction_id": "i12", "cycle": 12},
        {"interaction_id": "iNone", "cycle": None},
    ]


def test_an_empty_lake_has_its_tables_with_their_columns(lake: Lake) -> None:
    connection = lake.connect()
    for table in TABLES:
        assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    assert lake.scan("observations", ["edited"]).num_rows == 0
    with pytest.raises(LakeError, match="no interaction 'x' in the lake, which is empty"):
        lake.interaction("x")


def test_views_see_what_is_appended_later(lake: Lake) -> None:
    lake.append_interactions([interaction("a")], 0)
    connection = lake.connect()
    lake.append_interactions([interaction("b", cycle=1)], 1)
    assert connection.execute("SELECT count(*) FROM interactions").fetchone() == (2,)


def test_an_unknown_id_gets_the_nearest_ones(lake: Lake) -> None:
    lake.append_interactions([interaction("run-17/3"), interaction("run-18/3"), interaction("other")], 0)
    with pytest.raises(LakeError, match="no interaction 'run-17/2' in the lake; nearest: 'run-17/3', 'run-18/3'"):
        lake.interaction("run-17/2")


def test_unknown_tables_and_columns_are_named(lake: Lake) -> None:
    with pytest.raises(LakeError, match="no table 'observation'"):
        lake.scan("observation", ["edited"])  # type: ignore[arg-type]
    with pytest.raises(LakeError, match="edit_ed"):
        lake.scan("observations", ["edit_ed"])


def test_conditions_take_parameters(lake: Lake) -> None:
    lake.append_interactions([interaction("a"), interaction('it\'s "b"')], 0)
    found = lake.scan("interactions", ["interaction_id"], where="interaction_id = ?", parameters=['it\'s "b"'])
    assert found["interaction_id"].to_pylist() == ['it\'s "b"']


def test_a_root_with_pattern_characters_and_quotes_is_only_a_name(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "it's [new]*? lake")
    lake.append_interactions([interaction("a")], 0)
    assert ids(lake) == ["a"]
    assert lake.interaction("a") == interaction("a")


def test_a_list_never_reads_the_steps(lake: Lake) -> None:
    """All columns below `steps` are overwritten: a list still works, and a trajectory says what is wrong."""
    lake.append_interactions([interaction(f"i{n}", text="x" * 50) for n in range(20)], 0)
    (file,) = lake.files("interactions")
    group = pq.ParquetFile(file).metadata.row_group(0)
    content = bytearray(file.read_bytes())
    for index in range(group.num_columns):
        column = group.column(index)
        if column.path_in_schema.startswith("steps."):
            start = column.dictionary_page_offset or column.data_page_offset
            content[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    file.write_bytes(content)

    assert len(ids(lake)) == 20
    assert lake.connect().execute("SELECT count(*) FROM interactions WHERE source = 'test'").fetchone() == (20,)
    with pytest.raises(LakeError, match="cannot read 'i3'"):
        lake.interaction("i3")
    with pytest.raises((LakeError, duckdb.Error)):
        lake.scan("interactions", ["steps"])


def test_a_damaged_file_is_an_error_of_the_lake(lake: Lake) -> None:
    lake.append_interactions([interaction("a")], 0)
    lake.files("interactions")[0].write_bytes(b"PAR1 this is no parquet PAR1")
    with pytest.raises(LakeError):
        ids(lake)
    with pytest.raises(LakeError):
        lake.interaction("a")


def test_text_that_is_not_unicode_is_refused_by_name(lake: Lake) -> None:
    with pytest.raises(LakeError, match="interaction 'bad': text holds half of a surrogate pair"):
        lake.append_interactions([interaction("good"), interaction("bad", text="\ud83d")], 0)
    assert lake.files("interactions") == []


def test_a_file_written_before_a_column_existed_reads_as_null(lake: Lake) -> None:
    lake.append_interactions([interaction("new", cycle=1, user_id="u")], 1)
    lake.append_interactions([interaction("old", labels=("resolved=true",))], 0)
    (file,) = lake.files("interactions", [0])
    stored = pq.read_table(file, partitioning=None)
    steps = stored["steps"].combine_chunks()
    older_step = pa.struct([field for field in steps.type.value_type if field.name != "thinking"])
    older_rows = [[{k: v for k, v in s.items() if k != "thinking"} for s in row] for row in steps.to_pylist()]
    older = stored.drop_columns(["user_id", "labels", "steps"])
    pq.write_table(older.append_column("steps", pa.array(older_rows, pa.list_(older_step))), file)

    rows = lake.scan("interactions", ["interaction_id", "user_id", "labels"]).to_pylist()
    assert {row["interaction_id"]: row["user_id"] for row in rows} == {"old": None, "new": "u"}
    assert lake.interaction("old") == interaction("old")  # its labels are as if never known
    thoughts = lake.connect().execute(
        "SELECT interaction_id, list_transform(steps, lambda s: s.thinking) FROM interactions ORDER BY 1"
    )
    assert thoughts.fetchall() == [("new", [None, None]), ("old", [None, None])]


def test_a_column_that_came_later_is_there_even_when_all_files_are_older(lake: Lake) -> None:
    lake.append_interactions([interaction("old")], 0)
    (file,) = lake.files("interactions")
    pq.write_table(pq.read_table(file, partitioning=None).drop_columns(["arm"]), file)
    assert lake.scan("interactions", ["arm"]).to_pylist() == [{"arm": None}]


def facts(rows: int, cycle: int, **columns: Any) -> pa.Table:
    arrays = {field.name: pa.nulls(rows, field.type) for field in FACTS}
    arrays |= {
        "interaction_id": pa.array([f"i{n}" for n in range(rows)]),
        "cycle": pa.array([cycle] * rows, pa.int32()),
    }
    return pa.table(arrays | columns)


def test_observations_of_a_cycle_are_replaced_whole(lake: Lake) -> None:
    lake.write_observations(facts(3, 5), 5)
    lake.write_observations(facts(2, 6), 6)
    lake.write_observations(facts(1, 5, **{"term:tests": pa.array([0.5])}), 5)
    rows = lake.scan("observations", ["interaction_id", "cycle", "term:tests"]).to_pylist()
    assert sorted((row["cycle"], row["interaction_id"], row["term:tests"]) for row in rows) == [
        (5, "i0", 0.5),
        (6, "i0", None),
        (6, "i1", None),
    ]
    assert len(lake.files("observations")) == 2


def test_observations_without_a_fact_or_of_another_cycle_are_refused(lake: Lake) -> None:
    with pytest.raises(LakeError, match="lack the columns edited"):
        lake.write_observations(facts(1, 5).drop_columns(["edited"]), 5)
    with pytest.raises(LakeError, match="rows of cycle 5 among those of cycle 6"):
        lake.write_observations(facts(1, 5), 6)


def test_a_reader_of_observations_sees_the_old_rows_or_the_new(lake: Lake) -> None:
    lake.write_observations(facts(1, 0), 0)
    other = Lake(lake.root)
    for rows in range(2, 20):
        lake.write_observations(facts(rows, 0), 0)
        assert other.scan("observations", ["interaction_id"]).num_rows == rows


def test_samples_of_a_cycle_are_stored_once(lake: Lake) -> None:
    samples = pa.table({"interaction_id": ["a", "b"], "advantage": [0.5, None], "token_ids": [[1, 2], []]})
    assert lake.append_samples(samples, 2) == Appended(new=2, known=0)
    assert lake.append_samples(samples, 2) == Appended(new=0, known=2)
    with pytest.raises(LakeError, match="samples of cycle 2 are stored already"):
        lake.append_samples(samples.slice(1), 2)
    assert lake.append_samples(samples.slice(1), 3) == Appended(new=1, known=0)
    assert lake.scan("samples", ["interaction_id", "cycle"], cycles=[3]).to_pylist() == [
        {"interaction_id": "b", "cycle": 3}
    ]


def test_late_feedback_is_known_by_content(lake: Lake) -> None:
    undo = Feedback(kind="undo", at=NOON)
    said = Feedback(kind="follow_up", at=NOON, text="no", label="neutral", label_by="classifier:1")
    assert lake.append_feedback([("a", undo), ("a", said), ("b", undo), ("b", undo)], 1) == Appended(new=3, known=1)
    relabelled = said.model_copy(update={"label": "dissatisfied"})
    later = Feedback(kind="undo", at=NOON + timedelta(seconds=1))
    assert lake.append_feedback([("a", relabelled), ("a", later)], 2) == Appended(new=1, known=1)
    assert lake.append_feedback([], 3) == Appended(new=0, known=0)
    assert sorted(lake.feedback(["a"]), key=str) == sorted([("a", undo), ("a", said), ("a", later)], key=str)
    assert lake.cycles("feedback") == (1, 2)


# -- what is written is what is read -----------------------------------------------------------------------------


INTEGERS = st.integers(0, 2**63 - 1)
SPECIAL = {int: INTEGERS, str: st.text(max_size=8), bool: st.booleans()}
TIMES = st.datetimes(timezones=st.just(UTC)).map(lambda moment: moment)


def values_of(annotation: Any, metadata: tuple[Any, ...] = ()) -> st.SearchStrategy[Any]:
    """Values of a field of our records, read from its annotation so that a new field is tested without an edit here."""
    if get_origin(annotation) is not None and hasattr(annotation, "__metadata__"):
        return values_of(annotation.__origin__, annotation.__metadata__)
    if get_origin(annotation) in (tuple,):
        return st.lists(values_of(get_args(annotation)[0]), max_size=2).map(tuple)
    if type(None) in get_args(annotation):
        (inner,) = [item for item in get_args(annotation) if item is not type(None)]
        return st.none() | values_of(inner, metadata)
    if str(get_origin(annotation)) == "typing.Literal":
        return st.sampled_from(get_args(annotation))
    if annotation is float:
        bounds = [(getattr(item, "ge", None), getattr(item, "le", None)) for item in _flat(metadata)]
        low = next((lower for lower, _ in bounds if lower is not None), None)
        high = next((upper for _, upper in bounds if upper is not None), None)
        return st.floats(low, high, allow_nan=False, allow_infinity=False)
    if annotation is datetime:
        return TIMES
    if annotation in SPECIAL:
        return SPECIAL[annotation]
    if annotation is Reward:
        return st.builds(Reward, name=st.text(max_size=5), value=st.just(0.25)) | st.builds(
            Reward, name=st.just("broken"), value=st.none(), invalid_reason=st.text(min_size=1, max_size=5)
        )
    fields = {name: values_of(info.annotation, tuple(info.metadata)) for name, info in annotation.model_fields.items()}
    return st.builds(annotation, **fields)


def _flat(metadata: tuple[Any, ...]) -> list[Any]:
    return [part for item in metadata for part in (getattr(item, "metadata", None) or [item])]


@given(st.lists(values_of(Interaction), min_size=1, max_size=3, unique_by=lambda record: record.interaction_id))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_any_interaction_written_equals_the_one_read(tmp_path_factory: Any, records: list[Interaction]) -> None:
    lake = Lake(tmp_path_factory.mktemp("lake"))
    records = [record.model_copy(update={"cycle": 4}) for record in records]
    assert lake.append_interactions(records, 4) == Appended(new=len(records), known=0)
    assert lake.interactions([record.interaction_id for record in records]) == records
    assert lake.append_interactions(records, 4) == Appended(new=0, known=len(records))


def test_interactions_come_in_the_order_asked_for_over_files_and_row_groups(lake: Lake) -> None:
    for cycle in range(2):
        records = [interaction(f"{cycle}-{n}", cycle=cycle, text="y" * 40_000) for n in range(300)]
        lake.append_interactions(records, cycle)
    assert pq.ParquetFile(lake.files("interactions")[0]).num_row_groups > 1
    wanted = ["1-299", "0-0", "1-0", "0-250"]
    assert [record.interaction_id for record in lake.interactions(wanted)] == wanted


# -- more than one process ---------------------------------------------------------------------------------------


def _append_all(root: Path, start: Any) -> None:
    lake = Lake(root)
    start.wait()
    for batch in range(10):
        lake.append_interactions([interaction(f"i{batch}-{n}") for n in range(5)], 0)
        lake.append_feedback([(f"i{batch}-0", Feedback(kind="undo", at=NOON))], 0)


def test_two_processes_that_append_the_same_at_once_leave_no_double_row(lake: Lake) -> None:
    context = multiprocessing.get_context("spawn")
    start = context.Event()
    workers = [context.Process(target=_append_all, args=(lake.root, start)) for _ in range(2)]
    for worker in workers:
        worker.start()
    start.set()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert len(ids(lake)) == 50
    assert len(set(ids(lake))) == 50
    assert lake.scan("feedback", ["interaction_id"]).num_rows == 10


KILLED_WHILE_WRITING = """
import os, sys, time
from palomar.data import lake as module
from palomar.data.schema import Interaction
module.sync = lambda path: (print("written", flush=True), time.sleep(60))
module.Lake(sys.argv[1]).append_interactions(
    [Interaction(interaction_id="a", source="test", origin="x", cycle=0, steps=())], 0
)
"""


def test_a_killed_writer_leaves_nothing_that_readers_see_and_the_next_writer_cleans_up(lake: Lake) -> None:
    lake.append_interactions([interaction("before", cycle=0)], 0)  # the folder is there: the first sync is the file's
    command = [sys.executable, "-c", KILLED_WHILE_WRITING, str(lake.root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": _source()}) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"written\n"
        writer.send_signal(signal.SIGKILL)
    left = list(lake.root.glob("interactions/*/*.tmp"))
    assert len(left) == 1
    assert ids(lake) == ["before"]
    started = time.monotonic()
    assert lake.append_interactions([interaction("a")], 0) == Appended(new=1, known=0)
    assert time.monotonic() - started < 10  # the dead writer's lock is free
    assert list(lake.root.glob("interactions/*/*.tmp")) == []
    assert ids(lake) == ["a", "before"]


def _source() -> str:
    import palomar

    return str(Path(palomar.__file__).parents[1])


def test_an_interaction_that_a_later_cycle_reads_again_stays_in_its_first(lake: Lake) -> None:
    lake.append_interactions([interaction("a", cycle=3)], 3)
    assert lake.append_interactions([interaction("a", cycle=4)], 4) == Appended(new=0, known=1)
    assert lake.scan("interactions", ["cycle"]).to_pylist() == [{"cycle": 3}]


def test_only_files_that_may_hold_an_id_are_opened(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    for cycle in range(4):
        steps = (Step(author="person", role="user", text="please"),)
        records = [
            Interaction(interaction_id=f"c{cycle}-{number}", source="test", origin="x", cycle=cycle, steps=steps)
            for number in range(3)
        ]
        lake.append_interactions(records, cycle)
    assert [path.parent.name for path in lake.holding("interactions", ["c2-1"])] == ["cycle=000002"]
    assert len(lake.holding("interactions", ["c0-0", "c3-2"])) == 2
    assert lake.holding("interactions", ["c2-1"], [1]) == []
    assert lake.holding("interactions", []) == lake.holding("interactions", ["z"]) == []
    # A file that was written since is seen, also one that took another's place.
    record = Interaction(interaction_id="c9-9", source="test", origin="x", cycle=2, steps=records[0].steps)
    lake.append_interactions([record], 2)
    assert lake.interaction("c9-9").cycle == 2
    (lake.files("interactions", [0])[0]).write_bytes(lake.files("interactions", [3])[0].read_bytes())
    assert {path.parent.name for path in lake.holding("interactions", ["c3-0"])} == {"cycle=000000", "cycle=000003"}
