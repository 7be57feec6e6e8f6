"""Silences: detectors that open no incident for a while, and what they found meanwhile."""

import sqlalchemy as sa
from alembic import op

from palomar.data.store.migrations.vocabulary import KEY, MOMENT, WHOLE, WORDS, make_immutable

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.create_table(
        "silences",
        sa.Column("number", WHOLE, nullable=False, autoincrement=False),
        sa.Column("run_id", KEY, nullable=False),
        sa.Column("detector", WORDS, nullable=False),
        sa.Column("statistic", WORDS, nullable=True),
        sa.Column("slice", WORDS, nullable=True),
        sa.Column("reason", WORDS, nullable=False),
        sa.Column("actor", WORDS, nullable=False),
        sa.Column("made_at", MOMENT, nullable=False),
        sa.Column("until_cycle", WHOLE, nullable=True),
        sa.Column("until", MOMENT, nullable=True),
        sa.Column("ended_at", MOMENT, nullable=True),
        sa.Column("ended_by", WORDS, nullable=True),
        sa.Column("ended_reason", WORDS, nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name=op.f("fk_silences_run_id")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_silences")),
    )
    op.create_index(op.f("ix_silences_run_id_number"), "silences", ["run_id", "number"])
    op.create_table(
        "silenced_findings",
        sa.Column("silence", WHOLE, nullable=False),
        sa.Column("finding_id", KEY, nullable=False),
        sa.Column("key", KEY, nullable=False),
        sa.Column("cycle", WHOLE, nullable=False),
        sa.Column("blocks", WHOLE, nullable=False),
        sa.Column("sentence", WORDS, nullable=False),
        sa.Column("silenced_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(["silence"], ["silences.number"], name=op.f("fk_silenced_findings_silence")),
        sa.PrimaryKeyConstraint("silence", "finding_id", name=op.f("pk_silenced_findings")),
    )
    make_immutable("silenced_findings")
