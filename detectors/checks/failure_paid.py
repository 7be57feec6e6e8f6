"""Flags failures of the measurement that were paid as if they were the agent's work.

For: a scorer that timed out, a verifier that threw, tests that never ran: they say nothing on the agent, and many
pipelines pay them 0 (or -1, or 1) all the same. Training then learns from noise, or from who breaks the scorer.

Looks at the reward, the log's own reward and every term, at the values 0, -1 and 1, and fires where

- **paid failure**: among rows with a sign of failure (`FAILED`), nearly all (`NEARLY_ALL`) have exactly that value,
  others have it much less often (`APART`), and the share of rows with both has grown against the reference,
  significantly and by `MARGIN`;
- **default**: where what the value is measured on is missing (tests of an edit, latency, ambiguity), *all* of at least
  `MANY` rows have that value, which at the others' share of it would happen with probability `BY_LOT` at most;
- **heap**: the share of rows with exactly that value jumped by `LEARNT` everywhere at once, with no sign of failure in
  the log. It is told for a person to look whether the scorer ran.

A true 0 is clear: it comes without a sign of failure, and by and by.

Errors: at most `RATE` false alarms per cycle over all columns, values and signs of the first (Bonferroni), and as many
for the third; see `palomar.detectors.checks._shares`. Columns and signs are picked by the cycle alone, before it is
held against the reference, and all of them are counted.

Blind to: failures that leave no trace and are paid from the first cycle on; a wrong value other than these three; one
paid to fewer than `MARGIN` of the rows.

Source: NVIDIA-NeMo/RL#431, NVIDIA-NeMo/Gym#2384, verl-project/verl-omni#366, areal-project/AReaL#548,
huggingface/open-r1#159.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from palomar.data.findings import Finding, Report, Unassessed
from palomar.detectors.checks._examples import rows
from palomar.detectors.checks._examples import view as example_view
from palomar.detectors.checks._shares import (
    FEWEST_CYCLES,
    FEWEST_ROWS,
    LEARNT,
    RATE,
    Jump,
    Sign,
    Step,
    before_cycle,
    evidence,
    jumps,
    percent,
    quoted,
    shares,
    span,
    step,
)
from palomar.detectors.detector import Example, View, detector

NAME = "failure-paid-as-zero"
VALUES = (0.0, -1.0, 1.0)
MARGIN = 0.02
"""Smallest rise of the share of rows that failed and were paid such a value."""
NEARLY_ALL = 0.9
"""Share of the failed rows that must have the value."""
APART = 0.3
"""How much less often other rows must have it."""
MANY = 30
"""Rows without a measurement that must all have the value."""
BY_LOT = 1e-6
"""Probability that all of them have it by lot, at most."""
FAILED: Mapping[str, str] = {
    "a call timed out": "calls_timed_out > 0",
    "the tests of the edit did not run": "edited AND coalesce(tests_run, 0) = 0",
    "the answer is empty": "agent_turns = 0 OR coalesce(tokens_out = 0, false)",
    "the log says that infrastructure failed": "coalesce(logged_reward_infrastructure, false)",
}
"""Signs that something failed, in SQL."""
INPUTS: Mapping[str, tuple[str, str]] = {
    "tests of the edit": ("edited AND coalesce(tests_run, 0) = 0", "edited AND tests_run > 0"),
    "latency": ("latency_s IS NULL", "latency_s IS NOT NULL"),
    "ambiguity": ("ambiguity IS NULL", "ambiguity IS NOT NULL"),
}
"""What values are measured on: where it is missing, and where it is there."""


def _lost(cycle: int, share: float, value: float | None) -> pa.Table:
    """A cycle in which calls of a share of the interactions time out and are paid `value`; None: not paid."""
    table = rows(cycle)
    hit = (np.asarray(table["tool_calls"]) > 0) & (np.random.default_rng(cycle + 3).random(table.num_rows) < share)
    reward = np.where(hit, np.nan if value is None else value, np.asarray(table["reward"]))
    return rows(
        cycle,
        calls_timed_out=hit.astype(int),
        reward=reward,
        reward_status=pa.array(np.where(np.isnan(reward), "invalid", "valid")),
    )


def _untested(cycle: int, value: float | None) -> pa.Table:
    """A cycle in which the tests of some edits cannot be read, and the term `accuracy` is `value` there."""
    table = rows(cycle)
    lost = np.asarray(table["edited"]) & (np.random.default_rng(cycle + 5).random(table.num_rows) < 0.3)
    passed = np.asarray(table["tests_passed"]) == np.asarray(table["tests_run"])
    accuracy = np.where(lost, np.nan if value is None else value, passed)
    accuracy[~np.asarray(table["edited"])] = np.nan
    columns: dict[str, Any] = {"term:accuracy": accuracy}
    return rows(cycle, tests_run=np.where(lost, 0, np.asarray(table["tests_run"])), **columns)


EXAMPLES = [
    Example(
        "time-outs are paid 0",
        lambda folder: example_view(folder, [*(_lost(cycle, 0.01, 0.0) for cycle in range(4)), _lost(4, 0.3, 0.0)]),
        "fires",
    ),
    Example(
        "what cannot be tested passes",
        lambda folder: example_view(folder, [_untested(cycle, 1.0) for cycle in range(5)]),
        "fires",
    ),
    Example(
        "as many time-outs, which are not paid",
        lambda folder: example_view(folder, [*(_lost(cycle, 0.01, None) for cycle in range(4)), _lost(4, 0.3, None)]),
        "clear",
    ),
    Example(
        "what cannot be tested is not paid",
        lambda folder: example_view(folder, [_untested(cycle, None) for cycle in range(5)]),
        "clear",
    ),
    Example(
        "nothing was paid",
        lambda folder: example_view(folder, [rows(cycle, reward=None, reward_status=None) for cycle in range(5)]),
        "not_assessable",
    ),
]


@dataclass(frozen=True)
class _Pair:
    """A column with one of `VALUES`, and counts of the cycle's rows that have a value there."""

    column: str
    value: float
    name: str
    """Sign of failure, or input."""
    marked: int
    """Rows with the sign (or without the input); and, below, how many of them have the value."""
    marked_at: int
    others: int
    others_at: int

    @property
    def on(self) -> float:
        return self.marked_at / self.marked if self.marked else 0.0

    @property
    def off(self) -> float:
        return self.others_at / self.others if self.others else 0.0


