from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from palomar.data.lake import Lake
from palomar.detectors.channels import Sums, channels
from palomar.detectors.checks._examples import rows
from palomar.detectors.drift import drift, findings
from palomar.detectors.lake_sums import OTHERS, SLICES, charted, metric_of, sums_of_lake
from palomar.detectors.statistics import STATISTICS


def lake_of(folder: Path, cycles: list[pa.Table]) -> Lake:
    lake = Lake(folder)
    for cycle, table in enumerate(cycles):
        lake.write_observations(table, cycle)
    return lake


def some(cycle: int, n: int = 300) -> pa.Table:
    """Rows with holes: unknown bands, organisations and tokens, and reactions still waited for."""
    rng = np.random.default_rng([9, cycle])
    table = rows(cycle, n, invalid_schema=rng.integers(0, 3, n), agent_turns=rng.integers(0, 4, n))
    for name, share in (("ambiguity", 0.1), ("predicted_failure", 0.1), ("organisation", 0.1), ("tokens_out", 0.2)):
        column = table[name].combine_chunks()
        table = table.set_column(
            table.schema.get_field_index(name), name, pc.if_else(pa.array(rng.random(n) < share), None, column)
        )
    immature = rng.random(n) < 0.3
    for name, value in (("outcome_status", "immature"), ("outcome", None)):
        column = table[name].combine_chunks()
        table = table.set_column(
            table.schema.get_field_index(name),
            name,
            pc.if_else(pa.array(immature), pa.scalar(value, column.type), column),
        )
    return table


def total(sums: Sums, metric: str, role: str, slice_: str | None = None) -> np.ndarray:
    cells = list(sums.slices[slice_]) if slice_ else slice(None)
    index = [each.name for each in sums.metrics].index(metric)
    return getattr(sums, role)[:, :, cells, index].sum(axis=(1, 2))


def test_sums_are_those_of_the_rows_and_what_is_not_known_counts_nowhere(tmp_path: Path) -> None:
    tables = [some(cycle) for cycle in range(2)]
    sums = sums_of_lake(lake_of(tmp_path, tables), [0, 1], reference=1)
    for cycle, table in enumerate(tables):
        column = {name: np.asarray(table[name].to_numpy(zero_copy_only=False)) for name in table.column_names}
        hard = np.nan_to_num(column["predicted_failure"].astype(float), nan=0.0) >= 0.6
        assert total(sums, "edit_rate", "n")[cycle] == 300
        assert total(sums, "edit_rate", "x", "predicted_failure=high")[cycle] == (column["edited"] & hard).sum()

        invalid = column["invalid_schema"] + column["invalid_malformed"]
        turns = column["agent_turns"].astype(float)
        for role, expected in {
            "x": invalid,
            "xx": invalid**2,
            "y": turns,
            "yy": turns**2,
            "xy": invalid * turns,
        }.items():
            assert total(sums, "invalid_call_rate", role)[cycle] == expected.sum()

        tokens = column["tokens_out"].astype(float)
        known = ~np.isnan(tokens)
        assert total(sums, "tokens_out_mean", "n")[cycle] == known.sum() < 300
        logs = np.round(np.log1p(tokens[known]) * 2**10) / 2**10  # as they are summed: to a multiple of 2^-10
        assert total(sums, "tokens_out_mean", "x")[cycle] == logs.sum()
        difficulty = np.floor(np.nan_to_num(column["predicted_failure"].astype(float)) * 5) / 5 + 0.1
        difficulty[np.isnan(column["predicted_failure"].astype(float))] = 0
        assert total(sums, "tokens_out_mean", "xd")[cycle] == pytest.approx((logs * difficulty[known]).sum(), abs=1e-9)
        assert total(sums, "outcome_mean", "unripe")[cycle] == (column["outcome_status"] == "immature").sum()


def test_all_that_is_charted_is_measured_as_everywhere_else(tmp_path: Path) -> None:
    """Level of every mean channel against the series of `palomar.detectors.measure`, in the reference itself."""
    from palomar.detectors.measure import measure

    lake = lake_of(tmp_path, [rows(cycle, 400) for cycle in range(2)])
    measured = {point.statistic: point for point in measure(lake, [0]) if point.slice == "all"}
    # With one reference cycle its mix is its own, so nothing is re-weighted in it.
    series = channels(sums_of_lake(lake, [0, 1], reference=1), 1)
    for index, (kind, name) in enumerate(zip(series.kind, series.metric, strict=True)):
        if kind == "mean" and metric_of(STATISTICS[name]).scale == "plain":
            expected = measured[name].value
            assert (None if np.isnan(series.value[0, index]) else series.value[0, index]) == (
                None if expected is None else pytest.approx(expected, abs=1e-5)
            ), name


