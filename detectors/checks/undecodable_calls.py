"""Flags a flood of invalid tool calls of one kind that comes at once and everywhere: a parser, a template, a schema.

For: a change beside the policy (a tool parser, a chat template, a server's version) makes calls unreadable that were
fine the day before. The rates then say nothing on the policy. Its neighbours are drift and pressure, which are for a
policy that breaks calls since it pays.

Fires on a jump (see `palomar.detectors.checks._shares`) of `LEARNT` or more in the share of interactions with an
invalid call of one kind, which makes up at least `OF_ONE_KIND` of the rise of all kinds together. A dodge looks
different: it grows from cycle to cycle through all values between, where it pays first. So a cycle after one that was
already above the reference is no jump, however much it adds. (A margin of 10 points was not enough: in one recorded run
a hack went from 3 to 18 % within a cycle, and on from there.)

Errors: at most `RATE` false alarms per cycle over the five kinds (Student t, Bonferroni), and less, since the rise must
also be abrupt, alike in all slices, `LEARNT` large and of one kind.

Blind to: a flood of less than `LEARNT`, one that begins slowly or in one organisation alone, one in a log whose reader
does not say why a call is invalid, and one that comes while the policy has grown broken calls itself.

Source: verl-project/verl#7177.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

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
    before_cycle,
    evidence,
    jumps,
    percent,
    shares,
    span,
    step,
    told_apart,
)
from palomar.detectors.detector import Example, View, detector
from palomar.reward.conditions import INVALID_KINDS

NAME = "undecodable-calls"
OF_ONE_KIND = 0.8
"""Share of the rise over all kinds that the kind must make up."""
SIGNS: Mapping[str, Sign] = {
    kind: Sign(f"invalid_{kind} > 0", "tool_calls > 0 OR invalid_unparsed > 0") for kind in INVALID_KINDS
}


def _broken(share: float, cycle: int = 4, *, hard_only: bool = False) -> object:
    """A cycle in which a share of the calls cannot be read; ``hard_only``: those on requests likely to fail."""
    table = rows(cycle)
    hit = (np.asarray(table["tool_calls"]) > 0) & (np.random.default_rng(cycle).random(table.num_rows) < share)
    if hard_only:
        hit &= np.asarray(table["predicted_failure"]) > 0.6
    return rows(cycle, invalid_malformed=hit.astype(int))


def _learnt(folder: Path) -> View:
    """Broken calls grow on hard requests, cycle by cycle."""
    grown = [_broken(share, cycle, hard_only=True) for cycle, share in enumerate((0.3, 0.6, 0.9), start=4)]
    return example_view(folder, [*map(rows, range(4)), *grown], reference=range(4))


EXAMPLES = [
    Example("a parser changed", lambda folder: example_view(folder, [*map(rows, range(4)), _broken(0.7)]), "fires"),
    Example("the policy learns to dodge hard requests", _learnt, "clear"),
    Example(
        "the policy learns to dodge everywhere, quickly, but through the values between",
        lambda folder: example_view(
            folder,
            [*map(rows, range(4)), *(_broken(share, cycle) for cycle, share in enumerate((0.08, 0.25, 0.5), start=4))],
            reference=range(4),
        ),
        "clear",
    ),
    Example(
        "no tool was ever called",
        lambda folder: example_view(folder, [rows(cycle, tool_calls=0, invalid_malformed=0) for cycle in range(5)]),
        "not_assessable",
    ),
]


@detector(NAME, examples=EXAMPLES)
def undecodable_calls(view: View) -> Report:
    """One finding per kind that jumped."""
    base = before_cycle(view)
    if view.cycle is None or len(base) < FEWEST_CYCLES:
        why = f"it takes {FEWEST_CYCLES} other cycles to compare with; there are {len(base)}"
        return Report(NAME, unassessed=(Unassessed("flood of invalid calls", why),))
    counted = shares(view, NAME, SIGNS, view.history)
    place = counted.cycles.index(view.cycle)
    if not told_apart(counted, INVALID_KINDS[0], place):
        why = (
            "nothing tells interactions apart: it takes two organisations, kinds of work or bands of predicted failure "
            f"with {FEWEST_ROWS} interactions each that called a tool"
        )
        return Report(NAME, unassessed=(Unassessed("flood of invalid calls", why),))
    found = jumps(counted, view.reference, LEARNT, needs_slices=True).get(view.cycle, ())
    places = [counted.cycles.index(cycle) for cycle in base]
    steps = {
        kind: step(x[places, 0], counted.n[kind][places, 0], x[place, 0], counted.n[kind][place, 0], RATE / len(SIGNS))
        for kind, x in counted.x.items()
    }
    rise = sum(max(each.effect, 0.0) for each in steps.values() if each is not None)
    findings = tuple(_finding(view, jump) for jump in found if jump.step.effect >= OF_ONE_KIND * rise)
    smallest = max([LEARNT, *(each.smallest for each in steps.values() if each is not None)])
    power = f"a kind's rise of {percent(smallest)} of the interactions that called a tool"
    return Report(NAME, findings, sum(each is not None for each in steps.values()), power=power)


def _finding(view: View, jump: Jump) -> Finding:
    at, sign = jump.step, SIGNS[jump.sign]
    found = Finding(
        detector=NAME,
        severity="warns",
        sentence=(
            f"a flood of invalid calls of kind {jump.sign}: in {percent(at.before)} -> {percent(at.after)} of the "
            f"interactions that called a tool, at once{span(jump.slices)}, n={at.n:,}, since cycle {jump.since}; "
            "a parser, template or schema changed rather than the policy"
        ),
        statistic=f"invalid_{jump.sign}",
        unit="share of interactions that called a tool",
        error_control=f"{RATE:g} false alarms per cycle over {len(SIGNS)} kinds, Student t with overdispersion, "
        "Bonferroni; and the rise is abrupt, alike in all slices and of one kind",
        since=jump.since,
        reading="measurement_fault",
        evidence=evidence(view, sign.holds, sign.among),
        detail={"hold": True, "slices": {name: list(pair) for name, pair in jump.slices.items()}},
    )
    return at.told(found, least=LEARNT)
