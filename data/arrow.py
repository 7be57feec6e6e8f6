"""The Arrow schema of the records in ``palomar.data.schema``, derived from their annotations.

One source of truth: add a field to a record and the lake has its column. The mapping is total over the types the
records use; a field of any other type is an error at import, not a surprise at write.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import pyarrow as pa
from pydantic import BaseModel

from palomar.data.schema import SCHEMA_VERSION, Interaction, Record

R = TypeVar("R", bound=Record)

_SCALARS: dict[type, pa.DataType] = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    datetime: pa.timestamp("us", tz="UTC"),
}


@cache
def arrow_schema(record: type[Record]) -> pa.Schema:
    """Arrow schema of a record class; fields that may be None are nullable, all others are not.

    Raises TypeError for an annotation outside the mapping.
    """
    fields = [_field(name, info.annotation) for name, info in record.model_fields.items()]
    return pa.schema(fields, metadata={b"palomar_schema": f"{record.__name__}/{SCHEMA_VERSION}".encode()})


def _field(name: str, annotation: Any) -> pa.Field[Any]:
    inner, nullable = _split_optional(annotation)
    return pa.field(name, _arrow_type(inner), nullable=nullable)


def _split_optional(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) in (Union, types.UnionType):
        rest = [arg for arg in get_args(annotation) if arg is not types.NoneType]
        if len(rest) != 1:
            raise TypeError(f"no Arrow type for the union {annotation}")
        return rest[0], True
    return annotation, False


def _arrow_type(annotation: Any) -> pa.DataType:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _arrow_type(get_args(annotation)[0])
    if origin is Literal:
        return pa.string()
    if origin is tuple and get_args(annotation)[1:] == (Ellipsis,):
        return pa.list_(_field("item", get_args(annotation)[0]))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return pa.struct([_field(name, info.annotation) for name, info in annotation.model_fields.items()])
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    raise TypeError(f"no Arrow type for {annotation}")


INTERACTION_SCHEMA = arrow_schema(Interaction)


def to_arrow(records: Sequence[R], record: type[R]) -> pa.Table:
    """Records as a table with `arrow_schema(record)`."""
    return pa.Table.from_pylist([item.model_dump() for item in records], schema=arrow_schema(record))


def from_arrow(table: pa.Table, record: type[R]) -> list[R]:
    """The records a table holds; the inverse of `to_arrow`, validated again since files can be damaged."""
    return [record.model_validate(row) for row in table.select(arrow_schema(record).names).to_pylist()]
