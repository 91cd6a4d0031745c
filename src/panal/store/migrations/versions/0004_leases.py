"""Leases: which process leads the controller.

Revision ID: 0004
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, server_default="0")


def upgrade() -> None:
    op.create_table(
        "leases",
        sa.Column("name", sa.String(32), nullable=False),
        sa.Column("holder", sa.String(64), nullable=False, server_default=""),
        _number("term"),
        _number("beat"),
        sa.PrimaryKeyConstraint("name", name="pk_leases"),
    )
    op.execute(sa.text("INSERT INTO leases (name) VALUES ('controller')"))
