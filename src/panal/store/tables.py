"""The tables as queries see them. Migrations do not use this file; a test holds both equal.

Times are UTC microseconds since 1970 and durations microseconds (``_us``), both BIGINT; money, once
there is any, is BIGINT in micro-units of its currency. Residency is text: sorted countries, comma-joined.
Usage and contributions refer to other rows by id without foreign keys: they must be writable always.
"""

import sqlalchemy as sa

metadata = sa.MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)


def _id(name: str, *, primary_key: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.String(64), nullable=False, primary_key=primary_key)


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False, server_default="")


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, server_default="0")


def _time(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False)


def _maybe_time(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=True)


def _yes_or_no(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean, nullable=False, server_default=sa.false())


revisions = sa.Table(
    "revisions",
    metadata,
    sa.Column("name", sa.String(32), primary_key=True),
    _number("number"),
)

tenants = sa.Table(
    "tenants",
    metadata,
    _id("tenant_id", primary_key=True),
    _text("name"),
    _time("created_utc_us"),
)

projects = sa.Table(
    "projects",
    metadata,
    _id("project_id", primary_key=True),
    sa.Column("tenant_id", sa.String(64), sa.ForeignKey("tenants.tenant_id"), nullable=False),
    _text("name"),
    _time("created_utc_us"),
)

principals = sa.Table(
    "principals",
    metadata,
    _id("principal_id", primary_key=True),
    sa.Column("tenant_id", sa.String(64), sa.ForeignKey("tenants.tenant_id"), nullable=False),
    sa.Column("project_id", sa.String(64), sa.ForeignKey("projects.project_id"), nullable=False),
    _text("name"),
    _yes_or_no("disabled"),
    _time("created_utc_us"),
)

api_keys = sa.Table(
    "api_keys",
    metadata,
    _id("key_id", primary_key=True),
    _id("tenant_id"),
    _id("project_id"),
    sa.Column("principal_id", sa.String(64), sa.ForeignKey("principals.principal_id"), nullable=False),
    _text("name"),
    sa.Column("digest", sa.LargeBinary(32), nullable=False, unique=True),
    _text("shown"),
    sa.Column("role", sa.String(16), nullable=False),
    _number("data_class"),
    _text("residency"),
    _time("created_utc_us"),
    _maybe_time("expires_utc_us"),
    _maybe_time("revoked_utc_us"),
    _maybe_time("last_used_utc_us"),
    _text("models"),
    _yes_or_no("tools_whole"),
)

join_tokens = sa.Table(
    "join_tokens",
    metadata,
    _id("token_id", primary_key=True),
    sa.Column("public_id", sa.String(16), nullable=False, unique=True),
    _id("tenant_id"),
    _id("project_id"),
    _id("created_by"),
    sa.Column("digest", sa.LargeBinary(32), nullable=False),
    _number("uses_left"),
    _time("created_utc_us"),
    _time("expires_utc_us"),
    sa.Column("node_class", sa.String(16), nullable=False),
    _text("site"),
    _text("country"),
    _number("data_class"),
    _yes_or_no("approve"),
    _maybe_time("revoked_utc_us"),
)

nodes = sa.Table(
    "nodes",
    metadata,
    _id("node_id", primary_key=True),
    _id("tenant_id"),
    _id("project_id"),
    sa.Column("name", sa.String(128), nullable=False),
    sa.Column("node_key", sa.String(64), nullable=False, unique=True),
    _text("machine"),
    sa.Column("node_class", sa.String(16), nullable=False),
    _text("site"),
    _text("country"),
    _number("data_class"),
    sa.Column("membership", sa.String(16), nullable=False),
    _text("reason"),
    _id("token_id"),
    _time("joined_utc_us"),
    _maybe_time("last_seen_utc_us"),
    sa.Column("wake_macs", sa.String(256), nullable=False, server_default=""),
)
sa.Index(
    "uq_nodes_tenant_id_name",
    nodes.c.tenant_id,
    nodes.c.name,
    unique=True,
    sqlite_where=nodes.c.membership != "revoked",
    postgresql_where=nodes.c.membership != "revoked",
)

node_keys = sa.Table(
    "node_keys",
    metadata,
    _id("node_key", primary_key=True),
    sa.Column("node_id", sa.String(64), sa.ForeignKey("nodes.node_id"), nullable=False, index=True),
    _time("since_utc_us"),
    _maybe_time("until_utc_us"),
)

