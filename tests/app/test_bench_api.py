"""The benchmark of the API counts what was lost and doubled; else it could not fail."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

from palomar.app.bench import api
from palomar.data.ingest import ingest_records
from palomar.data.lake import Lake


def test_lost_doubled_and_foreign_records_are_counted(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    for number in (0, 1, 2):
        lines = gzip.decompress(api._batch(number)).splitlines()
        report = ingest_records(lines, "test", lake, kind="interactions")
        assert (report.new, report.quarantined) == (api.BATCH, {})

    def counted(sent: list[int]) -> list[float | None]:
        found = api._counted(tmp_path, sent, wrong=0)
        assert [each.met for each in found[:3]] == [each.value == 0 for each in found[:3]]
        return [each.value for each in found[:3]]

    assert counted([0, 1, 2]) == [0, 0, 0]
    assert counted([0, 1, 2, 3]) == [api.BATCH, 0, 0]
    assert counted([0, 1]) == [0, 0, api.BATCH]
    file = lake.files("interactions")[0]
    shutil.copy(file, file.with_name("again.parquet"))
    assert counted([0, 1, 2]) == [0, api.BATCH, 0]


def test_a_batch_is_the_same_each_time_it_is_made() -> None:
    first = json.loads(gzip.decompress(api._batch(3)).splitlines()[0])
    assert first == json.loads(gzip.decompress(api._batch(3)).splitlines()[0])
    assert first["interaction_id"] == "3/0"