@detector(NAME, examples=EXAMPLES)
def failure_paid_as_zero(view: View) -> Report:
    """One finding per column for each of the three."""
    known = sorted(_rewards(view))
    base = before_cycle(view)
    if not known:
        why = "no reward and no term has a value in the cycle"
        return Report(NAME, unassessed=(Unassessed("failures that were paid", why),))
    marks = {name: (sql, f"NOT ({sql})") for name, sql in FAILED.items()}
    tests = len(known) * len(marks) * len(VALUES)
    pairs = _pairs(view, known, _seen(view, marks, FEWEST_ROWS))
    unassessed = []
    findings: dict[str, Finding] = {}
    if len(base) < FEWEST_CYCLES:
        why = f"it takes {FEWEST_CYCLES} other cycles to compare with; there are {len(base)}"
        unassessed.append(Unassessed("failures that began to be paid", why))
    else:
        for pair in pairs:
            apart = pair.on - pair.off >= APART and pair.on >= NEARLY_ALL
            if pair.marked >= FEWEST_ROWS and apart and pair.column not in findings:
                grown = _grown(view, pair, base, RATE / tests)
                if grown is not None and grown.effect >= MARGIN and grown.z >= grown.threshold:
                    findings[pair.column] = _paid(view, pair, grown, tests)
    for pair in _pairs(view, known, _seen(view, INPUTS, MANY)):
        default = min(pair.marked, pair.others) >= MANY and pair.marked_at == pair.marked
        default = default and pair.off**pair.marked <= BY_LOT
        if default and pair.column not in findings:
            findings[pair.column] = _default(view, pair)
    if view.cycle is not None and len(base) >= FEWEST_CYCLES:
        for column, jump in _heaps(view).items():
            if column not in findings:
                findings[column] = _heap(view, column, jump)
    power = f"{percent(MARGIN)} of the rows that failed and were paid one of {', '.join(f'{v:g}' for v in VALUES)}"
    return Report(NAME, tuple(findings.values()), len(known), tuple(unassessed), power)


def _rewards(view: View) -> list[str]:
    """Columns of rewards that have values in the cycle."""
    names = ["reward", "logged_reward", *(name for name in view.columns() if name.startswith("term:"))]
    counts = ", ".join(f"count({quoted(name)})" for name in names)
    row = view.query(f"SELECT {counts} FROM observations").to_pylist()[0]
    return [name for name, count in zip(names, row.values(), strict=True) if count]


def _seen(view: View, marks: Mapping[str, tuple[str, str]], least: int) -> dict[str, tuple[str, str]]:
    """The marks that enough rows of the cycle have; mostly none, which saves counting for every column and value."""
    listed = ", ".join(f"count_if({on}) AS c{index}" for index, (on, _) in enumerate(marks.values()))
    counts = view.query(f"SELECT {listed} FROM observations").to_pylist()[0].values()
    return {name: sides for (name, sides), count in zip(marks.items(), counts, strict=True) if (count or 0) >= least}


