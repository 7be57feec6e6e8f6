"""Aggregated series: a table of counts or means per cycle, as teams export it from their trackers.

Many teams cannot hand out transcripts but can hand out `cycle, slice, metric, count, total` (or `mean, sd, n`). Drift
and sequential tests need no more than that. Such a table comes as CSV, as a JSON array of objects, or as any other
JSON through a small mapping (`SeriesMapping`, YAML; see docs/series.md). Nothing is guessed: a row that does not add
up is an `IngestError` with its row, since a wrong number in a short table is worth a person's look.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, model_validator

from palomar.data.errors import IngestError

SERIES = pa.schema(
    [
        pa.field("cycle", pa.int64(), nullable=False),
        pa.field("slice", pa.string(), nullable=False),  # "all" where the table has no slices
        pa.field("metric", pa.string(), nullable=False),
        pa.field("count", pa.int64()),  # with `total`: a share. Null for a mean.
        pa.field("total", pa.int64()),
        pa.field("mean", pa.float64()),  # with `n`: a mean. Null for a share.
        pa.field("sd", pa.float64()),  # standard deviation of one observation, not of the mean; null = not exported
        pa.field("n", pa.int64()),
    ]
)
"""One row per cycle, slice and metric: either `count, total` or `mean, sd, n`."""

WHOLE = "all"
"""Slice of a table that has none."""

Row = tuple[int, dict[str, Any]]
"""Row number as the person sees it (line of a CSV, 1-based record of a JSON) and its named values."""


class MetricMapping(BaseModel):
    """Where one metric stands in a foreign record. A list of fields is summed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    count: str | tuple[str, ...] | None = None
    total: str | tuple[str, ...] | None = None
    mean: str | None = None
    sd: str | None = None
    n: str | tuple[str, ...] | None = None

    @model_validator(mode="after")
    def _one_form(self) -> MetricMapping:
        share = self.count is not None and self.total is not None
        mean = self.mean is not None and self.n is not None
        mixed = (self.count or self.total) if mean else (self.mean or self.sd or self.n)
        if share == mean or mixed:
            raise ValueError("a metric is either count and total, or mean, n and perhaps sd")
        return self


