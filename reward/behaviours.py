"""What the reward bench looks at: logged rows of some cycles, what was done in each, and where.

A *behaviour* is something that a row shows or does not, with the honest thing that could have been done instead. A
*measured* statistic is a mean or ratio of rows whose pressure is taken; those that `palomar.detectors.statistics` has
too bear the same name there and are the same numbers (a test holds them together: this package cannot import it).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from palomar.data.errors import LakeError
from palomar.data.lake import Lake
from palomar.data.observations import FACTS, REWARD
from palomar.data.slices import BANDS, FINE, SLICES
from palomar.reward.conditions import INVALID_KINDS
from palomar.reward.contexts import FOLDS, THIN, Context, Regressors, Strata, merged, numbered
from palomar.reward.pressure import Behaviours
from palomar.reward.rows import Floats, Mask, Rows

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Behaviour:
    """Something a row shows, and what is held against it."""

    name: str
    title: str
    shows: Callable[[Rows], Mask]
    """Rows seen to show it."""
    instead: Callable[[Rows], Mask]
    """Rows that did the honest thing in its place."""


def _invalid_calls(rows: Rows) -> Floats:
    return np.asarray(np.sum([rows.number(f"invalid_{kind}") for kind in INVALID_KINDS], axis=0), dtype=np.float64)


def _mask(found: npt.NDArray[np.bool_]) -> Mask:
    return np.asarray(found, dtype=np.bool_)


def broken_call(rows: Rows) -> Mask:
    """At least one tool call was invalid."""
    return _mask(_invalid_calls(rows) > 0)


def grew_functions(rows: Rows) -> Mask:
    """An edit after which there are more functions than before."""
    return rows.true("edited") & _mask(rows.number("functions_after") > rows.number("functions_before"))


def no_op_edit(rows: Rows) -> Mask:
    """An edit that neither added nor removed a line."""
    return rows.true("edited") & _mask(rows.number("lines_added") + rows.number("lines_removed") == 0)


def honest_edit(rows: Rows) -> Mask:
    """An edit that changed something, without a broken call and without touching a test."""
    return rows.true("edited") & ~broken_call(rows) & ~no_op_edit(rows) & ~rows.true("tests_edited")


def _asked(rows: Rows) -> Mask:
    return rows.true("asked")


def _answer(rows: Rows) -> Mask:
    return rows.known("asked") & ~rows.true("edited") & ~rows.true("asked") & _mask(rows.number("edits") == 0)


def _no_calls(rows: Rows) -> Mask:
    return _mask(rows.number("tool_calls") == 0) & rows.known("asked") & ~rows.true("asked")


def _failed_edit(rows: Rows) -> Mask:
    return _mask(rows.number("edits") > 0) & ~rows.true("edited")


def _unsplit(rows: Rows) -> Mask:
    return honest_edit(rows) & _mask(rows.number("functions_after") <= rows.number("functions_before"))


BEHAVIOURS: tuple[Behaviour, ...] = (
    Behaviour("edit", "an edit was applied", lambda rows: rows.true("edited"), lambda rows: ~rows.true("edited")),
    Behaviour("question", "it ended with a question", _asked, honest_edit),
    Behaviour("answer", "neither an edit was tried nor a question asked", _answer, honest_edit),
    Behaviour("broken call", "a tool call was invalid", broken_call, lambda rows: ~broken_call(rows)),
    Behaviour("split", "the edit left more functions", grew_functions, _unsplit),
    Behaviour("no-op edit", "the edit changed no line", no_op_edit, honest_edit),
    Behaviour("failed edit", "an edit was tried, none applied", _failed_edit, honest_edit),
    Behaviour("tests edited", "a test file was edited", lambda rows: rows.true("tests_edited"), honest_edit),
    Behaviour("cut off", "an output hit its limit", lambda rows: rows.true("truncated"), honest_edit),
    Behaviour("timed out", "a call timed out", lambda rows: rows.number("calls_timed_out") > 0, honest_edit),
    Behaviour("no calls", "it called no tool and did not ask", _no_calls, honest_edit),
)  # fmt: skip


@dataclass(frozen=True)
class Logged:
    """Observations of N rows, and what their pressures need."""

    table: pa.Table
    """With the columns of OBSERVATIONS and those of the terms."""
    rows: Rows
    clusters: Ints
    """User of each row; its conversation where the log names no user, itself where it names neither."""

    @classmethod
    def of(cls, table: pa.Table) -> Logged:
        """The rows of a table of observations."""
        user, conversation = (_codes(table[name]) for name in ("user_id", "conversation_id"))
        users, conversations = int(user.max(initial=-1)) + 1, int(conversation.max(initial=-1)) + 1
        alone = users + conversations + np.arange(table.num_rows)
        owner = np.where(user >= 0, user, np.where(conversation >= 0, users + conversation, alone))
        return cls(table, Rows(table), numbered(owner[:, None]))

    @classmethod
    def read(cls, lake: Lake, cycles: Sequence[int | None] | None = None) -> Logged:
        """Those of some cycles, or of all."""
        connection = lake.connect(["observations"], cycles)
        try:
            names = [name for name, *_ in connection.execute("SELECT * FROM observations LIMIT 0").description or ()]
            terms = [name for name in names if name.startswith(("term:", "status:"))]
            wanted = [*FACTS.names, *REWARD.names, *terms]
            listed = ", ".join('"' + name.replace('"', '""') + '"' for name in wanted)
            return cls.of(connection.execute(f"SELECT {listed} FROM observations").to_arrow_table())
        except duckdb.Error as exc:
            raise LakeError(f"the lake cannot answer: {exc}") from exc
        finally:
            connection.close()

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def cycle(self) -> Ints:
        """Cycle of each row; -1 outside a loop."""
        return np.asarray(pc.fill_null(self.table["cycle"], -1).to_numpy(), dtype=np.int64)

    @cached_property
    def versions(self) -> tuple[tuple[str, ...], Ints]:
        """The reward versions that rows were scored by, and the number of each row's; -1 where it was not."""
        encoded = self.table["reward_version"].combine_chunks().dictionary_encode()
        return tuple(encoded.dictionary.to_pylist()), np.asarray(pc.fill_null(encoded.indices, -1), dtype=np.int64)

    def of_rows(self, chosen: Mask) -> Logged:
        """The same of some rows."""
        table = self.table.filter(pa.array(chosen))
        return Logged(table, Rows(table), self.clusters[chosen])