models = sa.Table(
    "models",
    metadata,
    _id("tenant_id", primary_key=True),
    sa.Column("name", sa.String(256), primary_key=True),
    _text("twin"),
    _time("first_seen_utc_us"),
    _time("last_seen_utc_us"),
)

aliases = sa.Table(
    "aliases",
    metadata,
    _id("tenant_id", primary_key=True),
    sa.Column("name_key", sa.String(256), primary_key=True),
    _id("project_id"),
    sa.Column("name", sa.String(256), nullable=False),
    sa.Column("model", sa.String(256), nullable=False),
    _time("created_utc_us"),
    _time("changed_utc_us"),
)

usage_records = sa.Table(
    "usage_records",
    metadata,
    _id("request_id", primary_key=True),
    _id("tenant_id"),
    _id("project_id"),
    _id("principal_id"),
    _id("key_id"),
    sa.Column("model", sa.String(256), nullable=False),
    sa.Column("route", sa.String(32), nullable=False),
    sa.Column("outcome", sa.String(16), nullable=False),
    _text("error_code"),
    _number("prompt_tokens"),
    _number("completion_tokens"),
    _number("cached_tokens"),
    _yes_or_no("estimated"),
    _yes_or_no("partial"),
    _number("attempts"),
    _number("queued_us"),
    _maybe_time("first_token_us"),
    _number("total_us"),
    _time("created_utc_us"),
    sa.Column("name_used", sa.String(256), nullable=False, server_default=""),
    _number("resumes"),
)
sa.Index(
    "ix_usage_records_tenant_id_created_utc_us", usage_records.c.tenant_id, usage_records.c.created_utc_us
)

contributions = sa.Table(
    "contributions",
    metadata,
    _id("request_id", primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    _id("tenant_id"),
    _id("project_id"),
    _id("principal_id"),
    _id("node_id"),
    sa.Column("model", sa.String(256), nullable=False),
    sa.Column("outcome", sa.String(16), nullable=False),
    _number("prompt_tokens"),
    _number("completion_tokens"),
    _number("useful_tokens"),
    _number("duration_us"),
    _yes_or_no("confirmed"),
    _time("created_utc_us"),
)
sa.Index("ix_contributions_node_id_created_utc_us", contributions.c.node_id, contributions.c.created_utc_us)

audit_events = sa.Table(
    "audit_events",
    metadata,
    sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
    _id("event_id"),
    _id("tenant_id"),
    _id("project_id"),
    _id("principal_id"),
    _id("key_id"),
    sa.Column("action", sa.String(64), nullable=False),
    _text("target"),
    sa.Column("outcome", sa.String(16), nullable=False),
    _text("details"),
    _time("created_utc_us"),
    sa.Column("previous", sa.String(64), nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
)

audit_head = sa.Table(
    "audit_head",
    metadata,
    sa.Column("chain", sa.String(16), primary_key=True),
    _number("sequence"),
    sa.Column("hash", sa.String(64), nullable=False),
)

limits = sa.Table(
    "limits",
    metadata,
    sa.Column("limit_name", sa.String(128), nullable=False, primary_key=True),
    _id("tenant_id"),
    _id("subject"),
    sa.Column("kind", sa.String(32), nullable=False),
    _number("amount"),
    _time("changed_utc_us"),
)
sa.Index("ix_limits_tenant_id_subject", limits.c.tenant_id, limits.c.subject)

limit_windows = sa.Table(
    "limit_windows",
    metadata,
    sa.Column("limit_name", sa.String(128), nullable=False, primary_key=True),
    sa.Column("start_utc_s", sa.BigInteger, primary_key=True, autoincrement=False),
    _number("used"),
)

limit_leases = sa.Table(
    "limit_leases",
    metadata,
    sa.Column("limit_name", sa.String(128), nullable=False, primary_key=True),
    sa.Column("gateway_id", sa.String(64), nullable=False, primary_key=True),
    _number("held"),
    _time("expires_utc_us"),
)

leases = sa.Table(
    "leases",
    metadata,
    sa.Column("name", sa.String(32), primary_key=True),
    sa.Column("holder", sa.String(64), nullable=False, server_default=""),
    _number("term"),
    _number("beat"),
)
