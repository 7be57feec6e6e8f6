"""What was proposed for a run's reward, and every change of it, with reason and actor."""

import sqlalchemy as sa
from alembic import op

from palomar.data.store.migrations.vocabulary import KEY, MOMENT, OBJECT, WHOLE, WORDS, make_immutable

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "reward_proposals",
        sa.Column("run_id", KEY, nullable=False),
        sa.Column("proposal_id", KEY, nullable=False),
        sa.Column("cycle", WHOLE, nullable=False),
        sa.Column("place", WHOLE, nullable=False),
        sa.Column("base", KEY, nullable=False),
        sa.Column("version", KEY, nullable=False),
        sa.Column("kind", WORDS, nullable=False),
        sa.Column("title", WORDS, nullable=False),
        sa.Column("text", WORDS, nullable=False),
        sa.Column("actor", WORDS, nullable=False),
        sa.Column("detail", OBJECT, nullable=False),
        sa.Column("made_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(["base"], ["reward_versions.version"], name=op.f("fk_reward_proposals_base")),
        sa.ForeignKeyConstraint(
            ["run_id", "cycle"], ["cycles.run_id", "cycles.cycle"], name=op.f("fk_reward_proposals_run_id_cycle")
        ),
        sa.PrimaryKeyConstraint("run_id", "proposal_id", name=op.f("pk_reward_proposals")),
    )
    op.create_index(op.f("ix_reward_proposals_run_id_cycle_place"), "reward_proposals", ["run_id", "cycle", "place"])
    op.create_table(
        "reward_changes",
        sa.Column("run_id", KEY, nullable=False),
        sa.Column("number", WHOLE, nullable=False),
        sa.Column("from_cycle", WHOLE, nullable=False),
        sa.Column("version", KEY, nullable=False),
        sa.Column("instead_of", KEY, nullable=True),
        sa.Column("action", WORDS, nullable=False),
        sa.Column("proposal_id", KEY, nullable=True),
        sa.Column("reason", WORDS, nullable=False),
        sa.Column("actor", WORDS, nullable=False),
        sa.Column("changed_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name=op.f("fk_reward_changes_run_id")),
        sa.ForeignKeyConstraint(["version"], ["reward_versions.version"], name=op.f("fk_reward_changes_version")),
        sa.ForeignKeyConstraint(["instead_of"], ["reward_versions.version"], name=op.f("fk_reward_changes_instead_of")),
        sa.ForeignKeyConstraint(
            ["run_id", "proposal_id"],
            ["reward_proposals.run_id", "reward_proposals.proposal_id"],
            name=op.f("fk_reward_changes_run_id_proposal_id"),
        ),
        sa.PrimaryKeyConstraint("run_id", "number", name=op.f("pk_reward_changes")),
    )
    make_immutable("reward_proposals")
    make_immutable("reward_changes")
