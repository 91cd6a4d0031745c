"""What identity needs of the store and of the bus, over core words only."""

from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from panal.core.ids import JoinTokenId, NodeId, NodeKey
from panal.core.principals import Principal
from panal.core.records import JoinTokenRecord, NodeRecord


class TokensOfEnrolment(Protocol):
    async def by_public_id(self, public_id: str, /) -> JoinTokenRecord | None: ...

    async def take_use(self, token_id: JoinTokenId, now_utc_us: int, /) -> bool:
        """Uses up one use if the token is good at that time; False otherwise. Safe against a race."""
        ...


class NodesOfEnrolment(Protocol):
    async def by_key(self, key: NodeKey, /) -> NodeRecord | None:
        """The node that has this key or had it once."""
        ...

    async def get(self, node_id: NodeId, /) -> NodeRecord | None: ...

    async def admit(self, wished: NodeRecord, /) -> NodeRecord:
        """Adds the node under a name that no other has. Raises Conflict for a key known before."""
        ...


class AuditOfEnrolment(Protocol):
    async def append(
        self,
        *,
        event_id: str,
        actor: Principal,
        action: str,
        target: str,
        now_utc_us: int,
        outcome: str = "done",
        details: Mapping[str, str | int | bool] | None = None,
    ) -> object: ...


class EnrolmentTransaction(Protocol):
    @property
    def join_tokens(self) -> TokensOfEnrolment: ...

    @property
    def nodes(self) -> NodesOfEnrolment: ...

    @property
    def audit(self) -> AuditOfEnrolment: ...


class EnrolmentStore(Protocol):
    def transaction(self) -> AbstractAsyncContextManager[EnrolmentTransaction]: ...

    def reading(self) -> AbstractAsyncContextManager[EnrolmentTransaction]: ...


class CredentialIssuer(Protocol):
    """Mints what the bus accepts, and takes it back. The bus implements it."""

    def node_credential(self, node_key: NodeKey, valid_s: int) -> str: ...

    async def revoke(self, node_key: NodeKey) -> None:
        """Cuts the node's connections and refuses its key from now on. Raises BusError; may be repeated."""
        ...

    async def ensure_revoked(self, node_keys: Iterable[NodeKey]) -> None:
        """All of these stay out, whatever was missed before; cheap when nothing was. Raises BusError."""
        ...


@dataclass(frozen=True, slots=True)
class Advertised:
    """What a node is told of how to reach the bus."""

    bus_urls: tuple[str, ...]
    ca_pem: str
