"""`palomar compact`, and the server that merges by itself."""

from __future__ import annotations

import json
import time
from pathlib import Path

from typer.testing import CliRunner

from palomar.app.cli import app
from palomar.app.ingesting import Deriving
from palomar.data.lake import Lake
from palomar.data.schema import Interaction, Step
from palomar.data.store import Store


def fill(lake: Lake, batches: int) -> list[str]:
    names = [f"i{number}" for number in range(batches)]
    for name in names:
        steps = (Step(author="person", role="user", text="please"),)
        lake.append_interactions(
            [Interaction(interaction_id=name, source="test", origin="x", cycle=None, steps=steps)], None
        )
    return names


def ids(lake: Lake) -> list[str]:
    return sorted(lake.scan("interactions", ["interaction_id"])["interaction_id"].to_pylist())


def test_the_command_merges_and_says_what_it_left(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    names = fill(lake, 5)
    done = CliRunner().invoke(app, ["compact", "--json", "--home", str(tmp_path)])
    assert done.exit_code == 0, done.output
    first = json.loads(done.stdout)["tables"][0]
    assert {name: first[name] for name in ("table", "partitions", "files_before", "files_after", "rows")} == {
        "table": "interactions", "partitions": 1, "files_before": 5, "files_after": 1, "rows": 5,
    }  # fmt: skip
    assert ids(lake) == names
    fill(lake, 7)
    lake.files("interactions")[0].write_bytes(b"no")
    done = CliRunner().invoke(app, ["compact", "--home", str(tmp_path)])
    assert done.exit_code == 1
    assert "left as it is: interactions/cycle=none" in done.output.replace("\n", " ")


def test_an_empty_home_has_nothing_to_merge(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["compact", "--home", str(tmp_path)]).exit_code == 0
    assert not (tmp_path / "lake").exists()


def test_the_server_merges_once_there_are_enough(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    store = Store.open(None, tmp_path)
    deriving = Deriving(lake, lambda: store, every_s=0.01, compact_at=6)
    deriving.start()
    names = fill(lake, 5)
    deriving.ask()
    until = time.monotonic() + 60
    while not lake.files("observations") and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(0.2)
    assert len(lake.files("interactions")) == 5  # not yet worth it
    names = fill(lake, 9)
    deriving.ask()
    while len(lake.files("interactions")) > 1 and time.monotonic() < until:
        time.sleep(0.02)
    deriving.end()
    assert len(lake.files("interactions")) == 1
    assert ids(lake) == names
    # Nothing in the merged file is newer than what was derived from it: the next server does not derive it again.
    assert deriving._newest("interactions") <= deriving._newest("observations")
    store.close()
