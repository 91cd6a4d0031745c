"""Keys may want tool calls in one piece.

Revision ID: 0006
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("api_keys", sa.Column("tools_whole", sa.Boolean, nullable=False, server_default=sa.false()))
