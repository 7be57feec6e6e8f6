"""Tools that look at rows: Evidently's preset, River's detectors, reward-lens' e-process, rewardguard's monitor."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from palomar.app.bench.others import BINARY, ROWS, Comparator, Floats, Recording
from palomar.data.derived import derived
from palomar.data.lake import Lake
from palomar.data.schema import content_id

DELTAS = (0.5, 0.1, 0.02, 0.002, 2e-4, 2e-5, 1e-6, 1e-8, 1e-10, 1e-13, 1e-16, 1e-20, 1e-26, 1e-34, 1e-44)
"""Of ADWIN, the default among them; a smaller one is stricter."""

THRESHOLDS = (10.0, 25.0, 50.0, 75.0, 100.0, 150.0, 200.0, 300.0, 400.0, 600.0, 800.0, 1200.0, 1600.0, 2400.0, 4800.0)
"""Of Page-Hinkley, the default among them."""

LONGEST = 100.0
"""Lines of a function beyond which it counts as that long: the e-process needs a range known beforehand."""


def _drifts(recording: Recording) -> Floats:
    """Evidently's drift score of every column over its threshold, (monitored cycles, columns); 1 is its own bar."""
    table = [_drift(recording, cycle) for cycle in recording.monitored]
    return np.asarray(table, dtype=np.float64)


