"""A sample of each cycle's observations, kept beside the lake: what looks at rows one by one looks at these.

Drawn by DuckDB's hash of the interactions' ids, so the same rows come each time, whatever order they were stored in;
and in the order of the hash, so that the first k are a sample too.
"""

from __future__ import annotations

import pyarrow as pa

from palomar.data.derived import derived
from palomar.detectors.detector import View

MOST_ROWS = 5_000
"""Of one cycle."""
FOLDS = 3
"""Parts that users are cut into, column ``fold``: no user is in two."""
_VERSION = "2"


def sample(seen: View, cycle: int | None, most: int = MOST_ROWS) -> pa.Table:
    """At most `most` (up to `MOST_ROWS`) observations of a cycle in random order, all columns, and ``fold``."""
    table = derived(
        seen.lake,
        "sample",
        cycle,
        version=_VERSION,
        parts=[("observations", [cycle])],
        make=lambda: _drawn(seen, cycle),
    )
    return table.slice(0, most)


def _drawn(seen: View, cycle: int | None) -> pa.Table:
    num_rows = seen.query("SELECT count(*) AS n FROM observations", [cycle])["n"][0].as_py()
    # Only rows with small hashes are sorted: twice as many as wanted, so that there are always enough.
    share = 2 * MOST_ROWS / max(num_rows, 1)
    small = "true" if share >= 1 else f"hash(interaction_id) < {int(share * 2**64)}"
    sql = f"""
        SELECT *, (hash(coalesce(user_id, conversation_id, interaction_id)) % {FOLDS})::INTEGER AS fold
        FROM observations WHERE {small} ORDER BY hash(interaction_id), interaction_id LIMIT {MOST_ROWS}
    """
    return seen.query(sql, [cycle])
