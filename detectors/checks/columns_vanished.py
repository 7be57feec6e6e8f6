"""Flags columns that had values in the reference and have none now, or many fewer.

For: a dump that takes its columns from the first sample, a rename, a version of the trainer that no longer writes a
term. Whatever is computed from such a column is then computed from nothing, or from a few rows.

Looks at every column of the observations that was known in the reference, where its value belongs (test results and
function sizes: where there was an edit; a term: where its status says valid). Fires where

- it is **gone**: known nowhere, though it was in `FORMER` of the reference's rows or more, and in so many rows when it
  was last known that finding none by lot has a probability below `BY_LOT`. A behaviour that dies out goes slowly;
- it is **partly gone**: it was known in `ALWAYS` of the rows where it belongs, and is now in `MARGIN` fewer or less,
  significantly.

Errors: the first, `BY_LOT` per column; the second, `RATE` false alarms per cycle over all columns (Student t with
overdispersion, Bonferroni).

Blind to: reactions, which come in later (`LATE`); a column whose values became wrong; one that the reference has not.

Source: verl-project/verl#7588, #7151.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from palomar.data.derived import derived
from palomar.data.findings import Finding, Report, Unassessed
from palomar.data.observations import BEHAVIOUR, IDENTITY, OBSERVATIONS
from palomar.data.schema import content_id
from palomar.detectors.checks._examples import rows
from palomar.detectors.checks._examples import view as example_view
from palomar.detectors.checks._shares import (
    FEWEST_CYCLES,
    FEWEST_ROWS,
    RATE,
    Step,
    before_cycle,
    evidence,
    percent,
    quoted,
    step,
)
from palomar.detectors.detector import Example, View, detector

NAME = "columns-vanished"
FORMER = 0.05
"""Share of the reference's rows that must have had a value."""
BY_LOT = 1e-6
"""Probability that no row has one by lot, at most."""
ALWAYS = 0.9
"""Share of the rows where it belongs that had a value, for one that is partly gone."""
MARGIN = 0.1
"""Smallest fall of that share that is told."""
LATE = frozenset(
    {
        "edit_lost_s", "kept_share", "follow_up", "follow_up_s", "watched_s", "as_of", "reward", "reward_reason",
        "included", "exclusion", "outcome", "outcome_status", "logged_reward_invalid", "logged_reward_infrastructure",
        "cycle", "reward_version",
    }
)  # fmt: skip
"""Columns that are null by nature, or that fill as time passes."""
OF_EDITS = frozenset(
    name
    for name in BEHAVIOUR.names
    if name.startswith(("function", "complexity", "lines_", "tests_")) and BEHAVIOUR.field(name).nullable
)
"""Columns that belong to interactions with an edit."""
NEEDED = frozenset({"user_id", "predicted_failure", "ambiguity", "organisation", "traffic"})
"""Columns of identity without which nothing else can be relied on."""

_COUNTS = pa.schema(
    [
        pa.field("column", pa.string(), nullable=False),
        pa.field("known", pa.int64(), nullable=False),
        pa.field("n", pa.int64(), nullable=False),  # rows where it belongs
    ]
)


def _accuracy(cycle: int, share: float) -> pa.Table:
    """A cycle whose term `accuracy` is logged for a share of the rows."""
    known = np.random.default_rng(cycle).random(400) < share
    values = pa.array(np.random.default_rng(cycle + 1).random(400), mask=~known)
    return rows(cycle, **{"term:accuracy": values, "status:accuracy": "valid"})


def _fewer_edits() -> pa.Table:
    """Cycle 4 with a fifth of the edits; only these have test results."""
    table = rows(4)
    edited = np.asarray(table["edited"]) & (np.arange(400) % 5 == 0)
    tested = {name: pa.array(np.asarray(table[name]), mask=~edited) for name in ("tests_run", "tests_passed")}
    return rows(4, edited=edited, **tested)


EXAMPLES = [
    Example(
        "a term is no longer written",
        lambda folder: example_view(folder, [*(_accuracy(cycle, 1.0) for cycle in range(4)), rows(4)]),
        "fires",
    ),
    Example(
        "a term is written for some rows",
        lambda folder: example_view(folder, [*(_accuracy(cycle, 1.0) for cycle in range(4)), _accuracy(4, 0.5)]),
        "fires",
    ),
    Example(
        "the agent edits less: fewer test results, all of them there",
        lambda folder: example_view(
            folder,
            [*map(rows, range(4)), _fewer_edits()],
        ),
        "clear",
    ),
    Example("nothing to compare with", lambda folder: example_view(folder, [rows(0)]), "not_assessable"),
]


