"""What hooks read: doubt is never a promote, a block stands, and every rank does the same."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palomar.app import gate_exports
from palomar.app.gate_exports import write_decision_file
from palomar.data.store.records import Decision, Verdict
from palomar.trainer.hooks import decisions
from palomar.trainer.hooks.decisions import DecisionApi, DecisionFile
from palomar.trainer.hooks.watching import Actions, Watch

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
WORDS: tuple[Verdict, ...] = ("hold", "promote", "block", "promote")


def said(**changed: Any) -> dict[str, Any]:
    whole = {
        "format": "palomar-decision/1",
        "sequence": 3,
        "decision_id": "demo:c12:3",
        "run_id": "demo",
        "candidate": "c12",
        "cycle": 12,
        "verdict": "promote",
        "kind": "neutral",
        "reasons": ["neutral"],
        "sentence": "nothing is worse",
        "policy": "demo@1",
        "actor": "ada",
        "decided_at": NOON.isoformat(),
        "expires_at": None,
        "supersedes": None,
    }
    return {key: value for key, value in {**whole, **changed}.items() if value is not ...}


def write(path: Path, **changed: Any) -> None:
    path.write_text(json.dumps(said(**changed)))


def file_source(path: Path, clock: Callable[[], datetime] = lambda: NOON, **more: Any) -> DecisionFile:
    return DecisionFile(path, "demo", clock=clock, **more)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "decision.json"


def test_a_decision_that_the_gate_wrote_is_read_as_it_is(path: Path) -> None:
    for number, word in enumerate(WORDS, start=1):
        decision = Decision(
            "demo", 12, "c12", word, ("x",), {}, "demo@1", NOON, f"demo:{number}", number, "ada", sentence="because"
        )
        assert write_decision_file(path, decision)
        found = file_source(path).read("c12")
        assert (found.word, found.sequence, found.sentence) == (word, number, "because")
        assert found.promoted == (word == "promote")
    assert gate_exports.FILE_FORMAT == decisions.FILE_FORMAT


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"format": "palomar-decision/2"}, "other_format"),
        ({"format": ...}, "other_format"),
        ({"run_id": "other"}, "other_run"),
        ({"run_id": ...}, "other_run"),
        ({"candidate": "c11"}, "other_candidate"),
        ({"candidate": ["c12"]}, "other_candidate"),
        ({"verdict": "PROMOTE"}, "unknown_verdict"),
        ({"verdict": "promote "}, "unknown_verdict"),
        ({"verdict": True}, "unknown_verdict"),
        ({"verdict": ["promote"]}, "unknown_verdict"),
        ({"verdict": ...}, "unknown_verdict"),
        ({"sequence": ...}, "incomplete"),
        ({"sequence": True}, "incomplete"),
        ({"sequence": 0}, "incomplete"),
        ({"decision_id": None}, "incomplete"),
        ({"decided_at": ...}, "incomplete"),
        ({"decided_at": "2026-05-01T12:00:00"}, "incomplete"),
        ({"decided_at": "yesterday"}, "incomplete"),
        ({"expires_at": ...}, "incomplete"),
        ({"expires_at": "never"}, "incomplete"),
        ({"expires_at": NOON.isoformat()}, "expired"),
        ({"decided_at": (NOON - timedelta(hours=25)).isoformat()}, "too_old"),
        ({"decided_at": (NOON + timedelta(minutes=6)).isoformat()}, "from_the_future"),
    ],
)
def test_doubt_is_never_a_promote(path: Path, changed: dict[str, Any], why: str) -> None:
    write(path)
    assert file_source(path).read("c12").promoted
    write(path, **changed)
    found = file_source(path).read("c12")
    assert (found.word, found.why) == ("unknown", why)
    assert not found.promoted
    write(path, **{"verdict": "hold", **changed})
    assert file_source(path).read("c12").word == "unknown"


def test_no_file_half_a_file_a_folder_and_too_much_are_unknown(path: Path) -> None:
    assert file_source(path).read("c12").why == "no_file"
    whole = json.dumps(said()).encode()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert file_source(path).read("c12").why == "unreadable"
    for raw in (b"\xff\xfe", b"[" * 100_000, b"null", b"[]", b'"promote"', whole + b"x", whole + b" " * (5 << 20)):
        path.write_bytes(raw)
        assert file_source(path).read("c12").why in ("unreadable", "other_format")
    path.unlink()
    path.mkdir()
    assert file_source(path).read("c12").why == "unreadable"


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(sorted(said())),
        st.none() | st.booleans() | st.integers() | st.text() | st.floats() | st.lists(st.text(max_size=3), max_size=2),
        min_size=1,
    )
)
def test_whatever_stands_in_a_field_nothing_raises_and_only_the_word_promotes(changed: dict[str, Any]) -> None:
    judge = decisions._Judge("demo", 3600.0, lambda: NOON, one_place=True)
    found = judge.reading(said(**changed), "c12")
    load_bearing = ("format", "run_id", "candidate", "verdict", "sequence", "decision_id", "decided_at", "expires_at")
    if found.promoted:
        whole = said(**changed)
        for name in load_bearing:
            same = name in ("sequence", "decision_id", "expires_at") or whole[name] == said()[name]
            assert same, name
        assert whole["expires_at"] is None


def test_the_maximal_age_is_the_callers(path: Path) -> None:
    write(path, decided_at=(NOON - timedelta(seconds=61)).isoformat())
    assert file_source(path, max_age_s=62).read("c12").promoted
    assert file_source(path, max_age_s=60).read("c12").why == "too_old"
    assert file_source(path, max_age_s=float("inf")).read("c12").promoted
    for wrong in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="max_age_s"):
            file_source(path, max_age_s=wrong)


def test_a_block_stands_whatever_its_age_until_a_later_decision_about_the_same(path: Path) -> None:
    source = file_source(path)
    long_ago = (NOON - timedelta(days=30)).isoformat()
    write(path, verdict="block", sequence=5, decided_at=long_ago, expires_at=long_ago)
    assert source.read("c12").word == "block"
    write(path, candidate="c13", sequence=6)
    assert source.read("c12").word == "block"
    assert source.read("c13").promoted
    path.write_text("{")
    assert source.read("c12").word == "block"
    write(path, sequence=4)  # an older file was put back
    assert source.read("c12").word == "block"
    write(path, sequence=5)  # the same number with another word
    assert source.read("c12").word == "block"
    write(path, sequence=7)
    assert source.read("c12").promoted


def test_a_number_that_falls_is_doubt(path: Path) -> None:
    source = file_source(path)
    write(path, candidate="c13", sequence=9)
    source.read("c12")
    write(path, sequence=8)
    assert source.read("c12").why == "went_back"
    write(path, sequence=10)
    assert source.read("c12").promoted


# -- the API -------------------------------------------------------------------------------------------------------


class Answering:
    """A real HTTP server with one answer."""

    status, body, location = 200, b"", ""

    def __init__(self) -> None:
        answering = self
        self.asked: list[tuple[str, str | None]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answering.asked.append((self.path, self.headers.get("Authorization")))
                self.send_response(answering.status)
                if answering.location:
                    self.send_header("Location", answering.location)
                self.send_header("Content-Length", str(len(answering.body)))
                self.end_headers()
                self.wfile.write(answering.body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def answering() -> Iterator[Answering]:
    made = Answering()
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_the_api_promotes_only_with_200_and_a_whole_decision(answering: Answering) -> None:
    source = DecisionApi(answering.url + "/", "secret", "demo", clock=lambda: NOON, timeout_s=2)
    answering.body = json.dumps(said()).encode()
    assert source.read("c12").promoted
    assert answering.asked == [("/v1/gate/c12", "Bearer secret")]
    # Numbers are the run's: a candidate decided before is not older news of the other.
    answering.body = json.dumps(said(candidate="a/b?", sequence=1)).encode()
    assert source.read("a/b?").promoted
    assert answering.asked[-1][0] == "/v1/gate/a%2Fb%3F"
    answering.body = json.dumps(said()).encode()
    for status, why in ((404, "no_decision"), (401, "unreachable"), (429, "unreachable"), (500, "unreachable"),
                        (503, "unreachable"), (201, "unreadable"), (206, "unreadable")):  # fmt: skip
        answering.status = status
        assert source.read("c12").why == why, status
    answering.status, answering.body = 200, b'{"verdict": "promote"'
    assert source.read("c12").why == "unreadable"


def test_a_redirect_is_not_followed_with_the_token(answering: Answering) -> None:
    elsewhere = Answering()
    elsewhere.body = json.dumps(said()).encode()
    answering.status, answering.location = 302, f"{elsewhere.url}/v1/gate/c12"
    found = DecisionApi(answering.url, "secret", "demo", clock=lambda: NOON).read("c12")
    elsewhere.server.shutdown()
    elsewhere.server.server_close()
    assert found.why == "unreachable"
    assert elsewhere.asked == []


def test_an_api_that_is_gone_is_doubt_and_a_wrong_address_an_error(answering: Answering) -> None:
    answering.server.shutdown()
    answering.server.server_close()
    assert DecisionApi(answering.url, "x", "demo", timeout_s=1).read("c12").why == "unreachable"
    with pytest.raises(ValueError, match="url"):
        DecisionApi("file:///etc/passwd", "x", "demo")


# -- what to do ----------------------------------------------------------------------------------------------------


def test_a_block_of_any_checkpoint_in_hand_stops_and_unknown_is_done_as_hold(path: Path) -> None:
    source = file_source(path)
    watch = Watch([source], ["c12"], Actions(on_hold="save"))
    deed = watch.look(0)
    assert (deed.stop, deed.save, deed.reading.why) == (False, True, "no_file")
    assert not watch.look(1).save  # once for each thing that is read anew
    write(path, verdict="hold")
    assert watch.look(2).save
    write(path, sequence=4)
    deed = watch.look(3)
    assert (deed.stop, deed.save, deed.reading.word) == (False, False, "promote")
    watch.also("c12-20")
    write(path, sequence=5, candidate="c12-20", verdict="block")
    assert watch.look(4).stop
    watch.also("c12-40")
    write(path, sequence=6, candidate="c12-40")
    deed = watch.look(5)
    assert (deed.stop, deed.reading.candidate) == (True, "c12-20")


def test_every_so_many_steps(path: Path) -> None:
    write(path, verdict="block")
    watch = Watch([file_source(path)], ["c12"], every_steps=10)
    assert watch.look(3).stop  # the first look is never left out
    path.unlink()
    write(path, verdict="promote", sequence=4)
    assert watch.look(11).reading.word == "block"
    assert watch.look(20).reading.word == "promote"


def test_the_next_source_is_asked_where_the_first_knows_nothing(path: Path, answering: Answering) -> None:
    answering.body = json.dumps(said(verdict="block")).encode()
    api = DecisionApi(answering.url, "x", "demo", clock=lambda: NOON)
    assert Watch([file_source(path), api], ["c12"]).look(0).stop
    write(path, verdict="hold", sequence=9)
    assert not Watch([file_source(path), api], ["c12"]).look(0).stop


def test_waiting_ends_with_a_decision_or_with_doubt(path: Path) -> None:
    watch = Watch([file_source(path)], ["c12"])
    assert watch.wait("c12", timeout_s=0.1, poll_s=0.02).why == "no_file"
    write(path, verdict="hold")
    later = threading.Timer(0.2, lambda: write(path, sequence=4))
    later.start()
    assert watch.wait("c12", timeout_s=10, poll_s=0.02).promoted
    later.join()


def test_what_makes_no_sense_is_refused(path: Path) -> None:
    with pytest.raises(ValueError, match="on_block"):
        Actions(on_block="halt")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="source"):
        Watch([], ["c12"])
    with pytest.raises(ValueError, match="every_steps"):
        Watch([file_source(path)], ["c12"], every_steps=0)


def test_hooks_need_only_the_standard_library() -> None:
    code = """
