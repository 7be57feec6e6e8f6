"""From a table's row to its record."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from sqlalchemy.orm import InstrumentedAttribute

from palomar.data.store.models import Base


def columns(model: type[Base], record: type) -> list[InstrumentedAttribute[Any]]:
    """The model's columns in the order of the record's fields, so that ``record(*row)`` reads a row."""
    return [getattr(model, field.name) for field in fields(record) if field.name in model.__table__.columns]
