"""The guides on the demo's data: every command of every guide, in its order, exits as the guide says.

A guide's ```sh blocks are one shell script; what a line exits with stands in its comment (``# exit 1 or 3``), 0 where
nothing does. The demo is trained once, for real.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)
EXIT = re.compile(r"#\s*exit ([0-9]+(?: or [0-9]+)*)\s*$")
PATIENCE_S = 1_200

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("guides")]


def lines(guide: str) -> list[str]:
    """The commands of a guide, in their order."""
    return [line for block in BLOCK.findall(guide) for line in block.splitlines() if line.strip()]


def script(commands: list[str]) -> str:
    """A script that stops, saying where, at the first command that exits otherwise than it is said to."""
    checked = []
    for line in commands:
        given = EXIT.search(line)
        right = " | ".join(given[1].split(" or ")) if given else "0"
        words = f"{line.partition('# exit')[0].strip()}".replace("'", "'\\''")
        checked.append(
            f"{line}\ncode=$?; case $code in {right}) ;; *) echo 'EXITED' $code 'AT: {words}' >&2; exit 99;; esac"
        )
    return "\n".join(checked)


def run(commands: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PALOMAR_")}
    return subprocess.run(
        ["bash", "-c", script(commands)],
        cwd=folder,
        env={**environment, "PATH": path, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the demo of the guides was run."""
    folder = tmp_path_factory.mktemp("demo")
    (begun,) = {lines(guide.read_text(encoding="utf-8"))[0] for guide in GUIDES}
    done = run([begun], folder)
    assert done.returncode == 0, done.stderr[-2_000:]
    return folder


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_every_command_of_a_guide_exits_as_it_says(guide: Path, demo: Path, tmp_path: Path) -> None:
    shutil.copytree(demo / ".palomar", tmp_path / ".palomar")
    commands = lines(guide.read_text(encoding="utf-8"))[1:]
    assert len(commands) >= 8
    done = run(commands, tmp_path)
    assert done.returncode == 0, f"{done.stderr[-2_000:]}\n{done.stdout[-2_000:]}"


def test_a_guide_that_promises_another_exit_code_is_found(tmp_path: Path) -> None:
    done = run(["palomar version", "palomar stats --home nothing   # exit 1"], tmp_path)
    assert done.returncode == 99
    assert "AT: palomar stats --home nothing" in done.stderr
    assert run(["palomar stats --home nothing   # exit 2 or 3"], tmp_path).returncode == 0
    assert run(["false"], tmp_path).returncode == 99