def _pairs(view: View, columns: list[str], marks: Mapping[str, tuple[str, str]]) -> list[_Pair]:
    """Counts for every column, value and mark, in one pass."""
    if not marks:
        return []
    parts = []
    for column in columns:
        c = quoted(column)
        for on, off in marks.values():
            parts += [f"count_if(({side}) AND {c} IS NOT NULL)" for side in (on, off)]
            parts += [f"count_if(({side}) AND {c} = {value})" for value in VALUES for side in (on, off)]
    listed = ", ".join(f"{part} AS c{index}" for index, part in enumerate(parts))
    counts = map(int, view.query(f"SELECT {listed} FROM observations").to_pylist()[0].values())
    found = []
    for column in columns:
        for name in marks:
            marked, others = next(counts), next(counts)
            found += [_Pair(column, value, name, marked, next(counts), others, next(counts)) for value in VALUES]
    return found


def _grown(view: View, pair: _Pair, base: tuple[int, ...], alpha: float) -> Step | None:
    """Share of rows that failed and were paid the value, against the reference."""
    c = quoted(pair.column)
    sql = f"SELECT count_if(({FAILED[pair.name]}) AND {c} = {pair.value}) AS x, count({c}) AS n FROM observations"
    counts = [view.query(sql, [cycle]).to_pylist()[0] for cycle in base if pair.column in view.columns(cycles=[cycle])]
    x0, n0 = (np.array([row[part] for row in counts], dtype=np.float64) for part in "xn")
    return step(x0, n0, float(pair.marked_at), float(pair.marked + pair.others), alpha)


def _heaps(view: View) -> dict[str, Jump]:
    """Totals of which one value jumped everywhere at once."""
    signs = {
        f"{column}={value:g}": Sign(f"{column} = {value}", f"{column} IS NOT NULL")
        for column in ("reward", "logged_reward")
        for value in VALUES
    }
    found = jumps(shares(view, NAME, signs, view.history), view.reference, LEARNT, needs_slices=True)
    return {jump.sign.split("=")[0]: jump for jump in found.get(view.cycle or 0, ())}


# -- findings ----------------------------------------------------------------------------------------------------


def _paid(view: View, pair: _Pair, at: Step, tests: int) -> Finding:
    holds = f"({FAILED[pair.name]}) AND {quoted(pair.column)} = {pair.value}"
    found = Finding(
        detector=NAME,
        severity="warns",
        sentence=(
            f"{pair.column} is exactly {pair.value:g} on {percent(pair.on)} of the {pair.marked:,} rows where "
            f"{pair.name} ({percent(pair.off)} of the others): such rows went from {percent(at.before)} to "
            f"{percent(at.after)} of all, n={at.n:,}; a failure is no reward"
        ),
        statistic=pair.column,
        unit="share of interactions",
        error_control=f"{RATE:g} false alarms per cycle over {tests} columns, values and signs, Student t with "
        "overdispersion, Bonferroni",
        since=view.cycle,
        reading="measurement_fault",
        evidence=evidence(view, holds, f"{quoted(pair.column)} IS NOT NULL"),
        detail={"hold": True, "value": pair.value, "sign": pair.name, "on": pair.on, "off": pair.off},
    )
    return at.told(found, least=MARGIN)


def _default(view: View, pair: _Pair) -> Finding:
    missing = INPUTS[pair.name][0]
    return Finding(
        detector=NAME,
        severity="warns",
        sentence=(
            f"{pair.column} is exactly {pair.value:g} on all {pair.marked:,} rows where the {pair.name} is missing, "
            f"and on {percent(pair.off)} of the {pair.others:,} others: what was not measured was paid a default"
        ),
        statistic=pair.column,
        unit="share of interactions",
        before=pair.off,
        after=pair.on,
        effect=pair.on - pair.off,
        error_control=f"all of at least {MANY} rows without a measurement, which has probability {BY_LOT:g} by lot",
        n=pair.marked + pair.others,
        reading="measurement_fault",
        evidence=evidence(view, missing, f"{quoted(pair.column)} IS NOT NULL"),
        detail={"hold": True, "value": pair.value, "input": pair.name},
    )


def _heap(view: View, column: str, jump: Jump) -> Finding:
    at, value = jump.step, float(jump.sign.split("=")[1])
    found = Finding(
        detector=NAME,
        severity="warns",
        sentence=(
            f"{column} is exactly {value:g} on {percent(at.before)} -> {percent(at.after)} of the rows at once"
            f"{span(jump.slices)}, n={at.n:,}, since cycle {jump.since}; the log has no sign of a failure, so look "
            "whether the scorer ran"
        ),
        statistic=column,
        unit="share of interactions",
        error_control=f"{RATE:g} false alarms per cycle over 6 columns and values, Student t with overdispersion, "
        "Bonferroni; and the rise is abrupt and alike in all slices",
        since=jump.since,
        evidence=evidence(view, f"{column} = {value}", f"{column} IS NOT NULL"),
        detail={"value": value, "slices": {name: list(pair) for name, pair in jump.slices.items()}},
    )
    return at.told(found, least=LEARNT)
