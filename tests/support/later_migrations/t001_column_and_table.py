"""For tests only: a mandatory column, a new table filled from old rows, an index.

Revision ID: t001
"""

import sqlalchemy as sa
from alembic import op

revision = "t001"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("nodes", sa.Column("floor", sa.BigInteger, nullable=False, server_default="0"))
    op.create_table(
        "floors",
        sa.Column("node_id", sa.String(64), nullable=False),
        sa.Column("floor", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("node_id", name="pk_floors"),
    )
    op.execute("INSERT INTO floors (node_id, floor) SELECT node_id, 1 FROM nodes")
    op.execute("UPDATE nodes SET floor = 1")
    op.create_index("ix_nodes_floor", "nodes", ["floor"])
