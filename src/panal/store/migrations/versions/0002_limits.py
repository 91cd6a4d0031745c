"""Limits of keys, projects and tenants: what is limited, what is used, who holds places.

Revision ID: 0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def _name() -> sa.Column[str]:
    return sa.Column("limit_name", sa.String(128), nullable=False)


def _id(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.String(64), nullable=False)


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, server_default="0")


def _time(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False)


def upgrade() -> None:
    op.create_table(
        "limits",
        _name(),
        _id("tenant_id"),
        _id("subject"),
        sa.Column("kind", sa.String(32), nullable=False),
        _number("amount"),
        _time("changed_utc_us"),
        sa.PrimaryKeyConstraint("limit_name", name="pk_limits"),
    )
    op.create_index("ix_limits_tenant_id_subject", "limits", ["tenant_id", "subject"])
    op.create_table(
        "limit_windows",
        _name(),
        _time("start_utc_s"),
        _number("used"),
        sa.PrimaryKeyConstraint("limit_name", "start_utc_s", name="pk_limit_windows"),
    )
    op.create_table(
        "limit_leases",
        _name(),
        _id("gateway_id"),
        _number("held"),
        _time("expires_utc_us"),
        sa.PrimaryKeyConstraint("limit_name", "gateway_id", name="pk_limit_leases"),
    )
    op.execute(sa.text("INSERT INTO revisions (name, number) VALUES ('limits', 0)"))
