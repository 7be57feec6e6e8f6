"""Evidently's report on a cycle: its drift methods as a second opinion, and its page as an exhibit beside the verdict.

The only module that imports Evidently, and only when a report is asked for: that import takes seconds, and the report
draws plots whether they are wanted or not (docs/distribution.md has the cost). So `palomar report` makes it, and what
it found is kept beside the lake for the detector ``distribution``.

The method is the population stability index (PSI) for every column, drift at `THRESHOLD`. It is a distance, so more
rows do not make it alarm; Evidently's own choice for numbers (Wasserstein in standard deviations) reported drift in 14
of 30 unchanged cycles of a recorded run, PSI in none. Neither has a stated error rate: nothing here blocks or warns.
"""

from __future__ import annotations

import json
import os
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from palomar.data.derived import derived
from palomar.data.observations import BEHAVIOUR
from palomar.detectors.detector import View
from palomar.detectors.leave_one_out import unready
from palomar.detectors.sampling import sample

FOLDER = Path("reports") / "evidently"
"""Where in a home the pages and their summaries lie."""
METHOD = "psi"
THRESHOLD = 0.1
"""Of PSI; by the usual rule of thumb 0.1 is a small change and 0.25 a large one."""
MOST_REFERENCE_ROWS = 15_000
"""Over all reference cycles, evenly; with the 5,000 of the cycle's sample 20,000 in all."""
FEWEST_ROWS = 50
"""With a value, in the cycle and in the reference, for a column to be compared."""
FEW_VALUES = 5
"""A number with at most so many values in the reference is compared as a category, as Evidently does."""
_VERSION = f"1 {METHOD} {THRESHOLD}"
# The page needs nothing from elsewhere; this has the browser refuse it, whatever a later version of it may ask for.
_OFFLINE = (
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'self' 'unsafe-inline' 'unsafe-eval' data: "
    'blob:">'
)


@dataclass(frozen=True)
class Column:
    """One column in the cycle against the reference."""

    name: str
    method: str | None
    """Evidently's name of the method; None: not compared."""
    value: float | None
    """PSI, 0 or more; higher is more different."""
    threshold: float
    drifted: bool | None
    n: int
    """Rows of the cycle's sample that have a value."""
    why: str = ""
    """Why it was not compared."""


@dataclass(frozen=True)
class EvidentlyReport:
    """What was made, and what it says."""

    html: Path
    summary: Path
    """The same as JSON."""
    columns: tuple[Column, ...]
    n: int
    """Rows of the cycle that were looked at."""
    reference_n: int


