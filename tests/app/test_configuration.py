"""Settings as read: defaults marked, secrets masked, detectors read and never run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from palomar.app import configuration
from palomar.app.cli import app
from palomar.app.configuration import MASK, built_in, detectors_in, masked, settings_of
from palomar.app.configuration import configuration as configured
from palomar.app.service import Observatory
from palomar.app.settings import Settings
from palomar.data.store import Store
from palomar.detectors.detector import detectors


def test_of_a_run_that_set_nothing_all_is_default() -> None:
    found = list(settings_of(Settings().resolved()))
    assert len(found) > 20
    assert {each.default for each in found} == {True}


def test_what_was_set_is_marked_and_what_this_version_does_not_know_has_no_default() -> None:
    config = Settings(seed=7, baseline_cycles=3).resolved() | {"of_the_future": {"x": 1}}
    found = {each.name: each for each in settings_of(config)}
    assert {name for name, each in found.items() if each.default is False} == {"seed", "baseline_cycles"}
    assert found["seed"].value == "7"
    assert found["of_the_future.x"].default is None


def test_the_defaults_of_logs_are_those_of_logs() -> None:
    config = Settings.model_validate({"source": {"kind": "logs", "paths": ["a.jsonl"]}}).resolved()
    found = {each.name: each for each in settings_of(config)}
    assert found["source.format"].default is True
    assert (found["source.paths"].value, found["source.paths"].default) == ("[a.jsonl]", None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("store", "postgresql://ada:hunter2@db:5432/palomar"),
        ("store", "postgresql://db/palomar?user=ada&password=hunter2"),
        ("notify.slack_webhook", "https://hooks.example/hunter2"),
        ("auth.client_secret", "hunter2"),
        ("auth.api_key", "hunter2"),
        ("password", "hunter2"),
        ("channels", [{"url": "https://ada:hunter2@x/", "token": "hunter2"}]),
        ("deep", {"a": {"password": "hunter2"}}),
    ],
)
def test_secrets_are_masked_wherever_they_stand(name: str, value: object) -> None:
    assert "hunter2" not in masked(name, value)
    assert MASK in masked(name, value)


def test_what_is_no_secret_is_shown() -> None:
    assert masked("policy.max_tokens", 40) == "40"
    assert masked("auth.password", None) == "none"
    assert masked("store", "postgresql://db:5432/palomar") == "postgresql://db:5432/palomar"
    assert masked("advantage.scale", True) == "yes"


def test_every_detector_that_runs_is_listed_and_marked_as_the_registry_has_it() -> None:
    listed = {each.name: each.costly for each in built_in()}
    assert listed == {name: each.costly for name, each in detectors().items()}
    errors = {each.name: each.errors for each in built_in()}
    assert errors["drift"].startswith("5 alarms per 1000 unchanged cycles over all charts")
    assert "0.001 false alarms per look" in errors["idle-paid"]


def test_a_file_of_ones_own_is_read_and_never_run(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        '"""Looks at mine.\n\nErrors: none held.\n"""\nraise SystemExit("was run")\n'
        "@detector('mine', examples=[], costly=True)\ndef mine(view): ...\n",
        encoding="utf-8",
    )
    (found,) = detectors_in(path, str(path))
    assert (found.name, found.about, found.errors, found.costly) == ("mine", "Looks at mine.", "none held.", True)


def test_detectors_by_path_are_in_the_list_and_unreadable_ones_are_said(tmp_path: Path) -> None:
    own, broken = tmp_path / "own.py", tmp_path / "broken.py"
    own.write_text("@detector('mine', examples=[])\ndef mine(view): ...\n", encoding="utf-8")
    broken.write_text("def (", encoding="utf-8")
    config = {"extensions": [str(own), str(broken), str(tmp_path / "gone.py")]}
    with Store.open(None, tmp_path) as store:
        store.runs.add("demo", name="demo", seed=7, config=config)
    observatory = Observatory(tmp_path)
    found = configured(observatory, observatory.run())
    assert [each.source for each in found.detectors if each.source != "built in"] == [str(own)]
    assert [each.partition(":")[0] for each in found.unreadable] == [str(broken), str(tmp_path / "gone.py")]
    assert found.schema == observatory.store.health().schema
    sizes = {each.what: each.size for each in found.places}
    assert sizes["store"] == sum(path.stat().st_size for path in tmp_path.glob("palomar.db*"))


def test_sizes_are_the_sum_of_all_files(tmp_path: Path) -> None:
    for number in range(5):
        folder = tmp_path.joinpath(*["a"] * (number + 1))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "f").write_bytes(b"x" * 10**number)
    assert configuration._size(tmp_path) == 11_111


def test_the_command_prints_it_without_secrets_and_says_where_there_is_no_run(tmp_path: Path) -> None:
    run = CliRunner()
    empty = run.invoke(app, ["settings", "--json", "--home", str(tmp_path / "nothing")])
    assert empty.exit_code == 3
    assert json.loads(empty.stdout)["settings"] == []
    assert not (tmp_path / "nothing").exists()
    with Store.open(None, tmp_path) as store:
        store.runs.add("demo", name="demo", seed=7, config={"name": "demo", "token": "hunter2", "seed": 0})
    done = run.invoke(app, ["settings", "--changed", "--home", str(tmp_path)])
    assert done.exit_code == 0
    assert "hunter2" not in done.stdout
    assert "demo" in done.stdout
    assert "seed " not in done.stdout
