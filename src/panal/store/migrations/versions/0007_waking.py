"""Nodes that opted in keep the addresses by which they may be woken.

Revision ID: 0007
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("nodes", sa.Column("wake_macs", sa.String(256), nullable=False, server_default=""))
