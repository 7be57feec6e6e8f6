"""Which columns Evidently calls drifted: a second opinion on distributions, with its page as an exhibit.

Reads what `palomar report` kept; Evidently itself is not run, since it costs seconds. Fires when a column's population
stability index against the pooled reference is at least 0.1. Never more than a note: **no error rate is stated for
it**, and it knows nothing of how much cycles differ anyway (that is what ``drift`` is for).

Blind to: changes of some per cent in a rate, of a slice, of what goes together, and of values that are not known more
or less often. Rewards and outcomes of the newest cycle are those known by then.
Source: Evidently 0.7, `DataDriftPreset`; methods and thresholds in `palomar.detectors.evidently_report`.
"""

from __future__ import annotations

from pathlib import Path

from palomar.data.findings import Finding, Report, Unassessed
from palomar.detectors.checks._examples import rows, view
from palomar.detectors.detector import Example, View, detector
from palomar.detectors.evidently_report import METHOD, THRESHOLD, Column, EvidentlyReport, keep, kept
from palomar.detectors.leave_one_out import unready

NAME = "distribution"
NAMED = 6


def _reported(folder: Path, value: float) -> View:
    seen = view(folder, [rows(cycle, 100) for cycle in range(9)])
    column = Column("latency_s", METHOD, value, THRESHOLD, value >= THRESHOLD, 100)
    keep(seen, EvidentlyReport(folder / "8.html", folder / "8.json", (column,), 100, 800))
    return seen


EXAMPLES = (
    Example("Evidently calls the latency drifted", lambda folder: _reported(folder, 0.4), "fires"),
    Example("below its threshold", lambda folder: _reported(folder, 0.08), "clear"),
    Example(
        "no report was made", lambda folder: view(folder, [rows(cycle, 100) for cycle in range(9)]), "not_assessable"
    ),
)


@detector(NAME, examples=EXAMPLES)
def distribution(seen: View) -> Report:
    """Tell what the kept Evidently report says."""
    why = unready(seen)
    made = None if why else kept(seen)
    if made is None:
        why = why or f"no Evidently report on these rows; run: palomar report --cycle {seen.cycle}"
        return Report(NAME, unassessed=(Unassessed("everything", why),))
    compared = [column for column in made.columns if column.value is not None]
    drifted = [column for column in compared if column.drifted]
    unassessed = tuple(Unassessed(column.name, column.why) for column in made.columns if column.value is None)
    power = f"a column is drifted from a PSI of {THRESHOLD:g}, whatever n is; no rate of false alarms goes with that"
    found = (_finding(made, compared, drifted),) if drifted else ()
    return Report(NAME, found, len(compared), unassessed, power)


def _finding(made: EvidentlyReport, compared: list[Column], drifted: list[Column]) -> Finding:
    named = ", ".join(f"{column.name} {column.value:.2f}" for column in drifted[:NAMED])
    more = f" and {len(drifted) - NAMED} more" if len(drifted) > NAMED else ""
    return Finding(
        detector=NAME,
        severity="notes",
        sentence=(
            f"Evidently calls {len(drifted)} of {len(compared)} columns drifted against the pooled reference (PSI from "
            f"{THRESHOLD:g}): {named}{more}; n={made.n:,} against {made.reference_n:,}; a second opinion: its "
            f"threshold has no stated error rate"
        ),
        statistic="columns",
        unit="share of columns",
        before=0.0,
        after=len(drifted) / len(compared),
        effect=len(drifted) / len(compared),
        test=drifted[0].value,
        threshold=THRESHOLD,
        error_control="none: a fixed threshold of a distance, without a stated error rate",
        n=made.n,
        detail={"psi": {column.name: column.value for column in compared}, "html": str(made.html)},
    )
