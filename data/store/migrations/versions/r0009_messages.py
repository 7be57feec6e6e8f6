"""Messages to other systems: what is to be told to whom, whether it was, and how far the audit log was read for it."""

import sqlalchemy as sa
from alembic import op

from palomar.data.store.migrations.vocabulary import KEY, MOMENT, WHOLE, WORDS

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_table(
        "channels",
        sa.Column("run_id", KEY, nullable=False),
        sa.Column("channel", KEY, nullable=False),
        sa.Column("read_to", WHOLE, nullable=False),
        sa.Column("since", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name=op.f("fk_channels_run_id")),
        sa.PrimaryKeyConstraint("run_id", "channel", name=op.f("pk_channels")),
    )
    op.create_table(
        "messages",
        sa.Column("run_id", KEY, nullable=False),
        sa.Column("channel", KEY, nullable=False),
        sa.Column("number", WHOLE, autoincrement=False, nullable=False),
        sa.Column("event", WORDS, nullable=False),
        sa.Column("body", WORDS, nullable=False),
        sa.Column("state", WORDS, nullable=False),
        sa.Column("attempts", WHOLE, nullable=False),
        sa.Column("next_at", MOMENT, nullable=False),
        sa.Column("problem", WORDS, nullable=True),
        sa.Column("queued_at", MOMENT, nullable=False),
        sa.Column("ended_at", MOMENT, nullable=True),
        sa.ForeignKeyConstraint(
            ["run_id", "channel"], ["channels.run_id", "channels.channel"], name=op.f("fk_messages_run_id_channel")
        ),
        sa.PrimaryKeyConstraint("run_id", "channel", "number", name=op.f("pk_messages")),
    )
