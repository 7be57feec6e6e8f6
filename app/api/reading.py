"""What the store says of cycles, verdicts, findings, decisions and incidents; and how the server is."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi.responses import PlainTextResponse, Response

from palomar import __version__
from palomar.app.api.access import Administers, Reads, Served
from palomar.app.api.errors import PlainJson, Refusal
from palomar.app.api.state import Api
from palomar.app.gate_exports import plain_decision
from palomar.app.incidents import plain_view, view
from palomar.data.errors import StoreError
from palomar.data.store.incidents import ACTIVE
from palomar.data.store.records import IncidentState, Run

router = APIRouter()

Number = Annotated[int, Path(ge=0, lt=2**31)]
Newest = Annotated[int, Query(ge=1, le=1000)]


_HEALTH: dict[str, Any] = {
    "type": "object",
    "required": ["status", "version", "store", "lake"],
    "properties": {"status": {"enum": ["ok", "unavailable"]}, "version": {"type": "string"}},
}
_STANDS: dict[int | str, dict[str, Any]] = {
    status: {"description": words, "content": {"application/json": {"schema": _HEALTH}}}
    for status, words in ((200, "Both answer."), (503, "One does not."))
}


@router.get("/v1/health", tags=["health"], responses=_STANDS)
def health(api: Served) -> Response:
    """Say whether store and lake answer; without a token. 503 where one does not."""
    try:
        store = api.store.health()
        reachable, schema = store.reachable, store.schema
    except StoreError:
        reachable, schema = False, None
    try:
        writable = api.lake_writable()
    except OSError:
        writable = False
    said = {
        "status": "ok" if reachable and writable else "unavailable",
        "version": __version__,
        "store": {"reachable": reachable, "schema": schema},
        "lake": {"writable": writable},
    }
    return PlainJson(said, 200 if said["status"] == "ok" else 503)


@router.get("/v1/cycles", tags=["read"])
def cycles(api: Served, _: Reads, newest: Newest = 40) -> Response:
    """List the run's newest cycles, oldest first, each with its verdict and the gate's decision."""
    run = api.run()
    if run is None:
        return PlainJson({"run_id": None, "cycles": []})
    verdicts = {each.cycle: each.verdict for each in api.store.verdicts.read(run.run_id)}
    found = api.store.cycles.read(run.run_id, newest=newest)
    decisions = {each.cycle: each for each in api.store.decisions.latest(run.run_id, count=max(1, len(found)))}
    return PlainJson(
        {
            "run_id": run.run_id,
            "cycles": [
                {
                    "cycle": each.cycle,
                    "status": each.status,
                    "problem": each.problem,
                    "checkpoint_id": each.checkpoint_id,
                    "reward_version": each.reward_version,
                    "stages": [stage.stage for stage in each.stages],
                    "verdict": verdicts.get(each.cycle),
                    "decision": plain_decision(decisions[each.cycle]) if each.cycle in decisions else None,
                }
                for each in found
            ],
        }
    )


@router.get("/v1/cycles/{number}/verdict", tags=["read"])
def verdict(number: Number, api: Served, _: Reads) -> Response:
    """Give the kept verdict on a cycle. 404 where none is kept, which is no pass."""
    run = _run(api)
    kept = api.store.verdicts.get(run.run_id, number)
    if kept is None:
        raise Refusal(404, f"no verdict is kept on cycle {number}", where="number")
    return PlainJson(asdict(kept))


@router.get("/v1/cycles/{number}/findings", tags=["read"])
def findings(number: Number, api: Served, _: Reads) -> Response:
    """Give what the kept check of a cycle found, and what each detector could not assess."""
    run = _run(api)
    kept = api.store.verdicts.get(run.run_id, number)
    if kept is None:
        raise Refusal(404, f"cycle {number} was not checked, or its check was not kept", where="number")
    found = api.store.findings.read(run.run_id, cycle=number)
    reports = api.store.findings.reports(run.run_id, number)
    return PlainJson(
        {
            "cycle": number,
            "verdict": kept.verdict,
            "findings": [
                asdict(each.finding) | {"key": each.finding.key, "finding_id": each.finding_id}
                for each in found
                if each.candidate is None
            ],
            "detectors": [
                {
                    "detector": report.detector,
                    "assessed": report.assessed,
                    "unassessed": [asdict(item) for item in report.unassessed],
                    "power": report.power,
                }
                for report in reports
            ],
        }
    )


@router.get("/v1/decisions", tags=["read"])
def decisions(api: Served, _: Reads, candidate: str | None = None, newest: Newest = 40) -> Response:
    """List what the gate decided: all about one candidate, oldest first, or the newest of each cycle."""
    run = api.run()
    if run is None:
        return PlainJson({"run_id": None, "decisions": []})
    if candidate is None:
        found = api.store.decisions.latest(run.run_id, count=newest)
    else:
        found = api.store.decisions.history(run.run_id, candidate)[-newest:]
    return PlainJson({"run_id": run.run_id, "decisions": [plain_decision(each) for each in found]})


@router.get("/v1/incidents", tags=["incidents"])
def incidents(
    api: Served,
    _: Reads,
    state: IncidentState | None = None,
    every: Annotated[bool, Query(alias="all", description="Resolved ones too.")] = False,
    newest: Newest = 200,
) -> Response:
    """List incidents that are not resolved, oldest first."""
    states: Any = (state,) if state else (None if every else ACTIVE)
    return PlainJson({"incidents": [asdict(each) for each in api.store.incidents.read(states=states, newest=newest)]})


@router.get("/v1/incidents/{number}", tags=["incidents"])
def incident(number: Number, api: Served, _: Reads) -> Response:
    """Give an incident: evidence then and now, what it is charged to, and who did what."""
    found = view(api.store, number)
    if found is None:
        raise Refusal(404, f"there is no incident {number}", where="number")
    return PlainJson(plain_view(found))


@router.get("/v1/audit-log", tags=["admin"])
def audit_log(api: Served, _: Administers, newest: Newest = 50) -> Response:
    """Give the newest entries of the audit log and its head, to be kept elsewhere."""
    entries = api.store.audit_log.read(newest=newest)
    return PlainJson({"head": str(api.store.audit_log.head()), "entries": [asdict(each) for each in entries]})


@router.get("/metrics", tags=["health"], response_class=PlainTextResponse)
def metrics(api: Served, _: Reads) -> Response:
    """Give figures for Prometheus."""
    return Response(api.meter.text(api.store, api.run()), media_type="text/plain; version=0.0.4; charset=utf-8")


def _run(api: Api) -> Run:
    run = api.run()
    if run is None:
        raise Refusal(404, "there is no run here")
    return run
