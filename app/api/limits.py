"""How much one request, and one token, may ask for: bodies in bounded memory, batches, and a rate."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
import zlib
from dataclasses import dataclass

from fastapi import Request

from palomar.app.api.errors import Refusal, later


@dataclass(frozen=True)
class Limits:
    """What is refused."""

    body_bytes: int = 16 * 1024 * 1024
    """A batch as it is sent, compressed or not."""
    unpacked_bytes: int = 64 * 1024 * 1024
    """A batch after decompression."""
    records: int = 1_000
    """In one batch."""
    small_body_bytes: int = 64 * 1024
    """Any other body."""
    body_s: float = 60.0
    """For a body to arrive."""
    requests_per_s: float = 20.0
    """By one token, in the long run; twice as many at once."""
    batches_waiting: int = 4
    """Batches that are read or written at once; more are told to come again."""
    free_bytes: int = 512 * 1024 * 1024
    """Below so much free disk, nothing is taken in."""


class Rate:
    """A token bucket for each caller, in this process."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._most = max(1.0, 2 * per_s)
        self._lock = threading.Lock()
        self._state: dict[str, tuple[float, float]] = {}

    def take(self, caller: str) -> None:
        """Counts a request. Raises Refusal (429) with when to come again."""
        with self._lock:
            now = time.monotonic()
            left, since = self._state.get(caller, (self._most, now))
            left = min(self._most, left + (now - since) * self._per_s)
            if left >= 1:
                self._state[caller] = (left - 1, now)
                return
            self._state[caller] = (left, now)
        wait = (1 - left) / self._per_s
        raise later(f"more than {self._per_s:g} requests a second by this token", code="rate", seconds=wait, status=429)


async def body_of(request: Request, limits: Limits) -> bytes:
    """The body as it was sent; its size is limited around every request. Raises Refusal where it takes too long."""
    pieces = []
    try:
        async with asyncio.timeout(limits.body_s):
            async for piece in request.stream():
                pieces.append(piece)
    except TimeoutError as exc:
        raise Refusal(408, f"the body took more than {limits.body_s:g} s to arrive", where="body") from exc
    return b"".join(pieces)


def unpacked(body: bytes, encoding: str | None, limits: Limits) -> bytes:
    """The body without its compression. Never holds more than the limit: a bomb is refused when it reaches it."""
    name = (encoding or "identity").strip().lower()
    if name == "identity":
        if len(body) > limits.unpacked_bytes:
            raise _too_large(limits.unpacked_bytes, "unpacked")
        return body
    if name not in ("gzip", "x-gzip"):
        raise Refusal(415, "a body may be compressed with gzip only", where="Content-Encoding")
    found, left = bytearray(), body
    while left:
        packed = zlib.decompressobj(wbits=31)
        try:
            found += packed.decompress(left, limits.unpacked_bytes + 1 - len(found))
        except zlib.error as exc:
            raise Refusal(400, "the body is not gzip, or is damaged", where="body") from exc
        if len(found) > limits.unpacked_bytes:
            raise _too_large(limits.unpacked_bytes, "unpacked")
        if not packed.eof:
            raise Refusal(400, "the gzip body breaks off before its end", where="body")
        left = packed.unused_data
    return bytes(found)


def records_of(body: bytes, content_type: str | None, limits: Limits) -> list[bytes]:
    """The records of a batch, each still JSON text. Raises Refusal where the batch itself cannot be taken apart."""
    kind = (content_type or "").split(";")[0].strip().lower()
    if kind in ("application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines"):
        found = [line for line in body.split(b"\n") if line.strip()]
    elif kind == "application/json":
        found = _elements(body)
    else:
        raise Refusal(415, "send application/json (an array) or application/x-ndjson", where="Content-Type")
    if not found:
        raise Refusal(422, "there is no record in the batch", where="body")
    if len(found) > limits.records:
        raise Refusal(413, f"{len(found):,} records; a batch may have {limits.records:,}", where="body")
    return found


def _elements(body: bytes) -> list[bytes]:
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise Refusal(400, f"byte {exc.start} of the body is not UTF-8", where="body") from exc
    decoder = json.JSONDecoder()
    found: list[bytes] = []
    at = _skip(text, 0)
    if text[at : at + 1] != "[":
        raise Refusal(422, "application/json must be an array of records", where="body")
    at = _skip(text, at + 1)
    if text[at : at + 1] == "]":
        at += 1
    else:
        while True:
            try:
                _, end = decoder.raw_decode(text, at)
            except (ValueError, RecursionError) as exc:
                raise Refusal(400, f"not JSON in record {len(found)}", where=f"body[{len(found)}]") from exc
            found.append(text[at:end].encode("utf-8", errors="replace"))
            at = _skip(text, end)
            mark, at = text[at : at + 1], _skip(text, at + 1)
            if mark == "]":
                break
            if mark != ",":
                raise Refusal(400, f"not JSON after record {len(found) - 1}", where=f"body[{len(found)}]")
    if _skip(text, at) != len(text):
        raise Refusal(400, "there is something after the array", where="body")
    return found


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _too_large(most: int, how: str) -> Refusal:
    return Refusal(413, f"a body of more than {math.floor(most / 1024):,} KiB {how}", where="body")
