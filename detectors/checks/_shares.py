"""Shares of a cycle's rows against those of its reference: what detectors of faults have in common.

A *sign* is a condition on rows of ``observations`` among those where another condition holds. Both counts are taken per
cycle and slice in one pass, and kept beside the lake, so that a new cycle pays for itself alone.

**Step.** Cycle against reference: z = (p - p0) / sqrt(f q (1 - q) (1/n + 1/N)), with q the pooled share of both and f
the overdispersion of the reference cycles (chi-squared over its degrees of freedom, at least 1), which stands for all
that makes cycles differ beyond the draw of rows. z is held against Student's t with the degrees of freedom of f, and up
to `PRIOR` more, the closer f is to 1: the floor at 1 is then worth something. With eight reference cycles the stated
rate holds at 500 rows and at a million; with three it is up to three times as high where cycles differ by a hundredth
and rows are a million. Where rows are so many that all is significant, the smallest effect that a detector asks for
decides.

**Jump.** A fault, as against what a policy learns or what users change:

- the whole cycle is beyond the reference by a margin, and significantly;
- *abruptly*: the last cycle without a fault was still at the reference (within `NEAR`, or two standard errors). What is
  learnt passes through the values between;
- *everywhere alike*: each organisation, kind of work and band of predicted failure rose by half of the rise of the
  whole or more (as far as its rows can tell). What is learnt starts where it pays, and what users change comes with
  some of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy import stats

from palomar.data.derived import derived
from palomar.data.findings import Evidence, Finding
from palomar.data.schema import content_id
from palomar.data.slices import ALL, BANDS
from palomar.detectors.detector import View
from palomar.detectors.measure import UNKNOWN

Floats = npt.NDArray[np.float64]

RATE = 0.001
"""Chance of a false alarm per cycle and detector, over all that it tests."""
FEWEST_CYCLES = 3
"""Reference cycles that a comparison needs."""
PRIOR = 4.0
"""Degrees of freedom that the floor of the overdispersion is worth where it holds."""
FEWEST_ROWS = 20
"""Rows below which a slice is not looked at."""
NEAR = 0.02
"""How far above the reference the cycle before a jump may be, besides two standard errors."""
LEARNT = 0.3
"""Rise within one cycle that is taken to be beyond what a policy learns, for what a policy can bring about itself. In
recorded training the fastest rise of broken calls from the reference's level was 15 points, by a hack."""
ALIKE = 0.5
"""Share of the whole's rise that each slice must show."""

DIMENSIONS = ("predicted_failure", "organisation", "work_kind")

_SHARES = pa.schema(
    [
        pa.field("slice", pa.string(), nullable=False),
        pa.field("sign", pa.string(), nullable=False),
        pa.field("x", pa.int64(), nullable=False),
        pa.field("n", pa.int64(), nullable=False),
    ]
)


@dataclass(frozen=True)
class Sign:
    """A share: rows where ``holds`` among those where ``among`` does. Both are SQL over ``observations``."""

    holds: str
    among: str = "true"
    needs: tuple[str, ...] = ()
    """Columns beyond those that every cycle has; without one there are no such rows."""


@dataclass(frozen=True)
class Shares:
    """Counts of every sign by cycle and slice; a missing entry is 0 of 0."""

    cycles: tuple[int | None, ...]
    slices: tuple[str, ...]
    """`ALL` first."""
    x: Mapping[str, Floats]
    """By sign: (cycles, slices)."""
    n: Mapping[str, Floats]


def shares(view: View, name: str, signs: Mapping[str, Sign], cycles: Sequence[int | None]) -> Shares:
    """Counts of the signs in some cycles; `name` is that of the kept tables."""
    parts = [_counted(view, name, signs, cycle) for cycle in cycles]
    found = dict.fromkeys([ALL, *(each for part in parts for each in part["slice"].to_pylist())])
    slices = (ALL, *sorted(each for each in found if each != ALL))
    x = {sign: np.zeros((len(cycles), len(slices))) for sign in signs}
    n = {sign: np.zeros((len(cycles), len(slices))) for sign in signs}
    place = {each: index for index, each in enumerate(slices)}
    for index, part in enumerate(parts):
        for slice_, sign, hits, rows in zip(*(part[column].to_pylist() for column in _SHARES.names), strict=True):
            x[sign][index, place[slice_]] = hits
            n[sign][index, place[slice_]] = rows
    return Shares(tuple(cycles), slices, x, n)


def exact_sum(sql: str) -> str:
    """A sum in SQL that is the same in any order of the rows: of multiples of 2^-20 (as in the cube)."""
    return f"sum(({sql}) + 6442450944.0 - 6442450944.0)"


def quoted(column: str) -> str:
    """A column's name in SQL."""
    return '"' + column.replace('"', '""') + '"'


