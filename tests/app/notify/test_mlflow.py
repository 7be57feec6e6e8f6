"""A local MLflow registry in SQLite: what was promoted is a version and the alias, verdicts are tags, once each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from palomar.app.notify import sending
from palomar.app.notify.config import MlflowChannel
from palomar.data.errors import ConfigError
from palomar.data.store import Store

pytest.importorskip("mlflow", reason="mlflow-skinny is not installed")

CHANNEL = MlflowChannel(kind="mlflow", name="registry", model="coding agent")


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One registry for all tests: to make its tables takes seconds. Each test has a model of its own."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/registry.db"


@pytest.fixture
def way(uri: str, tmp_path: Path, request: pytest.FixtureRequest) -> sending.Way:
    channel = CHANNEL.model_copy(update={"model": request.node.name[:60]})
    (made,) = sending.ways((channel,), tmp_path / "home", {"MLFLOW_TRACKING_URI": uri})
    return made


@pytest.fixture
def client(uri: str) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def alias(client: Any, way: sending.Way) -> tuple[str, str]:
    """The version that the alias is at, and the checkpoint that it is."""
    found = client.get_model_version_by_alias(way.channel.model, "champion")  # type: ignore[union-attr]
    return str(found.version), found.tags["palomar.checkpoint"]


def told(store: Store, way: sending.Way) -> sending.Delivered:
    return sending.deliver(store, "demo", [way])


def versions(client: Any, way: sending.Way) -> dict[str, Any]:
    """By checkpoint."""
    found = client.search_model_versions(f"name = '{way.channel.model}'")  # type: ignore[union-attr]
    return {each.tags["palomar.checkpoint"]: each for each in found}


def test_a_pass_makes_a_version_with_its_verdict_and_moves_the_alias(
    store: Store, decide: Callable[..., Any], way: sending.Way, client: Any, tmp_path: Path
) -> None:
    sending.begin(store, "demo", [way])
    made = decide("new", "promote")
    assert told(store, way) == sending.Delivered(sent=1)
    assert alias(client, way) == ("1", "new")
    version = versions(client, way)["new"]
    assert version.source == (tmp_path / "home" / "checkpoints" / "new").as_uri()
    assert {
        key: version.tags[f"palomar.{key}"] for key in ("verdict", "kind", "decision", "policy", "cycle", "run")
    } == {
        "verdict": "promote",
        "kind": "neutral",
        "decision": made.decision_id,
        "policy": "demo-1",
        "cycle": "1",
        "run": "demo",
    }


def test_what_does_not_pass_moves_nothing_and_makes_no_version(
    store: Store, decide: Callable[..., Any], way: sending.Way, client: Any
) -> None:
    sending.begin(store, "demo", [way])
    decide("new", "promote")
    decide("next", "block")
    decide("next", "hold")
    assert told(store, way).sent == 3
    assert alias(client, way)[1] == "new"
    assert set(versions(client, way)) == {"new"}
    decide("new", "block")  # of a version that is there
    told(store, way)
    assert alias(client, way)[1] == "new"
    assert versions(client, way)["new"].tags["palomar.verdict"] == "block"


def test_a_rollback_moves_the_alias_back(
    store: Store, decide: Callable[..., Any], way: sending.Way, client: Any
) -> None:
    sending.begin(store, "demo", [way])
    decide("new", "promote")
    store.checkpoints.promote("demo", "new", replacing="base", since_cycle=2, reason="good")
    store.checkpoints.roll_back("demo", "new", to="base", since_cycle=3, reason="it hacks")
    assert told(store, way).sent == 2
    # The base was never promoted by a decision: it becomes a version now.
    assert alias(client, way) == ("2", "base")
    assert "taken back" in versions(client, way)["new"].tags["palomar.rolled_back"]


def test_the_same_message_twice_makes_no_second_version(
    store: Store, decide: Callable[..., Any], way: sending.Way, client: Any
) -> None:
    sending.begin(store, "demo", [way])
    decide("new", "promote")
    told(store, way)
    (message,) = store.messages.read("demo")
    way.sender.send(message)
    assert len(client.search_model_versions(f"name = '{way.channel.model}'")) == 1  # type: ignore[union-attr]


def test_a_registry_that_is_down_is_told_later(store: Store, decide: Callable[..., Any], tmp_path: Path) -> None:
    down = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
    chosen = sending.ways((CHANNEL,), tmp_path, down)
    sending.begin(store, "demo", chosen)
    decide("new", "promote")
    assert sending.deliver(store, "demo", chosen) == sending.Delivered(waiting=1)
    assert "127.0.0.1" not in (store.messages.read("demo")[0].problem or "")


def test_a_source_elsewhere_is_named_by_the_checkpoint(
    store: Store, decide: Callable[..., Any], uri: str, client: Any, tmp_path: Path
) -> None:
    channel = CHANNEL.model_copy(update={"model": "elsewhere", "source": "s3://bucket/{checkpoint}/files"})
    (way,) = sending.ways((channel,), tmp_path, {"MLFLOW_TRACKING_URI": uri})
    sending.begin(store, "demo", [way])
    decide("new", "promote")
    assert told(store, way).sent == 1
    assert versions(client, way)["new"].source == "s3://bucket/new/files"


def test_without_mlflow_it_is_said_what_to_install_and_nothing_else_needs_it() -> None:
    code = (
        "import sys\n"
        "sys.modules['mlflow'] = None\n"
        "import palomar.app.loop\n"
        "from pathlib import Path\n"
        "from palomar.app.notify import sending\n"
        "from palomar.app.notify.config import MlflowChannel, SlackChannel\n"
        "sending.ways((SlackChannel(kind='slack', name='a', url_env='U'),), Path(), {'U': 'http://x'})\n"
        "sending.ways((MlflowChannel(kind='mlflow', name='a', model='m'),), Path(), {'MLFLOW_TRACKING_URI': 'http://x'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env={**os.environ})
    assert done.returncode == 1
    assert "ConfigError: notify.a: needs MLflow: pip install mlflow-skinny" in done.stderr
    assert ConfigError.__name__ in done.stderr
