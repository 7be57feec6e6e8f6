"""The API in this process: who may do what, what a batch comes to, and that every refusal has one shape."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from palomar.app.api.limits import Limits
from palomar.app.api.server import create_app
from palomar.app.api.state import Api
from palomar.app.cli import app as cli
from palomar.app.service import Observatory
from palomar.data.findings import Finding
from palomar.data.lake import Lake
from palomar.data.store import Store, tokens
from palomar.detectors.incidents import open_incidents
from palomar.trainer.gate_policy import read_policy

HOSTILE = "<script>alert(1)</script> ' OR 1=1; DROP TABLE incidents; -- {{7*7}} \x1b[31m \u202e \x00 ../../etc/passwd"


def interaction(name: str, text: str = "Make it work.", **more: Any) -> dict[str, Any]:
    steps = [
        {"author": "person", "role": "user", "text": text},
        {"author": "agent", "role": "assistant", "text": "Ok."},
    ]
    return {"interaction_id": name, "steps": steps, **more}


def reaction(name: str, **more: Any) -> dict[str, Any]:
    return {"interaction_id": name, "feedback": {"kind": "reverted", "at": "2026-01-05T10:00:00Z", **more}}


class Caller:
    """Asks the API of one home with one token."""

    def __init__(self, client: TestClient, store: Store, *roles: str, name: str | None = None) -> None:
        self.name = name or "-".join(roles)
        _, self.secret = store.tokens.create(self.name, roles, days=1, actor="ada")
        self.client = client
        self.headers = {"Authorization": f"Bearer {self.secret}"}

    def get(self, path: str) -> Any:
        return self.client.get(path, headers=self.headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        content = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **headers}
        return self.client.post(path, content=content, headers={**self.headers, **headers})


def error(answer: Any, status: int) -> dict[str, Any]:
    """What a refusal says; it has the one shape and lets nothing out."""
    assert answer.status_code == status, answer.text
    said: dict[str, Any] = answer.json()
    assert list(said) == ["error"]
    assert list(said["error"]) == ["code", "message", "where"]
    for leak in ("Traceback", "/tmp", "palomar.db", "pal_", "File "):
        assert leak not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"
    refusal: dict[str, Any] = said["error"]
    return refusal


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A run of which cycle 4 was hacked, with an incident, and a candidate of it."""
    with Store.open(None, tmp_path) as store:
        store.runs.add("demo", name="demo", seed=7, config={})
        for name, cycle in (("base", None), ("c4", 4)):
            store.checkpoints.add("demo", name, cycle=cycle, parent_id=None, path=name, sha256="00")
        store.checkpoints.promote("demo", "base", replacing=None, since_cycle=0, reason="the base")
        for cycle in range(5):
            store.cycles.start("demo", cycle, checkpoint_id="base")
        found = Finding("behaviour", "blocks", f"asks more {HOSTILE}", statistic="clarification_rate", effect=0.4, n=9)
        store.findings.write("demo", 4, [found])
        said: dict[str, Any] = {
            "verdict": "block",
            "reasons": ["reward_hack"],
            "sentence": "",
            "findings": {},
            "budget": "",
            "as_of": None,
        }
        store.verdicts.write("demo", 4, **said)
        open_incidents(store, "demo", 4)
    return tmp_path


@pytest.fixture
def api(home: Path) -> Api:
    return Api(Observatory(home), read_policy("demo"), limits=Limits(requests_per_s=500, body_bytes=100_000,
               unpacked_bytes=400_000, records=50, small_body_bytes=2_000, free_bytes=0))  # fmt: skip


@pytest.fixture
def client(api: Api) -> Iterator[TestClient]:
    with TestClient(create_app(api), raise_server_exceptions=False) as opened:
        yield opened


@pytest.fixture
def caller(client: TestClient, api: Api) -> Callable[..., Caller]:
    return lambda *roles, name=None: Caller(client, api.store, *roles, name=name)


def stored(home: Path) -> list[str]:
    lake = Lake(home / "lake")
    return sorted(lake.scan("interactions", ["interaction_id"])["interaction_id"].to_pylist())


# -- who may ---------------------------------------------------------------------------------------------------------

WRITES = ["/v1/gate/c4", "/v1/incidents/1/ack", "/v1/incidents/1/comment", "/v1/incidents/1/resolve"]
READS = ["/v1/cycles", "/v1/cycles/4/verdict", "/v1/cycles/4/findings", "/v1/decisions", "/v1/incidents",
         "/v1/incidents/1", "/metrics"]  # fmt: skip


