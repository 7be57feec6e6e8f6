"""A cycle whose statistics, taken together, lie where no reference cycle lay: for surfacing what no chart is about.

Every statistic of the whole cycle is put on the scale of the reference (its spread there, never below its sampling
error), and the distance of the vector is taken in the metric of the reference's covariance, shrunk by Ledoit and Wolf
since there are few cycles and many statistics. The null is the same distance of each reference cycle from the rest.

Fires when the logarithm of the distance is beyond what these allow at `RATE` (`palomar.detectors.leave_one_out`), and
names the statistics that make most of it.

Blind to: one statistic that moved a little (drift is for that: a single one hides among dozens here); slices; what is
odd in few interactions only; anything that was odd in the reference already.
Source: robust Mahalanobis distances; Ledoit and Wolf 2004, "A well-conditioned estimator for large-dimensional
covariance matrices". Isolation forests on such vectors blocked 444 of 1000 unchanged cycles at their defaults.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from palomar.data.derived import derived
from palomar.data.findings import Finding, Report, Unassessed
from palomar.data.slices import ALL
from palomar.detectors.checks._examples import rows, view
from palomar.detectors.cube import cube
from palomar.detectors.detector import Example, View, detector
from palomar.detectors.leave_one_out import Beyond, beyond, unready
from palomar.detectors.measure import SERIES, series

Floats = npt.NDArray[np.float64]

NAME = "anomaly-cycle"
RATE = 5 / 1000
"""False alarms a cycle."""
FEWEST_STATISTICS = 5
NAMED = 4
_VERSION = "1"
_Z = 1.959964  # half-width of the series' 95 % intervals in standard errors


def _cycles(folder: Path, **last: Any) -> View:
    return view(folder, [rows(cycle, 300, seed=3, **(last if cycle == 8 else {})) for cycle in range(9)])


EXAMPLES = (
    Example(
        "half the outputs are cut off, and answers are short and fast",
        lambda folder: _cycles(
            folder,
            truncated=[index % 2 == 0 for index in range(300)],
            tokens_out=[10 + index % 20 for index in range(300)],
            latency_s=[1 + index % 7 / 5 for index in range(300)],
        ),
        "fires",
    ),
    Example("a cycle like the others", _cycles, "clear"),
    Example("one reference cycle", lambda folder: view(folder, [rows(0), rows(1)], reference=[0]), "not_assessable"),
)


@detector(NAME, examples=EXAMPLES)
def anomaly_cycle(seen: View) -> Report:
    """Compare the vector of the cycle's statistics with the reference's."""
    if why := unready(seen):
        return Report(NAME, unassessed=(Unassessed("everything", why),))
    assert seen.cycle is not None
    vectors = {cycle: _vector(seen, cycle) for cycle in (*seen.reference, seen.cycle)}
    names = sorted(set.intersection(*(set(vector) for vector in vectors.values())))
    left_out = tuple(
        Unassessed(name, "has no value in some reference cycle, or none in this one: it needs one in all")
        for name in sorted(set.union(*(set(vector) for vector in vectors.values())) - set(names))
    )
    if len(names) < FEWEST_STATISTICS:
        why = f"{len(names)} statistics have a value in all reference cycles; {FEWEST_STATISTICS} are needed"
        return Report(NAME, unassessed=(Unassessed("everything", why), *left_out))
    reference = np.array([[vectors[cycle][name] for name in names] for cycle in seen.reference])
    now = np.array([vectors[seen.cycle][name] for name in names])
    distance, parts = _distance(now, reference)
    usual = [_distance(each, np.delete(reference, index, axis=0))[0] for index, each in enumerate(reference)]
    result = beyond(float(np.log(distance)), np.log(usual).tolist(), RATE)
    power = (
        f"a distance above {np.exp(result.limit):.1f} would have been seen over {len(names)} statistics (reference "
        f"cycles among each other: {np.exp(result.usual):.1f})"
    )
    found = (_finding(seen, names, np.vstack([reference[:, :, 0], now[:, 0]]), parts, result),) if result.out else ()
    return Report(NAME, found, len(names), left_out, power)


def _finding(seen: View, names: Sequence[str], values: Floats, parts: Floats, result: Beyond) -> Finding:
    """``values``: each statistic's in the reference cycles and, last, in the cycle, (cycles, statistics)."""
    most = np.argsort(-parts)[:NAMED]
    level, now = values[:-1].mean(axis=0), values[-1]
    said = "; ".join(f"{names[index]} {level[index]:.4g} -> {now[index]:.4g}" for index in most)
    n = seen.query("SELECT count(*) AS n FROM observations")["n"][0].as_py()
    share = float(parts[most].sum() / parts.sum())
    return Finding(
        detector=NAME,
        severity="notes",
        sentence=(
            f"cycle {seen.cycle} as a whole lies {np.exp(result.value):.1f} from the reference, whose cycles lie "
            f"{np.exp(result.usual):.1f} from each other (limit {np.exp(result.limit):.1f}), n={n:,}; "
            f"{share:.0%} of it come from {said}"
        ),
        statistic="distance",
        unit="standard deviations, root mean square over statistics",
        before=float(np.exp(result.usual)),
        after=float(np.exp(result.value)),
        effect=float(np.exp(result.value) - np.exp(result.usual)),
        test=result.t,
        threshold=result.threshold,
        error_control=(
            f"{RATE * 1000:g} alarms per 1000 cycles: prediction limit of Student's t for the log distance over "
            f"{len(values) - 1} reference cycles, each against the others"
        ),
        n=n,
        smallest=float(np.exp(result.limit) - np.exp(result.usual)),
        detail={"parts": {names[index]: float(parts[index] / parts.sum()) for index in most}},
    )


def _vector(seen: View, cycle: int) -> dict[str, tuple[float, float]]:
    """Value and sampling error of each statistic of the whole cycle that has one."""
    table = derived(
        seen.lake,
        "statistics",
        cycle,
        version=_VERSION,
        parts=[("observations", [cycle])],
        make=lambda: _measured(seen, cycle),
    )
    return {
        row["statistic"]: (row["value"], (row["high"] - row["low"]) / (2 * _Z))
        for row in table.to_pylist()
        if row["value"] is not None and row["low"] is not None
    }


def _measured(seen: View, cycle: int) -> pa.Table:
    with seen.lake.connect(["observations"], [cycle]) as connection:
        measured = series(cube(connection))
    whole = [index for index, name in enumerate(measured["slice"].to_pylist()) if name == ALL]
    return measured.take(whole).cast(SERIES)


def _distance(one: Floats, others: Floats) -> tuple[float, Floats]:
    """Distance of a cycle (statistics, 2) from others (cycles, statistics, 2), and each statistic's part of its square.

    The last axis is value and sampling error.
    """
    from sklearn.covariance import ledoit_wolf

    level = others[:, :, 0].mean(axis=0)
    error = np.sqrt((others[:, :, 1] ** 2).mean(axis=0))
    spread = np.maximum(others[:, :, 0].std(axis=0, ddof=1), error)
    spread = np.maximum(spread, 1e-6 * np.maximum(np.abs(level), 1e-6))
    z_others = (others[:, :, 0] - level) / spread
    z = (one[:, 0] - level) / spread
    covariance, _ = ledoit_wolf(z_others, assume_centered=True)
    # The sampling floor leaves constant statistics without any spread among the others; they keep that of the floor.
    covariance[np.diag_indices_from(covariance)] = np.maximum(np.diag(covariance), 1.0)
    parts = z * np.linalg.solve(covariance, z)
    return float(np.sqrt(max(parts.sum(), 1e-12) / len(z))), parts
