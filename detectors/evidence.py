"""Interactions to look at when a statistic of a slice went up or down.

A row's part in a statistic is x - R y, with R the statistic's level in the slice: for a rate 1 - R of a row that shows
the behaviour and -R of one that does not. Parts add up to 0; a fall is carried by rows with a part below 0. What a row
is paid is the advantage that the trainer used (0 for a sample that it left out), else its reward less the mean reward
of what may be trained on. Rows that carry a change are ranked by part times pay, their share of the reward's pressure;
those that were paid nothing come after, the best paid first.

Blind to: what the log does not describe; ids are no proof, they are for a person to open. A quantile is taken by which
side of it a row lies on, persistence by whether the edit outlived the horizon, without those watched for less.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import duckdb

from palomar.data.errors import LakeError
from palomar.data.findings import Evidence
from palomar.data.lake import Lake
from palomar.data.slices import BANDS
from palomar.detectors.cube import DIMENSIONS
from palomar.detectors.measure import UNKNOWN
from palomar.detectors.statistics import Statistic
from palomar.reward.charges import WAITING

CARRYING = 5
"""Most interactions that are named as carrying an effect."""
RANDOM = 2
_ROUNDING = 1e-9
"""Parts and outcomes that differ by less than this share are equal."""


def evidence(
    lake: Lake,
    cycle: int | None,
    statistic: Statistic,
    bands: Mapping[str, str],
    direction: Literal[1, -1],
    *,
    seed: int,
) -> Evidence:
    """Rows of a slice that carry a rise (``direction`` 1) or fall (-1) of a statistic, usual ones, and one against it.

    ``bands``: values by slice dimension, as in `palomar.detectors.pressure.SLICES`. The counter-example lies on the
    other side, and its user fared best of those and at least as well as is usual in the slice. Nothing where the slice
    has no rows. The same rows and seed give the same ids, in whatever order the rows lie. Random ones, and which of
    equals come first, go by DuckDB's hash, which another version may compute differently.

    Raises ValueError for a slice there cannot be, LakeError where the cycle lacks a column of the statistic.
    """
    x, y, counted = _counts(statistic)
    within, parameters = _within(bands)
    conditions = [f"({counted})", f"({statistic.where})", *within]
    level = f"quantile_cont(x, {statistic.quantile})" if statistic.kind == "quantile" else "sum(x) / nullif(sum(y), 0)"
    if statistic.kind in ("rate", "survival"):
        # By the behaviour itself: where all show it, no row has a part in it.
        rises, falls = "x = 1", "x = 0"
    else:
        least = f"{_ROUNDING} * (abs(x) + abs(level * y))"
        rises, falls = f"x - level * y > {least}", f"level * y - x > {least}"
    does, opposite = (rises, falls) if direction > 0 else (falls, rises)
    # One text: DuckDB's hash of two values favours some rows by as much as two to one.
    draw = "hash(concat(?::BIGINT, ' ', interaction_id))"
    # Samples are joined to the rows of one side only: with a million rows, that is where the time goes.
    sql = f"""
        WITH counted AS MATERIALIZED (
            SELECT
                interaction_id, ({x})::DOUBLE AS x, ({y})::DOUBLE AS y, {draw} AS draw,
                CASE WHEN outcome_status = 'mature' THEN outcome END AS good,
                CASE WHEN included IS FALSE THEN 'none' WHEN reward_status = 'valid' THEN 'some' END AS due,
                reward AS due_reward
            FROM observations WHERE {" AND ".join(conditions)}
        ),
        judged AS (
            SELECT *, {direction} * (x - level * y) AS part
            FROM counted CROSS JOIN (SELECT {level} AS level, avg(good) AS usual FROM counted)
        ),
        known AS (
            SELECT
                (SELECT count(advantage) > 0 FROM samples) AS logged,
                (SELECT avg(reward) FROM observations WHERE included IS NOT FALSE AND reward_status = 'valid') AS mean
        ),
        paying AS (
            SELECT interaction_id, part, draw,
                CASE
                    WHEN logged AND trained THEN weight * advantage
                    WHEN logged AND reason <> '{WAITING}' THEN 0
                    WHEN NOT logged AND due = 'none' THEN 0
                    WHEN NOT logged AND due = 'some' THEN due_reward - mean
                END AS paid
            FROM (SELECT * FROM judged WHERE {does}) LEFT JOIN samples USING (interaction_id) CROSS JOIN known
        )
        SELECT place, interaction_id
        FROM (
            (SELECT 'carrying' AS place, interaction_id, greatest(part * paid, 0) AS first, paid, part, draw
             FROM paying ORDER BY first DESC, paid DESC NULLS LAST, part DESC, draw LIMIT {CARRYING})
            UNION ALL
            (SELECT 'random', interaction_id, 0, 0, 0, draw FROM judged ORDER BY draw LIMIT {RANDOM})
            UNION ALL
            (SELECT 'counter', interaction_id, 0, 0, 0, draw
             FROM judged WHERE ({opposite}) AND good >= usual - {_ROUNDING} * abs(usual)
             ORDER BY good DESC, draw LIMIT 1)
        )
        ORDER BY place, first DESC, paid DESC NULLS LAST, part DESC, draw
    """
    with lake.connect(["observations", "samples"], [cycle]) as connection:
        try:
            rows = connection.execute(sql, [seed, *parameters]).fetchall()
        except duckdb.Error as exc:
            raise LakeError(f"the lake cannot show evidence on {statistic.name}: {exc}") from exc

    def placed(wanted: str) -> tuple[str, ...]:
        return tuple(name for place, name in rows if place == wanted)

    return Evidence(placed("carrying"), placed("random"), placed("counter"))


def _counts(statistic: Statistic) -> tuple[str, str, str]:
    """SQL of a row's x and y, and of the condition that the statistic counts it."""
    numerator, denominator = f"({statistic.numerator})", f"({statistic.denominator})"
    if statistic.horizon is not None:
        seconds = statistic.horizon.seconds
        lost = f"coalesce({numerator} <= {seconds}, false)"
        return f"(NOT {lost})::INT", "1", f"({lost} OR {denominator} >= {seconds})"
    if statistic.kind == "rate":
        counted = f"{numerator} IS NOT NULL" if statistic.denominator == "1" else denominator
        return f"coalesce({numerator}, false)::INT", "1", counted
    return numerator, denominator, f"{numerator} IS NOT NULL AND {denominator} IS NOT NULL"


def _within(bands: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """SQL conditions of a slice, and their parameters. Raises ValueError for a dimension or band there is none of."""
    conditions, parameters = [], []
    for name, band in bands.items():
        if name not in DIMENSIONS:
            raise ValueError(f"no slices by {name!r}; there are {', '.join(DIMENSIONS)}")
        if band == UNKNOWN:
            conditions.append(f"{name} IS NULL")
        elif name in BANDS:
            edges, names = BANDS[name]
            if band not in names:
                raise ValueError(f"{name} has no band {band!r}; it has {', '.join(names)}")
            low, high = (None, *edges)[names.index(band)], (*edges, None)[names.index(band)]
            conditions += [] if low is None else [f"{name} >= {low}"]
            conditions += [] if high is None else [f"{name} < {high}"]
        else:
            conditions.append(f"{name} = ?")
            parameters.append(band)
    return conditions, parameters