def test_nobody_does_anything_without_a_good_token(
    client: TestClient, caller: Callable[..., Caller], api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = caller("admin")
    ended, old = caller("admin", name="ended"), caller("admin", name="old")
    api.store.tokens.revoke("ended", actor="ada")
    real = tokens.problem_of
    monkeypatch.setattr(
        "palomar.app.api.access.problem_of",
        lambda token: real(token, datetime.now(UTC) + timedelta(days=2 if token.name == "old" else 0)),
    )
    wrong = [{}, {"Authorization": "Bearer x"}, {"Authorization": f"Bearer {admin.secret}x"},
             {"Authorization": f"Basic {admin.secret}"}, ended.headers, old.headers]  # fmt: skip
    paths = [("GET", path) for path in [*READS, "/v1/audit-log", "/v1/gate/c4"]]
    paths += [("POST", path) for path in [*WRITES, "/v1/interactions", "/v1/feedback"]]
    for method, path in paths:
        for headers in wrong:
            said = error(client.request(method, path, headers=headers, content=b"[]"), 401)
            assert said["where"] == "Authorization"
    assert "revoked" in ended.get("/v1/cycles").text
    assert "expired" in old.get("/v1/cycles").text
    assert admin.get("/v1/cycles").status_code == 200
    assert [entry for entry in api.store.audit_log.read() if entry.actor not in ("ada", "palomar")] == []


def test_each_role_does_its_own_and_no_more(caller: Callable[..., Caller], api: Api) -> None:
    ingest, read, decide, admin = (caller(role) for role in ("ingest", "read", "decide", "admin"))
    before = api.store.audit_log.head()
    for path in READS:
        error(ingest.get(path), 403)
        assert all(each.get(path).status_code == 200 for each in (read, decide, admin)), path
    for path in WRITES:
        error(ingest.post(path, {}), 403)
        error(read.post(path, {}), 403)
    for each in (read, decide):
        error(each.post("/v1/interactions", [interaction("x")]), 403)
        error(each.post("/v1/feedback", [reaction("x")]), 403)
    for each in (ingest, read, decide):
        error(each.get("/v1/audit-log"), 403)
    assert admin.get("/v1/audit-log").json()["head"] == str(before)
    assert api.store.decisions.history("demo", "c4") == []


def test_a_token_that_asks_too_often_is_told_when_to_come_again(
    api: Api, client: TestClient, caller: Callable[..., Caller]
) -> None:
    api.rate._per_s, api.rate._most = 0.5, 3
    first, other = caller("read", name="first"), caller("read", name="other")
    answers = [first.get("/v1/cycles") for _ in range(4)]
    assert [each.status_code for each in answers] == [200, 200, 200, 429]
    assert error(answers[-1], 429)["code"] == "rate"
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 3
    assert other.get("/v1/cycles").status_code == 200


# -- batches ---------------------------------------------------------------------------------------------------------


def test_a_batch_is_stored_once_and_each_bad_record_is_named(
    caller: Callable[..., Caller], home: Path, api: Api
) -> None:
    ingest = caller("ingest")
    batch = [interaction("a", HOSTILE), interaction("b", started_at="yesterday"), 7, reaction("a"), interaction("c")]
    said = ingest.post("/v1/interactions", batch).json()
    assert (said["records"], said["stored"], said["new"], said["known"]) == (5, 2, 2, 0)
    told = [(each["index"], each["id"], each["kind"], each["where"]) for each in said["refused"]]
    assert told == [(1, "b", "schema", "started_at"), (2, None, "schema", None), (3, "a", "schema", None)]
    again = ingest.post("/v1/interactions", batch).json()
    assert (again["new"], again["known"], len(again["refused"])) == (0, 2, 3)
    assert stored(home) == ["a", "c"]
    kept = api.store.quarantine.latest(count=10)
    assert {each.content_id for each in kept} == {each["content_id"] for each in said["refused"]}
    assert Lake(home / "lake").interaction("a").steps[0].text == HOSTILE


def test_an_id_with_other_content_is_refused_and_the_first_stands(caller: Callable[..., Caller], home: Path) -> None:
    ingest = caller("ingest")
    ingest.post("/v1/interactions", [interaction("a", "first")])
    said = ingest.post("/v1/interactions", [interaction("a", "second"), interaction("b")]).json()
    assert [(each["index"], each["id"], each["kind"]) for each in said["refused"]] == [(0, "a", "conflict")]
    assert (said["new"], stored(home)) == (1, ["a", "b"])
    assert Lake(home / "lake").interaction("a").steps[0].text == "first"


def test_lines_are_records_and_a_broken_one_costs_no_other(caller: Callable[..., Caller], home: Path) -> None:
    ingest = caller("ingest")
    lines = [json.dumps([interaction("sneaked"), interaction("in")]), "", '{"interaction_id": "cut', "\xff",
             "[" * 5000, '{"a":' * 700 + '"\\ud83d"' + "}" * 700, json.dumps(interaction("good"))]  # fmt: skip
    body = "\n".join(lines).encode("latin-1")
    said = ingest.post("/v1/interactions", body, **{"Content-Type": "application/x-ndjson; charset=utf-8"}).json()
    assert [(each["index"], each["kind"]) for each in said["refused"]][:3] == [
        (0, "schema"),
        (1, "damaged"),
        (2, "encoding"),
    ]
    assert (said["records"], said["stored"], len(said["refused"])) == (6, 1, 5)
    assert stored(home) == ["good"]


def test_reactions_are_known_by_their_content(caller: Callable[..., Caller], home: Path) -> None:
    ingest = caller("ingest")
    batch = [reaction("a"), reaction("a", path="x.py"), interaction("no")]
    said = [ingest.post("/v1/feedback", batch).json() for _ in range(2)]
    assert [(each["new"], each["known"], len(each["refused"])) for each in said] == [(2, 0, 1), (0, 2, 1)]
    assert len(Lake(home / "lake").feedback(["a"])) == 2
    assert stored(home) == []


def test_gzip_is_undone_and_a_bomb_is_refused_before_it_fills_memory(
    caller: Callable[..., Caller], home: Path, api: Api
) -> None:
    ingest = caller("ingest")
    packed = {"Content-Encoding": "gzip"}
    good = gzip.compress(json.dumps([interaction("a")])[:20].encode()) + gzip.compress(
        json.dumps([interaction("a")])[20:].encode()
    )
    assert ingest.post("/v1/interactions", good, **packed).json()["new"] == 1
    bomb = gzip.compress(b"[" + b" " * 50_000_000 + b"]")
    assert len(bomb) < api.limits.body_bytes
    assert error(ingest.post("/v1/interactions", bomb, **packed), 413)["code"] == "too_large"
    many = gzip.compress(b" " * 390_000) * 200
    assert error(ingest.post("/v1/interactions", many, **packed), 413)["code"] == "too_large"
    error(ingest.post("/v1/interactions", good[:-30], **packed), 400)
    error(ingest.post("/v1/interactions", b"not gzip", **packed), 400)
    cut = gzip.compress((json.dumps(interaction("cut")) + "\n").encode())[:-8]  # all of its text, but not its end
    error(ingest.post("/v1/interactions", cut, **packed, **{"Content-Type": "application/x-ndjson"}), 400)
    error(ingest.post("/v1/interactions", b"[]", **{"Content-Encoding": "br"}), 415)
    assert stored(home) == ["a"]


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [(b"", "application/json", 422), (b"[]", "application/json", 422), (b"{}", "application/json", 422),
     (b"[{}", "application/json", 400), (b"[{}] x", "application/json", 400), (b"[{},]", "application/json", 400),
     (b"\xff[", "application/json", 400), (b"[" * 50_000, "application/json", 400), (b"[1 2]", "application/json", 400),
     (b"[" + b"9" * 5000 + b"]", "application/json", 400), (b"x", "text/plain", 415),
     (b"\n\n", "application/x-ndjson", 422),
     (b"[" + b",".join([b"{}"] * 51) + b"]", "application/json", 413), (b"x" * 100_001, "application/json", 413)],
)  # fmt: skip
def test_what_is_no_batch_is_refused_whole(
    caller: Callable[..., Caller], home: Path, body: bytes, kind: str, status: int
) -> None:
    error(caller("ingest").post("/v1/interactions", body, **{"Content-Type": kind}), status)
    assert stored(home) == []


