"""Messages over HTTP: signed webhooks, and Slack.

No redirect is followed (it would carry the message and its signature to an address that nobody named), and what is
said of a failure never repeats the URL or the answer, which may hold secrets.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import ssl
import time
import urllib.error
import urllib.request
from typing import Any

from palomar import __version__
from palomar.app.visible import visible
from palomar.data.store.records import Message

TIMEOUT_S = 5.0
LONGEST_AFTER_S = 3600.0
_WORTH_ANOTHER = {408, 409, 425, 429}
"""Refusals that another attempt may change; any other 4xx (and 3xx) would be answered the same again."""


class Failed(Exception):  # noqa: N818
    """A message did not arrive."""

    def __init__(self, problem: str, *, worth_another: bool = True, after_s: float | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.worth_another = worth_another
        self.after_s = after_s
        """Seconds that the receiver asked to be left alone for."""


class Webhook:
    """JSON by POST, signed where there is a secret."""

    def __init__(self, url: str, secret: str | None) -> None:
        self._url = url
        self._secret = secret

    def send(self, message: Message) -> None:
        """Raises Failed."""
        body = message.body.encode("ascii")
        name = f"{message.run_id}/{message.number}"
        headers = {"Idempotency-Key": name, "Palomar-Event": message.event}
        if self._secret is not None:
            headers["Palomar-Signature"] = signature(self._secret, body, int(time.time()))
        post(self._url, body, headers)


class Slack:
    """An incoming webhook of Slack."""

    def __init__(self, url: str) -> None:
        self._url = url

    def send(self, message: Message) -> None:
        """Raises Failed."""
        post(self._url, json.dumps(slack_message(json.loads(message.body))).encode("ascii"), {})


def signature(secret: str, body: bytes, at: int) -> str:
    """``t=SECONDS,v1=HEX``: HMAC-SHA256 over ``SECONDS.BODY``, so that an old message cannot be sent again later."""
    said = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={said}"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)


def post(url: str, body: bytes, headers: dict[str, str], timeout_s: float = TIMEOUT_S) -> None:
    """Returns once the receiver answered with 2xx. Raises Failed."""
    given = {"Content-Type": "application/json", "User-Agent": f"palomar/{__version__}", **headers}
    request = urllib.request.Request(url, data=body, headers=given, method="POST")
    try:
        _OPENER.open(request, timeout=timeout_s).close()  # what it says beside its status is of no concern
    except urllib.error.HTTPError as exc:
        again = exc.code >= 500 or exc.code in _WORTH_ANOTHER
        after = exc.headers.get("Retry-After", "") if exc.headers is not None else ""
        exc.close()
        wait = min(float(after), LONGEST_AFTER_S) if after.isdecimal() else None
        raise Failed(f"answered with status {exc.code}", worth_another=again, after_s=wait) from None
    except TimeoutError:
        raise Failed(f"no answer within {timeout_s:g} s") from None
    except (urllib.error.URLError, http.client.HTTPException, OSError) as exc:
        reason = getattr(exc, "reason", exc)
        if isinstance(reason, TimeoutError):
            raise Failed(f"no answer within {timeout_s:g} s") from None
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise Failed("its certificate cannot be verified") from None
        number = getattr(reason, "strerror", None)
        raise Failed(f"cannot be reached: {number or type(reason).__name__}") from None


# -- Slack ---------------------------------------------------------------------------------------------------------

_MARKS = {"promote": "\u2705", "hold": "\u23f3", "block": "\u26d4", "rollback": "\u23ea", "incident": "\U0001f6a8"}
HEADER, SECTION = 150, 3000
"""Most characters that Slack takes in a header and in a section."""


def slack_message(said: dict[str, Any]) -> dict[str, Any]:
    """Block Kit of an event. All text is plain and escaped, so that nothing in it pings, links or is formatted."""
    title, lines = _words(said)
    marked = f"{_MARKS[said['event']]} {title}"
    told = "\n".join(f"{label}{words}" for label, words in lines if words)
    context = f"{said['run_id']} \u00b7 {said['at'][:16].replace('T', ' ')} UTC \u00b7 by {said['actor']}"
    return {
        "text": escape(marked, SECTION),  # of notifications, where Slack does read markup
        "blocks": [
            {"type": "header", "text": _plain(marked, HEADER)},
            {"type": "section", "text": _plain(told or "-", SECTION)},
            {"type": "context", "elements": [_plain(context, 300)]},
        ],
    }


def _words(said: dict[str, Any]) -> tuple[str, list[tuple[str, str]]]:
    if (decision := said.get("decision")) is not None:
        kind = f" ({decision['kind']})" if decision["kind"] else ""
        ends = (decision["expires_at"] or "")[:16].replace("T", " ")
        return f"{decision['verdict'].upper()}{kind}: {decision['candidate']} of cycle {decision['cycle']}", [
            ("", decision["sentence"]),
            ("why: ", ", ".join(decision["reasons"][:5])),
            ("until: ", f"{ends} UTC" if ends else ""),
            ("", f"decision {decision['decision_id']}, policy {decision['policy']}"),
        ]
    if (incident := said.get("incident")) is not None:
        return f"incident {incident['number']} {incident['state']}: {incident['title']}", [
            ("", incident["reason"]),
            ("ended as: ", str(incident["resolution"] or "").replace("_", " ")),
            ("with: ", incident["assignee"] or ""),
            ("", f"cycles {incident['opened_cycle']} to {incident['seen_cycle']}"),
        ]
    return f"ROLLED BACK: {said['rollback']['checkpoint']}", [("", said["sentence"])]


def _plain(text: str, most: int) -> dict[str, Any]:
    return {"type": "plain_text", "emoji": False, "text": escape(text, most)}


def escape(text: str, most: int) -> str:
    """Text as Slack shows it; at most so many characters, escapes counted, and none cut in half."""
    escapes = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
    parts = [escapes.get(each, each) for each in visible(text)]
    if sum(map(len, parts)) > most:
        length, kept = 3, []
        for part in parts:
            length += len(part)
            if length > most:
                break
            kept.append(part)
        parts = [*kept, "..."]
    return "".join(parts)