def _counted(view: View, name: str, signs: Mapping[str, Sign], cycle: int | None) -> pa.Table:
    if any(sign.needs for sign in signs.values()):
        known = view.columns(cycles=[cycle])
        signs = {name: sign for name, sign in signs.items() if known.issuperset(sign.needs)}
    bands = {
        dimension: "CASE "
        + " ".join(f"WHEN {dimension} < {edge} THEN '{word}'" for edge, word in zip(*BANDS[dimension], strict=False))
        + f" WHEN {dimension} IS NOT NULL THEN '{BANDS[dimension][1][-1]}' END AS {dimension}"
        for dimension in DIMENSIONS
        if dimension in BANDS
    }
    counts = ", ".join(
        f"count(CASE WHEN ({sign.holds}) AND ({sign.among}) THEN 1 END) AS x{index}, "
        f"count(CASE WHEN {sign.among} THEN 1 END) AS n{index}"
        for index, sign in enumerate(signs.values())
    )
    sets = ", ".join(f"({dimension})" for dimension in DIMENSIONS)
    named = ", ".join(f"{dimension}, grouping({dimension}) AS g_{dimension}" for dimension in DIMENSIONS)
    replaced = f" REPLACE ({', '.join(bands.values())})" if bands else ""
    sql = f"SELECT {named}, {counts} FROM (SELECT *{replaced} FROM observations) GROUP BY GROUPING SETS ((), {sets})"

    def make() -> pa.Table:
        rows = []
        for row in view.query(sql, [cycle]).to_pylist():
            slice_ = next(
                (f"{each}={row[each] or UNKNOWN}" for each in DIMENSIONS if row[f"g_{each}"] == 0),
                ALL,
            )
            rows += [
                {"slice": slice_, "sign": sign, "x": row[f"x{index}"], "n": row[f"n{index}"]}
                for index, sign in enumerate(signs)
            ]
        return pa.Table.from_pylist(rows, schema=_SHARES)

    version = content_id("shares/1", sql, *signs)
    return derived(view.lake, name, cycle, version=version, parts=[("observations", [cycle])], make=make)


# -- steps -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """A share in a cycle against the reference."""

    before: float
    after: float
    low: float
    """Of the difference's interval, at the level of the test."""
    high: float
    z: float
    threshold: float
    n: int
    smallest: float
    """Difference that would have been seen in every second cycle."""

    @property
    def effect(self) -> float:
        """Share in the cycle less that of the reference."""
        return self.after - self.before

    def told(self, finding: Finding, *, least: float) -> Finding:
        """The finding with the step's figures in it; `least` is the smallest effect that its detector asks for."""
        return replace(
            finding,
            before=self.before,
            after=self.after,
            effect=self.effect,
            low=self.low,
            high=self.high,
            test=self.z,
            threshold=self.threshold,
            n=self.n,
            smallest=max(self.smallest, least),
        )


def step(x0: Floats, n0: Floats, x: float, n: float, alpha: float) -> Step | None:
    """A cycle's share x / n against reference cycles' (cycles,), two-sided at `alpha`; None where there is no data."""
    used = n0 > 0
    if used.sum() < FEWEST_CYCLES or n <= 0:
        return None
    hits, rows = x0[used], n0[used]
    before, after = float(hits.sum() / rows.sum()), x / n
    own = len(rows) - 1
    expected = rows * before
    apart = float(((hits - expected) ** 2 / (expected * (1 - before))).sum()) if 0 < before < 1 else 0.0
    inflated = max(1.0, apart / own)
    freedom = own + PRIOR / inflated**2
    pooled = (hits.sum() + x) / (rows.sum() + n)
    # Half a row stands where none or all were hit: no row was seen is not that there is none.
    pooled = float(np.clip(pooled, 0.5 / (rows.sum() + n), 1 - 0.5 / (rows.sum() + n)))
    error = float(np.sqrt(inflated * pooled * (1 - pooled) * (1 / n + 1 / rows.sum())))
    variance = after * (1 - after) / n + before * (1 - before) / rows.sum()
    spread = float(np.sqrt(inflated * max(variance, pooled * (1 - pooled) / (n + rows.sum()))))
    threshold = float(stats.t.isf(alpha / 2, freedom))
    difference = after - before
    return Step(
        before=before,
        after=float(after),
        low=difference - threshold * spread,
        high=difference + threshold * spread,
        z=difference / error,
        threshold=threshold,
        n=int(n),
        smallest=_smallest(before, n, float(rows.sum()), inflated, threshold),
    )


def _smallest(before: float, n: float, rows: float, inflated: float, threshold: float) -> float:
    """Rise at which the expected z is the threshold; by bisection, since the error grows with it."""
    low, high = 0.0, 1 - before
    for _ in range(40):
        middle = (low + high) / 2
        pooled = (before * rows + (before + middle) * n) / (rows + n)
        pooled = float(np.clip(pooled, 0.5 / (rows + n), 1 - 0.5 / (rows + n)))
        if middle >= threshold * np.sqrt(inflated * pooled * (1 - pooled) * (1 / n + 1 / rows)):
            high = middle
        else:
            low = middle
    return high


# -- jumps -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Jump:
    """A sign that jumped in a cycle, everywhere alike."""

    sign: str
    step: Step
    slices: Mapping[str, tuple[float, float]]
    """Share before and after in each slice that has rows enough, but `ALL`."""
    since: int
    """First of the cycles in a row that show it."""


