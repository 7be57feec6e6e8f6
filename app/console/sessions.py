"""Sessions of the console without a browser: what a browser sends and gets on its socket, and nothing of what it draws.

Twenty browsers would measure themselves on a small machine. A session here is a real one to the server: it has the
state, the reruns and the refreshing strip of a reader, and its messages are Streamlit's own. Nothing is taken from a
cache of messages, so that payloads are those of a first visit.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin, Subprotocol

PATIENCE_S = 120


@dataclass(frozen=True)
class Answer:
    """What came of one rerun."""

    seconds: float
    """From what was sent to the end of the script: everything that the page says has come by then."""
    received: int
    """Bytes."""
    problems: tuple[str, ...]
    """Exceptions that the page shows; our own words for a part that failed are none."""


class Session:
    """One reader of the console; close it when done."""

    def __init__(self, url: str) -> None:
        address = url.replace("http://", "ws://") + "/_stcore/stream"
        self._socket: ClientConnection = connect(
            address, origin=Origin(url), subprotocols=[Subprotocol("streamlit")], max_size=None
        )
        self._refresh: dict[str, float] = {}
        self._refreshed = time.monotonic()
        self._last = BackMsg()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()

    def open(self, page: str, query: Mapping[str, str] | None = None) -> Answer:
        """Goes to a page, as a link does."""
        message = BackMsg()
        message.rerun_script.query_string = urlencode(query or {})
        message.rerun_script.page_name = "" if page == "overview" else page
        message.rerun_script.context_info.timezone = "UTC"
        message.rerun_script.context_info.url = "http://localhost/" + message.rerun_script.page_name
        self._last = message
        self._refresh = {}
        return self._ask(message)

    def refresh(self) -> None:
        """Lets parts that renew themselves do so, where their time has come, as a browser would."""
        due = [each for each, every in self._refresh.items() if time.monotonic() - self._refreshed >= every]
        for fragment in due:
            message = BackMsg()
            message.CopyFrom(self._last)
            message.rerun_script.fragment_id = fragment
            message.rerun_script.is_auto_rerun = True
            self._ask(message)
        if due:
            self._refreshed = time.monotonic()

    def _ask(self, message: BackMsg) -> Answer:
        began = time.perf_counter()
        self._socket.send(message.SerializeToString())
        received = 0
        problems: list[str] = []
        while True:
            raw = self._socket.recv(timeout=PATIENCE_S)
            assert isinstance(raw, bytes), "Streamlit speaks in bytes"
            received += len(raw)
            told = ForwardMsg.FromString(raw)
            kind = told.WhichOneof("type")
            if kind == "auto_rerun":
                self._refresh[told.auto_rerun.fragment_id] = told.auto_rerun.interval
            elif kind == "delta" and told.delta.new_element.WhichOneof("type") == "exception":
                problems.append(told.delta.new_element.exception.type)
            elif kind == "script_finished":
                if told.script_finished == ForwardMsg.FINISHED_EARLY_FOR_RERUN:
                    continue  # the page asked for another run of itself
                return Answer(time.perf_counter() - began, received, tuple(problems))