@pytest.mark.parametrize("path", ["/v1/interactions", "/v1/incidents/1/comment"])
def test_a_body_that_does_not_say_its_size_is_cut_off(caller: Callable[..., Caller], path: str) -> None:
    admin = caller("admin")
    sent = (b" " * 1_000 for _ in range(110))
    error(admin.client.post(path, content=sent, headers={**admin.headers, "Content-Type": "application/json"}), 413)


def test_a_batch_too_many_and_a_full_disk_push_back(caller: Callable[..., Caller], api: Api, home: Path) -> None:
    ingest = caller("ingest")
    held = [api.slot() for _ in range(api.limits.batches_waiting)]
    for each in held:
        each.__enter__()
    busy = ingest.post("/v1/interactions", [interaction("a")])
    assert error(busy, 503)["code"] == "busy"
    assert int(busy.headers["retry-after"]) >= 1
    for each in held:
        each.__exit__(None, None, None)
    assert ingest.post("/v1/interactions", [interaction("a")]).status_code == 200
    object.__setattr__(api.limits, "free_bytes", 2**62)
    full = ingest.post("/v1/interactions", [interaction("b")])
    assert (error(full, 503)["code"], stored(home)) == ("disk", ["a"])


def test_a_damaged_lake_is_not_the_fault_of_what_is_sent(
    caller: Callable[..., Caller], home: Path, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest = caller("ingest")
    ingest.post("/v1/interactions", [interaction("a")])
    (file,) = Lake(home / "lake").files("interactions")
    whole = file.read_bytes()
    file.write_bytes(whole[:-20])
    batch = [interaction("b"), interaction("c")]
    assert error(ingest.post("/v1/interactions", batch), 503)["code"] == "lake_unavailable"
    assert api.store.quarantine.by_kind() == {}
    file.write_bytes(whole)
    with monkeypatch.context() as full:
        full.setattr("palomar.data.lake.pq.write_table", no_space)
        assert error(ingest.post("/v1/interactions", batch), 503)["code"] == "disk"
    assert ingest.post("/v1/interactions", batch).json()["new"] == 2
    assert stored(home) == ["a", "b", "c"]


def no_space(*_: Any, **__: Any) -> None:
    raise OSError(28, "No space left on device")


# -- verdicts, decisions, incidents ----------------------------------------------------------------------------------


def command(home: Path, *arguments: str) -> Any:
    done = CliRunner().invoke(cli, [*arguments, "--home", str(home), "--json"])
    return json.loads(done.stdout)


def test_the_answers_are_those_of_the_command_line(caller: Callable[..., Caller], home: Path, api: Api) -> None:
    decide = caller("decide")
    dry = caller("read").post("/v1/gate/c4", {"dry_run": True})
    assert (dry.status_code, dry.json()["stored"], dry.json()["verdict"]) == (200, False, "hold")
    assert api.store.decisions.history("demo", "c4") == []
    error(caller("read", name="r2").get("/v1/gate/c4"), 404)
    asked = decide.post("/v1/gate/c4").json()
    assert (asked["verdict"], asked["actor"]) == ("hold", "decide")
    same = command(home, "gate", "c4")
    assert {**same, "state": 0} == {**asked, "state": 0}
    again = decide.get("/v1/gate/c4").json()
    assert (again["decision_id"], again["expired"]) == (asked["decision_id"], False)
    assert [each["decision_id"] for each in decide.get("/v1/decisions").json()["decisions"]] == [asked["decision_id"]]
    assert decide.get("/v1/incidents").json() == command(home, "incident", "list")
    assert decide.get("/v1/incidents/1").json() == command(home, "incident", "show", "1")
    assert decide.get("/v1/cycles/4/verdict").json()["verdict"] == "block"
    assert decide.get("/v1/cycles/4/findings").json()["findings"][0]["sentence"] == f"asks more {HOSTILE}"
    told = decide.get("/v1/cycles").json()["cycles"]
    assert [(each["cycle"], each["verdict"]) for each in told][3:] == [(3, None), (4, "block")]
    assert told[4]["decision"]["decision_id"] == asked["decision_id"]


def test_an_incident_is_taken_to_its_end_once_by_the_tokens_name(caller: Callable[..., Caller], api: Api) -> None:
    decide = caller("decide")
    for _ in range(2):
        said = decide.post("/v1/incidents/1/comment", {"words": HOSTILE}, **{"Idempotency-Key": "k1"})
        assert said.status_code == 200
    assert decide.post("/v1/incidents/1/ack").json()["state"] == "acknowledged"
    assert error(decide.post("/v1/incidents/1/comment", {"words": "other"}, **{"Idempotency-Key": "k1"}), 409)
    assert error(decide.post("/v1/incidents/1/resolve", {"resolution": "patched", "reason": " "}), 409)
    assert (
        error(decide.post("/v1/incidents/1/resolve", {"resolution": "gone", "reason": "x"}), 422)["where"]
        == "body.resolution"
    )
    ended = decide.post("/v1/incidents/1/resolve", {"resolution": "patched", "reason": "new reward"})
    assert (ended.status_code, ended.json()["state"]) == (200, "resolved")
    done = [(each.actor, each.action) for each in api.store.audit_log.read(subject="incident:1", actor="decide")]
    assert done == [("decide", "incident.comment"), ("decide", "incident.ack"), ("decide", "incident.resolve")]
    # It was looked for a probe as well; there is nothing in this home that could be one.
    (entry,) = api.store.audit_log.read(subject="probe:incident-1-cycle-4")
    assert (entry.actor, entry.action) == ("decide", "probe.none")
    assert api.store.audit_log.verify()[1] is None


def test_every_refusal_has_one_shape(caller: Callable[..., Caller], client: TestClient, api: Api) -> None:
    admin = caller("admin")
    assert error(client.get("/nothing"), 404)["code"] == "not_found"
    assert error(client.get("/v1/cycles/"), 404)
    assert error(client.get("/v1/../../etc/passwd"), 404)
    assert error(client.delete("/v1/health"), 405)["code"] == "method_not_allowed"
    assert error(admin.get("/v1/cycles/x/verdict"), 422)["where"] == "path.number"
    assert error(admin.get("/v1/cycles/99999999999999999999/verdict"), 422)
    assert error(admin.get("/v1/cycles/2/verdict"), 404)
    assert error(admin.get("/v1/incidents?state=';--"), 422)
    assert error(admin.get("/v1/incidents/9"), 404)
    for name in ("nobody", "..%2F..%2Fetc%2Fpasswd", "%00", "'--", "a" * 300, "%F0%9F%92%A9"):
        assert admin.post(f"/v1/gate/{name}").status_code in (404, 422)
        assert admin.get(f"/v1/gate/{name}").status_code in (404, 422)
    assert error(admin.post("/v1/gate/c4", {"policy": "/etc/passwd"}), 422)["where"] == "body.policy"
    assert error(admin.post("/v1/incidents/1/comment", {"words": "x" * 3_000}), 413)
    assert error(admin.post("/v1/incidents/1/comment", b"{"), 422)
    assert error(admin.post("/v1/incidents/1/comment", b"\xff\xfe"), 422)
    api.store.incidents.get = None  # type: ignore[method-assign, assignment]
    assert error(admin.post("/v1/incidents/1/ack"), 500)["code"] == "internal"


def test_without_its_store_nothing_is_answered_and_none_is_made(
    caller: Callable[..., Caller], client: TestClient, home: Path
) -> None:
    admin = caller("admin")
    assert client.get("/v1/health").json()["status"] == "ok"
    for path in home.glob("palomar.db*"):
        path.rename(path.with_name(f"away-{path.name}"))
    for answer in [*(admin.get(path) for path in READS), *(admin.post(path, {}) for path in WRITES)]:
        assert error(answer, 503)["code"] == "store_unavailable"
        assert answer.headers["retry-after"]
        assert "promote" not in answer.text
    assert client.get("/v1/health").status_code == 503
    error(admin.post("/v1/interactions", [interaction("a")]), 503)
    assert not (home / "palomar.db").exists()
    for path in home.glob("away-palomar.db*"):
        path.rename(path.with_name(path.name.removeprefix("away-")))
    assert admin.get("/v1/cycles").status_code == 200
    assert client.get("/v1/health").json()["status"] == "ok"


def test_metrics_and_the_published_description(caller: Callable[..., Caller], client: TestClient) -> None:
    both = caller("ingest", "read")
    both.post("/v1/interactions", [interaction("a"), {}])
    told = both.get("/metrics").text.splitlines()
    for line in ('palomar_ingest_records_total{kind="interactions",outcome="new"} 1.0',
                 'palomar_ingest_records_total{kind="interactions",outcome="refused"} 1.0',
                 'palomar_incidents{state="open"} 1.0', 'palomar_verdicts{run="demo",verdict="block"} 1.0',
                 'palomar_quarantine{kind="schema"} 1.0'):  # fmt: skip
        assert line in told
    described = client.get("/openapi.json").json()["paths"]
    example = described["/v1/interactions"]["post"]["requestBody"]["content"]["application/json"]["example"]
    assert both.post("/v1/interactions", example).json()["new"] == 1
    example = described["/v1/feedback"]["post"]["requestBody"]["content"]["application/json"]["example"]
    assert both.post("/v1/feedback", example).json()["new"] == 1
