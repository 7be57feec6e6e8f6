"""For an interaction, the one at the baseline that is most like it in what was asked: its twin.

The same task where the baseline has one, else the nearest request. Near is Gower's (1971) distance: the mean, over
what is known of at least one of the two, of the difference in predicted failure and in ambiguity (both 0 to 1) and of
0 or 1 for each of organisation, kind of work, language and traffic; known on one side only counts 1. So 0 is the same
in all of it and 1 is different in all.

Blind to: what the request says. A twin at a distance is a neighbour, not a control; whoever looks at it is told how
far it is and in what it differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from palomar.data.lake import Lake

NUMBERS = ("predicted_failure", "ambiguity")
WORDS = ("organisation", "work_kind", "language", "traffic")
_COLUMNS = ("interaction_id", "cycle", "task_id", *NUMBERS, *WORDS)
_FAR = 0.05
"""Numbers that differ by less are not named as different."""


@dataclass(frozen=True)
class Twin:
    """The nearest interaction at the baseline."""

    interaction_id: str
    cycle: int | None
    same_task: bool
    distance: float | None
    """0 to 1; None where nothing is known of either to compare them by."""
    differs: tuple[str, ...]
    """Columns in which the two differ."""


def twins(lake: Lake, ids: Sequence[str], cycle: int | None, baseline: Sequence[int]) -> dict[str, Twin]:
    """Twins by the id of the interaction of ``cycle``; one without is missing: it, or the baseline, has no row.

    Of equally near ones that of the latest cycle, then by the hash of its id: the same rows give the same twins.
    """
    wanted = lake.scan(
        "observations",
        _COLUMNS,
        where="list_contains(?::VARCHAR[], interaction_id)",
        parameters=[list(ids)],
        cycles=[cycle],
    )
    if not wanted.num_rows or not baseline:
        return {}
    before = lake.scan("observations", _COLUMNS, cycles=list(baseline))
    parts = [_apart(name, f"abs(own.{name} - other.{name})") for name in NUMBERS]
    parts += [_apart(name, f"(own.{name} <> other.{name})::INT") for name in WORDS]
    rows = lake.query(
        f"""
        WITH pairs AS (
            SELECT own.interaction_id AS id, other.interaction_id AS twin, other.cycle AS cycle,
                coalesce(own.task_id = other.task_id, false) AS same_task, {", ".join(parts)},
                md5(other.interaction_id) AS draw
            FROM wanted AS own CROSS JOIN before AS other
            WHERE own.interaction_id <> other.interaction_id
        )
        SELECT *, list_avg([{", ".join((*NUMBERS, *WORDS))}]) AS distance
        FROM pairs
        QUALIFY row_number() OVER (
            PARTITION BY id ORDER BY same_task DESC, distance NULLS LAST, cycle DESC NULLS LAST, draw
        ) = 1
        """,
        wanted=wanted,
        before=before,
    )
    return {row["id"]: _twin(row) for row in rows.to_pylist()}


def _apart(name: str, difference: str) -> str:
    """SQL of how far two rows are apart in one column, 0 to 1; null where neither knows it."""
    one, other = f"own.{name}", f"other.{name}"
    return (
        f"(CASE WHEN {one} IS NULL AND {other} IS NULL THEN NULL WHEN {one} IS NULL OR {other} IS NULL THEN 1 "
        f"ELSE {difference} END)::DOUBLE AS {name}"
    )


def _twin(row: dict[str, object]) -> Twin:
    differs = tuple(name for name in (*NUMBERS, *WORDS) if isinstance(row[name], float) and row[name] >= _FAR)  # type: ignore[operator]
    return Twin(str(row["twin"]), row["cycle"], bool(row["same_task"]), row["distance"], differs)  # type: ignore[arg-type]
