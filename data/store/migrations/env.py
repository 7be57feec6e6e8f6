"""Alembic runs this for every command; `palomar.data.store.migrate` hands it a connection that is in a transaction."""

from typing import Any, Literal

from alembic import context
from sqlalchemy import JSON
from sqlalchemy.types import TypeDecorator

from palomar.data.store import models
from palomar.data.store.migrate import VERSION_TABLE


def plain(kind: str, item: Any, _: object) -> str | Literal[False]:
    """Writes our column types into new scripts as the constants of ``vocabulary``; False leaves the rest to Alembic."""
    if kind != "type" or not isinstance(item, (TypeDecorator, JSON)):
        return False
    return {"Key": "KEY", "Whole": "WHOLE", "Number": "NUMBER", "Moment": "MOMENT", "JSON": "OBJECT"}.get(
        type(item).__name__, "WORDS"
    )


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=models.Base.metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,
    render_item=plain,
)
with context.begin_transaction():
    context.run_migrations()