def jumps(
    counted: Shares, reference: Sequence[int], margins: float | Mapping[str, float], *, needs_slices: bool = False
) -> dict[int, tuple[Jump, ...]]:
    """Cycles with a jump of at least `margins` (of all signs, or of each), and what jumped in them.

    Reference cycles are judged by the others. `needs_slices`: nothing is a jump where no slice has rows enough to tell
    that all rose alike.
    """
    cycles = [cycle for cycle in counted.cycles if cycle is not None]
    found: dict[int, list[Jump]] = {}
    for sign in counted.x:
        margin = margins[sign] if isinstance(margins, Mapping) else margins
        since: int | None = None
        near = None  # place of the last cycle without a jump
        for place, cycle in enumerate(cycles):
            jump = _jump(counted, sign, place, _base(counted, sign, place, reference, margin), near=near, margin=margin)
            if jump is not None and needs_slices and not jump.slices:
                jump = None
            if jump is None:
                near, since = place, None
                continue
            since = cycle if since is None else since
            found.setdefault(cycle, []).append(Jump(jump.sign, jump.step, jump.slices, since))
    return {cycle: tuple(found[cycle]) for cycle in sorted(found)}


def _base(counted: Shares, sign: str, place: int, reference: Sequence[int], margin: float) -> list[int]:
    """Places of the reference cycles that a cycle is compared with: not itself, and none that stands out itself."""
    places = [index for index, cycle in enumerate(counted.cycles) if cycle in set(reference) and index != place]
    x, n = counted.x[sign][places, 0], counted.n[sign][places, 0]
    with np.errstate(invalid="ignore"):
        share = np.where(n > 0, x / n, np.nan)
    if np.isnan(share).all():
        return []
    usual = float(np.nanmedian(share))
    return [index for index, each in zip(places, share, strict=True) if abs(each - usual) < margin]


def _jump(counted: Shares, sign: str, place: int, base: list[int], *, near: int | None, margin: float) -> Jump | None:
    x, n = counted.x[sign], counted.n[sign]
    total = n[base, 0].sum()
    if min(total, n[place, 0]) < FEWEST_ROWS or x[place, 0] / n[place, 0] - x[base, 0].sum() / total < margin:
        return None  # before the dearer test
    whole = step(x[base, 0], n[base, 0], x[place, 0], n[place, 0], RATE / len(counted.x))
    if whole is None or whole.z < whole.threshold:
        return None
    if near is not None and n[near, 0] > 0:
        last = x[near, 0] / n[near, 0]
        if last - whole.before > max(NEAR, 2 * float(np.sqrt(last * (1 - last) / n[near, 0]))):
            return None
    apart = told_apart(counted, sign, place)
    slices = {}
    for index, name in enumerate(counted.slices):
        rows, before_rows = n[place, index], n[base, index].sum()
        if name not in apart or min(rows, before_rows) < FEWEST_ROWS:
            continue
        after, before = x[place, index] / rows, x[base, index].sum() / before_rows
        middle = np.clip(after, 0.5 / rows, 1 - 0.5 / rows)
        slack = 2 * np.sqrt(middle * (1 - middle) / rows)
        if after - before + slack < ALIKE * whole.effect:
            return None
        slices[name] = (float(before), float(after))
    return Jump(sign, whole, slices, 0)


def told_apart(counted: Shares, sign: str, place: int) -> frozenset[str]:
    """Slices with rows enough in a cycle, of dimensions that have two or more of them; what is not known is none."""
    rows = zip(counted.slices, counted.n[sign][place], strict=True)
    enough = [name for name, n in rows if n >= FEWEST_ROWS and name != ALL and not name.endswith(f"={UNKNOWN}")]
    dimensions = [name.split("=")[0] for name in enough]
    return frozenset(name for name, each in zip(enough, dimensions, strict=True) if dimensions.count(each) >= 2)


# -- what a finding shows ----------------------------------------------------------------------------------------


def before_cycle(view: View) -> tuple[int, ...]:
    """The reference cycles that came before the one in question."""
    return tuple(cycle for cycle in view.reference if cycle != view.cycle and cycle in view.history)


def evidence(view: View, holds: str, among: str = "true") -> Evidence:
    """Five interactions that show it, two drawn at random from the cycle, and one that does not show it."""

    def ids(condition: str, count: int, seed: str) -> tuple[str, ...]:
        found = view.query(
            f"SELECT interaction_id FROM observations WHERE {condition} "
            f"ORDER BY hash(interaction_id || '{seed}'), interaction_id LIMIT {count}"
        )
        return tuple(found["interaction_id"].to_pylist())

    return Evidence(
        ids(f"({holds}) AND ({among})", 5, "a"), ids("true", 2, "b"), ids(f"NOT ({holds}) AND ({among})", 1, "c")
    )


def percent(share: float) -> str:
    """A share for people."""
    return f"{100 * share:.1f} %"


def span(slices: Mapping[str, tuple[float, float]]) -> str:
    """How alike slices rose, for people; empty without slices."""
    if not slices:
        return ""
    after = [each for _, each in slices.values()]
    return f", in each of {len(slices)} slices alike ({percent(min(after))} to {percent(max(after))})"
