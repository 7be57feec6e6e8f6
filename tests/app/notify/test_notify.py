"""Other systems are told of state changes: each once, twice where the sender died on the way, and no secret."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from typer.testing import CliRunner

from palomar.app.cli import app
from palomar.app.notify import sending, web
from palomar.app.notify.config import SlackChannel, WebhookChannel
from palomar.app.notify.events import since
from palomar.app.settings import Settings, read_settings
from palomar.data.errors import ConfigError
from palomar.data.store import Store, models
from tests.app.notify.conftest import Receiver, serving

SECRET = "of ours"
HOOK = WebhookChannel(kind="webhook", name="hook", url_env="HOOK_URL", secret_env="HOOK_SECRET")
SLACK = SlackChannel(kind="slack", name="team", url_env="SLACK_URL")


def ways(receiver: Receiver, *channels: Any) -> list[sending.Way]:
    environment = {"HOOK_URL": receiver.url, "HOOK_SECRET": SECRET, "SLACK_URL": receiver.url}
    return sending.ways(channels or (HOOK,), Path(), environment)


def due_now(store: Store) -> None:
    """As if the time until the next attempt were over."""
    past = datetime.now(UTC) - timedelta(seconds=1)
    store._database.write(lambda connection: connection.execute(update(models.Message).values(next_at=past)))


def told(store: Store, receiver: Receiver, *channels: Any, **more: Any) -> sending.Delivered:
    return sending.deliver(store, "demo", ways(receiver, *channels), **more)


def begun(store: Store, receiver: Receiver, *channels: Any) -> None:
    sending.begin(store, "demo", ways(receiver, *channels))


# -- what is told --------------------------------------------------------------------------------------------------


def test_a_decision_is_told_signed_and_named_and_only_once(
    store: Store, receiver: Receiver, decide: Callable[..., Any]
) -> None:
    decide("next", "hold")  # before there was a channel: not told
    begun(store, receiver)
    made = decide("new", "block")
    assert told(store, receiver) == sending.Delivered(sent=1)
    assert told(store, receiver) == sending.Delivered()
    ((path, headers, body),) = receiver.got
    said = json.loads(body)
    assert path == "/hook/s3cr3t"
    assert (said["format"], said["event"], said["run_id"]) == ("palomar-event/1", "block", "demo")
    assert said["decision"]["decision_id"] == made.decision_id
    assert said["decision"]["reasons"] == ["not_worse:solved"]
    assert said["sentence"] == "new: BLOCK: it is block"
    assert headers["idempotency-key"] == said["id"] == "demo/2"
    assert headers["palomar-event"] == "block"
    moment, mac = (part.partition("=")[2] for part in headers["palomar-signature"].split(","))
    assert abs(time.time() - int(moment)) < 60
    # As a receiver would check it, with nothing of ours.
    assert mac == hmac.new(SECRET.encode(), moment.encode() + b"." + body, hashlib.sha256).hexdigest()


def test_only_what_is_another_than_before_is_told(
    store: Store, receiver: Receiver, decide: Callable[..., Any], incident: Callable[..., int]
) -> None:
    begun(store, receiver)
    decide("new", "hold")
    decide("new", "hold", reasons=["other"])  # still held
    decide("new", "promote")
    number = incident()
    store.incidents.comment(number, actor="ada", words="looking")
    store.incidents.acknowledge(number, actor="ada", reason="mine")
    store.incidents.assign(number, actor="ada", to="bob")
    store.incidents.act(number, actor="ada", what="asked around")
    store.incidents.act(number, actor="ada", what="patched", mitigates=True)
    store.incidents.act(number, actor="ada", what="patched more", mitigates=True)
    store.incidents.resolve(number, "patched", actor="ada", reason="gone", cycle=2)
    incident(cycle=3)
    told(store, receiver)
    seen = [
        (body["event"], (body.get("decision") or {}).get("verdict") or body["incident"]["state"])
        for body in receiver.bodies()
    ]
    assert seen == [
        ("hold", "hold"),
        ("promote", "promote"),
        ("incident", "open"),
        ("incident", "acknowledged"),
        ("incident", "mitigated"),
        ("incident", "resolved"),
        ("incident", "open"),
    ]
    changes = [body["incident"] for body in receiver.bodies() if body["event"] == "incident"]
    assert [change["was"] for change in changes] == [None, "open", "acknowledged", "mitigated", "resolved"]
    assert (changes[3]["resolution"], changes[3]["reason"]) == ("patched", "gone")
    numbers = [int(body["id"].partition("/")[2]) for body in receiver.bodies()]
    assert numbers == sorted(set(numbers))


def test_a_rollback_is_told_and_a_channel_hears_what_it_asked_for(
    store: Store, receiver: Receiver, decide: Callable[..., Any], incident: Callable[..., int]
) -> None:
    few = HOOK.model_copy(update={"events": ("rollback",)})
    begun(store, receiver, few)
    decide("new", "promote")
    store.checkpoints.promote("demo", "new", replacing="base", since_cycle=2, reason="good")
    incident()
    store.checkpoints.roll_back("demo", "new", to="base", since_cycle=3, reason="demo:2: it hacks")
    told(store, receiver, few)
    (said,) = receiver.bodies()
    assert said["rollback"] == {"checkpoint": "new", "to": "base", "since_cycle": 3}
    assert said["sentence"] == "new was taken back; base serves from cycle 3 on"


def test_another_run_of_the_same_store_is_not_told_of(
    store: Store, receiver: Receiver, decide: Callable[..., Any]
) -> None:
    store.runs.add("other", name="other", seed=0, config={})
    sending.begin(store, "other", ways(receiver))
    decide("new", "block")
    assert sending.deliver(store, "other", ways(receiver)) == sending.Delivered()


# -- failures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [500, 503, 429, 408])
def test_what_may_pass_is_tried_again_later_and_arrives(
    store: Store, receiver: Receiver, decide: Callable[..., Any], status: int
) -> None:
    receiver.answers = [status, status, 200]
    begun(store, receiver)
    decide("new", "block")
    decide("next", "block")
    waits = []
    for attempt in (1, 2):
        before = datetime.now(UTC)
        assert told(store, receiver) == sending.Delivered(waiting=2)
        (first, second) = store.messages.read("demo")
        assert (first.attempts, first.problem) == (attempt, f"answered with status {status}")
        assert second.attempts == 0  # messages keep their order
        waits.append((first.next_at - before).total_seconds())
        assert told(store, receiver) == sending.Delivered(waiting=2)  # not due yet
        due_now(store)
    assert waits == pytest.approx([5, 10], abs=1)
    assert told(store, receiver) == sending.Delivered(sent=2)
    assert receiver.keys() == ["demo/1", "demo/1", "demo/1", "demo/2"]


@pytest.mark.parametrize("status", [400, 401, 404, 410, 301, 307])
def test_what_cannot_pass_is_given_up_at_once_and_holds_up_nothing(
    store: Store, receiver: Receiver, decide: Callable[..., Any], status: int
) -> None:
    receiver.answers = [status, 200]
    receiver.headers = {"Location": receiver.url + "/elsewhere"} if status in (301, 307) else {}
    begun(store, receiver)
    decide("new", "block")
    decide("next", "block")
    assert told(store, receiver) == sending.Delivered(sent=1, given_up=1)
    assert [each.state for each in store.messages.read("demo")] == ["given_up", "sent"]
    assert {path for path, _, _ in receiver.got} == {"/hook/s3cr3t"}  # no redirect was followed


def test_it_ends_after_so_many_attempts_and_can_be_had_again(
    store: Store, receiver: Receiver, decide: Callable[..., Any]
) -> None:
    receiver.answers = [500] * sending.MOST_ATTEMPTS + [200]
    begun(store, receiver)
    decide("new", "block")
    for _ in range(sending.MOST_ATTEMPTS):
        told(store, receiver)
        due_now(store)
    assert [each.state for each in store.messages.read("demo")] == ["given_up"]
    assert told(store, receiver) == sending.Delivered()
    assert store.messages.again("demo") == 1
    assert told(store, receiver) == sending.Delivered(sent=1)


def test_a_receiver_may_ask_for_time(store: Store, receiver: Receiver, decide: Callable[..., Any]) -> None:
    receiver.answers, receiver.headers = [429], {"Retry-After": "100"}
    begun(store, receiver)
    decide("new", "block")
    told(store, receiver)
    (waits,) = store.messages.read("demo")
    assert (waits.next_at - datetime.now(UTC)).total_seconds() == pytest.approx(100, abs=5)


def test_one_that_does_not_answer_costs_seconds(
    store: Store, receiver: Receiver, decide: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web.post, "__defaults__", (0.3,))
    receiver.answers = [None, 200]
    begun(store, receiver)
    decide("new", "block")
    began = time.monotonic()
    assert told(store, receiver) == sending.Delivered(waiting=1)
    assert time.monotonic() - began < 1.2
    assert store.messages.read("demo")[0].problem == "no answer within 0.3 s"
    due_now(store)
    assert told(store, receiver) == sending.Delivered(sent=1)
    # It had the first one: by its name it knows that.
    assert receiver.keys() == ["demo/1", "demo/1"]


def test_one_that_is_down_is_told_when_it_comes_back(store: Store, decide: Callable[..., Any]) -> None:
    gone = Receiver()
    with serving(gone):
        port = int(gone.url.split(":")[2].split("/")[0])
    begun(store, gone)
    decide("new", "block")
    assert told(store, gone) == sending.Delivered(waiting=1)
    assert store.messages.read("demo")[0].problem == "cannot be reached: Connection refused"
    due_now(store)
    with serving(gone, port):
        assert told(store, gone) == sending.Delivered(sent=1)


def test_a_failing_channel_does_not_hold_up_another(
    store: Store, receiver: Receiver, decide: Callable[..., Any]
) -> None:
    with serving(Receiver(answers=[500])) as broken:
        environment = {"HOOK_URL": broken.url, "HOOK_SECRET": SECRET, "SLACK_URL": receiver.url}
        both = sending.ways((HOOK, SLACK), Path(), environment)
        sending.begin(store, "demo", both)
        decide("new", "block")
        assert sending.deliver(store, "demo", both) == sending.Delivered(sent=1, waiting=1)


def test_no_further_message_is_begun_when_the_time_is_over(
    store: Store, receiver: Receiver, decide: Callable[..., Any]
) -> None:
    begun(store, receiver)
    decide("new", "block")
    assert told(store, receiver, budget_s=0.0) == sending.Delivered(waiting=1)
    assert receiver.got == []


def test_nothing_that_is_logged_or_kept_is_a_secret(
    store: Store, receiver: Receiver, decide: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    receiver.answers = [500, 404]
    begun(store, receiver)
    decide("new", "block")
    with caplog.at_level(logging.DEBUG):
        told(store, receiver)
        due_now(store)
        told(store, receiver)
    assert "attempt 1: answered with status 500; again in 5 s" in caplog.text
    assert "given up" in caplog.text
    kept = repr(store.messages.read("demo")) + repr(store.audit_log.read()) + caplog.text
    for secret in ("s3cr3t", SECRET, receiver.url):
        assert secret not in kept


# -- several processes, and dying ones -----------------------------------------------------------------------------

CHILD = """
import os, signal, sys
from pathlib import Path
from palomar.app.notify import sending, web
from palomar.app.notify.config import WebhookChannel
from palomar.data.store import Store
if sys.argv[3] != "lives":
    done = web.post
    def post(*given, **named):
        if sys.argv[3] == "before": os.kill(os.getpid(), signal.SIGKILL)
        done(*given, **named)
        os.kill(os.getpid(), signal.SIGKILL)
    web.post = post
