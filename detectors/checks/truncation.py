"""Flags outputs that hit the length limit, and what fails with them.

For: an output that is cut has no answer, so format and test rewards collapse for a reason that no reward term names.
It may be the engine's limit that changed, or a policy that writes ever longer.

Fires when the share of truncated interactions is above the reference's significantly and by `MARGIN` or more. Where the
log does not say what was cut, a heap of answers at the largest length stands for it (an answer has no largest length by
nature). Where the rise is a jump of `LEARNT` (see `palomar.detectors.checks._shares`), it is the limit that changed and
reads as a measurement fault; else it is left open, since a policy may have grown longer answers.

Errors: at most `RATE` false alarms per cycle over both signs (Student t with overdispersion, Bonferroni).

Blind to: cut outputs in logs that say neither what was cut nor how long answers are, a rise below `MARGIN`, and a limit
that was too low from the first cycle on.

Source: huggingface/open-r1#363.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

NAME = "truncation"
MARGIN = 0.05
"""Smallest rise of the share that is told."""
FALLS = 0.5
"""Standard deviations by which a term must be lower on cut outputs to be named."""
SIGNS: Mapping[str, Sign] = {
    "truncated": Sign("truncated", "truncated IS NOT NULL"),
    "length at its largest": Sign(
        "tokens_out = (SELECT max(tokens_out) FROM observations)", "tokens_out IS NOT NULL AND truncated IS NULL"
    ),
}


def _formless(cycle: int) -> pa.Table:
    """A cycle in which no answer has the format, and none is cut."""
    columns: dict[str, Any] = {"term:format": np.zeros(400)}
    return rows(cycle, **columns)


def _cut(cycle: int, share: float, *, flagged: bool = True) -> pa.Table:
    """A cycle in which a share of the outputs is cut; their format is worth 0."""
    table = rows(cycle)
    cut = np.random.default_rng(cycle).random(table.num_rows) < share
    tokens = np.where(cut, 256, np.asarray(table["tokens_out"]))
    said = cut if flagged else pa.nulls(table.num_rows, pa.bool_())
    columns: dict[str, Any] = {"term:format": np.where(cut, 0.0, 1.0)}
    return rows(cycle, truncated=said, tokens_out=tokens, **columns)


EXAMPLES = [
    Example(
        "outputs hit the limit and lose their format",
        lambda folder: example_view(folder, [*(_cut(cycle, 0.01) for cycle in range(4)), _cut(4, 0.4)]),
        "fires",
    ),
    Example(
        "the log does not say what was cut",
        lambda folder: example_view(
            folder, [*(_cut(cycle, 0.0, flagged=False) for cycle in range(4)), _cut(4, 0.4, flagged=False)]
        ),
        "fires",
    ),
    Example(
        "the format falls, and nothing is cut",
        lambda folder: example_view(folder, [*(_cut(cycle, 0.01) for cycle in range(4)), _formless(4)]),
        "clear",
    ),
    Example(
        "answers grow longer below the limit",
        lambda folder: example_view(
            folder,
            [
                rows(
                    cycle,
                    tokens_out=(3 if cycle == 4 else 1) * np.asarray(rows(cycle)["tokens_out"]),
                    truncated=pa.nulls(400, pa.bool_()),
                )
                for cycle in range(5)
            ],
        ),
        "clear",
    ),
    Example(
        "nothing says how long answers are",
        lambda folder: example_view(
            folder,
            [rows(cycle, tokens_out=pa.nulls(400), truncated=pa.nulls(400, pa.bool_())) for cycle in range(5)],
        ),
        "not_assessable",
    ),
]


@detector(NAME, examples=EXAMPLES)
def truncation(view: View) -> Report:
    """One finding per sign that rose."""
    base = before_cycle(view)
    if view.cycle is None or len(base) < FEWEST_CYCLES:
        why = f"it takes {FEWEST_CYCLES} other cycles to compare with; there are {len(base)}"
        return Report(NAME, unassessed=(Unassessed("truncated outputs", why),))
    counted = shares(view, NAME, SIGNS, view.history)
    place = counted.cycles.index(view.cycle)
    places = [counted.cycles.index(cycle) for cycle in base]
    jumped = {jump.sign: jump for jump in jumps(counted, view.reference, LEARNT).get(view.cycle, ())}
    findings, unassessed, smallest = [], [], {}
    for sign in SIGNS:
        x, n = counted.x[sign][:, 0], counted.n[sign][:, 0]
        seen = step(x[places], n[places], x[place], n[place], RATE / len(SIGNS))
        if seen is None:
            unassessed.append(Unassessed(sign, f"no interaction with {SIGNS[sign].among} here or in the reference"))
            continue
        smallest[sign] = max(seen.smallest, MARGIN)
        if seen.effect >= MARGIN and seen.z >= seen.threshold:
            findings.append(_finding(view, sign, seen, jumped.get(sign), _since(x / np.maximum(n, 1), seen, view)))
    power = "; ".join(f"{sign}: a rise of {percent(rise)}" for sign, rise in smallest.items())
    return Report(NAME, tuple(findings), len(smallest), tuple(unassessed), power)


def _since(share: np.ndarray, seen: Step, view: View) -> int:
    """First of the cycles in a row that are above the reference by the margin."""
    since = view.history[-1]
    for cycle, each in zip(reversed(view.history), reversed(share), strict=True):
        if each - seen.before < MARGIN or (cycle in view.reference and cycle != view.cycle):
            break
        since = cycle
    return since


def _finding(view: View, sign: str, at: Step, jump: Jump | None, since: int) -> Finding:
    cut = SIGNS[sign]
    condition = f"({cut.holds}) AND ({cut.among})"
    falls = _falls(view, condition)
    how = f"at once{span(jump.slices)}: the limit changed" if jump else "not everywhere at once: answers may be longer"
    beside = f"; on these {', '.join(falls)}" if falls else ""
    found = Finding(
        detector=NAME,
        severity="warns",
        sentence=(
            f"outputs hit the length limit ({sign}): {percent(at.before)} -> {percent(at.after)}, n={at.n:,}, since "
            f"cycle {since}, {how}{beside}"
        ),
        statistic=sign,
        unit="share of interactions",
        error_control=f"{RATE:g} false alarms per cycle over {len(SIGNS)} signs, Student t with overdispersion, "
        "Bonferroni",
        since=since,
        reading=None if jump is None else "measurement_fault",
        evidence=evidence(view, cut.holds, cut.among),
        detail={"hold": jump is not None, "falls": list(falls)},
    )
    return at.told(found, least=MARGIN)


def _falls(view: View, cut: str) -> Sequence[str]:
    """Reward and terms that are much lower on cut outputs, in words."""
    names = ["reward", *sorted(name for name in view.columns() if name.startswith("term:"))]
    listed = ", ".join(
        f"avg({name}) FILTER ({cut}) AS a{index}, avg({name}) FILTER (NOT ({cut})) AS b{index}, "
        f"stddev_samp({name}) AS s{index}"
        for index, name in enumerate(map(quoted, names))
    )
    row = view.query(f"SELECT {listed} FROM observations").to_pylist()[0]
    found = []
    for index, name in enumerate(names):
        on, off, spread = (row[f"{letter}{index}"] for letter in "abs")
        if None not in (on, off, spread) and off - on >= FALLS * spread > 0:
            found.append(f"{name} is {on:.2f}, and {off:.2f} on others")
    return found