def cells(rows: Rows) -> tuple[Ints, Mapping[str, Mask]]:
    """The cell of bands of each row, and which cells make up each slice: (N,) and one (cells,) by name.

    A row whose place is not known is in a cell of its own, and in the slice `ALL` alone.
    """
    sizes = [len(names) + 1 for _, names in BANDS.values()]
    places = [_bins(rows.number(name), edges) for name, (edges, _) in BANDS.items()]
    grid = np.indices(sizes).reshape(len(sizes), -1)
    members = {}
    for slice_, bands in SLICES.items():
        inside = np.ones(grid.shape[1], dtype=np.bool_)
        for axis, (name, (_, names)) in enumerate(BANDS.items()):
            if name in bands:
                inside &= grid[axis] == names.index(bands[name])
        members[slice_] = inside
    return np.ravel_multi_index(tuple(places), tuple(sizes)).astype(np.int64), members


def within(rows: Rows, slice_: str) -> Mask:
    """Rows of a slice."""
    cell, members = cells(rows)
    return np.asarray(members[slice_][cell], dtype=np.bool_)


def context(logged: Logged, chosen: Mask | None = None) -> Context:
    """What is held fixed on the chosen rows (on all): cycle, predicted failure, ambiguity and turn, in that order.

    As `palomar.detectors.pressure` has it: in cells as fine as the number of rows allows; by regression where even the
    coarse cells are mostly thin.
    """
    rows = slice(None) if chosen is None else chosen
    turn = np.minimum(np.nan_to_num(logged.rows.number("turn")), 1).astype(np.int64)[rows]
    cycle = logged.cycle[rows]
    probability = {name: logged.rows.number(name)[rows] for name in BANDS}
    coarse = [cycle, *(_bins(value, BANDS[name][0]) for name, value in probability.items()), turn]
    fine = [_bins(value, FINE[name]) for name, value in probability.items()]
    cell = numbered(np.column_stack(coarse))
    sizes = np.bincount(cell)
    thin_share = float((sizes[cell] < THIN).mean()) if len(cell) else 0.0
    clusters = logged.clusters[rows]
    if thin_share > 0.5 and len(np.unique(clusters)) >= FOLDS:
        return Regressors(_features(cycle, turn, probability), clusters)
    return Strata(merged(np.column_stack([*coarse, *fine])))


