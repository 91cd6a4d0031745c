"""The audit log: appended in the transaction of the change it tells of, chained by SHA-256.

An event's hash covers its canonical JSON, which holds the hash of the event before it: UTF-8, keys
sorted, no spaces, whole numbers only. Whoever changes, removes or reorders events breaks the chain;
whoever removes the newest ones differs from the head, which is kept apart.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from panal.core.ids import DEFAULT_PROJECT, DEFAULT_TENANT, ApiKeyId, PrincipalId, ProjectId, TenantId
from panal.core.principals import Principal
from panal.store import tables
from panal.store.statements import PAGE_ROWS_MAX, checked_page

_EVENTS = tables.audit_events
_HEAD = tables.audit_head
_CHAIN = "main"

FIRST_HASH = "0" * 64


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """``target`` is an id, never a secret; ``details`` is canonical JSON of a flat object."""

    sequence: int
    event_id: str
    tenant_id: TenantId
    project_id: ProjectId
    principal_id: PrincipalId
    key_id: ApiKeyId
    action: str
    target: str
    outcome: str
    details: str
    created_utc_us: int
    previous: str
    hash: str

    def expected_hash(self) -> str:
        """The hash that the other fields call for."""
        fields = asdict(self)
        del fields["hash"]
        return hashlib.sha256(canonical(fields)).hexdigest()


@dataclass(frozen=True, slots=True)
class ChainState:
    """Result of a check. ``broken_at`` is the first sequence that does not fit; 0 means whole."""

    events: int
    broken_at: int
    reason: str = ""

    @property
    def whole(self) -> bool:
        return self.broken_at == 0


class AuditLog:
    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def append(
        self,
        *,
        event_id: str,
        actor: Principal | None,
        action: str,
        target: str,
        now_utc_us: int,
        outcome: str = "done",
        details: Mapping[str, str | int | bool] | None = None,
    ) -> AuditEvent:
        """Adds an event. Other appends wait until this transaction ends, so append last.

        ``actor`` None: a stranger was refused, which the operators of the first tenant may see.
        """
        head = (
            await self._connection.execute(_HEAD.select().where(_HEAD.c.chain == _CHAIN).with_for_update())
        ).one()
        event = AuditEvent(
            sequence=head.sequence + 1,
            event_id=event_id,
            tenant_id=DEFAULT_TENANT if actor is None else actor.tenant_id,
            project_id=DEFAULT_PROJECT if actor is None else actor.project_id,
            principal_id=PrincipalId("") if actor is None else actor.principal_id,
            key_id=ApiKeyId("") if actor is None else actor.key_id,
            action=action,
            target=target,
            outcome=outcome,
            details=canonical(dict(details or {})).decode(),
            created_utc_us=now_utc_us,
            previous=head.hash,
            hash="",
        )
        fields = asdict(event) | {"hash": event.expected_hash()}
        await self._connection.execute(_EVENTS.insert().values(fields))
        await self._connection.execute(
            _HEAD.update().where(_HEAD.c.chain == _CHAIN).values(sequence=event.sequence, hash=fields["hash"])
        )
        return AuditEvent(**fields)

    async def list(self, tenant_id: TenantId, *, before: int = 0, limit: int = 100) -> Sequence[AuditEvent]:
        """Newest events first, from the first sequence less than ``before`` (0: from the end)."""
        query = _EVENTS.select().where(_EVENTS.c.tenant_id == tenant_id)
        if before:
            query = query.where(_EVENTS.c.sequence < before)
        query = query.order_by(_EVENTS.c.sequence.desc()).limit(checked_page(limit))
        return [_event(row) for row in await self._connection.execute(query)]

    async def verify(self) -> ChainState:
        """Reads the whole chain in pages and checks every link and the head."""
        last_sequence, last_hash = 0, FIRST_HASH
        while page := await self._page_after(last_sequence):
            for event in page:
                reason = fault_of(event, last_sequence, last_hash)
                if reason:
                    return ChainState(last_sequence, last_sequence + 1, reason)
                last_sequence, last_hash = event.sequence, event.hash
        head = (await self._connection.execute(_HEAD.select().where(_HEAD.c.chain == _CHAIN))).one()
        if (head.sequence, head.hash) != (last_sequence, last_hash):
            return ChainState(last_sequence, last_sequence + 1, "the newest events are missing")
        return ChainState(last_sequence, 0)

    async def _page_after(self, sequence: int) -> Sequence[AuditEvent]:
        query = _EVENTS.select().where(_EVENTS.c.sequence > sequence)
        query = query.order_by(_EVENTS.c.sequence).limit(PAGE_ROWS_MAX)
        return [_event(row) for row in await self._connection.execute(query)]


def canonical(fields: Mapping[str, Any]) -> bytes:
    """The JSON that is hashed."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def fault_of(event: AuditEvent, last_sequence: int, last_hash: str) -> str:
    """Why an event does not follow the one before it; empty: it does."""
    if event.sequence != last_sequence + 1:
        return "an event is missing"
    if event.previous != last_hash:
        return "an event does not follow the one before it"
    if event.hash != event.expected_hash():
        return "an event was changed"
    return ""


def _event(row: sa.Row[Any]) -> AuditEvent:
    return AuditEvent(
        sequence=row.sequence,
        event_id=row.event_id,
        tenant_id=TenantId(row.tenant_id),
        project_id=ProjectId(row.project_id),
        principal_id=PrincipalId(row.principal_id),
        key_id=ApiKeyId(row.key_id),
        action=row.action,
        target=row.target,
        outcome=row.outcome,
        details=row.details,
        created_utc_us=row.created_utc_us,
        previous=row.previous,
        hash=row.hash,
    )
