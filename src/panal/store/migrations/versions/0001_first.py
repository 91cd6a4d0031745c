"""The first shape: tenants, keys, nodes, models, usage, contributions, audit.

Revision ID: 0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

EMPTY_HASH = "0" * 64


def _id(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.String(64), nullable=False)


def _word(name: str, length: int) -> sa.Column[str]:
    return sa.Column(name, sa.String(length), nullable=False)


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False, server_default="")


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, server_default="0")


def _time(name: str, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=nullable)


def _yes_or_no(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean, nullable=False, server_default=sa.false())


def upgrade() -> None:
    _people()
    _keys_and_tokens()
    _nodes_and_models()
    _ledger()
    _audit()
    _seed()


def _people() -> None:
    op.create_table(
        "revisions",
        _word("name", 32),
        _number("number"),
        sa.PrimaryKeyConstraint("name", name="pk_revisions"),
    )
    op.create_table(
        "tenants",
        _id("tenant_id"),
        _text("name"),
        _time("created_utc_us"),
        sa.PrimaryKeyConstraint("tenant_id", name="pk_tenants"),
    )
    op.create_table(
        "projects",
        _id("project_id"),
        _id("tenant_id"),
        _text("name"),
        _time("created_utc_us"),
        sa.PrimaryKeyConstraint("project_id", name="pk_projects"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"], name="fk_projects_tenant_id"),
    )
    op.create_table(
        "principals",
        _id("principal_id"),
        _id("tenant_id"),
        _id("project_id"),
        _text("name"),
        _yes_or_no("disabled"),
        _time("created_utc_us"),
        sa.PrimaryKeyConstraint("principal_id", name="pk_principals"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"], name="fk_principals_tenant_id"),
        sa.ForeignKeyConstraint(["project_id"], ["projects.project_id"], name="fk_principals_project_id"),
    )


def _keys_and_tokens() -> None:
    op.create_table(
        "api_keys",
        _id("key_id"),
        _id("tenant_id"),
        _id("project_id"),
        _id("principal_id"),
        _text("name"),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        _text("shown"),
        _word("role", 16),
        _number("data_class"),
        _text("residency"),
        _time("created_utc_us"),
        _time("expires_utc_us", nullable=True),
        _time("revoked_utc_us", nullable=True),
        _time("last_used_utc_us", nullable=True),
        sa.PrimaryKeyConstraint("key_id", name="pk_api_keys"),
        sa.UniqueConstraint("digest", name="uq_api_keys_digest"),
        sa.ForeignKeyConstraint(
            ["principal_id"], ["principals.principal_id"], name="fk_api_keys_principal_id"
        ),
    )
    op.create_table(
        "join_tokens",
        _id("token_id"),
        _word("public_id", 16),
        _id("tenant_id"),
        _id("project_id"),
        _id("created_by"),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        _number("uses_left"),
        _time("created_utc_us"),
        _time("expires_utc_us"),
        _word("node_class", 16),
        _text("site"),
        _text("country"),
        _number("data_class"),
        _yes_or_no("approve"),
        _time("revoked_utc_us", nullable=True),
        sa.PrimaryKeyConstraint("token_id", name="pk_join_tokens"),
        sa.UniqueConstraint("public_id", name="uq_join_tokens_public_id"),
    )


def _nodes_and_models() -> None:
    op.create_table(
        "nodes",
        _id("node_id"),
        _id("tenant_id"),
        _id("project_id"),
        _word("name", 128),
        _word("node_key", 64),
        _text("machine"),
        _word("node_class", 16),
        _text("site"),
        _text("country"),
        _number("data_class"),
        _word("membership", 16),
        _text("reason"),
        _id("token_id"),
        _time("joined_utc_us"),
        _time("last_seen_utc_us", nullable=True),
        sa.PrimaryKeyConstraint("node_id", name="pk_nodes"),
        sa.UniqueConstraint("node_key", name="uq_nodes_node_key"),
    )
    in_service = sa.text("membership != 'revoked'")
    op.create_index(
        "uq_nodes_tenant_id_name",
        "nodes",
        ["tenant_id", "name"],
        unique=True,
        sqlite_where=in_service,
        postgresql_where=in_service,
    )
    op.create_table(
        "node_keys",
        _id("node_key"),
        _id("node_id"),
        _time("since_utc_us"),
        _time("until_utc_us", nullable=True),
        sa.PrimaryKeyConstraint("node_key", name="pk_node_keys"),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.node_id"], name="fk_node_keys_node_id"),
    )
    op.create_index("ix_node_keys_node_id", "node_keys", ["node_id"])
    op.create_table(
        "models",
        _id("tenant_id"),
        _word("name", 256),
        _text("twin"),
        _time("first_seen_utc_us"),
        _time("last_seen_utc_us"),
        sa.PrimaryKeyConstraint("tenant_id", "name", name="pk_models"),
    )


def _ledger() -> None:
    op.create_table(
        "usage_records",
        _id("request_id"),
        _id("tenant_id"),
        _id("project_id"),
        _id("principal_id"),
        _id("key_id"),
        _word("model", 256),
        _word("route", 32),
        _word("outcome", 16),
        _text("error_code"),
        _number("prompt_tokens"),
        _number("completion_tokens"),
        _number("cached_tokens"),
        _yes_or_no("estimated"),
        _yes_or_no("partial"),
        _number("attempts"),
        _number("queued_us"),
        _time("first_token_us", nullable=True),
        _number("total_us"),
        _time("created_utc_us"),
        sa.PrimaryKeyConstraint("request_id", name="pk_usage_records"),
    )
    op.create_index(
        "ix_usage_records_tenant_id_created_utc_us", "usage_records", ["tenant_id", "created_utc_us"]
    )
    op.create_table(
        "contributions",
        _id("request_id"),
        sa.Column("attempt", sa.Integer, nullable=False),
        _id("tenant_id"),
        _id("project_id"),
        _id("principal_id"),
        _id("node_id"),
        _word("model", 256),
        _word("outcome", 16),
        _number("prompt_tokens"),
        _number("completion_tokens"),
        _number("useful_tokens"),
        _number("duration_us"),
        _yes_or_no("confirmed"),
        _time("created_utc_us"),
        sa.PrimaryKeyConstraint("request_id", "attempt", name="pk_contributions"),
    )
    op.create_index("ix_contributions_node_id_created_utc_us", "contributions", ["node_id", "created_utc_us"])


def _audit() -> None:
    op.create_table(
        "audit_events",
        sa.Column("sequence", sa.BigInteger, nullable=False, autoincrement=False),
        _id("event_id"),
        _id("tenant_id"),
        _id("project_id"),
        _id("principal_id"),
        _id("key_id"),
        _word("action", 64),
        _text("target"),
        _word("outcome", 16),
        _text("details"),
        _time("created_utc_us"),
        _word("previous", 64),
        _word("hash", 64),
        sa.PrimaryKeyConstraint("sequence", name="pk_audit_events"),
    )
    op.create_table(
        "audit_head",
        _word("chain", 16),
        _number("sequence"),
        _word("hash", 64),
        sa.PrimaryKeyConstraint("chain", name="pk_audit_head"),
    )


def _seed() -> None:
    statements = (
        "INSERT INTO tenants (tenant_id, name, created_utc_us) VALUES ('tnt_default', 'default', 0)",
        "INSERT INTO projects (project_id, tenant_id, name, created_utc_us)"
        " VALUES ('prj_default', 'tnt_default', 'default', 0)",
        "INSERT INTO revisions (name, number) VALUES ('keys', 0), ('nodes', 0), ('bootstrap', 0)",
        f"INSERT INTO audit_head (chain, sequence, hash) VALUES ('main', 0, '{EMPTY_HASH}')",  # noqa: S608
    )
    for statement in statements:
        op.execute(statement)
