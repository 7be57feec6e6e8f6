"""Interactions and feedback, sent in batches: each record ends in the lake or in quarantine, and the answer says which.

A batch is answered when what it holds is on the disk. Where no answer came, send the same batch again: interactions are
known by their id, reactions by their content, and nothing is stored twice.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from palomar.app.api.access import Ingests, Served
from palomar.app.api.errors import PlainJson, later
from palomar.app.api.limits import Limits, body_of, records_of, unpacked
from palomar.app.api.state import Api
from palomar.app.ingesting import note_refused
from palomar.data.ingest import ingest_records

router = APIRouter(tags=["ingest"])

INTERACTION = {
    "interaction_id": "run-7/000123",
    "user_id": "u-91",
    "checkpoint": "c12",
    "started_at": "2026-01-05T09:30:00Z",
    "steps": [
        {"author": "person", "role": "user", "text": "Make the tests pass."},
        {"author": "agent", "role": "assistant", "text": "Done: an off-by-one in the loop."},
    ],
}
FEEDBACK = {
    "interaction_id": "run-7/000123",
    "feedback": {"kind": "reverted", "at": "2026-01-05T10:00:00Z", "path": "sum.py"},
}
_ANSWER = {
    "records": 2,
    "stored": 1,
    "new": 1,
    "known": 0,
    "refused": [
        {
            "index": 1,
            "id": None,
            "kind": "schema",
            "problem": "Field required",
            "where": "steps",
            "content_id": "9c1185a5c5e9fc546128",
        }
    ],
}
_COUNT = {"type": "integer", "minimum": 0}
_TEXT_OR_NULL = {"anyOf": [{"type": "string"}, {"type": "null"}]}
_ANSWERS: dict[str, Any] = {
    "type": "object",
    "required": ["records", "stored", "new", "known", "refused"],
    "additionalProperties": False,
    "properties": {
        **dict.fromkeys(("records", "stored", "new", "known"), _COUNT),
        "refused": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["index", "id", "kind", "problem", "where", "content_id"],
                "properties": {
                    "index": _COUNT,
                    **{name: {"type": "string"} for name in ("kind", "problem", "content_id")},
                    **dict.fromkeys(("id", "where"), _TEXT_OR_NULL),
                },
            },
        },
    },
}


def record_schemas() -> dict[str, Any]:
    """JSON schemas of the records, by name, as the published description has them among its components."""
    text = (resources.files("palomar.data.sources") / "palomar.schema.json").read_text(encoding="utf-8")
    parts: dict[str, Any] = json.loads(text.replace("#/$defs/", "#/components/schemas/"))["$defs"]
    return parts


def _documented(example: dict[str, Any], record: str) -> dict[str, Any]:
    items = {"$ref": f"#/components/schemas/{record}"}
    array = {"type": "array", "items": items, "minItems": 1, "maxItems": Limits().records}
    content = {
        "application/json": {"schema": array, "example": [example]},
        "application/x-ndjson": {"schema": {"type": "string"}, "example": json.dumps(example) + "\n"},
    }
    return {"requestBody": {"required": True, "content": content}}


_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "What became of each record.",
        "content": {"application/json": {"schema": _ANSWERS, "example": _ANSWER}},
    }
}


@router.post("/v1/interactions", openapi_extra=_documented(INTERACTION, "Interaction"), responses=_RESPONSES)
async def interactions(request: Request, api: Served, token: Ingests) -> Response:
    """Take in interactions: an array or JSON Lines of Palomar's own format, gzip or not."""
    return await _take(request, api, token.name, "interactions")


@router.post("/v1/feedback", openapi_extra=_documented(FEEDBACK, "LateFeedback"), responses=_RESPONSES)
async def feedback(request: Request, api: Served, token: Ingests) -> Response:
    """Take in reactions that came after their interactions."""
    return await _take(request, api, token.name, "feedback")


async def _take(request: Request, api: Api, name: str, kind: Literal["interactions", "feedback"]) -> Response:
    with api.slot():
        body = await body_of(request, api.limits)
        headers = request.headers
        sent = _Sent(kind, body, headers.get("content-encoding"), headers.get("content-type"))
        return PlainJson(await run_in_threadpool(_stored, api, name, sent))


@dataclass(frozen=True)
class _Sent:
    """A batch as it came."""

    kind: Literal["interactions", "feedback"]
    body: bytes
    encoding: str | None
    content_type: str | None


def _stored(api: Api, name: str, sent: _Sent) -> dict[str, Any]:
    records = records_of(unpacked(sent.body, sent.encoding, api.limits), sent.content_type, api.limits)
    began = datetime.now(UTC)
    try:
        with api.writing:
            report = ingest_records(
                records, f"http:{name}", api.observatory.lake, kind=sent.kind, classify=api.classify
            )
    except OSError as exc:
        api.meter.pushed_back.labels("disk").inc()
        raise later("the disk does not take it now; send the batch again", code="disk", seconds=60) from exc
    finally:
        if api.deriving is not None:
            api.deriving.ask()
    note_refused(api.store, report.entries, at=began)
    new, known = report.new + report.feedback_new, report.known + report.feedback_known
    refused = [
        {
            "index": (entry.line or 1) - 1,
            "id": _id_of(records[(entry.line or 1) - 1]),
            "kind": entry.kind,
            "problem": entry.problem,
            "where": entry.field,
            "content_id": entry.content_id,
        }
        for entry in sorted(report.entries, key=lambda entry: entry.line or 0)
    ]
    for outcome, count in (("new", new), ("known", known), ("refused", len(refused))):
        api.meter.records.labels(sent.kind, outcome).inc(count)
    return {"records": len(records), "stored": new + known, "new": new, "known": known, "refused": refused}


def _id_of(raw: bytes) -> str | None:
    """The id that a refused record gives itself, where that can be read."""
    try:
        said = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    found = said.get("interaction_id") if isinstance(said, dict) else None
    return found if isinstance(found, str) else None
