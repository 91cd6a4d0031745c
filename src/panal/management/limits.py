"""Limits of keys, projects and tenants: set, list, clear."""

from collections.abc import Collection, Mapping

import msgspec

from panal.core.errors import BadRequest, NotFound
from panal.core.ids import ApiKeyId
from panal.core.principals import Principal, Role
from panal.management.means import Means, Page, has, require
from panal.policy.limits import AMOUNT_MAX, Limit, LimitKind
from panal.store import Transaction


class LimitView(msgspec.Struct, frozen=True, kw_only=True):
    """``subject``: the id of a key, a project or a tenant. ``limit``: such as tokens_per_minute."""

    subject: str
    limit: str
    amount: int


class LimitOperations:
    def __init__(self, means: Means) -> None:
        self._means = means

    async def set(self, actor: Principal, subject: str, amounts: Mapping[LimitKind, int]) -> Page[LimitView]:
        """Needs ADMIN. Sets these limits, leaves the others; in force everywhere within two seconds.

        Gives all limits of the subject. Raises NotAllowed, BadRequest, NotFound (subject), StoreError.
        """
        require(actor, Role.ADMIN)
        if not amounts:
            raise BadRequest("Give at least one limit, such as 'tokens_per_minute'.")
        for kind, amount in amounts.items():
            if not 1 <= amount <= AMOUNT_MAX:
                raise BadRequest(
                    f"'{kind.value}' must be a whole number from 1 to {AMOUNT_MAX}.", param=kind.value
                )
        means = self._means
        async with means.store.transaction() as tx:
            await _check_subject(tx, actor, subject)
            for kind, amount in amounts.items():
                await tx.limits.set(actor.tenant_id, Limit(subject, kind, amount), means.now_utc_us())
            details: dict[str, str | int | bool] = {kind.value: amount for kind, amount in amounts.items()}
            await means.audit(tx, actor, "limit.set", subject, details)
            found = await tx.limits.list(actor.tenant_id, [subject])
        means.notify()
        return _page(found)

    async def list(self, actor: Principal, subject: str = "") -> Page[LimitView]:
        """OPERATOR sees all of the tenant; a user those that its own key is under. Raises StoreError."""
        subjects: set[str] | None = None
        if not has(actor, Role.OPERATOR):
            subjects = {actor.key_id, actor.project_id, actor.tenant_id}
        if subject:
            subjects = {subject} if subjects is None else subjects & {subject}
        async with self._means.store.reading() as tx:
            return _page(await tx.limits.list(actor.tenant_id, subjects))

    async def clear(self, actor: Principal, subject: str, kinds: Collection[LimitKind]) -> Page[LimitView]:
        """Needs ADMIN. Gives the limits that are left. Raises NotAllowed, NotFound, StoreError."""
        require(actor, Role.ADMIN)
        async with self._means.store.transaction() as tx:
            gone = await tx.limits.clear(actor.tenant_id, subject, kinds)
            if not gone:
                raise NotFound("There is no such limit.")
            details: dict[str, str | int | bool] = {limit.kind.value: limit.amount for limit in gone}
            await self._means.audit(tx, actor, "limit.clear", subject, details)
            left = await tx.limits.list(actor.tenant_id, [subject])
        self._means.notify()
        return _page(left)


def _page(limits: Collection[Limit]) -> Page[LimitView]:
    """All in one page: a subject has five limits at most, and few subjects have any."""
    return Page(
        [LimitView(subject=each.subject, limit=each.kind.value, amount=each.amount) for each in limits]
    )


async def _check_subject(tx: Transaction, actor: Principal, subject: str) -> None:
    if subject == actor.tenant_id:
        return
    if subject.startswith("key_"):
        known = await tx.api_keys.get(actor.tenant_id, ApiKeyId(subject)) is not None
    else:
        known = await tx.principals.has_project(actor.tenant_id, subject)
    if not known:
        raise NotFound("There is no such key, project or tenant.")
