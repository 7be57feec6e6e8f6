"""Rows of facts for the tests of rewards."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from palomar.data.observations import FACTS

AS_OF = datetime(2026, 3, 2, tzinfo=UTC)
WATCHED_A_WEEK = 7 * 86_400.0
ORDINARY: dict[str, Any] = {
    "source": "test", "turn": 0, "cycle": 0, "traffic": "production", "agent_turns": 1, "tool_calls": 1,
    "invalid_malformed": 0, "invalid_unparsed": 0, "invalid_unknown_tool": 0, "invalid_schema": 0,
    "invalid_rejected": 0, "calls_failed": 0, "calls_timed_out": 0, "calls_refused": 0, "edits": 0, "edits_failed": 0,
    "edited": False, "asked": False, "files_edited": 0, "latency_s": 10.0, "as_of": AS_OF,
    "watched_s": WATCHED_A_WEEK, "undone": False, "refusals": 0, "answered": False,
    "predicted_failure": 0.5, "ambiguity": 0.5, "organisation": "quill",
}  # fmt: skip


@pytest.fixture(scope="session")
def facts() -> Callable[..., pa.Table]:
    """``facts({...}, {...})``: one row each, ordinary (no edit, no question, long ago) but for what is named."""

    def table(*rows: dict[str, Any]) -> pa.Table:
        filled = [{"interaction_id": f"i{index}"} | ORDINARY | row for index, row in enumerate(rows)]
        unknown = {name for row in filled for name in row} - set(FACTS.names)
        assert not unknown, unknown
        return pa.Table.from_pylist(filled, schema=FACTS)

    return table
