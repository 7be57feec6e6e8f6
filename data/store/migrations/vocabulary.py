"""What the scripts write with. Fixed for good: a script means today what it meant when it was released."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

KEY = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
WORDS = sa.Text()
WHOLE = sa.BigInteger()
NUMBER: sa.Double[float] = sa.Double()
MOMENT = sa.DateTime(timezone=True)
OBJECT = sa.JSON()


def make_immutable(table: str) -> None:
    """Lets the database itself refuse to change or delete a row of ``table``.

    SQLite drops triggers when Alembic writes a table anew (``batch_alter_table``): such a script calls this again.
    """
    if op.get_bind().dialect.name == "sqlite":
        for change in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_refuse_{change.lower()} BEFORE {change} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, 'rows of {table} are never changed'); END"
            )
        return
    op.execute(
        "CREATE OR REPLACE FUNCTION palomar_refuse_change() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'rows of % are never changed', TG_TABLE_NAME; END $$"
    )
    op.execute(
        f"CREATE TRIGGER {table}_refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
        "FOR EACH STATEMENT EXECUTE FUNCTION palomar_refuse_change()"
    )
