"""What people say of single interactions that a finding names."""

import sqlalchemy as sa
from alembic import op

from palomar.data.store.migrations.vocabulary import KEY, MOMENT, WORDS

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.create_table(
        "labels",
        sa.Column("finding_id", KEY, nullable=False),
        sa.Column("interaction_id", KEY, nullable=False),
        sa.Column("actor", KEY, nullable=False),
        sa.Column("run_id", KEY, nullable=False),
        sa.Column("detector", WORDS, nullable=False),
        sa.Column("place", WORDS, nullable=False),
        sa.Column("label", WORDS, nullable=False),
        sa.Column("labelled_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name=op.f("fk_labels_run_id")),
        sa.PrimaryKeyConstraint("finding_id", "interaction_id", "actor", name=op.f("pk_labels")),
    )
    op.create_index(op.f("ix_labels_interaction_id"), "labels", ["interaction_id"])
