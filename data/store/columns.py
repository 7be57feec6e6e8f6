"""Column types that keep one promise on SQLite and PostgreSQL: what is written is what is read, or it is refused.

Left alone, the two differ: PostgreSQL cannot hold a NUL in text, neither holds a lone surrogate (both occur in logs of
broken tools), SQLite turns NaN into NULL and takes any word for a status.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, DateTime, Dialect, Double, Text
from sqlalchemy.dialects.postgresql import TEXT
from sqlalchemy.types import TypeDecorator, TypeEngine

KEY_BYTES = 600
"""Longest key, in bytes of UTF-8. PostgreSQL indexes at most 2,704 bytes an entry; our widest key has four parts."""

# U+FFFE is a noncharacter: Unicode promises it to no one, so escaping by it costs nobody a readable text.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff\ufffe]")
_ESCAPED = re.compile("\ufffe([0-9A-F]{4})")


def escape(text: str) -> str:
    """Text that both databases can hold; `unescape` gives back exactly what came in, and no two texts become one."""
    if text.isascii() and "\x00" not in text:
        return text
    return _UNSTORABLE.sub(lambda match: f"\ufffe{ord(match[0]):04X}", text)


def unescape(text: str) -> str:
    """The inverse of `escape`."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text) if "\ufffe" in text else text


class Words(TypeDecorator[str]):
    """Free text of any length and any characters."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Escaped text, or None."""
        return None if value is None else escape(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        """The text as it was given."""
        return None if value is None else unescape(value)


class Key(Words):
    """Text that identifies something: at most `KEY_BYTES` long, and sorted by code point on both databases."""

    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Collation C on PostgreSQL, since its default order depends on the server's locale."""
        return TEXT(collation="C") if dialect.name == "postgresql" else Text()

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Escaped text, or None; ValueError where it is too long."""
        text = super().process_bind_param(value, dialect)
        # A quarter of the limit in characters cannot exceed it in bytes; that spares encoding in bulk writes.
        if text is not None and len(text) > KEY_BYTES // 4 and len(text.encode()) > KEY_BYTES:
            raise ValueError(f"an identifier may have at most {KEY_BYTES} bytes, not {len(text.encode())}")
        return text


class OneOf(TypeDecorator[str]):
    """One word of a fixed set. Checked here, not by a constraint, so that a new word needs no migration."""

    impl = Text
    cache_ok = True

    def __init__(self, words: Iterable[str] = ()) -> None:
        super().__init__()
        self.words = tuple(words)

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """The word; ValueError where it is none of them."""
        if value is not None and value not in self.words:
            raise ValueError(f"{value!r} is not one of {', '.join(self.words)}")
        return value


class Whole(TypeDecorator[int]):
    """Integer of 64 bits, of any integer type (numpy's too)."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: int | None, dialect: Dialect) -> int | None:
        """A plain int; ValueError beyond 64 bits."""
        if value is None:
            return None
        value = operator.index(value)
        if not -(2**63) <= value < 2**63:
            raise ValueError(f"{value} does not fit 64 bits")
        return value


class Number(TypeDecorator[float]):
    """Finite double. NaN is refused: "could not tell" is None with a status."""

    impl = Double
    cache_ok = True

    def process_bind_param(self, value: float | None, dialect: Dialect) -> float | None:
        """A plain float; ValueError where it is not finite."""
        if value is None:
            return None
        if not math.isfinite(value):
            raise ValueError(f"{value} is not a number that can be stored; store None and say why")
        return float(value)


class Moment(TypeDecorator[datetime]):
    """Time in UTC; one without a zone is refused."""

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """``timestamptz`` on PostgreSQL; on SQLite the flag changes nothing."""
        return DateTime(timezone=True)

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """The moment in UTC; bare on SQLite, which has no zones."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("time has no zone")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """The moment in UTC, with its zone."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


# ``json``, not ``jsonb``: it keeps the text as written, while jsonb refuses \u0000.
Object = JSON(none_as_null=True)
