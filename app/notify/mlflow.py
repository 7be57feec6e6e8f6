"""MLflow's model registry: what was promoted becomes a version, the alias moves to it, verdicts become tags.

The alias moves on a pass, and back where a champion is taken back; nothing else touches it. Doing the same again makes
no second version: a version carries the id of its checkpoint. MLflow is imported where a channel of this kind is used.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from palomar.app.notify.config import MlflowChannel
from palomar.app.notify.web import TIMEOUT_S, Failed
from palomar.data.errors import ConfigError
from palomar.data.store.records import Message

CHECKPOINT = "palomar.checkpoint"
"""Tag that says which checkpoint a version is."""
_PERMANENT = {"INVALID_PARAMETER_VALUE", "PERMISSION_DENIED", "UNAUTHENTICATED", "BAD_REQUEST", "ENDPOINT_NOT_FOUND"}
MOST_TAG = 4000


class Registry:
    """One registered model."""

    def __init__(self, channel: MlflowChannel, uri: str, home: Path) -> None:
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", f"{TIMEOUT_S:.0f}")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")  # messages are tried again by who sends them
        try:
            from mlflow.tracking import MlflowClient
        except ImportError as exc:
            raise ConfigError(
                f"notify.{channel.name}", None, None, "needs MLflow: pip install mlflow-skinny (docs/notify.md)"
            ) from exc
        self._channel = channel
        self._home = home.absolute()
        self._client: Any = MlflowClient(tracking_uri=uri, registry_uri=uri)

    def send(self, message: Message) -> None:
        """Raises Failed."""
        from mlflow.exceptions import MlflowException

        said = json.loads(message.body)
        try:
            if (back := said.get("rollback")) is not None:
                self._taken_back(back, said["sentence"])
            elif (decision := said.get("decision")) is not None:
                self._decided(decision)
        except MlflowException as exc:
            raise Failed(f"MLflow refuses: {exc.error_code}", worth_another=exc.error_code not in _PERMANENT) from exc
        except OSError as exc:
            raise Failed(f"MLflow cannot be reached: {type(exc).__name__}") from exc

    def _decided(self, decision: dict[str, Any]) -> None:
        checkpoint = decision["candidate"]
        promoted = decision["verdict"] == "promote"
        version = self._version(checkpoint) or (self._register(checkpoint) if promoted else None)
        if version is None:
            return  # what never passed has no version to put a tag on
        tags = {
            "palomar.verdict": decision["verdict"],
            "palomar.kind": decision["kind"] or "",
            "palomar.decision": decision["decision_id"],
            "palomar.policy": decision["policy"],
            "palomar.reasons": ", ".join(decision["reasons"]),
            "palomar.sentence": decision["sentence"],
            "palomar.decided_at": decision["decided_at"],
            "palomar.cycle": str(decision["cycle"]),
            "palomar.run": decision["run_id"],
        }
        # Tags first: whoever follows the alias finds them there.
        for key, value in tags.items():
            self._client.set_model_version_tag(self._channel.model, version, key, value[:MOST_TAG])
        if promoted:
            self._client.set_registered_model_alias(self._channel.model, self._channel.alias, version)

    def _taken_back(self, back: dict[str, Any], sentence: str) -> None:
        fallen = self._version(back["checkpoint"])
        if fallen is not None:
            self._client.set_model_version_tag(self._channel.model, fallen, "palomar.rolled_back", sentence[:MOST_TAG])
        version = self._version(back["to"]) or self._register(back["to"])
        self._client.set_registered_model_alias(self._channel.model, self._channel.alias, version)

    def _version(self, checkpoint: str) -> str | None:
        """Number of the version that is this checkpoint; None where there is none."""
        name = self._channel.model.replace("'", "")
        found = self._client.search_model_versions(f"name = '{name}' AND tags.`{CHECKPOINT}` = '{checkpoint}'")
        return min((each.version for each in found), key=int, default=None)

    def _register(self, checkpoint: str) -> str:
        from mlflow.exceptions import MlflowException

        try:
            self._client.create_registered_model(self._channel.model)
        except MlflowException as exc:
            if exc.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        source = self._channel.source or (self._home / "checkpoints" / "{checkpoint}").as_uri()
        made = self._client.create_model_version(
            self._channel.model,
            source.replace("{checkpoint}", checkpoint).replace("%7Bcheckpoint%7D", checkpoint),
            tags={CHECKPOINT: checkpoint},
            await_creation_for=0,
        )
        return str(made.version)