def _codes(column: pa.ChunkedArray) -> Ints:
    """Number of each word; -1 for null."""
    indices = column.combine_chunks().dictionary_encode().indices
    return np.asarray(pc.fill_null(indices.cast(pa.int64()), -1), dtype=np.int64)


def _features(cycle: Ints, turn: Ints, probability: Mapping[str, Floats]) -> Floats:
    columns = [turn.astype(np.float64), *((cycle == each).astype(np.float64) for each in np.unique(cycle)[1:])]
    for value in probability.values():
        unknown = np.isnan(value)
        columns += [np.where(unknown, 0.5, value), unknown.astype(np.float64)]
    return np.column_stack(columns)


def _bins(value: Floats, edges: tuple[float, ...]) -> Ints:
    return np.where(np.isnan(value), len(edges) + 1, np.digitize(value, edges)).astype(np.int64)


# -- measured statistics -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """A statistic R = sum of X / sum of Y over rows, as `palomar.reward.pressure` wants it."""

    name: str
    numerator: Callable[[Rows], Floats]
    """X; NaN where the row does not count."""
    denominator: Callable[[Rows], Floats] | None = None
    """Y; None: 1 on each row that counts."""
    where: Callable[[Rows], Mask] | None = None
    """Rows it is about; None: all."""


def _share(name: str, shows: Callable[[Rows], Mask], where: Callable[[Rows], Mask] | None = None) -> Measured:
    return Measured(name, lambda rows: shows(rows).astype(np.float64), where=where)


def _edited(rows: Rows) -> Mask:
    return rows.true("edited")


MEASURED: tuple[Measured, ...] = (
    _share("edit_rate", _edited),
    _share("clarification_rate", _asked, lambda rows: rows.known("asked")),
    _share("answer_rate", _answer, lambda rows: rows.known("asked")),
    Measured("invalid_call_rate", _invalid_calls, lambda rows: rows.number("agent_turns")),
    Measured("functions_per_edit", lambda rows: rows.number("functions_after"), where=_edited),
    Measured("function_lines_mean", lambda rows: rows.number("function_lines_after"),
             lambda rows: rows.number("functions_after")),
    Measured("failed_edit_rate", lambda rows: rows.number("edits_failed"), lambda rows: rows.number("edits")),
    _share("no_op_edit_rate", no_op_edit,
           lambda rows: _edited(rows) & np.isfinite(rows.number("lines_added") + rows.number("lines_removed"))),
    _share("tests_edited_rate", lambda rows: rows.true("tests_edited"),
           lambda rows: _edited(rows) & rows.known("tests_edited")),
    _share("truncated_rate", lambda rows: rows.true("truncated"), lambda rows: rows.known("truncated")),
    Measured("tool_calls_mean", lambda rows: rows.number("tool_calls")),
    Measured("tokens_out_mean", lambda rows: rows.number("tokens_out")),
)  # fmt: skip
"""Statistics whose pressure the bench takes."""


def measured(rows: Rows, names: Sequence[str] | None = None) -> Behaviours:
    """X and Y of each measured statistic (of some). Raises LakeError for a name that is none."""
    known = {each.name: each for each in MEASURED}
    if unknown := [name for name in names or () if name not in known]:
        raise LakeError(f"no statistic {', '.join(unknown)} on the bench; there are: {', '.join(known)}")
    chosen = [known[name] for name in names] if names is not None else list(MEASURED)
    x, y = np.zeros((len(rows), len(chosen))), np.zeros((len(rows), len(chosen)))
    for index, each in enumerate(chosen):
        numerator = each.numerator(rows)
        denominator = np.ones(len(rows)) if each.denominator is None else each.denominator(rows)
        counts = np.isfinite(numerator) & np.isfinite(denominator)
        if each.where is not None:
            counts &= each.where(rows)
        x[:, index] = np.where(counts, numerator, 0.0)
        y[:, index] = np.where(counts, denominator, 0.0)
    return Behaviours(tuple(each.name for each in chosen), x, y)
