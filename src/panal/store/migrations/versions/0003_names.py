"""Aliases of models, names that a key is restricted to, and the name that a client used.

Revision ID: 0003
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def _name(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.String(256), nullable=False)


def _id(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.String(64), nullable=False)


def _time(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False)


def upgrade() -> None:
    op.create_table(
        "aliases",
        _id("tenant_id"),
        _name("name_key"),
        _id("project_id"),
        _name("name"),
        _name("model"),
        _time("created_utc_us"),
        _time("changed_utc_us"),
        sa.PrimaryKeyConstraint("tenant_id", "name_key", name="pk_aliases"),
    )
    op.add_column("api_keys", sa.Column("models", sa.Text, nullable=False, server_default=""))
    op.add_column("usage_records", sa.Column("name_used", sa.String(256), nullable=False, server_default=""))
    op.execute(sa.text("INSERT INTO revisions (name, number) VALUES ('names', 0)"))
