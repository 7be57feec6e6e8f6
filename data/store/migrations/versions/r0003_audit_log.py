"""The audit log: who did what and why, each entry chained to the one before."""

import sqlalchemy as sa
from alembic import op

from palomar.data.store.migrations.vocabulary import KEY, OBJECT, WHOLE, WORDS, make_immutable

revision = "0003"
down_revision = "0002"

GENESIS = "0" * 64


def upgrade() -> None:
    op.create_table(
        "audit_log",
        sa.Column("number", WHOLE, nullable=False),
        sa.Column("at", WORDS, nullable=False),
        sa.Column("actor", WORDS, nullable=False),
        sa.Column("action", WORDS, nullable=False),
        sa.Column("subject", KEY, nullable=False),
        sa.Column("reason", WORDS, nullable=False),
        sa.Column("detail", OBJECT, nullable=False),
        sa.Column("token", KEY, nullable=False),
        sa.Column("previous", WORDS, nullable=False),
        sa.Column("hash", WORDS, nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_audit_log")),
    )
    op.create_index(op.f("ix_audit_log_token"), "audit_log", ["token"], unique=True)
    op.create_index(op.f("ix_audit_log_subject_number"), "audit_log", ["subject", "number"])
    head = op.create_table(
        "audit_log_head",
        sa.Column("log", KEY, nullable=False),
        sa.Column("entries", WHOLE, nullable=False),
        sa.Column("hash", WORDS, nullable=False),
        sa.PrimaryKeyConstraint("log", name=op.f("pk_audit_log_head")),
    )
    op.bulk_insert(head, [{"log": "audit_log", "entries": 0, "hash": GENESIS}])
    make_immutable("audit_log")
    if op.get_bind().dialect.name == "sqlite":
        # SQLite's INSERT OR REPLACE deletes the row in its way without asking the trigger on DELETE.
        op.execute(
            "CREATE TRIGGER audit_log_refuse_replace BEFORE INSERT ON audit_log "
            "WHEN EXISTS (SELECT 1 FROM audit_log WHERE number = NEW.number OR token = NEW.token) "
            "BEGIN SELECT RAISE(ABORT, 'rows of audit_log are never changed'); END"
        )
