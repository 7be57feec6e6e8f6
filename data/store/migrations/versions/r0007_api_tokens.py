"""Tokens of programs that speak to the HTTP API; of each only a hash is kept."""

import sqlalchemy as sa
from alembic import op

from palomar.data.store.migrations.vocabulary import KEY, MOMENT, OBJECT, WORDS

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_table(
        "api_tokens",
        sa.Column("token_id", KEY, nullable=False),
        sa.Column("name", KEY, nullable=False),
        sa.Column("roles", OBJECT, nullable=False),
        sa.Column("hash", WORDS, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("created_by", WORDS, nullable=False),
        sa.Column("expires_at", MOMENT, nullable=False),
        sa.Column("revoked_at", MOMENT, nullable=True),
        sa.Column("revoked_by", WORDS, nullable=True),
        sa.PrimaryKeyConstraint("token_id", name=op.f("pk_api_tokens")),
    )
    op.create_index(op.f("ix_api_tokens_name"), "api_tokens", ["name"], unique=True)
