"""The kept sample of a cycle."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from palomar.detectors.checks._examples import rows, view
from palomar.detectors.sampling import FOLDS, sample


def test_the_same_rows_come_whatever_order_they_were_stored_in(tmp_path: Path) -> None:
    whole = rows(0, 200)
    there = sample(view(tmp_path / "a", [whole]), 0, 50)
    turned = sample(view(tmp_path / "b", [whole.take(pa.array(range(199, -1, -1)))]), 0, 50)
    assert there["interaction_id"].to_pylist() == turned["interaction_id"].to_pylist()
    assert there.num_rows == 50


def test_no_user_is_in_two_folds(tmp_path: Path) -> None:
    table = sample(view(tmp_path, [rows(0, 300)]), 0)
    pairs = set(zip(table["user_id"].to_pylist(), table["fold"].to_pylist(), strict=True))
    assert len(pairs) == len({user for user, _ in pairs})
    assert {fold for _, fold in pairs} == set(range(FOLDS))


def test_a_replaced_cycle_is_sampled_anew(tmp_path: Path) -> None:
    seen = view(tmp_path, [rows(0, 40)])
    assert sample(seen, 0).num_rows == 40
    seen.lake.write_observations(rows(0, 30), 0)
    assert sample(seen, 0).num_rows == 30
