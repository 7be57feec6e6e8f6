"""Long work that somebody asked for, done by a process beside."""

import sqlalchemy as sa
from alembic import op

from palomar.data.store.migrations.vocabulary import KEY, MOMENT, NUMBER, OBJECT, WORDS

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "jobs",
        sa.Column("job_id", KEY, nullable=False),
        sa.Column("token", KEY, nullable=False),
        sa.Column("kind", WORDS, nullable=False),
        sa.Column("arguments", OBJECT, nullable=False),
        sa.Column("actor", WORDS, nullable=False),
        sa.Column("state", WORDS, nullable=False),
        sa.Column("progress", NUMBER, nullable=False),
        sa.Column("step", WORDS, nullable=False),
        sa.Column("result", OBJECT, nullable=True),
        sa.Column("error", WORDS, nullable=True),
        sa.Column("worker", WORDS, nullable=True),
        sa.Column("asked_at", MOMENT, nullable=False),
        sa.Column("started_at", MOMENT, nullable=True),
        sa.Column("heard_at", MOMENT, nullable=True),
        sa.Column("finished_at", MOMENT, nullable=True),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_jobs")),
    )
    op.create_index(op.f("ix_jobs_token"), "jobs", ["token"], unique=True)
    op.create_index(op.f("ix_jobs_state_asked_at"), "jobs", ["state", "asked_at"], unique=False)