import sys
class Only:
    def find_spec(self, name, path=None, target=None):
        top = name.split(".")[0]
        if top not in sys.stdlib_module_names and top != "palomar":
            raise ImportError(f"not the standard library: {name}")
sys.meta_path.insert(0, Only())
import palomar.trainer.hooks.watching, palomar.trainer.hooks.weights
loaded = {name for name in sys.modules if name.startswith("palomar.")}
assert all(name.startswith("palomar.trainer") for name in loaded), loaded
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_plain_loop_of_the_docs_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "hooks.md").read_text(encoding="utf-8")
    loop, callback = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    compile(callback, "docs/hooks.md", "exec")
    monkeypatch.chdir(tmp_path)
    for verdict, steps, ships in (("promote", 5, ["c13"]), ("block", 2, [])):
        done: list[str] = []

        def train(done: list[str] = done, verdict: str = verdict) -> None:
            done.append("step")
            if len(done) == 2:
                write(path, verdict=verdict, decided_at=datetime.now(UTC).isoformat())

        def save(verdict: str = verdict) -> str:
            if verdict == "promote":
                write(path, candidate="c13", sequence=4, decided_at=datetime.now(UTC).isoformat())
            return "c13"

        shipped: list[str] = []
        names = {"steps": 5, "train_one_step": train, "save": save, "deploy": shipped.append}
        exec(loop.replace("timeout_s=5 * 3600", "timeout_s=0"), names)
        assert (done.count("step"), shipped) == (steps, ships)
        path.unlink()
