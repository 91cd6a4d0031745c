"""Usage records say how often an answer went on elsewhere.

Revision ID: 0003
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("usage_records", sa.Column("resumes", sa.BigInteger, nullable=False, server_default="0"))
