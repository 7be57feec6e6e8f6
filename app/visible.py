"""Text that someone else wrote, with what could fool a reader made visible."""

from __future__ import annotations

import unicodedata


def visible(text: str) -> str:
    """Text with control characters and direction overrides replaced by U+FFFD; line ends and tabs stay."""
    return "".join(
        character if character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cf", "Cs") else "\ufffd"
        for character in text
    )
