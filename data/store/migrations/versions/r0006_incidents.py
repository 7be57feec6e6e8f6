"""Incidents: findings that belong together, what they were when they were found, and whether the alarm was useful."""

import sqlalchemy as sa
from alembic import op

from palomar.data.store.migrations.vocabulary import KEY, MOMENT, OBJECT, WHOLE, WORDS, make_immutable

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "incidents",
        sa.Column("number", WHOLE, nullable=False, autoincrement=False),
        sa.Column("run_id", KEY, nullable=False),
        sa.Column("title", WORDS, nullable=False),
        sa.Column("strands", OBJECT, nullable=False),
        sa.Column("family", WORDS, nullable=False),
        sa.Column("blocks", WHOLE, nullable=False),
        sa.Column("state", WORDS, nullable=False),
        sa.Column("opened_cycle", WHOLE, nullable=False),
        sa.Column("seen_cycle", WHOLE, nullable=False),
        sa.Column("opened_at", MOMENT, nullable=False),
        sa.Column("changed_at", MOMENT, nullable=False),
        sa.Column("assignee", WORDS, nullable=True),
        sa.Column("cause", OBJECT, nullable=True),
        sa.Column("resolution", WORDS, nullable=True),
        sa.Column("resolved_cycle", WHOLE, nullable=True),
        sa.Column("until_cycle", WHOLE, nullable=True),
        sa.Column("until", MOMENT, nullable=True),
        sa.Column("scope", OBJECT, nullable=False),
        sa.Column("reopened", WHOLE, nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name=op.f("fk_incidents_run_id")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_incidents")),
    )
    op.create_index(op.f("ix_incidents_run_id_state_number"), "incidents", ["run_id", "state", "number"])
    op.create_table(
        "incident_findings",
        sa.Column("incident", WHOLE, nullable=False),
        sa.Column("finding_id", KEY, nullable=False),
        sa.Column("key", KEY, nullable=False),
        sa.Column("cycle", WHOLE, nullable=False),
        sa.Column("why", WORDS, nullable=False),
        sa.Column("finding", OBJECT, nullable=False),
        sa.Column("pinned_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(["incident"], ["incidents.number"], name=op.f("fk_incident_findings_incident")),
        sa.PrimaryKeyConstraint("incident", "finding_id", name=op.f("pk_incident_findings")),
    )
    op.create_table(
        "incident_votes",
        sa.Column("incident", WHOLE, nullable=False),
        sa.Column("detector", KEY, nullable=False),
        sa.Column("actor", KEY, nullable=False),
        sa.Column("vote", WORDS, nullable=False),
        sa.Column("voted_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(["incident"], ["incidents.number"], name=op.f("fk_incident_votes_incident")),
        sa.PrimaryKeyConstraint("incident", "detector", "actor", name=op.f("pk_incident_votes")),
    )
    make_immutable("incident_findings")
