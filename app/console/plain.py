"""Text that someone else wrote, made safe to show.

Streamlit reads Markdown in labels, captions and messages, and fetches the images it names. Text of agents and users
goes through `st.text` and `st.code` only; where it must stand in a line of our own it goes through `plain`.
"""

from __future__ import annotations

import re

from palomar.app.visible import visible

MAX_SHOWN = 6_000
"""Characters of one text that are shown; the rest is in the record, which can be downloaded."""


def plain(text: str, limit: int = 200) -> str:
    """Text in a line of Markdown: a code span, in which nothing is read as markup; cut to `limit` characters.

    A code span and not backslashes, since addresses become links in spite of those; and so a reader sees which words
    are not ours. The fence is longer than any run of backticks within.
    """
    body = " ".join(visible(text[:limit]).split()) + ("…" if len(text) > limit else "")
    if not body:
        return "(empty)"
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", body)), default=0))
    # Spaces inside the fence are taken off again; they keep backticks at either end apart from it.
    return f"{fence} {body} {fence}"


def shown(text: str, limit: int = MAX_SHOWN) -> tuple[str, int]:
    """Text for a body, cut to `limit` characters, and how many were left out."""
    return visible(text[:limit]), max(0, len(text) - limit)