@detector(NAME, examples=EXAMPLES)
def columns_vanished(view: View) -> Report:
    """One finding per column."""
    base = before_cycle(view)
    if view.cycle is None or len(base) < FEWEST_CYCLES:
        why = f"it takes {FEWEST_CYCLES} other cycles to compare with; there are {len(base)}"
        return Report(NAME, unassessed=(Unassessed("columns", why),))
    now = _counts(view, view.cycle)
    before = [_counts(view, cycle) for cycle in base]
    columns = sorted({name for counts in before for name, (known, _) in counts.items() if known})
    findings: list[Finding] = []
    unassessed: list[Unassessed] = []
    assessed, smallest = 0, 0.0
    for column in columns:
        # A column that the file lacks is known nowhere; it belongs where all rows are.
        known, n = now.get(column, (0, now["source"][1]))
        x0, n0 = (np.array([counts.get(column, (0, 0))[part] for counts in before], dtype=float) for part in (0, 1))
        if n < FEWEST_ROWS or n0.sum() == 0:
            unassessed.append(Unassessed(column, f"{n} rows where it belongs; it takes {FEWEST_ROWS}"))
            continue
        assessed += 1
        seen = step(x0, n0, float(known), float(n), RATE / len(columns))
        share = float(x0.sum() / n0.sum())
        if known == 0:
            if share >= FORMER and (last := _last_known(view, column)) is not None and (1 - last[1]) ** n <= BY_LOT:
                findings.append(_gone(view, column, share, n=n, last=last[0], looked=len(columns)))
        elif seen is not None and share >= ALWAYS:
            smallest = max(smallest, seen.smallest, MARGIN)
            if seen.effect <= -MARGIN and seen.z <= -seen.threshold:
                findings.append(_partly(view, column, seen, len(columns)))
    power = f"a column missing in {percent(smallest)} of the rows where it belongs" if smallest else ""
    return Report(NAME, tuple(findings), assessed, tuple(unassessed), power)


def _counts(view: View, cycle: int | None) -> Mapping[str, tuple[int, int]]:
    """Rows where each column is known, and where it belongs."""
    columns = view.columns(cycles=[cycle])
    looked = [name for name in sorted(columns) if name not in LATE]
    listed = ", ".join(
        f"count(CASE WHEN {where} AND {quoted(name)} IS NOT NULL THEN 1 END) AS k{index}, "
        f"count(CASE WHEN {where} THEN 1 END) AS n{index}"
        for index, name in enumerate(looked)
        for where in [_belongs(name, columns)]
    )
    sql = f"SELECT {listed} FROM observations"

    def make() -> pa.Table:
        row = view.query(sql, [cycle]).to_pylist()[0]
        found = [
            {"column": name, "known": row[f"k{index}"], "n": row[f"n{index}"]} for index, name in enumerate(looked)
        ]
        return pa.Table.from_pylist(found, schema=_COUNTS)

    parts = [("observations", [cycle])]
    table = derived(view.lake, NAME, cycle, version=content_id("columns/1", sql), parts=parts, make=make)  # type: ignore[arg-type]
    return {row["column"]: (row["known"], row["n"]) for row in table.to_pylist()}


def _belongs(column: str, columns: frozenset[str]) -> str:
    """Rows where a column's value belongs, in SQL."""
    if column in OF_EDITS:
        return "edited"
    status = f"status:{column.removeprefix('term:')}"
    if column.startswith("term:") and status in columns:
        return f"{quoted(status)} = 'valid'"
    return "true"


def _last_known(view: View, column: str) -> tuple[int, float] | None:
    """The last cycle before in which the column had values, and the share of rows that had one."""
    for cycle in reversed(view.history):
        if cycle == view.cycle:
            continue
        known, n = _counts(view, cycle).get(column, (0, 0))
        if known:
            return cycle, known / n
    return None


def _gone(view: View, column: str, share: float, *, n: int, last: int, looked: int) -> Finding:
    since = next(cycle for cycle in view.history if cycle > last)
    return Finding(
        detector=NAME,
        severity="warns",
        sentence=(
            f"column {column} is gone: known in {percent(share)} of the reference's rows where it belongs, in none of "
            f"{n:,} now; last seen in cycle {last}"
        ),
        statistic=column,
        unit="share of rows with a value",
        before=share,
        after=0.0,
        effect=-share,
        error_control=f"{BY_LOT:g} per column by lot, {looked} columns",
        n=n,
        since=since,
        reading="measurement_fault",
        detail={"hold": _holds(column)},
    )


def _partly(view: View, column: str, at: Step, looked: int) -> Finding:
    columns = view.columns()
    found = Finding(
        detector=NAME,
        severity="warns",
        sentence=(
            f"column {column} is partly gone: known in {percent(at.before)} -> {percent(at.after)} of the rows where "
            f"it belongs, n={at.n:,}"
        ),
        statistic=column,
        unit="share of rows with a value",
        error_control=f"{RATE:g} false alarms per cycle over {looked} columns, Student t with overdispersion, "
        "Bonferroni",
        since=view.cycle,
        reading="measurement_fault",
        evidence=evidence(view, f"{quoted(column)} IS NULL", _belongs(column, columns)),
        detail={"hold": _holds(column)},
    )
    return at.told(found, least=MARGIN)


def _holds(column: str) -> bool:
    """Whether other statistics rest on the column."""
    names = set(BEHAVIOUR.names) | (set(OBSERVATIONS.names) - set(IDENTITY.names)) | NEEDED
    return column in names or column.startswith(("term:", "status:"))
