"""The audit log: list, verify."""

import msgspec

from panal.core.errors import BadRequest
from panal.core.principals import Principal, Role
from panal.management.means import PAGE_ITEMS, Means, Page, page_items, require
from panal.store.audit import AuditEvent


class AuditView(msgspec.Struct, frozen=True, kw_only=True):
    """``details`` is canonical JSON, as it was hashed."""

    sequence: int
    id: str
    principal: str
    key: str
    action: str
    target: str
    outcome: str
    details: str
    created_utc_s: float
    previous: str
    hash: str


class ChainView(msgspec.Struct, frozen=True, kw_only=True):
    """``broken_at`` is the first event that does not fit, 0 if the chain is whole."""

    whole: bool
    events: int
    broken_at: int
    reason: str


class AuditOperations:
    def __init__(self, means: Means) -> None:
        self._means = means

    async def list(self, actor: Principal, *, before: str = "", limit: int = PAGE_ITEMS) -> Page[AuditView]:
        """Needs OPERATOR; newest first. Raises NotAllowed, BadRequest, StoreError."""
        require(actor, Role.OPERATOR)
        if before and not (before.isascii() and before.isdigit() and len(before) < 19):
            raise BadRequest("'before' is the sequence number of an event.", param="before")
        async with self._means.store.reading() as tx:
            events = await tx.audit.list(actor.tenant_id, before=int(before or 0), limit=page_items(limit))
        following = str(events[-1].sequence) if len(events) == page_items(limit) else ""
        return Page([_view(event) for event in events], following)

    async def verify(self, actor: Principal) -> ChainView:
        """Needs OPERATOR. Checks every event of the installation. Raises NotAllowed, StoreError."""
        require(actor, Role.OPERATOR)
        async with self._means.store.reading() as tx:
            state = await tx.audit.verify()
        return ChainView(
            whole=state.whole, events=state.events, broken_at=state.broken_at, reason=state.reason
        )


def _view(event: AuditEvent) -> AuditView:
    return AuditView(
        sequence=event.sequence,
        id=event.event_id,
        principal=event.principal_id,
        key=event.key_id,
        action=event.action,
        target=event.target,
        outcome=event.outcome,
        details=event.details,
        created_utc_s=event.created_utc_us / 1_000_000,
        previous=event.previous,
        hash=event.hash,
    )
