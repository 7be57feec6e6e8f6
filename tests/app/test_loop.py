"""A loop put together from settings: who decides, and what is refused before anything is trained."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from palomar.app.loop import open_loop
from palomar.app.settings import Settings
from palomar.data.errors import ConfigError
from palomar.trainer.config import EvaluationConfig
from palomar.trainer.gate import EvaluationGate
from palomar.trainer.gate_policy import read_policy
from palomar.trainer.promotion_gate import PromotionGate


def test_the_gate_is_the_one_that_the_settings_name(tmp_path: Path) -> None:
    with open_loop(Settings(), tmp_path / "simple") as loop:
        assert isinstance(loop.gate, EvaluationGate)
    with open_loop(Settings(gate="demo"), tmp_path / "demo") as loop:
        assert isinstance(loop.gate, PromotionGate)
        assert loop.gate.policy == read_policy("demo").policy.version


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"checks": "none"}, "checks are none"),
        ({"gate": "production"}, "asks for an experiment"),
        ({"evaluation": EvaluationConfig(suites=("other",))}, "evaluation.suites has none"),
    ],
)
def test_a_policy_that_would_hold_every_candidate_is_refused_at_once(
    tmp_path: Path, change: dict[str, Any], why: str
) -> None:
    settings = Settings(gate="demo").model_copy(update=change)
    with pytest.raises(ConfigError, match=f"{why}.*would hold every candidate"), open_loop(settings, tmp_path):
        pass


def test_a_channel_without_its_address_is_refused_before_the_run_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOWHERE", raising=False)
    settings = Settings.model_validate({"notify": [{"kind": "slack", "name": "team", "url_env": "NOWHERE"}]})
    said = "notify.team: the environment variable NOWHERE is not set"
    with pytest.raises(ConfigError, match=re.escape(said)), open_loop(settings, tmp_path / "home"):
        pass
    assert not (tmp_path / "home").exists()
