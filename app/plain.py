"""Records as JSON, the same for the command line's ``--json`` and the HTTP API."""

from __future__ import annotations

import json
import math
from datetime import datetime
from pathlib import Path
from typing import Any


def plain_json(value: Any) -> bytes:
    """JSON in UTF-8; a number that is not finite is null, since JSON has no other word for it.

    A lone surrogate, which UTF-8 cannot hold, is written as JSON's own escape.
    """
    return json.dumps(_plain(value), ensure_ascii=False).encode(errors="backslashreplace")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, datetime | Path):
        return str(value)
    return value