def _drift(recording: Recording, cycle: int) -> list[float]:
    """Kept beside the lake: a report takes a second."""

    def make() -> pa.Table:
        os.environ.setdefault("DO_NOT_TRACK", "1")  # before the import, which reads it
        from evidently import Report
        from evidently.presets import DataDriftPreset

        before = pd.concat([recording.rows[each] for each in recording.reference], ignore_index=True)
        current = recording.rows[cycle].reset_index(drop=True)
        empty = [name for name in ROWS if before[name].notna().sum() == 0 or current[name].notna().sum() == 0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            said = Report([DataDriftPreset()]).run(current.drop(columns=empty), before.drop(columns=empty)).dict()
        found: dict[str, float] = {}
        for metric in said["metrics"]:
            config = metric["config"]
            if "column" in config:
                value, bar = float(metric["value"]), float(config.get("threshold") or 0.1)
                found[config["column"]] = value / bar if "p_value" not in config["method"] else bar / max(value, 1e-300)
        return pa.table({"column": list(found), "score": list(found.values())})

    lake = Lake(recording.home / "lake")
    parts = [("observations", recording.reference), ("observations", [cycle])]
    version = content_id("evidently/1", *ROWS.values(), str(recording.reference))
    kept = derived(lake, "compared_evidently", cycle, version=version, parts=parts, make=make)  # type: ignore[arg-type]
    scores = dict(zip(kept["column"].to_pylist(), kept["score"].to_pylist(), strict=True))
    return [scores.get(name, 0.0) for name in ROWS]


def _any_column(recording: Recording) -> Floats:
    return np.asarray(_drifts(recording).max(axis=1), dtype=np.float64)


def _half_of_columns(recording: Recording) -> Floats:
    """The score that half of the columns reach: the preset's verdict on the data set, 1 at its bar."""
    drifts = np.sort(_drifts(recording), axis=1)[:, ::-1]
    return np.asarray(drifts[:, (drifts.shape[1] + 1) // 2 - 1], dtype=np.float64)


def _river(
    recording: Recording, settings: Sequence[float], make: Callable[[float], Any], strict: Sequence[float]
) -> Floats:
    """The strictest setting at which any column's detector fires within a cycle; each reads all rows in their order."""
    found = np.full(len(recording.monitored), -np.inf)
    rows = recording.scaled_rows
    for setting, level in zip(settings, strict, strict=True):
        detectors = [make(setting) for _ in ROWS]
        for cycle in (*recording.reference, *recording.monitored):
            fired = False
            for detector, column in zip(detectors, rows[cycle].T, strict=True):
                for value in column[np.isfinite(column)].tolist():
                    detector.update(value)
                    fired |= detector.drift_detected
            if fired and cycle not in recording.reference:
                place = recording.monitored.index(cycle)
                found[place] = max(found[place], level)
    return np.where(np.isfinite(found), found, min(strict) - 1)


def _adwin(recording: Recording) -> Floats:
    from river.drift import ADWIN

    return _river(recording, DELTAS, lambda delta: ADWIN(delta=delta), [-float(np.log10(each)) for each in DELTAS])


def _page_hinkley(recording: Recording) -> Floats:
    from river.drift import PageHinkley

    return _river(recording, THRESHOLDS, lambda bar: PageHinkley(threshold=bar), THRESHOLDS)


def _e_process(recording: Recording) -> Floats:
    """Largest capital so far of any stream's bet that its mean exceeds the reference's, as a logarithm to base 10."""
    from reward_lens.monitor.eprocess import eprocess

    largest = np.zeros(len(recording.monitored))
    for stream in (*BINARY, "not_edited", "short_functions"):
        by_cycle = {cycle: _bounded(rows, stream) for cycle, rows in recording.rows.items()}
        mean = float(np.concatenate([by_cycle[cycle] for cycle in recording.reference]).mean())
        if not 0 < mean < 1:
            continue
        watched = [by_cycle[cycle] for cycle in recording.monitored]
        trace = eprocess(np.concatenate(watched).tolist(), mean)
        ends = np.cumsum([len(each) for each in watched])
        reached = np.concatenate([[1.0], trace.running_max])[ends]
        largest = np.maximum(largest, np.log10(np.maximum(reached, 1.0)))
    return largest


def _bounded(rows: pd.DataFrame, stream: str) -> Floats:
    """A stream within 0 and 1, of which more is worse."""
    if stream == "not_edited":
        values = 1.0 - rows["edited"]
    elif stream == "short_functions":
        values = 1.0 - rows["function_lines"].dropna().clip(upper=LONGEST) / LONGEST
    else:
        values = rows[stream]
    return np.asarray(values.dropna(), dtype=np.float64)


def _balance(recording: Recording) -> Floats:
    """Largest distance of any term's share of all that is paid from its share in the reference, in points."""
    import rewardguard

    names, paid = tuple(recording.weights), recording.paid
    totals = np.abs(np.concatenate([paid[cycle] for cycle in recording.reference])).sum(axis=0)
    monitor = rewardguard.Monitor(expected=dict(zip(names, totals.tolist(), strict=True)))
    found = np.zeros(len(recording.monitored))
    for place, cycle in enumerate(recording.monitored):
        for row in paid[cycle].tolist():
            monitor.step(dict(zip(names, row, strict=True)))
        report = monitor.check().imbalance_report
        found[place] = max(each["abs_difference"] for each in report.values())
    return found


COMPARATORS = (
    Comparator(
        "Evidently DataDriftPreset, data set", "evidently", "evidently", _half_of_columns, 1.0,
        "rows of the cycle against those of the reference",
    ),
    Comparator(
        "Evidently DataDriftPreset, any column", "evidently", "evidently", _any_column, 1.0,
        "rows of the cycle against those of the reference",
    ),
    Comparator(
        "River ADWIN", "river", "river", _adwin, -float(np.log10(0.002)), "every row, scaled, a detector a column"
    ),
    Comparator("River PageHinkley", "river", "river", _page_hinkley, 50.0, "every row, scaled, a detector a column"),
    Comparator(
        "reward-lens e-process", "reward-lens", "reward_lens", _e_process, float(np.log10(20)),
        "rows within 0..1 of which more is worse, against the reference's mean",
    ),
    Comparator(
        "rewardguard Monitor", "rewardguard", "rewardguard", _balance, 5.0 + 1e-6,
        "what each term paid by row, against its share in the reference",
    ),
)  # fmt: skip
