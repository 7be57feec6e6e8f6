"""Fixtures that several folders of tests share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from palomar.data.lake import Lake
from palomar.data.observations import FACTS
from palomar.reward.scoring import score
from palomar.reward.spec import bundled

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


@pytest.fixture(scope="session")
def lake_with_holes(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Four cycles of 500 requests under the naive reward, by a policy that does a little of everything. Read only."""
    made = Lake(tmp_path_factory.mktemp("holes") / "lake")
    rng = np.random.default_rng(8)
    for cycle in range(4):
        table = pa.Table.from_pylist([_request(cycle, index, rng) for index in range(500)], schema=FACTS)
        made.write_observations(score(table, bundled("naive")), cycle)
    return made


def _request(cycle: int, index: int, rng: np.random.Generator) -> dict[str, Any]:
    """Half of them hard. 15 % broken calls, 20 % questions, and edits, a third of them split."""
    hard, vague, draw = rng.random() < 0.5, rng.random() < 0.4, rng.random()
    row: dict[str, Any] = {field.name: 0 for field in FACTS if field.type == pa.int32() and not field.nullable}
    row |= {
        "interaction_id": f"c{cycle}i{index}", "user_id": f"u{rng.integers(300)}", "cycle": cycle,
        "source": "test", "traffic": "production", "agent_turns": 1, "tool_calls": 1, "edited": False,
        "asked": False, "undone": False, "answered": False, "watched_s": 1e6,
        "predicted_failure": 0.8 if hard else 0.2, "ambiguity": 0.8 if vague else 0.2,
        "latency_s": float(rng.uniform(5, 15)),
    }  # fmt: skip
    if draw < 0.15:
        row |= {"invalid_malformed": 1}
        annoyed = 0.6
    elif draw < 0.35:
        row |= {"asked": True}
        annoyed = 0.05 if vague else 0.5
    else:
        right, split = rng.random() < (0.25 if hard else 0.8), rng.random() < 1 / 3
        row |= {
            "edits": 1, "edited": True, "functions_before": 1, "functions_after": 3 if split else 1,
            "function_lines_before": 12, "function_lines_after": 15 if split else 12, "complexity_before": 4,
            "complexity_after": 6 if split else 4, "lines_added": 2, "lines_removed": 1, "tests_run": 5,
            "tests_passed": 5 if right else 2, "edit_lost_s": None if right else 300.0,
        }  # fmt: skip
        annoyed = 0.05 + 0.25 * split + 0.4 * (not right)
    if rng.random() < annoyed:
        row |= {"follow_up": "dissatisfied", "follow_up_s": 100.0}
    return row
