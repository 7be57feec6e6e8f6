"""The pressure matrix and the incentive curves, for pages and commands; what takes longer is made in a thread and kept.

The matrix of a cycle that was checked takes milliseconds: its pressures lie beside the lake. The curves are regressions
on rows and take seconds; they are kept there as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from palomar.app.kept import Kept, Pending, state
from palomar.app.service import Observatory
from palomar.app.why import AHEAD, pooled
from palomar.data.derived import derived
from palomar.data.findings import Finding
from palomar.data.schema import content_id
from palomar.data.slices import ALL, BANDS
from palomar.detectors.matrix import Matrix, matrix
from palomar.detectors.runs import specs_of
from palomar.reward.behaviours import BEHAVIOURS, Logged
from palomar.reward.incentives import Estimate, incentives
from palomar.reward.spec import RewardSpec, version
from palomar.reward.versions import stored_spec

MOST_ROWS = 12_000
"""Rows that curves rest on at most, of the newest cycles: more take longer than anybody waits."""
_MADE = "1"
"""Raised when the code makes other curves of the same rows."""

_CURVES, _COUNTS = Kept(16), Kept(64)


@dataclass(frozen=True)
class Pressed:
    """The matrix of some cycles in a slice."""

    cycles: tuple[int, ...]
    matrix: Matrix | None
    """None: see ``why``."""
    why: str = ""
    checked: bool = False
    """Whether the newest of the cycles was checked, so that a drift would be known."""


def pressed(
    observatory: Observatory,
    run_id: str | None,
    cycle: int,
    slice_: str = ALL,
    *,
    last: int = 1,
    wait_s: float | None = None,
) -> Pressed | Pending:
    """The matrix of a cycle, or of the ``last`` ones up to it as one, with the readings of the cycle's check."""
    there = [each for each in observatory.lake.numbered("observations") if each <= cycle]
    if cycle not in there:
        return Pressed((), None, f"cycle {cycle} is not in the lake")
    cycles = tuple(there[-max(1, last) :])
    found = pooled(observatory, cycles, wait_s=wait_s)
    if isinstance(found, Pending):
        return found
    rows = [row for (_, where), kinds in found.items() if where == slice_ for row in kinds.values()]
    findings: list[Finding] = []
    checked = False
    if run_id is not None:
        findings = [each.finding for each in observatory.store.findings.read(run_id, cycle)]
        checked = observatory.store.verdicts.get(run_id, cycle) is not None
    if not rows:
        return Pressed(cycles, None, "no interaction of it was decided on, or the slice has no rows", checked)
    return Pressed(cycles, matrix(slice_, rows, findings), "", checked)


# -- incentive curves ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curves:
    """What behaviours are paid over the honest thing, and what users make of it, by predicted failure."""

    cycles: tuple[int, ...]
    reward: str | None
    """Version that they are paid by."""
    num_rows: int
    estimates: tuple[Estimate, ...]
    """By behaviour, band of predicted failure and ambiguity."""
    why: str = ""
    """Why there are none."""


def curves_of(observatory: Observatory, run_id: str, cycle: int, *, wait_s: float | None = None) -> Curves | Pending:
    """Incentive curves of the reward in force for a cycle, on rows of up to `AHEAD` cycles up to it.

    See `palomar.reward.incentives`. Made once for the same rows, specs and code, and kept beside the lake.
    """
    lake, store = observatory.lake, observatory.store
    there = [each for each in lake.numbered("observations") if each <= cycle]
    record = store.rewards.effective(run_id, cycle)
    if cycle not in there or record is None:
        why = "the run has no reward in force for it" if cycle in there else f"cycle {cycle} is not in the lake"
        return Curves((), None, 0, (), why)
    specs = specs_of(store)
    cycles = _fitting(observatory, there[-AHEAD:])
    key = (state(lake, ("observations", cycles)), cycles, record.version, tuple(sorted(specs)))
    spec = stored_spec(record)
    return _CURVES.ask(key, lambda: _curves(observatory, cycles, spec, specs), wait_s=wait_s)


def _fitting(observatory: Observatory, cycles: Sequence[int]) -> tuple[int, ...]:
    """The newest of the cycles, as many as have at most `MOST_ROWS` rows; one at least."""

    def count() -> dict[int, int]:
        counted = observatory.lake.query(
            "SELECT cycle, count(*) AS n FROM rows GROUP BY cycle",
            rows=observatory.lake.scan("observations", ["cycle"], cycles=list(cycles)),
        ).to_pylist()
        return {row["cycle"]: row["n"] for row in counted}

    rows = _COUNTS.ask(state(observatory.lake, ("observations", cycles)), count, wait_s=None)
    assert not isinstance(rows, Pending)
    chosen: list[int] = []
    for cycle in sorted(cycles, reverse=True):
        if chosen and sum(rows.get(each, 0) for each in (*chosen, cycle)) > MOST_ROWS:
            break
        chosen.append(cycle)
    return tuple(sorted(chosen))


_ESTIMATES = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in ("behaviour", "predicted_failure", "ambiguity", "status")),
        *(pa.field(name, pa.int64()) for name in ("n", "shown", "num_rows")),
        *(
            pa.field(f"{side}{part}", pa.float64())
            for side in ("reward", "outcome")
            for part in ("", "_low", "_high", "_z")
        ),
    ]
)


def _curves(
    observatory: Observatory, cycles: tuple[int, ...], spec: RewardSpec, specs: dict[str, RewardSpec]
) -> Curves:
    def make() -> pa.Table:
        found = incentives(Logged.read(observatory.lake, cycles), spec, specs)
        rows = [{**vars(each), "num_rows": found.num_rows} for each in found.estimates]
        return pa.Table.from_pylist(rows, schema=_ESTIMATES)

    made = content_id(_MADE, repr(BANDS), version(spec), *(each.name for each in BEHAVIOURS), *sorted(specs))
    table = derived(
        observatory.lake,
        "incentives",
        cycles[-1],
        version=content_id(made, *map(str, cycles)),
        parts=[("observations", cycles)],
        make=make,
    )
    rows = table.to_pylist()
    num_rows = rows[0].pop("num_rows") if rows else 0
    for row in rows[1:]:
        row.pop("num_rows")
    return Curves(cycles, version(spec), num_rows, tuple(Estimate(**row) for row in rows))