def report(seen: View, folder: Path) -> EvidentlyReport:
    """Compare the cycle with the pooled reference; writes ``<cycle>.html`` and ``<cycle>.json`` into the folder.

    Raises ValueError where there is nothing to compare.
    """
    if why := unready(seen):
        raise ValueError(f"no Evidently report: {why}")
    each = max(MOST_REFERENCE_ROWS // len(seen.reference), 1)
    now = sample(seen, seen.cycle)
    before = pa.concat_tables([sample(seen, cycle, each) for cycle in seen.reference], promote_options="default")
    if not now.num_rows or not before.num_rows:
        raise ValueError(f"no Evidently report: {now.num_rows} interactions, {before.num_rows} in the reference")
    names, skipped = _comparable(now, before)
    if not names:
        raise ValueError(f"no Evidently report: no column has {FEWEST_ROWS} values in the cycle and the reference")
    folder.mkdir(parents=True, exist_ok=True)
    html, summary = folder / f"{seen.cycle}.html", folder / f"{seen.cycle}.json"
    found = _run(now.select(names), before.select(names), html)
    columns = tuple(sorted((*found, *skipped), key=lambda column: (-(column.value or 0), column.name)))
    made = EvidentlyReport(html, summary, columns, now.num_rows, before.num_rows)
    keep(seen, made)
    plain = asdict(made) | {"cycle": seen.cycle, "reference": list(seen.reference), "html": html.name}
    del plain["summary"]
    summary.write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    return made


def _comparable(now: pa.Table, before: pa.Table) -> tuple[list[str], list[Column]]:
    """Names of the columns to compare, and the others with the reason."""
    terms = [name for name in now.column_names if name.startswith("term:")]
    wanted = [*BEHAVIOUR.names, "reward", *terms, "outcome"]
    names, skipped = [], []
    for name in wanted:
        if name not in before.column_names or pa.types.is_string(now.schema.field(name).type):
            continue
        known = [table.num_rows - table[name].null_count for table in (now, before)]
        if min(known) >= FEWEST_ROWS:
            names.append(name)
        else:
            why = f"{known[0]} values in the cycle, {known[1]} in the reference; {FEWEST_ROWS} are needed"
            skipped.append(Column(name, None, None, THRESHOLD, None, known[0], why))
    return names, skipped


def _run(now: pa.Table, before: pa.Table, html: Path) -> list[Column]:
    os.environ.setdefault("DO_NOT_TRACK", "1")  # before the import, which reads it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of NumPy, about empty bins
        from evidently import DataDefinition, Dataset, Report
        from evidently.presets import DataDriftPreset

        numbers: list[str] = []
        categories: list[str] = []
        frames: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
        for name in now.column_names:
            is_number = not pa.types.is_boolean(now.schema.field(name).type) and (
                pc.count_distinct(before[name]).as_py() > FEW_VALUES
            )
            (numbers if is_number else categories).append(name)
            for frame, table in zip(frames, (now, before), strict=True):
                frame[name] = table[name].to_pandas() if is_number else table[name].cast(pa.string()).to_pandas()
        import pandas as pd

        definition = DataDefinition(numerical_columns=numbers, categorical_columns=categories)
        current, reference = (Dataset.from_pandas(pd.DataFrame(frame), definition) for frame in frames)
        preset = DataDriftPreset(cat_method=METHOD, num_method=METHOD, cat_threshold=THRESHOLD, num_threshold=THRESHOLD)
        run = Report([preset], include_tests=True).run(current, reference)
        run.save_html(str(html))
        metrics: list[dict[str, Any]] = run.dict()["metrics"]
    text = html.read_text(encoding="utf-8")
    html.write_text(text.replace("<head>", f"<head>{_OFFLINE}", 1), encoding="utf-8")
    columns = []
    for metric in metrics:
        config = metric["config"]
        if "column" in config:
            name, value = config["column"], float(metric["value"])
            n = now.num_rows - now[name].null_count
            columns.append(Column(name, config["method"], value, config["threshold"], value >= config["threshold"], n))
    return columns


# -- kept beside the lake ---------------------------------------------------------------------------------------------

_KEPT = pa.schema(
    [
        pa.field("name", pa.string()),
        pa.field("method", pa.string()),
        pa.field("value", pa.float64()),
        pa.field("threshold", pa.float64()),
        pa.field("drifted", pa.bool_()),
        pa.field("n", pa.int64()),
        pa.field("why", pa.string()),
        pa.field("html", pa.string()),
        pa.field("rows", pa.int64()),
        pa.field("reference_rows", pa.int64()),
    ]
)


class _NotKeptError(Exception):
    pass


def keep(seen: View, made: EvidentlyReport) -> None:
    """Keep what a report says beside the lake, until the cycle's or the reference's observations change."""
    more = {"html": str(made.html), "rows": made.n, "reference_rows": made.reference_n}
    rows = [asdict(column) | more for column in made.columns]
    _kept_table(seen, pa.Table.from_pylist(rows, _KEPT))


def kept(seen: View) -> EvidentlyReport | None:
    """What the last report on the cycle said; None where there is none, or it is about other rows."""
    try:
        rows = _kept_table(seen, None).to_pylist()
    except _NotKeptError:
        return None
    columns = tuple(Column(**{name: row[name] for name in Column.__dataclass_fields__}) for row in rows)
    html = Path(rows[0]["html"])
    return EvidentlyReport(html, html.with_suffix(".json"), columns, rows[0]["rows"], rows[0]["reference_rows"])


def _kept_table(seen: View, table: pa.Table | None) -> pa.Table:
    def make() -> pa.Table:
        if table is None:
            raise _NotKeptError
        return table

    return derived(
        seen.lake,
        "evidently",
        seen.cycle,
        version=f"{_VERSION} {list(seen.reference)}",
        parts=[("observations", [*seen.reference, seen.cycle])],
        make=make,
    )
