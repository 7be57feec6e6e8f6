"""Decisions that can be taken again: numbered per run, with what they rest on; and overrides that two people make."""

import sqlalchemy as sa
from alembic import op

from palomar.data.store.migrations.vocabulary import KEY, MOMENT, OBJECT, WHOLE, WORDS, make_immutable

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.rename_table("decisions", "decisions_before")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP TRIGGER decisions_refuse_change ON decisions_before")
        op.execute("ALTER TABLE decisions_before RENAME CONSTRAINT pk_decisions TO pk_decisions_before")
        for name in ("candidate", "cycle"):
            op.execute(f"ALTER TABLE decisions_before DROP CONSTRAINT fk_decisions_run_id_{name}")
    op.execute("DROP INDEX ix_decisions_run_id_cycle")
    op.create_table(
        "decisions",
        sa.Column("run_id", KEY, nullable=False),
        sa.Column("sequence", WHOLE, nullable=False),
        sa.Column("decision_id", KEY, nullable=False),
        sa.Column("candidate", KEY, nullable=False),
        sa.Column("cycle", WHOLE, nullable=False),
        sa.Column("verdict", WORDS, nullable=False),
        sa.Column("kind", WORDS, nullable=True),
        sa.Column("reasons", OBJECT, nullable=False),
        sa.Column("sentence", WORDS, nullable=False),
        sa.Column("evidence", OBJECT, nullable=False),
        sa.Column("inputs", OBJECT, nullable=True),
        sa.Column("policy", WORDS, nullable=False),
        sa.Column("policy_text", WORDS, nullable=True),
        sa.Column("expires_at", MOMENT, nullable=True),
        sa.Column("supersedes", KEY, nullable=True),
        sa.Column("actor", WORDS, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id", "candidate"],
            ["checkpoints.run_id", "checkpoints.checkpoint_id"],
            name=op.f("fk_decisions_run_id_candidate"),
        ),
        sa.ForeignKeyConstraint(
            ["run_id", "cycle"], ["cycles.run_id", "cycles.cycle"], name=op.f("fk_decisions_run_id_cycle")
        ),
        sa.PrimaryKeyConstraint("run_id", "sequence", name=op.f("pk_decisions")),
    )
    # What was decided before had no number: numbered in the order it was decided, and named by run and number.
    op.execute(
        "INSERT INTO decisions (run_id, sequence, decision_id, candidate, cycle, verdict, reasons, sentence, evidence, "
        "policy, actor, created_at) SELECT run_id, n, run_id || ':' || n, candidate, cycle, verdict, reasons, '', "
        "evidence, policy, 'palomar run', created_at FROM (SELECT decisions_before.*, row_number() OVER "
        "(PARTITION BY run_id ORDER BY created_at, cycle, candidate) AS n FROM decisions_before) AS numbered"
    )
    op.drop_table("decisions_before")
    op.create_index(op.f("ix_decisions_run_id_cycle"), "decisions", ["run_id", "cycle"])
    op.create_index(op.f("ix_decisions_run_id_candidate_sequence"), "decisions", ["run_id", "candidate", "sequence"])
    op.create_index(op.f("ix_decisions_decision_id"), "decisions", ["decision_id"], unique=True)
    make_immutable("decisions")

    op.create_table(
        "overrides",
        sa.Column("override_id", KEY, nullable=False),
        sa.Column("run_id", KEY, nullable=False),
        sa.Column("candidate", KEY, nullable=False),
        sa.Column("number", WHOLE, nullable=False),
        sa.Column("decision_id", KEY, nullable=False),
        sa.Column("verdict", WORDS, nullable=False),
        sa.Column("reason", WORDS, nullable=False),
        sa.Column("hours", sa.Double(), nullable=False),
        sa.Column("requested_by", WORDS, nullable=False),
        sa.Column("requested_at", MOMENT, nullable=False),
        sa.Column("approved_by", WORDS, nullable=True),
        sa.Column("approved_at", MOMENT, nullable=True),
        sa.Column("approval", WORDS, nullable=True),
        sa.Column("made", KEY, nullable=True),
        sa.ForeignKeyConstraint(["decision_id"], ["decisions.decision_id"], name=op.f("fk_overrides_decision_id")),
        sa.ForeignKeyConstraint(
            ["run_id", "candidate"],
            ["checkpoints.run_id", "checkpoints.checkpoint_id"],
            name=op.f("fk_overrides_run_id_candidate"),
        ),
        sa.PrimaryKeyConstraint("override_id", name=op.f("pk_overrides")),
    )
    op.create_index(
        op.f("ix_overrides_run_id_candidate_number"), "overrides", ["run_id", "candidate", "number"], unique=True
    )