class SeriesMapping(BaseModel):
    """How a foreign JSON becomes a series. Field names only; nothing in it is evaluated."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    records: str = ""
    """Dotted path to the records; ``*`` walks every key of an object (``runs.*``). Empty: the file is the array."""
    cycle: str
    """Field with the cycle (or epoch, step, checkpoint number)."""
    slice: str | None = None
    """Field with the slice; ``*`` = the key that ``*`` in ``records`` matched; None = one slice, ``all``."""
    metrics: tuple[MetricMapping, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _star_is_there(self) -> SeriesMapping:
        if self.slice == "*" and "*" not in self.records.split("."):
            raise ValueError("slice '*' needs a '*' in records")
        return self


def read_series(path: Path, mapping: SeriesMapping | None = None) -> pa.Table:
    """The series in a CSV or JSON file, with schema `SERIES`, ordered by metric, slice and cycle.

    Without a mapping the columns must be named ``cycle``, ``metric``, perhaps ``slice``, and ``count, total`` or
    ``mean, sd, n``; a table may hold both kinds, empty cells saying which is meant. Raises IngestError with the row for
    a value that is missing, not a number, negative where it may not be, a count above its total, or a duplicate.
    """
    source = str(path)
    rows = list(_csv_rows(path) if path.suffix.lower() == ".csv" else _json_rows(path, mapping))
    if not rows:
        raise IngestError(source, None, None, "holds no rows", kind="empty")
    if mapping is not None:
        rows = [(line, row) for line, record in rows for row in _mapped(record, mapping, source, line)]
    seen: dict[tuple[int, str, str], int] = {}
    records = []
    for line, row in rows:
        record = _checked(row, source, line)
        key = (record["cycle"], record["slice"], record["metric"])
        if key in seen:
            raise IngestError(source, line, None, f"cycle {key[0]}, {key[1]}, {key[2]} is already in row {seen[key]}")
        seen[key] = line
        records.append(record)
    records.sort(key=lambda record: (record["metric"], record["slice"], record["cycle"]))
    return pa.Table.from_pylist(records, schema=SERIES)


def _csv_rows(path: Path) -> Iterator[Row]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            for row in reader:
                if None in row or None in row.values():
                    raise IngestError(str(path), reader.line_num, None, "has not as many cells as the header")
                yield reader.line_num, {key: None if cell.strip() == "" else cell for key, cell in row.items()}
    except (OSError, UnicodeDecodeError, csv.Error) as exc:
        raise IngestError(str(path), None, None, f"cannot be read as CSV: {exc}") from exc


def _json_rows(path: Path, mapping: SeriesMapping | None) -> Iterator[Row]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as exc:
        raise IngestError(str(path), None, None, f"cannot be read as JSON: {exc}") from exc
    where = mapping.records if mapping else ""
    number = 0
    for star, records in _walk(value, where.split(".") if where else [], str(path)):
        if not isinstance(records, list):
            raise IngestError(str(path), None, where or None, f"expected an array of records, got {_kind(records)}")
        for record in records:
            number += 1
            if not isinstance(record, dict):
                raise IngestError(str(path), number, None, f"expected an object, got {_kind(record)}")
            yield number, record | {"*": star}


def _walk(value: Any, parts: list[str], source: str, star: str | None = None) -> Iterator[tuple[str | None, Any]]:
    """Every value at a dotted path, with the key its last ``*`` matched."""
    if not parts:
        yield star, value
        return
    if not isinstance(value, dict):
        raise IngestError(source, None, parts[0], f"expected an object, got {_kind(value)}")
    if parts[0] == "*":
        for key, inner in value.items():
            yield from _walk(inner, parts[1:], source, key)
    elif parts[0] in value:
        yield from _walk(value[parts[0]], parts[1:], source, star)
    else:
        raise IngestError(source, None, parts[0], "is not in the file")


def _mapped(record: Mapping[str, Any], mapping: SeriesMapping, source: str, line: int) -> Iterator[dict[str, Any]]:
    def value(field: str) -> Any:
        if field not in record:
            raise IngestError(source, line, field, "is missing")
        return record[field]

    def total(fields: str | tuple[str, ...] | None) -> Any:
        if fields is None or isinstance(fields, str):
            return None if fields is None else value(fields)
        return sum(_count(value(field), source, line, field) for field in fields)

    for metric in mapping.metrics:
        yield {
            "cycle": value(mapping.cycle),
            "slice": None if mapping.slice is None else value(mapping.slice),
            "metric": metric.name,
            "count": total(metric.count),
            "total": total(metric.total),
            "mean": None if metric.mean is None else value(metric.mean),
            "sd": None if metric.sd is None else value(metric.sd),
            "n": total(metric.n),
        }


def _checked(row: Mapping[str, Any], source: str, line: int) -> dict[str, Any]:
    """The row with proper types. Raises IngestError with field and row."""
    for name in ("cycle", "metric"):
        if row.get(name) is None:
            raise IngestError(source, line, name, "is missing")
    record: dict[str, Any] = dict.fromkeys(SERIES.names)
    record["cycle"] = _count(row["cycle"], source, line, "cycle")
    record["slice"] = WHOLE if row.get("slice") is None else str(row["slice"])
    record["metric"] = str(row["metric"])
    given = {name for name in ("count", "total", "mean", "sd", "n") if row.get(name) is not None}
    if {"count", "total"} <= given and not given & {"mean", "sd", "n"}:
        for name in ("count", "total"):
            record[name] = _count(row[name], source, line, name)
        if record["count"] > record["total"]:
            raise IngestError(source, line, "count", f"{record['count']} is above the total, {record['total']}")
    elif {"mean", "n"} <= given and not given & {"count", "total"}:
        record["mean"] = _number(row["mean"], source, line, "mean")
        record["n"] = _count(row["n"], source, line, "n")
        if record["n"] == 0:
            raise IngestError(source, line, "n", "a mean of 0 observations is no number; leave the row out")
        if "sd" in given:
            record["sd"] = _number(row["sd"], source, line, "sd")
            if record["sd"] < 0:
                raise IngestError(source, line, "sd", f"{record['sd']} is negative")
    else:
        has = f"has {', '.join(sorted(given))}" if given else "has none of them"
        raise IngestError(source, line, None, f"needs count and total, or mean, n and perhaps sd; {has}")
    return record


def _number(value: Any, source: str, line: int, field: str) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise IngestError(source, line, field, f"expected a finite number, got {value!r}")
    return number


def _count(value: Any, source: str, line: int, field: str) -> int:
    number = _number(value, source, line, field)
    if number < 0 or number != int(number):
        raise IngestError(source, line, field, f"expected a whole number from 0, got {value!r}")
    return int(number)


def _kind(value: Any) -> str:
    return {dict: "an object", list: "an array", str: "text", type(None): "null"}.get(type(value), "a number")