hook = WebhookChannel(kind="webhook", name="hook", url_env="HOOK_URL", secret_env="HOOK_SECRET")
with Store.open(None, Path(sys.argv[1])) as store:
    chosen = sending.ways((hook,), Path(), {"HOOK_URL": sys.argv[2], "HOOK_SECRET": "x"})
    sending.deliver(store, "demo", chosen)
"""


def child(home: Path, receiver: Receiver, dies: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", CHILD, str(home), receiver.url, dies])


@pytest.mark.parametrize("dies", ["before", "after"])
def test_a_killed_sender_loses_nothing_and_what_comes_twice_has_one_name(
    store: Store, receiver: Receiver, decide: Callable[..., Any], tmp_path: Path, dies: str
) -> None:
    begun(store, receiver)
    decide("new", "block")
    killed = child(tmp_path / "home", receiver, dies)
    assert killed.wait() == -signal.SIGKILL
    # Nobody else sends it while the dead one might still be at it.
    assert told(store, receiver) == sending.Delivered(waiting=1)
    due_now(store)
    assert told(store, receiver) == sending.Delivered(sent=1)
    assert receiver.keys() == ["demo/1"] * (1 if dies == "before" else 2)
    assert len({body for _, _, body in receiver.got}) == 1


def test_several_that_send_at_once_send_each_message_once(
    store: Store, receiver: Receiver, decide: Callable[..., Any], tmp_path: Path
) -> None:
    begun(store, receiver)
    for number in range(12):
        decide("new", "block" if number % 2 else "hold", reasons=[str(number)])
    running = [child(tmp_path / "home", receiver, "lives") for _ in range(2)]
    threads = [threading.Thread(target=told, args=(store, receiver)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [process.wait() for process in running] == [0, 0]
    while told(store, receiver).waiting:
        time.sleep(0.05)
    assert receiver.keys() == [f"demo/{number}" for number in range(1, 13)]


# -- Slack ---------------------------------------------------------------------------------------------------------

HOSTILE = "<!channel> & <https://evil.example|click> *b* \x1b[31m \u202e \ud800"


def test_slack_is_told_in_blocks_and_nothing_in_them_pings_or_links(
    store: Store, receiver: Receiver, decide: Callable[..., Any], incident: Callable[..., int]
) -> None:
    begun(store, receiver, SLACK)
    decide("new", "block", sentence=HOSTILE, reasons=[HOSTILE])
    number = incident(sentence=HOSTILE)
    store.incidents.acknowledge(number, actor="<@U1>", reason=HOSTILE)
    decide("next", "hold")  # by default Slack is not told of holds
    assert told(store, receiver, SLACK).sent == 3
    for body in receiver.bodies():
        texts = [body["text"], *texts_of(body["blocks"])]
        assert all("<" not in text and ">" not in text and "\x1b" not in text for text in texts)
        assert not any("& " in text or "\u202e" in text for text in texts)
        assert set(kinds_of(body["blocks"])) == {"plain_text"}
    decision = receiver.bodies()[0]
    assert decision["blocks"][0]["text"]["text"] == "\u26d4 BLOCK: new of cycle 1"
    assert "&lt;!channel&gt; &amp; &lt;https://evil.example|click&gt;" in decision["blocks"][1]["text"]["text"]


def texts_of(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [value["text"]] if isinstance(value.get("text"), str) else texts_of(list(value.values()))
    return [text for each in value for text in texts_of(each)] if isinstance(value, list) else []


def kinds_of(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["type"]] if isinstance(value.get("text"), str) else []
        return own + kinds_of(list(value.values()))
    return [kind for each in value for kind in kinds_of(each)] if isinstance(value, list) else []


@pytest.mark.parametrize("most", [10, 150, 3000])
def test_a_text_for_slack_is_short_and_no_escape_is_cut_in_half(most: int) -> None:
    for text in ("<" * 5000, "a&" * 80, "ok"):
        short = web.escape(text, most)
        assert len(short) <= most
        rest = short.removesuffix("...").replace("&amp;", "").replace("&lt;", "").replace("&gt;", "")
        assert not set(rest) & set("&<>;")


def test_what_is_told_is_json_that_any_reader_takes(
    store: Store, receiver: Receiver, decide: Callable[..., Any]
) -> None:
    begun(store, receiver)
    decide("new", "block", sentence=HOSTILE + "x" * 10_000)
    (happened,) = since(store, "demo", 0)[1]
    assert happened.body.isascii()
    said = json.loads(happened.body)
    said["sentence"].encode("utf-8")  # no half character
    assert len(happened.body) < 20_000


# -- settings and commands -----------------------------------------------------------------------------------------


def settings(tmp_path: Path, text: str) -> Settings:
    path = tmp_path / "palomar.yaml"
    path.write_text(text, encoding="utf-8")
    return read_settings(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("notify: [{kind: webhook, name: a, url: http://x}]", "url"),
        ("notify: [{kind: pigeon, name: a}]", "kind"),
        ("notify: [{kind: slack, name: a, url_env: 'http://x'}]", "url_env"),
        ("notify: [{kind: slack, name: a, url_env: U}, {kind: slack, name: a, url_env: V}]", "2 channels are called"),
        ("notify: [{kind: slack, name: a, url_env: U, events: [all]}]", "events"),
        ("notify: [{kind: mlflow, name: a, model: m, alias: v3}]", "alias"),
        ('notify: [{kind: mlflow, name: a, model: "m\' OR 1"}]', "model"),
    ],
)
def test_a_wrong_channel_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings(tmp_path, text)


@pytest.mark.parametrize(
    "value", ["", "ftp://x/y", "//x", "http://", "http://x y", "http://x\ny", "file:///etc/passwd"]
)
def test_a_wrong_address_is_refused_before_the_run_and_not_repeated(value: str) -> None:
    with pytest.raises(ConfigError) as refused:
        sending.ways((SLACK,), Path(), {"SLACK_URL": value})
    assert "SLACK_URL" in str(refused.value)
    assert not value.strip() or value.strip() not in str(refused.value)


def test_channels_may_change_when_a_run_is_resumed(tmp_path: Path) -> None:
    one = settings(tmp_path, "notify: [{kind: slack, name: a, url_env: U}]")
    assert one.resolved() == settings(tmp_path, "name: run").resolved()


def test_the_command_sends_lists_and_has_it_tried_again(
    store: Store, receiver: Receiver, decide: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "name: demo\nnotify: [{kind: webhook, name: hook, url_env: HOOK_URL}]\n"
    settings(tmp_path, text)
    monkeypatch.setenv("HOOK_URL", receiver.url)
    home = ["--home", str(tmp_path / "home")]

    def run(*arguments: str, code: int) -> str:
        done = CliRunner().invoke(app, ["notify", *arguments, *home])
        assert done.exit_code == code, done.output + repr(done.exception)
        return done.stdout

    send = ("send", "--config", str(tmp_path / "palomar.yaml"))
    assert run(*send, code=0) == "0 sent, 0 waiting, 0 given up\n"
    decide("new", "block")
    receiver.answers = [500, 404, 200]
    assert run(*send, code=3) == "0 sent, 1 waiting, 0 given up\n"
    due_now(store)
    assert run(*send, code=1) == "0 sent, 0 waiting, 1 given up\n"
    assert "given up" in run("list", code=0)
    (listed,) = json.loads(run("list", "--json", code=0))
    assert (listed["state"], listed["attempts"], listed["problem"]) == ("given_up", 2, "answered with status 404")
    assert run("again", code=0) == "1 messages will be tried again\n"
    assert json.loads(run(*send, "--json", code=0)) == {"sent": 1, "waiting": 0, "given_up": 0}
    monkeypatch.delenv("HOOK_URL")
    assert CliRunner().invoke(app, ["notify", *send, *home]).exit_code != 0
    assert os.environ.get("HOOK_URL") is None