def test_a_ratio_is_the_ratio_itself_however_far_it_has_moved(tmp_path: Path) -> None:
    first = rows(0, 200, organisation="one", ambiguity=0.1, predicted_failure=0.1)
    moved = rows(1, 200, organisation="one", ambiguity=0.1, predicted_failure=0.1, agent_turns=7, invalid_schema=5)
    series = channels(sums_of_lake(lake_of(tmp_path, [first, moved]), [0, 1], reference=1), 1)
    index = list(zip(series.kind, series.metric, strict=True)).index(("mean", "invalid_call_rate"))
    broken = np.asarray(moved["invalid_malformed"]).sum() + 5 * 200
    assert series.value[1, index] == pytest.approx(broken / (7 * 200))


def test_a_change_of_who_asks_moves_no_level(tmp_path: Path) -> None:
    """Every stratum of the second cycle behaves exactly as before; hard and vague requests of one firm come thrice."""
    first = rows(0, 400)
    share = pc.and_(pc.greater_equal(first["predicted_failure"], 0.6), pc.equal(first["organisation"], "north"))
    more = first.filter(share)
    second = pa.concat_tables([first, more, more])
    second = second.set_column(second.schema.get_field_index("cycle"), "cycle", pa.array([1] * len(second), pa.int32()))
    second = second.set_column(0, "interaction_id", pa.array([f"x{index}" for index in range(len(second))]))
    series = channels(sums_of_lake(lake_of(tmp_path, [first, second]), [0, 1], reference=1), 1)
    # Rates and means; what a ratio is per (turns, functions) is put on the same mix, so ratios as well.
    levels = np.array([kind in ("mean", "slice") for kind in series.kind])
    assert series.value[1, levels] == pytest.approx(series.value[0, levels], abs=1e-9, nan_ok=True)


def test_a_cycle_is_counted_once_and_again_when_its_rows_change(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, [rows(cycle) for cycle in range(3)])
    sums_of_lake(lake, [0, 1, 2], reference=2)
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "derived" / "drift").rglob("*.parquet")}
    assert len(kept) == 3
    lake.write_observations(rows(2, edited=True), 2)
    again = sums_of_lake(lake, [0, 1, 2], reference=2)
    assert total(again, "edit_rate", "x")[2] == 400
    now = {path: path.stat().st_mtime_ns for path in (tmp_path / "derived" / "drift").rglob("*.parquet")}
    assert len(now) == 3
    assert len(kept.items() & now.items()) == 2


def test_small_organisations_are_pooled_and_a_large_new_one_is_told_apart(tmp_path: Path) -> None:
    def named(cycle: int, names: list[str]) -> pa.Table:
        return rows(cycle, 400, organisation=names)

    small = [f"tiny{index}" for index in range(200)]
    old = named(0, ["big"] * 200 + small)
    new = named(1, ["big"] * 150 + ["new"] * 50 + small)
    sums = sums_of_lake(lake_of(tmp_path, [old, new]), [0, 1], reference=1)
    assert sums.organisations == tuple(sorted([OTHERS, "big", "new"]))
    series = channels(sums, 1)
    assert series.unplaced == pytest.approx([0.0, 50 / 400], abs=0.01)


def test_logs_without_bands_are_charted_over_everything_and_without_associations(tmp_path: Path) -> None:
    unknown = [rows(cycle, 400, predicted_failure=pa.nulls(400), ambiguity=pa.nulls(400)) for cycle in range(10)]
    result = drift(channels(sums_of_lake(lake_of(tmp_path, unknown), range(10), 8), 8), 8)
    said = {(each.kind, each.metric, each.slice): each for each in findings(result)}
    assert said["mean", "edit_rate", "all"].status == "steady"
    slices = {each.slice for each in findings(result) if each.kind == "slice" and each.status != "not_assessable"}
    assert not slices
    assert said["association", "edit_rate", "all"].status == "not_assessable"


def test_what_is_charted_is_behaviour_in_every_slice_and_the_rest_over_everything(tmp_path: Path) -> None:
    series = channels(sums_of_lake(lake_of(tmp_path, [rows(cycle) for cycle in range(3)]), range(3), 2), 2)
    watched = {metric for metric, behaviour in zip(series.metric, series.behaviour, strict=True) if not behaviour}
    assert {"reward_mean", "outcome_mean", "dissatisfied_rate"} <= watched
    assert ("mean", "training_reward_mean", "all") in series.aliases  # all are included here
    assert {each for metric, each in zip(series.metric, series.slice, strict=True) if metric in watched} == {"all"}
    assert {each for metric, each in zip(series.metric, series.slice, strict=True) if metric == "edit_rate"} == {
        "all",
        *SLICES,
    }
    assert len({item.name for item in charted()}) == len(charted())
