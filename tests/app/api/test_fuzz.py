"""Requests that the published description allows, and many that it does not: no 5xx, every answer as it is described.

The generator is schemathesis, on the API in this process with an admin's token.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.testclient import TestClient

from palomar.app.api.limits import Limits
from palomar.app.api.server import create_app
from palomar.app.api.state import Api
from palomar.app.service import Observatory
from palomar.data.findings import Finding
from palomar.data.store import Store
from palomar.detectors.incidents import open_incidents
from palomar.trainer.gate_policy import read_policy

pytestmark = pytest.mark.slow
QUICK = settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The application on a home with a run, a candidate, a blocked cycle and an incident; and a token for all of it."""
    home: Path = tmp_path_factory.mktemp("home")
    with Store.open(None, home) as store:
        store.runs.add("demo", name="demo", seed=7, config={})
        for name, cycle in (("base", None), ("c4", 4)):
            store.checkpoints.add("demo", name, cycle=cycle, parent_id=None, path=name, sha256="00")
        store.checkpoints.promote("demo", "base", replacing=None, since_cycle=0, reason="the base")
        for number in range(5):
            store.cycles.start("demo", number, checkpoint_id="base")
        found = Finding("behaviour", "blocks", "asks more", statistic="clarification_rate", effect=0.4, n=9)
        store.findings.write("demo", 4, [found])
        store.verdicts.write(
            "demo", 4, verdict="block", reasons=["reward_hack"], sentence="", findings={}, budget="",
            as_of=datetime(2026, 5, 1, tzinfo=UTC),
        )  # fmt: skip
        open_incidents(store, "demo", 4)
        _, secret = store.tokens.create("fuzz", ["admin"], days=1, actor="ada")
    limits = Limits(requests_per_s=1e6, free_bytes=0)
    application = create_app(Api(Observatory(home), read_policy("demo"), limits=limits))
    with TestClient(application, raise_server_exceptions=False):
        yield application, secret


@pytest.fixture(scope="module")
def described(served: Any) -> Any:
    schema = schemathesis.openapi.from_asgi("/openapi.json", served[0])
    schema.config.generation.update(modes=[GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
    return schema


KNOWN: dict[str, list[Any]] = {"candidate": ["c4", "base"], "number": [1, 4]}
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def test_no_request_breaks_the_server_and_every_answer_is_as_described(served: Any, described: Any) -> None:
    asked: dict[str, list[int]] = {}
    for found in described.get_all_operations():
        operation = found.ok()
        asked[operation.label] = []
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            _ask(operation, mode, served[1], asked[operation.label])
    assert len(asked) > 12
    # What was asked got past the door: each address did something with some of it.
    reached = {label: {200, 201, 404, 409} & set(codes) for label, codes in asked.items()}
    assert [label for label, codes in reached.items() if not codes] == []


def _ask(operation: Any, mode: GenerationMode, secret: str, codes: list[int]) -> None:
    try:
        strategy = operation.as_strategy(generation_mode=mode)

        @QUICK
        @given(strategy)
        def one(case: Any) -> None:
            # Every other time about something that is there.
            for name, known in KNOWN.items():
                if len(codes) % 2 and name in (case.path_parameters or {}):
                    case.path_parameters[name] = known[len(codes) % len(known)]
            answer = case.call(headers={"Authorization": f"Bearer {secret}"})
            codes.append(answer.status_code)
            case.validate_response(answer, checks=[*CHECKS, one_shape])

        one()
    except Unsatisfiable:  # nothing can be wrong with a request that takes nothing
        assert mode is GenerationMode.NEGATIVE


def one_shape(_: Any, answer: Any, __: Any) -> None:
    """Every refusal is one object that lets nothing out; every answer has its headers."""
    if answer.status_code >= 400:
        said = answer.json()
        if "error" in said or answer.request.path_url != "/v1/health":
            assert list(said) == ["error"]
            assert list(said["error"]) == ["code", "message", "where"]
            assert isinstance(said["error"]["message"], str)
    for leak in ("Traceback", "palomar.db", "site-packages"):
        assert leak not in answer.text
