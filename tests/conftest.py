"""Fixtures that several folders of tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared samples and known answers beside the project; skips, saying so, where it is absent."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"shared samples are absent ({folder.name}/ beside the project)")
    return folder


@pytest.fixture(scope="session")
def samples(shared: Path) -> Path:
    """Real trajectories, one folder per format."""
    return shared / "samples"


@pytest.fixture(scope="session")
def known_answers(shared: Path) -> Path:
    """Values from published work and other libraries, one JSON file per subject."""
    return shared / "known_answers"
