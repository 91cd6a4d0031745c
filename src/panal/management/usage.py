"""Usage: who used what. Users see their own, operators all of their tenant."""

from contextlib import aclosing
from dataclasses import dataclass

import msgspec

from panal.core.errors import BadRequest
from panal.core.ids import PrincipalId
from panal.core.principals import Principal, Role
from panal.ledger.values import UsageRecord
from panal.management.means import PAGE_ITEMS, Means, Page, has, page_items, require
from panal.management.retention import UsageRetention

PRUNE_S_MAX = 3.0
KEPT_S_MIN = 86_400.0


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """``since <= created < until``, in seconds UTC; empty fields choose everything."""

    principal_id: str = ""
    model: str = ""
    since_utc_s: float | None = None
    until_utc_s: float | None = None


class UsageView(msgspec.Struct, frozen=True, kw_only=True):
    request: str
    project: str
    principal: str
    key: str
    model: str
    name_used: str
    """What the client called the model, where that was not ``model``, its own name."""
    route: str
    outcome: str
    error_code: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    estimated: bool
    partial: bool
    attempts: int
    queued_s: float
    first_token_s: float | None
    total_s: float
    created_utc_s: float
    resumes: int


class TotalsView(msgspec.Struct, frozen=True, kw_only=True):
    requests: int
    attempts: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class PruneView(msgspec.Struct, frozen=True, kw_only=True):
    """``records`` that went (``dry_run``: would go) by this call; ``more``: call again for the rest."""

    records: int
    more: bool


class UsageOperations:
    def __init__(self, means: Means) -> None:
        self._means = means
        self._retention = UsageRetention(means.store, means.ids, means.clock)

    async def prune(self, actor: Principal, before_utc_s: float, *, dry_run: bool = False) -> PruneView:
        """Remove the tenant's records of before that moment, with their contributions, for a few seconds.

        Needs ADMIN. Raises NotAllowed, BadRequest (less than a day ago), StoreError.
        """
        require(actor, Role.ADMIN)
        clock = self._means.clock
        if not 0 <= before_utc_s <= clock.utc_seconds() - KEPT_S_MIN:
            raise BadRequest("'before_utc_s' must be at least a day ago.", param="before_utc_s")
        before_utc_us = round(before_utc_s * 1_000_000)
        if dry_run:
            async with self._means.store.reading() as tx:
                return PruneView(
                    records=await tx.usage.count_before(actor.tenant_id, before_utc_us), more=False
                )
        ends_s, removed = clock.monotonic_seconds() + PRUNE_S_MAX, 0
        async with aclosing(self._retention.pages(actor.tenant_id, before_utc_us, actor)) as pages:
            async for count in pages:
                removed += count
                if clock.monotonic_seconds() >= ends_s:
                    return PruneView(records=removed, more=True)
        return PruneView(records=removed, more=False)

    async def list(
        self, actor: Principal, chosen: UsageFilter, *, before: str = "", limit: int = PAGE_ITEMS
    ) -> Page[UsageView]:
        """Newest first. Raises NotAllowed (another's usage needs OPERATOR), StoreError."""
        of = _owner(actor, chosen)
        async with self._means.store.reading() as tx:
            records = await tx.usage.list(
                actor.tenant_id,
                before=before,
                limit=page_items(limit),
                of=of,
                model=chosen.model or None,
                since_utc_us=_us(chosen.since_utc_s),
                until_utc_us=_us(chosen.until_utc_s),
            )
        following = records[-1].request_id if len(records) == page_items(limit) else ""
        return Page([_view(record) for record in records], following)

    async def totals(self, actor: Principal, chosen: UsageFilter) -> TotalsView:
        """Sums. Raises as ``list`` does."""
        of = _owner(actor, chosen)
        async with self._means.store.reading() as tx:
            totals = await tx.usage.totals(
                actor.tenant_id,
                of=of,
                model=chosen.model or None,
                since_utc_us=_us(chosen.since_utc_s),
                until_utc_us=_us(chosen.until_utc_s),
            )
        return TotalsView(
            requests=totals.requests,
            attempts=totals.attempts,
            prompt_tokens=totals.prompt_tokens,
            completion_tokens=totals.completion_tokens,
            cached_tokens=totals.cached_tokens,
        )


def _owner(actor: Principal, chosen: UsageFilter) -> PrincipalId | None:
    if has(actor, Role.OPERATOR):
        return PrincipalId(chosen.principal_id) if chosen.principal_id else None
    if chosen.principal_id not in ("", actor.principal_id):
        require(actor, Role.OPERATOR)
    return actor.principal_id


def _us(moment_utc_s: float | None) -> int | None:
    return None if moment_utc_s is None else round(moment_utc_s * 1_000_000)


def _view(record: UsageRecord) -> UsageView:
    return UsageView(
        request=record.request_id,
        project=record.project_id,
        principal=record.principal_id,
        key=record.key_id,
        model=record.model,
        name_used=record.name_used,
        route=record.route,
        outcome=record.outcome.value,
        error_code=record.error_code,
        prompt_tokens=record.prompt_tokens,
        completion_tokens=record.completion_tokens,
        cached_tokens=record.cached_tokens,
        estimated=record.estimated,
        partial=record.partial,
        attempts=record.attempts,
        queued_s=record.queued_us / 1_000_000,
        first_token_s=None if record.first_token_us is None else record.first_token_us / 1_000_000,
        total_s=record.total_us / 1_000_000,
        created_utc_s=record.created_utc_us / 1_000_000,
        resumes=record.resumes,
    )
