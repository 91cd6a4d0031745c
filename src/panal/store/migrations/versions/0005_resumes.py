"""Usage records say how often an answer went on elsewhere.

Revision ID: 0005
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("usage_records", sa.Column("resumes", sa.BigInteger, nullable=False, server_default="0"))
