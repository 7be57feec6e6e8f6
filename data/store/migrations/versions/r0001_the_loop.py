"""The loop: runs, cycles and stages, checkpoints, rewards, decisions, ledger, statistics, what came in."""

import sqlalchemy as sa
from alembic import op

from palomar.data.store.migrations.vocabulary import KEY, MOMENT, NUMBER, OBJECT, WHOLE, WORDS, make_immutable

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "quarantine",
        sa.Column("content_id", KEY, nullable=False),
        sa.Column("source", WORDS, nullable=False),
        sa.Column("line", WHOLE, nullable=True),
        sa.Column("field", WORDS, nullable=True),
        sa.Column("kind", KEY, nullable=False),
        sa.Column("problem", WORDS, nullable=False),
        sa.PrimaryKeyConstraint("content_id", name=op.f("pk_quarantine")),
    )
    op.create_index(op.f("ix_quarantine_kind"), "quarantine", ["kind"])

    op.create_table(
        "quarantine_sightings",
        sa.Column("content_id", KEY, nullable=False),
        sa.Column("at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(
            ["content_id"], ["quarantine.content_id"], name=op.f("fk_quarantine_sightings_content_id")
        ),
        sa.PrimaryKeyConstraint("content_id", "at", name=op.f("pk_quarantine_sightings")),
    )
    op.create_table(
        "reward_versions",
        sa.Column("version", KEY, nullable=False),
        sa.Column("parent", KEY, nullable=True),
        sa.Column("text", WORDS, nullable=False),
        sa.Column("reason", WORDS, nullable=False),
        sa.Column("actor", WORDS, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(["parent"], ["reward_versions.version"], name=op.f("fk_reward_versions_parent")),
        sa.PrimaryKeyConstraint("version", name=op.f("pk_reward_versions")),
    )
    op.create_table(
        "runs",
        sa.Column("run_id", KEY, nullable=False),
        sa.Column("name", WORDS, nullable=False),
        sa.Column("seed", WHOLE, nullable=False),
        sa.Column("config", OBJECT, nullable=False),
        sa.Column("status", WORDS, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_runs")),
    )
    op.create_table(
        "checkpoints",
        sa.Column("run_id", KEY, nullable=False),
        sa.Column("checkpoint_id", KEY, nullable=False),
        sa.Column("cycle", WHOLE, nullable=True),
        sa.Column("parent_id", KEY, nullable=True),
        sa.Column("path", WORDS, nullable=False),
        sa.Column("sha256", WORDS, nullable=False),
        sa.Column("status", WORDS, nullable=False),
        sa.Column("reason", WORDS, nullable=True),
        sa.Column("served_from", WHOLE, nullable=True),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("status_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id", "parent_id"],
            ["checkpoints.run_id", "checkpoints.checkpoint_id"],
            name=op.f("fk_checkpoints_run_id_parent_id"),
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name=op.f("fk_checkpoints_run_id")),
        sa.PrimaryKeyConstraint("run_id", "checkpoint_id", name=op.f("pk_checkpoints")),
    )
    promoted = sa.text("status = 'promoted'")
    op.create_index(
        "one_promoted", "checkpoints", ["run_id"], unique=True, sqlite_where=promoted, postgresql_where=promoted
    )

    op.create_table(
        "reward_schedule",
        sa.Column("run_id", KEY, nullable=False),
        sa.Column("from_cycle", WHOLE, nullable=False),
        sa.Column("version", KEY, nullable=False),
        sa.Column("scheduled_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name=op.f("fk_reward_schedule_run_id")),
        sa.ForeignKeyConstraint(["version"], ["reward_versions.version"], name=op.f("fk_reward_schedule_version")),
        sa.PrimaryKeyConstraint("run_id", "from_cycle", name=op.f("pk_reward_schedule")),
    )
    op.create_table(
        "champions",
        sa.Column("run_id", KEY, nullable=False),
        sa.Column("checkpoint_id", KEY, nullable=False),
        sa.Column("since_cycle", WHOLE, nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id", "checkpoint_id"],
            ["checkpoints.run_id", "checkpoints.checkpoint_id"],
            name=op.f("fk_champions_run_id_checkpoint_id"),
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name=op.f("fk_champions_run_id")),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_champions")),
    )
    op.create_table(
        "cycles",
        sa.Column("run_id", KEY, nullable=False),
        sa.Column("cycle", WHOLE, nullable=False),
        sa.Column("checkpoint_id", KEY, nullable=True),
        sa.Column("reward_version", KEY, nullable=True),
        sa.Column("status", WORDS, nullable=False),
        sa.Column("problem", WORDS, nullable=True),
        sa.Column("started_at", MOMENT, nullable=False),
        sa.Column("finished_at", MOMENT, nullable=True),
        sa.ForeignKeyConstraint(["reward_version"], ["reward_versions.version"], name=op.f("fk_cycles_reward_version")),
        sa.ForeignKeyConstraint(
            ["run_id", "checkpoint_id"],
            ["checkpoints.run_id", "checkpoints.checkpoint_id"],
            name=op.f("fk_cycles_run_id_checkpoint_id"),
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name=op.f("fk_cycles_run_id")),
        sa.PrimaryKeyConstraint("run_id", "cycle", name=op.f("pk_cycles")),
    )
    op.create_table(
        "evaluations",
        sa.Column("run_id", KEY, nullable=False),
        sa.Column("checkpoint_id", KEY, nullable=False),
        sa.Column("suite", KEY, nullable=False),
        sa.Column("metric", KEY, nullable=False),
        sa.Column("value", NUMBER, nullable=True),
        sa.Column("low", NUMBER, nullable=True),
        sa.Column("high", NUMBER, nullable=True),
        sa.Column("n", WHOLE, nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id", "checkpoint_id"],
            ["checkpoints.run_id", "checkpoints.checkpoint_id"],
            name=op.f("fk_evaluations_run_id_checkpoint_id"),
        ),
        sa.PrimaryKeyConstraint("run_id", "checkpoint_id", "suite", "metric", name=op.f("pk_evaluations")),
    )
    op.create_table(
        "decisions",
        sa.Column("run_id", KEY, nullable=False),
        sa.Column("candidate", KEY, nullable=False),
        sa.Column("cycle", WHOLE, nullable=False),
        sa.Column("verdict", WORDS, nullable=False),
        sa.Column("reasons", OBJECT, nullable=False),
        sa.Column("evidence", OBJECT, nullable=False),
        sa.Column("policy", WORDS, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id", "candidate"],
            ["checkpoints.run_id", "checkpoints.checkpoint_id"],
            name=op.f("fk_decisions_run_id_candidate"),
        ),
        sa.ForeignKeyConstraint(
            ["run_id", "cycle"], ["cycles.run_id", "cycles.cycle"], name=op.f("fk_decisions_run_id_cycle")
        ),
        sa.PrimaryKeyConstraint("run_id", "candidate", name=op.f("pk_decisions")),
    )
    op.create_index(op.f("ix_decisions_run_id_cycle"), "decisions", ["run_id", "cycle"])

    op.create_table(
        "ledger",
        sa.Column("run_id", KEY, nullable=False),
        sa.Column("cycle", WHOLE, nullable=False),
        sa.Column("stratum", KEY, nullable=False),
        sa.Column("place", WORDS, nullable=False),
        sa.Column("reason", KEY, nullable=False),
        sa.Column("count", WHOLE, nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id", "cycle"], ["cycles.run_id", "cycles.cycle"], name=op.f("fk_ledger_run_id_cycle")
        ),
        sa.PrimaryKeyConstraint("run_id", "cycle", "stratum", "place", "reason", name=op.f("pk_ledger")),
    )
    op.create_table(
        "stages",
        sa.Column("run_id", KEY, nullable=False),
        sa.Column("cycle", WHOLE, nullable=False),
        sa.Column("stage", WORDS, nullable=False),
        sa.Column("elapsed_s", NUMBER, nullable=False),
        sa.Column("detail", OBJECT, nullable=False),
        sa.Column("finished_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id", "cycle"], ["cycles.run_id", "cycles.cycle"], name=op.f("fk_stages_run_id_cycle")
        ),
        sa.PrimaryKeyConstraint("run_id", "cycle", "stage", name=op.f("pk_stages")),
    )
    op.create_table(
        "statistics",
        sa.Column("run_id", KEY, nullable=False),
        sa.Column("cycle", WHOLE, nullable=False),
        sa.Column("statistic", KEY, nullable=False),
        sa.Column("slice", KEY, nullable=False),
        sa.Column("value", NUMBER, nullable=True),
        sa.Column("low", NUMBER, nullable=True),
        sa.Column("high", NUMBER, nullable=True),
        sa.Column("n", WHOLE, nullable=False),
        sa.Column("status", WORDS, nullable=False),
        sa.Column("maturity", NUMBER, nullable=True),
        sa.ForeignKeyConstraint(
            ["run_id", "cycle"], ["cycles.run_id", "cycles.cycle"], name=op.f("fk_statistics_run_id_cycle")
        ),
        sa.PrimaryKeyConstraint("run_id", "cycle", "statistic", "slice", name=op.f("pk_statistics")),
        sqlite_with_rowid=False,
    )
    for table in ("reward_versions", "decisions"):
        make_immutable(table)
