"""Join tokens: create, list, revoke."""

import msgspec

from panal.core.errors import NotFound
from panal.core.ids import JoinTokenId
from panal.core.principals import Principal, Role
from panal.core.records import JoinTokenRecord
from panal.identity.join_tokens import TokenWish, new_token, why_unusable
from panal.management.means import PAGE_ITEMS, Means, Page, page_items, require


class TokenView(msgspec.Struct, frozen=True, kw_only=True):
    """A join token without its secret. ``state``: good | used up | expired | revoked."""

    id: str
    state: str
    uses_left: int
    node_class: str
    site: str
    country: str
    data_class: str
    approve: bool
    created_by: str
    created_utc_s: float
    expires_utc_s: float


class NewToken(msgspec.Struct, frozen=True, kw_only=True):
    """``token`` is shown here once and never again."""

    token: str
    view: TokenView


class JoinTokenOperations:
    def __init__(self, means: Means) -> None:
        self._means = means

    async def create(self, actor: Principal, wish: TokenWish) -> NewToken:
        """Needs ADMIN. Raises NotAllowed, BadRequest, StoreError."""
        require(actor, Role.ADMIN)
        means = self._means
        token, record = new_token(
            wish, creator=actor, pin=means.pin, ids=means.ids, clock=means.clock, entropy=means.entropy
        )
        async with means.store.transaction() as tx:
            await tx.join_tokens.add(record)
            await means.audit(tx, actor, "token.create", record.token_id, _details(record))
        return NewToken(token=token.text(), view=self._view(record))

    async def list(self, actor: Principal, *, after: str = "", limit: int = PAGE_ITEMS) -> Page[TokenView]:
        """Needs OPERATOR. Raises NotAllowed, StoreError."""
        require(actor, Role.OPERATOR)
        async with self._means.store.reading() as tx:
            records = await tx.join_tokens.list(actor.tenant_id, after=after, limit=page_items(limit))
        following = records[-1].token_id if len(records) == page_items(limit) else ""
        return Page([self._view(record) for record in records], following)

    async def revoke(self, actor: Principal, token_id: str) -> TokenView:
        """Needs ADMIN; doing it twice is no error. Raises NotAllowed, NotFound, StoreError."""
        require(actor, Role.ADMIN)
        means = self._means
        async with means.store.transaction() as tx:
            changed = await tx.join_tokens.revoke(actor.tenant_id, JoinTokenId(token_id), means.now_utc_us())
            record = await tx.join_tokens.get(actor.tenant_id, JoinTokenId(token_id))
            if record is None:
                raise NotFound("There is no such join token.")
            if changed:
                await means.audit(tx, actor, "token.revoke", record.token_id)
        return self._view(record)

    def _view(self, record: JoinTokenRecord) -> TokenView:
        return TokenView(
            id=record.token_id,
            state=_state(record, self._means.now_utc_us()),
            uses_left=record.uses_left,
            node_class=record.node_class.value,
            site=record.site,
            country=record.country,
            data_class=record.data_class.label,
            approve=record.approve,
            created_by=record.created_by,
            created_utc_s=record.created_utc_us / 1_000_000,
            expires_utc_s=record.expires_utc_us / 1_000_000,
        )


def _state(record: JoinTokenRecord, now_utc_us: int) -> str:
    if why_unusable(record, now_utc_us) is None:
        return "good"
    if record.revoked_utc_us is not None:
        return "revoked"
    return "used up" if record.uses_left <= 0 else "expired"


def _details(record: JoinTokenRecord) -> dict[str, str | int | bool]:
    return {
        "uses": record.uses_left,
        "expires_utc_us": record.expires_utc_us,
        "node_class": record.node_class.value,
        "site": record.site,
        "country": record.country,
        "data_class": record.data_class.label,
        "approve": record.approve,
    }
