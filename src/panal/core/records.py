"""What is kept of nodes, keys and join tokens: plain values that store, identity and others share.

Times are UTC in whole microseconds since 1970 (``_utc_us``), so that they survive every database and
every hash unchanged. None means: has not happened, or never.
"""

from dataclasses import dataclass

from panal.core.clock import Clock
from panal.core.ids import ApiKeyId, JoinTokenId, NodeId, NodeKey, PrincipalId, ProjectId, TenantId
from panal.core.names import name_key
from panal.core.nodes import DataClass, Membership, NodeClass
from panal.core.principals import Principal, Role


def utc_us(clock: Clock) -> int:
    """Now, in whole microseconds since 1970 UTC."""
    return round(clock.utc_seconds() * 1_000_000)


@dataclass(frozen=True, slots=True)
class ApiKeyRecord:
    """An API key without its secret. ``digest`` is SHA-256 of pepper and key; ``shown`` is its beginning.

    ``models``: the names that it may use, as they were written; empty: all. ``tools_whole``: tool calls
    come in one piece where a request does not say.
    """

    key_id: ApiKeyId
    tenant_id: TenantId
    project_id: ProjectId
    principal_id: PrincipalId
    name: str
    digest: bytes
    shown: str
    role: Role
    data_class: DataClass
    residency: frozenset[str]
    created_utc_us: int
    expires_utc_us: int | None = None
    revoked_utc_us: int | None = None
    last_used_utc_us: int | None = None
    models: frozenset[str] = frozenset()
    tools_whole: bool = False

    def principal(self) -> Principal:
        """Who calls with this key."""
        return Principal(
            principal_id=self.principal_id,
            tenant_id=self.tenant_id,
            project_id=self.project_id,
            role=self.role,
            key_id=self.key_id,
            data_class=self.data_class,
            residency=self.residency,
            models=frozenset(map(name_key, self.models)),
            tools_whole=self.tools_whole,
        )


@dataclass(frozen=True, slots=True)
class AliasRecord:
    """Another name for a model. ``name`` as it was written; ``model`` is the model's own name."""

    tenant_id: TenantId
    project_id: ProjectId
    name: str
    model: str
    created_utc_us: int
    changed_utc_us: int

    @property
    def key(self) -> str:
        """What the name is compared by."""
        return name_key(self.name)


@dataclass(frozen=True, slots=True)
class JoinTokenRecord:
    """A join token without its secret, and what a machine that joins with it becomes.

    ``public_id`` is the part of the token that may be shown; ``digest`` is SHA-256 of the secret.
    """

    token_id: JoinTokenId
    public_id: str
    tenant_id: TenantId
    project_id: ProjectId
    created_by: PrincipalId
    digest: bytes
    uses_left: int
    created_utc_us: int
    expires_utc_us: int
    node_class: NodeClass
    site: str
    country: str
    data_class: DataClass
    approve: bool
    """Whether an operator must approve the node before it gets a credential."""
    revoked_utc_us: int | None = None


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A machine that was admitted. ``key`` is its current public key; ``machine`` a hash or empty."""

    node_id: NodeId
    tenant_id: TenantId
    project_id: ProjectId
    name: str
    key: NodeKey
    machine: str
    node_class: NodeClass
    site: str
    country: str
    data_class: DataClass
    membership: Membership
    reason: str
    """Why the membership is what it is, as the operator put it."""
    token_id: JoinTokenId
    joined_utc_us: int
    last_seen_utc_us: int | None = None
    wake_macs: tuple[str, ...] = ()
    """Hardware addresses by which it may be woken; empty: it did not opt in."""
