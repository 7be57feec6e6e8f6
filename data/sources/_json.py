"""JSON as logs really hold it: cut off, with a byte order mark, with NaN, with half surrogates."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from palomar.data.errors import IngestError

BOM = b"\xef\xbb\xbf"
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[{}\[\],]', re.DOTALL)  # a string may be cut off
_CLOSER = {"{": "}", "[": "]"}
_ENCODER = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)
_SURROGATE = re.compile("[\ud800-\udfff]")


def loads(raw: bytes, source: str = "", line: int | None = None) -> Any:
    """The value in `raw`.

    A lone surrogate (``"\\ud83d"`` without its half, legal in JSON, impossible in UTF-8 and in Arrow) becomes U+FFFD.
    NaN and Infinity are read as floats: only the caller knows whether they stand for a reward that failed.

    Raises IngestError of kind ``encoding`` (naming the byte) or ``damaged`` (naming the character).
    """
    try:
        text = raw.removeprefix(BOM).decode("utf-8")
    except UnicodeDecodeError as exc:
        problem = f"byte {exc.start} (0x{raw[exc.start]:02x}) is not UTF-8: {exc.reason}"
        raise IngestError(source, line, None, problem, "encoding") from exc
    try:
        value = json.loads(text)
    except json.JSONDecodeError as exc:
        raise IngestError(source, line, None, f"not JSON at character {exc.pos}: {exc.msg}", "damaged") from exc
    except (RecursionError, ValueError) as exc:  # nested too deeply; an integer of more digits than Python converts
        raise IngestError(source, line, None, f"not readable JSON: {exc}", "damaged") from exc
    escaped = b"\\ud" in raw or b"\\uD" in raw
    return without_lone_surrogates(value) if escaped else value


def without_lone_surrogates(value: Any) -> Any:
    """The same value with U+FFFD for every lone surrogate in its strings."""
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [without_lone_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {without_lone_surrogates(key): without_lone_surrogates(item) for key, item in value.items()}
    return value


def dumps(value: Any) -> str:
    """Compact JSON with sorted keys (so that equal values give equal text); NaN and infinities become strings."""
    try:
        return _ENCODER.encode(value)
    except ValueError:
        return _ENCODER.encode(_finite(value))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return value


def partial(text: str) -> Any:
    """What the beginning of a JSON text says: the text up to its last complete member, with all brackets closed.

    Lets a source recognise a document from its first bytes. None where nothing can be read.
    """
    stack: list[str] = []
    cut = 0
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token in _CLOSER:
            stack.append(_CLOSER[token])
            cut = match.end()
        elif token in ("}", "]"):
            if not stack or stack.pop() != token:
                return None
            cut = match.end()
            if not stack:
                break
        elif token == "," and stack:
            cut = match.start()
    closers = "".join(reversed(stack))
    try:
        return json.loads(text[:cut] + closers)
    except (ValueError, RecursionError):
        return None
