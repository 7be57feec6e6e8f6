"""Facts: the flat row of every interaction, counted from its nested records and from the reactions known by a moment.

Of the transcripts only the leaves that are counted are read: no text, no thinking, no tool result. Running it again
with a later ``as_of`` gives the same behaviour and more of the reactions. What each column means stands where it is
computed; a null is "not known", as everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from palomar.data.arrow import INTERACTION_SCHEMA
from palomar.data.lake import FEEDBACK_SCHEMA, Lake
from palomar.data.nested import Flat, Ints, Mask, among, codes, nullable, numbers, pick, valid
from palomar.data.observations import FACTS

TEST_PATH = (
    r"(^|/)(tests?|__tests__|spec)/"  # a folder of tests
    r"|(^|/)(test_[^/]*|conftest)\.[a-z]+$"  # test_sum.py, conftest.py
    r"|(_test|\.test|\.spec|Test|Tests)\.[A-Za-z]+$"  # sum_test.go, sum.test.ts, SumTest.java
)
"""Regular expression (RE2) of the paths that count as tests."""

UNCLASSIFIED = "unclassified"
"""What ``follow_up`` holds when a follow-up came and nobody has classed it yet."""

_ROWS_AT_ONCE = 100_000
_MICROSECOND = 1e-6
_UNTIMED = np.iinfo(np.int64).min

_STEP = "steps.list.element"
_CALL = f"{_STEP}.tool_calls.list.element"
_EDIT = f"{_STEP}.edits.list.element"
_REWARD = ("name", "value", "weight", "kind", "invalid_reason", "infrastructure")
_REACTION = ("kind", "author", "at", "text", "value", "path", "label")
_LEAVES = (
    *(
        name
        for name in INTERACTION_SCHEMA.names
        if name not in ("steps", "feedback", "rewards", "labels", "extra_json")
    ),
    *(f"{_STEP}.{name}" for name in ("author", "is_question", "branch", "truncated", "tokens_in", "tokens_out")),
    *(f"{_CALL}.{name}" for name in ("invalidity", "outcome")),
    *(f"{_EDIT}.{name}" for name in ("path", "outcome", "lines_added", "lines_removed")),
    *(f"{_EDIT}.functions_before.list.element.{name}" for name in ("lines", "complexity")),
    *(f"{_EDIT}.functions_after.list.element.{name}" for name in ("lines", "complexity")),
    *(f"feedback.list.element.{name}" for name in _REACTION),
    *(f"rewards.list.element.{name}" for name in _REWARD),
)
"""Parquet columns that are counted, by their paths in the file."""


def facts(lake: Lake, cycle: int | None, as_of: datetime) -> pa.Table:
    """Facts of the interactions of one cycle, with exactly the columns of ``FACTS``, in the order they were stored.

    ``as_of`` (with a zone) is up to when reactions count: one with a later time is not known yet. One without a time is
    taken as known. Reactions stored with the interaction and later ones are joined; the same one is not counted twice.
    """
    return lake.steady(("interactions", "feedback"), lambda: _all_facts(lake, cycle, as_of))


def _all_facts(lake: Lake, cycle: int | None, as_of: datetime) -> pa.Table:
    # A reaction cannot be delivered before its interaction; those from outside a loop have no cycle.
    delivered = [at for at in lake.cycles("feedback") if at is None or cycle is None or at >= cycle]
    late = lake.scan("feedback", ["interaction_id", *_REACTION], cycles=delivered) if delivered else _NO_LATE
    parts = [_facts(stored, late, as_of) for stored in _stored(lake, cycle)]
    return pa.concat_tables([FACTS.empty_table(), *parts])


_NO_LATE = FEEDBACK_SCHEMA.empty_table().select(["interaction_id", *_REACTION])


def _facts(stored: pa.Table, late: pa.Table, as_of: datetime) -> pa.Table:
    column = {name: stored[name].combine_chunks() for name in stored.column_names}
    cohort = column["cohort"]
    derived = {
        "organisation": pc.struct_field(cohort, "organisation"),
        "work_kind": pc.struct_field(cohort, "work_kind"),
        "language": pc.struct_field(cohort, "language"),
        **_turns_and_calls(column),
        **_edits(column),
        **_rewards(column),
        **_reactions(column, late, as_of),
    }
    # An edit settles that it did not only ask; else the last turn says, if it does.
    derived["asked"] = pc.if_else(derived["edited"], False, derived["asked"])
    columns = column | derived
    return pa.table([columns[name].cast(FACTS.field(name).type) for name in FACTS.names], schema=FACTS)


def _turns_and_calls(column: dict[str, pa.Array]) -> dict[str, pa.Array]:
    steps = Flat.of(column["steps"])
    agent = steps.take(among(steps["author"], "agent"))
    calls = agent.children("tool_calls")
    ran = ~valid(calls["invalidity"])  # an invalid call did not run: what became of it is told by its kind

    main = np.flatnonzero(~valid(agent["branch"]))
    end_of_main = agent.take(main).last()
    # How the main line ended; only where the agent has none, its last side branch.
    end = np.where(end_of_main >= 0, main[end_of_main] if len(main) else -1, agent.last())

    # Logs mark the turn that was cut and are silent on the rest: null only where no turn says.
    cut = agent["truncated"]
    was_cut = agent.count(pc.fill_null(cut, False).to_numpy(zero_copy_only=False)) > 0

    turns = agent.count()
    return {
        "agent_turns": pa.array(turns),
        "tool_calls": pa.array(calls.count()),
        **{
            f"invalid_{kind}": pa.array(calls.count(among(calls["invalidity"], kind)))
            for kind in ("malformed", "unparsed", "unknown_tool", "schema", "rejected")
        },
        **{
            f"calls_{fate}": pa.array(calls.count(ran & among(calls["outcome"], fate)))
            for fate in ("failed", "timed_out", "refused")
        },
        "asked": pick(agent["is_question"], end),
        "truncated": nullable(was_cut, agent.count(valid(cut)) > 0),
        # The log's own total, else the sum over the turns if every one is known (and there is one).
        **{
            name: pc.coalesce(column[name], pc.if_else(turns > 0, agent.total(agent[name]), None).cast(pa.int64()))
            for name in ("tokens_in", "tokens_out")
        },
    }


def _edits(column: dict[str, pa.Array]) -> dict[str, pa.Array]:
    steps = Flat.of(column["steps"])
    # Logs hang an edit on the call or on its result; what a person typed is not the agent's.
    tried = steps.take(among(steps["author"], "agent", "tool")).children("edits")
    failed = among(tried["outcome"], "failed")
    made = tried.take(~failed)
    some = made.count() > 0

    path = pc.replace_substring(made["path"], "\\", "/")
    named = valid(path)
    is_test = pc.fill_null(pc.match_substring_regex(path, TEST_PATH), False).to_numpy(zero_copy_only=False)
    file = _file_keys(made, path)
    # Row of each distinct file with a name.
    files = made.row[named][np.unique(file[named], return_index=True)[1]]

    before = _whole(made, "functions_before", file, first=True)
    after = _whole(made, "functions_after", file, first=False)
    return {
        "edits": pa.array(tried.count()),
        "edits_failed": pa.array(tried.count(failed)),
        "edited": pa.array(some),
        "files_edited": pa.array(np.bincount(files, minlength=made.num_rows)),
        # One edit of unknown size makes the total unknown; no edit at all adds nothing.
        "lines_added": made.total(made["lines_added"]),
        "lines_removed": made.total(made["lines_removed"]),
        # Over the edits that name their path: null when none of them does. No edit at all touches no test.
        "tests_edited": nullable(made.count(is_test) > 0, ~some | (made.count(named) > 0)),
        "functions_before": before["functions"],
        "functions_after": after["functions"],
        "function_lines_before": before["lines"],
        "function_lines_after": after["lines"],
        "function_lines_median": after["lines_median"],
        "complexity_before": before["complexity"],
        "complexity_after": after["complexity"],
        "complexity_max": after["complexity_max"],
    }


def _file_keys(made: Flat, path: pa.Array) -> Ints:
    """A number per row and path; an edit without a path is a file of its own."""
    code = codes(path)
    num_paths = int(code.max(initial=-1)) + 1
    code = np.where(code < 0, num_paths + np.arange(len(code)), code)
    return made.row * (num_paths + len(code)) + code


def _whole(made: Flat, field: str, file: Ints, *, first: bool) -> dict[str, pa.Array]:
    """Measures over the functions of the edited files; null where no edit was measured.

    A file edited twice counts once: as its first edit found it, or as the last one left it.
    """
    measured = np.flatnonzero(valid(made[field]))
    if first:
        chosen = np.unique(file[measured], return_index=True)[1]
    else:
        chosen = len(measured) - 1 - np.unique(file[measured][::-1], return_index=True)[1]
    kept = made.take(measured[np.sort(chosen)])
    functions = kept.children(field)
    known = kept.count() > 0
    return {
        "functions": nullable(functions.count(), known),
        "lines": pc.if_else(known, functions.total(functions["lines"]), None),
        "complexity": pc.if_else(known, functions.total(functions["complexity"]), None),
        "lines_median": _median(functions, "lines"),
        "complexity_max": _largest(functions, "complexity"),
    }


def _sorted_within(flat: Flat, field: str) -> npt.NDArray[np.float64]:
    values = numbers(flat[field])
    return values[np.lexsort((values, flat.row))]


def _median(flat: Flat, field: str) -> pa.Array:
    """Median by row, the mean of the middle two of an even number; null where there is no element."""
    ordered = _sorted_within(flat, field)
    count, first = flat.count(), flat.first()
    some = count > 0
    if not len(ordered):
        return pa.nulls(flat.num_rows, pa.float64())
    low = np.where(some, first + (count - 1) // 2, 0)
    high = np.where(some, first + count // 2, 0)
    return nullable((ordered[low] + ordered[high]) / 2, some)


def _largest(flat: Flat, field: str) -> pa.Array:
    return pick(pa.array(_sorted_within(flat, field)), flat.last())


def _rewards(column: dict[str, pa.Array]) -> dict[str, pa.Array]:
    rewards = Flat.of(column["rewards"])
    proxies = rewards.take(among(rewards["kind"], "proxy"))
    invalid = proxies.take(~valid(proxies["value"]))
    paid = pc.multiply(proxies["value"], pc.fill_null(proxies["weight"], 1.0))
    total = proxies.total(paid)  # missing is not zero: one invalid part leaves no sum
    reason = pc.binary_join_element_wise(invalid["name"], invalid["invalid_reason"], ": ")
    return {
        "logged_reward": pc.if_else(proxies.count() > 0, total, None),
        "logged_reward_invalid": pick(reason, invalid.first()),
        "logged_reward_infrastructure": nullable(
            invalid.count(invalid["infrastructure"].to_numpy(zero_copy_only=False)) > 0, invalid.count() > 0
        ),
    }


def _reactions(column: dict[str, pa.Array], late: pa.Table, as_of: datetime) -> dict[str, pa.Array]:
    moment = int(pa.scalar(as_of, pa.timestamp("us", tz="UTC")).value)
    end, ended = _end(column)
    known = _known(column, late, moment)
    at = _microseconds(known["at"])
    after = np.maximum(0, at - end[known.row]) * _MICROSECOND
    after_s = nullable(after, (at != _UNTIMED) & ended[known.row])

    lost = known.take(among(known["kind"], "reverted", "undo"))
    lost_s = pc.filter(after_s, pa.array(among(known["kind"], "reverted", "undo")))
    timed_losses = Flat(lost.items, lost.row, lost.num_rows).take(valid(lost_s))
    follow_ups = np.flatnonzero(among(known["kind"], "follow_up"))
    first_follow_up = known.take(follow_ups).first()
    first_follow_up = np.where(first_follow_up >= 0, follow_ups[first_follow_up] if len(follow_ups) else -1, -1)
    looks = np.flatnonzero(among(known["kind"], "kept") & valid(known["value"]))
    last_look = known.take(looks).last()
    return {
        "as_of": pa.repeat(pa.scalar(as_of, pa.timestamp("us", tz="UTC")), len(ended)),
        "watched_s": nullable(np.maximum(0, moment - end) * _MICROSECOND, ended),
        "edit_lost_s": pick(lost_s.drop_null(), timed_losses.first()),
        "kept_share": pick(known["value"].take(pa.array(looks)), last_look),
        "follow_up": pick(pc.fill_null(known["label"], UNCLASSIFIED), first_follow_up),
        "follow_up_s": pick(after_s, first_follow_up),
        "undone": pa.array(lost.count() > 0),
        "refusals": pa.array(known.count(among(known["kind"], "refusal"))),
        "answered": pa.array(known.count(among(known["kind"], "answer")) > 0),
    }


def _end(column: dict[str, pa.Array]) -> tuple[Ints, Mask]:
    """When the user had the answer (microseconds), and where that is known: its end, or its start and latency."""
    latency = pc.cast(pc.round(pc.multiply(column["latency_s"], 1e6)), pa.int64())
    start = column["started_at"].cast(pa.int64())
    end = pc.coalesce(column["ended_at"].cast(pa.int64()), pc.add(start, latency))
    return _microseconds(end), valid(end)


def _microseconds(times: pa.Array) -> Ints:
    """Times as integers; the smallest one stands for "no time", so that it sorts first."""
    values: Ints = pc.fill_null(times.cast(pa.int64()), _UNTIMED).to_numpy(zero_copy_only=False)
    return values


def _known(column: dict[str, pa.Array], late: pa.Table, moment: int) -> Flat:
    """Reactions known at a moment: by row, then by time (those without one first), then as they were told."""
    stored = Flat.of(column["feedback"])
    row_of = pc.index_in(late["interaction_id"], value_set=column["interaction_id"]).combine_chunks()
    here = valid(row_of)
    owner = row_of.drop_null().to_numpy(zero_copy_only=False).astype(np.int64)
    told_later = late.filter(pa.array(here)).select(list(_REACTION)).to_struct_array().combine_chunks()
    row = np.concatenate([stored.row, owner])
    items = _concatenated(stored.items, told_later)
    at = _microseconds(pc.struct_field(items, "at"))
    keep = (at <= moment) & ~_told_before(items, row, len(stored))
    order = np.lexsort((at, row))
    order = order[keep[order]]
    return Flat(items.take(pa.array(order)), row[order], len(column["interaction_id"]))


def _concatenated(first: pa.StructArray, second: pa.StructArray) -> pa.StructArray:
    fields = [pa.concat_arrays([pc.struct_field(first, name), pc.struct_field(second, name)]) for name in _REACTION]
    return pa.StructArray.from_arrays(fields, names=list(_REACTION))


def _told_before(items: pa.StructArray, row: Ints, num_stored: int) -> Mask:
    """True for a later reaction that was stored with its interaction already.

    It is the same when the same author said the same at the same time; a new label does not make it another.
    """
    repeated = np.zeros(len(row), dtype=bool)
    candidates = num_stored + np.flatnonzero(np.isin(row[num_stored:], row[:num_stored]))
    if not len(candidates):
        return repeated

    def told(index: Any) -> tuple[Any, ...]:
        item = items[int(index)].as_py()
        return (int(row[index]), *(item[name] for name in _REACTION if name != "label"))

    stored = {told(index) for index in range(num_stored)}
    for index in candidates:
        repeated[index] = told(index) in stored
    return repeated


def _stored(lake: Lake, cycle: int | None) -> Iterator[pa.Table]:
    """The counted leaves, about a hundred thousand interactions at a time: memory does not grow with the cycle."""
    gathered: list[pa.Table] = []
    for part in _row_groups(lake.files("interactions", [cycle])):
        rows = part if part.schema == _shape() else _widened(lake, part)
        full = sum(table.num_rows for table in gathered) >= _ROWS_AT_ONCE
        if gathered and (full or gathered[0].schema != rows.schema):
            yield pa.concat_tables(gathered)
            gathered = []
        gathered.append(rows)
    if gathered:
        yield pa.concat_tables(gathered)


def _widened(lake: Lake, older: pa.Table) -> pa.Table:
    """Rows of an older file with today's columns; what it lacks is null (a null list has no elements)."""
    sql = "SELECT * FROM shape UNION ALL BY NAME SELECT * FROM older"
    return lake.query(sql, shape=_shape().empty_table(), older=older)


def _row_groups(files: list[Path]) -> Iterator[pa.Table]:
    for file in files:
        with pq.ParquetFile(file) as parquet:
            for group in range(parquet.num_row_groups):
                yield parquet.read_row_group(group, columns=list(_LEAVES), use_threads=False).replace_schema_metadata()


@cache
def _shape() -> pa.Schema:
    """The schema of the leaves in a file of today."""
    sink = pa.BufferOutputStream()
    pq.write_table(INTERACTION_SCHEMA.empty_table(), sink)
    schema: pa.Schema = pq.ParquetFile(pa.BufferReader(sink.getvalue())).read(columns=list(_LEAVES)).schema
    return schema.remove_metadata()
