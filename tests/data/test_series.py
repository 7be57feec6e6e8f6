"""Aggregated series: what is exported is what is read, and what does not add up is refused with its row."""

import json
from pathlib import Path

import pytest

from palomar.data.config import parse_config, read_config
from palomar.data.errors import ConfigError, IngestError
from palomar.data.series import SERIES, SeriesMapping, read_series

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "hacking-by-epoch.series.yaml"
HEADER = "cycle,slice,metric,count,total,mean,sd,n\n"


def refusal(path: Path, mapping: SeriesMapping | None = None) -> str:
    with pytest.raises(IngestError) as caught:
        read_series(path, mapping)
    return str(caught.value).replace(str(path), path.name)


def csv_refusal(tmp_path: Path, *rows: str, header: str = HEADER) -> str:
    path = tmp_path / "t.csv"
    path.write_text(header + "\n".join(rows) + "\n")
    return refusal(path)


def test_counts_and_means_may_share_one_csv_and_empty_cells_are_unknown(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(HEADER + "2,all,edit_rate,30,64,,,\n1,all,edit_rate,32,64,,,\n1,rust,latency,,,3.5,,10\n")
    table = read_series(path)
    assert table.schema.equals(SERIES)
    assert table.to_pylist() == [
        {
            "cycle": 1,
            "slice": "all",
            "metric": "edit_rate",
            "count": 32,
            "total": 64,
            "mean": None,
            "sd": None,
            "n": None,
        },
        {
            "cycle": 2,
            "slice": "all",
            "metric": "edit_rate",
            "count": 30,
            "total": 64,
            "mean": None,
            "sd": None,
            "n": None,
        },
        {
            "cycle": 1,
            "slice": "rust",
            "metric": "latency",
            "count": None,
            "total": None,
            "mean": 3.5,
            "sd": None,
            "n": 10,
        },
    ]


def test_a_table_without_slices_has_one_slice(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps([{"cycle": 0, "metric": "asked", "count": 0, "total": 0}]))
    assert read_series(path).to_pylist()[0]["slice"] == "all"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1,all,m,-1,5,,,", "t.csv:2: count: expected a whole number from 0, got '-1'"),
        ("1,all,m,1.5,5,,,", "t.csv:2: count: expected a whole number from 0, got '1.5'"),
        ("1,all,m,6,5,,,", "t.csv:2: count: 6 is above the total, 5"),
        ("1,all,m,6,,,,", "t.csv:2: needs count and total, or mean, n and perhaps sd; has count"),
        ("1,all,m,,,,,", "t.csv:2: needs count and total, or mean, n and perhaps sd; has none of them"),
        ("1,all,m,1,5,0.2,,5", "t.csv:2: needs count and total, or mean, n and perhaps sd; has count, mean, n, total"),
        ("1,all,m,,,nan,,5", "t.csv:2: mean: expected a finite number, got 'nan'"),
        ("1,all,m,,,0.5,-1,5", "t.csv:2: sd: -1.0 is negative"),
        ("1,all,m,,,0.5,,0", "t.csv:2: n: a mean of 0 observations is no number; leave the row out"),
        ("x,all,m,1,5,,,", "t.csv:2: cycle: expected a finite number, got 'x'"),
        (",all,m,1,5,,,", "t.csv:2: cycle: is missing"),
        ("1,all,,1,5,,,", "t.csv:2: metric: is missing"),
        ("1,all,m,1", "t.csv:2: has not as many cells as the header"),
    ],
)
def test_a_row_that_does_not_add_up_is_refused_with_line_and_field(tmp_path: Path, row: str, message: str) -> None:
    assert csv_refusal(tmp_path, row) == message


def test_a_duplicate_names_the_row_it_repeats(tmp_path: Path) -> None:
    message = csv_refusal(tmp_path, "1,all,m,1,5,,,", "2,all,m,1,5,,,", "1,all,m,2,5,,,")
    assert message == "t.csv:4: cycle 1, all, m is already in row 2"


def test_an_empty_table_and_a_broken_file_are_said_to_be_so(tmp_path: Path) -> None:
    assert csv_refusal(tmp_path) == "t.csv: holds no rows"
    broken = tmp_path / "b.json"
    broken.write_text('[{"cycle": 1')
    assert refusal(broken).startswith("b.json: cannot be read as JSON")
    broken.write_text('{"cycle": 1}')
    assert refusal(broken) == "b.json: expected an array of records, got an object"


def test_a_mapping_sums_fields_and_slices_by_key(tmp_path: Path) -> None:
    mapping = SeriesMapping.model_validate(
        {
            "records": "runs.*",
            "slice": "*",
            "cycle": "step",
            "metrics": [{"name": "hacks", "count": ["a", "b"], "total": "n"}, {"name": "r", "mean": "avg", "n": "n"}],
        }
    )
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"runs": {"x": [{"step": 3, "a": 1, "b": 2, "n": 8, "avg": -1.5}]}}))
    rows = read_series(path, mapping).to_pylist()
    assert [(row["metric"], row["slice"], row["cycle"], row["count"], row["total"], row["mean"]) for row in rows] == [
        ("hacks", "x", 3, 3, 8, None),
        ("r", "x", 3, None, None, -1.5),
    ]
    path.write_text(json.dumps({"runs": {"x": [{"step": 3, "a": 1, "n": 8, "avg": 0}]}}))
    assert refusal(path, mapping) == "t.json:1: b: is missing"


def test_a_bad_mapping_is_refused_with_line_and_key() -> None:
    text = "cycle: epoch\nmetrics:\n  - name: a\n    count: x\n    mean: y\n"
    with pytest.raises(ConfigError, match=r"m\.yaml:3: metrics\[0\]: a metric is either count and total"):
        parse_config(text, SeriesMapping, source="m.yaml")
    with pytest.raises(ConfigError, match="slice '\\*' needs a '\\*' in records"):
        parse_config("cycle: e\nslice: '*'\nmetrics: [{name: a, mean: x, n: y}]\n", SeriesMapping, source="m.yaml")


def test_the_documented_example_reads_the_sample_of_five_environments_and_24_checkpoints(samples: Path) -> None:
    table = read_series(samples / "rl-rollouts-tinker" / "hacking_by_epoch.json", read_config(EXAMPLE, SeriesMapping))
    rows = table.to_pylist()
    hacking = [row for row in rows if row["metric"] == "hacking"]
    assert len(hacking) == 5 * 24
    assert len(rows) == 4 * 5 * 24
    assert {row["total"] for row in hacking} == {64}
    # The folder's SOURCE.md: SWEFixerEnv's reward is -1 throughout; at epoch 640 nothing succeeds anywhere.
    rewards = {row["mean"] for row in rows if row["metric"] == "average_reward" and row["slice"] == "SWEFixerEnv"}
    assert rewards == {-1.0}
    outage = [row["count"] for row in rows if row["metric"] == "successful" and row["cycle"] == 640]
    assert outage == [0] * 5
