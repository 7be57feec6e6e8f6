"""Text that someone else wrote, made safe to show.

Streamlit reads Markdown in labels, captions and messages, and fetches the images it names. Text of agents and users
goes through `st.text` and `st.code` only; where it must stand in a label it goes through `plain`.
"""

from __future__ import annotations

import re

from palomar.app.visible import visible

_MARKUP = re.compile(r"([\\`*_{}\[\]()<>#+!|$:~&^=-])")
MAX_SHOWN = 20_000
"""Characters of one text that are shown; the rest can be downloaded."""


def plain(text: str, limit: int = 200) -> str:
    """Text for a label: Markdown and HTML escaped, control characters visible, cut to `limit` characters."""
    return _MARKUP.sub(r"\\\1", visible(text[:limit]).replace("\n", " ")) + ("…" if len(text) > limit else "")


def shown(text: str) -> tuple[str, int]:
    """Text for a body, cut to `MAX_SHOWN` characters, and how many were left out."""
    return visible(text[:MAX_SHOWN]), max(0, len(text) - MAX_SHOWN)
