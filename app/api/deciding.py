"""What changes something: asking the gate, and what people do about incidents. The token's name is the actor.

With an ``Idempotency-Key`` a request about an incident may be sent again: it is done once.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.background import BackgroundTask

from palomar.app.api.access import Decides, Reads, Served, require
from palomar.app.api.errors import PlainJson, Refusal
from palomar.app.api.state import Api
from palomar.app.gate_exports import plain_answer, plain_outcome, publish
from palomar.app.gating import Question, answer_of, ask, would_say
from palomar.app.probing import keep_of_patched
from palomar.data.schema import UtcTime
from palomar.data.store.incidents import subject
from palomar.data.store.records import ApiToken, Resolution, Scope

router = APIRouter()

Candidate = Annotated[str, Path(min_length=1, max_length=200)]
Number = Annotated[int, Path(ge=0, lt=2**31)]
Key = Annotated[str | None, Header(alias="Idempotency-Key", min_length=1, max_length=100, pattern=r"^[!-~]+$")]
Text = Annotated[str, Field(max_length=10_000)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class GateRequest(_Body):
    """How the gate is asked."""

    dry_run: bool = False
    """Say what the rule would say and store nothing; the role read is enough."""
    again: bool = False
    """Decide anew though a decision stands."""
    check: bool = False
    """First check the candidate and the cycle that trained it, and keep both."""


class AckRequest(_Body):
    """Why someone looks into it."""

    reason: Text = ""


class CommentRequest(_Body):
    """Words for the timeline."""

    words: Text


class ScopeRequest(_Body):
    """What is accepted."""

    statistic: str | None = None
    slice: str | None = None


class ResolveRequest(_Body):
    """How an incident ended."""

    resolution: Resolution
    reason: Text
    cycle: Annotated[int | None, Field(ge=0, lt=2**31)] = None
    """Last cycle that this speaks of; without, the newest."""
    until_cycle: Annotated[int | None, Field(ge=0, lt=2**31)] = None
    """Of an accepted one: last cycle in which it is."""
    until: UtcTime | None = None
    scope: Annotated[list[ScopeRequest], Field(max_length=100)] = []


@router.get("/v1/gate/{candidate}", tags=["gate"])
def standing(candidate: Candidate, api: Served, _: Reads) -> Response:
    """Give the decision that was last taken about a candidate; decides nothing. 404 where there is none."""
    run = api.run()
    found = None if run is None else api.store.decisions.get(run.run_id, candidate)
    if found is None:
        raise Refusal(404, "nothing was decided about this candidate", where="candidate")
    return PlainJson(_current(plain_answer(answer_of(api.store, found, "was decided"))))


@router.post("/v1/gate/{candidate}", tags=["gate"])
def gate(candidate: Candidate, api: Served, token: Reads, asked: GateRequest | None = None) -> Response:
    """Say promote, hold or block, and why; as `palomar gate`, by the policy that the server was started with."""
    asked = asked or GateRequest()
    if asked.dry_run and (asked.again or asked.check):
        raise Refusal(422, "a dry run stores nothing: neither again nor check goes with it", where="body.dry_run")
    if not asked.dry_run:
        require(token, "decide")
    _known(api, candidate)
    question = Question(candidate, api.policy, token.name, again=asked.again, check=asked.check, plan=api.plan)
    if asked.dry_run:
        outcome = would_say(api.observatory, question)
        return PlainJson({"stored": False, "policy": api.policy.policy.version, **plain_outcome(outcome)})
    answer = ask(api.observatory, question)
    publish(api.observatory.home, answer.decision)
    return PlainJson(plain_answer(answer))


@router.post("/v1/incidents/{number}/ack", tags=["incidents"])
def ack(number: Number, api: Served, token: Decides, asked: AckRequest | None = None, key: Key = None) -> Response:
    """Say that someone looks into it."""
    reason = "" if asked is None else asked.reason
    once = _once(api, token, key, number, ("incident.ack", reason))
    return PlainJson(asdict(api.store.incidents.acknowledge(number, actor=token.name, reason=reason, token=once)))


@router.post("/v1/incidents/{number}/comment", tags=["incidents"])
def comment(number: Number, asked: CommentRequest, api: Served, token: Decides, key: Key = None) -> Response:
    """Add words to the timeline."""
    once = _once(api, token, key, number, ("incident.comment", asked.words))
    return PlainJson(asdict(api.store.incidents.comment(number, actor=token.name, words=asked.words, token=once)))


@router.post("/v1/incidents/{number}/resolve", tags=["incidents"])
def resolve(number: Number, asked: ResolveRequest, api: Served, token: Decides, key: Key = None) -> Response:
    """End it."""
    once = _once(api, token, key, number, ("incident.resolve", asked.reason))
    ended = api.store.incidents.resolve(
        number,
        asked.resolution,
        actor=token.name,
        reason=asked.reason,
        cycle=asked.cycle,
        until_cycle=asked.until_cycle,
        until=asked.until,
        scope=[Scope(each.statistic, each.slice) for each in asked.scope],
        token=once,
    )
    # Afterwards: it reads the incident's interactions, and the answer does not depend on it.
    probe = BackgroundTask(keep_of_patched, api.observatory, ended, actor=token.name)
    return PlainJson(asdict(ended), background=probe)


def _once(api: Api, token: ApiToken, key: str | None, number: int, said: tuple[str, str]) -> str | None:
    """Id of the request in the audit log; two tokens never share one. ``said``: its action and reason there.

    Raises Refusal where there is no such incident (404), or the key was used for something else (409).
    """
    if api.store.incidents.get(number) is None:
        raise Refusal(404, f"there is no incident {number}", where="number")
    if key is None:
        return None
    once = f"http:{token.token_id}:{key}"
    for entry in api.store.audit_log.read(actor=token.name):
        if entry.token == once and (entry.subject, entry.action, entry.reason) != (subject(number), *said):
            raise Refusal(409, f"this key was used for {entry.action} of {entry.subject}", where="Idempotency-Key")
    return once


def _known(api: Api, candidate: str) -> None:
    run = api.run()
    if run is None or api.store.checkpoints.get(run.run_id, candidate) is None:
        raise Refusal(404, "there is no such candidate", where="candidate")


def _current(said: dict[str, Any]) -> dict[str, Any]:
    """With whether it has expired: who reads a decision long after it was taken must see that."""
    ends = said.get("expires_at")
    over = isinstance(ends, str) and datetime.fromisoformat(ends) <= datetime.now(UTC)
    return {**said, "expired": over}
