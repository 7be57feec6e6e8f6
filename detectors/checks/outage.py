"""Tells cycles in which something was down: tools, tests, the scorer or the model's server.

For: an outage lowers rewards and outcomes of everyone at once. It is neither a hack nor an improvement, and what
drifted in such a cycle says nothing on the policy: `outage_cycles` is for those who must leave such cycles out.

Fires on a jump (see `palomar.detectors.checks._shares`) of `MARGIN` or more in one of `SIGNS`: things that happen *to*
the agent. The share among the rows that could be hit (interactions with a call, for a call that timed out) must rise
abruptly, and in every organisation, kind of work and band of predicted failure alike. What rewards, outcome and edits
did in that cycle is told beside it.

Errors: at most `RATE` false alarms per cycle over all signs (Student t, Bonferroni over signs), and less, since the
rise must also be abrupt, alike in all slices and `MARGIN` large. Reference cycles are judged by the other ones.

Blind to: an outage that hits less than `MARGIN` of the rows or one organisation alone (drift has slices for that), one
that was there in most of the reference, one that begins slowly, and one that leaves no trace but the drop itself.

Source: DESIGN.md section 2, "outside change"; INTEGRATIONS.md section 4, areal-project/AReaL#548.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from palomar.data.findings import Finding, Report, Unassessed
from palomar.detectors.checks._examples import rows
from palomar.detectors.checks._examples import view as example_view
from palomar.detectors.checks._shares import (
    FEWEST_CYCLES,
    LEARNT,
    RATE,
    Jump,
    Shares,
    Sign,
    before_cycle,
    evidence,
    jumps,
    percent,
    shares,
    span,
    step,
)
from palomar.detectors.detector import Example, View, detector

NAME = "outage"
MARGIN = 0.1
"""Smallest rise of a share that is taken for an outage."""
FAILED = "calls that failed"
"""An agent can run what fails; so of this one the rise must be `LEARNT` or more."""
SIGNS: Mapping[str, Sign] = {
    "calls that timed out": Sign("calls_timed_out > 0", "tool_calls > 0"),
    FAILED: Sign("calls_failed > 0", "tool_calls > 0"),
    "edits whose tests did not run": Sign("coalesce(tests_run, 0) = 0", "edited"),
    "empty answers": Sign("agent_turns = 0 OR coalesce(tokens_out = 0, false)"),
    "rewards that infrastructure failed to give": Sign("coalesce(logged_reward_infrastructure, false)"),
    "latencies at their cap": Sign(
        "latency_s >= 0.99 * (SELECT max(latency_s) FROM observations)", "latency_s IS NOT NULL"
    ),
}
"""What happens to the agent. The last: latencies have no cap by nature, so that a heap at the largest is a time-out."""


def _down(share: float, seed: int = 1, n: int = 400, **columns: Any) -> pa.Table:
    """Cycle 4 of an example, in which calls of a share of the interactions time out; the edits there fail."""
    table = rows(4, n)
    called = np.asarray(table["tool_calls"]) > 0
    hit = called & (np.random.default_rng(seed).random(n) < share)
    edited = np.asarray(table["edited"]) & ~hit
    filled: dict[str, Any] = {
        "calls_timed_out": hit.astype(int),
        "edited": edited,
        "tests_run": np.where(edited, 5, 0),
        **columns,
    }
    return rows(4, n, **filled)


def _one_organisation(folder: Path) -> View:
    table = rows(4)
    hit = (np.asarray(table["organisation"]) == "north") & (np.asarray(table["tool_calls"]) > 0)
    return example_view(folder, [*map(rows, range(4)), rows(4, calls_timed_out=hit.astype(int))])


EXAMPLES = [
    Example("tools are down", lambda folder: example_view(folder, [*map(rows, range(4)), _down(0.8)]), "fires"),
    Example(
        "tests of all edits are lost",
        lambda folder: example_view(
            folder,
            [*map(rows, range(4)), rows(4, tests_run=pa.nulls(400), tests_passed=pa.nulls(400))],
        ),
        "fires",
    ),
    Example(
        "the agent stops editing: tests do not run, since there is nothing to test",
        lambda folder: example_view(
            folder,
            [*map(rows, range(4)), rows(4, edited=False, edits=0, asked=True, tests_run=0, tests_passed=0)],
        ),
        "clear",
    ),
    Example("one customer's tools are down", _one_organisation, "clear"),
    Example(
        "too few cycles to compare with",
        lambda folder: example_view(folder, [rows(0), _down(0.8).set_column(
            rows(0).column_names.index("cycle"), "cycle", pa.array([1] * 400, pa.int32()))]),
        "not_assessable",
    ),
]  # fmt: skip


def outage_cycles(view: View) -> frozenset[int]:
    """Cycles up to the one in question with an outage; those that cannot be judged are not among them."""
    return frozenset(_jumps(view)[1])


def _jumps(view: View) -> tuple[Shares, dict[int, tuple[Jump, ...]]]:
    counted = shares(view, NAME, SIGNS, view.history)
    return counted, jumps(counted, view.reference, {sign: _margin(sign) for sign in SIGNS})


def _margin(sign: str) -> float:
    return LEARNT if sign == FAILED else MARGIN


@detector(NAME, examples=EXAMPLES)
def outage(view: View) -> Report:
    """One finding per sign that jumped in the cycle."""
    base = before_cycle(view)
    if view.cycle is None or len(base) < FEWEST_CYCLES:
        why = (
            f"{len(base)} other cycles to compare with, and it takes {FEWEST_CYCLES}"
            if view.cycle is not None
            else "logs from outside a loop have no cycles to compare with"
        )
        return Report(NAME, unassessed=(Unassessed("outage", why),))
    counted, found = _jumps(view)
    place = counted.cycles.index(view.cycle)
    places = [counted.cycles.index(cycle) for cycle in base]
    unassessed, smallest = [], {}
    for sign in SIGNS:
        x, n = counted.x[sign][:, 0], counted.n[sign][:, 0]
        seen = step(x[places], n[places], x[place], n[place], RATE / len(SIGNS))
        if seen is None:
            needed = f"it takes such rows in {FEWEST_CYCLES} cycles of the reference and in this one"
            unassessed.append(Unassessed(sign, f"no row where it could show ({SIGNS[sign].among}); {needed}"))
        else:
            smallest[sign] = max(seen.smallest, _margin(sign))
    findings = tuple(_finding(view, jump) for jump in found.get(view.cycle, ()))
    power = "; ".join(f"{sign}: a rise of {percent(rise)}" for sign, rise in smallest.items())
    return Report(NAME, findings, len(smallest), tuple(unassessed), power)


def _finding(view: View, jump: Jump) -> Finding:
    sign, at = SIGNS[jump.sign], jump.step
    found = Finding(
        detector=NAME,
        severity="warns",
        sentence=(
            f"outage: {jump.sign} {percent(at.before)} -> {percent(at.after)} at once{span(jump.slices)}, n={at.n:,}, "
            f"since cycle {jump.since}; {_beside(view)}; what drifted in this cycle says nothing on the policy"
        ),
        statistic=jump.sign,
        unit="share of the rows that could be hit",
        error_control=f"{RATE:g} false alarms per cycle over {len(SIGNS)} signs, Student t with overdispersion, "
        "Bonferroni; and the rise is abrupt and alike in all slices",
        since=jump.since,
        reading="measurement_fault",
        evidence=evidence(view, sign.holds, sign.among),
        detail={"hold": True, "slices": {name: list(pair) for name, pair in jump.slices.items()}},
    )
    return at.told(found, least=_margin(jump.sign))


def _beside(view: View) -> str:
    """What reward, outcome and edits did at the same time."""
    sql = "SELECT avg(reward) AS reward, avg(outcome) AS outcome, avg(edited::INT) AS edited FROM observations"
    before, after = view.query(sql, before_cycle(view)).to_pylist()[0], view.query(sql).to_pylist()[0]
    parts = [
        f"{name} {before[name]:.2f} -> {after[name]:.2f}"
        for name in ("reward", "outcome", "edited")
        if before[name] is not None and after[name] is not None
    ]
    return "at the same time " + ", ".join(parts) if parts else "reward and outcome are not known"
