"""A sample of each cycle's observations, kept beside the lake: what looks at rows one by one looks at these.

Drawn by a hash of the interactions' ids, so the same rows come each time and on every machine, whatever order they were
stored in; and in the order of the hash, so that the first k are a sample too.
"""

from __future__ import annotations

import pyarrow as pa

from palomar.data.derived import derived
from palomar.detectors.detector import View

MOST_ROWS = 5_000
"""Of one cycle."""
FOLDS = 3
"""Parts that users are cut into, column ``fold``: no user is in two."""
_VERSION = "1"


def sample(seen: View, cycle: int | None, most: int = MOST_ROWS) -> pa.Table:
    """At most `most` (up to `MOST_ROWS`) observations of a cycle in random order, all columns, and ``fold``."""
    sql = f"""
        SELECT *, (md5_number_lower(coalesce(user_id, conversation_id, interaction_id)) % {FOLDS})::INTEGER AS fold
        FROM observations ORDER BY md5_number_lower(interaction_id), interaction_id LIMIT {MOST_ROWS}
    """
    table = derived(
        seen.lake,
        "sample",
        cycle,
        version=_VERSION,
        parts=[("observations", [cycle])],
        make=lambda: seen.query(sql, [cycle]),
    )
    return table.slice(0, most)
