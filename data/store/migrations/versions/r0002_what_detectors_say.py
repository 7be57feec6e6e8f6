"""What detectors say: findings, reports, verdicts, the baselines they compare with, forecasts."""

import sqlalchemy as sa
from alembic import op

from palomar.data.store.migrations.vocabulary import KEY, MOMENT, NUMBER, OBJECT, WHOLE, WORDS, make_immutable

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "baselines",
        sa.Column("run_id", KEY, nullable=False),
        sa.Column("number", WHOLE, nullable=False),
        sa.Column("from_cycle", WHOLE, nullable=False),
        sa.Column("cycles", OBJECT, nullable=False),
        sa.Column("reason", WORDS, nullable=False),
        sa.Column("actor", WORDS, nullable=False),
        sa.Column("set_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name=op.f("fk_baselines_run_id")),
        sa.PrimaryKeyConstraint("run_id", "number", name=op.f("pk_baselines")),
    )
    op.create_index(op.f("ix_baselines_run_id_from_cycle_number"), "baselines", ["run_id", "from_cycle", "number"])

    op.create_table(
        "findings",
        sa.Column("run_id", KEY, nullable=False),
        sa.Column("candidate", KEY, nullable=False),
        sa.Column("cycle", WHOLE, nullable=False),
        sa.Column("position", WHOLE, nullable=False),
        sa.Column("finding_id", KEY, nullable=False),
        sa.Column("key", KEY, nullable=False),
        sa.Column("recorded_at", MOMENT, nullable=False),
        sa.Column("detector", WORDS, nullable=False),
        sa.Column("severity", WORDS, nullable=False),
        sa.Column("sentence", WORDS, nullable=False),
        sa.Column("statistic", WORDS, nullable=True),
        sa.Column("slice", WORDS, nullable=False),
        sa.Column("unit", WORDS, nullable=True),
        sa.Column("before", NUMBER, nullable=True),
        sa.Column("after", NUMBER, nullable=True),
        sa.Column("effect", NUMBER, nullable=True),
        sa.Column("low", NUMBER, nullable=True),
        sa.Column("high", NUMBER, nullable=True),
        sa.Column("test", NUMBER, nullable=True),
        sa.Column("threshold", NUMBER, nullable=True),
        sa.Column("error_control", WORDS, nullable=False),
        sa.Column("n", WHOLE, nullable=False),
        sa.Column("maturity", NUMBER, nullable=True),
        sa.Column("smallest", NUMBER, nullable=True),
        sa.Column("since", WHOLE, nullable=True),
        sa.Column("reading", WORDS, nullable=True),
        sa.Column("causes", OBJECT, nullable=False),
        sa.Column("evidence", OBJECT, nullable=False),
        sa.Column("detail", OBJECT, nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id", "cycle"], ["cycles.run_id", "cycles.cycle"], name=op.f("fk_findings_run_id_cycle")
        ),
        sa.PrimaryKeyConstraint("run_id", "candidate", "cycle", "position", name=op.f("pk_findings")),
    )
    op.create_index(op.f("ix_findings_finding_id"), "findings", ["finding_id"], unique=True)
    op.create_index(op.f("ix_findings_run_id_key_cycle"), "findings", ["run_id", "key", "cycle"])
    op.create_index(op.f("ix_findings_run_id_reading_cycle"), "findings", ["run_id", "reading", "cycle"])

    op.create_table(
        "forecasts",
        sa.Column("run_id", KEY, nullable=False),
        sa.Column("for_cycle", WHOLE, nullable=False),
        sa.Column("made_in", WHOLE, nullable=False),
        sa.Column("statistic", KEY, nullable=False),
        sa.Column("slice", KEY, nullable=False),
        sa.Column("value", NUMBER, nullable=False),
        sa.Column("change", NUMBER, nullable=False),
        sa.Column("low", NUMBER, nullable=True),
        sa.Column("high", NUMBER, nullable=True),
        sa.Column("step", NUMBER, nullable=True),
        sa.Column("came", NUMBER, nullable=True),
        sa.ForeignKeyConstraint(
            ["run_id", "made_in"], ["cycles.run_id", "cycles.cycle"], name=op.f("fk_forecasts_run_id_made_in")
        ),
        sa.PrimaryKeyConstraint("run_id", "for_cycle", "made_in", "statistic", "slice", name=op.f("pk_forecasts")),
    )
    op.create_index(op.f("ix_forecasts_run_id_made_in"), "forecasts", ["run_id", "made_in"])
    op.create_index(
        op.f("ix_forecasts_run_id_statistic_slice_for_cycle_made_in"),
        "forecasts",
        ["run_id", "statistic", "slice", "for_cycle", "made_in"],
    )

    op.create_table(
        "reports",
        sa.Column("run_id", KEY, nullable=False),
        sa.Column("candidate", KEY, nullable=False),
        sa.Column("cycle", WHOLE, nullable=False),
        sa.Column("detector", KEY, nullable=False),
        sa.Column("assessed", WHOLE, nullable=False),
        sa.Column("unassessed", OBJECT, nullable=False),
        sa.Column("power", WORDS, nullable=False),
        sa.Column("recorded_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id", "cycle"], ["cycles.run_id", "cycles.cycle"], name=op.f("fk_reports_run_id_cycle")
        ),
        sa.PrimaryKeyConstraint("run_id", "candidate", "cycle", "detector", name=op.f("pk_reports")),
    )
    op.create_table(
        "verdicts",
        sa.Column("run_id", KEY, nullable=False),
        sa.Column("candidate", KEY, nullable=False),
        sa.Column("cycle", WHOLE, nullable=False),
        sa.Column("verdict", WORDS, nullable=False),
        sa.Column("reasons", OBJECT, nullable=False),
        sa.Column("sentence", WORDS, nullable=False),
        sa.Column("findings", OBJECT, nullable=False),
        sa.Column("budget", WORDS, nullable=False),
        sa.Column("as_of", MOMENT, nullable=True),
        sa.Column("checked_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id", "cycle"], ["cycles.run_id", "cycles.cycle"], name=op.f("fk_verdicts_run_id_cycle")
        ),
        sa.PrimaryKeyConstraint("run_id", "candidate", "cycle", name=op.f("pk_verdicts")),
    )
    make_immutable("baselines")
