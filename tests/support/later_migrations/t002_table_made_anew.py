"""For tests only: on SQLite a table that others refer to is made anew, with all its rows.

Revision ID: t002
"""

import sqlalchemy as sa
from alembic import op

revision = "t002"
down_revision = "t001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("nodes") as nodes:
        nodes.alter_column("reason", existing_type=sa.Text, type_=sa.String(4000), existing_server_default="")
        nodes.create_check_constraint("ck_nodes_floor", "floor >= 0")
    with op.batch_alter_table("principals") as principals:
        principals.add_column(sa.Column("mail", sa.Text, nullable=True))
        principals.alter_column("name", existing_type=sa.Text, nullable=False, existing_server_default="")
    op.drop_table("floors")
